// The time for which an endpoint without work polls before it blocks. Rpc layer. No clock: times are arguments.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tern/endpoint.h>

#include "rpc/endpoint_context.h"

namespace tern::rpc {

/// kPoll and kAdaptive have a fixed limit. With kBlock the limit depends on how closely packets follow each other. A
/// sleep and its wake-up cost each side 10 to 20 us where the CPU has other work. A thread that receives packets at
/// such intervals would spend most of a CPU on that, so it polls instead. It stops polling after a poll in vain. Then
/// it blocks for a number of wake-ups before it polls again. The number doubles each time, and is 0 again after polling
/// has paid.
class SpinLimit {
 public:
  /// kBlock: an endpoint polls for this long. It is about the cost of two wake-ups.
  static constexpr uint64_t kSpinNs = 30'000;
  /// kBlock: the endpoint polls if the gap between packets is shorter than this. Both ends may be woken in such a gap.
  static constexpr uint64_t kShortGapNs = 100'000;
  /// kBlock: polling that ended no earlier than this has paid.
  static constexpr uint64_t kPaidNs = 1'000'000;
  /// kBlock: the largest number of wake-ups without polling after polls in vain.
  static constexpr uint32_t kSkipsMax = 63;

  /// `is_virtual`: time stands still while the endpoint polls, so that polling is useless.
  SpinLimit(const RpcOptions& options, bool is_virtual)
      : limit_ns_(fixed_limit_ns(options)), learns_(options.wait == Wait::kBlock && !is_virtual) {}

  /// Poll until this long after the last packets, then block.
  uint64_t ns() const { return limit_ns_; }
  /// kPoll and kAdaptive: each poll lasts at least this long. 0: kBlock, where that depends on the packets.
  uint64_t sure_ns() const { return learns_ ? 0 : limit_ns_; }
  bool is_endless() const { return limit_ns_ == UINT64_MAX; }
  /// Packets have ended a sleep. `gap_ns`: the time since the packets before them.
  void on_woken(uint64_t gap_ns, uint64_t now_ns) {
    if (!learns_) return;
    if (limit_ns_ != 0) {
      limit_ns_ = 0;
      skips_ = now_ns - began_ns_ >= kPaidNs ? 0 : std::min(2 * skips_ + 1, kSkipsMax);
      skips_left_ = skips_;
    } else if (skips_left_ > 0) {
      skips_left_--;
    } else if (gap_ns < kShortGapNs) {
      limit_ns_ = kSpinNs;
      began_ns_ = now_ns;
    }
  }

 private:
  static uint64_t fixed_limit_ns(const RpcOptions& options) {
    if (options.wait == Wait::kPoll) return UINT64_MAX;
    return options.wait == Wait::kAdaptive ? to_ns(options.spin) : 0;
  }

  uint64_t limit_ns_;
  uint64_t began_ns_ = 0;    ///< kBlock: time at which the limit became kSpinNs
  uint32_t skips_ = 0;       ///< kBlock: wake-ups without polling after the last poll in vain
  uint32_t skips_left_ = 0;  ///< kBlock: the wake-ups of `skips_` that are still to come
  bool learns_;
};

}  // namespace tern::rpc
