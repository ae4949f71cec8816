// The time for which an endpoint without work polls before it blocks. Rpc layer. No clock: times are arguments.
#pragma once

#include <cstdint>

#include <tern/endpoint.h>

#include "rpc/endpoint_context.h"

namespace tern::rpc {

/// kPoll and kAdaptive have a fixed limit. With kBlock the limit depends on how closely packets follow each other. To
/// block and to be woken costs each side 10 to 20 us where the CPU has other work. A thread that receives packets at
/// shorter intervals would use most of a CPU for that alone, so it polls for as long as such an interval lasts.
class SpinLimit {
 public:
  /// kBlock: an endpoint whose last packets came within this time polls for this time. It is twice the cost above: the
  /// cost of a fruitless poll is then at most that of two wake-ups.
  static constexpr uint64_t kShortGapNs = 30'000;

  /// `is_virtual`: polling is useless, because time stands still meanwhile.
  SpinLimit(const RpcOptions& options, bool is_virtual)
      : limit_ns_(fixed_limit_ns(options)), learns_(options.wait == Wait::kBlock && !is_virtual) {}

  /// The endpoint polls until this long after the last packets, and then blocks.
  uint64_t ns() const { return limit_ns_; }
  /// Called when packets have ended a sleep. `gap_ns`: the time since the packets before them.
  void on_woken(uint64_t gap_ns) {
    if (learns_) limit_ns_ = gap_ns < kShortGapNs ? kShortGapNs : 0;
  }

 private:
  static uint64_t fixed_limit_ns(const RpcOptions& options) {
    if (options.wait == Wait::kPoll) return UINT64_MAX;
    return options.wait == Wait::kAdaptive ? to_ns(options.spin) : 0;
  }

  uint64_t limit_ns_;
  bool learns_;
};

}  // namespace tern::rpc
