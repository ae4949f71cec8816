// Swift-like: a delay target, which is higher for flows with a small window, and a window in fractions of a packet.
// Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM'20, section 3.
// Congestion control layer; integers, and one square root, which has the same result on every machine.
// docs/congestion.md says how the constants were found.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/controller.h"

namespace tern::cc {

class Swift {
 public:
  explicit Swift(const Path& path) : path_(path) {}

  void on_rtt(const Sample& sample) {
    note(sample);
    if (depth_ns_ != 0) {
      const uint64_t step = (sample.now_ns - raised_ns_) / kDepthAge;
      raised_ns_ += step * kDepthAge;
      depth_ns_ += step;
      if (depth_ns_ > uint64_t{path_.target_ns} * kForgottenTargets) depth_ns_ = 0;
    }
    const uint64_t target_ns = this->target_ns();
    if (rtt_ns_ < target_ns) {
      late_since_ns_ = 0;
      increase(sample.now_ns, target_ns, sample.window_max() * kOne);
    } else {
      decrease(sample, target_ns);
    }
    updated_ns_ = sample.now_ns;
  }
  /// A loss with a queue that is shorter than the target allows gives the depth of a switch's buffer. A loss while
  /// round trips are above the target cuts the window. Any other loss has no effect, because congestion did not cause
  /// it.
  void on_loss(const Sample& sample) {
    if (sample.rtt_ns == 0) return;
    note(sample);
    learn_depth(sample.now_ns);
    if (rtt_ns_ >= target_ns()) cut(sample.now_ns, kOne / 2);
  }
  /// Lowers the window at most to one packet, as TCP does (RFC 5681, the loss window), because a busy peer is also
  /// silent. From a window far below one packet, the sender would take seconds to find out that the peer is back.
  void on_silence(uint64_t now_ns) {
    if (now_ns - cut_ns_ < rtt_ns_) return;
    cut_ns_ = now_ns;
    window_ = std::min(window_, kUntriedWindowMax * kOne);
    window_ = std::max(window_ / 2, std::min(window_, kOne));
  }
  void on_rest() {
    window_ = kFull;
    rtt_ns_ = 0;
    peak_ns_ = peak_before_ns_ = 0;
    late_since_ns_ = 0;
    easy_samples_ = 0;
  }

  Allowance allowance() const {
    // Without a round trip there is no rate. One packet must leave to get a round trip.
    if (window_ >= kPacedBelow || rtt_ns_ == 0) return {.window_packets = std::max<uint32_t>(window_ / kOne, 1)};
    const uint64_t bytes = uint64_t{window_} * path_.packet_bytes / kOne;
    return {(window_ + kOne - 1) / kOne, std::max<uint64_t>(bytes * 1'000'000'000 / pace_ns(), 1), true};
  }
  /// While a late burst may be a pause of a machine, the next low sample counts: it ends the burst. While a buffer's
  /// depth limits the target, every sample counts, because the depth ages with them.
  uint64_t calm_below_ns() const { return late_since_ns_ != 0 || depth_ns_ != 0 ? 0 : base_target_ns(); }

 private:
  static constexpr uint32_t kOne = 1 << 16;  ///< one packet
  static constexpr uint32_t kFull = kWindowMax * kOne;
  static constexpr uint32_t kSmallest = kOne / 128;
  static constexpr uint32_t kPacedBelow = 4 * kOne;  ///< the answers clock a larger window
  static constexpr uint32_t kRttNsMax = 1'000'000'000;
  /// The paper's beta, the share of lateness by which the window falls.
  static constexpr uint64_t kBetaTenths = 8;
  /// The window's increase per round trip.
  static constexpr uint32_t kStep = kOne / 32;
  static constexpr uint32_t kSteadyUpTo = 2 * kOne;
  /// After this many consecutive samples with hardly a queue, over this many moments (moment_ns()), the window doubles
  /// once a moment.
  static constexpr uint32_t kEagerSamples = 5;
  static constexpr uint64_t kEagerMoments = 6;
  /// Peaks of this many targets, and of as many before, are remembered, because a loss is noticed some round trips
  /// after its packet met the full queue.
  static constexpr uint64_t kPeakTargets = 8;
  /// A loss with less queueing delay than an eighth of the target is taken for a random loss.
  static constexpr uint32_t kQueueParts = 8;
  /// A longer queue than this many targets is not measured, because the target keeps queues far below it.
  static constexpr uint64_t kDeepTargets = 2;
  /// The first measurement is averaged with this many targets. Losses of a first burst, which show little, then leave
  /// flows with similar depths.
  static constexpr uint64_t kFirstTargets = 4;
  /// A window of two and a half packets may fill a buffer of known depth. Larger windows may fill a part of it in
  /// inverse proportion to their square, so that flows that have measured other depths have similar windows. Some of
  /// the buffer stays free, because a flow that begins at a full buffer would lose one probe after the other.
  static constexpr uint64_t kDepthWindow = 5 * kOne / 2;
  static constexpr uint32_t kDepthPacketsMin = 2;
  /// Any window may have a queue of a 16th of the target. With less, random losses, which say nothing of a buffer,
  /// would cost a lone flow some of its rate.
  static constexpr uint64_t kLeastQueueParts = 16;
  /// In this many ns the depth is raised by 1 ns. All flows have the same steps, which make their depths more equal.
  /// Above this many targets the depth is forgotten.
  static constexpr uint64_t kDepthAge = 1500;
  static constexpr uint64_t kForgottenTargets = 16;

  /// The target without flow scaling. A long path has its own target. All short paths have the same target, because a
  /// flow that begins late takes a queue for a part of its path, and would otherwise get more than the others.
  uint64_t base_target_ns() const { return std::min(path_target_ns(), depth_target_ns()); }
  uint64_t path_target_ns() const { return is_far() ? uint64_t{min_rtt_ns_} * 5 / 4 : path_.target_ns; }
  /// The time of some round trips without a queue: the target, or 5 round trips if the target is far above that.
  uint64_t moment_ns() const {
    return std::min<uint64_t>(base_target_ns(), std::max<uint64_t>(5 * uint64_t{min_rtt_ns_}, 1));
  }
  bool is_far() const { return min_rtt_ns_ > path_.far_ns; }
  /// Flow scaling: n flows in one queue have windows of 1/n, and their bursts make a queue that grows with sqrt(n).
  uint64_t scaled_target_ns() const {
    const auto root = static_cast<uint32_t>(std::sqrt(static_cast<double>(window_)));  // in units of 1/256
    const uint64_t extra_ns = uint64_t{path_.target_ns} * 256 / std::max<uint32_t>(root, 1);
    return path_target_ns() + std::min<uint64_t>(extra_ns, uint64_t{path_.target_ns} * 5 / 2);
  }
  /// The target that the measured depth of the buffer allows.
  uint64_t depth_target_ns() const {
    if (depth_ns_ == 0) return UINT64_MAX;
    const uint64_t window = std::max(window_, kDepthPacketsMin * kOne);
    const uint64_t queue_ns = depth_ns_ * kDepthWindow / window * kDepthWindow / window;
    return min_rtt_ns_ + std::max<uint64_t>(queue_ns, path_.target_ns / kLeastQueueParts);
  }
  uint64_t target_ns() const { return std::min(scaled_target_ns(), depth_target_ns()); }
  /// The time over which a window's packets are spread, between the target (a window near 0) and the last round trip
  /// (from two packets on). A large window slows down by itself when a queue delays its answers. A window below a
  /// packet has too few samples: if the rate followed the last one, all flows would fill and empty the queue in turns.
  uint64_t pace_ns() const {
    const auto target_ns = static_cast<int64_t>(this->target_ns());
    const int64_t weight = std::min(window_, 2 * kOne) / 2;
    return static_cast<uint64_t>(target_ns + (int64_t{rtt_ns_} - target_ns) * weight / kOne);
  }
  /// The change of the window by a sample. Below one packet it is in proportion to the window.
  uint64_t gain(uint64_t amount) const { return amount * std::min(window_, kOne) / kOne; }

  void note(const Sample& sample) {
    window_ = std::min(window_, sample.window_max() * kOne);
    rtt_ns_ = static_cast<uint32_t>(std::clamp<uint64_t>(sample.rtt_ns, 1, kRttNsMax));
    min_rtt_ns_ = static_cast<uint32_t>(std::min<uint64_t>(sample.min_rtt_ns, kRttNsMax));
    const uint64_t peak_lasts_ns = kPeakTargets * path_.target_ns;
    if (sample.now_ns - peak_since_ns_ >= peak_lasts_ns) {
      peak_before_ns_ = sample.now_ns - peak_since_ns_ < 2 * peak_lasts_ns ? peak_ns_ : 0;
      peak_ns_ = 0;
      peak_since_ns_ = sample.now_ns;
    }
    peak_ns_ = std::max(peak_ns_, rtt_ns_);
  }

  /// Measures the depth at most once a round trip, from the samples shortly before the loss.
  void learn_depth(uint64_t now_ns) {
    const uint32_t peak_ns = std::max(peak_ns_, peak_before_ns_);
    const uint64_t queue_ns = peak_ns - std::min(peak_ns, min_rtt_ns_);
    const bool is_deep = queue_ns >= kDeepTargets * path_.target_ns;
    if (!path_.may_limit_target || is_deep || queue_ns < path_.target_ns / kQueueParts) return;
    if (depth_ns_ != 0 && now_ns - learnt_ns_ < rtt_ns_) return;
    depth_ns_ = ((depth_ns_ == 0 ? kFirstTargets * path_.target_ns : depth_ns_) + queue_ns) / 2;
    learnt_ns_ = raised_ns_ = now_ns;
  }

  void increase(uint64_t now_ns, uint64_t target_ns, uint32_t window_max) {
    // A window of some packets grows faster the shorter the queue is, because a flow that met a queue for a moment must
    // recover before its message ends.
    const uint32_t above = window_ - std::min(window_, kSteadyUpTo);
    uint64_t step = gain(kStep + above * (target_ns - rtt_ns_) / target_ns / 2);
    uint64_t round_ns = rtt_ns_;
    if (rtt_ns_ >= (is_far() ? base_target_ns() * 7 / 8 : base_target_ns() * 3 / 4)) {
      easy_samples_ = 0;
    } else {
      if (easy_samples_ == 0) easy_since_ns_ = now_ns;
      if (easy_samples_ < kEagerSamples) easy_samples_++;
      // The other flows have ended, because a mere gap between them would be shorter.
      if (easy_samples_ == kEagerSamples && now_ns - easy_since_ns_ >= kEagerMoments * moment_ns()) {
        step = window_;
        round_ns = std::max(round_ns, moment_ns());
      }
    }
    // The increase is in proportion to the time since the last sample, and at most that of one round trip.
    const uint64_t elapsed_ns = std::min(now_ns - updated_ns_, round_ns);
    window_ = static_cast<uint32_t>(std::min<uint64_t>(window_ + step * elapsed_ns / round_ns, window_max));
  }

  void decrease(const Sample& sample, uint64_t target_ns) {
    easy_samples_ = 0;
    const uint32_t limit = sample.packets_limit * kOne;
    if (window_ >= limit) {
      // A pause of a whole machine looks like a burst of late answers. Congestion lasts longer.
      if (late_since_ns_ == 0) late_since_ns_ = sample.now_ns;
      if (sample.now_ns - late_since_ns_ < path_.target_ns) return;
      window_ = limit;
    }
    const uint64_t lateness = (rtt_ns_ - target_ns) * kOne / rtt_ns_;
    cut(sample.now_ns, static_cast<uint32_t>(gain(std::min<uint64_t>(lateness * kBetaTenths / 10, kOne / 2))));
  }

  /// At most once a round trip, because earlier samples are of packets that were sent before the last cut.
  void cut(uint64_t now_ns, uint32_t share) {
    if (now_ns - cut_ns_ < rtt_ns_) return;
    cut_ns_ = now_ns;
    window_ = std::max(window_ - static_cast<uint32_t>(uint64_t{window_} * share / kOne), kSmallest);
  }

  Path path_;
  uint32_t window_ = kFull;
  uint32_t rtt_ns_ = 0;  ///< the last sample; 0: none yet
  uint32_t min_rtt_ns_ = 0;
  uint32_t peak_ns_ = 0;         ///< the longest round trip since peak_since_ns_
  uint32_t peak_before_ns_ = 0;  ///< the longest one before that
  uint64_t peak_since_ns_ = 0;
  uint64_t depth_ns_ = 0;       ///< queueing delay at which packets are lost, as measured; 0: not known
  uint64_t learnt_ns_ = 0;      ///< time at which the depth was measured
  uint64_t raised_ns_ = 0;      ///< time up to which it was raised
  uint32_t easy_samples_ = 0;   ///< consecutive samples with hardly a queue, at most kEagerSamples
  uint64_t easy_since_ns_ = 0;  ///< time of the first of these samples
  uint64_t late_since_ns_ = 0;  ///< time of the first late sample with an open window; 0: not late
  uint64_t updated_ns_ = 0;
  uint64_t cut_ns_ = 0;
};

static_assert(Controller<Swift>);

}  // namespace tern::cc
