#include "sim/network/event_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tern::sim {

struct EventQueue::IsLater {
  bool operator()(const Far& a, const Far& b) const {
    return a.what.at != b.what.at ? a.what.at > b.what.at : a.sequence > b.sequence;
  }
};

EventQueue::EventQueue() { set_bucket_bits(kWidestBits); }
EventQueue::~EventQueue() = default;

void EventQueue::is_past(Picoseconds at) const {
  CHECK(at, >=, now_);
  __builtin_unreachable();
}

// The search goes from the next word to the end of the bitmap, and from the bitmap's beginning to `word` itself. The
// first bucket found is the earliest, because all events of the calendar are between now and now + a whole round.
uint64_t EventQueue::first_bucket_after(uint64_t word) const {
  do {
    word = (word + 1) & bucket_mask_ / 64;
  } while (words_[word] == 0);
  return word * 64 + static_cast<uint64_t>(std::countr_zero(words_[word]));
}

void EventQueue::insert_before(Event* last, Event* event) {
  Event* before = last;
  steps_++;
  for (; before->next->what.at <= event->what.at; steps_++) before = before->next;  // ends at `last`, which is later
  event->next = before->next;
  before->next = event;
  if (steps_ >= kStepsPerCheck) adapt();
}

void EventQueue::adapt() {
  const uint64_t events = added_ - added_before_;
  if (steps_ * kEventsPerStepMin > events && bucket_bits_ > kNarrowestBits) {
    set_bucket_bits(bucket_bits_ - 1);
  } else if (steps_ * kEventsPerStepMax < events && bucket_bits_ < kWidestBits) {
    set_bucket_bits(bucket_bits_ + 1);
  }
  added_before_ = added_;
  steps_ = 0;
}

void EventQueue::set_bucket_bits(uint32_t bits) {
  Event* events = nullptr;  // all events of the calendar, sorted
  Event** end = &events;
  for (size_t left = added_ - ran_; left != 0;) {
    const uint64_t index = first_bucket();
    words_[index / 64] &= ~(uint64_t{1} << index % 64);
    Event* const last = last_[index];
    const Event* event = last->next;
    for (left--; event != last; left--) event = event->next;
    *end = last->next;
    end = &last->next;
  }
  *end = nullptr;
  bucket_bits_ = bits;
  bucket_mask_ = (kHorizon << (kWidestBits - bits)) - 1;
  while (events != nullptr) insert(std::exchange(events, events->next));
}

void EventQueue::grow() {
  free_ = pool_.take();
  CHECK(free_ != nullptr);  // the machine has no memory left for the simulation
}

void EventQueue::add_far(Picoseconds at, Run run, void* context, uint64_t argument) {
  far_.push_back({{at, run, context, argument}, sequence_++});
  std::push_heap(far_.begin(), far_.end(), IsLater());
  far_at_ = far_.front().what.at;
}

// The calendar must have no event that is before the heap's earliest event and not after `until`.
bool EventQueue::step_far(Picoseconds until) {
  if (added_ - added_before_ >= kStepsPerCheck * kEventsPerStepMin) adapt();
  if (far_.empty() || far_at_ > until) {
    now_ = std::max(now_, until);
    return false;
  }
  const What what = far_.front().what;
  std::pop_heap(far_.begin(), far_.end(), IsLater());
  far_.pop_back();
  far_at_ = far_.empty() ? UINT64_MAX : far_.front().what.at;
  now_ = what.at;
  what.run(what.context, what.argument);
  return true;
}

}  // namespace tern::sim
