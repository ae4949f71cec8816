// Names that wait for their departure time. A name is an opaque number, and the caller looks up its meaning when it
// departs. Therefore the queue refers to no message memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/try.h"

namespace tern::cc {

class DepartureQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  /// The time of the first departure. Must not be called when the queue is empty.
  uint64_t next_ns() const { return heap_.front().at_ns; }
  /// False: no memory, and nothing has changed.
  [[nodiscard]] bool add(uint64_t at_ns, uint32_t name) {
    if (!base::try_reserve(heap_, heap_.size() + 1)) return false;
    heap_.push_back({at_ns, name});
    std::push_heap(heap_.begin(), heap_.end(), Later());
    return true;
  }
  /// Calls depart(name) for the names whose time has come, earliest first, `names_max` of them at most.
  template <class F>
  void run(uint64_t now_ns, size_t names_max, F&& depart) {
    for (; names_max != 0 && !heap_.empty() && heap_.front().at_ns <= now_ns; names_max--) {
      const uint32_t name = heap_.front().name;
      std::pop_heap(heap_.begin(), heap_.end(), Later());
      heap_.pop_back();
      depart(name);
    }
    if (heap_.empty() && heap_.capacity() > kKept) std::vector<Entry>().swap(heap_);
  }
  size_t capacity() const { return heap_.capacity(); }  ///< for tests

 private:
  /// An empty queue gives back more memory than for this many names, because many sessions may have been in it at once.
  static constexpr size_t kKept = 4096;

  struct Entry {
    uint64_t at_ns;
    uint32_t name;
  };
  /// A type of its own, so that it is inlined.
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const { return a.at_ns > b.at_ns; }
  };
  std::vector<Entry> heap_;
};

}  // namespace tern::cc
