// How many events that strangers can cause are told to a log. Base layer. One thread; time is an argument.
#pragma once

#include <cstdint>
#include <utility>

namespace tern::base {

class LogLimit {
 public:
  static constexpr uint64_t kPeriodNs = 1'000'000'000;
  static constexpr uint32_t kPerPeriod = 100;

  /// False: one more is left out.
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
  /// The number of those left out since the last call.
  uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  uint64_t began_ns_ = 0;
  uint64_t left_out_ = 0;
  uint32_t told_ = 0;
};

}  // namespace tern::base
