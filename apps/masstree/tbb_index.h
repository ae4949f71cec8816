// An index over oneTBB's concurrent_map, a skip list. Readers and writers take no locks. docs/masstree.md gives the
// reasons for the choice, and its cost.
#pragma once

#include <tbb/concurrent_map.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "ordered_index.h"

namespace ordered {

class TbbIndex {
 public:
  static constexpr const char* kName = "tbb::concurrent_map";

  explicit TbbIndex(size_t keys_max) : keys_max_(keys_max) {}

  std::optional<uint64_t> get(uint64_t key) const {
    const auto found = map_.find(key);
    if (found == map_.end()) return std::nullopt;
    return found->second.load(std::memory_order_acquire);
  }

  Put put(uint64_t key, uint64_t value) {
    const auto found = map_.find(key);
    if (found != map_.end()) return update(found->second, value);
    // A writer reserves a place first, so that concurrent writers of new keys never exceed the limit.
    if (keys_.fetch_add(1, std::memory_order_relaxed) >= keys_max_) return give_back(Put::kFull);
    try {
      const auto [place, is_new] = map_.emplace(key, value);
      if (is_new) return Put::kInserted;
      return give_back(update(place->second, value));  // another writer has inserted the key first
    } catch (const std::bad_alloc&) {
      return give_back(Put::kFull);
    }
  }

  template <class Visit>
  size_t scan(uint64_t after, size_t limit, Visit&& visit) const {
    size_t visited = 0;
    for (auto at = map_.upper_bound(after); visited < limit && at != map_.end(); ++at, ++visited) {
      visit(at->first, at->second.load(std::memory_order_acquire));
    }
    return visited;
  }

 private:
  using Value = std::atomic<uint64_t>;
  // The standard allocator is used because tbb_allocator loads another library at run time if that library is
  // installed.
  using Map = tbb::concurrent_map<uint64_t, Value, std::less<>, std::allocator<std::pair<const uint64_t, Value>>>;

  static Put update(Value& place, uint64_t value) {
    place.store(value, std::memory_order_release);
    return Put::kUpdated;
  }
  Put give_back(Put outcome) {
    keys_.fetch_sub(1, std::memory_order_relaxed);
    return outcome;
  }

  const size_t keys_max_;
  std::atomic<size_t> keys_{0};
  Map map_;
};

static_assert(OrderedIndex<TbbIndex>);

}  // namespace ordered
