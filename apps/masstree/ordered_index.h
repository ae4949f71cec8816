// What the server requires of an index: 8-byte keys in order, 8-byte values, readers that run concurrently with
// writers. Standard library only.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace ordered {

enum class Put : uint8_t {
  kUpdated,   ///< the key was there
  kInserted,  ///< the key is new
  kFull,      ///< nothing was changed: the index has its maximum number of keys, or there is no memory
};

/// An index. Any thread may call its members at any time. If a backend needs memory for each thread, the backend
/// manages it.
///
///   Index(keys_max)           holds at most `keys_max` keys. May throw std::bad_alloc.
///   get(key)                  returns the value of the key; nullopt: the key has no value
///   put(key, value)           stores the value, and replaces an old one. A later get() or scan() sees it.
///   scan(after, limit, visit) calls visit(key, value) for the first `limit` keys greater than `after`, in ascending
///                             order, and returns their number. It is not a snapshot: each value is one that its
///                             key had during the scan. It may visit or miss a key that is inserted during the scan.
///
/// get() and scan() must not wait for a put(), and a put() must not wait for them, because event loops call all three,
/// and a worker may lose its CPU in the middle of a scan. No key is ever removed.
template <class Index>
concept OrderedIndex = std::constructible_from<Index, size_t> &&
    requires(Index& index, uint64_t key, uint64_t value, size_t limit, void (*visit)(uint64_t, uint64_t)) {
  { index.get(key) } -> std::same_as<std::optional<uint64_t>>;
  { index.put(key, value) } -> std::same_as<Put>;
  { index.scan(key, limit, visit) } -> std::same_as<size_t>;
  { Index::kName } -> std::convertible_to<const char*>;
};

}  // namespace ordered
