// The concept of a congestion controller: its inputs are round-trip times, losses and the time, and its outputs are a
// window and a rate.
// The controllers are a closed set (any_controller.h). Each client session has one as a value. Low round trips do not
// reach it (shortcuts.h).
// Congestion control layer: no packets, sessions or clocks. Integers only, so that a simulation gives the same trace on
// every machine.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

namespace tern::cc {

inline constexpr uint64_t kUnlimited = UINT64_MAX;
/// A session may have at most this many packets in flight (clause 4.5). A window of this size limits nothing.
inline constexpr uint32_t kWindowMax = 2160;
/// A larger window than this is kept only if the sender may try it.
inline constexpr uint32_t kUntriedWindowMax = 128;

/// The properties of a controller's path that are known before the first sample.
struct Path {
  uint64_t link_bytes_per_sec = 0;
  uint32_t packet_bytes = 0;  ///< length of a full packet, including headers
  /// A shorter round trip is assumed to have met no queue, ns.
  uint32_t target_ns = 0;
  /// A path is long if its fastest round trip takes more than this, ns. A smaller excess over the target is taken for a
  /// queue that other flows keep full.
  uint32_t far_ns = 0;
  /// Losses may lower the target. True if delays below the target come from the network, not from CPUs.
  bool may_limit_target = true;
};

struct Sample {
  uint64_t now_ns = 0;
  uint64_t rtt_ns = 0;      ///< the round trip, without the server's hold time
  uint64_t min_rtt_ns = 0;  ///< the smallest round trip, including those that do not reach the controller
  bool is_marked = false;   ///< a switch has marked the packet (ECN)
  /// The sender's other limit of packets in flight. The sender has not tried a wider window.
  uint32_t packets_limit = kWindowMax;

  /// The largest window that this sample leaves.
  uint32_t window_max() const { return std::max(packets_limit, kUntriedWindowMax); }
};

/// The limits of a sender.
struct Allowance {
  uint32_t window_packets = kWindowMax;  ///< most packets in flight
  uint64_t bytes_per_sec = kUnlimited;
  /// The pacer spreads departures at random around the rate. Without this, flows that send less than one packet per
  /// round trip would meet the same queue in the same state each time: some flows a full queue, others an empty one.
  bool is_dithered = false;
  /// The rate is a budget: the sender may later use up to 100 us' worth of bytes that it has not used. False for a
  /// controller's rate, because queues stay short then.
  bool is_budget = false;
};

template <class C>
concept Controller = requires(C c, const C cc, const Sample& sample, uint64_t now_ns) {
  { c.on_rtt(sample) } -> std::same_as<void>;
  /// A packet was lost. `sample.rtt_ns` is that of the last answer before the loss, 0: none. `is_marked` has no
  /// meaning.
  { c.on_loss(sample) } -> std::same_as<void>;
  /// No packet was answered for several timeouts.
  { c.on_silence(now_ns) } -> std::same_as<void>;
  /// The sender was idle for so long that the controller's state is out of date. The controller starts again.
  { c.on_rest() } -> std::same_as<void>;
  { cc.allowance() } -> std::same_as<Allowance>;
  /// An unmarked sample below this changes nothing while the allowance does not limit the sender. 0: every sample may
  /// change something.
  { cc.calm_below_ns() } -> std::same_as<uint64_t>;
};

/// A controller without a limit of its own: only the credits limit the sender.
class None {
 public:
  void on_rtt(const Sample&) {}
  void on_loss(const Sample&) {}
  void on_silence(uint64_t) {}
  void on_rest() {}
  Allowance allowance() const { return {}; }
  uint64_t calm_below_ns() const { return UINT64_MAX; }
};

/// A controller with the rate of SessionOptions::rate_bytes_per_sec.
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
