// Whether packets of full length still pass on an open session's path (clause 6.4.2).
// Session layer: pure values; time is an argument.
#pragma once

#include <cstdint>

namespace tern::session {

/// Rounds of path probes of full length, until one is answered, or the answers to other packets have shown that it is
/// not.
class PathCheck {
 public:
  /// Rounds without an answer to the probe, while other packets are answered, after which packets of full length count
  /// as not passing: if a third of both directions' packets is lost, this happens by chance once in 10^4 checks.
  static constexpr uint8_t kNarrowRounds = 16;

  enum class Round : uint8_t {
    kNone,          ///< not due
    kFullProbe,     ///< send a probe of full length
    kBothProbes,    ///< and a short one, because nothing at all has been heard since the last
    kPathIsNarrow,  ///< packets of full length do not pass
  };

  bool is_running() const { return is_running_; }
  uint64_t began_ns() const { return began_ns_; }
  /// When the next round is due. Only when is_running().
  uint64_t next_ns() const { return next_ns_; }
  /// On the watched clock: when packets of full length passed last.
  uint64_t good_ns() const { return good_ns_; }
  /// Only when is_running(): the packet was sent during the check.
  bool is_of_check(uint64_t number) const { return is_running_ && number >= first_number_; }

  /// The first round. `next_number` is that of the session's next packet.
  Round begin(uint64_t now_ns, uint64_t gap_ns, uint64_t next_number, bool is_silent) {
    is_running_ = true;
    narrow_rounds_ = 0;
    first_number_ = next_number;
    began_ns_ = now_ns;
    return send(now_ns, gap_ns, is_silent ? Round::kBothProbes : Round::kFullProbe);
  }
  /// A later round, if it is due. `answered_ns` is when the newest packet of the server came.
  Round look(uint64_t now_ns, uint64_t gap_ns, uint64_t answered_ns) {
    if (now_ns < next_ns_) return Round::kNone;
    if (answered_ns <= sent_ns_) return send(now_ns, gap_ns, Round::kBothProbes);
    if (++narrow_rounds_ == kNarrowRounds) return Round::kPathIsNarrow;
    return send(now_ns, gap_ns, Round::kFullProbe);
  }
  /// A probe of full length was answered.
  void confirm(uint64_t watched_ns) {
    good_ns_ = watched_ns;
    is_running_ = false;
  }
  void end() { is_running_ = false; }

 private:
  Round send(uint64_t now_ns, uint64_t gap_ns, Round round) {
    sent_ns_ = now_ns;
    next_ns_ = now_ns + gap_ns;
    return round;
  }

  uint64_t good_ns_ = 0;
  uint64_t began_ns_ = 0;
  uint64_t sent_ns_ = 0;  ///< when the last round was due
  uint64_t next_ns_ = 0;
  uint64_t first_number_ = 0;
  bool is_running_ = false;
  uint8_t narrow_rounds_ = 0;
};

}  // namespace tern::session
