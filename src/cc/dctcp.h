// DCTCP-like: a window that follows the share of marked packets, in fractions of a packet.
// Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM'10, section 3. The network must mark packets (ECN): without marks
// only silence lowers the window. Congestion control layer; integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/controller.h"

namespace tern::cc {

class Dctcp {
 public:
  explicit Dctcp(const Path& path) : path_(path) {}

  void on_rtt(const Sample& sample) {
    rtt_ns_ = static_cast<uint32_t>(std::clamp<uint64_t>(sample.rtt_ns, 1, kRttNsMax));
    samples_++;
    marked_ += sample.is_marked ? 1 : 0;
    if (sample.now_ns < round_ends_ns_) return;
    // A round trip is over.
    const uint32_t window_max = sample.window_max() * kOne;
    window_ = std::min(window_, window_max);
    share_ += (static_cast<int32_t>(uint64_t{marked_} * kOne / samples_) - share_) / kGainParts;
    if (marked_ != 0) {
      easy_rounds_ = 0;
      window_ = std::min(window_, sample.packets_limit * kOne);
      const uint64_t by = uint64_t{window_} * static_cast<uint32_t>(share_) / (2 * kOne);
      window_ = std::max(window_ - static_cast<uint32_t>(gain(by)), kSmallest);
    } else {
      easy_rounds_ += easy_rounds_ < kEagerRounds ? 1 : 0;
      if (easy_rounds_ == 1) easy_since_ns_ = sample.now_ns;
      const bool is_eager =
          easy_rounds_ == kEagerRounds && sample.now_ns - easy_since_ns_ >= kEagerTargets * path_.target_ns;
      const uint64_t step = is_eager ? window_ / 2 : gain(kStep);
      window_ = static_cast<uint32_t>(std::min<uint64_t>(window_ + step, window_max));
    }
    samples_ = 0;
    marked_ = 0;
    round_ends_ns_ = sample.now_ns + rtt_ns_;
  }
  /// A loss without a mark in the same round trip is random, because a queue marks packets before it loses some.
  void on_loss(const Sample& sample) {
    if (marked_ != 0) halve(sample.now_ns, kSmallest, sample.window_max() * kOne);
  }
  /// Lowers the window at most to one packet, as Swift::on_silence() does.
  void on_silence(uint64_t now_ns) { halve(now_ns, std::min(window_, kOne), kUntriedWindowMax * kOne); }
  void on_rest() {
    window_ = kFull;
    share_ = kOne;
    rtt_ns_ = 0;
    samples_ = 0;
    marked_ = 0;
    easy_rounds_ = 0;
  }

  Allowance allowance() const {
    // Without a round trip there is no rate. One packet must leave to get a round trip.
    if (window_ >= kPacedBelow || rtt_ns_ == 0) return {.window_packets = std::max<uint32_t>(window_ / kOne, 1)};
    const uint64_t bytes = uint64_t{window_} * path_.packet_bytes / kOne;
    // Below a packet the rate does not follow the last sample: all flows would fill and empty the queue in turns.
    const uint64_t round_ns = window_ < kOne ? path_.target_ns * 2 / 3 : rtt_ns_;
    return {(window_ + kOne - 1) / kOne, std::max<uint64_t>(bytes * 1'000'000'000 / round_ns, 1), true};
  }
  uint64_t calm_below_ns() const { return UINT64_MAX; }

 private:
  static constexpr uint32_t kOne = 1 << 16;  ///< one packet
  static constexpr uint32_t kFull = kWindowMax * kOne;
  static constexpr uint32_t kSmallest = kOne / 128;
  static constexpr uint32_t kPacedBelow = 8 * kOne;  ///< the answers clock a larger window
  static constexpr uint32_t kRttNsMax = 1'000'000'000;
  static constexpr int32_t kGainParts = 16;  ///< the paper's g is 1/16
  /// The paper's step is one packet, which is too much if a hundred flows share one queue.
  static constexpr uint32_t kStep = kOne / 8;
  /// After this many round trips without a mark, over this many target delays, each round trip adds half a window.
  static constexpr uint32_t kEagerRounds = 5;
  static constexpr uint64_t kEagerTargets = 13;

  uint64_t gain(uint64_t amount) const { return amount * std::min(window_, kOne) / kOne; }
  void halve(uint64_t now_ns, uint32_t smallest, uint32_t window_max) {
    if (now_ns - halved_ns_ < rtt_ns_) return;
    halved_ns_ = now_ns;
    window_ = std::min(window_, window_max);
    window_ = std::max(window_ / 2, smallest);
  }

  Path path_;
  uint32_t window_ = kFull;
  uint32_t rtt_ns_ = 0;   ///< the last sample; 0: none yet
  int32_t share_ = kOne;  ///< alpha, in 65536ths
  uint32_t samples_ = 0;  ///< samples in this round trip
  uint32_t marked_ = 0;   ///< marked samples among them
  uint32_t easy_rounds_ = 0;
  uint64_t easy_since_ns_ = 0;
  uint64_t round_ends_ns_ = 0;
  uint64_t halved_ns_ = 0;
};

static_assert(Controller<Dctcp>);

}  // namespace tern::cc
