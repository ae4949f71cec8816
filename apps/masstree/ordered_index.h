// What the server needs of an index: 8-byte keys in order, 8-byte values, readers that run beside writers.
// Standard library only.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace ordered {

enum class Put : uint8_t {
  kUpdated,   ///< the key was there
  kInserted,  ///< the key is new
  kFull,      ///< nothing was done: the index has all the keys that it may have, or there is no memory
};

/// An index with members that any thread may call at any time. A backend that needs memory of each thread keeps it
/// itself.
///
///   Index(keys_max)           holds so many keys at most. May throw std::bad_alloc.
///   get(key)                  the value of the key; nothing: it has none
///   put(key, value)           stores the value, whatever was there. A get() or scan() that begins afterwards sees it
///   scan(after, limit, visit) calls visit(key, value) for the first `limit` keys greater than `after`, in ascending
///                             order, and returns how many there were. It is no snapshot: each value is one that its
///                             key had during the scan, and a key that is inserted meanwhile may be visited or not.
///
/// get() and scan() must not wait for a put(), nor a put() for them: event loops call all three, and a worker may lose
/// its CPU in the middle of a scan. Nothing is ever removed.
template <class Index>
concept OrderedIndex = std::constructible_from<Index, size_t> &&
    requires(Index& index, uint64_t key, uint64_t value, size_t limit, void (*visit)(uint64_t, uint64_t)) {
  { index.get(key) } -> std::same_as<std::optional<uint64_t>>;
  { index.put(key, value) } -> std::same_as<Put>;
  { index.scan(key, limit, visit) } -> std::same_as<size_t>;
  { Index::kName } -> std::convertible_to<const char*>;
};

}  // namespace ordered
