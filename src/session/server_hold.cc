// Server session: a credit return may wait for the answers of its requests, which acknowledge them, too (clause 4.2.6).
//
// All packets wait that have arrived with a number from oldest_held() on. An answer to the oldest one may leave, and
// ends its wait. An answer to a later one leaves after the credit return, because the client would otherwise take the
// packets before it for overtaken ones.
#include "base/check.h"
#include "session/server_session.h"

namespace tern::session {

bool ServerSession::try_hold(const ServerSlot* slot, uint8_t credit_limit) {
  const uint32_t number = newest();
  const uint32_t oldest = holds_return() ? cr_number_ : number;
  // A client that has used half of its credits gets them back at once. Above 128 a limit means more than its value.
  const bool has_credits = 2 * (number - oldest + 1) <= credit_limit;
  if ((due_ & ~kHeld) != 0 || slot->echo != number || !has_credits) return false;
  cr_number_ = oldest;
  due_ |= kHeld;
  return true;
}

void ServerSession::return_held() {
  CHECK(holds_return());
  due_ = static_cast<uint8_t>((due_ | kCreditReturn) & ~kHeld);
  const uint32_t number = newest();
  cr_number_ = number - 1;  // not the newest: its hold time is not known (clause 4.2.3)
  for (uint32_t i = 0; i < window_; i++) {
    const ServerSlot* slot = slot_at(i);
    if (slot == nullptr || slot->echo != number) continue;
    // The slot of an answer that has left may have a later time. A slot whose cancel is to be acknowledged still has
    // the time of its request, because no answer to the newest packet leaves while a credit return waits.
    if (!is_busy(*slot) && (response_mask_ & bit_of(slot)) == 0) continue;
    cr_number_ = number;
    cr_since_ns_ = slot->received_ns;
  }
}

/// The responses of one packet that may leave before a credit return that waits, in the order of their slots: those to
/// the oldest packets that wait, and to earlier ones.
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
  if (cr_number_ == newest() + 1) due_ &= static_cast<uint8_t>(~kHeld);
}

}  // namespace tern::session
