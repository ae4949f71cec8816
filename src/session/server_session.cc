// Server session: its life, and the dispatch of each kind of packet.
#include "session/server_session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace tern::session {

namespace {

using Phase = ServerSlot::Phase;

constexpr uint32_t phase_bit(Phase phase) { return 1u << static_cast<uint32_t>(phase); }

/// For each phase, the set of phases that may follow it.
constexpr uint32_t kFollowing[] = {
    /* kIdle */ phase_bit(Phase::kReceiving) | phase_bit(Phase::kRunning),
    /* kResponded */ phase_bit(Phase::kIdle) | phase_bit(Phase::kFailed),
    /* kFailed */ phase_bit(Phase::kIdle),
    /* kReceiving */ phase_bit(Phase::kIdle) | phase_bit(Phase::kFailed) | phase_bit(Phase::kRunning),
    /* kRunning */ phase_bit(Phase::kIdle) | phase_bit(Phase::kFailed) | phase_bit(Phase::kResponded),
};
/// A new request may also take an answered slot directly, without kIdle in between.
constexpr uint32_t kBeginning = phase_bit(Phase::kReceiving) | phase_bit(Phase::kRunning);

}  // namespace

void ServerSession::check_transition(Phase from, Phase to) {
  const bool is_new_request = from <= Phase::kFailed && (phase_bit(to) & kBeginning) != 0;
  const bool may_follow = (kFollowing[static_cast<size_t>(from)] & phase_bit(to)) != 0;
  CHECK(is_new_request || may_follow);
}

ServerSession::ServerSession(const ServerTerms& terms)
    : window_(terms.window),
      remote_key_(terms.remote_key),
      next_number_(kNumberBase + terms.first_number),
      received_(static_cast<uint32_t>(kNumberBase) + terms.first_client_number),
      path_(terms.path_token, terms.session_token, terms.first_request_count),
      payload_bytes_max_(terms.payload_bytes_max),
      local_key_(terms.local_key),
      first_number_(terms.first_number) {
  second_number_ = number_before_first(1);
}

ServerSession::~ServerSession() { CHECK(slots_ == &only_slot_ && only_slot_ == nullptr && extras_ == nullptr); }

void ServerSession::give_back(ServerPools& pools) {
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    ServerSlot* slot = slot_at(i);
    if (slot == nullptr) continue;
    CHECK(slot->assembly == nullptr);
    CHECK(slot->response == nullptr);
    if (slot != &first_slot_) pools.slots.give(slot);
  }
  give_back_array(pools);
  only_slot_ = nullptr;
  received_.give_back(pools.number_bits);
  if (extras_ != nullptr) pools.extras.give(std::exchange(extras_, nullptr));
}

// ---- Packets in ----

ServerVerdict ServerSession::on_packet(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns,
                                       ServerOffers& offers) {
  const uint64_t number = received_.admit(header.number());
  if (number == 0) return dropped(Drop::kStale);
  if (header.kind() == wire::Kind::kPathProbe) {
    return on_path_probe(header, payload.bytes, number, now_ns, offers.pools());
  }
  if (!is_open_) return dropped(Drop::kUnproven);
  switch (header.kind()) {
    case wire::Kind::kRequest:
      return on_request(header, payload, number, now_ns, offers);
    case wire::Kind::kRfr:
      return on_rfr(header, payload, number, now_ns, offers.pools());
    default:
      break;
  }
  if (header.token() != path_.session_token()) return dropped(Drop::kUnproven);
  if (!can_accept(number, offers.pools())) return dropped(Drop::kNoMemory);
  switch (header.kind()) {
    case wire::Kind::kProbe:
      accept(number, payload.is_marked, offers.pools());
      return on_probe(header, number, now_ns, offers);
    case wire::Kind::kCancel:
      accept(number, payload.is_marked, offers.pools());
      return on_cancel(header, number, now_ns, offers);
    case wire::Kind::kReport:
      accept(number, false, offers.pools());
      return on_report(payload, number, now_ns, offers);
    default:
      return dropped(Drop::kMalformed);
  }
}

/// Handles a path probe. The reply is header-only until the client has proved that it receives at its address, and has
/// full length from then on. An open session answers a full probe with a packet of full length, and a short one with a
/// credit return.
ServerVerdict ServerSession::on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number,
                                           uint64_t now_ns, ServerPools& pools) {
  if (payload_bytes == 0) return on_short_path_probe(header, number, now_ns, pools);
  if (!path_.is_proven(header, has_pair_token() ? pair_token() : 0)) return dropped(Drop::kUnproven);
  // An open session may search for larger packets (clause 7.7.9).
  const bool is_large = payload_bytes > payload_bytes_max_ && payload_bytes <= pools.large_payload_bytes && is_open_;
  if (payload_bytes != payload_bytes_max_ && !is_large) return dropped(Drop::kMalformed);
  if (!can_accept(number, pools)) return dropped(Drop::kNoMemory);
  const bool is_new = !std::exchange(is_open_, true);
  accept(number, false, pools);
  // Only one reply is due at a time. The reply to the largest probe proves the most.
  if ((due_ & kPathReply) == 0 || path_.replaces_due_reply(header, payload_bytes, reply_payload_bytes_)) {
    path_.on_full(header);
    owe_path_reply(number, payload_bytes);
  }
  return {.has_opened = is_new, .has_paired = (header.flags() & wire::kPaired) != 0};
}

ServerVerdict ServerSession::on_short_path_probe(const wire::Header& header, uint64_t number, uint64_t now_ns,
                                                 ServerPools& pools) {
  if (is_open_ && path_.is_check(header)) {
    if (!can_accept(number, pools)) return dropped(Drop::kNoMemory);
    accept(number, false, pools);
    owe_credit_return(number, now_ns);
    return {};
  }
  const Drop refusal = path_.refusal_of_short(header, is_open_, now_ns);
  if (refusal != Drop::kNone) return dropped(refusal);
  const bool is_paired = (header.flags() & wire::kPaired) != 0;
  if (!can_accept(number, pools, is_paired)) return dropped(Drop::kNoMemory);
  accept(number, false, pools);
  path_.on_short(header, now_ns);
  if (is_paired) {
    extras_->pair_echo = static_cast<uint32_t>(number);
    return {.wants_pair = true};
  }
  owe_path_reply(number, 0);
  return {};
}

/// Makes the reply to a path probe due. It takes the place of an answer that a request is lost: the client asks again.
void ServerSession::owe_path_reply(uint64_t number, uint32_t payload_bytes) {
  due_ = static_cast<uint8_t>((due_ | kPathReply) & ~kLostAnswer);
  answer_echo_ = static_cast<uint32_t>(number);
  reply_payload_bytes_ = payload_bytes;
}

// ---- Slots ----

uint32_t ServerSession::number_before_first(uint32_t index) const {
  return (path_.first_request_number() | index) - wire::kSlotsMax;
}

uint32_t ServerSession::number_of(uint32_t index) const {
  if (const ServerSlot* slot = slot_at(index)) return slot->request_number;
  if (index == 1) return second_number_;
  return index == 0 || index > slot_mask_ ? number_before_first(index) : rested_numbers()[index];
}

/// Makes space for the pointers to the slots up to `index`. False: no memory.
bool ServerSession::grow_slots(uint32_t index, ServerPools& pools) {
  const uint32_t count = std::bit_ceil(index + 1);
  ServerSlot** slots = nullptr;
  if (count > 2) {  // a number follows for each pointer
    const size_t bytes = count * (sizeof(uintptr_t) + sizeof(uint32_t));
    slots = static_cast<ServerSlot**>(::operator new(bytes, std::nothrow));
  } else if (auto* pair = pools.slot_pairs.take()) {
    slots = pair->data();
  }
  if (slots == nullptr) return false;
  for (uint32_t i = 0; i < count; i++) {
    slots[i] = slot_at(i);
    if (count > 2) reinterpret_cast<uint32_t*>(slots + count)[i] = number_of(i);
  }
  give_back_array(pools);
  slots_ = slots;
  slot_mask_ = count - 1;
  return true;
}

/// Gives back the array of pointers to slots, of which only_slot_ keeps the first one.
void ServerSession::give_back_array(ServerPools& pools) {
  ServerSlot** slots = std::exchange(slots_, &only_slot_);
  const uint32_t mask = std::exchange(slot_mask_, 0u);
  only_slot_ = slots[0];
  if (mask == 1) {
    pools.slot_pairs.give(reinterpret_cast<std::array<ServerSlot*, 2>*>(slots));
  } else if (mask != 0) {
    ::operator delete(slots);
  }
}

/// Null: no memory.
ServerSlot* ServerSession::make_slot(uint32_t index, ServerPools& pools) {
  if (index > slot_mask_ && !grow_slots(index, pools)) return nullptr;
  ServerSlot* slot = index == 0 ? &first_slot_ : pools.slots.take();
  if (slot == nullptr) return nullptr;
  slot->request_number = number_of(index);
  slots_[index] = slot;
  return slot;
}

void ServerSession::give_back_assembly(ServerSlot* slot, ServerOffers& offers) {
  if (slot->assembly == nullptr) return;
  offers.take_back_buffer(slot->assembly->buffer, slot->request_bytes, true);
  offers.pools().assemblies.give(std::exchange(slot->assembly, nullptr));
}

void ServerSession::give_back_response(ServerSlot* slot, ServerOffers& offers) {
  if (slot->response != nullptr) {
    offers.take_back_response(std::exchange(slot->response, nullptr), slot->response_ticket);
  }
}

/// Ends the slot's request in any phase, because the client does not wait for it any more.
void ServerSession::end_slot(ServerSlot* slot, ServerOffers& offers) {
  if (slot->call != nullptr) offers.abandon(std::exchange(slot->call, nullptr));
  give_back_assembly(slot, offers);
  give_back_response(slot, offers);
  forget_answer(slot);
  forget_ranges(index_of(*slot));
  if (slot->phase != Phase::kIdle) move(slot, Phase::kIdle);
}

/// Ends the slot's answered request, and gives back the memory of the slot, unless it is the first one, which is a part
/// of the session.
void ServerSession::rest_slot(ServerSlot* slot, ServerOffers& offers) {
  end_slot(slot, offers);
  if (slot == &first_slot_) return;
  const uint32_t number = slot->request_number;
  const uint32_t index = slot_index_of(number);
  offers.pools().slots.give(slot);
  slots_[index] = nullptr;
  (index == 1 ? second_number_ : rested_numbers()[index]) = number;
  if (slot_mask_ == 1) give_back_array(offers.pools());
}

// ---- Endings ----

void ServerSession::end_all(ServerOffers& offers) {
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    if (slot_at(i) != nullptr) end_slot(slot_at(i), offers);
  }
}

bool ServerSession::forget_old(uint64_t now_ns, uint64_t since_ns, ServerOffers& offers) {
  bool keeps_some = false;
  for (uint32_t i = 0; is_open_ && i < window_; i++) {
    ServerSlot* slot = slot_at(i);
    if (slot == nullptr) continue;
    keeps_some |= slot->phase == Phase::kRunning;
    if (is_busy(*slot) || slot->response == nullptr) continue;
    const uint64_t asked_ns = std::max(slot->received_ns, since_ns);
    const bool is_old = now_ns >= asked_ns && now_ns - asked_ns >= kKeepNs && !is_to_leave(*slot);
    if (is_old) rest_slot(slot, offers);
    keeps_some |= !is_old;
  }
  return keeps_some;
}

void ServerSession::give_up_arriving(ServerSlot* slot, ServerOffers& offers) {
  CHECK(slot->phase == Phase::kReceiving);
  give_back_assembly(slot, offers);
  fail(slot, wire::FailureCode::kNoMemory, 0);
}

void ServerSession::give_up_response(ServerSlot* slot, ServerOffers& offers) {
  CHECK(slot->phase == Phase::kResponded);
  const bool was_to_leave = (response_mask_ & bit_of(slot)) != 0;
  give_back_response(slot, offers);
  forget_ranges(index_of(*slot));
  fail(slot, wire::FailureCode::kNoMemory, 0);
  // A client that has packet 0 already asks by itself when the rest does not come.
  if (!was_to_leave) response_mask_ &= ~bit_of(slot);
}

void ServerSession::check_invariants() const {
  CHECK((due_ & kCancels) != 0, ==, cancelled() != 0);
  CHECK((due_ & kRanges) != 0, ==, extras_ != nullptr && !extras_->ranges.empty());
  CHECK((due_ & (kLostAnswer | kPathReply)), !=, kLostAnswer | kPathReply);
  CHECK((due_ & (kHeld | kCreditReturn)), !=, kHeld | kCreditReturn);
  if (holds_return()) CHECK(static_cast<int32_t>(newest() - cr_number_), >=, 0);
  if (!is_open_) {
    CHECK(response_mask_, ==, 0u);
    return;
  }
  for (uint32_t i = 0; i < window_; i++) {
    const ServerSlot* slot = slot_at(i);
    const uint64_t bit = uint64_t{1} << i;
    if (slot == nullptr) {
      CHECK(response_mask_ & bit, ==, 0u);
      continue;
    }
    CHECK(index_of(*slot), ==, i);
    CHECK(slot->assembly != nullptr, ==, slot->phase == Phase::kReceiving);
    if ((response_mask_ & bit) != 0) CHECK(!is_busy(*slot));
    if (slot->phase == Phase::kResponded) CHECK(slot->response != nullptr);
  }
  for (uint32_t i = 0; extras_ != nullptr && i < extras_->ranges.size(); i++) {
    const Range& range = extras_->ranges[i];
    const uint32_t index = slot_index_of(range.request_number);
    CHECK(index, <, window_);
    CHECK(range.count, >, 0u);
    CHECK(slots_[index]->phase == Phase::kResponded);
    CHECK(slots_[index]->request_number, ==, range.request_number);
    CHECK(range.first + range.count, <=, response_packets(*slots_[index], payload_of(range.payload_code)));
  }
}

}  // namespace tern::session
