// Ranges of response packets that a client has asked for and that have not been sent yet.
// Session layer: pure values. Allocates without throwing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/try.h"
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

/// A FIFO queue.
class RangeQueue {
 public:
  /// Most ranges of one session. A client keeps to its credits, so more ranges are hostile, or their credits were lost.
  static constexpr uint32_t kMax = 256;

  bool empty() const { return ranges_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(ranges_.size()); }
  Range& front() { return ranges_.front(); }
  const Range& operator[](uint32_t index) const { return ranges_[index]; }
  /// Appends a range. False: kMax ranges wait, or there is no memory.
  bool push(const Range& range) {
    if (size() == kMax || !base::try_reserve(ranges_, size() + 1)) return false;
    ranges_.push_back(range);
    return true;
  }
  void pop() { ranges_.erase(ranges_.begin()); }
  /// Removes the ranges of a slot whose response is gone.
  void forget_slot(uint32_t slot_index) {
    std::erase_if(ranges_,
                  [=](const Range& range) { return (range.request_number & (wire::kSlotsMax - 1)) == slot_index; });
  }

 private:
  std::vector<Range> ranges_;
};

}  // namespace tern::session
