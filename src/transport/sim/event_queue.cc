#include "transport/sim/event_queue.h"

#include <algorithm>

namespace tern::transport {

struct EventQueue::IsLater {
  bool operator()(const Far& a, const Far& b) const {
    return a.what.at != b.what.at ? a.what.at > b.what.at : a.sequence > b.sequence;
  }
};

EventQueue::EventQueue() = default;
EventQueue::~EventQueue() = default;

// From there to the end of the arrays, then from their beginning, until the rest of that word: nothing in the calendar
// is before now, and nothing a whole round after it.
uint64_t EventQueue::first_bucket_after(uint64_t word) const {
  word++;
  for (size_t i = 0; i <= summary_.size(); i++) {  // the last one is the first one's beginning
    const uint64_t words = summary_[word / 64 % summary_.size()] >> word % 64;
    if (words != 0) {
      word = (word + static_cast<uint64_t>(std::countr_zero(words))) % kWords;
      return word * 64 + static_cast<uint64_t>(std::countr_zero(words_[word]));
    }
    word = (word / 64 + 1) * 64;
  }
  return kBuckets;
}

Picoseconds EventQueue::next() const {
  CHECK(size_, !=, 0u);
  const uint64_t index = first_bucket();
  return index == kBuckets ? far_at_ : std::min(far_at_, last_[index]->next->what.at);
}

bool EventQueue::step(Picoseconds until) {
  const uint64_t index = first_bucket();
  if (index == kBuckets) return step_far(until);
  Event* const last = last_[index];
  Event* const event = last->next;
  const What what = event->what;
  if (what.at >= far_at_ || what.at > until) return step_far(until);
  if (event == last) {
    last_[index] = nullptr;
    words_[index / 64] &= ~(uint64_t{1} << index % 64);
    if (words_[index / 64] == 0) summary_[index / 4096] &= ~(uint64_t{1} << index / 64 % 64);
  } else {
    last->next = event->next;
    __builtin_prefetch(event->next->what.context);
  }
  pool_.give(event);
  size_--;
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
  size_--;
  now_ = what.at;
  what.run(what.context, what.argument);
  return true;
}

}  // namespace tern::transport
