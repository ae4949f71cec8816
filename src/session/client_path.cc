// Client session: path probes and pairing (clause 7.7), and the check of an open session's path (clause 6.4.2).
#include "session/client_session.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tern::session {

void ClientSession::pair() {
  CHECK(state_ == State::kProbing);  // later the memory of first_probe_ns_ has another use
  proof_.pair();
  first_probe_ns_ = 0;
}

ClientSession::PathProbe ClientSession::path_probe(uint64_t now_ns) {
  CHECK(state_ == State::kProbing);
  if (first_probe_ns_ == 0) first_probe_ns_ = now_ns;
  return make_path_probe(proof_.next(), now_ns);
}

ClientSession::PathProbe ClientSession::pair_probe(uint64_t now_ns) {
  return make_path_probe(proof_.next_paired(), now_ns);
}

ClientSession::PathProbe ClientSession::make_path_probe(const PathProof::Probe& probe, uint64_t now_ns) {
  // The record of a probe is of no use, and a session that is not open has no memory for records.
  sent_.advance_oldest();
  if (!sent_.is_empty()) reserve_number(now_ns);
  const uint32_t number = next_number();
  if (sent_.is_empty()) {
    sent_.skip();
  } else {
    sent_.add({.time_ns = now_ns});
  }
  const uint32_t request_number = probe.is_full ? first_request_count_ << wire::kSlotBits : 0;
  return {
      wire::client_header(wire::Kind::kPathProbe, probe.flags, remote_key_, number, request_number, 0, 0, probe.token),
      probe.is_full ? payload_max_ : 0};
}

PathVerdict ClientSession::on_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns) {
  const PathProof::Reply reply{(header.flags() & wire::kPaired) != 0, payload_bytes == 0, header.size_or_index()};
  if (state_ == State::kOpen && !reply.is_paired) return on_open_path_reply(header, payload_bytes, now_ns);
  if (state_ == State::kConnecting || !is_proven_by_echo(header)) return PathVerdict::kDropped;
  if (!reply.is_short && payload_bytes != payload_max_) return PathVerdict::kDropped;
  if (expand_number(header.echo(), sent_.next_number()) >= sent_.next_number()) return PathVerdict::kDropped;
  if (state_ == State::kOpen) {
    const PathVerdict verdict = proof_.on_pair_reply(reply);
    if (verdict != PathVerdict::kDropped) note_server_packet(header, now_ns);
    return verdict;
  }
  // The echo is the number of a path probe, because no other packet was sent before the session is open.
  const PathVerdict verdict = proof_.on_reply(reply);
  if (verdict != PathVerdict::kAnswered && verdict != PathVerdict::kOpened) return verdict;
  note_server_packet(header, now_ns);
  if (verdict == PathVerdict::kAnswered) {
    first_request_count_ = header.request_number() >> wire::kSlotBits;
    first_probe_ns_ = 0;
    return verdict;
  }
  if (terms_.credits_last_ns != UINT64_MAX) fall_back_to_start_credits();
  // A session mostly begins without load, so this is the shortest round trip that some sessions ever measure.
  if (first_probe_ns_ != 0) rtt_.at_most(now_ns - first_probe_ns_, now_ns);
  return open_slots() ? PathVerdict::kOpened : PathVerdict::kDropped;
}

/// Handles the answer to a probe of the path check, or of the search for larger packets.
PathVerdict ClientSession::on_open_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns) {
  const uint64_t echo = expand_number(header.echo(), sent_.next_number());
  if (echo >= sent_.next_number() || header.size_or_index() != proof_.session_token() || !is_proven_by_echo(header)) {
    return PathVerdict::kDropped;
  }
  if (busy_ == nullptr) return PathVerdict::kDropped;
  const bool is_of_search = watch().size_search.confirm(sizes_, echo, payload_bytes, now_ns);
  if (is_of_search) {
    clear_large_probe();
    misses_ = 0;
  }
  const bool is_of_check = watch().path_check.is_of_check(echo) && payload_bytes == payload_max_;
  if (!is_of_search && !is_of_check) return PathVerdict::kDropped;
  note_server_packet(header, now_ns);
  if (!watch().path_check.is_running()) return PathVerdict::kConfirmed;
  watch().path_check.confirm(watch().silence.watched_ns());
  clear_path_probes();
  // The path is good again, so missing packets are sent or asked for as if they were lost for the first time.
  watch().probe_timer.end_back_off();
  set_stalled(false);
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    ClientSlot* slot = slots_[std::countr_zero(mask)];
    if (slot->has_fruitless_rounds()) slot->rounds = 2;
  }
  return PathVerdict::kConfirmed;
}

void ClientSession::end_path_check() {
  watch().path_check.end();
  clear_path_probes();
}

/// Begins a path check if `is_wanted`, or continues one. A check sends probes of full length until one is answered, or
/// until the answers to other packets have shown that such probes are not answered.
void ClientSession::check_path(uint64_t now_ns, bool is_wanted, ClientTick& result) {
  const uint64_t gap_ns = std::max(terms_.liveness_ns / PathCheck::kNarrowRounds, rto_ns());
  PathCheck::Round round;
  if (!watch().path_check.is_running()) {
    round = watch().path_check.begin(now_ns, gap_ns, sent_.next_number(), watch().silence.is_long());
  } else if (!is_wanted && (last_progress_ns_ > watch().path_check.began_ns() || !is_outstanding())) {
    return end_path_check();
  } else {
    round = watch().path_check.look(now_ns, gap_ns, last_answer_ns());
  }
  if (round == PathCheck::Round::kPathIsNarrow) {
    result.has_failed = result.is_path_narrow = true;
    return;
  }
  if (round == PathCheck::Round::kBothProbes) detours_ |= kShortProbeDue;  // finds out whether the server is alive
  if (round != PathCheck::Round::kNone) detours_ |= kFullProbeDue;
  result.at_latest(watch().path_check.next_ns());
}

}  // namespace tern::session
