#include "session/client_session.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

/// Of a ring that does not lie in the session.
constexpr uint64_t kRingSizeMin = 16;
/// Beyond this many numbers between the oldest unanswered packet and the next, the oldest counts as lost: 128
/// credits, and as many packets answered meanwhile, several times over.
constexpr uint64_t kRingSizeMax = 4096;
/// Response packets that a session may ask for whatever the others of the endpoint have asked for: a server that is
/// slow or hostile must not keep the honest ones waiting.
constexpr uint32_t kOwnRoomPackets = 4;
constexpr uint8_t kBackoffMax = 6;

void store_u32(std::byte* to, uint32_t value) {
  for (int i = 0; i < 4; i++) to[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t load_u64(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return wire::to_little_endian(value);
}

Status failure_status(wire::FailureCode code) {
  switch (code) {
    case wire::FailureCode::kApplication:
      return {Code::kRefused, "the handler refused the request; app_code has its reason"};
    case wire::FailureCode::kNoResponse:
      return {Code::kNoResponse, "the handler dropped the request without answering it"};
    case wire::FailureCode::kUnknownType:
      return {Code::kRefused, "the server has no handler for this request type: register it with on_request()"};
    case wire::FailureCode::kTooLarge:
      return {Code::kTooLarge, "the request is above the handler's max_request_bytes"};
    case wire::FailureCode::kNoMemory:
      return {Code::kNoMemory,
              "the server's receive_budget_bytes, response_budget_bytes or memory is used up; try again later"};
    case wire::FailureCode::kDeadline:
      return {Code::kDeadline, "the deadline had passed before the handler could run"};
    case wire::FailureCode::kOverloaded:
      return {Code::kQueueFull, "the server's worker queue is full; try again later"};
    case wire::FailureCode::kLost:
      return {Code::kNoResponse, "the server has lost the request: a damaged packet got past the link's checksum"};
    case wire::FailureCode::kClosing:
      return {Code::kSessionReset, "the server's endpoint is closing"};
  }
  return {Code::kRefused, "the server refused the request for a reason that this version does not know"};
}

}  // namespace

ClientSession::ClientSession(const ClientTerms& terms, ClientPools& pools)
    : pacer_(terms.seed), pools_(pools), terms_(terms) {
  set_first_number(terms.first_number);
  apply_allowance();
}

ClientSession::~ClientSession() {
  for (uint32_t i = 0; i < window_ && slots_ != nullptr; i++) {
    if (slots_[i] == nullptr) continue;
    if (slots_[i]->transfer != nullptr) drop_transfer(slots_[i]);
    if (slots_[i] != &first_slot_) pools_.slots.give(slots_[i]);
  }
  // Response packets that were asked for and never came are no longer awaited.
  for (uint64_t n = oldest_; n < next_number_; n++) {
    if (sent(n).is_rfr()) give_back_room(sent(n).missing);
  }
  if (slots_ != first_slots_) delete[] slots_;
  drop_ring();
}

void ClientSession::set_first_number(uint32_t first_number) {
  first_number_ = kNumberBase + first_number;
  next_number_ = oldest_ = reported_number_ = first_number_;
  largest_answered_ = first_number_ - 1;
}

void ClientSession::start_over(uint32_t first_number) {
  CHECK(state_ == State::kOpen, ==, false);
  drop_ring();
  set_first_number(first_number);
  state_ = State::kConnecting;
  short_probes_left_ = kShortProbesMax;
  is_path_answered_ = false;
  first_probe_ns_ = 0;
}

void ClientSession::on_accepted(const AcceptedTerms& terms, uint64_t now_ns) {
  remote_key_ = terms.remote_key;
  payload_max_ = terms.payload_bytes_max;
  terms_.window = std::min(terms.window, terms_.window);
  start_credits_ = std::max<uint8_t>(terms.credits, 1);
  set_server_credits(start_credits_);
  server_number_ = kNumberBase + terms.first_server_number - 1;
  path_token_ = terms.path_token;
  last_answer_ns_ = now_ns;
  state_ = State::kProbing;
}

ClientSession::PathProbe ClientSession::path_probe(uint64_t now_ns) {
  if (first_probe_ns_ == 0) first_probe_ns_ = now_ns;
  if (next_number_ - oldest_ == ring_size_) grow_ring();
  sent(next_number_) = {};
  const auto number = static_cast<uint32_t>(next_number_);
  next_number_++;
  advance_oldest();
  if (!is_path_answered_) {
    short_probes_left_--;
    return {wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, number, 0, 0, 0, path_token_), 0};
  }
  return {wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, number, first_request_count_ << wire::kSlotBits,
                              0, 0, session_token_),
          payload_max_};
}

/// Its echo is the number of a path probe: nothing else was sent before the session is open.
ClientSession::PathVerdict ClientSession::on_path_reply(const wire::Header& header, uint32_t payload_bytes,
                                                        uint64_t now_ns) {
  const bool is_of_probe = expand_number(header.echo(), next_number_) < next_number_;
  if (state_ != State::kProbing || !is_of_probe || !is_proven_by_echo(header)) return PathVerdict::kDropped;
  if (payload_bytes == 0 && !is_path_answered_) {
    note_server_packet(header, now_ns);
    first_request_count_ = header.request_number() >> wire::kSlotBits;
    session_token_ = header.size_or_index();
    is_path_answered_ = true;
    first_probe_ns_ = 0;
    return PathVerdict::kAnswered;
  }
  if (payload_bytes != payload_max_ || !is_path_answered_) return PathVerdict::kDropped;
  note_server_packet(header, now_ns);
  if (terms_.credits_last_ns != UINT64_MAX) fall_back_to_start_credits();
  // A session mostly begins without load: this is the best round trip that some ever see.
  if (first_probe_ns_ != 0) rtt_.at_most(now_ns - first_probe_ns_);
  slots_ = terms_.window <= kFirstSlots ? first_slots_ : new (std::nothrow) ClientSlot*[terms_.window]();
  if (slots_ == nullptr) return PathVerdict::kDropped;
  window_ = terms_.window;
  window_mask_ = terms_.window == 64 ? UINT64_MAX : (uint64_t{1} << terms_.window) - 1;
  free_mask_ = window_mask_;
  state_ = State::kOpen;
  reported_number_ = next_number_;
  return PathVerdict::kOpened;
}

/// Whoever does not see our packets guesses one of the last 4096 in 2^24, and a number within the server's window.
bool ClientSession::is_proven_by_echo(const wire::Header& header) const {
  if ((header.flags() & wire::kNoEcho) != 0) return false;
  const uint64_t echo = expand_number(header.echo(), next_number_);
  // One damaged number can put the server's window ahead of ours; what it says of our own numbers still counts.
  const bool was_sent =
      echo >= first_number_ && echo < next_number_ + NumberWindow::kSpan && echo + kEchoSpan >= next_number_;
  const uint64_t number = expand_number(header.number(), server_number_);
  return was_sent && number + NumberWindow::kSpan > server_number_ &&
         number <= server_number_ + NumberWindow::kAheadMax;
}

// ---- Calls ----

ClientSlot* ClientSession::make_slot(uint32_t index) {
  ClientSlot* slot = index == 0 ? &first_slot_ : pools_.slots.take();
  if (slot == nullptr) return nullptr;
  slot->request_number = (first_request_count_ << wire::kSlotBits | index) - wire::kSlotsMax;
  slots_[index] = slot;
  return slot;
}

ClientSlot* ClientSession::begin(detail::Buffer* request, detail::Buffer* response, uint16_t type) {
  const auto index = static_cast<uint32_t>(std::countr_zero(free_mask_));
  ClientSlot* slot = slots_[index] != nullptr ? slots_[index] : make_slot(index);
  if (slot == nullptr) return nullptr;
  if (request->length_bytes > payload_max_ && !begin_long(slot, request->length_bytes)) return nullptr;
  take_slot(slot, request, response, type, slot->transfer == nullptr ? fresh_mask_ : send_mask_);
  return slot;
}

bool ClientSession::begin_long(ClientSlot* slot, uint32_t request_bytes) {
  slot->transfer = pools_.transfers.take();
  if (slot->transfer == nullptr) return false;
  slot->transfer->packets = packets_of(request_bytes);
  return true;
}

/// The server owes an answer: to a packet in flight, or to a request that it has.
bool ClientSession::is_outstanding() const {
  if (in_flight_ != 0) return true;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const Phase phase = slots_[std::countr_zero(mask)]->phase;
    if (phase == Phase::kWaiting || phase == Phase::kEnded) return true;
  }
  return false;
}

void ClientSession::drop_transfer(ClientSlot* slot) {
  if (slot->phase == Phase::kReceiving) pools_.response_share.end();
  pools_.transfers.give(slot->transfer);
  slot->transfer = nullptr;
}

/// The slot's unanswered packets no longer matter: what they asked for is here, or nobody wants it any more. Their
/// credits come back; at worst the server's queue sees them once more than it granted.
void ClientSession::forget_packets(uint32_t slot_index) {
  for (uint64_t n = oldest_; n < next_number_; n++) {
    Sent& entry = sent(n);
    if (entry.kind == Sent::Kind::kNone || entry.slot != slot_index) continue;
    if (entry.is_rfr()) give_back_room(entry.missing);
    entry.kind = Sent::Kind::kNone;
    in_flight_--;
    slots_[slot_index]->packets_in_flight--;
  }
  advance_oldest();
}

void ClientSession::block_slot(ClientSlot* slot) {
  slot->phase = Phase::kBlocked;
  slot->deadline_ns = UINT64_MAX;
  free_mask_ &= ~bit(index_of(*slot));
}

size_t ClientSession::blocked_slots() const {
  size_t count = 0;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    if (slots_[std::countr_zero(mask)]->phase == Phase::kBlocked) count++;
  }
  return count;
}

void ClientSession::end_early(ClientSlot* slot, uint64_t now_ns) {
  const uint32_t index = index_of(*slot);
  slot->request = nullptr;
  slot->response = nullptr;
  if (!slot->was_sent) {
    release_slot(slot);
    slot->request_number -= wire::kSlotsMax;  // the server expects them without a gap (clause 3.6)
    return;
  }
  forget_packets(index);
  if (slot->transfer != nullptr) drop_transfer(slot);
  slot->phase = Phase::kEnded;
  slot->deadline_ns = UINT64_MAX;
  slot->waiting_since_ns = now_ns;
  slot->ask_at_ns = now_ns + rto_ns();
  fresh_mask_ &= ~bit(index);
  send_mask_ &= ~bit(index);
  control_mask_ |= bit(index);
}

// ---- Packets out ----

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
  const uint64_t to_send = fresh_mask_ | send_mask_;
  if (to_send == 0 || !has_credit()) return false;
  // Short messages first, then the long ones in turn.
  for (uint64_t mask = to_send; mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    if (slots_[index]->transfer != nullptr) continue;
    fill_request(now_ns, slots_[index], index, 0, packet);
    return true;
  }
  const uint64_t later = to_send & (UINT64_MAX << transfer_cursor_);
  for (uint64_t mask : {later, to_send & ~later}) {
    for (; mask != 0; mask &= mask - 1) {
      if (prepare_transfer(now_ns, static_cast<uint32_t>(std::countr_zero(mask)), packet)) return true;
    }
  }
  return false;
}

uint32_t ClientSession::deadline_code_of(uint64_t deadline_ns, uint64_t now_ns) {
  return deadline_ns <= now_ns ? 0 : wire::encode_time_left(deadline_ns - now_ns);
}

void ClientSession::fill_request(uint64_t now_ns, ClientSlot* slot, uint32_t slot_index, uint32_t index,
                                 ClientPacket& packet) const {
  packet.slot = slot;
  packet.slot_index = slot_index;
  packet.index = index;
  packet.count = 1;
  packet.buffer = slot->request;
  packet.is_retransmission = slot->was_sent;
  packet.payload = slot->request->data();
  packet.payload_bytes = slot->request->length_bytes;
  const uint32_t deadline_code =
      slot->deadline_ns == UINT64_MAX ? wire::kNoDeadline : deadline_code_of(slot->deadline_ns, now_ns);
  const uint8_t flags = wire::kFirst | (in_flight_ + 1 >= server_credits_ ? wire::kWantsCredits : 0);
  packet.header = wire::client_header(wire::Kind::kRequest, flags, remote_key_, static_cast<uint32_t>(next_number_),
                                      slot->request_number, deadline_code, slot->type, slot->request->length_bytes);
}

/// A probe, or a cancel: header only, no credit (clauses 4.4, 6.2).
void ClientSession::prepare_control(ClientPacket& packet) {
  const auto index = static_cast<uint32_t>(std::countr_zero(control_mask_));
  ClientSlot* slot = slots_[index];
  const wire::Kind kind = slot->phase == Phase::kEnded ? wire::Kind::kCancel : wire::Kind::kProbe;
  packet.slot = slot;
  packet.slot_index = index;
  packet.buffer = nullptr;
  packet.payload = nullptr;
  packet.payload_bytes = 0;
  packet.is_retransmission = false;
  // Whether the server has acknowledged all of the request: if it then does not have it, it was lost (clause 4.4).
  const uint32_t is_delivered = slot->phase == Phase::kWaiting || slot->phase == Phase::kReceiving ? 1 : 0;
  packet.header = wire::client_header(kind, 0, remote_key_, static_cast<uint32_t>(next_number_), slot->request_number,
                                      is_delivered, 0, session_token_);
}

void ClientSession::prepare_report(ClientPacket& packet) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < window_; i++) {
    if (slots_[i] != nullptr && slots_[i]->phase == Phase::kFree)
      store_u32(packet.scratch + 4 * count++, slots_[i]->request_number);
  }
  packet.slot = nullptr;
  packet.buffer = nullptr;
  packet.payload = packet.scratch;
  packet.payload_bytes = 4 * count;
  packet.is_retransmission = false;
  packet.header = wire::client_header(wire::Kind::kReport, 0, remote_key_, static_cast<uint32_t>(next_number_), 0, 0, 0,
                                      session_token_);
}

bool ClientSession::prepare_transfer(uint64_t now_ns, uint32_t slot_index, ClientPacket& packet) {
  ClientSlot* slot = slots_[slot_index];
  Transfer& transfer = *slot->transfer;
  const bool is_again = !transfer.lost.empty();
  const uint32_t index = is_again ? transfer.lost.lowest(transfer.window.base()) : transfer.next;
  if (!is_again && (index == transfer.packets || !transfer.window.is_within(index))) return false;
  if (slot->phase == Phase::kSending) {
    if (slot->packets_in_flight >= terms_.bulk_packets) return false;
    const uint32_t offset = index * payload_max_;
    fill_request(now_ns, slot, slot_index, index, packet);
    packet.is_retransmission = is_again;
    packet.payload += offset;
    packet.payload_bytes = std::min(payload_max_, packet.payload_bytes - offset);
    if (index != 0) {
      packet.header = wire::client_header(wire::Kind::kRequest, packet.header.flags() & ~wire::kFirst, remote_key_,
                                          static_cast<uint32_t>(next_number_), slot->request_number, index, slot->type,
                                          slot->request->length_bytes);
    }
    return true;
  }
  // kReceiving: ask for a run of packets, no more than the endpoint's receive queue takes, and of its downlink no more
  // than a share (clause 5.4).
  const uint32_t share = pools_.response_share.packets();
  if (awaited_packets_ >= share) return false;
  const uint32_t shared_room =
      pools_.response_packets_free > 0 ? static_cast<uint32_t>(pools_.response_packets_free) : 0;
  const uint32_t own_room = kOwnRoomPackets - std::min(awaited_packets_, kOwnRoomPackets);
  const uint32_t limit = std::min({kRfrPacketsMax, std::max(shared_room, own_room), share - awaited_packets_});
  uint32_t count = 0;
  while (count < limit && index + count < transfer.packets && transfer.window.is_within(index + count) &&
         (is_again ? transfer.lost.contains(index + count) : true)) {
    count++;
  }
  if (count == 0) return false;
  packet.slot = slot;
  packet.slot_index = slot_index;
  packet.index = index;
  packet.count = count;
  packet.buffer = nullptr;
  packet.payload = nullptr;
  packet.payload_bytes = 0;
  packet.is_retransmission = is_again;
  packet.header = wire::client_header(wire::Kind::kRfr, 0, remote_key_, static_cast<uint32_t>(next_number_),
                                      slot->request_number, index, slot->type, count);
  return true;
}

void ClientSession::commit(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket) {
  if (next_number_ - oldest_ == ring_size_) grow_ring();
  ClientSlot* slot = packet.slot;
  if (packet.header.kind() == wire::Kind::kRequest && slot->transfer == nullptr) {
    sent(next_number_) = {.time_ns = now_ns,
                          .index = slot->request_number,
                          .slot = static_cast<uint8_t>(packet.slot_index),
                          .kind = Sent::Kind::kShort};
    next_number_++;
    in_flight_++;
    slot->packets_in_flight++;
    slot->was_sent = true;
    slot->ticket = ticket;
    fresh_mask_ &= ~bit(packet.slot_index);
    send_mask_ &= ~bit(packet.slot_index);
    if (is_paced_) pace(now_ns, packet);
    return;
  }
  Sent& entry = sent(next_number_);
  entry = {.time_ns = now_ns};
  next_number_++;
  switch (packet.header.kind()) {
    case wire::Kind::kRequest: {
      Transfer& transfer = *slot->transfer;
      entry = {now_ns, packet.index, 1, 0, static_cast<uint8_t>(packet.slot_index), Sent::Kind::kPart};
      in_flight_++;
      slot->packets_in_flight++;
      slot->was_sent = true;
      slot->ticket = ticket;
      transfer.lost.erase(packet.index);
      if (packet.index == transfer.next) transfer.next++;
      if (transfer.next == transfer.packets && transfer.lost.empty()) send_mask_ &= ~bit(packet.slot_index);
      transfer_cursor_ = static_cast<uint8_t>((packet.slot_index + 1) % wire::kSlotsMax);
      break;
    }
    case wire::Kind::kRfr: {
      Transfer& transfer = *slot->transfer;
      entry = {now_ns,
               packet.index,
               static_cast<uint8_t>(packet.count),
               static_cast<uint8_t>(packet.count),
               static_cast<uint8_t>(packet.slot_index),
               Sent::Kind::kRfr};
      in_flight_++;
      slot->packets_in_flight++;
      pools_.response_packets_free -= static_cast<int32_t>(packet.count);
      awaited_packets_ += packet.count;
      for (uint32_t i = 0; i < packet.count; i++) transfer.lost.erase(packet.index + i);
      transfer.next = std::max(transfer.next, packet.index + packet.count);
      if (transfer.next == transfer.packets && transfer.lost.empty()) send_mask_ &= ~bit(packet.slot_index);
      transfer_cursor_ = static_cast<uint8_t>((packet.slot_index + 1) % wire::kSlotsMax);
      break;
    }
    case wire::Kind::kReport:
      detours_ &= static_cast<uint8_t>(~kReportDue);
      reported_number_ = next_number_;
      advance_oldest();
      if (oldest_ == next_number_) drop_ring();
      break;
    default:  // probe or cancel
      control_mask_ &= ~bit(packet.slot_index);
      break;
  }
  advance_oldest();
  if (is_paced_) pace(now_ns, packet);
}

void ClientSession::pace(uint64_t now_ns, const ClientPacket& packet) {
  const wire::Kind kind = packet.header.kind();
  if (kind != wire::Kind::kRequest && kind != wire::Kind::kRfr) return;  // what waits for nothing delays nothing
  // An RFR is paid for with what it asks the server to send: the client paces both directions.
  const uint64_t bytes = kind == wire::Kind::kRfr ? uint64_t{packet.count} * (payload_max_ + wire::kHeaderBytes)
                                                  : packet.payload_bytes + wire::kHeaderBytes;
  pacer_.on_sent(now_ns, bytes, bytes_per_sec_, is_dithered_);
}

/// What the controller now says becomes what the common case looks at.
void ClientSession::apply_allowance() {
  const cc::Allowance allowance = std::visit([](const auto& c) { return c.allowance(); }, terms_.controller);
  const bool is_calm = allowance.window_packets >= server_credits_ && allowance.bytes_per_sec == cc::kUnlimited;
  const bool is_controlled =
      !std::holds_alternative<cc::None>(terms_.controller) && !std::holds_alternative<cc::FixedRate>(terms_.controller);
  credit_limit_ = std::min<uint32_t>(server_credits_, allowance.window_packets);
  is_dithered_ = allowance.is_dithered;
  bytes_per_sec_ = allowance.bytes_per_sec;
  if (!terms_.may_pace_below_packet && is_controlled && rtt_.has_sample()) {
    const uint64_t packet_bytes = payload_max_ + wire::kHeaderBytes;
    bytes_per_sec_ = std::max(bytes_per_sec_, packet_bytes * 1'000'000'000 / rtt_.latest_ns());
  }
  if (!cc::kBypasses.pacing && is_controlled) bytes_per_sec_ = std::min(bytes_per_sec_, terms_.link_bytes_per_sec);
  calm_below_ns_ = is_calm ? std::visit([](const auto& c) { return c.calm_below_ns(); }, terms_.controller) : 0;
  if (!cc::kBypasses.update && is_controlled) calm_below_ns_ = 0;
  is_paced_ = bytes_per_sec_ != cc::kUnlimited;
  detours_ = static_cast<uint8_t>(is_paced_ ? detours_ | kPaced : detours_ & ~kPaced);
}

void ClientSession::start_anew() {
  tell_controller([](auto& controller) { controller.on_rest(); });
}

void ClientSession::set_server_credits(uint32_t credits) {
  server_credits_ = static_cast<uint8_t>(std::min(credits, kCreditsMax));
  apply_allowance();
}

void ClientSession::grow_ring() {
  if (ring_size_ == kRingSizeMax) {
    lose(oldest_, sent(oldest_).time_ns);
    advance_oldest();
    return;
  }
  const uint64_t size = std::max(kRingSizeMin, 2 * ring_size_);
  Sent* ring = new (std::nothrow) Sent[size]();
  if (ring == nullptr) {
    lose(oldest_, sent(oldest_).time_ns);
    advance_oldest();
    return;
  }
  for (uint64_t n = oldest_; n < next_number_; n++) ring[n & (size - 1)] = sent(n);
  if (ring_ != first_ring_) delete[] ring_;
  ring_ = ring;
  ring_size_ = size;
  ring_mask_ = size - 1;
}

/// No packet is unanswered: the session's own ring will do again.
void ClientSession::drop_ring() {
  if (ring_ == first_ring_) return;
  delete[] ring_;
  ring_ = first_ring_;
  ring_size_ = kFirstRing;
  ring_mask_ = kFirstRing - 1;
}

// ---- Packets in ----

/// Some packets of the server are missing: one may be the response that a waiting call wants (clause 4.4). Once a round
/// trip: where packets overtake each other every answer is a gap, and would cause more questions than there were.
void ClientSession::on_gap(uint64_t now_ns) {
  if (now_ns < gap_ask_again_ns_) return;
  gap_ask_again_ns_ = now_ns + rtt_.latest_ns();
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    if (slots_[index]->phase == Phase::kWaiting) control_mask_ |= bit(index);
  }
}

ClientVerdict ClientSession::on_response_slow(ClientSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t now_ns) {
  ClientVerdict verdict;
  if (slot->phase == Phase::kEnded) {
    // An answer to a call that has ended: as good as an acknowledged cancel.
    note_server_packet(header, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    release_slot(slot);
    return verdict;
  }
  if ((header.flags() & wire::kFailure) != 0) {
    const uint32_t word = header.size_or_index();
    note_server_packet(header, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    verdict.finished = slot;
    verdict.status = failure_status(static_cast<wire::FailureCode>(word >> 16));
    verdict.app_code = static_cast<uint16_t>(word);
    return verdict;
  }
  if ((header.flags() & wire::kFirst) == 0) return on_response_part(slot, header, payload, now_ns);

  // Packet 0 of a response.
  const uint32_t bytes = header.size_or_index();
  const bool is_long = bytes > payload_max_;
  if (bytes > wire::kMessageBytesMax || payload.bytes != (is_long ? payload_max_ : bytes)) {
    verdict.drop = Drop::kMalformed;
    return verdict;
  }
  if (slot->phase == Phase::kReceiving && bytes == slot->response_bytes) {
    // Sent again for a probe: it answers the probe, the data is here already.
    note_server_packet(header, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    return verdict;
  }
  if (bytes > slot->response->capacity_bytes) {
    note_server_packet(header, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    verdict.finished = slot;
    verdict.status = {Code::kTooLarge, "the response is larger than the response MsgBuf: allocate a larger one"};
    return verdict;
  }
  if (!payload.copy_to(slot->response->data())) {
    verdict.drop = Drop::kLease;
    return verdict;
  }
  note_server_packet(header, now_ns);
  on_echo(header, index_of(*slot), now_ns);
  if (!is_long) {
    slot->response->length_bytes = bytes;
    verdict.finished = slot;
    return verdict;
  }
  forget_packets(index_of(*slot));  // an answer to the request says that all of it has arrived
  if (slot->transfer != nullptr) drop_transfer(slot);
  slot->transfer = pools_.transfers.take();
  if (slot->transfer == nullptr) {
    verdict.finished = slot;
    verdict.status = {Code::kNoMemory, "no memory to receive a response of several packets"};
    return verdict;
  }
  slot->transfer->packets = packets_of(bytes);
  slot->transfer->next = 1;
  slot->transfer->window.insert(0);
  slot->response_bytes = bytes;
  slot->phase = Phase::kReceiving;
  pools_.response_share.begin();
  pools_.response_share.hear(heard_epoch_);
  slot->ask_at_ns = UINT64_MAX;
  control_mask_ &= ~bit(index_of(*slot));
  send_mask_ |= bit(index_of(*slot));
  return verdict;
}

ClientVerdict ClientSession::on_response_part(ClientSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t now_ns) {
  ClientVerdict verdict;
  if (slot->phase != Phase::kReceiving) {
    verdict.drop = Drop::kStale;
    return verdict;
  }
  Transfer& transfer = *slot->transfer;
  const uint32_t index = header.size_or_index();
  const uint64_t offset = uint64_t{index} * payload_max_;
  // One that was never asked for would leave the bounds of what is asked for next.
  if (index >= transfer.next || payload.bytes != std::min<uint64_t>(payload_max_, slot->response_bytes - offset)) {
    verdict.drop = Drop::kMalformed;
    return verdict;
  }
  const bool is_new = transfer.window.is_within(index) && !transfer.window.contains(index);
  if (is_new && !payload.copy_to(slot->response->data() + offset)) {
    verdict.drop = Drop::kLease;
    return verdict;
  }
  note_server_packet(header, now_ns);
  pools_.response_share.hear(heard_epoch_);
  if (is_new) {
    transfer.window.insert(index);
    transfer.lost.erase(index);
  } else {
    verdict.drop = Drop::kStale;
  }
  if ((header.flags() & wire::kNoEcho) == 0) {
    const uint64_t number = expand_number(header.echo(), next_number_);
    if (number >= oldest_ && number < next_number_) {
      largest_answered_ = std::max(largest_answered_, number);
      Sent& entry = sent(number);
      if (is_new && entry.is_rfr() && slots_[entry.slot] == slot && index - entry.index < entry.count &&
          entry.missing > 0) {
        if (entry.missing == entry.count)
          take_rtt_sample(header.hold_code(), (header.flags() & wire::kEcnEcho) != 0, entry.time_ns, now_ns);
        entry.time_ns = now_ns;
        entry.missing--;
        give_back_room(1);
        if (index == entry.index + entry.count - 1u) entry.kind = Sent::Kind::kRfrOvertaken;
        if (entry.missing == 0) {
          entry.kind = Sent::Kind::kNone;
          in_flight_--;
          slot->packets_in_flight--;
        }
      }
      advance_oldest();
      detect_losses(now_ns);
    }
  }
  if (transfer.window.base() == transfer.packets) {
    slot->response->length_bytes = slot->response_bytes;
    verdict.finished = slot;
    return verdict;
  }
  // The window has moved: more may be asked for.
  if (transfer.next < transfer.packets) send_mask_ |= bit(index_of(*slot));
  return verdict;
}

/// Everything of the request has arrived; the answer may take its time.
void ClientSession::on_delivered(ClientSlot* slot, uint64_t now_ns) {
  if (slot->transfer != nullptr) drop_transfer(slot);
  slot->phase = Phase::kWaiting;
  slot->waiting_since_ns = now_ns;
  slot->ask_at_ns = now_ns + rto_ns();
  send_mask_ &= ~bit(index_of(*slot));
}

ClientVerdict ClientSession::on_credit_return(const wire::Header& header, const transport::Payload& payload,
                                              uint64_t now_ns) {
  ClientVerdict verdict;
  if (state_ != State::kOpen || payload.bytes > 8 * kCreditReturnWordsMax || payload.bytes % 8 != 0 ||
      payload.lease != nullptr) {
    verdict.drop = Drop::kMalformed;
    return verdict;
  }
  if (!is_proven_by_echo(header)) {
    verdict.drop = Drop::kUnproven;
    return verdict;
  }
  note_server_packet(header, now_ns);
  const uint64_t newest = expand_number(header.echo(), next_number_);
  uint64_t touched = 0;
  for (uint32_t i = 0; i < payload.bytes / 8; i++) {
    uint64_t word = load_u64(payload.data + 8 * i);
    for (; word != 0; word &= ~(uint64_t{1} << (63 - std::countl_zero(word)))) {
      const uint64_t back = 64 * i + static_cast<uint64_t>(std::countl_zero(word));
      if (back > newest || newest - back < oldest_) break;
      const uint64_t number = newest - back;
      if (number >= next_number_) continue;
      largest_answered_ = std::max(largest_answered_, number);
      if (!sent(number).is_request()) continue;
      touched |= bit(sent(number).slot);
      acknowledge(number, now_ns, back == 0 ? &header : nullptr);
    }
  }
  for (; touched != 0; touched &= touched - 1) {
    ClientSlot* slot = slots_[std::countr_zero(touched)];
    if (slot->phase != Phase::kSending) continue;
    const bool is_whole = slot->transfer == nullptr || slot->transfer->window.base() == slot->transfer->packets;
    if (is_whole) {
      on_delivered(slot, now_ns);
    } else if (slot->transfer->next < slot->transfer->packets) {
      send_mask_ |= bit(index_of(*slot));
    }
  }
  advance_oldest();
  if (oldest_ < largest_answered_) detect_losses(now_ns);
  return verdict;
}

ClientVerdict ClientSession::on_cancelled(const wire::Header& header, uint64_t now_ns) {
  ClientVerdict verdict;
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ClientSlot* slot = state_ == State::kOpen && index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number() || slot->phase != Phase::kEnded) {
    verdict.drop = Drop::kStale;
    return verdict;
  }
  note_server_packet(header, now_ns);
  on_echo(header, index_of(*slot), now_ns);
  release_slot(slot);
  return verdict;
}

void ClientSession::note_server_packet(const wire::Header& header, uint64_t now_ns) {
  last_answer_ns_ = now_ns;
  const uint32_t ahead = (header.number() - static_cast<uint32_t>(server_number_)) & wire::kNumberMask;
  // Late, a duplicate, or further ahead than can be true (clause 3.4.2).
  if (ahead == 0 || ahead > NumberWindow::kAheadMax) return;
  if (ahead != 1) on_gap(now_ns);
  server_number_ += ahead;
  // The newest word counts, up or down, at once (clause 4.5). 0 is no limit that a server may set.
  if (header.credit_limit() != 0 && header.credit_limit() != server_credits_) set_server_credits(header.credit_limit());
}

/// One sample a burst says as much as one a packet.
void ClientSession::take_rtt_sample(uint8_t hold_code, bool is_marked, uint64_t sent_ns, uint64_t now_ns) {
  if ((cc::kBypasses.batched_timestamps && now_ns == last_sample_ns_) || hold_code == wire::kHoldTooLong) return;
  const uint64_t hold_ns = hold_code == 0 ? 0 : wire::decode_hold(hold_code);
  const uint64_t elapsed_ns = now_ns - sent_ns;
  last_sample_ns_ = now_ns;
  const uint64_t rtt_ns = elapsed_ns > hold_ns ? elapsed_ns - hold_ns : 1;
  rtt_.add(rtt_ns);
  if (rtt_ns >= calm_below_ns_ || is_marked) [[unlikely]]
    tell_sample(now_ns, rtt_ns, is_marked);
}

/// A function of its own, so that take_rtt_sample() calls nothing that it would have to return from.
void ClientSession::tell_sample(uint64_t now_ns, uint64_t rtt_ns, bool is_marked) {
  const cc::Sample sample{now_ns, rtt_ns, rtt_.min_ns(), is_marked, server_credits_};
  tell_controller([&](auto& controller) { controller.on_rtt(sample); });
}

void ClientSession::acknowledge(uint64_t number, uint64_t now_ns, const wire::Header* sample_header) {
  Sent& entry = sent(number);
  if (!entry.is_request()) return;
  if (sample_header != nullptr)
    take_rtt_sample(sample_header->hold_code(), (sample_header->flags() & wire::kEcnEcho) != 0, entry.time_ns, now_ns);
  ClientSlot* slot = slots_[entry.slot];
  entry.kind = Sent::Kind::kNone;
  in_flight_--;
  slot->packets_in_flight--;
  if (slot->transfer != nullptr && slot->phase == Phase::kSending) {
    slot->transfer->window.insert(entry.index);
    slot->transfer->lost.erase(entry.index);
  }
}

/// The packet of the same slot that the server answers with this one.
void ClientSession::on_echo(const wire::Header& header, uint32_t slot_index, uint64_t now_ns) {
  if ((header.flags() & wire::kNoEcho) != 0) return;
  const uint64_t number = expand_number(header.echo(), next_number_);
  // Older ones are resolved, newer ones were never sent.
  if (number < oldest_ || number >= next_number_) return;
  largest_answered_ = std::max(largest_answered_, number);
  if (sent(number).slot == slot_index) acknowledge(number, now_ns, &header);
  // Whatever it is, it comes after all of the request has: packets not acknowledged yet are not lost.
  const ClientSlot* slot = slots_[slot_index];
  if (slot->phase == Phase::kSending && slot->packets_in_flight != 0) forget_packets(slot_index);
  advance_oldest();
  if (oldest_ < largest_answered_) detect_losses(now_ns);
}

ClientVerdict ClientSession::on_response(const wire::Header& header, const transport::Payload& payload,
                                         uint64_t now_ns) {
  ClientVerdict verdict;
  if ((verdict.finished = try_finish(header, payload, now_ns)) != nullptr) return verdict;
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ClientSlot* slot = index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number() || slot->phase == Phase::kFree ||
      slot->phase == Phase::kBlocked) {
    // Late: a sign of life, if it is the server's.
    const bool is_proven = state_ == State::kOpen && is_proven_by_echo(header);
    if (is_proven) note_server_packet(header, now_ns);
    verdict.drop = is_proven ? Drop::kStale : Drop::kUnproven;
    return verdict;
  }
  if (!slot->was_sent) {
    verdict.drop = Drop::kUnproven;
    return verdict;
  }
  return on_response_slow(slot, header, payload, now_ns);
}

// ---- Loss (clause 4.3) ----

/// A packet is lost when one sent after it has been answered and the reordering time is over (RACK, RFC 8985).
void ClientSession::detect_losses(uint64_t now_ns) {
  if (now_ns < rack_at_ns_) return;
  const uint64_t patience_ns = rtt_.latest_ns() + rtt_.reorder_ns();
  uint64_t next_ns = UINT64_MAX;
  for (uint64_t n = oldest_; n <= largest_answered_ && n < next_number_; n++) {
    const Sent& entry = sent(n);
    if (entry.kind == Sent::Kind::kNone) continue;
    // The packet that was answered itself is an RFR of which some are missing: overtaken only by its own last one.
    if (n == largest_answered_ && entry.kind != Sent::Kind::kRfrOvertaken) continue;
    // An RFR's clock starts anew with each packet that arrives for it.
    const bool has_begun = entry.is_rfr() && entry.missing != entry.count;
    const uint64_t lost_at_ns = entry.time_ns + (has_begun ? rtt_.reorder_ns() : patience_ns);
    if (lost_at_ns <= now_ns) {
      lose(n, now_ns);
    } else {
      next_ns = std::min(next_ns, lost_at_ns);
    }
  }
  advance_oldest();
  rack_at_ns_ = next_ns == UINT64_MAX ? 0 : next_ns;
}

void ClientSession::lose(uint64_t number, uint64_t now_ns) {
  Sent& entry = sent(number);
  if (entry.kind == Sent::Kind::kNone) return;
  ClientSlot* slot = slots_[entry.slot];
  in_flight_--;
  slot->packets_in_flight--;
  if (entry.is_request()) {
    if (slot->transfer != nullptr && !slot->transfer->window.contains(entry.index)) {
      slot->transfer->lost.insert(entry.index);
    }
    if (slot->phase == Phase::kSending) send_mask_ |= bit(entry.slot);
  } else {
    give_back_room(entry.missing);
    for (uint32_t i = entry.index; i < entry.index + entry.count; i++) {
      if (slot->transfer->window.is_within(i) && !slot->transfer->window.contains(i)) slot->transfer->lost.insert(i);
    }
    if (!slot->transfer->lost.empty()) send_mask_ |= bit(entry.slot);
  }
  entry.kind = Sent::Kind::kNone;
  const cc::Sample sample{now_ns, rtt_.latest_ns(), rtt_.min_ns(), false, server_credits_};
  tell_controller([&](auto& controller) { controller.on_loss(sample); });
}

// ---- Time ----

ClientTick ClientSession::tick(uint64_t now_ns) {
  ClientTick result;
  if (state_ != State::kOpen) return result;
  const uint64_t rto_ns = this->rto_ns();
  const auto at_latest = [&result](uint64_t ns) { result.next_ns = std::min(result.next_ns, ns); };

  if (busy_mask() == 0) {
    // Tell the server once that its responses have arrived (clause 5.5), then rest.
    was_busy_ = false;
    forget_old_credits(now_ns);
    if (report_at_ns_ == UINT64_MAX && !is_report_due()) {
      if (reported_number_ == next_number_) {
        result.is_idle = true;
        return result;
      }
      report_at_ns_ = now_ns + terms_.report_delay_ns;
    }
    if (now_ns >= report_at_ns_) {
      // There were calls since, so short that no tick has seen them.
      const uint64_t quiet_ns = now_ns - std::min(now_ns, last_answer_ns_);
      if (quiet_ns < terms_.report_delay_ns) report_at_ns_ = now_ns + terms_.report_delay_ns - quiet_ns;
    }
    if (now_ns >= report_at_ns_) {
      detours_ |= kReportDue;
      report_at_ns_ = UINT64_MAX;
      fall_back_to_start_credits();
    }
    at_latest(report_at_ns_);
    return result;
  }

  if (!was_busy_) {
    // The first tick of a busy time.
    was_busy_ = true;
    silence_ns_ = 0;
    last_tick_ns_ = now_ns;
    has_asked_ = false;
    report_at_ns_ = UINT64_MAX;
    detours_ &= static_cast<uint8_t>(~kReportDue);
  }
  // Silence of the data path (clause 6.4). A stretch in which we did not look ourselves counts little.
  // Only what the server owes us counts: a call that waits for its pace or for room to receive is no silence.
  if (last_answer_ns_ != answer_seen_ns_ || !is_outstanding()) {
    answer_seen_ns_ = last_answer_ns_;
    silence_ns_ = 0;
    has_asked_ = false;
    backoff_ = 0;
  } else {
    silence_ns_ += std::min(now_ns - last_tick_ns_, terms_.liveness_ns / 8);
  }
  last_tick_ns_ = now_ns;
  if (silence_ns_ >= terms_.liveness_ns) {
    result.has_failed = true;
    return result;
  }
  if (silence_ns_ >= terms_.liveness_ns / 2 && !has_asked_) {
    has_asked_ = true;
    result.ask_liveness = true;
  }
  at_latest(now_ns + terms_.liveness_ns / 8);

  if (oldest_ <= largest_answered_ && in_flight_ != 0) {
    detect_losses(now_ns);
    if (rack_at_ns_ != 0) at_latest(rack_at_ns_);
  }
  // Nothing that was sent later has been answered either: ask, header only, no credit (tail probe; clause 4.4). The
  // answer, or its absence on the packets before, tells what is lost.
  advance_oldest();
  if (in_flight_ == 0) {
    forget_old_credits(now_ns);
  } else {
    const uint64_t since_ns = std::max({sent(oldest_).time_ns, rto_base_ns_, last_answer_ns_});
    const uint64_t due_ns = since_ns + (rto_ns << backoff_);
    if (now_ns >= due_ns) {
      result.has_timed_out = true;
      rto_base_ns_ = now_ns;
      if (backoff_ != 0) tell_controller([&](auto& controller) { controller.on_silence(now_ns); });
      if (backoff_ < kBackoffMax && (rto_ns << (backoff_ + 1)) < terms_.liveness_ns / 4) backoff_++;
      control_mask_ |= bit(sent(oldest_).slot);
      at_latest(now_ns + (rto_ns << backoff_));
    } else {
      at_latest(due_ns);
    }
  }
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    ClientSlot* slot = slots_[index];
    if (slot->deadline_ns <= now_ns) {
      result.expired_mask |= bit(index);
      continue;
    }
    at_latest(slot->deadline_ns);
    if (slot->phase != Phase::kWaiting && slot->phase != Phase::kEnded) continue;
    if (slot->ask_at_ns <= now_ns) {
      control_mask_ |= bit(index);
      const uint64_t waited_ns = now_ns - slot->waiting_since_ns;
      slot->ask_at_ns = now_ns + std::clamp(waited_ns / 4, rto_ns, terms_.liveness_ns / 4);
    }
    at_latest(slot->ask_at_ns);
  }
  return result;
}

void ClientSession::check_invariants() const {
  uint32_t in_flight = 0;
  uint32_t awaited = 0;
  uint32_t per_slot[wire::kSlotsMax] = {};
  CHECK(oldest_, <=, next_number_);
  CHECK(next_number_ - oldest_, <=, ring_size_);
  for (uint64_t n = oldest_; n < next_number_; n++) {
    const Sent& entry = sent(n);
    if (entry.kind == Sent::Kind::kNone) continue;
    in_flight++;
    CHECK(entry.slot, <, window_);
    per_slot[entry.slot]++;
    if (entry.is_rfr()) {
      CHECK(entry.missing, <=, entry.count);
      awaited += entry.missing;
    }
    if (entry.kind == Sent::Kind::kShort) {
      CHECK(entry.index, ==, slots_[entry.slot]->request_number);
      CHECK(slots_[entry.slot]->phase == Phase::kSending, ==, true);
      CHECK(slots_[entry.slot]->transfer == nullptr, ==, true);
    }
  }
  CHECK(in_flight, ==, in_flight_);
  CHECK(awaited, ==, awaited_packets_);
  CHECK(credit_limit_, <=, server_credits_);
  if (state_ == State::kOpen) CHECK(credit_limit_, >=, 1u);  // or it would never hear that it may have more
  CHECK(is_paced_, ==, (detours_ & kPaced) != 0);
  CHECK((send_mask_ | fresh_mask_) & free_mask_, ==, 0u);
  CHECK(send_mask_ & fresh_mask_, ==, 0u);
  CHECK(control_mask_ & free_mask_, ==, 0u);
  CHECK(free_mask_ & ~window_mask_, ==, 0u);
  for (uint32_t i = 0; i < window_ && slots_ != nullptr; i++) {
    const ClientSlot* slot = slots_[i];
    const bool is_free = (free_mask_ & bit(i)) != 0;
    if (slot == nullptr) {
      CHECK(is_free, ==, true);
      continue;
    }
    CHECK(slot->packets_in_flight, ==, per_slot[i]);
    CHECK(slot->phase == Phase::kFree, ==, is_free);
    CHECK(index_of(*slot), ==, i);
    if (slot->transfer != nullptr) {
      CHECK(slot->transfer->window.base(), <=, slot->transfer->packets);
      CHECK(slot->transfer->next, <=, slot->transfer->packets);
    }
  }
}

}  // namespace tern::session
