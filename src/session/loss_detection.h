// Decides which packets of a client count as lost (clause 4.3).
// Session layer: pure functions; the ring of sent packets, the newest answer and the time go in, losses come out.
//
// The rule is RACK's (RFC 8985). A packet counts as lost if a later packet was answered, and the packet's own answer is
// late: more time has passed since it was sent than the newest answered packet took, plus a time for reordering. The
// time of the newest answer includes the server's hold time, because packets that leave together are answered together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "session/sent_packets.h"

namespace tern::session {

/// The evidence of the newest answers at the time of the decision.
struct LossEvidence {
  uint64_t largest_answered = 0;  ///< number of the newest packet that was answered
  uint64_t largest_part = 0;      ///< number of the newest RFR that a response packet has answered; 0: none
  uint64_t elapsed_ns = 0;        ///< from the sending of that packet to its answer, the server's hold time included
  uint64_t reorder_ns = 0;        ///< an answer that was overtaken may come this much later than `elapsed_ns`
  uint64_t responses_ns = 0;      ///< time that the link needs for one full packet of each call
  uint64_t patience_ns = 0;       ///< longest wait for an answer if nothing shows that it was overtaken
};

/// The rounds of losses that a slot has had without progress (clause 4.3.3).
struct LossRounds {
  bool has_any = false;
  uint64_t newest_ns = 0;  ///< beginning of the newest round
  uint64_t gap_ns = 0;     ///< shortest time from the newest round to the next one

  /// True if the packet was sent after the newest round began, so that its loss begins another round.
  bool is_repeated_by(const SentPacket& packet) const { return has_any && packet.time_ns >= newest_ns; }
};

/// Returns the time at which a packet that was overtaken counts as lost. `number` is the packet's number.
inline uint64_t lost_at_ns(const SentPacket& packet, uint64_t number, const LossRounds& rounds,
                           const LossEvidence& evidence) {
  uint64_t wait_ns = evidence.elapsed_ns + evidence.reorder_ns;
  if (!packet.is_rfr()) {
    wait_ns += evidence.responses_ns;  // the server sends responses that are ready at the same time in any order
  } else {
    // An RFR asks for a range of response packets. The server sends its ranges in turn, and sends all other packets
    // first. Therefore only a packet of a later range shows that this RFR was overtaken. Each packet of its range that
    // arrives starts the RFR's clock again.
    const bool is_overtaken = packet.kind == SentPacket::Kind::kRfrOvertaken || number < evidence.largest_part;
    const bool has_begun = packet.missing != packet.count;
    if (!is_overtaken) {
      wait_ns = evidence.patience_ns;
    } else if (has_begun) {
      wait_ns = evidence.reorder_ns;
    }
  }
  const uint64_t at_ns = packet.time_ns + wait_ns;
  return rounds.is_repeated_by(packet) ? std::max(at_ns, rounds.newest_ns + rounds.gap_ns) : at_ns;
}

/// Decides for each unanswered packet up to number `judged`, the oldest first, whether it is lost. Calls
/// `rounds_of(slot index)` before each decision, and `on_lost(number)` for each lost packet. on_lost() may remove the
/// packet, and begin a round of losses of its slot. Returns the time at which the next packet will count as lost;
/// UINT64_MAX: no packet is left.
template <class RoundsOf, class OnLost>
uint64_t detect_losses(const SentPackets& sent, uint64_t judged, const LossEvidence& evidence, uint64_t now_ns,
                       RoundsOf&& rounds_of, OnLost&& on_lost) {
  uint64_t next_ns = UINT64_MAX;
  for (uint64_t n = sent.oldest(); n <= judged && n < sent.next_number(); n++) {
    const SentPacket& packet = sent[n];
    if (!packet.holds_credit()) continue;
    // If the answered packet is an RFR with missing packets, only the RFR's own last packet overtakes them.
    if (n == evidence.largest_answered && packet.kind != SentPacket::Kind::kRfrOvertaken) continue;
    const uint64_t at_ns = lost_at_ns(packet, n, rounds_of(packet.slot_index()), evidence);
    if (at_ns > now_ns) {
      next_ns = std::min(next_ns, at_ns);
    } else {
      on_lost(n);
    }
  }
  return next_ns;
}

/// The time at which overtaken packets are judged. They are not judged at once, because the answers of a burst may come
/// in pieces, and in another order than their requests left.
class LossTimer {
 public:
  bool is_set() const { return at_ns_ != 0; }
  /// Time of the judgement. UINT64_MAX: no loss is suspected.
  uint64_t at_ns() const { return is_set() ? at_ns_ : UINT64_MAX; }
  /// Packets up to this number are judged.
  uint64_t judged() const { return judged_; }
  /// Schedules a judgement of the packets up to `largest_answered`, because that packet was answered and older packets
  /// were not. It comes `wait_ns` after `earliest_ns`, or at `earliest_ns` if packet `next` or a later one is answered
  /// before. If an earlier judgement is scheduled already, this call changes nothing, and the caller must call
  /// suspect() again after that judgement.
  void suspect(uint64_t earliest_ns, uint64_t wait_ns, uint64_t largest_answered, uint64_t next) {
    const uint64_t at_ns = earliest_ns + wait_ns;
    if (is_set() && at_ns_ <= at_ns) return;
    at_ns_ = at_ns;
    earliest_ns_ = earliest_ns;
    judged_ = largest_answered;
    next_ = next;
  }
  /// Called when packets were answered, before suspect().
  void on_answer(uint64_t largest_answered) {
    if (largest_answered >= next_) at_ns_ = std::min(at_ns_, earliest_ns_);
  }
  /// Called after a judgement with the time of the next one. UINT64_MAX: there is none.
  void set(uint64_t at_ns) {
    at_ns_ = at_ns == UINT64_MAX ? 0 : at_ns;
    next_ = UINT64_MAX;
  }

 private:
  uint64_t at_ns_ = 0;  ///< 0: not set
  uint64_t earliest_ns_ = 0;
  uint64_t judged_ = 0;
  uint64_t next_ = UINT64_MAX;  ///< an answer to this packet or a later one ends the wait; UINT64_MAX: there is none
};

}  // namespace tern::session
