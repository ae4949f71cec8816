// Client session: received packets: responses, credit returns, acknowledged cancels (clauses 4 and 5).
#include "session/client_session.h"

#include <algorithm>

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

/// The first packet of a response may contradict an earlier one this often, because one of the two may be damaged.
constexpr uint32_t kRestartsMax = 4;
/// An echo proves a packet if it names one of this many packets that were sent last (clause 3.9), which is as many as
/// the ring can hold.
constexpr uint64_t kEchoSpan = SentPackets::kSizeMax;

/// `code`: as in the packet (clause 5.6), where it has 15 bits.
Status failure_status(uint32_t code) {
  switch (static_cast<wire::FailureCode>(std::min<uint32_t>(code, UINT8_MAX))) {
    case wire::FailureCode::kApplication:
      return {Code::kRefused, "the handler refused the request; app_code has its reason"};
    case wire::FailureCode::kNoResponse:
      return {Code::kNoResponse, "the handler dropped the request without answering it"};
    case wire::FailureCode::kUnknownType:
      return {Code::kRefused, "the server has no handler for this request type: register it with on_request()"};
    case wire::FailureCode::kTooLarge:
      return {Code::kTooLarge, "the request is larger than the handler's max_request_bytes"};
    case wire::FailureCode::kNoMemory:
      return {Code::kNoMemory,
              "the server's receive_budget_bytes, response_budget_bytes or memory is used up; try again later"};
    case wire::FailureCode::kDeadline:
      return {Code::kDeadline, "the deadline had passed before the handler could run"};
    case wire::FailureCode::kOverloaded:
      return {Code::kQueueFull, "the server's worker queue is full; try again later"};
    case wire::FailureCode::kLost:
      return {Code::kNoResponse,
              "the server has lost the request or its response: no packet that asks for it has arrived for 20 s, or a "
              "damaged packet got past the link's checksum"};
    case wire::FailureCode::kClosing:
      return {Code::kSessionReset, "the server's endpoint is closing"};
  }
  return {Code::kRefused, "the server refused the request for a reason that this version does not know"};
}

/// Returns the verdict that the slot's call is over.
ClientVerdict finished(ClientSlot* slot, const Status& status) {
  ClientVerdict verdict;
  verdict.finished = slot;
  verdict.status = status;
  return verdict;
}

/// Returns the verdict of a packet without effect.
ClientVerdict dropped(Drop reason) {
  ClientVerdict verdict;
  verdict.drop = reason;
  return verdict;
}

}  // namespace

// ---- Any packet ----

/// True if the packet echoes a recently sent packet, and has a number that the server may have reached. An
/// attacker who does not see our packets must guess one of the last 4096 of 2^24 numbers, and a number within the
/// server's window.
bool ClientSession::is_proven_by_echo(const wire::Header& header) const {
  if ((header.flags() & wire::kNoEcho) != 0) return false;
  const uint64_t next = sent_.next_number();
  const uint64_t echo = expand_number(header.echo(), next);
  // One damaged number can put the server's window ahead of ours. The echo of our own numbers is still valid then.
  const bool was_sent =
      echo >= kNumberBase + first_number_ && echo < next + NumberWindow::kSpan && echo + kEchoSpan >= next;
  const uint64_t number = expand_number(header.number(), server_number_);
  return was_sent && number + NumberWindow::kSpan > server_number_ &&
         number <= server_number_ + NumberWindow::kAheadMax;
}

/// Notes a proven packet of the server. Returns false if its number shows that it is late or a duplicate, so that it
/// does not describe the present (clause 3.4.1).
bool ClientSession::note_server_packet(const wire::Header& header, uint64_t now_ns) {
  const uint32_t ahead = (header.number() - static_cast<uint32_t>(server_number_)) & wire::kNumberMask;
  // The packet is late, a duplicate, or further ahead than an honest server can be (clause 3.4.2).
  if (ahead == 0 || ahead > NumberWindow::kAheadMax) return false;
  last_heard_ns_ = now_ns;
  if (ahead != 1) on_gap(now_ns);
  server_number_ += ahead;
  // The newest limit counts at once, whether higher or lower (clause 4.5). A server may not set a limit of 0.
  if (header.credit_limit() != 0 && header.credit_limit() != server_credits_) set_server_credits(header.credit_limit());
  return true;
}

/// Makes waiting calls ask, because packets of the server are missing, and one may be a call's response (clause 4.4.3).
/// Waiting calls ask at most once a round trip, and each call at intervals that double, because where packets overtake
/// each other every answer is a gap, even the answer to a probe, and would cause probes without end.
void ClientSession::on_gap(uint64_t now_ns) {
  if (busy_ == nullptr || now_ns < watch().gap_ask_again_ns) return;
  watch().gap_ask_again_ns = now_ns + rtt_.latest_ns();
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    ClientSlot* slot = slots_[index];
    if (slot->phase != Phase::kWaiting) continue;
    const uint32_t doublings = std::min<uint32_t>(slot->rounds - 1, 30);
    if (now_ns - slot->waiting_since_ns < rtt_.latest_ns() * ((uint64_t{1} << doublings) - 1)) continue;
    if (slot->rounds != UINT8_MAX) slot->rounds++;
    control_mask_ |= bit(index);
  }
}

/// Takes one sample of a burst, because further samples of the burst would add no information.
void ClientSession::take_rtt_sample(uint8_t hold_code, bool is_marked, uint64_t sent_ns, uint64_t now_ns) {
  if (now_ns == last_sample_ns_ || hold_code == wire::kHoldTooLong) return;
  const uint64_t hold_ns = hold_code == 0 ? 0 : wire::decode_hold(hold_code);
  const uint64_t elapsed_ns = now_ns - sent_ns;
  if (elapsed_ns <= hold_ns) [[unlikely]]
    return;  // one of the two ends has read its clock too early or too late
  last_sample_ns_ = now_ns;
  const uint64_t rtt_ns = elapsed_ns - hold_ns;
  rtt_.add(rtt_ns, elapsed_ns, now_ns);
  if (rtt_.latest_ns() >= calm_below_ns_ || is_marked) [[unlikely]]
    tell_sample(now_ns, rtt_ns, is_marked);
}

/// A function of its own, so that take_rtt_sample() ends with a jump to it.
void ClientSession::tell_sample(uint64_t now_ns, uint64_t rtt_ns, bool is_marked) {
  pools().controller_counters.samples++;
  pools().controller_counters.marks += is_marked ? 1 : 0;
  const cc::Sample sample{now_ns, rtt_ns, rtt_.min_ns(), is_marked, packets_limit()};
  tell_controller([&](auto& controller) { controller.on_rtt(sample); });
}

// ---- Responses ----

ClientVerdict ClientSession::on_response(const wire::Header& header, const transport::Payload& payload,
                                         uint64_t now_ns) {
  ClientVerdict verdict;
  if ((verdict.finished = try_finish(header, payload, now_ns)) != nullptr) return verdict;
  if ((verdict.finished = try_finish_waiting(header, payload, now_ns)) != nullptr) return verdict;
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ClientSlot* slot = index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number() || slot->phase == Phase::kFree ||
      slot->phase == Phase::kBlocked) {
    // The packet is late. It is still a sign of life if it is proven.
    const bool is_proven = state_ == State::kOpen && is_proven_by_echo(header);
    if (is_proven) note_server_packet(header, now_ns);
    return dropped(is_proven ? Drop::kStale : Drop::kUnproven);
  }
  if (!slot->was_sent()) return dropped(Drop::kUnproven);
  return on_response_slow(slot, header, payload, now_ns);
}

/// The response is the server's next packet, has the whole message, and acknowledges nothing.
ClientSlot* ClientSession::try_finish_waiting(const wire::Header& header, const transport::Payload& payload,
                                              uint64_t now_ns) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ClientSlot* slot = index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->phase != Phase::kWaiting || slot->request_number != header.request_number()) {
    return nullptr;
  }
  const uint32_t bytes = payload.bytes;
  const bool is_next = (((header.w1 - 1) ^ server_number_) & wire::kNumberMask) == 0;
  if (!is_next || header.shape() != kPlainResponse || header.w2 >> 32 != bytes || payload.lease != nullptr ||
      header.credit_limit() != server_credits_ || slot->whole_code != 0 || bytes > payload_max_ ||
      bytes > slot->response->capacity_bytes || sent_.contains(expand_number(header.echo(), sent_.next_number()))) {
    return nullptr;
  }
  server_number_++;
  last_heard_ns_ = now_ns;
  note_progress(slot, now_ns);
  slot->response->length_bytes = bytes;
  base::copy_bytes(slot->response->data(), payload.data, bytes);
  return slot;
}

/// Handles a response to a call whose request was sent.
ClientVerdict ClientSession::on_response_slow(ClientSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t now_ns) {
  if (slot->phase == Phase::kEnded) {
    // An answer to an ended call is as good as an acknowledged cancel.
    note_answer(slot, header, now_ns);
    release_slot(slot);
    return {};
  }
  if ((header.flags() & wire::kFailure) != 0) {
    const uint32_t word = header.size_or_index();
    note_answer(slot, header, now_ns);
    ClientVerdict verdict = finished(slot, failure_status(word >> 16));
    verdict.app_code = static_cast<uint16_t>(word);
    return verdict;
  }
  return (header.flags() & wire::kFirst) != 0 ? on_response_start(slot, header, payload, now_ns)
                                              : on_response_part(slot, header, payload, now_ns);
}

/// Notes that a packet answers the call or the cancel of `slot`: the server is alive, the slot makes progress, and the
/// echoed packet is acknowledged.
void ClientSession::note_answer(ClientSlot* slot, const wire::Header& header, uint64_t now_ns) {
  note_server_packet(header, now_ns);
  note_progress(slot, now_ns);
  on_echo(header, index_of(*slot), now_ns);
}

/// Handles packet 0 of a response, which has the whole response, or its size and its first part (clauses 5.3, 5.3.3).
ClientVerdict ClientSession::on_response_start(ClientSlot* slot, const wire::Header& header,
                                               const transport::Payload& payload, uint64_t now_ns) {
  const uint32_t bytes = header.size_or_index();
  const bool is_whole = payload.bytes == bytes && bytes <= wire::payload_of_code(slot->whole_code);
  const bool is_long = bytes > payload_max_ && !is_whole;
  if (bytes > wire::kMessageBytesMax || payload.bytes != (is_long ? payload_max_ : bytes)) {
    return dropped(Drop::kMalformed);
  }
  if (slot->phase == Phase::kReceiving && bytes == slot->response_bytes && !is_whole) {
    // The packet was sent again and answers a probe. Its data is here already.
    note_server_packet(header, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    return {};
  }
  if (bytes > slot->response->capacity_bytes) {
    note_answer(slot, header, now_ns);
    return finished(slot, {Code::kTooLarge, "the response is larger than the response MsgBuf: allocate a larger one"});
  }
  if (!payload.copy_to(slot->response->data())) return dropped(Drop::kLease);
  note_server_packet(header, now_ns);
  on_echo(header, index_of(*slot), now_ns);
  if (is_long) return begin_receiving(slot, bytes, now_ns);
  note_progress(slot, now_ns);
  if (bytes > payload_max_) {
    misses_ = 0;
    long_bytes_received_ += bytes;
    pools().response_share.hear(watch().heard_epoch);
  }
  learn_response(*slot, bytes, now_ns);
  slot->response->length_bytes = bytes;
  return finished(slot, {});
}

/// Begins to receive a response of several packets, whose first packet is here. RFRs ask for the other packets (clause
/// 5.4).
ClientVerdict ClientSession::begin_receiving(ClientSlot* slot, uint32_t bytes, uint64_t now_ns) {
  uint32_t restarts = 0;
  if (slot->phase == Phase::kReceiving) {
    // A changed size is no progress, because damaged or hostile answers could otherwise keep the call for ever.
    restarts = slot->transfer->restarts + 1;
    if (restarts > kRestartsMax) {
      return finished(slot,
                      {Code::kNoResponse, "the server's answers contradict each other in the size of the response"});
    }
  } else {
    note_progress(slot, now_ns);
    slot->ask_at_ns = UINT64_MAX;
  }
  forget_packets(index_of(*slot));  // the answer shows that the whole request has arrived
  if (bytes <= wire::payload_of_code(slot->whole_code)) note_miss(now_ns);
  if (slot->transfer != nullptr) drop_transfer(slot);
  slot->transfer = pools().transfers.take();
  if (slot->transfer == nullptr) {
    return finished(slot, {Code::kNoMemory, "no memory to receive a response of several packets"});
  }
  free_space(*slot);
  // Late packets of the first division could be taken for those of a second one with other large packets.
  cut_response(*slot->transfer, bytes, restarts == 0 ? response_code() : uint8_t{0});
  slot->transfer->restarts = restarts;
  watch().size_search.want(sizes_);
  slot->response_bytes = bytes;
  slot->phase = Phase::kReceiving;
  long_bytes_received_ += payload_max_;
  pools().response_share.begin();
  pools().response_share.hear(watch().heard_epoch);
  control_mask_ &= ~bit(index_of(*slot));
  send_mask_ |= bit(index_of(*slot));
  return {};
}

/// Handles a later packet of a response, which answers an RFR (clause 5.4).
ClientVerdict ClientSession::on_response_part(ClientSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t now_ns) {
  if (slot->phase != Phase::kReceiving) return dropped(Drop::kStale);
  Transfer& transfer = *slot->transfer;
  const uint32_t index = header.size_or_index();
  // A late packet of the earlier, larger size belongs at another offset.
  if (header.is_large() && transfer.payload_code == 0) return dropped(Drop::kStale);
  const uint64_t offset = response_offset(transfer, index);
  // No RFR has asked for packets from `next` on, nor for packet 0.
  if (index >= transfer.next || index == 0 || header.is_large() != (transfer.payload_code != 0) ||
      payload.bytes != std::min<uint64_t>(transfer.payload_bytes, slot->response_bytes - offset)) {
    return dropped(Drop::kMalformed);
  }
  const bool is_new = transfer.window.is_within(index) && !transfer.window.contains(index);
  if (is_new && !payload.copy_to(slot->response->data() + offset)) return dropped(Drop::kLease);
  note_server_packet(header, now_ns);
  pools().response_share.hear(watch().heard_epoch);
  if (is_new) {
    transfer.window.insert(index);
    transfer.lost.erase(index);
    long_bytes_received_ += payload.bytes;
    note_progress(slot, now_ns);
  }
  on_rfr_answered(slot, header, is_new, now_ns);
  if (transfer.window.base() == transfer.packets) {
    learn_response(*slot, slot->response_bytes, now_ns);
    slot->response->length_bytes = slot->response_bytes;
    ClientVerdict verdict = finished(slot, {});
    if (!is_new) verdict.drop = Drop::kStale;
    return verdict;
  }
  // The window may have moved, so that the slot may ask for more packets.
  if (transfer.next < transfer.packets) send_mask_ |= bit(index_of(*slot));
  return is_new ? ClientVerdict{} : dropped(Drop::kStale);
}

transport::ExpectedPacket ClientSession::expected_after(const wire::Header& part) const {
  const uint32_t slot_index = part.request_number() & (wire::kSlotsMax - 1);
  const ClientSlot* slot = slot_index < window_ ? slots_[slot_index] : nullptr;
  if (slot == nullptr || slot->phase != Phase::kReceiving || slot->request_number != part.request_number()) return {};
  const Transfer& transfer = *slot->transfer;
  const uint32_t bytes = transfer.payload_bytes;
  uint32_t index = (part.flags() & wire::kFirst) != 0 ? 1 : part.size_or_index() + 1;
  if (transfer.window.contains(index)) index = transfer.window.base();
  // No RFR has asked for packets from `next` on. Packet 0 has the session's own size.
  const uint32_t full = 1 + (slot->response_bytes - payload_max_) / bytes;
  if (index >= std::min(full, transfer.next) || !transfer.window.is_within(index)) return {};
  transport::ExpectedPacket expected;
  expected.header = wire::server_header(wire::Kind::kResponse, 0, local_key_, 0, slot->request_number, 0, 0, 0, index);
  expected.header.add_length(wire::kHeaderBytes + bytes);
  if (transfer.payload_code != 0) expected.header.set_large();
  constexpr uint64_t kUpperHalf = ~uint64_t{UINT32_MAX};
  expected.known = {~(uint64_t{wire::kEcnEcho | wire::kNoEcho} << 8), kUpperHalf, kUpperHalf};
  expected.place = slot->response->data() + response_offset(transfer, index);
  expected.payload_bytes = bytes;
  return expected;
}

/// Notes a packet that answers an RFR. If the packet is new, the RFR misses one packet less.
void ClientSession::on_rfr_answered(ClientSlot* slot, const wire::Header& header, bool is_new, uint64_t now_ns) {
  const uint32_t index = header.size_or_index();
  const uint64_t echo = (header.flags() & wire::kNoEcho) != 0 ? 0 : expand_number(header.echo(), sent_.next_number());
  if (sent_.contains(echo)) {
    sent_.note_answered(echo);
    watch().largest_part = std::max(watch().largest_part, echo);
  }
  const uint64_t number = is_new ? number_of_rfr(index_of(*slot), echo, index) : sent_.next_number();
  if (number != sent_.next_number()) {
    SentPacket& rfr = sent_[number];
    if (number == echo) {
      if (rfr.missing == rfr.count && rfr.kind == SentPacket::Kind::kRfr) {
        take_rtt_sample(header.hold_code(), (header.flags() & wire::kEcnEcho) != 0, rfr.time_ns, now_ns);
      }
      rfr.time_ns = now_ns;
      if (index == rfr.index + rfr.count - 1u) rfr.kind = SentPacket::Kind::kRfrOvertaken;
    }
    end_wait_for(slot->transfer->cost, 1);
    if (--rfr.missing == 0) {
      sent_.remove(rfr);
      slot->packets_in_flight--;
    }
  }
  sent_.advance_oldest();
  suspect_losses(now_ns);
}

/// Returns the number of the RFR in flight that asks for this packet. It is mostly the RFR that the packet echoes, and
/// otherwise an RFR that was sent when the echoed one counted as lost. Returns the next number if there is no such RFR.
uint64_t ClientSession::number_of_rfr(uint32_t slot_index, uint64_t echo, uint32_t index) const {
  if (sent_.contains(echo) && sent_[echo].asks_for(slot_index, index)) return echo;
  uint64_t number = sent_.oldest();
  while (sent_.contains(number) && !sent_[number].asks_for(slot_index, index)) number++;
  return number;
}

// ---- Acknowledgements ----

ClientVerdict ClientSession::on_credit_return(const wire::Header& header, const transport::Payload& payload,
                                              uint64_t now_ns) {
  if (state_ != State::kOpen || payload.bytes == 0 || payload.bytes > 8 * kCreditReturnWordsMax ||
      payload.bytes % 8 != 0 || payload.lease != nullptr) {
    return dropped(Drop::kMalformed);
  }
  if (!is_proven_by_echo(header)) return dropped(Drop::kUnproven);
  // A late acknowledgement counts, but all other fields of a late packet are out of date.
  const bool is_news = note_server_packet(header, now_ns);
  const ArrivedBitmap arrived(payload.data, payload.bytes / 8);
  const uint64_t newest = expand_number(header.echo(), sent_.next_number());
  if (reports_.is_outstanding() && arrived.contains(reports_.age_at(newest))) {
    reports_.on_acknowledged(used_slots(), busy_mask() == 0 ? UINT64_MAX : now_ns + terms_.report_delay_ns);
    hold_report(is_report_due());
  }
  for (uint64_t slots = acknowledge_packets(header, arrived, is_news, now_ns); slots != 0; slots &= slots - 1) {
    ClientSlot* slot = slots_[std::countr_zero(slots)];
    if (slot->phase != Phase::kSending) continue;
    const bool is_whole = slot->transfer == nullptr || slot->transfer->window.base() == slot->transfer->packets;
    if (is_whole) {
      on_delivered(slot, now_ns);
    } else if (slot->transfer->next < slot->transfer->packets) {
      send_mask_ |= bit(index_of(*slot));
    }
  }
  sent_.advance_oldest();
  if (is_watched()) watch().loss_timer.on_answer(sent_.largest_answered());
  suspect_losses(now_ns);
  return {};
}

/// Acknowledges the packets that have arrived. Returns the slots of the requests among them.
uint64_t ClientSession::acknowledge_packets(const wire::Header& header, const ArrivedBitmap& arrived, bool is_news,
                                            uint64_t now_ns) {
  const uint64_t newest = expand_number(header.echo(), sent_.next_number());
  uint64_t slots = 0;
  for (uint32_t i = 0; i < arrived.words(); i++) {
    uint64_t word = arrived.word(i);
    for (; word != 0; word &= ~(uint64_t{1} << (63 - std::countl_zero(word)))) {
      const uint64_t back = 64 * i + static_cast<uint64_t>(std::countl_zero(word));
      if (back > newest || newest - back < sent_.oldest()) break;
      const uint64_t number = newest - back;
      if (number >= sent_.next_number()) continue;
      const bool is_first_answer = number > sent_.largest_answered();
      sent_.note_answered(number);
      SentPacket& entry = sent_[number];
      if (entry.is_request()) {
        slots |= bit(entry.slot_index());
        acknowledge_request(number, now_ns, back == 0 && is_news ? &header : nullptr);
      } else if (entry.kind == SentPacket::Kind::kRfr) {
        acknowledge_rfr(entry, now_ns);
      } else if (back == 0 && is_news && is_first_answer && !entry.holds_credit() && busy_mask() != 0) {
        // The answer to a probe. That to the report of a session at rest may have waited for a sleeping server.
        take_rtt_sample(header.hold_code(), (header.flags() & wire::kEcnEcho) != 0, entry.time_ns, now_ns);
      }
    }
  }
  return slots;
}

/// Notes that a packet of a request has arrived. `sample_header`: the header of the packet that acknowledges it, if
/// that gives an RTT sample; else null.
void ClientSession::acknowledge_request(uint64_t number, uint64_t now_ns, const wire::Header* sample_header) {
  SentPacket& entry = sent_[number];
  if (!entry.is_request()) return;
  if (sample_header != nullptr)
    take_rtt_sample(sample_header->hold_code(), (sample_header->flags() & wire::kEcnEcho) != 0, entry.time_ns, now_ns);
  ClientSlot* slot = slots_[entry.slot_index()];
  sent_.remove(entry);
  slot->packets_in_flight--;
  note_progress(slot, now_ns);
  if (slot->transfer != nullptr && slot->phase == Phase::kSending) {
    slot->transfer->window.insert(entry.index);
    slot->transfer->lost.erase(entry.index);
  }
}

/// Notes that the server has the RFR. The server sends the RFR's packets after all other packets, so their time begins
/// now.
void ClientSession::acknowledge_rfr(SentPacket& rfr, uint64_t now_ns) {
  rfr.kind = SentPacket::Kind::kRfrArrived;
  rfr.time_ns = now_ns;
}

/// Makes the call wait for its answer, because the whole request has arrived.
void ClientSession::on_delivered(ClientSlot* slot, uint64_t now_ns) {
  slot->ask_at_ns = now_ns + (is_of_many_packets(*slot) ? early_wait_ns() : rto_ns());
  if (slot->transfer != nullptr) drop_transfer(slot);
  free_space(*slot);
  slot->phase = Phase::kWaiting;
  slot->waiting_since_ns = now_ns;
  send_mask_ &= ~bit(index_of(*slot));
}

/// Acknowledges the packet of the slot that the server answers with this packet.
void ClientSession::on_echo(const wire::Header& header, uint32_t slot_index, uint64_t now_ns) {
  if ((header.flags() & wire::kNoEcho) != 0) return;
  const uint64_t number = expand_number(header.echo(), sent_.next_number());
  // Older packets are resolved, and newer packets were never sent.
  if (!sent_.contains(number)) return;
  sent_.note_answered(number);
  if (sent_[number].slot_index() == slot_index) acknowledge_request(number, now_ns, &header);
  // The server answers only after the whole request has arrived, so packets without an acknowledgement are not lost.
  const ClientSlot* slot = slots_[slot_index];
  if (slot->phase == Phase::kSending && slot->packets_in_flight != 0) forget_packets(slot_index);
  sent_.advance_oldest();
  suspect_losses(now_ns);
}

ClientVerdict ClientSession::on_cancelled(const wire::Header& header, uint64_t now_ns) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ClientSlot* slot = state_ == State::kOpen && index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number() || slot->phase != Phase::kEnded) {
    return dropped(Drop::kStale);
  }
  note_answer(slot, header, now_ns);
  release_slot(slot);
  return {};
}

}  // namespace tern::session
