// Timely: a rate that follows the gradient of the round-trip time.
// Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM'15, algorithm 1, with the constants
// of eRPC (NSDI'19); patched: Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT'16,
// algorithm 2. Two things differ from both papers. The step is a share of the link's rate, so that a flow leaves the
// floor equally fast on any link. The step grows while there is no queue. Congestion control layer; integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/controller.h"

namespace tern::cc {

class Timely {
 public:
  Timely(const Path& path, bool is_patched)
      : link_bytes_per_sec_(std::max<uint64_t>(path.link_bytes_per_sec, kFloorParts)),
        rate_(link_bytes_per_sec_),
        low_ns_(uint64_t{path.target_ns} * 5 / 3),
        is_patched_(is_patched) {}

  void on_rtt(const Sample& sample) {
    const uint64_t rtt_ns = std::clamp<uint64_t>(sample.rtt_ns, 1, kRttNsMax);
    min_rtt_ns_ = std::clamp(sample.min_rtt_ns, kMinRttNs, kRttNsMax);
    if (last_rtt_ns_ != 0) {
      const auto difference = static_cast<int64_t>(rtt_ns) - static_cast<int64_t>(last_rtt_ns_);
      slope_ns_ = (slope_ns_ * (100 - kAlphaPercent) + difference * kAlphaPercent) / 100;
    }
    last_rtt_ns_ = rtt_ns;
    if (rtt_ns < low_ns_) {
      late_since_ns_ = 0;
    } else if (rate_ == link_bytes_per_sec_) {
      // A pause of a whole machine looks like a burst of late answers. Congestion lasts longer.
      if (late_since_ns_ == 0) late_since_ns_ = sample.now_ns;
      if (sample.now_ns - late_since_ns_ < low_ns_) return;
    }
    // As in eRPC, a sample's weight is the time since the last one, in smallest round trips, at most 1.
    const uint64_t elapsed_ns = sample.now_ns - updated_ns_;
    const uint64_t share = std::min(elapsed_ns, min_rtt_ns_) * kOne / min_rtt_ns_;
    updated_ns_ = sample.now_ns;
    if (rtt_ns < low_ns_) {
      easy_ns_ = std::min<uint64_t>(easy_ns_ + elapsed_ns, kEagerMax * low_ns_);
      raise(share, 1 + easy_ns_ / (low_ns_ / 4));
      return;
    }
    easy_ns_ = 0;
    if (rtt_ns > kHighLows * low_ns_) {
      flat_ = 0;
      lower(share, kOne - kHighLows * low_ns_ * kOne / rtt_ns);
    } else if (is_patched_) {
      follow_patched(share, rtt_ns);
    } else {
      follow(share);
    }
  }
  void on_loss(const Sample& sample) {
    if (last_rtt_ns_ >= low_ns_) halve(sample.now_ns);
  }
  void on_silence(uint64_t now_ns) { halve(now_ns); }
  void on_rest() {
    rate_ = link_bytes_per_sec_;
    last_rtt_ns_ = 0;
    slope_ns_ = 0;
    late_since_ns_ = 0;
    easy_ns_ = 0;
    flat_ = 0;
  }

  Allowance allowance() const {
    if (rate_ == link_bytes_per_sec_) return {};
    return {kWindowMax, rate_, true};
  }
  /// While a late burst may be a pause of a machine, the next low sample counts: it ends the burst.
  uint64_t calm_below_ns() const { return late_since_ns_ != 0 ? 0 : low_ns_; }

 private:
  static constexpr uint64_t kOne = 1 << 16;
  /// The constants of eRPC for a target of 30 us: T_low 50 us, T_high 1000 us, alpha 0.46, beta 0.26.
  static constexpr uint64_t kHighLows = 20;
  static constexpr int64_t kAlphaPercent = 46;
  static constexpr uint64_t kBetaPercent = 26;
  /// A step is the link's rate over this: eRPC's 5 MB/s at 25 Gbit/s.
  static constexpr uint64_t kStepParts = 625;
  /// The smallest rate is the link's over this. eRPC has 15 MB/s, of which 250 flows would exceed 25 Gbit/s.
  static constexpr uint64_t kFloorParts = 4096;
  static constexpr uint64_t kMinRttNs = 2'000;  ///< the smallest unit of a slope, as in eRPC
  static constexpr uint64_t kRttNsMax = 1'000'000'000;
  static constexpr uint32_t kFlat = 5;  ///< the paper's N: consecutive falling samples before steps are larger
  static constexpr uint64_t kEagerMax = 16;

  void raise(uint64_t share, uint64_t steps) {
    rate_ = std::min(rate_ + std::max<uint64_t>(link_bytes_per_sec_ / kStepParts * steps * share / kOne, 1),
                     link_bytes_per_sec_);
  }
  void lower(uint64_t share, uint64_t by) {
    by = std::min(by, kOne) * kBetaPercent / 100 * share / kOne;
    rate_ = std::max(rate_ - rate_ / kOne * by - rate_ % kOne * by / kOne, link_bytes_per_sec_ / kFloorParts);
  }
  void halve(uint64_t now_ns) {
    if (now_ns - halved_ns_ < last_rtt_ns_) return;
    halved_ns_ = now_ns;
    rate_ = std::max(rate_ / 2, link_bytes_per_sec_ / kFloorParts);
  }
  /// The gradient in 65536ths of the smallest round trip.
  int64_t gradient() const { return slope_ns_ * static_cast<int64_t>(kOne) / static_cast<int64_t>(min_rtt_ns_); }
  void follow(uint64_t share) {
    const int64_t gradient = this->gradient();
    if (gradient <= 0) {
      flat_ += flat_ < kFlat ? 1 : 0;
      raise(share, flat_ == kFlat ? kFlat : 1);
    } else {
      flat_ = 0;
      lower(share, static_cast<uint64_t>(gradient));
    }
  }
  /// From a gradient of -1/4 to one of 1/4 the weight moves from increase to decrease. The delay gives the amount of
  /// the decrease.
  void follow_patched(uint64_t share, uint64_t rtt_ns) {
    const int64_t one = kOne;
    const auto weight = static_cast<uint64_t>(std::clamp<int64_t>(2 * gradient() + one / 2, 0, one));
    const uint64_t excess = (rtt_ns - low_ns_) * kOne / low_ns_;
    raise(share * (kOne - weight) / kOne, 1);
    lower(share, excess * weight / kOne);
  }

  uint64_t link_bytes_per_sec_;
  uint64_t rate_;
  uint64_t low_ns_;
  uint64_t last_rtt_ns_ = 0;
  int64_t slope_ns_ = 0;  ///< smoothed difference of neighbouring samples
  uint64_t min_rtt_ns_ = kMinRttNs;
  uint64_t updated_ns_ = 0;
  uint64_t halved_ns_ = 0;
  uint64_t late_since_ns_ = 0;  ///< time of the first late sample at full rate; 0: not late
  uint64_t easy_ns_ = 0;        ///< time for which all samples have been low
  uint32_t flat_ = 0;
  bool is_patched_;
};

static_assert(Controller<Timely>);

}  // namespace tern::cc
