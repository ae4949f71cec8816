#include "sim/network/event_queue.h"

#include <algorithm>

#include "base/check.h"

namespace tern::sim {

struct EventQueue::IsLater {
  bool operator()(const Far& a, const Far& b) const {
    return a.what.at != b.what.at ? a.what.at > b.what.at : a.sequence > b.sequence;
  }
};

EventQueue::EventQueue() = default;
EventQueue::~EventQueue() = default;

void EventQueue::is_past(Picoseconds at) const {
  CHECK(at, >=, now_);
  __builtin_unreachable();
}

void EventQueue::is_out_of_memory() { base::check_failed(__FILE__, __LINE__, "there is memory for events", ""); }

// From there to the end of the array, then from its beginning to the rest of that word: nothing in the calendar is
// before now, and nothing a whole round after it. The buckets of a microsecond without events are 122 words.
uint64_t EventQueue::first_bucket_after(uint64_t word) const {
  do {
    word = (word + 1) % kWords;
  } while (words_[word] == 0);
  return word * 64 + static_cast<uint64_t>(std::countr_zero(words_[word]));
}

bool EventQueue::step(Picoseconds until) {
  if (near_.taken() == 0) return step_far(until);
  const uint64_t index = first_bucket();
  Event* const last = last_[index];
  Event* const event = last->next;
  const What what = event->what;
  if (what.at >= far_at_ || what.at > until) return step_far(until);
  if (event == last) {
    last_[index] = nullptr;
    words_[index / 64] &= ~(uint64_t{1} << index % 64);
    // What comes next is looked up while this one runs, if it is not far away.
    const uint64_t rest = words_[index / 64] >> index % 64;
    if (rest != 0) __builtin_prefetch(last_[index + static_cast<uint64_t>(std::countr_zero(rest))]->next->what.context);
  } else {
    last->next = event->next;
    __builtin_prefetch(event->next->what.context);
  }
  near_.give(event);
  now_ = what.at;
  what.run(what.context, what.argument);
  return true;
}

void EventQueue::insert_before(Event& last, Event& event) {
  Event* before = &last;
  while (before->next->what.at <= event.what.at) before = before->next;  // ends at the last one, which is later
  event.next = before->next;
  before->next = &event;
}

void EventQueue::add_far(const What& what) {
  far_.push_back({what, sequence_++});
  std::push_heap(far_.begin(), far_.end(), IsLater());
  far_at_ = far_.front().what.at;
}

// Nothing of the calendar is due before the earliest far one and `until`.
bool EventQueue::step_far(Picoseconds until) {
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
