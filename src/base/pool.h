// Objects of one type from slabs: stable addresses, constant time, memory kept until the pool dies.
// One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace tern::base {

/// take() constructs, give() destroys. Slabs are made of kPerSlab objects; null when there is no memory.
template <class T, size_t kPerSlab = 64>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  template <class... Args>
  T* take(Args&&... args) {
    if (free_ == nullptr && !grow()) return nullptr;
    Cell* cell = free_;
    free_ = cell->next;
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

 private:
  union Cell {
    Cell* next;
    alignas(T) unsigned char bytes[sizeof(T)];
  };
  bool grow() {
    std::unique_ptr<Cell[]> slab(new (std::nothrow) Cell[kPerSlab]);
    if (slab == nullptr) return false;
    for (size_t i = kPerSlab; i-- > 0;) {
      slab[i].next = free_;
      free_ = &slab[i];
    }
    slabs_.push_back(std::move(slab));
    return true;
  }

  Cell* free_ = nullptr;
  size_t taken_ = 0;
  std::vector<std::unique_ptr<Cell[]>> slabs_;
};

}  // namespace tern::base
