// Server session: request packets (clauses 3.6 to 3.8, 5.1, 5.2 and 6.3).
#include <algorithm>
#include <utility>

#include "session/server_session.h"

namespace tern::session {

using Phase = ServerSlot::Phase;

namespace {

/// Size that a request of one packet allows to packet 0 of its response, as a payload code (clause 5.3.3).
uint8_t whole_code_of(const wire::Header& request, uint32_t payload_bytes) {
  const bool names_size = (request.flags() & wire::kTakesWhole) != 0 && payload_bytes == request.message_bytes();
  return names_size ? request.payload_code() : 0;
}

/// Forgets what has arrived, because the client has found that packets of that size do not pass (clause 5.1.2).
void begin_anew(Assembly& assembly, uint32_t request_bytes, uint32_t payload_bytes) {
  assembly.window = IndexWindow();
  assembly.payload_bytes = payload_bytes;
  assembly.packets = wire::packets_of(request_bytes, payload_bytes);
}

}  // namespace

/// True if messages of this session may have packets of this code (clause 5.1.1).
bool ServerSession::has_packets_of(uint8_t code, const ServerPools& pools) const {
  const uint32_t bytes = payload_of(code);
  return code == 0 || (bytes > payload_bytes_max_ && bytes <= pools.large_payload_bytes);
}

/// Checks the sizes of a request packet (clause 5.2).
bool ServerSession::is_well_formed(const wire::Header& request, uint32_t payload_bytes,
                                   const ServerPools& pools) const {
  const uint64_t message_bytes = request.message_bytes();
  const bool is_first = (request.flags() & wire::kFirst) != 0;
  const bool has_packets = has_packets_of(request.payload_code(), pools);
  if ((request.flags() & wire::kTakesWhole) != 0 && !has_packets) return false;
  if (is_short(request)) return is_first && payload_bytes == message_bytes;
  const uint64_t full_bytes = payload_of(request.payload_code());
  const uint64_t offset = request.index() * full_bytes;
  return has_packets && message_bytes <= wire::kMessageBytesMax && offset < message_bytes &&
         is_first == (request.index() == 0) && payload_bytes == std::min<uint64_t>(message_bytes - offset, full_bytes);
}

ServerVerdict ServerSession::on_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                        uint64_t now_ns, ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  if (index >= window_) return dropped(Drop::kUnproven);
  const auto age = static_cast<int32_t>(header.request_number() - number_of(index));
  if (age < 0) return dropped(Drop::kStale);
  if (age != 0 && age != int32_t{wire::kSlotsMax}) return dropped(Drop::kUnproven);
  ServerPools& pools = offers.pools();
  if (!is_well_formed(header, payload.bytes, pools)) return dropped(Drop::kMalformed);
  const bool may_be_long = !is_short(header) || (header.flags() & wire::kTakesWhole) != 0;
  if (!can_accept(number, pools, may_be_long)) return dropped(Drop::kNoMemory);
  if (age != 0) {
    if (!may_end(slot_at(index), offers)) {  // an honest client does not begin a request here (clause 3.8)
      accept(number, payload.is_marked, pools);
      owe_credit_return(number, now_ns);
      return dropped(Drop::kStale);
    }
    return payload.bytes == header.message_bytes() ? on_new_request(header, payload, number, now_ns, offers)
                                                   : on_new_long_request(header, payload, number, now_ns, offers);
  }
  if (slot_at(index) != nullptr) return on_known_request(slot_at(index), header, payload, number, now_ns, pools);
  // The slot has given its memory back, because the client has the response.
  accept(number, payload.is_marked, pools);
  owe_credit_return(number, now_ns);
  return dropped(Drop::kStale);
}

/// Gives the slot to a new request. The slot's last request ends, except for the memory of its response, which the next
/// response may use if nobody shares it. Null: there is no memory for a slot.
ServerSlot* ServerSession::begin(const wire::Header& header, uint64_t number, uint64_t now_ns, Phase phase,
                                 ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  ServerSlot* slot = find_or_make_slot(index, offers.pools());
  if (slot == nullptr) return nullptr;
  if (is_busy(*slot)) {
    end_slot(slot, offers);
  } else if (slot->response != nullptr && slot->response->in_use == detail::Buffer::kShared) {
    give_back_response(slot, offers);  // the client has it, and the next answer may take long
  }
  forget_ranges(index);
  // The client would take the acknowledgement of a cancel for an answer to the new request.
  if (response_mask_ != 0) forget_answer(slot);
  slot->request_number = header.request_number();
  slot->type = static_cast<uint16_t>(header.request_type());
  slot->request_bytes = header.message_bytes();
  slot->deadline_code = (header.flags() & wire::kFirst) != 0 ? header.deadline_code() : wire::kNoDeadline;
  slot->whole_code = 0;
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  move(slot, phase);
  return slot;
}

/// Handles a new request of one packet. A payload in the peer's memory is copied, unless the request is refused.
ServerVerdict ServerSession::on_new_request(const wire::Header& header, const transport::Payload& payload,
                                            uint64_t number, uint64_t now_ns, ServerOffers& offers) {
  ServerOffers::RequestBuffer copy;
  if (payload.lease != nullptr) {
    copy = offers.buffer_for(header, false);
    if (copy.buffer != nullptr && !payload.copy_to(copy.buffer->data())) {
      offers.take_back_buffer(copy.buffer, payload.bytes, false);
      return dropped(Drop::kLease);
    }
  }
  ServerSlot* slot = begin(header, number, now_ns, Phase::kRunning, offers);
  if (slot == nullptr) {
    if (copy.buffer != nullptr) offers.take_back_buffer(copy.buffer, payload.bytes, false);
    return dropped(Drop::kNoMemory);
  }
  accept(number, payload.is_marked, offers.pools());
  slot->whole_code = whole_code_of(header, payload.bytes);
  if (!is_short(header)) extras_->long_bytes_received += payload.bytes;
  if (payload.lease != nullptr && copy.buffer == nullptr) {
    fail(slot, copy.refusal, 0);
    return {.is_about_a_call = true};
  }
  return {.started = slot, .message = copy.buffer, .is_about_a_call = true};
}

/// Handles the first packet to arrive of a new request of several packets.
ServerVerdict ServerSession::on_new_long_request(const wire::Header& header, const transport::Payload& payload,
                                                 uint64_t number, uint64_t now_ns, ServerOffers& offers) {
  ServerOffers::RequestBuffer whole = offers.buffer_for(header, true);
  Assembly* assembly = whole.buffer != nullptr ? offers.pools().assemblies.take() : nullptr;
  if (assembly == nullptr && whole.buffer != nullptr) {
    offers.take_back_buffer(std::exchange(whole.buffer, nullptr), header.message_bytes(), true);
    whole.refusal = wire::FailureCode::kNoMemory;
  }
  const Phase phase = assembly != nullptr ? Phase::kReceiving : Phase::kRunning;
  ServerSlot* slot = begin(header, number, now_ns, phase, offers);
  if (slot == nullptr) {
    if (assembly != nullptr) offers.pools().assemblies.give(assembly);
    if (whole.buffer != nullptr) offers.take_back_buffer(whole.buffer, header.message_bytes(), true);
    return dropped(Drop::kNoMemory);
  }
  if (assembly == nullptr) {
    accept(number, payload.is_marked, offers.pools());
    fail(slot, whole.refusal, 0);
    return {.is_about_a_call = true};
  }
  assembly->payload_bytes = payload_of(header.payload_code());
  assembly->packets = wire::packets_of(slot->request_bytes, assembly->payload_bytes);
  assembly->buffer = whole.buffer;
  assembly->claim = whole.claim;
  slot->assembly = assembly;
  return place(slot, header, payload, number, now_ns, offers.pools());
}

/// Handles a packet of the slot's present or last request.
ServerVerdict ServerSession::on_known_request(ServerSlot* slot, const wire::Header& header,
                                              const transport::Payload& payload, uint64_t number, uint64_t now_ns,
                                              ServerPools& pools) {
  const bool is_part = slot->phase == Phase::kReceiving && !is_short(header) &&
                       header.message_bytes() == slot->request_bytes && header.request_type() == slot->type;
  if (is_part) {
    Assembly& assembly = *slot->assembly;
    const uint32_t payload_bytes = payload_of(header.payload_code());
    if (payload_bytes < assembly.payload_bytes) begin_anew(assembly, slot->request_bytes, payload_bytes);
    const bool is_missing = payload_bytes == assembly.payload_bytes && assembly.window.is_within(header.index()) &&
                            !assembly.window.contains(header.index());
    if (is_missing) return place(slot, header, payload, number, now_ns, pools);
  }
  accept(number, payload.is_marked, pools);
  answer_again(slot, whole_code_of(header, payload.bytes), number, now_ns);
  return {.is_about_a_call = is_busy(*slot), .drop = Drop::kStale};
}

/// Looks everything up, because the request may have ended since `part` came. If the packet after `part` has come, too,
/// because `part` filled a gap, the first missing packet is the best guess.
transport::ExpectedPacket ServerSession::expected_after(const wire::Header& part) const {
  const uint32_t slot_index = slot_index_of(part.request_number());
  const ServerSlot* slot = slot_index < window_ ? this->slot(slot_index) : nullptr;
  if (slot == nullptr || slot->phase != Phase::kReceiving || slot->request_number != part.request_number()) return {};
  const Assembly& assembly = *slot->assembly;
  const uint32_t bytes = assembly.payload_bytes;
  uint32_t index = part.index() + 1;
  if (assembly.window.contains(index)) index = assembly.window.base();
  if (payload_of(part.payload_code()) != bytes || index >= slot->request_bytes / bytes ||
      !assembly.window.is_within(index)) {
    return {};
  }
  transport::ExpectedPacket expected;
  expected.header = wire::client_header(wire::Kind::kRequest, 0, local_key_, 0, slot->request_number, index, slot->type,
                                        slot->request_bytes);
  expected.header.add_length(wire::kHeaderBytes + bytes);
  expected.header.add_payload_code(part.payload_code());
  expected.known = {~(uint64_t{wire::kWantsCredits} << 8), ~uint64_t{wire::kNumberMask}, ~uint64_t{0}};
  expected.place = assembly.buffer->data() + uint64_t{index} * bytes;
  expected.payload_bytes = bytes;
  return expected;
}

/// Copies a part of a long request to its place, and marks it as received only if the copy is good (clause 8.3).
ServerVerdict ServerSession::place(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                   uint64_t number, uint64_t now_ns, ServerPools& pools) {
  Assembly& assembly = *slot->assembly;
  if (!payload.copy_to(assembly.buffer->data() + uint64_t{header.index()} * assembly.payload_bytes)) {
    return dropped(Drop::kLease);
  }
  accept(number, payload.is_marked, pools);
  extras_->long_bytes_received += payload.bytes;
  assembly.window.insert(header.index());
  if ((header.flags() & wire::kFirst) != 0 && header.deadline_code() != wire::kNoDeadline) {
    assembly.deadline_ns = now_ns + wire::decode_time_left(header.deadline_code());
  }
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  if (assembly.window.base() != assembly.packets) {
    owe_credit_return(number, now_ns);
    return {.is_part = true, .is_about_a_call = true};
  }
  slot->deadline_code = assembly.deadline_ns == UINT64_MAX
                            ? wire::kNoDeadline
                            : wire::encode_time_left(assembly.deadline_ns - std::min(assembly.deadline_ns, now_ns));
  detail::Buffer* message = assembly.buffer;
  pools.assemblies.give(std::exchange(slot->assembly, nullptr));
  move(slot, Phase::kRunning);
  return {.started = slot, .message = message, .was_assembled = true, .is_part = true, .is_about_a_call = true};
}

}  // namespace tern::session
