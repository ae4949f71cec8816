// Client session: the memory for calls, which a session has from the first call after a rest to the next rest.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/lowest_bit.h"
#include "session/client_session.h"

namespace tern::session {

namespace {

ClientSlot* const kNoSlots[ClientBusy::kFirstSlots] = {};
/// The request numbers of a session at rest do not need the slot's index in their low bits. Two of these bits store
/// ClientSlot::has_rested() and is_unreported().
constexpr uint32_t kHasRested = 1;
constexpr uint32_t kIsUnreported = 2;
constexpr uint32_t kIndexBits = wire::kSlotsMax - 1;

}  // namespace

/// The pointers to slots of every session at rest: all null, and never written.
ClientSlot** ClientSession::no_slots() { return const_cast<ClientSlot**>(kNoSlots); }

/// Opens the slots, because the path is proven. False: no memory.
bool ClientSession::open_slots() {
  if (wanted_window_ > kFirstSlots) {
    auto** slots = new (std::nothrow) ClientSlot*[wanted_window_]();
    auto* numbers = new (std::nothrow) uint32_t[wanted_window_];
    if (slots == nullptr || numbers == nullptr) {
      delete[] slots;
      delete[] numbers;
      return false;
    }
    slots_ = slots;
    more_numbers_ = numbers;
  }
  window_ = wanted_window_;
  std::fill_n(numbers(), window_, (first_request_count_ << wire::kSlotBits) - wire::kSlotsMax);
  free_mask_ = window_mask();
  state_ = State::kOpen;
  reports_.start(sent_.next_number());
  return true;
}

/// Makes any slot but the first one, which wake_with() makes.
ClientSlot* ClientSession::make_slot(uint32_t index) {
  ClientSlot* slot = pools().slots.take();
  if (slot != nullptr) init_slot(slot, index);
  return slot;
}

inline void ClientSession::init_slot(ClientSlot* slot, uint32_t index) {
  const uint32_t number = numbers()[index];
  slot->request_number = (number & ~kIndexBits) | index;
  slot->bit = bit(index);
  if ((number & kIsUnreported) == 0) {
    slot->set_reported();
  } else if ((number & kHasRested) == 0) {
    slot->set_unreported();
  } else {
    slot->rested_number = slot->request_number;
  }
  slots_[index] = slot;
  busy_->made_mask |= slot->bit;
}

/// Gives each unreported slot memory, because a report can only name slots that have it. False: no memory.
bool ClientSession::make_unreported_slots() {
  for (uint32_t i = 0; i < window_; i++) {
    if (slots_[i] == nullptr && (numbers()[i] & kIsUnreported) != 0 && make_slot(i) == nullptr) return false;
  }
  return true;
}

/// Number of free slots whose responses the server keeps, because no report has named them.
uint32_t ClientSession::count_unreported() {
  uint32_t count = 0;
  for (uint32_t i = 0; i < window_; i++) {
    const bool is_unreported = slots_[i] != nullptr ? slots_[i]->is_unreported() : (numbers()[i] & kIsUnreported) != 0;
    count += is_unreported ? 1 : 0;
  }
  return count;
}

bool ClientSession::wake() {
  if (busy_ != nullptr) return true;
  if (state_ != State::kOpen) return false;
  ClientBusy* busy = pools().busy.take();
  if (busy == nullptr) return false;
  wake_with(busy);
  return true;
}

/// Only if sleeps().
inline void ClientSession::wake_with(ClientBusy* busy) {
  busy_ = busy;
  busy->sample_ns = last_sample_ns_;
  sent_.wake(busy->first_sent);
  if (window_ <= kFirstSlots) slots_ = busy->first_slots;
  init_slot(&busy->first_slot, 0);
}

ClientWatch& ClientSession::begin_watch() const {
  auto* watch = new (&busy_->watch) ClientWatch;
  watch->probe_timer = ProbeTimer(response_ns_, last_progress_ns_, busy_->sample_ns);
  watch->silence = SilenceTimer(terms_.liveness_ns);
  busy_->is_watched = true;
  return *watch;
}

void ClientSession::begin_first(ClientBusy* busy) {
  CHECK(sleeps());
  wake_with(busy);
  ClientSlot* call = &busy->first_slot;
  if (call->request->length_bytes < short_bytes_end_) [[likely]]  // begin() touches another cache line
    return take_slot(call, call->request, call->response, call->type, fresh_mask_);
  CHECK(begin(call->request, call->response, call->type) == call);
}

/// True if nothing needs the memory for calls. A report that is not acknowledged needs the slots that it names, and a
/// search for larger packets goes on until its end.
inline bool ClientSession::can_rest() const {
  return is_at_rest() && !has_unpaced() && (!holds_report_ || !reports_.is_outstanding()) && !is_stalled_ &&
         !is_searching() && sent_.in_flight() == 0;
}

inline void ClientSession::fall_asleep() {
  CHECK(sent_.is_empty());
  ClientBusy* const busy = std::exchange(busy_, nullptr);
  uint32_t* const request_numbers = numbers();
  for (uint64_t mask = busy->made_mask; mask != 0; mask &= mask - 1) {
    const size_t i = base::lowest_bit(mask);
    ClientSlot* slot = std::exchange(slots_[i], nullptr);
    request_numbers[i] = (slot->request_number & ~kIndexBits) | (slot->has_rested() ? kHasRested : 0) |
                         (slot->is_reported() ? 0 : kIsUnreported);
    if (slot != &busy->first_slot) pools().slots.give(slot);
  }
  if (window_ <= kFirstSlots) slots_ = no_slots();
  sent_.rest();
  pools().busy.give(busy);
}

bool ClientSession::try_rest() {
  if (busy_ == nullptr) return sleeps();
  if (!can_rest()) return false;
  sent_.advance_oldest();
  ProbeTimer timer = is_watched() ? watch().probe_timer : ProbeTimer(response_ns_, last_progress_ns_, busy_->sample_ns);
  timer.look_at_sample(last_sample_ns_, rtt_.latest_elapsed_ns());
  response_ns_ = static_cast<uint32_t>(std::min<uint64_t>(timer.response_ns(), UINT32_MAX));
  fall_asleep();
  return true;
}

}  // namespace tern::session
