// Ranges of response packets that a client has asked for and that have not been sent yet.
// Session layer: pure values. Allocates without throwing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "wire/header.h"

namespace tern::session {

/// Response packets [first, first + count) that an RFR asked for.
struct Range {
  uint32_t request_number = 0;
  uint32_t first = 0;
  uint8_t count = 0;
  uint8_t payload_code = 0;  ///< wire/payload_code.h
  uint32_t echo = 0;         ///< packet number of the RFR
  uint64_t received_ns = 0;  ///< arrival of the RFR
};

/// A FIFO queue. The empty queue of an idle session takes one pointer.
class RangeQueue {
 public:
  /// Most ranges of one session. A client keeps to its credits, so more ranges are hostile, or their credits were lost.
  static constexpr uint32_t kMax = 256;

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  Range& front() { return ranges_[0]; }
  const Range& operator[](uint32_t index) const { return ranges_[index]; }
  /// Appends a range. False: kMax ranges wait, or there is no memory.
  bool push(const Range& range) {
    if (size_ == capacity_ && !grow()) return false;
    ranges_[size_++] = range;
    return true;
  }
  void pop() {
    size_--;
    std::copy_n(ranges_.get() + 1, size_, ranges_.get());
  }
  /// Removes the ranges of a slot whose response is gone.
  void forget_slot(uint32_t slot_index) {
    const auto is_gone = [=](const Range& range) {
      return (range.request_number & (wire::kSlotsMax - 1)) == slot_index;
    };
    size_ = static_cast<uint32_t>(std::remove_if(ranges_.get(), ranges_.get() + size_, is_gone) - ranges_.get());
  }

 private:
  bool grow() {
    if (capacity_ == kMax) return false;
    const uint32_t capacity = capacity_ == 0 ? 4 : 2 * capacity_;
    std::unique_ptr<Range[]> larger(new (std::nothrow) Range[capacity]);
    if (larger == nullptr) return false;
    std::copy_n(ranges_.get(), size_, larger.get());
    ranges_ = std::move(larger);
    capacity_ = capacity;
    return true;
  }

  std::unique_ptr<Range[]> ranges_;
  uint32_t size_ = 0;
  uint32_t capacity_ = 0;
};

}  // namespace tern::session
