// Objects of one type from slabs: stable addresses, constant time, memory kept for reuse until trim() or the pool's
// end. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "base/slab.h"
#include "base/try.h"

namespace tern::base {

/// take() constructs an object, and returns null if there is no memory. give() destroys an object. The first slab has
/// kFirstSlab objects. Each later slab has as many objects as all slabs before it together, but is at most one huge
/// page. Therefore at most half of a pool's memory has never been used, and the memory of large pools is almost all in
/// huge pages. A slab of that size becomes a huge page only when it is full: with 20 000 sessions, the unused part of
/// the newest slabs was a twentieth of the sessions' memory.
template <class T, size_t kFirstSlab = 64>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    for (const Slab& slab : slabs_) unmap_slab(slab.cells, slab.bytes);
  }

  template <class... Args>
  T* take(Args&&... args) {
    Cell* cell = free_;
    if (cell != nullptr) {
      free_ = cell->next;
    } else {
      if (fresh_ == fresh_end_ && !grow()) return nullptr;
      cell = fresh_++;
    }
    taken_++;
    return new (cell->bytes) T(std::forward<Args>(args)...);
  }
  void give(T* object) {
    object->~T();
    Cell* cell = reinterpret_cast<Cell*>(object);
    cell->next = free_;
    free_ = cell;
    taken_--;
  }
  size_t taken() const { return taken_; }
  /// Gives back the memory of all slabs but the first, unless an object is taken.
  void trim() {
    if (taken_ != 0 || slabs_.size() < 2) return;
    for (size_t i = 1; i < slabs_.size(); i++) {
      if (slabs_[i].bytes < kHugeSlabBytes) forget_pages(slabs_[i].cells, slabs_[i].bytes);  // malloc would keep them
      unmap_slab(slabs_[i].cells, slabs_[i].bytes);
    }
    slabs_.resize(1);
    free_ = nullptr;
    fresh_ = slabs_[0].cells;
    capacity_ = slabs_[0].bytes / sizeof(Cell);
    fresh_end_ = fresh_ + capacity_;
  }
  /// The memory of all slabs.
  size_t bytes() const { return capacity_ * sizeof(Cell); }

 private:
  union Cell {
    Cell* next;
    alignas(T) unsigned char bytes[sizeof(T)];
  };
  static_assert(alignof(Cell) <= 64 && sizeof(Cell) < kHugeSlabBytes);
  struct Slab {
    Cell* cells;
    size_t bytes;
  };
  bool grow() {
    constexpr size_t kHugeCount = kHugeSlabBytes / sizeof(Cell);
    const size_t count = std::min(std::max(kFirstSlab, capacity_), kHugeCount);
    const size_t bytes = count == kHugeCount ? kHugeSlabBytes : count * sizeof(Cell);
    if (!try_reserve(slabs_, slabs_.size() + 1)) return false;
    auto* cells = static_cast<Cell*>(count == kHugeCount ? map_slab_in_small_pages() : map_slab(bytes));
    if (cells == nullptr) return false;
    if (!slabs_.empty() && slabs_.back().bytes == kHugeSlabBytes) make_huge(slabs_.back().cells);
    slabs_.push_back({cells, bytes});
    fresh_ = cells;
    fresh_end_ = cells + count;
    capacity_ += count;
    return true;
  }

  Cell* free_ = nullptr;
  Cell* fresh_ = nullptr;  ///< the cells from here to the end of the newest slab have never been used
  Cell* fresh_end_ = nullptr;
  size_t taken_ = 0;
  size_t capacity_ = 0;
  std::vector<Slab> slabs_;
};

}  // namespace tern::base
