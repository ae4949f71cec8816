// A limit on the log events that unknown peers can cause. Base layer. One thread; time is an argument.
#pragma once

#include <cstdint>
#include <utility>

namespace tern::base {

class LogLimit {
 public:
  static constexpr uint64_t kPeriodNs = 1'000'000'000;
  static constexpr uint32_t kPerPeriod = 100;

  /// Returns false if this event must be left out.
  bool may_tell(uint64_t now_ns) {
    if (now_ns - began_ns_ >= kPeriodNs) {
      began_ns_ = now_ns;
      told_ = 0;
    }
    if (told_ < kPerPeriod) {
      told_++;
      return true;
    }
    left_out_++;
    return false;
  }
  /// Returns the number of events that were left out since the last call.
  uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  uint64_t began_ns_ = 0;
  uint64_t left_out_ = 0;
  uint32_t told_ = 0;
};

}  // namespace tern::base
