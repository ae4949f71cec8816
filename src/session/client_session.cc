#include "session/client_session.h"

#include <algorithm>
#include <new>
#include <utility>

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
/// So many liveness timeouts of silence end a session whose server's management does not say that its endpoint could
/// answer. It may be starved as well; if it is dead, the relation ends sooner.
constexpr uint64_t kTimeoutsUnasked = 4;
/// The first packet of a response may contradict an earlier one so often, which was damaged then, or this one is.
constexpr uint32_t kRestartsMax = 4;
/// Rounds of losses of one slot, while no slot makes progress, after which one packet at a time is enough to find out
/// when packets pass again.
constexpr uint8_t kStalledRounds = 4;
/// Path probes without an answer, while others are answered, after which packets of full length count as not passing:
/// if a third of both directions' packets is lost, this happens by chance once in 10^4 checks.
constexpr uint8_t kNarrowRounds = 16;
/// Without an acknowledgement, from an eighth of the report delay on, twice as long each time: for 3 s by default, and
/// for the liveness timeout at least, because a silence that is shorter ends no session. The server forgets by itself
/// what is then still not reported.
constexpr uint8_t kReportsMax = 8;
constexpr uint64_t kReportDelayParts = 8;
/// A call that waits for its answer is asked for so often at least, however long the liveness timeout is: a server
/// keeps no response for which nobody asks (clause 5.5.2).
constexpr uint64_t kAskNsMax = 5'000'000'000;

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
  is_paired_ = false;
  has_pair_token_ = is_pair_asked_ = false;
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
  last_progress_ns_ = now_ns;
  state_ = State::kProbing;
}

uint32_t ClientSession::number_of_path_probe() {
  if (next_number_ - oldest_ == ring_size_) grow_ring();
  sent(next_number_) = {};
  const auto number = static_cast<uint32_t>(next_number_);
  next_number_++;
  advance_oldest();
  return number;
}

ClientSession::PathProbe ClientSession::path_probe(uint64_t now_ns) {
  if (first_probe_ns_ == 0) first_probe_ns_ = now_ns;
  if (is_paired_) {
    if (!is_path_answered_) short_probes_left_--;
    if (has_pair_token_ && full_pair_probes_++ == kFullPairProbesMax) has_pair_token_ = false;
    return pair_probe();
  }
  const uint32_t number = number_of_path_probe();
  if (!is_path_answered_) {
    short_probes_left_--;
    return {wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, number, 0, 0, 0, path_token_), 0};
  }
  return {wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, number, first_request_count_ << wire::kSlotBits,
                              0, 0, session_token_),
          payload_max_};
}

/// Header only, or, where such a one has been answered, of full length and with what only its receiver can know.
ClientSession::PathProbe ClientSession::pair_probe() {
  const uint32_t number = number_of_path_probe();
  if (!has_pair_token_) {
    is_pair_asked_ = true;
    full_pair_probes_ = 0;
    return {wire::client_header(wire::Kind::kPathProbe, wire::kPaired, remote_key_, number, 0, 0, 0, path_token_), 0};
  }
  return {wire::client_header(wire::Kind::kPathProbe, wire::kPaired, remote_key_, number,
                              first_request_count_ << wire::kSlotBits, 0, 0, pair_token_),
          payload_max_};
}

/// Its echo is the number of a path probe: nothing else was sent before the session is open.
ClientSession::PathVerdict ClientSession::on_path_reply(const wire::Header& header, uint32_t payload_bytes,
                                                        uint64_t now_ns) {
  const bool is_paired = (header.flags() & wire::kPaired) != 0;
  if (state_ == State::kOpen) {
    return is_paired ? on_pair_reply(header, payload_bytes, now_ns) : on_open_path_reply(header, payload_bytes, now_ns);
  }
  const bool is_of_probe = expand_number(header.echo(), next_number_) < next_number_;
  if (state_ != State::kProbing || !is_of_probe || !is_proven_by_echo(header)) return PathVerdict::kDropped;
  if (is_paired && !is_paired_) return PathVerdict::kDropped;
  if (payload_bytes == 0 && is_path_answered_ && is_paired) {
    return take_pair_token(header) ? PathVerdict::kFound : PathVerdict::kDropped;
  }
  if (payload_bytes == 0 && !is_path_answered_) {
    if (is_paired && !take_pair_token(header)) return PathVerdict::kDropped;
    note_server_packet(header, now_ns);
    first_request_count_ = header.request_number() >> wire::kSlotBits;
    if (!is_paired) session_token_ = header.size_or_index();
    is_paired_ = is_paired;  // the answer to an earlier probe may be late, and will do
    is_path_answered_ = true;
    first_probe_ns_ = 0;
    return PathVerdict::kAnswered;
  }
  if (payload_bytes != payload_max_ || !is_path_answered_ || is_paired != is_paired_) return PathVerdict::kDropped;
  note_server_packet(header, now_ns);
  if (is_paired) session_token_ = header.size_or_index();
  has_pair_token_ = false;
  if (terms_.credits_last_ns != UINT64_MAX) fall_back_to_start_credits();
  // A session mostly begins without load: this is the best round trip that some ever see.
  if (first_probe_ns_ != 0) rtt_.at_most(now_ns - first_probe_ns_, now_ns);
  slots_ = terms_.window <= kFirstSlots ? first_slots_ : new (std::nothrow) ClientSlot*[terms_.window]();
  if (slots_ == nullptr) return PathVerdict::kDropped;
  window_ = terms_.window;
  window_mask_ = terms_.window == 64 ? UINT64_MAX : (uint64_t{1} << terms_.window) - 1;
  free_mask_ = window_mask_;
  state_ = State::kOpen;
  reported_number_ = next_number_;
  return PathVerdict::kOpened;
}

/// The session is open, and our address may have changed. Only the echo proves the reply, as with a CR: a wrong token
/// is worth no more than a lost one.
ClientSession::PathVerdict ClientSession::on_pair_reply(const wire::Header& header, uint32_t payload_bytes,
                                                        uint64_t now_ns) {
  const bool is_short = payload_bytes == 0;
  if (!is_paired_ || !is_proven_by_echo(header) || (!is_short && payload_bytes != payload_max_)) {
    return PathVerdict::kDropped;
  }
  if (is_short && !take_pair_token(header)) return PathVerdict::kDropped;
  note_server_packet(header, now_ns);
  if (is_short) return PathVerdict::kFound;
  has_pair_token_ = false;
  // The one that we have may have been damaged: then nothing that needs it was answered.
  session_token_ = header.size_or_index();
  return PathVerdict::kFollowed;
}

/// Each short probe brings one full probe at most, however many replies a hostile server makes of it.
bool ClientSession::take_pair_token(const wire::Header& header) {
  if (!std::exchange(is_pair_asked_, false)) return false;
  pair_token_ = header.size_or_index();
  has_pair_token_ = true;
  return true;
}

/// Nothing has come for a while though there is something to answer (clause 7.7.5): after a sixteenth, a quarter and
/// half of the liveness timeout, for a server answers an address that it does not know three times; then once in each.
bool ClientSession::is_to_probe_pair(uint64_t now_ns) {
  const uint64_t unit_ns = terms_.liveness_ns / 16;
  if (pair_probe_at_ns_ == 0 || pair_answer_ns_ != last_answer_ns() || !is_outstanding()) {
    pair_answer_ns_ = last_answer_ns();
    pair_probe_at_ns_ = now_ns + unit_ns;
    pair_probe_gap_ns_ = 3 * unit_ns;
    return false;
  }
  if (now_ns < pair_probe_at_ns_) return false;
  pair_probe_at_ns_ = now_ns + pair_probe_gap_ns_;
  pair_probe_gap_ns_ = pair_probe_gap_ns_ == 3 * unit_ns ? 4 * unit_ns : terms_.liveness_ns;
  has_pair_token_ = false;
  return true;
}

ClientSession::PathVerdict ClientSession::on_open_path_reply(const wire::Header& header, uint32_t payload_bytes,
                                                             uint64_t now_ns) {
  const uint64_t echo = expand_number(header.echo(), next_number_);
  const bool is_of_probe = is_checking_path_ && echo >= first_check_number_ && echo < next_number_;
  if (!is_of_probe || payload_bytes != payload_max_ || header.size_or_index() != session_token_ ||
      !is_proven_by_echo(header)) {
    return PathVerdict::kDropped;
  }
  note_server_packet(header, now_ns);
  path_good_ns_ = watched_ns_;
  end_path_check();
  // Whatever was in the way is over: what is missing is sent, or asked for, as if it were lost for the first time.
  backoff_ = 0;
  set_stalled(false);
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    ClientSlot* slot = slots_[std::countr_zero(mask)];
    if (slot->has_fruitless_rounds()) slot->rounds = 2;
  }
  return PathVerdict::kConfirmed;
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
  slot->rested_number = ~slot->request_number;
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
  if (!slot->was_sent()) {
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
  if ((detours_ & (kFullProbeDue | kShortProbeDue)) != 0) {
    prepare_path_probe(packet);
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
  packet.is_retransmission = slot->was_sent();
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

/// Of the open session: one of full length is answered by one of full length, a header by a credit return.
void ClientSession::prepare_path_probe(ClientPacket& packet) {
  packet.slot = nullptr;
  packet.buffer = nullptr;
  packet.payload = nullptr;
  packet.payload_bytes = (detours_ & kFullProbeDue) != 0 ? payload_max_ : 0;
  packet.is_retransmission = false;
  packet.is_control = true;
  packet.header = wire::client_header(wire::Kind::kPathProbe, 0, remote_key_, static_cast<uint32_t>(next_number_),
                                      first_request_count_ << wire::kSlotBits, 0, 0, session_token_);
}

void ClientSession::prepare_report(ClientPacket& packet) {
  uint32_t count = 0;
  const bool is_at_rest = busy_mask() == 0;
  for (uint32_t i = 0; i < window_; i++) {
    ClientSlot* slot = slots_[i];
    if (slot == nullptr || slot->phase != Phase::kFree || slot->rested_number == ~slot->request_number) continue;
    if (!is_at_rest && slot->rested_number != slot->request_number) continue;
    slot->rested_number = slot->request_number;
    store_u32(packet.scratch + 4 * count++, slot->request_number);
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
    slot->rounds = std::max<uint8_t>(slot->rounds, 1);
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
      slot->rounds = std::max<uint8_t>(slot->rounds, 1);
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
      // What is in flight will have to be reported, too.
      reported_number_ = busy_mask() == 0 ? next_number_ : 0;
      report_number_ = next_number_ - 1;
      report_at_ns_ =
          now_ns +
          (std::max({rto_ns(), terms_.report_delay_ns / kReportDelayParts, terms_.liveness_ns >> (kReportsMax - 1)})
           << std::min(report_tries_, kReportsMax));
      report_tries_++;
      advance_oldest();
      if (oldest_ == next_number_) drop_ring();
      break;
    case wire::Kind::kPathProbe:
      detours_ &= static_cast<uint8_t>(~(packet.payload_bytes != 0 ? kFullProbeDue : kShortProbeDue));
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
  pacer_.on_sent(now_ns, bytes, packet.count, pace_);
}

/// What the controller now says becomes what the common case looks at.
void ClientSession::apply_allowance() {
  const cc::Allowance allowance = std::visit([](const auto& c) { return c.allowance(); }, terms_.controller);
  const bool is_calm = allowance.window_packets >= server_credits_ && allowance.bytes_per_sec == cc::kUnlimited;
  const bool is_controlled =
      !std::holds_alternative<cc::None>(terms_.controller) && !std::holds_alternative<cc::FixedRate>(terms_.controller);
  credit_limit_ = is_stalled_ ? 1 : std::min<uint32_t>(server_credits_, allowance.window_packets);
  pace_ = allowance;
  if (!terms_.may_pace_below_packet && is_controlled && rtt_.has_sample()) {
    const uint64_t packet_bytes = payload_max_ + wire::kHeaderBytes;
    pace_.bytes_per_sec = std::max(pace_.bytes_per_sec, packet_bytes * 1'000'000'000 / rtt_.latest_ns());
  }
  if (!cc::kBypasses.pacing && is_controlled) {
    pace_.bytes_per_sec = std::min(pace_.bytes_per_sec, terms_.link_bytes_per_sec);
  }
  calm_below_ns_ = is_calm ? std::visit([](const auto& c) { return c.calm_below_ns(); }, terms_.controller) : 0;
  if (!cc::kBypasses.update && is_controlled) calm_below_ns_ = 0;
  is_paced_ = pace_.bytes_per_sec != cc::kUnlimited;
  detours_ = static_cast<uint8_t>(is_paced_ ? detours_ | kPaced : detours_ & ~kPaced);
}

void ClientSession::set_stalled(bool is_stalled) {
  is_stalled_ = is_stalled;
  apply_allowance();
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
    note_progress(slot, now_ns);
    on_echo(header, index_of(*slot), now_ns);
    release_slot(slot);
    return verdict;
  }
  if ((header.flags() & wire::kFailure) != 0) {
    const uint32_t word = header.size_or_index();
    note_server_packet(header, now_ns);
    note_progress(slot, now_ns);
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
    note_progress(slot, now_ns);
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
    note_progress(slot, now_ns);
    slot->response->length_bytes = bytes;
    verdict.finished = slot;
    return verdict;
  }
  uint32_t restarts = 0;
  if (slot->phase == Phase::kReceiving) {
    // Another size than before is no progress: a damaged or hostile answer would keep the call for ever.
    restarts = slot->transfer->restarts + 1;
    if (restarts > kRestartsMax) {
      verdict.finished = slot;
      verdict.status = {Code::kNoResponse, "the server's answers contradict each other in the size of the response"};
      return verdict;
    }
  } else {
    note_progress(slot, now_ns);
    slot->ask_at_ns = UINT64_MAX;
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
  slot->transfer->restarts = restarts;
  slot->transfer->window.insert(0);
  slot->response_bytes = bytes;
  slot->phase = Phase::kReceiving;
  pools_.response_share.begin();
  pools_.response_share.hear(heard_epoch_);
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
    note_progress(slot, now_ns);
  } else {
    verdict.drop = Drop::kStale;
  }
  const uint64_t echo = (header.flags() & wire::kNoEcho) != 0 ? 0 : expand_number(header.echo(), next_number_);
  if (echo >= oldest_ && echo < next_number_) {
    largest_answered_ = std::max(largest_answered_, echo);
    largest_part_ = std::max(largest_part_, echo);
  }
  if (const uint64_t number = is_new ? number_of_rfr(index_of(*slot), echo, index) : next_number_;
      number != next_number_) {
    Sent& entry = sent(number);
    if (number == echo) {
      if (entry.missing == entry.count && entry.kind == Sent::Kind::kRfr)
        take_rtt_sample(header.hold_code(), (header.flags() & wire::kEcnEcho) != 0, entry.time_ns, now_ns);
      entry.time_ns = now_ns;
      if (index == entry.index + entry.count - 1u) entry.kind = Sent::Kind::kRfrOvertaken;
    }
    give_back_room(1);
    if (--entry.missing == 0) {
      entry.kind = Sent::Kind::kNone;
      in_flight_--;
      slot->packets_in_flight--;
    }
  }
  advance_oldest();
  suspect_losses(now_ns);
  if (transfer.window.base() == transfer.packets) {
    slot->response->length_bytes = slot->response_bytes;
    verdict.finished = slot;
    return verdict;
  }
  // The window has moved: more may be asked for.
  if (transfer.next < transfer.packets) send_mask_ |= bit(index_of(*slot));
  return verdict;
}

/// The RFR in flight that asks for this packet: mostly the one that it echoes, else one that was sent when that one
/// counted as lost. next_number_: none.
uint64_t ClientSession::number_of_rfr(uint32_t slot_index, uint64_t echo, uint32_t index) const {
  const auto asks = [&](uint64_t number) {
    const Sent& entry = sent(number);
    return entry.is_rfr() && entry.slot == slot_index && index - entry.index < entry.count;
  };
  if (echo >= oldest_ && echo < next_number_ && asks(echo)) return echo;
  uint64_t number = oldest_;
  while (number < next_number_ && !asks(number)) number++;
  return number;
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
  // What has arrived has arrived, however late the word of it comes; all else that a late one says is of the past.
  const bool is_news = note_server_packet(header, now_ns);
  const uint64_t newest = expand_number(header.echo(), next_number_);
  if (report_number_ != 0 && report_number_ <= newest && newest - report_number_ < uint64_t{8} * payload.bytes) {
    const uint64_t back = newest - report_number_;
    if ((load_u64(payload.data + back / 64 * 8) >> (63 - back % 64) & 1) != 0) on_report_acknowledged(now_ns);
  }
  uint64_t touched = 0;
  for (uint32_t i = 0; i < payload.bytes / 8; i++) {
    uint64_t word = load_u64(payload.data + 8 * i);
    for (; word != 0; word &= ~(uint64_t{1} << (63 - std::countl_zero(word)))) {
      const uint64_t back = 64 * i + static_cast<uint64_t>(std::countl_zero(word));
      if (back > newest || newest - back < oldest_) break;
      const uint64_t number = newest - back;
      if (number >= next_number_) continue;
      largest_answered_ = std::max(largest_answered_, number);
      if (!sent(number).is_request()) {
        // Its packets leave after all else that the server has to say: they have their time from now on.
        if (sent(number).kind == Sent::Kind::kRfr) {
          sent(number).kind = Sent::Kind::kRfrArrived;
          sent(number).time_ns = now_ns;
        }
        continue;
      }
      touched |= bit(sent(number).slot);
      acknowledge(number, now_ns, back == 0 && is_news ? &header : nullptr);
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
  suspect_losses(now_ns);
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
  note_progress(slot, now_ns);
  on_echo(header, index_of(*slot), now_ns);
  release_slot(slot);
  return verdict;
}

bool ClientSession::note_server_packet(const wire::Header& header, uint64_t now_ns) {
  const uint32_t ahead = (header.number() - static_cast<uint32_t>(server_number_)) & wire::kNumberMask;
  // Late, a duplicate, or further ahead than can be true (clause 3.4.2).
  if (ahead == 0 || ahead > NumberWindow::kAheadMax) return false;
  last_heard_ns_ = now_ns;
  if (ahead != 1) on_gap(now_ns);
  server_number_ += ahead;
  // The newest word counts, up or down, at once (clause 4.5). 0 is no limit that a server may set.
  if (header.credit_limit() != 0 && header.credit_limit() != server_credits_) set_server_credits(header.credit_limit());
  return true;
}

/// One sample a burst says as much as one a packet.
void ClientSession::take_rtt_sample(uint8_t hold_code, bool is_marked, uint64_t sent_ns, uint64_t now_ns) {
  if ((cc::kBypasses.batched_timestamps && now_ns == last_sample_ns_) || hold_code == wire::kHoldTooLong) return;
  const uint64_t hold_ns = hold_code == 0 ? 0 : wire::decode_hold(hold_code);
  const uint64_t elapsed_ns = now_ns - sent_ns;
  if (elapsed_ns <= hold_ns) [[unlikely]]
    return;  // no path takes nothing: one of the two ends read its clock too early or too late
  last_sample_ns_ = now_ns;
  const uint64_t rtt_ns = elapsed_ns - hold_ns;
  rtt_.add(rtt_ns, elapsed_ns, now_ns);
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
  note_progress(slot, now_ns);
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
  suspect_losses(now_ns);
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
  if (!slot->was_sent()) {
    verdict.drop = Drop::kUnproven;
    return verdict;
  }
  return on_response_slow(slot, header, payload, now_ns);
}

// ---- Loss (clause 4.3) ----

/// A packet is lost when one sent after it has been answered and the reordering time is over (RACK, RFC 8985). Both are
/// measured by the time that the newest answer took, the server's included, because what left together is answered
/// together; and not before the reordering time has passed since that answer came, because a burst may come in pieces.
void ClientSession::detect_losses(uint64_t now_ns) {
  if (now_ns < rack_at_ns_) return;
  uint64_t next_ns = UINT64_MAX;
  for (uint64_t n = oldest_; n <= judged_number_ && n < next_number_; n++) {
    const Sent& entry = sent(n);
    if (entry.kind == Sent::Kind::kNone) continue;
    // The packet that was answered itself is an RFR of which some are missing: overtaken only by its own last one.
    if (n == largest_answered_ && entry.kind != Sent::Kind::kRfrOvertaken) continue;
    if (const uint64_t at_ns = lost_at_ns(n); at_ns > now_ns) {
      next_ns = std::min(next_ns, at_ns);
      continue;
    }
    ClientSlot* slot = slots_[entry.slot];
    if (!slot->has_fruitless_rounds() || entry.time_ns >= slot->ask_at_ns) begin_round(slot, now_ns);
    lose(n, now_ns);
  }
  advance_oldest();
  rack_at_ns_ = next_ns == UINT64_MAX ? 0 : next_ns;
  if (largest_answered_ > judged_number_) suspect_losses(now_ns);
}

/// Of a packet that was overtaken.
uint64_t ClientSession::lost_at_ns(uint64_t number) const {
  const Sent& entry = sent(number);
  const ClientSlot& slot = *slots_[entry.slot];
  uint64_t wait_ns = rtt_.latest_elapsed_ns() + rtt_.reorder_ns();
  if (entry.is_rfr()) {
    // Ranges leave the server in turn, but after all else that it has to say: only another range tells at once. An
    // RFR's clock starts anew with each packet that arrives for it.
    const bool is_overtaken = entry.kind == Sent::Kind::kRfrOvertaken || number < largest_part_;
    const bool has_begun = entry.missing != entry.count;
    if (!is_overtaken) {
      wait_ns = patience_ns();
    } else if (has_begun) {
      wait_ns = rtt_.reorder_ns();
    }
  }
  const uint64_t at_ns = entry.time_ns + wait_ns;
  const bool is_repeated = slot.has_fruitless_rounds() && entry.time_ns >= slot.ask_at_ns;
  return is_repeated ? std::max(at_ns, slot.ask_at_ns + round_gap_ns(slot)) : at_ns;
}

uint64_t ClientSession::round_gap_ns(const ClientSlot& slot) const {
  const uint32_t doublings = std::min<uint32_t>(slot.rounds - 2, 30);
  return std::min(rto_ns() << doublings, terms_.liveness_ns / 4);
}

/// Packets of the slot are lost: for the first time, or again though they were sent after the last round.
void ClientSession::begin_round(ClientSlot* slot, uint64_t now_ns) {
  if (!slot->has_fruitless_rounds()) {
    slot->waiting_since_ns = watched_ns_;
  } else if (slot->rounds >= kStalledRounds && last_progress_ns_ <= slot->ask_at_ns) {
    set_stalled(true);
  }
  if (slot->rounds != UINT8_MAX) slot->rounds++;
  slot->ask_at_ns = now_ns;
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
    // It was asked for in vain: packet 0 comes again, and says how much there is to be asked for.
    if (slot->rounds > 2) control_mask_ |= bit(entry.slot);
  }
  entry.kind = Sent::Kind::kNone;
  const cc::Sample sample{now_ns, rtt_.latest_ns(), rtt_.min_ns(), false, server_credits_};
  tell_controller([&](auto& controller) { controller.on_loss(sample); });
}

// ---- Time ----

/// Slots that were free at the last look are reported, if they have not been; those that are free now come next time. A
/// session at rest reports all at once.
void ClientSession::look_at_free_slots(uint64_t now_ns) {
  const bool is_at_rest = busy_mask() == 0;
  const bool gives_up = report_tries_ == kReportsMax;
  bool is_due = false;
  for (uint32_t i = 0; i < window_; i++) {
    ClientSlot* slot = slots_[i];
    if (slot == nullptr || slot->phase != Phase::kFree || slot->rested_number == ~slot->request_number) continue;
    const bool has_rested = is_at_rest || slot->rested_number == slot->request_number;
    slot->rested_number = has_rested && gives_up ? ~slot->request_number : slot->request_number;
    is_due |= has_rested && !gives_up;
  }
  report_number_ = 0;
  if (gives_up) report_tries_ = 0;
  if (is_due) detours_ |= kReportDue;
  report_at_ns_ = is_due || is_at_rest ? UINT64_MAX : now_ns + terms_.report_delay_ns;
}

void ClientSession::on_report_acknowledged(uint64_t now_ns) {
  for (uint32_t i = 0; i < window_; i++) {
    ClientSlot* slot = slots_[i];
    const bool was_named =
        slot != nullptr && slot->phase == Phase::kFree && slot->rested_number == slot->request_number;
    if (was_named) slot->rested_number = ~slot->request_number;
  }
  report_number_ = 0;
  report_tries_ = 0;
  report_at_ns_ = busy_mask() == 0 ? UINT64_MAX : now_ns + terms_.report_delay_ns;
}

ClientTick ClientSession::tick(uint64_t now_ns, uint64_t read_until_ns) {
  ClientTick result;
  if (state_ != State::kOpen) return result;
  const uint64_t rto_ns = this->rto_ns();
  const auto at_latest = [&result](uint64_t ns) { result.next_ns = std::min(result.next_ns, ns); };

  if (busy_mask() == 0) {
    // Tell the server that its responses have arrived (clause 5.5), then rest.
    was_busy_ = false;
    if (is_checking_path_) end_path_check();
    if (is_stalled_) set_stalled(false);
    forget_old_credits(now_ns);
    if (report_at_ns_ == UINT64_MAX && !is_report_due()) {
      if (reported_number_ == next_number_) {
        result.is_idle = true;
        return result;
      }
      report_at_ns_ = now_ns + terms_.report_delay_ns;
    }
    if (now_ns >= report_at_ns_ && report_tries_ == 0) {
      // There were calls since, so short that no tick has seen them.
      const uint64_t quiet_ns = now_ns - std::min(now_ns, last_answer_ns());
      if (quiet_ns < terms_.report_delay_ns) report_at_ns_ = now_ns + terms_.report_delay_ns - quiet_ns;
    }
    if (now_ns >= report_at_ns_) {
      look_at_free_slots(now_ns);
      fall_back_to_start_credits();
    }
    at_latest(report_at_ns_);
    return result;
  }

  if (!was_busy_) {
    // The first tick of a busy time.
    was_busy_ = true;
    silence_ns_ = 0;
    silent_until_ns_ = last_tick_ns_ = now_ns;
    has_asked_ = false;
    pair_probe_at_ns_ = 0;
    report_at_ns_ = now_ns + terms_.report_delay_ns;
    report_tries_ = 0;
    detours_ &= static_cast<uint8_t>(~kReportDue);
  }
  if (now_ns >= report_at_ns_) look_at_free_slots(now_ns);
  at_latest(report_at_ns_);
  // A stretch in which we did not look ourselves counts little.
  const uint64_t passed_ns = std::min(now_ns - last_tick_ns_, terms_.liveness_ns / 8);
  last_tick_ns_ = now_ns;
  watched_ns_ += passed_ns;
  // Silence of the data path (clause 6.4). A stretch in which we did not look ourselves counts little, and only once
  // what arrived in it has been read.
  // Only what the server owes us counts: a call that waits for its pace or for room to receive is no silence.
  if (last_answer_ns() != answer_seen_ns_ || !is_outstanding()) {
    answer_seen_ns_ = last_answer_ns();
    silence_ns_ = 0;
    has_asked_ = false;
    silent_until_ns_ = now_ns;
  } else if (const uint64_t until_ns = std::min(now_ns, read_until_ns); until_ns > silent_until_ns_) {
    silence_ns_ += std::min(until_ns - silent_until_ns_, terms_.liveness_ns / 8);
    silent_until_ns_ = until_ns;
  }
  // Progress is more than a sign of life: what is in flight has its own clock (clause 4.4.1).
  if (last_progress_ns_ != progress_seen_ns_ || (in_flight_ | fresh_mask_ | send_mask_) == 0) {
    progress_seen_ns_ = last_progress_ns_;
    backoff_ = 0;
    if (is_stalled_) set_stalled(false);
  }
  if (last_sample_ns_ != sample_seen_ns_) {
    sample_seen_ns_ = last_sample_ns_;
    response_ns_ = std::max(rtt_.latest_elapsed_ns(), response_ns_ - response_ns_ / 16);
  }
  if (silence_ns_ >= (is_peer_idle_ ? 1 : kTimeoutsUnasked) * terms_.liveness_ns) {
    result.has_failed = true;
    return result;
  }
  if (silence_ns_ >= terms_.liveness_ns / 2 && !has_asked_) {
    has_asked_ = true;
    is_peer_idle_ = false;
    result.ask_liveness = true;
  }
  at_latest(now_ns + terms_.liveness_ns / 8);
  if (is_paired_) {
    result.wants_pair_probe = is_to_probe_pair(now_ns);
    at_latest(pair_probe_at_ns_);
  }

  if (rack_at_ns_ != 0) {
    detect_losses(now_ns);
    if (rack_at_ns_ != 0) at_latest(rack_at_ns_);
  }
  // Nothing that was sent later has been answered either: ask, header only, no credit (tail probe; clause 4.4). The
  // answer, or its absence on the packets before, tells what is lost.
  advance_oldest();
  if (in_flight_ == 0) {
    forget_old_credits(now_ns);
  } else {
    const uint64_t since_ns = std::max({sent(oldest_).time_ns, rto_base_ns_, last_progress_ns_});
    const uint64_t wait_ns = std::max(rto_ns << backoff_, std::min(2 * response_ns_, terms_.liveness_ns / 4));
    const uint64_t due_ns = since_ns + wait_ns;
    if (now_ns >= due_ns) {
      result.has_timed_out = true;
      rto_base_ns_ = now_ns;
      if (backoff_ != 0) tell_controller([&](auto& controller) { controller.on_silence(now_ns); });
      if ((rto_ns << (backoff_ + 1)) < terms_.liveness_ns / 4) backoff_++;
      control_mask_ |= bit(sent(oldest_).slot);
      at_latest(now_ns + std::max(rto_ns << backoff_, wait_ns));
    } else {
      at_latest(due_ns);
    }
  }
  bool wants_path_check = silence_ns_ >= terms_.liveness_ns / 2;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    ClientSlot* slot = slots_[index];
    const bool is_in_order = slot->phase == Phase::kSending && !slot->has_fruitless_rounds();
    if (is_in_order && slot->deadline_ns == UINT64_MAX) [[likely]]
      continue;
    if (slot->deadline_ns <= now_ns) {
      result.expired_mask |= bit(index);
      continue;
    }
    at_latest(slot->deadline_ns);
    if (is_without_progress(*slot, now_ns)) {
      // The path was found good when it was looked at for this slot's sake, and that is long ago.
      const bool is_fruitless =
          slot->phase == Phase::kReceiving && path_good_ns_ >= slot->waiting_since_ns + terms_.liveness_ns;
      if (is_fruitless) result.fruitless_mask |= bit(index);
      wants_path_check |= !is_fruitless;
    }
    if (slot->phase != Phase::kWaiting && slot->phase != Phase::kEnded) continue;
    if (slot->ask_at_ns <= now_ns) {
      control_mask_ |= bit(index);
      const uint64_t waited_ns = now_ns - slot->waiting_since_ns;
      slot->ask_at_ns =
          now_ns + std::clamp(waited_ns / 4, rto_ns, std::max(rto_ns, std::min(terms_.liveness_ns / 4, kAskNsMax)));
    }
    at_latest(slot->ask_at_ns);
  }
  if (wants_path_check || is_checking_path_) check_path(now_ns, wants_path_check, result);
  return result;
}

/// For so long that it matters whether packets of full length pass (clause 6.4.2).
bool ClientSession::is_without_progress(const ClientSlot& slot, uint64_t now_ns) const {
  switch (slot.phase) {
    case Phase::kWaiting: {
      // Its handler may run, or each of its responses is lost.
      const uint64_t waited_ns = now_ns - slot.waiting_since_ns;
      return waited_ns >= terms_.liveness_ns &&
             watched_ns_ - path_good_ns_ >= std::max(terms_.liveness_ns, waited_ns / 4);
    }
    case Phase::kSending:
    case Phase::kReceiving:
      return slot.has_fruitless_rounds() &&
             watched_ns_ - std::max(slot.waiting_since_ns, path_good_ns_) >= terms_.liveness_ns;
    default:
      return false;
  }
}

/// Only if it is wanted or goes on. Probes of full length, until one is answered or has shown by the answers to others
/// that it is not.
void ClientSession::check_path(uint64_t now_ns, bool is_wanted, ClientTick& result) {
  const bool is_first = !is_checking_path_;
  if (is_first) {
    is_checking_path_ = true;
    narrow_rounds_ = 0;
    first_check_number_ = next_number_;
    check_began_ns_ = check_again_ns_ = now_ns;
  } else if (!is_wanted && (last_progress_ns_ > check_began_ns_ || !is_outstanding())) {
    return end_path_check();
  }
  if (now_ns >= check_again_ns_) {
    const bool was_heard = is_first ? silence_ns_ < terms_.liveness_ns / 2 : last_answer_ns() > check_sent_ns_;
    if (!was_heard) {
      detours_ |= kShortProbeDue;  // is it alive at all?
    } else if (!is_first && ++narrow_rounds_ == kNarrowRounds) {
      result.has_failed = result.is_path_narrow = true;
      return;
    }
    detours_ |= kFullProbeDue;
    check_sent_ns_ = now_ns;
    check_again_ns_ = now_ns + std::max(terms_.liveness_ns / kNarrowRounds, rto_ns());
  }
  result.next_ns = std::min(result.next_ns, check_again_ns_);
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
