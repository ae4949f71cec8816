// When the next packet of a paced sender may leave. Carousel's per-flow timestamping (SIGCOMM'17, section 3): each
// packet moves the departure time of the next by its length over the rate. Congestion control room; integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/controller.h"

namespace tern::cc {

class Pacer {
 public:
  /// A departure that has been waited for keeps its time however late the event loop comes, up to the larger of these:
  /// a turn of the loop or a wake-up (the kernel's timer slack alone is 50 us), ...
  static constexpr uint64_t kLateNs = 100'000;
  /// ... or so many packets at once, which a low rate has in a longer time.
  static constexpr uint32_t kLatePackets = 4;
  /// A departure that nobody waited for keeps its time if it is no later than this: a slot of the timing wheel and a
  /// turn of a fast loop. Other idle time earns nothing, but of a budget so much that kLateNs' worth may leave at once.
  static constexpr uint64_t kIdleNs = 2'000;

  /// Pacers of different seeds spread their departures differently.
  explicit Pacer(uint32_t seed = 1) : random_(seed * 2654435761u | 1) {}

  uint64_t departure_ns() const { return departure_ns_; }
  /// A packet is ready to leave and waits for departure_ns().
  void wait() { is_waited_for_ = true; }
  /// `packets` leave, or are asked for, with `bytes` together, at the allowance's rate. Not before departure_ns(). All
  /// that leave in one turn of the loop have one `now_ns`.
  void on_sent(uint64_t now_ns, uint64_t bytes, uint32_t packets, const Allowance& pace) {
    auto gap_ns = static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000 / pace.bytes_per_sec);
    if (pace.is_dithered) gap_ns = gap_ns / 2 + (static_cast<unsigned __int128>(gap_ns) * next_random() >> 32);
    // Behind one that was waited for, those whose time has come as well leave in the same turn.
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
  /// Marsaglia's xorshift (J. Stat. Softw. 2003): 0 to 2^32 - 1, so that a gap becomes half to one and a half of
  /// itself.
  uint32_t next_random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  uint64_t departure_ns_ = 0;
  uint64_t late_turn_ns_ = UINT64_MAX;  ///< of the last packet that was waited for
  bool is_waited_for_ = false;
  uint32_t random_;
};

}  // namespace tern::cc
