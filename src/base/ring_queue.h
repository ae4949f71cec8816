// A queue in one array that grows only in try_reserve(). Elements for which it has reserved memory can always be
// pushed.
#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/try.h"

namespace tern::base {

template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return items_.size(); }
  /// Returns false if there is no memory; then nothing has changed.
  [[nodiscard]] bool try_reserve(size_t count) {
    if (count <= capacity()) return true;
    std::vector<T> larger;
    if (!try_grow([&] { larger.resize(std::bit_ceil(count)); })) return false;
    for (size_t i = 0; i < size_; i++) larger[i] = std::move(items_[(first_ + i) & (capacity() - 1)]);
    items_ = std::move(larger);
    first_ = 0;
    return true;
  }
  /// Must be called only while size() < capacity().
  void push(T&& item) { items_[(first_ + size_++) & (capacity() - 1)] = std::move(item); }
  const T& front() const { return items_[first_]; }
  T pop() {
    T item = std::move(items_[first_]);
    first_ = (first_ + 1) & (capacity() - 1);
    size_--;
    return item;
  }

 private:
  std::vector<T> items_;  ///< their number is a power of two, or 0
  size_t first_ = 0, size_ = 0;
};

}  // namespace tern::base
