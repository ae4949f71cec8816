// Round-trip time and retransmission timeout of a session (RFC 6298 with its own floor). Integers only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace tern::session {

class RttEstimator {
 public:
  /// The RTO before the first sample. RFC 6298 says 1 s; a datacenter needs less.
  static constexpr uint64_t kFirstRtoNs = 10'000'000;
  /// If the path probe has given an upper bound of the round trip, the first RTO is three times that bound (as in RFC
  /// 6298 after the first sample), but at least this, because servers may be busy for a while.
  static constexpr uint64_t kFirstRtoNsMin = kFirstRtoNs / 4;
  static constexpr uint64_t kFirstRtoBounds = 3;

  /// Answers of one burst may come in another order than their requests left, and a burst takes some microseconds.
  static constexpr uint64_t kReorderNsMin = 10'000;

  /// Only the last 5 to 10 s count for the smallest round trip, because a path may become longer, and because a wrong
  /// sample must not count for ever. (BBR has a window of 10 s for the same reasons.)
  static constexpr uint64_t kMinWindowNs = 5'000'000'000;

  /// Longer round trips count as this one, of 4.3 s.
  static constexpr uint64_t kLongestNs = UINT32_MAX - 1;

  bool has_sample() const { return srtt_ns_ != 0; }
  uint64_t srtt_ns() const { return srtt_ns_; }
  /// The smallest round trip. UINT64_MAX: not known.
  uint64_t min_ns() const { return min_ns_ == kUnknown ? UINT64_MAX : min_ns_; }
  uint64_t latest_ns() const { return latest_ns_; }
  /// The newest round trip, including the time for which the server held the packet.
  uint64_t latest_elapsed_ns() const { return latest_elapsed_ns_; }

  /// Notes an upper bound of the smallest round trip, which is not a sample. 0 is ignored, because no path takes 0 ns.
  void at_most(uint64_t rtt_ns, uint64_t now_ns) {
    if (rtt_ns != 0) note_min(static_cast<uint32_t>(std::min(rtt_ns, kLongestNs)), now_ns);
  }
  /// Adds a sample. `elapsed_ns`: the round trip plus the time for which the server held the packet. `now_ns` must not
  /// decrease.
  void add(uint64_t sample_ns, uint64_t elapsed_ns, uint64_t now_ns) {
    if ((sample_ns | elapsed_ns) > kLongestNs || sample_ns == 0) [[unlikely]] {
      sample_ns = std::clamp<uint64_t>(sample_ns, 1, kLongestNs);
      elapsed_ns = std::min(elapsed_ns, kLongestNs);
    }
    latest_ns_ = static_cast<uint32_t>(sample_ns);
    latest_elapsed_ns_ = static_cast<uint32_t>(elapsed_ns);
    note_min(latest_ns_, now_ns);
    if (srtt_ns_ == 0) [[unlikely]] {
      srtt_ns_ = latest_ns_;
      rttvar_ns_ = latest_ns_ / 2;
      return;
    }
    const auto error = static_cast<int64_t>(sample_ns - srtt_ns_);
    srtt_ns_ += static_cast<uint32_t>(error >> 3);
    rttvar_ns_ += static_cast<uint32_t>((std::abs(error) - int64_t{rttvar_ns_}) >> 2);
  }
  /// SRTT + 4 RTTVAR, but at least `floor_ns` and at least 1.5 SRTT. If all round trips are equal (on a saturated
  /// link), the variance is near 0, and a slightly longer round trip is not a loss.
  uint64_t rto_ns(uint64_t floor_ns) const {
    if (srtt_ns_ == 0) {
      const bool is_bounded = min_ns_ != kUnknown;
      const uint64_t first_ns =
          is_bounded ? std::clamp(kFirstRtoBounds * min_ns_, kFirstRtoNsMin, kFirstRtoNs) : kFirstRtoNs;
      return std::max(first_ns, floor_ns);
    }
    const uint64_t srtt_ns = srtt_ns_;
    return std::max(srtt_ns + std::max(uint64_t{4} * rttvar_ns_, srtt_ns / 2), floor_ns);
  }
  /// Reordering time: a packet counts as lost if it is not answered this long after the answer to a later packet (RACK,
  /// RFC 8985: a quarter of the smallest round trip). At least kReorderNsMin.
  uint64_t reorder_ns() const {
    return has_sample() ? std::max<uint64_t>(min_ns_ / 4, kReorderNsMin) : kFirstRtoNs / 4;
  }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;

  /// Keeps the smaller of the minima of two windows, the present one and the one before. Mostly this is one comparison.
  void note_min(uint32_t rtt_ns, uint64_t now_ns) {
    if (now_ns >= window_end_ns_) [[unlikely]]
      begin_window(now_ns);
    if (rtt_ns >= window_min_ns_) [[likely]]
      return;  // min_ns_ is no larger
    window_min_ns_ = rtt_ns;
    min_ns_ = std::min(min_ns_, rtt_ns);
  }
  void begin_window(uint64_t now_ns) {
    const bool is_next = now_ns - window_end_ns_ < kMinWindowNs;
    min_ns_ = is_next ? window_min_ns_ : kUnknown;
    window_min_ns_ = kUnknown;
    window_end_ns_ = now_ns + kMinWindowNs;
  }

  // Every call of a session touches these fields, which are 32 B.
  uint64_t window_end_ns_ = 0;
  uint32_t window_min_ns_ = kUnknown;  ///< minimum of the present window
  uint32_t min_ns_ = kUnknown;         ///< minimum of the present window and the one before
  uint32_t srtt_ns_ = 0;
  uint32_t rttvar_ns_ = 0;
  uint32_t latest_ns_ = 0;
  uint32_t latest_elapsed_ns_ = 0;
};
static_assert(sizeof(RttEstimator) == 32);

}  // namespace tern::session
