// A queue in one array that grows only in try_reserve(). Elements for which it has reserved memory can always be
// pushed. Reserved memory is touched only as far as the queue has been long, so that a reserve takes no pages.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/try.h"

namespace tern::base {

template <class T>
class RingQueue {
 public:
  RingQueue() = default;
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;
  ~RingQueue() {
    while (!empty()) pop();
    free_memory();
  }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  /// Returns false if there is no memory; then nothing has changed.
  [[nodiscard]] bool try_reserve(size_t count) {
    if (count <= capacity_) return true;
    const size_t capacity = std::bit_ceil(count);
    T* larger = nullptr;
    if (!try_grow([&] { larger = std::allocator<T>().allocate(capacity); })) return false;
    const size_t size = size_;
    for (size_t i = 0; i < size; i++) std::construct_at(larger + i, pop());
    free_memory();
    items_ = larger;
    capacity_ = capacity;
    size_ = size;
    return true;
  }
  /// Must be called only while size() < capacity().
  void push(T&& item) { std::construct_at(items_ + ((first_ + size_++) & (capacity_ - 1)), std::move(item)); }
  const T& front() const { return items_[first_]; }
  T pop() {
    T item = std::move(items_[first_]);
    std::destroy_at(items_ + first_);
    size_--;
    first_ = size_ == 0 ? 0 : (first_ + 1) & (capacity_ - 1);
    return item;
  }

 private:
  void free_memory() {
    if (items_ != nullptr) std::allocator<T>().deallocate(items_, capacity_);
  }

  T* items_ = nullptr;
  size_t capacity_ = 0;  ///< a power of two, or 0
  size_t first_ = 0;     ///< 0 if the queue is empty
  size_t size_ = 0;
};

}  // namespace tern::base
