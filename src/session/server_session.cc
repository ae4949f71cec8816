#include "session/server_session.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tern::session {

namespace {

using Phase = ServerSlot::Phase;

/// Ranges of one session that may wait to be sent; a client keeps to its credits, so more are hostile or lost credits.
constexpr size_t kRangesMax = 256;

void store_u64(std::byte* to, uint64_t value) {
  value = wire::to_little_endian(value);
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace

ServerSession::ServerSession(const ServerTerms& terms, ServerPools& pools)
    : slot_mask_(std::bit_ceil(uint32_t{terms.window}) - 1),
      remote_key_(terms.remote_key),
      payload_bytes_max_(terms.payload_bytes_max),
      pools_(pools),
      local_key_(terms.local_key),
      first_request_count_(terms.first_request_count),
      window_(terms.window) {
  slots_ = window_ <= kFirstSlots ? first_slots_ : new ServerSlot*[slot_mask_ + 1]();
}

ServerSession::~ServerSession() {
  for (uint32_t i = 0; i < window_; i++) {
    if (slots_[i] == nullptr) continue;
    CHECK(slots_[i]->assembly == nullptr, ==, true);
    CHECK(slots_[i]->response == nullptr, ==, true);
    if (slots_[i] != &first_slot_) pools_.slots.give(slots_[i]);
  }
  if (slots_ != first_slots_) delete[] slots_;
}

ServerSlot* ServerSession::make_slot(uint32_t index) {
  ServerSlot* slot = index == 0 ? &first_slot_ : pools_.slots.take();
  if (slot == nullptr) return nullptr;
  slot->request_number = (first_request_count_ << wire::kSlotBits | index) - wire::kSlotsMax;
  slots_[index] = slot;
  return slot;
}

bool ServerSession::begin_long(ServerSlot* slot, const wire::Header& header, uint64_t number, uint64_t now_ns,
                               detail::Buffer* buffer) {
  Assembly* assembly = pools_.assemblies.take();
  if (assembly == nullptr) return false;
  begin(slot, header, number, now_ns);
  assembly->packets =
      static_cast<uint32_t>((uint64_t{slot->request_bytes} + payload_bytes_max_ - 1) / payload_bytes_max_);
  assembly->buffer = buffer;
  slot->assembly = assembly;
  slot->phase = Phase::kReceiving;
  return true;
}

ServerSession::Placed ServerSession::place(ServerSlot* slot, const wire::Header& header,
                                           const transport::Payload& payload, uint64_t number, uint64_t now_ns) {
  Assembly& assembly = *slot->assembly;
  if (!payload.copy_to(assembly.buffer->data() + uint64_t{header.index()} * payload_bytes_max_)) {
    return Placed::kLeaseLost;
  }
  assembly.window.insert(header.index());
  if ((header.flags() & wire::kFirst) != 0 && header.deadline_code() != wire::kNoDeadline) {
    assembly.deadline_ns = now_ns + wire::decode_time_left(header.deadline_code());
  }
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  if (assembly.window.base() != assembly.packets) return Placed::kMore;
  slot->deadline_code = assembly.deadline_ns == UINT64_MAX
                            ? wire::kNoDeadline
                            : wire::encode_time_left(assembly.deadline_ns - std::min(assembly.deadline_ns, now_ns));
  slot->phase = Phase::kRunning;
  return Placed::kComplete;
}

detail::Buffer* ServerSession::take_assembled(ServerSlot* slot) {
  detail::Buffer* buffer = slot->assembly->buffer;
  pools_.assemblies.give(slot->assembly);
  slot->assembly = nullptr;
  return buffer;
}

void ServerSession::answer_again(ServerSlot* slot, uint64_t number, uint64_t now_ns) {
  if (slot->phase == Phase::kResponded) {
    slot->echo = static_cast<uint32_t>(number);
    slot->received_ns = now_ns;
    response_mask_ |= uint64_t{1} << index_of(*slot);
  } else {
    owe_credit_return(now_ns);
  }
}

bool ServerSession::on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerSlot** slot_out) {
  *slot_out = nullptr;
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  const bool is_delivered = header.index() != 0;
  ServerSlot* slot = nullptr;
  if (index < window_) slot = slots_[index] != nullptr ? slots_[index] : make_slot(index);
  const auto age = slot != nullptr ? static_cast<int32_t>(header.request_number() - slot->request_number) : -1;
  const bool is_beyond = age > int32_t{wire::kSlotsMax};
  if (is_beyond || (age < 0 && is_delivered)) {
    // An older request is one that a damaged packet has pushed aside; or the probe is late, and its answer stale.
    owe_lost_answer(header, number);
    return !is_beyond;
  }
  const bool is_here = age == 0 && (slot->phase == Phase::kRunning || slot->phase == Phase::kResponded);
  if (age >= 0 && is_delivered && !is_here) {
    *slot_out = slot;
    return false;
  }
  if (age == 0) {
    answer_again(slot, number, now_ns);
  } else {
    owe_credit_return(now_ns);
  }
  return true;
}

bool ServerSession::on_rfr(const wire::Header& header, uint64_t number, uint64_t now_ns) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ServerSlot* slot = index < window_ ? slots_[index] : nullptr;
  if (slot == nullptr || slot->request_number != header.request_number() || slot->phase != Phase::kResponded ||
      slot->is_failure) {
    owe_credit_return(now_ns);
    return false;
  }
  const uint64_t packets = (uint64_t{slot->response_bytes} + payload_bytes_max_ - 1) / payload_bytes_max_;
  const uint64_t first = header.index();
  const uint64_t count = header.message_bytes();
  if (count == 0 || count > kRfrPacketsMax || first + count > packets || ranges_.size() >= kRangesMax) {
    owe_credit_return(now_ns);
    return false;
  }
  ranges_.push_back({header.request_number(), static_cast<uint32_t>(first), static_cast<uint32_t>(count),
                     static_cast<uint32_t>(number), now_ns});
  due_ |= kRanges;
  return true;
}

ServerSlot* ServerSession::on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  ServerSlot* slot = nullptr;
  if (index < window_) slot = slots_[index] != nullptr ? slots_[index] : make_slot(index);
  if (slot == nullptr) {
    owe_credit_return(now_ns);
    return nullptr;
  }
  const auto age = static_cast<int32_t>(header.request_number() - slot->request_number);
  if (age < 0 || age > int32_t{wire::kSlotsMax}) {
    // A late duplicate, to which an answer is stale; or damaged packets have put the two ends apart, and what the
    // client has given up will never start here.
    owe_lost_answer(header, number);
    return nullptr;
  }
  cancelled_mask_ |= uint64_t{1} << index;
  due_ |= kCancels;
  // Also if the request has not come yet: when it does, it is one that the slot has had (at most once).
  slot->request_number = header.request_number();
  response_mask_ &= ~(uint64_t{1} << index);
  return slot;
}

bool ServerSession::on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number) {
  if (payload_bytes != payload_bytes_max_ || header.message_bytes() != payload_bytes) return false;
  due_ |= kPathReply;
  path_echo_ = static_cast<uint32_t>(number);
  return true;
}

void ServerSession::end_slot(ServerSlot* slot, detail::Buffer** assembled) {
  *assembled = slot->assembly != nullptr ? take_assembled(slot) : nullptr;
  slot->phase = Phase::kIdle;
  const uint32_t index = index_of(*slot);
  response_mask_ &= ~(uint64_t{1} << index);
}

bool ServerSession::is_current(const Range& range) const {
  const ServerSlot* slot = slots_[range.request_number & (wire::kSlotsMax - 1)];
  return slot->request_number == range.request_number && slot->phase == Phase::kResponded;
}

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
  if ((due_ & kCreditReturn) != 0) {
    uint64_t words[NumberWindow::kWords];
    received_.bitmap(words);
    for (size_t i = 0; i < NumberWindow::kWords; i++) store_u64(packet.scratch + 8 * i, words[i]);
    packet.payload_bytes = sizeof(words);
    packet.header = header_of(wire::Kind::kCr, echo_flag, next_number_, 0, static_cast<uint32_t>(received_.largest()),
                              now_ns - cr_since_ns_, credit_limit, 0);
    return true;
  }
  if ((due_ & kPathReply) != 0) {
    packet.payload = nullptr;
    packet.payload_bytes = payload_bytes_max_;
    packet.header = header_of(wire::Kind::kPathReply, echo_flag, next_number_, first_request_count_ << wire::kSlotBits,
                              path_echo_, 0, credit_limit, payload_bytes_max_);
    return true;
  }
  // What was asked for of a response that has ended since is not wanted any more.
  while (!ranges_.empty() && !is_current(ranges_.front())) ranges_.erase(ranges_.begin());
  if (ranges_.empty()) {
    due_ &= ~kRanges;
    return false;
  }
  const Range& range = ranges_.front();
  ServerSlot* slot = slots_[range.request_number & (wire::kSlotsMax - 1)];
  const uint32_t offset = range.first * payload_bytes_max_;
  packet.slot = slot;
  packet.slot_index = index_of(*slot);
  packet.buffer = slot->response;
  packet.payload = slot->response->data() + offset;
  packet.payload_bytes = std::min(payload_bytes_max_, slot->response_bytes - offset);
  packet.is_range = true;
  packet.header = header_of(wire::Kind::kResponse, (range.first == 0 ? wire::kFirst : 0) | echo_flag, next_number_,
                            slot->request_number, range.echo, now_ns - range.received_ns, credit_limit,
                            range.first == 0 ? slot->response_bytes : range.first);
  return true;
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
        if (--range.count == 0) ranges_.erase(ranges_.begin());
        if (ranges_.empty()) due_ &= ~kRanges;
      } else {
        response_mask_ &= ~(uint64_t{1} << packet.slot_index);
      }
      break;
  }
}

void ServerSession::check_invariants() const {
  CHECK((due_ & kCancels) != 0, ==, cancelled_mask_ != 0);
  for (uint32_t i = 0; i < window_; i++) {
    const ServerSlot* slot = slots_[i];
    const uint64_t bit = uint64_t{1} << i;
    if (slot == nullptr) {
      CHECK(response_mask_ & bit, ==, 0u);
      continue;
    }
    CHECK(index_of(*slot), ==, i);
    CHECK(slot->assembly != nullptr, ==, slot->phase == Phase::kReceiving);
    if ((response_mask_ & bit) != 0) CHECK(slot->phase == Phase::kResponded, ==, true);
  }
  for (const Range& range : ranges_) {
    CHECK(range.request_number & (wire::kSlotsMax - 1), <, window_);
    CHECK(range.count, >, 0u);
  }
}

}  // namespace tern::session
