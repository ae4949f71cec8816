// The departure times of a paced sender's packets, by Carousel's per-flow timestamping (SIGCOMM'17, section 3): each
// packet moves the departure time of the next by its length over the rate. Congestion control layer; integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/controller.h"

namespace tern::cc {

class Pacer {
 public:
  /// A late event loop does not delay later departures if the sender has waited (wait()) and is late by no more than
  /// the larger of two limits. The first limit: a turn of the loop or a wake-up (the kernel's timer slack alone is 50
  /// us).
  static constexpr uint64_t kLateNs = 100'000;
  /// The second limit: the time of this many packets, which is longer at a low rate.
  static constexpr uint32_t kLatePackets = 4;
  /// The same limit for a sender that has not waited: a slot of the timing wheel and a turn of a fast loop. Longer idle
  /// time earns nothing. With a budget, idle time earns at most kLateNs.
  static constexpr uint64_t kIdleNs = 2'000;

  /// Pacers of different seeds spread their departures differently.
  explicit Pacer(uint32_t seed = 1) : random_(seed * 2654435761u | 1) {}

  uint64_t departure_ns() const { return departure_ns_; }
  /// Notes that a packet is ready, and that its sender waits for departure_ns().
  void wait() { is_waited_for_ = true; }
  /// Notes that `packets` packets of `bytes` together leave, or are requested, at the rate of `pace`. Must not be
  /// called before departure_ns(). All packets of one turn of the loop have the same `now_ns`.
  void on_sent(uint64_t now_ns, uint64_t bytes, uint32_t packets, const Allowance& pace) {
    auto gap_ns = static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000 / pace.bytes_per_sec);
    if (pace.is_dithered) gap_ns = gap_ns / 2 + (static_cast<unsigned __int128>(gap_ns) * next_random() >> 32);
    // Packets that leave in the same turn, after a packet that has waited, are treated like that packet.
    if (is_waited_for_) late_turn_ns_ = now_ns;
    is_waited_for_ = false;
    if (now_ns == late_turn_ns_) {
      const uint64_t late_ns = std::max(kLateNs, (kLatePackets - 1) * (gap_ns / packets));
      departure_ns_ = std::max(departure_ns_, now_ns - std::min(now_ns, late_ns)) + gap_ns;
    } else if (pace.is_budget) {
      const uint64_t unused_ns = kLateNs - std::min(gap_ns, kLateNs);
      departure_ns_ = std::max(departure_ns_, now_ns - std::min(now_ns, unused_ns)) + gap_ns;
    } else {
      departure_ns_ = (departure_ns_ + kIdleNs >= now_ns ? departure_ns_ : now_ns) + gap_ns;
    }
  }

 private:
  /// A random number from 0 to 2^32 - 1, by Marsaglia's xorshift (J. Stat. Softw. 2003). It changes a gap to 0.5 to 1.5
  /// times its length.
  uint32_t next_random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  uint64_t departure_ns_ = 0;
  uint64_t late_turn_ns_ = UINT64_MAX;  ///< the turn of the last packet that has waited
  bool is_waited_for_ = false;
  uint32_t random_;
};

}  // namespace tern::cc
