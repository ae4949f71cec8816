// The check whether packets of full length still pass on an open session's path (clause 6.4.2).
// Session layer: pure values; time is an argument.
#pragma once

#include <cstdint>

namespace tern::session {

/// Rounds of path probes of full length, until a probe is answered, or the answers to other packets have shown that
/// such probes are not answered.
class PathCheck {
 public:
  /// After this many rounds without an answer to the probe, while other packets are answered, packets of full length
  /// count as not passing. If a third of both directions' packets is lost, this happens by chance once in 10^4 checks.
  static constexpr uint8_t kNarrowRounds = 16;

  enum class Round : uint8_t {
    kNone,          ///< no round is due
    kFullProbe,     ///< send a probe of full length
    kBothProbes,    ///< also send a short probe, because no packet has come since the last round
    kPathIsNarrow,  ///< packets of full length do not pass
  };

  bool is_running() const { return is_running_; }
  uint64_t began_ns() const { return began_ns_; }
  /// Time of the next round. Only when is_running().
  uint64_t next_ns() const { return next_ns_; }
  /// Time at which packets of full length last passed, on the watched clock.
  uint64_t good_ns() const { return good_ns_; }
  /// True if a check is running, and the packet was sent during the check.
  bool is_of_check(uint64_t number) const { return is_running_ && number >= first_number_; }

  /// Begins the first round. `next_number`: number of the session's next packet.
  Round begin(uint64_t now_ns, uint64_t gap_ns, uint64_t next_number, bool is_silent) {
    is_running_ = true;
    narrow_rounds_ = 0;
    first_number_ = next_number;
    began_ns_ = now_ns;
    return send(now_ns, gap_ns, is_silent ? Round::kBothProbes : Round::kFullProbe);
  }
  /// Begins a later round, if it is due. `answered_ns`: time of the server's newest packet.
  Round look(uint64_t now_ns, uint64_t gap_ns, uint64_t answered_ns) {
    if (now_ns < next_ns_) return Round::kNone;
    if (answered_ns <= sent_ns_) return send(now_ns, gap_ns, Round::kBothProbes);
    if (++narrow_rounds_ == kNarrowRounds) return Round::kPathIsNarrow;
    return send(now_ns, gap_ns, Round::kFullProbe);
  }
  /// Ends the check, because a probe of full length was answered.
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
  uint64_t sent_ns_ = 0;  ///< time of the last round
  uint64_t next_ns_ = 0;
  uint64_t first_number_ = 0;
  bool is_running_ = false;
  uint8_t narrow_rounds_ = 0;
};

}  // namespace tern::session
