// Client session: which packet leaves next, and what changes when it has left (clauses 3.1, 4.1).
#include "session/client_session.h"

#include <algorithm>

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

/// Response packets that a session may always ask for, however many the endpoint's other sessions have asked for,
/// because a slow or hostile server must not make sessions with other servers wait.
constexpr uint32_t kOwnResponsePackets = 4;

/// Makes a packet without a payload. It has no slot, unless the caller sets it afterwards.
void fill_header_only(ClientPacket& packet, const wire::Header& header) {
  packet.header = header;
  packet.slot = nullptr;
  packet.buffer = nullptr;
  packet.payload = nullptr;
  packet.payload_bytes = 0;
  packet.is_retransmission = false;
}

}  // namespace

// ---- The next packet ----

bool ClientSession::prepare(uint64_t now_ns, ClientPacket& packet) {
  if (state_ != State::kOpen) return false;
  packet.is_control = control_mask_ != 0;
  if (packet.is_control) {
    prepare_control(packet);
    return true;
  }
  if (is_report_due()) {
    prepare_report(packet);
    return true;
  }
  if ((detours_ & kPathProbeDue) != 0) {
    prepare_path_probe(packet);
    return true;
  }
  const uint64_t to_send = fresh_mask_ | send_mask_;
  if (to_send == 0 || !sent_.has_credit()) return false;
  // Short messages leave first, then the long ones in turn.
  for (uint64_t mask = to_send; mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    if (slots_[index]->transfer != nullptr) continue;
    prepare_request(now_ns, index, 0, packet);
    return true;
  }
  const uint64_t later = to_send & (UINT64_MAX << watch().transfer_cursor);
  for (uint64_t mask : {later, to_send & ~later}) {
    for (; mask != 0; mask &= mask - 1) {
      if (prepare_transfer(now_ns, static_cast<uint32_t>(std::countr_zero(mask)), packet)) return true;
    }
  }
  return false;
}

/// Prepares a probe or a cancel, which is a header only, and takes no credit (clauses 4.4, 6.2).
void ClientSession::prepare_control(ClientPacket& packet) {
  const auto index = static_cast<uint32_t>(std::countr_zero(control_mask_));
  ClientSlot* slot = slots_[index];
  const wire::Kind kind = slot->phase == Phase::kEnded ? wire::Kind::kCancel : wire::Kind::kProbe;
  // 1 says that the server has acknowledged the whole request. If the server no longer has it, the request was lost
  // (clause 4.4).
  const uint32_t is_delivered = slot->phase == Phase::kWaiting || slot->phase == Phase::kReceiving ? 1 : 0;
  fill_header_only(packet, wire::client_header(kind, 0, remote_key_, next_number(), slot->request_number, is_delivered,
                                               0, proof_.session_token()));
  packet.slot = slot;
  packet.slot_index = index;
}

void ClientSession::prepare_report(ClientPacket& packet) {
  fill_header_only(
      packet, wire::client_header(wire::Kind::kReport, 0, remote_key_, next_number(), 0, 0, 0, proof_.session_token()));
  packet.payload = packet.scratch;
  packet.payload_bytes = reports_.fill(used_slots(), busy_mask() == 0, packet.scratch);
}

/// The bit in detours_ of the path probe that leaves next: a full one, then a short one, then a large one.
uint8_t ClientSession::next_path_probe() const {
  if ((detours_ & kFullProbeDue) != 0) return kFullProbeDue;
  return (detours_ & kShortProbeDue) != 0 ? kShortProbeDue : kLargeProbeDue;
}

/// Prepares a path probe of the open session. The server answers a full or a large probe with a packet of its length,
/// and a short one with a credit return.
void ClientSession::prepare_path_probe(ClientPacket& packet) {
  fill_header_only(packet, wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, next_number(),
                                               first_request_count_ << wire::kSlotBits, 0, 0, proof_.session_token()));
  const uint8_t probe = next_path_probe();
  if (probe == kFullProbeDue) packet.payload_bytes = payload_max_;
  if (probe == kLargeProbeDue) packet.payload_bytes = watch().size_search.probe_bytes();
  packet.is_control = true;
}

/// Prepares packet `index` of the slot's request.
void ClientSession::prepare_request(uint64_t now_ns, uint32_t slot_index, uint32_t index, ClientPacket& packet) const {
  ClientSlot* slot = slots_[slot_index];
  packet.slot = slot;
  packet.slot_index = slot_index;
  packet.index = index;
  packet.count = 1;
  packet.buffer = slot->request;
  packet.is_retransmission = slot->was_sent();
  packet.payload = slot->request->data();
  const uint8_t first = index == 0 ? wire::kFirst : 0;
  const Transfer* transfer = slot->transfer;
  const uint32_t message_bytes = transfer != nullptr ? transfer->bytes : slot->request->length_bytes;
  packet.payload_bytes = message_bytes;
  if (transfer != nullptr) {
    const uint32_t offset = request_offset(*transfer, index);
    packet.payload += offset;
    packet.payload_bytes = std::min(transfer->payload_bytes, message_bytes - offset);
    packet.is_retransmission = !transfer->lost.empty();
  }
  const uint32_t credits = credits_of(packet.payload_bytes);
  const uint8_t wants_credits = sent_.in_flight() + credits >= server_limit() ? wire::kWantsCredits : 0;
  const uint32_t deadline_or_index = index == 0 ? deadline_code_of(slot->deadline_ns, now_ns) : index;
  packet.header = wire::client_header(wire::Kind::kRequest, first | wants_credits, remote_key_, next_number(),
                                      slot->request_number, deadline_or_index, slot->type, message_bytes);
  const uint8_t code = code_to_name(*slot);
  if (code != 0) packet.header.add_flags(wire::kTakesWhole);
  packet.header.add_payload_code(transfer != nullptr ? transfer->payload_code : code);
}

/// Prepares the next packet of a long request, or the next RFR of a long response, lost packets first. False: there is
/// no such packet now.
bool ClientSession::prepare_transfer(uint64_t now_ns, uint32_t slot_index, ClientPacket& packet) {
  const Transfer& transfer = *slots_[slot_index]->transfer;
  const bool is_again = !transfer.lost.empty();
  const uint32_t index = is_again ? transfer.lost.lowest(transfer.window.base()) : transfer.next;
  if (!is_again && (index == transfer.packets || !transfer.window.is_within(index))) return false;
  if (slots_[slot_index]->phase != Phase::kSending) return prepare_rfr(slot_index, index, packet);
  return prepare_part(now_ns, slot_index, index, packet);
}

bool ClientSession::prepare_part(uint64_t now_ns, uint32_t slot_index, uint32_t index, ClientPacket& packet) const {
  if (!may_send_part(*slots_[slot_index])) return false;
  prepare_request(now_ns, slot_index, index, packet);
  return true;
}

/// Prepares an RFR for a run of response packets from `index` on.
bool ClientSession::prepare_rfr(uint32_t slot_index, uint32_t index, ClientPacket& packet) const {
  ClientSlot* slot = slots_[slot_index];
  const Transfer& transfer = *slot->transfer;
  const bool is_again = !transfer.lost.empty();
  const uint32_t limit = rfr_packets_max(transfer);
  uint32_t count = 0;
  while (count < limit && index + count < transfer.packets && transfer.window.is_within(index + count) &&
         (!is_again || transfer.lost.contains(index + count))) {
    count++;
  }
  if (count == 0) return false;
  fill_header_only(packet, wire::client_header(wire::Kind::kRfr, 0, remote_key_, next_number(), slot->request_number,
                                               index, slot->type, count));
  packet.header.add_payload_code(transfer.payload_code);
  packet.slot = slot;
  packet.slot_index = slot_index;
  packet.index = index;
  packet.count = count;
  packet.is_retransmission = is_again;
  return true;
}

/// Returns the number of packets that the next RFR may ask for. It is limited by the endpoint's receive queue, by the
/// session's share of the downlink (clause 5.4), and by the controller's window, because all these packets wait for the
/// departure of the RFR.
uint32_t ClientSession::rfr_packets_max(const Transfer& transfer) const {
  const uint32_t share = pools().response_share.packets();
  if (watch().awaited_packets >= share) return 0;
  const uint32_t free = pools().response_credits_free > 0 ? static_cast<uint32_t>(pools().response_credits_free) : 0;
  // The last packet may exceed each limit, because a larger packet would otherwise wait for ever beside smaller ones.
  const auto packets_in = [](uint32_t allowed, uint32_t each) { return (allowed + each - 1) / each; };
  const AwaitedCost cost = transfer.cost;
  const uint32_t queue = cost.packets > 1 ? packets_in(free, cost.credits) : free / cost.credits;
  const uint32_t left = kOwnResponsePackets - std::min(watch().awaited_packets, kOwnResponsePackets);
  const uint32_t own = packets_in(left, cost.packets);
  const uint32_t allowed = std::min(allowance().window_packets, share - watch().awaited_packets);
  return std::min({kRfrPacketsMax, packets_in(allowed, cost.packets), std::max(queue, own)});
}

// ---- After the send ----

void ClientSession::commit(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket) {
  reserve_number(now_ns);
  switch (packet.header.kind()) {
    case wire::Kind::kRequest:
      commit_request(now_ns, packet, ticket);
      break;
    case wire::Kind::kRfr:
      commit_rfr(now_ns, packet);
      break;
    case wire::Kind::kReport:
      commit_report(now_ns);
      break;
    case wire::Kind::kPathProbe:
      commit_path_probe(now_ns);
      break;
    default:  // probe or cancel
      sent_.add({.time_ns = now_ns});
      sent_.advance_oldest();
      control_mask_ &= ~bit(packet.slot_index);
      break;
  }
  if (is_paced_) pace(now_ns, packet);
}

void ClientSession::commit_request(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket) {
  ClientSlot* slot = packet.slot;
  const bool is_short = slot->transfer == nullptr;
  const uint32_t credits = credits_of(packet.payload_bytes);
  if ((packet.header.flags() & wire::kTakesWhole) != 0) reserve_space(slot, packet.header.payload_code());
  const bool is_plain = credits == 1 && slot->whole_code == 0;
  const auto kind_of_short = is_plain ? SentPacket::Kind::kShort : SentPacket::Kind::kWide;
  sent_.add({.time_ns = now_ns,
             .index = is_short ? slot->request_number : packet.index,
             .count = static_cast<uint8_t>(credits),
             .slot = static_cast<uint8_t>(packet.slot_index),
             .kind = is_short ? kind_of_short : SentPacket::Kind::kPart});
  slot->packets_in_flight++;
  slot->rounds = std::max<uint8_t>(slot->rounds, 1);
  slot->ticket = ticket;
  if (is_short) {
    fresh_mask_ &= ~bit(packet.slot_index);
    send_mask_ &= ~bit(packet.slot_index);
    return;
  }
  long_bytes_sent_ += packet.payload_bytes;
  Transfer& transfer = *slot->transfer;
  transfer.lost.erase(packet.index);
  if (packet.index == transfer.next) transfer.next++;
  end_turn(packet);
}

void ClientSession::commit_rfr(uint64_t now_ns, const ClientPacket& packet) {
  const auto count = static_cast<uint8_t>(packet.count);
  sent_.add({now_ns, packet.index, count, count, static_cast<uint8_t>(packet.slot_index), SentPacket::Kind::kRfr});
  packet.slot->packets_in_flight++;
  Transfer& transfer = *packet.slot->transfer;
  wait_for(transfer.cost, packet.count);
  for (uint32_t i = 0; i < packet.count; i++) transfer.lost.erase(packet.index + i);
  transfer.next = std::max(transfer.next, packet.index + packet.count);
  end_turn(packet);
}

/// Gives the turn to the next long message.
void ClientSession::end_turn(const ClientPacket& packet) {
  const Transfer& transfer = *packet.slot->transfer;
  if (transfer.next == transfer.packets && transfer.lost.empty()) {
    send_mask_ &= ~bit(packet.slot_index);
    // A probe follows, whose answer shows without a timeout whether the last packets are lost (clause 4.4.6).
    if (is_of_many_packets(*packet.slot)) control_mask_ |= bit(packet.slot_index);
  }
  watch().transfer_cursor = static_cast<uint8_t>((packet.slot_index + 1) % wire::kSlotsMax);
  sent_.advance_oldest();
}

void ClientSession::commit_path_probe(uint64_t now_ns) {
  const uint8_t probe = next_path_probe();
  if (probe == kLargeProbeDue) watch().size_search.on_sent(sent_.next_number());
  detours_ &= static_cast<uint8_t>(~probe);
  sent_.add({.time_ns = now_ns});
  sent_.advance_oldest();
}

void ClientSession::commit_report(uint64_t now_ns) {
  const uint64_t number = sent_.next_number();
  sent_.add({.time_ns = now_ns});
  detours_ &= static_cast<uint8_t>(~kReportDue);
  reports_.on_sent(number, busy_mask() == 0, now_ns, rto_ns(), terms_.report_delay_ns, terms_.liveness_ns);
  sent_.advance_oldest();
  if (sent_.is_empty()) sent_.shrink(busy_->first_sent);
}

/// Makes space for the record of one more packet. If the ring cannot grow, the oldest packet counts as lost.
void ClientSession::reserve_number(uint64_t now_ns) {
  if (!sent_.is_full() || sent_.grow()) return;
  lose(sent_.oldest(), now_ns);
  sent_.advance_oldest();
}

void ClientSession::pace(uint64_t now_ns, const ClientPacket& packet) {
  const wire::Kind kind = packet.header.kind();
  if (kind != wire::Kind::kRequest && kind != wire::Kind::kRfr) return;  // a packet that is not paced delays none
  // An RFR counts as the packets that it asks the server to send, because the client paces both directions.
  uint64_t bytes = kind == wire::Kind::kRfr
                       ? packet.count * (packet.slot->transfer->payload_bytes + uint64_t{wire::kHeaderBytes})
                       : packet.payload_bytes + wire::kHeaderBytes;
  const bool takes_whole = (packet.header.flags() & wire::kTakesWhole) != 0;
  if (takes_whole) bytes += wire::payload_of_code(usual_code_) + wire::kHeaderBytes;
  control_->pacer.on_sent(now_ns, bytes, packet.count, control_->allowance);
}

}  // namespace tern::session
