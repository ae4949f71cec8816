// When the next packet of a paced sender may leave. Carousel's per-flow timestamping (SIGCOMM'17, section 3): each
// packet moves the departure time of the next by its length over the rate. Congestion control room; integers only.
#pragma once

#include <cstdint>

namespace tern::cc {

class Pacer {
 public:
  /// How much later than its time a packet may leave without the next one being put off as well: a slot of the timing
  /// wheel and a turn of the event loop are no reason to fall behind the rate.
  static constexpr uint64_t kLateNs = 2'000;

  /// Pacers of different seeds spread their departures differently.
  explicit Pacer(uint32_t seed = 1) : random_(seed * 2654435761u | 1) {}

  uint64_t departure_ns() const { return departure_ns_; }
  void on_sent(uint64_t now_ns, uint64_t bytes, uint64_t bytes_per_sec, bool is_dithered) {
    auto gap_ns = static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000 / bytes_per_sec);
    if (is_dithered) gap_ns = gap_ns / 2 + (static_cast<unsigned __int128>(gap_ns) * next_random() >> 32);
    departure_ns_ = (departure_ns_ + kLateNs >= now_ns ? departure_ns_ : now_ns) + gap_ns;
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
  uint32_t random_;
};

}  // namespace tern::cc
