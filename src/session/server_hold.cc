// Server session: a credit return may wait for the answers of its requests, which acknowledge them, too (clause 4.2.6).
//
// The packets that wait have consecutive numbers, from oldest_held() to the largest that has arrived. An answer to the
// oldest one may leave, and ends its wait. Any other packet leaves after the credit return, because the client would
// otherwise take packets that wait for overtaken ones.
#include "base/check.h"
#include "session/server_session.h"

namespace tern::session {

bool ServerSession::owe_or_hold(const ServerSlot* slot, uint32_t bytes, uint8_t credit_limit, uint64_t now_ns) {
  const auto newest = static_cast<uint32_t>(received_.largest());
  const uint32_t oldest = holds_return() ? cr_number_ : newest;
  // A client that has used half of its credits gets them back at once. Above 128 a limit means more than its value.
  const bool has_credits = 2 * (newest - oldest + 1) <= credit_limit;
  if ((due_ & ~kHeld) != 0 || slot->echo != newest || bytes > payload_bytes_max_ || !has_credits) {
    owe_credit_return(now_ns);
    return false;
  }
  cr_number_ = oldest;
  due_ |= kHeld;
  return true;
}

void ServerSession::return_held() {
  CHECK(holds_return());
  owe_credit_return(0);
  const uint32_t newest = cr_number_--;  // another number: the hold time is not known (clause 4.2.3)
  for (uint32_t i = 0; i < window_; i++) {
    const ServerSlot* slot = slot_at(i);
    if (slot == nullptr || slot->phase != ServerSlot::Phase::kRunning || slot->echo != newest) continue;
    cr_number_ = newest;
    cr_since_ns_ = slot->received_ns;
  }
}

/// The responses of one packet that may leave before a credit return that waits, in the order of their slots.
uint64_t ServerSession::responses_before_return() const {
  uint64_t responses = 0;
  uint32_t oldest = cr_number_;
  for (uint64_t mask = response_mask_; mask != 0; mask &= mask - 1) {
    const ServerSlot* slot = slots_[base::lowest_bit(mask)];
    const auto ahead = static_cast<int32_t>(slot->echo - oldest);
    if (ahead > 0 || !is_short_response(*slot)) continue;
    if (ahead == 0) oldest++;
    responses |= bit_of(slot);
  }
  return responses;
}

/// True if prepare() makes a response that may leave before a credit return that waits.
bool ServerSession::next_may_precede_return() const {
  if ((due_ & ~(kHeld | kMarked)) != 0 || response_mask_ == 0) return false;
  return static_cast<int32_t>(slots_[base::lowest_bit(response_mask_)]->echo - cr_number_) <= 0;
}

/// Ends the wait of the packets that `responses` have answered.
void ServerSession::end_hold_of(uint64_t responses) {
  for (; responses != 0; responses &= responses - 1) {
    if (slots_[base::lowest_bit(responses)]->echo == cr_number_) cr_number_++;
  }
  if (cr_number_ == static_cast<uint32_t>(received_.largest()) + 1) due_ &= static_cast<uint8_t>(~kHeld);
}

}  // namespace tern::session
