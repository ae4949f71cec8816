// Round-trip time and retransmission timeout of a session (RFC 6298 with its own floor). Integers only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tern::session {

class RttEstimator {
 public:
  /// Before the first sample: what a timeout is, RFC 6298 says 1 s; a datacenter needs less.
  static constexpr uint64_t kFirstRtoNs = 10'000'000;

  /// Answers of one burst may come in another order than their requests left, and a burst takes some microseconds.
  static constexpr uint64_t kReorderNsMin = 10'000;

  bool has_sample() const { return srtt_ns_ != 0; }
  uint64_t srtt_ns() const { return srtt_ns_; }
  uint64_t min_ns() const { return min_ns_; }
  /// The newest, with the time for which the server has held the packet.
  uint64_t latest_ns() const { return latest_ns_; }

  /// An upper bound of the smallest round trip; no sample.
  void at_most(uint64_t rtt_ns) { min_ns_ = std::min(min_ns_, std::max<uint64_t>(rtt_ns, 1)); }
  void add(uint64_t rtt_ns) { add(rtt_ns, rtt_ns); }
  /// `elapsed_ns`: the same round trip with the time for which the server has held the packet.
  void add(uint64_t rtt_ns, uint64_t elapsed_ns) {
    rtt_ns = std::max<uint64_t>(rtt_ns, 1);
    latest_ns_ = elapsed_ns;
    min_ns_ = std::min(min_ns_, rtt_ns);
    if (srtt_ns_ == 0) {
      srtt_ns_ = rtt_ns;
      rttvar_ns_ = rtt_ns / 2;
      return;
    }
    const uint64_t error = srtt_ns_ > rtt_ns ? srtt_ns_ - rtt_ns : rtt_ns - srtt_ns_;
    rttvar_ns_ = (3 * rttvar_ns_ + error) / 4;
    srtt_ns_ = (7 * srtt_ns_ + rtt_ns) / 8;
  }
  /// SRTT + 4 RTTVAR, at least `floor_ns`, and half as much again as SRTT: where round trips are all alike (a saturated
  /// link) nothing is left of the variance, and one that is a little longer is no loss.
  uint64_t rto_ns(uint64_t floor_ns) const {
    if (srtt_ns_ == 0) return std::max(kFirstRtoNs, floor_ns);
    return std::max(srtt_ns_ + std::max(4 * rttvar_ns_, srtt_ns_ / 2), floor_ns);
  }
  /// How much later than a packet sent after it an answer may come before the packet counts as lost (RACK, RFC 8985:
  /// a quarter of the smallest round trip, but not less than kReorderNsMin).
  uint64_t reorder_ns() const {
    return has_sample() ? std::max<uint64_t>(min_ns_ / 4, kReorderNsMin) : kFirstRtoNs / 4;
  }

 private:
  uint64_t srtt_ns_ = 0;
  uint64_t rttvar_ns_ = 0;
  uint64_t latest_ns_ = 0;
  uint64_t min_ns_ = UINT64_MAX;
};

}  // namespace tern::session
