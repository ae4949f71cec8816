// A vector whose elements never move. Base layer. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tern::base {

/// The elements lie in chunks of kChunk. std::deque also keeps addresses, but of elements of 100 B it puts five into a
/// block of 512 B, and each block takes a header.
template <class T, size_t kChunk = 64>
class StableVector {
 public:
  size_t size() const { return size_; }
  T& operator[](size_t index) { return chunks_[index / kChunk][index % kChunk]; }
  const T& operator[](size_t index) const { return chunks_[index / kChunk][index % kChunk]; }
  /// Appends a value-initialized element. May throw std::bad_alloc; then nothing has changed.
  void emplace_back() {
    if (size_ == chunks_.size() * kChunk) {
      std::unique_ptr<T[]> chunk(new T[kChunk]());
      chunks_.push_back(std::move(chunk));
    }
    size_++;
  }
  template <class F>
  void for_each(F&& f) const {
    for (size_t i = 0; i < size_; i++) f((*this)[i]);
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  size_t size_ = 0;
};

}  // namespace tern::base
