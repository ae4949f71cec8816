// Congestion controllers: RTT samples and losses in, a rate out. One closed set, a value in each client session,
// visited only when the session is not on the bypass (uncongested, unlimited).
// Congestion control room: knows no packets, sessions or clocks.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <variant>

namespace tern::cc {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct RttSample {
  uint64_t now_ns;
  uint64_t rtt_ns;  ///< the server's hold time is taken out
  bool is_marked;   ///< the packet met a congestion mark
};

template <class C>
concept Controller = requires(C c, const C cc, const RttSample& sample, uint64_t now_ns) {
  { c.on_rtt(sample) } -> std::same_as<void>;
  { c.on_loss(now_ns) } -> std::same_as<void>;
  { cc.rate_bytes_per_sec() } -> std::same_as<uint64_t>;
};

/// As fast as credits allow.
class None {
 public:
  void on_rtt(const RttSample&) {}
  void on_loss(uint64_t) {}
  uint64_t rate_bytes_per_sec() const { return kUnlimited; }
};

/// A rate that somebody else has decided (SessionOptions::rate_bytes_per_sec).
class FixedRate {
 public:
  explicit FixedRate(uint64_t bytes_per_sec) : bytes_per_sec_(std::max<uint64_t>(bytes_per_sec, 1)) {}
  void on_rtt(const RttSample&) {}
  void on_loss(uint64_t) {}
  uint64_t rate_bytes_per_sec() const { return bytes_per_sec_; }

 private:
  uint64_t bytes_per_sec_;
};

static_assert(Controller<None> && Controller<FixedRate>);
using AnyController = std::variant<None, FixedRate>;

/// When the next packet of a paced sender may leave. Carousel's per-flow timestamping (SIGCOMM'17, section 3): each
/// packet moves the departure time of the next by its length over the rate.
class Pacer {
 public:
  uint64_t departure_ns() const { return departure_ns_; }
  void on_sent(uint64_t now_ns, uint64_t bytes, uint64_t rate_bytes_per_sec) {
    const auto gap_ns =
        static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000 / rate_bytes_per_sec);
    departure_ns_ = std::max(departure_ns_, now_ns) + gap_ns;
  }

 private:
  uint64_t departure_ns_ = 0;
};

}  // namespace tern::cc
