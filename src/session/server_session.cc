#include "session/server_session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace tern::session {

namespace {

using Phase = ServerSlot::Phase;

void store_u64(std::byte* to, uint64_t value) {
  value = wire::to_little_endian(value);
  std::memcpy(to, &value, sizeof(value));
}

uint32_t load_u32(const std::byte* from) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < 4; i++) value |= std::to_integer<uint32_t>(from[i]) << (8 * i);
  return value;
}

uint32_t slot_index_of(uint32_t request_number) { return request_number & (wire::kSlotsMax - 1); }

constexpr uint32_t bit_of(Phase phase) { return 1u << static_cast<uint32_t>(phase); }

/// By the phase that is left: the phases that may follow.
constexpr uint32_t kFollowing[] = {
    /* kIdle */ bit_of(Phase::kReceiving) | bit_of(Phase::kRunning),
    /* kResponded */ bit_of(Phase::kIdle) | bit_of(Phase::kFailed),
    /* kFailed */ bit_of(Phase::kIdle),
    /* kReceiving */ bit_of(Phase::kIdle) | bit_of(Phase::kFailed) | bit_of(Phase::kRunning),
    /* kRunning */ bit_of(Phase::kIdle) | bit_of(Phase::kFailed) | bit_of(Phase::kResponded),
};
/// A new request on an answered slot takes it without a rest in between.
constexpr uint32_t kBeginning = bit_of(Phase::kReceiving) | bit_of(Phase::kRunning);

ServerVerdict dropped(Drop why) { return {.drop = why}; }

}  // namespace

void ServerSession::check_transition(Phase from, Phase to) {
  const bool is_new_request = from <= Phase::kFailed && (bit_of(to) & kBeginning) != 0;
  const bool may_follow = (kFollowing[static_cast<size_t>(from)] & bit_of(to)) != 0;
  CHECK(is_new_request || may_follow, ==, true);
}

ServerSession::ServerSession(const ServerTerms& terms, ServerPools& pools)
    : next_number_(kNumberBase + terms.first_number),
      slots_(first_slots_),
      slot_mask_(kFirstSlots - 1),
      remote_key_(terms.remote_key),
      payload_bytes_max_(terms.payload_bytes_max),
      received_(kNumberBase + terms.first_client_number),
      pools_(pools),
      local_key_(terms.local_key),
      first_request_count_(terms.first_request_count),
      path_token_(terms.path_token),
      session_token_(terms.session_token),
      window_(terms.window) {}

ServerSession::~ServerSession() {
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    if (slots_[i] == nullptr) continue;
    CHECK(slots_[i]->assembly == nullptr, ==, true);
    CHECK(slots_[i]->response == nullptr, ==, true);
    if (slots_[i] != &first_slot_) pools_.slots.give(slots_[i]);
  }
  if (slots_ != first_slots_) delete[] slots_;
}

bool ServerSession::make_slots() {
  if (window_ <= kFirstSlots) return true;
  const uint32_t count = std::bit_ceil(uint32_t{window_});
  auto** slots = new (std::nothrow) ServerSlot*[count]();
  if (slots == nullptr) return false;
  slots_ = slots;
  slot_mask_ = count - 1;
  return true;
}

ServerSlot* ServerSession::make_slot(uint32_t index) {
  ServerSlot* slot = index == 0 ? &first_slot_ : pools_.slots.take();
  if (slot == nullptr) return nullptr;
  slot->request_number = number_of(index);
  slots_[index] = slot;
  return slot;
}

// ---- Packets in ----

ServerVerdict ServerSession::on_packet(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns,
                                       ServerOffers& offers) {
  const uint64_t number = received_.admit(header.number());
  if (number == 0) return dropped(Drop::kStale);
  if (header.kind() == wire::Kind::kPathProbe) return on_path_probe(header, payload.bytes, number, now_ns);
  if (!is_open_) return dropped(Drop::kUnproven);
  switch (header.kind()) {
    case wire::Kind::kRequest:
      return on_request(header, payload, number, now_ns, offers);
    case wire::Kind::kRfr:
      return on_rfr(header, payload, number, now_ns);
    default:
      break;
  }
  if (header.token() != session_token_) return dropped(Drop::kUnproven);
  switch (header.kind()) {
    case wire::Kind::kProbe:
      accept(number, payload.is_marked);
      return on_probe(header, number, now_ns, offers);
    case wire::Kind::kCancel:
      accept(number, payload.is_marked);
      return on_cancel(header, number, now_ns, offers);
    case wire::Kind::kReport:
      accept(number, false);
      return on_report(payload, now_ns, offers);
    default:
      return dropped(Drop::kMalformed);
  }
}

/// Header only until the client has shown that it receives what is sent to its address, then of full length. In an open
/// session, too, it is answered by a packet of its own length, or by a credit return, which is short.
ServerVerdict ServerSession::on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number,
                                           uint64_t now_ns) {
  const bool is_paired = (header.flags() & wire::kPaired) != 0;
  const bool is_of_first_request = header.request_number() == first_request_count_ << wire::kSlotBits;
  if (payload_bytes == 0) {
    const bool is_check = is_open_ && !is_paired && header.token() == session_token_ && is_of_first_request;
    if (!is_check) return on_short_path_probe(header, number, now_ns);
    accept(number, false);
    owe_credit_return(now_ns);
    return {};
  }
  const bool is_proven =
      is_paired ? has_pair_token_ && header.token() == pair_token_ : header.token() == session_token_;
  if (!is_proven || !is_of_first_request) return dropped(Drop::kUnproven);
  if (payload_bytes != payload_bytes_max_) return dropped(Drop::kMalformed);
  if (!is_open_ && !make_slots()) return dropped(Drop::kNoMemory);
  const bool is_new = !std::exchange(is_open_, true);
  // What has brought the token was sent to no stranger.
  if (is_paired) short_replies_left_ += std::exchange(pair_replies_, uint8_t{0});
  accept(number, false);
  due_ |= kPathReply;
  path_echo_ = static_cast<uint32_t>(number);
  path_reply_bytes_ = payload_bytes;
  is_path_reply_paired_ = is_paired;
  return {.has_opened = is_new, .has_paired = is_paired};
}

/// Once the session is open, only a client that is paired has reason to ask: its address may have changed.
ServerVerdict ServerSession::on_short_path_probe(const wire::Header& header, uint64_t number, uint64_t now_ns) {
  const bool is_paired = (header.flags() & wire::kPaired) != 0;
  if (header.token() != path_token_) return dropped(Drop::kUnproven);
  if (is_open_ && now_ns - std::min(now_ns, short_replies_since_ns_) >= kShortRepliesNs) {
    short_replies_left_ = kShortRepliesMax;
    pair_replies_ = 0;
  }
  if ((is_open_ && !is_paired) || short_replies_left_ == 0) return dropped(Drop::kStale);
  if (short_replies_left_-- == kShortRepliesMax) short_replies_since_ns_ = now_ns;
  accept(number, false);
  if (is_paired) {
    pair_echo_ = static_cast<uint32_t>(number);
    return {.wants_pair = true};
  }
  due_ |= kPathReply;
  path_echo_ = static_cast<uint32_t>(number);
  path_reply_bytes_ = 0;
  is_path_reply_paired_ = false;
  return {};
}

void ServerSession::owe_pair_reply(uint32_t token) {
  if (!has_pair_token_ || token != pair_token_) pair_replies_ = 0;
  pair_replies_++;
  pair_token_ = token;
  has_pair_token_ = true;
  due_ |= kPairReply;
}

wire::Header ServerSession::pair_reply(uint8_t credit_limit) {
  due_ &= ~kPairReply;
  return header_of(wire::Kind::kPathReply, wire::kPaired, next_number_++, first_request_count_ << wire::kSlotBits,
                   pair_echo_, 0, credit_limit, pair_token_);
}

bool ServerSession::is_well_formed(const wire::Header& request, uint32_t payload_bytes) const {
  const uint64_t message_bytes = request.message_bytes();
  const bool is_first = (request.flags() & wire::kFirst) != 0;
  if (is_short(request)) return is_first && payload_bytes == message_bytes;
  const uint64_t offset = uint64_t{request.index()} * payload_bytes_max_;
  return message_bytes <= wire::kMessageBytesMax && offset < message_bytes && is_first == (request.index() == 0) &&
         payload_bytes == std::min<uint64_t>(message_bytes - offset, payload_bytes_max_);
}

ServerVerdict ServerSession::on_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                        uint64_t now_ns, ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  if (index >= window_) return dropped(Drop::kUnproven);
  const auto age = static_cast<int32_t>(header.request_number() - number_of(index));
  if (age < 0) return dropped(Drop::kStale);
  if (age != 0 && age != int32_t{wire::kSlotsMax}) return dropped(Drop::kUnproven);
  if (!is_well_formed(header, payload.bytes)) return dropped(Drop::kMalformed);
  if (age != 0) {
    if (!may_end(slots_[index], offers)) {  // no honest client begins here (clause 3.8), and this one waits
      accept(number, payload.is_marked);
      owe_credit_return(now_ns);
      return dropped(Drop::kStale);
    }
    return is_short(header) ? on_new_request(header, payload, number, now_ns, offers)
                            : on_new_long_request(header, payload, number, now_ns, offers);
  }
  if (slots_[index] == nullptr) return dropped(Drop::kStale);
  return on_known_request(slots_[index], header, payload, number, now_ns);
}

/// A new request takes its slot. What the slot still has of the last one ends, but for the response's memory: the next
/// response may need it.
ServerSlot* ServerSession::begin(const wire::Header& header, uint64_t number, uint64_t now_ns, Phase phase,
                                 ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  ServerSlot* slot = find_or_make_slot(index);
  if (slot == nullptr) return nullptr;
  if (is_busy(*slot)) end_slot(slot, offers);
  forget_ranges(index);
  const uint64_t bit = uint64_t{1} << index;
  response_mask_ &= ~bit;
  forget_cancel(bit);  // the client has had its answer, and would take this for the new request's
  slot->request_number = header.request_number();
  slot->type = static_cast<uint16_t>(header.request_type());
  slot->request_bytes = header.message_bytes();
  slot->deadline_code = (header.flags() & wire::kFirst) != 0 ? header.deadline_code() : wire::kNoDeadline;
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  move(slot, phase);
  return slot;
}

/// In one packet. A payload that lies in the peer's memory is copied; one that would be refused is not worth that.
ServerVerdict ServerSession::on_new_request(const wire::Header& header, const transport::Payload& payload,
                                            uint64_t number, uint64_t now_ns, ServerOffers& offers) {
  ServerOffers::Room room;
  if (payload.lease != nullptr) {
    room = offers.room_for(header, false);
    if (room.buffer != nullptr && !payload.copy_to(room.buffer->data())) {
      offers.take_back_room(room.buffer, payload.bytes, false);
      return dropped(Drop::kLease);
    }
  }
  ServerSlot* slot = begin(header, number, now_ns, Phase::kRunning, offers);
  if (slot == nullptr) {
    if (room.buffer != nullptr) offers.take_back_room(room.buffer, payload.bytes, false);
    return dropped(Drop::kNoMemory);
  }
  accept(number, payload.is_marked);
  if (payload.lease != nullptr && room.buffer == nullptr) {
    fail(slot, room.refusal, 0);
    return {.is_about_a_call = true};
  }
  return {.started = slot, .message = room.buffer, .is_about_a_call = true};
}

/// The first packet to arrive of several.
ServerVerdict ServerSession::on_new_long_request(const wire::Header& header, const transport::Payload& payload,
                                                 uint64_t number, uint64_t now_ns, ServerOffers& offers) {
  ServerOffers::Room room = offers.room_for(header, true);
  Assembly* assembly = room.buffer != nullptr ? pools_.assemblies.take() : nullptr;
  if (assembly == nullptr && room.buffer != nullptr) {
    offers.take_back_room(std::exchange(room.buffer, nullptr), header.message_bytes(), true);
    room.refusal = wire::FailureCode::kNoMemory;
  }
  const Phase phase = assembly != nullptr ? Phase::kReceiving : Phase::kRunning;
  ServerSlot* slot = begin(header, number, now_ns, phase, offers);
  if (slot == nullptr) {
    if (assembly != nullptr) pools_.assemblies.give(assembly);
    if (room.buffer != nullptr) offers.take_back_room(room.buffer, header.message_bytes(), true);
    return dropped(Drop::kNoMemory);
  }
  if (assembly == nullptr) {
    accept(number, payload.is_marked);
    fail(slot, room.refusal, 0);
    return {.is_about_a_call = true};
  }
  assembly->packets =
      static_cast<uint32_t>((uint64_t{slot->request_bytes} + payload_bytes_max_ - 1) / payload_bytes_max_);
  assembly->buffer = room.buffer;
  slot->assembly = assembly;
  return place(slot, header, payload, number, now_ns);
}

/// The request that the slot has, or has had last.
ServerVerdict ServerSession::on_known_request(ServerSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t number, uint64_t now_ns) {
  const bool is_missing = slot->phase == Phase::kReceiving && !is_short(header) &&
                          header.message_bytes() == slot->request_bytes && header.request_type() == slot->type &&
                          slot->assembly->window.is_within(header.index()) &&
                          !slot->assembly->window.contains(header.index());
  if (is_missing) return place(slot, header, payload, number, now_ns);
  accept(number, payload.is_marked);
  answer_again(slot, number, now_ns);
  return {.is_about_a_call = is_busy(*slot), .drop = Drop::kStale};
}

/// Copies a part of a long request to its place and, if that worked, marks it.
ServerVerdict ServerSession::place(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                   uint64_t number, uint64_t now_ns) {
  Assembly& assembly = *slot->assembly;
  if (!payload.copy_to(assembly.buffer->data() + uint64_t{header.index()} * payload_bytes_max_)) {
    return dropped(Drop::kLease);
  }
  accept(number, payload.is_marked);
  assembly.window.insert(header.index());
  if ((header.flags() & wire::kFirst) != 0 && header.deadline_code() != wire::kNoDeadline) {
    assembly.deadline_ns = now_ns + wire::decode_time_left(header.deadline_code());
  }
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  if (assembly.window.base() != assembly.packets) {
    owe_credit_return(now_ns);
    return {.is_part = true, .is_about_a_call = true};
  }
  slot->deadline_code = assembly.deadline_ns == UINT64_MAX
                            ? wire::kNoDeadline
                            : wire::encode_time_left(assembly.deadline_ns - std::min(assembly.deadline_ns, now_ns));
  detail::Buffer* message = assembly.buffer;
  pools_.assemblies.give(std::exchange(slot->assembly, nullptr));
  move(slot, Phase::kRunning);
  return {.started = slot, .message = message, .was_assembled = true, .is_part = true, .is_about_a_call = true};
}

/// A retransmitted or probing packet of the slot's request: the response leaves (again), or a credit return.
void ServerSession::answer_again(ServerSlot* slot, uint64_t number, uint64_t now_ns) {
  if (slot->phase == Phase::kResponded || slot->phase == Phase::kFailed) {
    slot->echo = static_cast<uint32_t>(number);
    slot->received_ns = now_ns;
    response_mask_ |= uint64_t{1} << index_of(*slot);
  } else {
    owe_credit_return(now_ns);
  }
}

/// The response leaves again if there is one, else a credit return. But a client that knows its request to be
/// acknowledged, which is not or not wholly here, waits for an answer that will never come: its request takes the slot
/// and fails, so that the slot's numbers go on without a gap. And a request that cannot be the slot's next one is lost.
ServerVerdict ServerSession::on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns,
                                      ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  const bool is_delivered = header.index() != 0;
  const bool is_slot = index < window_;
  const int32_t age = is_slot ? static_cast<int32_t>(header.request_number() - number_of(index)) : -1;
  const bool is_beyond = age > int32_t{wire::kSlotsMax};
  if (is_beyond || (is_slot && age < 0)) {
    // An older request is one that a damaged packet has pushed aside; or the probe is late, and its answer stale.
    owe_lost_answer(header, number);
    return is_beyond ? dropped(Drop::kMalformed) : ServerVerdict{};
  }
  ServerSlot* slot = is_slot ? slots_[index] : nullptr;
  const bool is_here = age == 0 && slot != nullptr && slot->phase != Phase::kIdle && slot->phase != Phase::kReceiving;
  if (age >= 0 && is_delivered && !is_here && may_end(slot, offers)) {
    if (slot != nullptr) end_slot(slot, offers);
    wire::Header lost = header;
    lost.w2 = 0;  // of a probe it says nothing about the request
    if (slot = begin(lost, number, now_ns, Phase::kRunning, offers); slot == nullptr) return dropped(Drop::kNoMemory);
    fail(slot, wire::FailureCode::kLost, 0);
    return dropped(Drop::kMalformed);
  }
  if (age == 0 && slot != nullptr) {
    answer_again(slot, number, now_ns);
  } else {
    owe_credit_return(now_ns);
  }
  return {};
}

/// Packets of a response that are to leave. A range beyond the response's end brings packet 0, which says where that
/// is; any other that cannot be had brings a credit return.
ServerVerdict ServerSession::on_rfr(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                    uint64_t now_ns) {
  const uint32_t index = slot_index_of(header.request_number());
  ServerSlot* slot = index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number()) return dropped(Drop::kUnproven);
  accept(number, payload.is_marked);
  if (slot->phase == Phase::kFailed) {  // given up meanwhile
    answer_again(slot, number, now_ns);
    return dropped(Drop::kStale);
  }
  const uint64_t packets = slot->phase == Phase::kResponded
                               ? (uint64_t{slot->response_bytes} + payload_bytes_max_ - 1) / payload_bytes_max_
                               : 0;
  const uint64_t first = header.index();
  const uint64_t count = header.message_bytes();
  const bool may_be_there = packets != 0 && count != 0 && count <= kRfrPacketsMax;
  if (may_be_there && first + count > packets) {
    answer_again(slot, number, now_ns);
    return dropped(Drop::kStale);
  }
  if (!may_be_there || !ranges_.push({header.request_number(), static_cast<uint32_t>(first),
                                      static_cast<uint32_t>(count), static_cast<uint32_t>(number), now_ns})) {
    owe_credit_return(now_ns);
    return dropped(Drop::kStale);
  }
  due_ |= kRanges;
  const bool is_to_leave = (response_mask_ >> index & 1) != 0;
  if (!is_to_leave) slot->received_ns = now_ns;  // of packet 0 it is the echo's
  return {.is_about_a_call = true};
}

/// The request has ended at the client: it will not run any more, and is acknowledged as cancelled.
ServerVerdict ServerSession::on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns,
                                       ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  ServerSlot* slot = index < window_ ? find_or_make_slot(index) : nullptr;
  if (slot == nullptr) {
    owe_credit_return(now_ns);
    return {};
  }
  const auto age = static_cast<int32_t>(header.request_number() - slot->request_number);
  if (age < 0 || age > int32_t{wire::kSlotsMax}) {
    // A late duplicate, to which an answer is stale; or damaged packets have put the two ends apart, and what the
    // client has given up will never start here.
    owe_lost_answer(header, number);
    return {};
  }
  if (!may_end(slot, offers)) {  // the client asks again, and has the answer by then
    owe_credit_return(now_ns);
    return {};
  }
  end_slot(slot, offers);
  // Also if the request has not come yet: when it does, it is one that the slot has had (at most once).
  slot->request_number = header.request_number();
  cancelled_mask_ |= uint64_t{1} << index;
  due_ |= kCancels;
  return {};
}

/// The client has these responses.
ServerVerdict ServerSession::on_report(const transport::Payload& payload, uint64_t now_ns, ServerOffers& offers) {
  if (payload.bytes % 4 != 0 || payload.bytes > 4 * wire::kSlotsMax || payload.lease != nullptr) {
    return dropped(Drop::kMalformed);
  }
  for (uint32_t i = 0; i < payload.bytes; i += 4) {
    const uint32_t number = load_u32(payload.data + i);
    const uint32_t index = slot_index_of(number);
    ServerSlot* slot = index < window_ ? slots_[index] : nullptr;
    const bool is_answered = slot != nullptr && (slot->phase == Phase::kResponded || slot->phase == Phase::kFailed);
    if (is_answered && slot->request_number == number) end_slot(slot, offers);
  }
  owe_credit_return(now_ns);
  return {};
}

// ---- Endings ----

void ServerSession::give_back_assembly(ServerSlot* slot, ServerOffers& offers) {
  if (slot->assembly == nullptr) return;
  offers.take_back_room(slot->assembly->buffer, slot->request_bytes, true);
  pools_.assemblies.give(std::exchange(slot->assembly, nullptr));
}

void ServerSession::give_back_response(ServerSlot* slot, ServerOffers& offers) {
  if (slot->response != nullptr) {
    offers.take_back_response(std::exchange(slot->response, nullptr), slot->response_ticket);
  }
}

/// Whatever the slot has of its request ends: its client does not wait for it any more.
void ServerSession::end_slot(ServerSlot* slot, ServerOffers& offers) {
  if (slot->call != nullptr) offers.abandon(std::exchange(slot->call, nullptr));
  give_back_assembly(slot, offers);
  give_back_response(slot, offers);
  const uint32_t index = index_of(*slot);
  response_mask_ &= ~(uint64_t{1} << index);
  forget_ranges(index);
  if (slot->phase != Phase::kIdle) move(slot, Phase::kIdle);
}

void ServerSession::end_all(ServerOffers& offers) {
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    if (slots_[i] != nullptr) end_slot(slots_[i], offers);
  }
}

bool ServerSession::forget_old(uint64_t now_ns, uint64_t since_ns, ServerOffers& offers) {
  bool keeps_some = false;
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    ServerSlot* slot = slots_[i];
    if (slot == nullptr || is_busy(*slot) || slot->response == nullptr) continue;
    const uint64_t asked_ns = std::max(slot->received_ns, since_ns);
    const bool is_old = now_ns >= asked_ns && now_ns - asked_ns >= kKeepNs && !is_to_leave(*slot);
    if (is_old) end_slot(slot, offers);
    keeps_some |= !is_old;
  }
  return keeps_some;
}

void ServerSession::give_up_arriving(ServerSlot* slot, ServerOffers& offers) {
  CHECK(slot->phase == Phase::kReceiving, ==, true);
  give_back_assembly(slot, offers);
  fail(slot, wire::FailureCode::kNoMemory, 0);
}

void ServerSession::give_up_response(ServerSlot* slot, ServerOffers& offers) {
  CHECK(slot->phase == Phase::kResponded, ==, true);
  const bool was_to_leave = (response_mask_ & uint64_t{1} << index_of(*slot)) != 0;
  give_back_response(slot, offers);
  forget_ranges(index_of(*slot));
  fail(slot, wire::FailureCode::kNoMemory, 0);
  // Who has packet 0 already asks when the rest does not come.
  if (!was_to_leave) response_mask_ &= ~(uint64_t{1} << index_of(*slot));
}

// ---- Packets out ----

bool ServerSession::prepare(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) {
  packet.slot = nullptr;
  packet.buffer = nullptr;
  packet.payload = packet.scratch;
  packet.payload_bytes = 0;
  packet.is_range = false;
  const uint8_t echo_flag = this->echo_flag();
  if (cancelled_mask_ != 0) {
    const auto index = static_cast<uint32_t>(std::countr_zero(cancelled_mask_));
    packet.slot_index = index;
    packet.header = header_of(wire::Kind::kCancelled, wire::kNoEcho, next_number_, slots_[index]->request_number, 0, 0,
                              credit_limit, 0);
    return true;
  }
  // Before all answers of the same burst: a client that has one of those takes what was sent before it, and is not
  // acknowledged, for overtaken.
  if ((due_ & kCreditReturn) != 0) {
    uint64_t words[NumberWindow::kWords];
    received_.bitmap(words);
    for (size_t i = 0; i < NumberWindow::kWords; i++) store_u64(packet.scratch + 8 * i, words[i]);
    packet.payload_bytes = sizeof(words);
    // The packet with that number may be another one, which came later and has its own answer.
    const uint64_t hold_ns = cr_echo_ == received_.largest() ? now_ns - cr_since_ns_ : UINT64_MAX;
    packet.header = header_of(wire::Kind::kCr, echo_flag, next_number_, 0, static_cast<uint32_t>(received_.largest()),
                              hold_ns, credit_limit, 0);
    return true;
  }
  if (response_mask_ != 0) {  // a failure
    const auto index = static_cast<uint32_t>(std::countr_zero(response_mask_));
    packet.slot = slots_[index];
    packet.slot_index = index;
    packet.header = header_of(wire::Kind::kResponse, wire::kFirst | wire::kFailure | echo_flag, next_number_,
                              packet.slot->request_number, packet.slot->echo, now_ns - packet.slot->received_ns,
                              credit_limit, packet.slot->response_bytes);
    return true;
  }
  if ((due_ & kLostAnswer) != 0) {
    packet.header =
        header_of(wire::Kind::kResponse, wire::kFirst | wire::kFailure | echo_flag, next_number_, lost_request_number_,
                  lost_echo_, 0, credit_limit, static_cast<uint32_t>(wire::FailureCode::kLost) << 16);
    return true;
  }
  if ((due_ & kPathReply) != 0) {
    packet.payload = nullptr;
    packet.payload_bytes = path_reply_bytes_;
    const uint8_t flags = echo_flag | (is_path_reply_paired_ ? wire::kPaired : 0);
    packet.header = header_of(wire::Kind::kPathReply, flags, next_number_, first_request_count_ << wire::kSlotBits,
                              path_echo_, 0, credit_limit, session_token_);
    return true;
  }
  if (ranges_.empty()) return false;
  prepare_range(now_ns, credit_limit, packet);
  return true;
}

void ServerSession::prepare_range(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) {
  const Range& range = ranges_.front();
  ServerSlot* slot = slots_[slot_index_of(range.request_number)];
  CHECK(slot->phase == Phase::kResponded, ==, true);
  CHECK(slot->request_number, ==, range.request_number);
  const uint32_t offset = range.first * payload_bytes_max_;
  packet.slot = slot;
  packet.slot_index = index_of(*slot);
  packet.buffer = slot->response;
  packet.payload = slot->response->data() + offset;
  packet.payload_bytes = std::min(payload_bytes_max_, slot->response_bytes - offset);
  packet.is_range = true;
  packet.header = header_of(wire::Kind::kResponse, (range.first == 0 ? wire::kFirst : 0) | echo_flag(), next_number_,
                            slot->request_number, range.echo, now_ns - range.received_ns, credit_limit,
                            range.first == 0 ? slot->response_bytes : range.first);
}

void ServerSession::commit(const ServerPacket& packet, uint64_t ticket) {
  if ((packet.header.flags() & wire::kEcnEcho) != 0) due_ &= ~kMarked;
  switch (packet.header.kind()) {
    case wire::Kind::kCancelled:
      forget_cancel(uint64_t{1} << packet.slot_index);
      break;
    case wire::Kind::kCr:
      due_ &= ~kCreditReturn;
      break;
    case wire::Kind::kPathReply:
      due_ &= ~kPathReply;
      break;
    default:
      if (packet.slot == nullptr) {
        due_ &= ~kLostAnswer;
      } else if (packet.is_range) {
        packet.slot->response_ticket = ticket;
        Range& range = ranges_.front();
        range.first++;
        if (--range.count == 0) ranges_.pop();
        if (ranges_.empty()) due_ &= ~kRanges;
      } else {
        response_mask_ &= ~(uint64_t{1} << packet.slot_index);
      }
      break;
  }
}

void ServerSession::check_invariants() const {
  CHECK((due_ & kCancels) != 0, ==, cancelled_mask_ != 0);
  CHECK((due_ & kRanges) != 0, ==, !ranges_.empty());
  if (!is_open_) {
    CHECK(response_mask_ | cancelled_mask_, ==, 0u);
    return;
  }
  for (uint32_t i = 0; i < window_; i++) {
    const ServerSlot* slot = slots_[i];
    const uint64_t bit = uint64_t{1} << i;
    if (slot == nullptr) {
      CHECK(response_mask_ & bit, ==, 0u);
      continue;
    }
    CHECK(index_of(*slot), ==, i);
    CHECK(slot->assembly != nullptr, ==, slot->phase == Phase::kReceiving);
    if ((response_mask_ & bit) != 0) CHECK(slot->phase == Phase::kResponded || slot->phase == Phase::kFailed, ==, true);
    if (slot->phase == Phase::kResponded) CHECK(slot->response != nullptr, ==, true);
  }
  for (uint32_t i = 0; i < ranges_.size(); i++) {
    const Range& range = ranges_[i];
    const uint32_t index = slot_index_of(range.request_number);
    CHECK(index, <, window_);
    CHECK(range.count, >, 0u);
    CHECK(slots_[index]->phase == Phase::kResponded, ==, true);
    CHECK(slots_[index]->request_number, ==, range.request_number);
    CHECK(uint64_t{range.first + range.count - 1} * payload_bytes_max_, <, slots_[index]->response_bytes);
  }
}

}  // namespace tern::session
