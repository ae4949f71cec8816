// Client session: timers of losses (clause 4.3), probes (4.4), reports (5.5), deadlines (6.3) and silence (6.4).
#include "session/client_session.h"

#include <algorithm>
#include <bit>

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

/// After this many rounds of losses of one slot, while no slot makes progress, the session sends one packet at a time,
/// which is enough to find out when packets pass again.
constexpr uint8_t kStalledRounds = 4;
/// The call is given up after this many rounds of RFRs for the rest of a response. With back-off a liveness timeout has
/// more rounds than that for any RTO.
constexpr uint8_t kFruitlessRounds = 4;
/// With a window of this many packets a loss may wait for a round trip, because its credit is a small part of them.
constexpr uint32_t kWideWindow = 32;

}  // namespace

ClientTick ClientSession::tick(uint64_t now_ns, uint64_t read_until_ns) {
  if (state_ != State::kOpen) return {};
  if (busy_mask() == 0) return tick_at_rest(now_ns);
  ClientTick result;
  if (!watch().silence.is_running()) begin_busy_time(now_ns);
  if (now_ns >= reports_.look_at_ns() && !look_at_reports(now_ns)) reports_.put_off(now_ns + terms_.report_delay_ns);
  result.at_latest(reports_.look_at_ns());
  // While calls only wait for their pace or for memory to receive, the server owes no answer, and is not silent.
  watch().silence.look(now_ns, read_until_ns, last_answer_ns(), is_outstanding());
  look_at_progress();
  look_at_silence(now_ns, result);
  if (result.has_failed) return result;
  recover_losses(now_ns);
  result.at_latest(watch().loss_timer.at_ns());
  look_at_oldest_packet(now_ns, result);
  if (is_searching()) look_at_size(now_ns, result);
  const bool wants_path_check = look_at_calls(now_ns, result);
  if (wants_path_check || watch().path_check.is_running()) check_path(now_ns, wants_path_check, result);
  return result;
}

void ClientSession::on_peer_in_callback() {
  if (is_watched()) watch().silence.on_peer_in_callback();
}

void ClientSession::on_peer_idle() {
  if (is_watched()) watch().silence.on_peer_idle();
}

// ---- Loss (clause 4.3) ----

/// Called when a packet was answered. Older packets may be lost; they are judged when all packets that came with the
/// answer have been read.
void ClientSession::suspect_losses(uint64_t now_ns) {
  if (sent_.oldest() > sent_.largest_answered() || sent_.in_flight() == 0) return;
  watch().loss_timer.suspect(now_ns + RttEstimator::kReorderNsMin, wait_for_turn_ns(), sent_.largest_answered(),
                             sent_.next_number());
}

/// Returns the longest time for which a judgement waits for an answer to a packet that leaves now, so that
/// retransmissions leave together with the packets for which that answer makes room (clause 4.3.4). A retransmission on
/// its own would be a datagram, a system call and an answer of its own at each end, and so would be its successors, for
/// the rest of the message. 0: no packet leaves now, or the window is so narrow that the lost packet's credit is missed
/// meanwhile.
uint64_t ClientSession::wait_for_turn_ns() const {
  const bool is_wide =
      terms_.bulk_bytes >= kWideWindow * payload_max_ && sent_.credit_limit() >= kWideWindow * full_credits_;
  if (!is_wide || !is_oldest_of_many() || (send_mask_ & bit(sent_[sent_.oldest()].slot_index())) == 0) return 0;
  return std::min(measured_rto_ns(), 2 * rtt_.latest_elapsed_ns());
}

/// Judges the packets that were overtaken, and marks the lost ones to be sent or asked for again.
void ClientSession::recover_losses(uint64_t now_ns) {
  if (now_ns < watch().loss_timer.at_ns()) return;
  const uint64_t response_bytes = std::popcount(busy_mask()) * (large_payload_bytes() + uint64_t{wire::kHeaderBytes});
  const LossEvidence evidence{.largest_answered = sent_.largest_answered(),
                              .largest_part = watch().largest_part,
                              .elapsed_ns = rtt_.latest_elapsed_ns(),
                              .reorder_ns = rtt_.reorder_ns(),
                              .responses_ns = response_bytes * 1'000'000'000 / terms_.link_bytes_per_sec,
                              .patience_ns = watch().probe_timer.patience_ns(timeouts())};
  const uint64_t next_ns = detect_losses(
      sent_, watch().loss_timer.judged(), evidence, now_ns,
      [&](uint32_t slot_index) { return loss_rounds(*slots_[slot_index]); },
      [&](uint64_t number) {
        ClientSlot* slot = slots_[sent_[number].slot_index()];
        const LossRounds rounds = loss_rounds(*slot);
        if (!rounds.has_any || rounds.is_repeated_by(sent_[number])) begin_round(slot, now_ns);
        lose(number, now_ns);
      });
  sent_.advance_oldest();
  watch().loss_timer.set(next_ns);
  if (is_size_in_vain()) give_up_size(now_ns);
  if (sent_.largest_answered() > watch().loss_timer.judged()) suspect_losses(now_ns);
}

LossRounds ClientSession::loss_rounds(const ClientSlot& slot) const {
  if (!slot.has_fruitless_rounds()) return {};
  return {true, slot.ask_at_ns, round_gap_ns(slot)};
}

/// Time between two rounds of losses of one slot without progress (clause 4.3.3).
uint64_t ClientSession::round_gap_ns(const ClientSlot& slot) const {
  const uint32_t doublings = std::min<uint32_t>(slot.rounds - 2, 30);
  const uint64_t first_ns = is_of_many_packets(slot) ? measured_rto_ns() : rto_ns();
  return std::min(first_ns << doublings, terms_.liveness_ns / 4);
}

/// Begins a round of losses. The slot's packets are lost for the first time, or again after they were sent again.
void ClientSession::begin_round(ClientSlot* slot, uint64_t now_ns) {
  if (!slot->has_fruitless_rounds()) {
    slot->waiting_since_ns = watch().silence.watched_ns();
  } else if (slot->rounds >= kStalledRounds && last_progress_ns_ <= slot->ask_at_ns) {
    set_stalled(true);
  }
  if (slot->rounds != UINT8_MAX) slot->rounds++;
  slot->ask_at_ns = now_ns;
}

/// Marks an unanswered packet as lost. Its slot sends the content again, or sends the RFR again.
void ClientSession::lose(uint64_t number, uint64_t now_ns) {
  SentPacket& entry = sent_[number];
  if (!entry.holds_credit()) return;
  ClientSlot* slot = slots_[entry.slot_index()];
  slot->packets_in_flight--;
  if (entry.is_request()) {
    if (slot->transfer != nullptr && !slot->transfer->window.contains(entry.index)) {
      slot->transfer->lost.insert(entry.index);
    }
    if (slot->phase == Phase::kSending) send_mask_ |= bit(entry.slot_index());
  } else {
    end_wait_for(slot->transfer->cost, entry.missing);
    for (uint32_t i = entry.index; i < entry.index + entry.count; i++) {
      if (slot->transfer->window.is_within(i) && !slot->transfer->window.contains(i)) slot->transfer->lost.insert(i);
    }
    if (!slot->transfer->lost.empty()) send_mask_ |= bit(entry.slot_index());
    // Earlier RFRs were in vain. A probe makes the server send packet 0 again, which contains the number of packets.
    if (slot->rounds > 2) control_mask_ |= bit(entry.slot_index());
  }
  sent_.remove(entry);
  pools().controller_counters.losses++;
  const cc::Sample sample{now_ns, rtt_.latest_ns(), rtt_.min_ns(), false, packets_limit()};
  tell_controller([&](auto& controller) { controller.on_loss(sample); });
}

// ---- Reports (clause 5.5) ----

void ClientSession::hold_report(bool holds) {
  pools().reports_free += int32_t{holds_report_} - int32_t{holds};
  holds_report_ = holds;
}

/// False: there is no memory for a slot that a report could name, and nothing has changed.
bool ClientSession::look_at_reports(uint64_t now_ns) {
  if (!make_unreported_slots()) return false;
  const bool is_due =
      reports_.look(used_slots(), busy_mask() == 0, now_ns, terms_.report_delay_ns, sent_.next_number());
  if (is_due) detours_ |= kReportDue;
  hold_report(is_due);
  return true;
}

/// Ticks a session without calls: reports to the server that its responses have arrived, then rests.
ClientTick ClientSession::tick_at_rest(uint64_t now_ns) {
  ClientTick result;
  was_busy_ = false;
  if (is_watched()) {
    watch().silence.stop();
    if (watch().path_check.is_running()) end_path_check();
  }
  if (is_stalled_) set_stalled(false);
  forget_old_credits(now_ns);
  if (is_searching()) look_at_size(now_ns, result);
  const uint64_t report_delay_ns = std::max(terms_.report_delay_ns, pools().report_delay_min_ns);
  if (!is_report_due()) {
    if (reports_.is_over(sent_.next_number())) {
      result.is_idle = !is_searching();
      return result;
    }
    reports_.on_rest(now_ns + report_delay_ns);
  }
  // With several slots to report, calls on one of them do not put off the report of the others.
  const uint64_t quiet_ns = now_ns - std::min(now_ns, last_answer_ns());
  if (reports_.is_due_at_rest(now_ns, count_unreported() > 1 ? report_delay_ns : quiet_ns, report_delay_ns)) {
    if ((holds_report_ || pools().reports_free > 0) && wake() && look_at_reports(now_ns)) {
      fall_back_to_start_credits();
    } else {
      reports_.put_off(now_ns + report_delay_ns);
    }
  }
  result.at_latest(reports_.look_at_ns());
  return result;
}

// ---- A busy session (clauses 4.4, 6.3, 6.4) ----

void ClientSession::begin_busy_time(uint64_t now_ns) {
  watch().silence.start(now_ns);
  watch().receiving_ask_at_ns = now_ns + ProbeTimer::kAskNsMax;
  watch().follow_timer.stop();
  if (was_busy_) return;  // the session has given back its memory and taken it again since the last tick
  was_busy_ = true;
  uint64_t look_at_ns = now_ns + terms_.report_delay_ns;
  // Otherwise calls that begin again and again could put off the report of the other slots for ever.
  if (!reports_.is_outstanding() && count_unreported() != 0) look_at_ns = std::min(look_at_ns, reports_.look_at_ns());
  reports_.on_busy(look_at_ns);
  detours_ &= static_cast<uint8_t>(~kReportDue);
  if (!reports_.is_outstanding()) hold_report(false);
}

/// Updates the clock of the packets in flight. Progress resets it, and other signs of life do not (clause 4.4.1).
void ClientSession::look_at_progress() {
  const bool is_idle = (sent_.in_flight() | fresh_mask_ | send_mask_) == 0;
  if (watch().probe_timer.look_at_progress(last_progress_ns_, is_idle) && is_stalled_) set_stalled(false);
  watch().probe_timer.look_at_sample(last_sample_ns_, rtt_.latest_elapsed_ns());
}

void ClientSession::look_at_silence(uint64_t now_ns, ClientTick& result) {
  if (watch().silence.is_over()) {
    result.has_failed = true;
    return;
  }
  result.ask_liveness = watch().silence.take_question();
  result.at_latest(now_ns + watch().silence.step_ns_max());
  if (!is_paired()) return;
  result.wants_pair_probe = watch().follow_timer.look(now_ns, last_answer_ns(), is_outstanding(), terms_.liveness_ns);
  result.at_latest(watch().follow_timer.next_ns());
}

/// Sends a tail probe (clause 4.4), header-only and without a credit, if no later packet was answered either. The
/// answer to the probe shows which of the packets before it were lost. A long request also has an early probe.
void ClientSession::look_at_oldest_packet(uint64_t now_ns, ClientTick& result) {
  sent_.advance_oldest();
  if (sent_.in_flight() == 0) return forget_old_credits(now_ns);
  const SentPacket& oldest = sent_[sent_.oldest()];
  const uint64_t since_ns = std::max(oldest.time_ns, last_progress_ns_);
  if (is_oldest_of_many() && !watch().probe_timer.has_probed_early()) {
    const uint64_t early_ns = since_ns + early_wait_ns();
    if (now_ns < early_ns) return result.at_latest(early_ns);
    watch().probe_timer.on_early_probe(now_ns);
    control_mask_ |= bit(oldest.slot_index());
  }
  const uint64_t due_ns = watch().probe_timer.due_ns(since_ns, timeouts());
  if (now_ns < due_ns) return result.at_latest(due_ns);
  result.has_timed_out = true;
  if (watch().probe_timer.has_backed_off()) {
    pools().controller_counters.silences++;
    tell_controller([&](auto& controller) { controller.on_silence(now_ns); });
  }
  result.at_latest(watch().probe_timer.on_probe(now_ns, timeouts()));
  control_mask_ |= bit(oldest.slot_index());
}

/// Returns true if the path must be checked, because of a call without progress or because of the silence.
bool ClientSession::look_at_calls(uint64_t now_ns, ClientTick& result) {
  bool wants_path_check = watch().silence.is_long();
  // RFRs for the rest of a response wait for credits and their pace, but a probe does not.
  const bool is_ask_due = now_ns >= watch().receiving_ask_at_ns;
  if (is_ask_due) watch().receiving_ask_at_ns = now_ns + ProbeTimer::kAskNsMax;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    const ClientSlot* slot = slots_[index];
    const bool is_in_order = slot->phase == Phase::kSending && !slot->has_fruitless_rounds();
    if (is_in_order && slot->deadline_ns == UINT64_MAX) [[likely]]
      continue;
    if (slot->deadline_ns <= now_ns) {
      result.expired_mask |= bit(index);
      continue;
    }
    result.at_latest(slot->deadline_ns);
    if (slot->phase == Phase::kReceiving) {
      if (is_ask_due) control_mask_ |= bit(index);
      result.at_latest(watch().receiving_ask_at_ns);
    }
    if (is_without_progress(*slot, now_ns)) {
      // The path was checked because of this slot and found good long ago. A call that only waits for its pace has had
      // fewer rounds.
      const bool is_fruitless = slot->phase == Phase::kReceiving && slot->rounds >= kFruitlessRounds &&
                                watch().path_check.good_ns() >= slot->waiting_since_ns + terms_.liveness_ns;
      if (is_fruitless) result.fruitless_mask |= bit(index);
      wants_path_check |= !is_fruitless;
    }
    if (slot->phase == Phase::kWaiting || slot->phase == Phase::kEnded) look_at_waiting_call(index, now_ns, result);
  }
  return wants_path_check;
}

/// Asks again, at intervals that grow, for a call that waits for its answer or for the acknowledgement of its cancel.
void ClientSession::look_at_waiting_call(uint32_t index, uint64_t now_ns, ClientTick& result) {
  ClientSlot* slot = slots_[index];
  if (slot->ask_at_ns <= now_ns) {
    control_mask_ |= bit(index);
    const uint64_t waited_ns = now_ns - slot->waiting_since_ns;
    const uint64_t gap_ns_max = std::max(rto_ns(), std::min(terms_.liveness_ns / 4, ProbeTimer::kAskNsMax));
    slot->ask_at_ns = now_ns + std::clamp(waited_ns / 4, rto_ns(), gap_ns_max);
  }
  result.at_latest(slot->ask_at_ns);
}

/// True if the call has made no progress for so long that the session must check whether full packets pass (clause
/// 6.4.2).
bool ClientSession::is_without_progress(const ClientSlot& slot, uint64_t now_ns) const {
  const uint64_t watched_ns = watch().silence.watched_ns();
  const uint64_t good_ns = watch().path_check.good_ns();
  switch (slot.phase) {
    case Phase::kWaiting: {
      // The call's handler may run, or all its responses may be lost.
      const uint64_t waited_ns = now_ns - slot.waiting_since_ns;
      return waited_ns >= terms_.liveness_ns && watched_ns - good_ns >= std::max(terms_.liveness_ns, waited_ns / 4);
    }
    case Phase::kSending:
    case Phase::kReceiving:
      return slot.has_fruitless_rounds() && watched_ns - std::max(slot.waiting_since_ns, good_ns) >= terms_.liveness_ns;
    default:
      return false;
  }
}

}  // namespace tern::session
