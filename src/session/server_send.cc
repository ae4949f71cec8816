// Server session: the packets that it sends, except for the common case, which is inline in the header.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "session/server_session.h"

namespace tern::session {

namespace {

using Phase = ServerSlot::Phase;

void store_u64(std::byte* to, uint64_t value) {
  value = wire::to_little_endian(value);
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace

/// Prepares the next packet, in the order of clause 4.2.5. False: there is none. commit() must follow when the packet
/// was sent.
bool ServerSession::prepare(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const {
  packet.slot = nullptr;
  packet.buffer = nullptr;
  packet.payload = packet.scratch;
  packet.payload_bytes = 0;
  packet.is_range = false;
  if ((due_ & kCancels) != 0) {
    prepare_cancelled(credit_limit, packet);
  } else if ((due_ & kCreditReturn) != 0) {
    // The credit return leaves before all answers of the same burst, because a client that gets an answer first would
    // take earlier packets, which are not acknowledged yet, for overtaken.
    prepare_credit_return(now_ns, credit_limit, packet);
  } else if (response_mask_ != 0) {
    prepare_first(now_ns, credit_limit, packet);
  } else if ((due_ & kLostAnswer) != 0) {
    packet.header =
        next_header(wire::Kind::kResponse, wire::kFirst | wire::kFailure | echo_flag(), lost_request_number_,
                    answer_echo_, 0, credit_limit, static_cast<uint32_t>(wire::FailureCode::kLost) << 16);
  } else if ((due_ & kPathReply) != 0) {
    packet.payload = nullptr;
    packet.payload_bytes = reply_payload_bytes_;
    packet.header = path_.reply(echo_flag(), remote_key_, next_number_, answer_echo_, credit_limit);
  } else if ((due_ & kRanges) != 0) {
    prepare_range(now_ns, credit_limit, packet);
  } else {
    return false;
  }
  return true;
}

/// The slots whose cancel must be acknowledged.
uint64_t ServerSession::cancelled() const {
  uint64_t idle = 0;
  for (uint64_t mask = response_mask_; mask != 0; mask &= mask - 1) {
    const ServerSlot* slot = slots_[base::lowest_bit(mask)];
    if (slot->phase == Phase::kIdle) idle |= bit_of(slot);
  }
  return idle;
}

/// The slot's response, or the acknowledgement of its cancel, need not be sent any more.
void ServerSession::forget_answer(const ServerSlot* slot) {
  response_mask_ &= ~bit_of(slot);
  if ((due_ & kCancels) != 0 && cancelled() == 0) due_ &= ~kCancels;
}

void ServerSession::prepare_cancelled(uint8_t credit_limit, ServerPacket& packet) const {
  const uint64_t slots = cancelled();
  CHECK(slots, !=, 0u);
  packet.slot = slots_[std::countr_zero(slots)];
  packet.header =
      next_header(wire::Kind::kCancelled, wire::kNoEcho, packet.slot->request_number, 0, 0, credit_limit, 0);
}

void ServerSession::prepare_credit_return(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const {
  uint64_t words[NumberWindow::kWords];
  received_.bitmap(words);
  for (size_t i = 0; i < NumberWindow::kWords; i++) store_u64(packet.scratch + 8 * i, words[i]);
  packet.payload_bytes = sizeof(words);
  // The packet with the largest number may be a later packet, which has its own answer.
  const uint32_t echo = newest();
  const uint64_t hold_ns = cr_number_ == echo ? now_ns - cr_since_ns_ : UINT64_MAX;
  packet.header = next_header(wire::Kind::kCr, echo_flag(), 0, echo, hold_ns, credit_limit, 0);
}

/// Prepares a failure, or packet 0 of a response, which has all of the response if the request permits that (clause
/// 5.3.3).
void ServerSession::prepare_first(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const {
  packet.slot_index = static_cast<uint32_t>(std::countr_zero(response_mask_));
  ServerSlot* slot = slots_[packet.slot_index];
  packet.slot = slot;
  uint8_t flags = wire::kFirst | echo_flag();
  if (slot->phase == Phase::kFailed) {
    flags |= wire::kFailure;
  } else {
    const uint32_t bytes_max = std::max(payload_bytes_max_, wire::payload_of_code(slot->whole_code));
    packet.buffer = slot->response;
    packet.payload = slot->response->data();
    packet.payload_bytes = slot->response_bytes <= bytes_max ? slot->response_bytes : payload_bytes_max_;
  }
  packet.header = next_header(wire::Kind::kResponse, flags, slot->request_number, slot->echo,
                              now_ns - slot->received_ns, credit_limit, slot->response_bytes);
}

/// Packets of a response, of which packet 0 has the session's own payload.
uint32_t ServerSession::response_packets(const ServerSlot& slot, uint32_t payload_bytes) const {
  if (slot.response_bytes <= payload_bytes_max_) return 1;
  return 1 + wire::packets_of(slot.response_bytes - payload_bytes_max_, payload_bytes);
}

/// The place in the response of the next packet that an RFR asked for.
ServerSession::Part ServerSession::part_of(const ServerSlot& slot, const Range& range) const {
  if (range.first == 0) return {0, std::min(payload_bytes_max_, slot.response_bytes)};
  const uint32_t full_bytes = payload_of(range.payload_code);
  const uint32_t offset = payload_bytes_max_ + (range.first - 1) * full_bytes;
  return {offset, std::min(full_bytes, slot.response_bytes - offset)};
}

/// Prepares the next packet that an RFR asked for.
void ServerSession::prepare_range(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const {
  const Range& range = extras_->ranges[0];
  ServerSlot* slot = slots_[slot_index_of(range.request_number)];
  CHECK(slot->phase == Phase::kResponded);
  CHECK(slot->request_number, ==, range.request_number);
  const bool is_first = range.first == 0;
  const Part part = part_of(*slot, range);
  packet.slot = slot;
  packet.slot_index = index_of(*slot);
  packet.buffer = slot->response;
  packet.payload = slot->response->data() + part.offset;
  packet.payload_bytes = part.bytes;
  packet.is_range = true;
  packet.header =
      next_header(wire::Kind::kResponse, (is_first ? wire::kFirst : 0) | echo_flag(), slot->request_number, range.echo,
                  now_ns - range.received_ns, credit_limit, is_first ? slot->response_bytes : range.first);
  if (range.payload_code != 0 && !is_first) packet.header.set_large();
}

/// Notes that the prepared packet was sent under `ticket`.
void ServerSession::commit(const ServerPacket& packet, uint64_t ticket) {
  if ((packet.header.flags() & wire::kEcnEcho) != 0) due_ &= ~kMarked;
  switch (packet.header.kind()) {
    case wire::Kind::kCancelled:
      return forget_answer(packet.slot);
    case wire::Kind::kCr:
      due_ &= ~kCreditReturn;
      return;
    case wire::Kind::kPathReply:
      due_ &= ~kPathReply;
      return;
    default:
      break;
  }
  if (packet.slot == nullptr) {
    due_ &= ~kLostAnswer;
  } else if (packet.is_range) {
    commit_range(packet.slot, ticket);
  } else {
    response_mask_ &= ~(uint64_t{1} << packet.slot_index);
    if (holds_return()) end_hold_of(uint64_t{1} << packet.slot_index);
    if (packet.buffer == nullptr) return;  // a failure
    packet.slot->response_ticket = ticket;
    if (packet.payload_bytes > payload_bytes_max_) extras_->long_bytes_sent += packet.payload_bytes;
  }
}

void ServerSession::commit_range(ServerSlot* slot, uint64_t ticket) {
  slot->response_ticket = ticket;
  Range& range = extras_->ranges.front();
  // A client that asks for packet 1 has packet 0, which has the number of packets.
  if (range.first == 1) extras_->long_bytes_sent += payload_bytes_max_;
  extras_->long_bytes_sent += part_of(*slot, range).bytes;
  range.first++;
  if (--range.count == 0) extras_->ranges.pop();
  if (extras_->ranges.empty()) due_ &= ~kRanges;
}

void ServerSession::owe_pair_reply(uint32_t token) {
  path_.on_pair_reply(token == extras_->pair_token);
  extras_->pair_token = token;
  due_ |= kPairReply;
}

wire::Header ServerSession::pair_reply(uint8_t credit_limit) {
  due_ &= ~kPairReply;
  return path_.pair_reply(remote_key_, next_number_++, extras_->pair_echo, extras_->pair_token, credit_limit);
}

}  // namespace tern::session
