// A client's reports to the server that responses have arrived, so that the server frees them (clause 5.5).
// Session layer: pure values; time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/detail/export.h>

#include "session/client_slot.h"

namespace tern::session {

/// A slot is reported when it has rested, that is, when two looks in turn have found it free after the same request. A
/// session at rest reports all of its slots at once.
class TERN_API Reports {
 public:
  using Slots = std::span<ClientSlot* const>;  ///< null: a slot without memory; none of these is unreported
  /// Number of reports sent without an acknowledgement. The first wait is an eighth of the report delay, and each wait
  /// is twice as long as the one before. All waits together take 3 s by default, and at least the liveness timeout,
  /// because a shorter silence does not end the session. The server then frees the responses by itself.
  static constexpr uint8_t kTriesMax = 8;
  static constexpr uint64_t kDelayParts = 8;

  /// Packets before `next_number` need no report.
  void start(uint64_t next_number) { reported_number_ = static_cast<uint32_t>(next_number); }
  /// A call begins while the session is at rest.
  void on_busy(uint64_t look_at_ns) {
    look_at_ns_ = look_at_ns;
    tries_ = 0;
  }
  /// Time of the next look; UINT64_MAX: never.
  uint64_t look_at_ns() const { return look_at_ns_; }
  /// True at rest if no packet was sent since the last report, and no look is due.
  bool is_over(uint64_t next_number) const {
    return look_at_ns_ == UINT64_MAX && reported_number_ == static_cast<uint32_t>(next_number);
  }
  /// At rest: plans a look at this time, unless a look is planned already.
  void on_rest(uint64_t look_at_ns) {
    if (look_at_ns_ == UINT64_MAX) look_at_ns_ = look_at_ns;
  }
  /// At rest: true if the look is due. If no report was sent before, the look waits until `quiet_ns`, the time since
  /// the last answer, is `delay_ns`, because there may have been calls so short that no tick has seen them. With
  /// `delay_ns` for both it does not wait.
  bool is_due_at_rest(uint64_t now_ns, uint64_t quiet_ns, uint64_t delay_ns);
  /// In place of look(): the endpoint has too many unacknowledged reports, or no memory for this one.
  void put_off(uint64_t look_at_ns) { look_at_ns_ = look_at_ns; }
  /// Returns true if a report must be sent.
  bool look(Slots slots, bool is_at_rest, uint64_t now_ns, uint64_t delay_ns, uint64_t next_number);
  /// Writes the payload of a report, 4 B for each slot that it names. Returns its length in bytes.
  uint32_t fill(Slots slots, bool is_at_rest, std::byte* payload);
  /// Notes that the report was sent as packet `number`. `rto_ns`: time in which the server may answer.
  void on_sent(uint64_t number, bool is_at_rest, uint64_t now_ns, uint64_t rto_ns, uint64_t delay_ns,
               uint64_t liveness_ns);
  /// True if a report was sent and is not acknowledged.
  bool is_outstanding() const { return is_outstanding_; }
  /// Only if is_outstanding(): by how much packet `number` is later than the report's. If it is earlier, the result is
  /// 2^31 or more.
  uint32_t age_at(uint64_t number) const { return static_cast<uint32_t>(number) - number_; }
  void on_acknowledged(Slots slots, uint64_t look_at_ns);

 private:
  uint64_t look_at_ns_ = UINT64_MAX;
  /// The number after the last report's packet; that packet's own number if a call was busy at the report. Low half.
  uint32_t reported_number_ = 0;
  uint32_t number_ = 0;    ///< of the last report's packet; low half
  uint8_t tries_ : 7 = 0;  ///< reports sent since the last acknowledgement, or since the session gave up
  bool is_outstanding_ : 1 = false;
};

}  // namespace tern::session
