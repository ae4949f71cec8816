// What a congestion controller is: samples of round trips, losses and the time in; a window and a rate out. One closed
// set of them (any_controller.h), a value in each client session, visited only when the session is not on the bypass.
// Congestion control room: knows no packets, sessions or clocks. Integers only, so that a simulation gives the same
// trace everywhere.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

namespace tern::cc {

inline constexpr uint64_t kUnlimited = UINT64_MAX;
/// No session may have more packets in flight (clause 4.5): a window as large as that is none.
inline constexpr uint32_t kWindowMax = 128;

/// What a controller may know of its path beforehand.
struct Path {
  uint64_t link_bytes_per_sec = 0;
  uint32_t packet_bytes = 0;  ///< of a full packet, headers included
  /// A round trip that takes less has met no queue worth speaking of, ns.
  uint32_t target_ns = 0;
  /// If even the fastest round trip takes more, the path is long; else that was a queue which others keep full.
  uint32_t far_ns = 0;
  /// Losses may make the target shorter: delays below it are those of the network, not of CPUs.
  bool may_limit_target = true;
};

struct Sample {
  uint64_t now_ns = 0;
  uint64_t rtt_ns = 0;      ///< the server's hold time is taken out
  uint64_t min_rtt_ns = 0;  ///< the smallest ever, of those that the controller was not told of as well
  bool is_marked = false;   ///< the packet met a congestion mark
  /// Packets that the sender may have in flight for other reasons: a wider window has not been tried.
  uint32_t packets_limit = kWindowMax;
};

/// What a sender may do.
struct Allowance {
  uint32_t window_packets = kWindowMax;  ///< in flight
  uint64_t bytes_per_sec = kUnlimited;
  /// Departures are spread at random around the rate: flows that pass the same queue less than once a round trip would
  /// otherwise find it in the same state again and again, some full, others empty.
  bool is_dithered = false;
  /// The rate is a budget: what idle time has left of it may be used behind it, up to 100 us' worth. A controller's
  /// rate is none, for it is there to keep queues short.
  bool is_budget = false;
};

template <class C>
concept Controller = requires(C c, const C cc, const Sample& sample, uint64_t now_ns) {
  { c.on_rtt(sample) } -> std::same_as<void>;
  /// A packet was lost. The sample has the last round trip before that, 0 if there was none; its mark says nothing.
  { c.on_loss(sample) } -> std::same_as<void>;
  /// Nothing was answered for several timeouts.
  { c.on_silence(now_ns) } -> std::same_as<void>;
  /// The sender had nothing to send for so long that what was learnt is about another time: it starts anew.
  { c.on_rest() } -> std::same_as<void>;
  { cc.allowance() } -> std::same_as<Allowance>;
  /// An unmarked sample below it changes nothing as long as the allowance is all that the sender can use. 0: every
  /// sample counts.
  { cc.calm_below_ns() } -> std::same_as<uint64_t>;
};

/// As fast as credits allow.
class None {
 public:
  void on_rtt(const Sample&) {}
  void on_loss(const Sample&) {}
  void on_silence(uint64_t) {}
  void on_rest() {}
  Allowance allowance() const { return {}; }
  uint64_t calm_below_ns() const { return UINT64_MAX; }
};

/// A rate that somebody else has decided (SessionOptions::rate_bytes_per_sec).
class FixedRate {
 public:
  explicit FixedRate(uint64_t bytes_per_sec) : bytes_per_sec_(std::max<uint64_t>(bytes_per_sec, 1)) {}
  void on_rtt(const Sample&) {}
  void on_loss(const Sample&) {}
  void on_silence(uint64_t) {}
  void on_rest() {}
  Allowance allowance() const { return {.bytes_per_sec = bytes_per_sec_, .is_budget = true}; }
  uint64_t calm_below_ns() const { return UINT64_MAX; }

 private:
  uint64_t bytes_per_sec_;
};

static_assert(Controller<None> && Controller<FixedRate>);

}  // namespace tern::cc
