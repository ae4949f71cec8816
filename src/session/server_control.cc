// Server session: header-only packets about calls, which are RFRs (clause 5.4), probes (4.4), cancels (6.2) and
// finished-request reports (5.5).
#include "session/server_session.h"

namespace tern::session {

namespace {

using Phase = ServerSlot::Phase;

uint32_t load_u32(const std::byte* from) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < 4; i++) value |= std::to_integer<uint32_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace

/// Answers a retransmitted request packet, or a probe of the slot's request: sends the response (again) if there is
/// one, otherwise a credit return. `whole_code`: from that packet.
void ServerSession::answer_again(ServerSlot* slot, uint8_t whole_code, uint64_t number, uint64_t now_ns) {
  if (slot->phase == Phase::kResponded || slot->phase == Phase::kFailed) {
    // An answer that has not left may be as long as the request has permitted.
    if ((response_mask_ & bit_of(slot)) == 0) slot->whole_code = whole_code;
    slot->echo = static_cast<uint32_t>(number);
    slot->received_ns = now_ns;
    response_mask_ |= bit_of(slot);
  } else {
    owe_credit_return(number, now_ns);
  }
}

/// Answers that the request is lost. While a path reply is due, sends a credit return instead, and the client asks
/// again.
void ServerSession::owe_lost_answer(const wire::Header& header, uint64_t number, uint64_t now_ns) {
  if ((due_ & kPathReply) != 0) return owe_credit_return(number, now_ns);
  due_ |= kLostAnswer;
  answer_echo_ = static_cast<uint32_t>(number);
  lost_request_number_ = header.request_number();
}

/// Handles a probe: sends the response again if there is one, otherwise a credit return. There are two exceptions. If
/// the client knows that its request was acknowledged, but the request is not or not wholly here, the client would wait
/// for ever; the request then takes the slot and fails, so that the slot's numbers go on without a gap. A request that
/// cannot be the slot's next one is lost.
ServerVerdict ServerSession::on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns,
                                      ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  const bool is_delivered = header.index() != 0;
  const bool is_slot = index < window_;
  const int32_t age = is_slot ? static_cast<int32_t>(header.request_number() - number_of(index)) : -1;
  const bool is_beyond = age > int32_t{wire::kSlotsMax};
  if (is_beyond || (is_slot && age < 0)) {
    // Either a damaged packet has replaced an older request, or the probe is late and its answer is stale.
    owe_lost_answer(header, number, now_ns);
    return is_beyond ? dropped(Drop::kMalformed) : ServerVerdict{};
  }
  ServerSlot* slot = is_slot ? slot_at(index) : nullptr;
  const bool is_here = age == 0 && slot != nullptr && slot->phase != Phase::kIdle && slot->phase != Phase::kReceiving;
  if (age >= 0 && is_delivered && !is_here && may_end(slot, offers)) {
    if (slot != nullptr) end_slot(slot, offers);
    wire::Header lost = header;
    lost.w2 = 0;  // a probe's word 2 does not describe the request
    if (slot = begin(lost, number, now_ns, Phase::kRunning, offers); slot == nullptr) return dropped(Drop::kNoMemory);
    fail(slot, wire::FailureCode::kLost, 0);
    return dropped(Drop::kMalformed);
  }
  if (age == 0 && slot != nullptr) {
    answer_again(slot, 0, number, now_ns);
  } else {
    owe_credit_return(number, now_ns);
  }
  return {};
}

/// Queues the packets of a response that the client asks for. For a range beyond the response's end it sends packet 0,
/// which has the size. For any other range that is not available it sends a credit return.
ServerVerdict ServerSession::on_rfr(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                    uint64_t now_ns, ServerPools& pools) {
  const uint32_t index = slot_index_of(header.request_number());
  const bool is_proven = index < window_ && number_of(index) == header.request_number();
  if (!is_proven) return dropped(Drop::kUnproven);
  ServerSlot* slot = slot_at(index);
  if (!can_accept(number, pools, true)) return dropped(Drop::kNoMemory);
  accept(number, payload.is_marked, pools);
  if (slot != nullptr && slot->phase == Phase::kFailed) {  // the response was given up meanwhile
    answer_again(slot, 0, number, now_ns);
    return dropped(Drop::kStale);
  }
  if (!has_packets_of(header.payload_code(), pools)) {
    owe_credit_return(number, now_ns);
    return dropped(Drop::kMalformed);
  }
  const bool is_answered = slot != nullptr && slot->phase == Phase::kResponded;
  const uint64_t packets = is_answered ? response_packets(*slot, payload_of(header.payload_code())) : 0;
  const uint64_t first = header.index();
  const uint64_t count = header.message_bytes();
  const bool may_be_there = packets != 0 && count != 0 && count <= kRfrPacketsMax;
  if (may_be_there && first + count > packets) {
    answer_again(slot, 0, number, now_ns);
    return dropped(Drop::kStale);
  }
  if (!may_be_there ||
      !extras_->ranges.push({header.request_number(), static_cast<uint32_t>(first), static_cast<uint8_t>(count),
                             header.payload_code(), static_cast<uint32_t>(number), now_ns})) {
    owe_credit_return(number, now_ns);
    return dropped(Drop::kStale);
  }
  due_ |= kRanges;
  // While packet 0 waits, received_ns is the arrival of the packet that it answers.
  const bool is_first_waiting = (response_mask_ & bit_of(slot)) != 0;
  if (!is_first_waiting) slot->received_ns = now_ns;
  return {.is_about_a_call = true};
}

/// Handles the cancel of a call that has ended at the client. Its request does not start any more, and the cancel is
/// acknowledged.
ServerVerdict ServerSession::on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns,
                                       ServerOffers& offers) {
  const uint32_t index = slot_index_of(header.request_number());
  ServerSlot* slot = index < window_ ? find_or_make_slot(index, offers.pools()) : nullptr;
  if (slot == nullptr) {
    owe_credit_return(number, now_ns);
    return {};
  }
  const auto age = static_cast<int32_t>(header.request_number() - slot->request_number);
  if (age < 0 || age > int32_t{wire::kSlotsMax}) {
    // There are two cases. The cancel may be a late duplicate; its answer is then stale. Or damaged packets have made
    // the two ends differ, and the cancelled request will never start here.
    owe_lost_answer(header, number, now_ns);
    return {};
  }
  if (!may_end(slot, offers)) {  // the client repeats the cancel until the request is answered
    owe_credit_return(number, now_ns);
    return {};
  }
  end_slot(slot, offers);
  // If the request has not come yet, the slot counts as having had it, so that it does not start (at most once).
  slot->request_number = header.request_number();
  response_mask_ |= bit_of(slot);
  due_ |= kCancels;
  return {};
}

/// Handles a report: the client has the responses to these requests.
ServerVerdict ServerSession::on_report(const transport::Payload& payload, uint64_t number, uint64_t now_ns,
                                       ServerOffers& offers) {
  if (payload.bytes % 4 != 0 || payload.bytes > 4 * wire::kSlotsMax || payload.lease != nullptr) {
    return dropped(Drop::kMalformed);
  }
  for (uint32_t i = 0; i < payload.bytes; i += 4) {
    const uint32_t request_number = load_u32(payload.data + i);
    const uint32_t index = slot_index_of(request_number);
    ServerSlot* slot = index < window_ ? slot_at(index) : nullptr;
    const bool is_answered = slot != nullptr && (slot->phase == Phase::kResponded || slot->phase == Phase::kFailed);
    if (is_answered && slot->request_number == request_number) rest_slot(slot, offers);
  }
  offers.pools().trim();
  owe_credit_return(number, now_ns);
  return {};
}

}  // namespace tern::session
