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

// From now's bucket on to the end of the arrays, then from their beginning: nothing in the calendar is before now, and
// nothing a whole round after it.
uint64_t EventQueue::first_bucket() const {
  const uint64_t start = bucket_of(now_) % kBuckets;
  const uint64_t here = words_[start / 64] >> start % 64;
  if (here != 0) return start + static_cast<uint64_t>(std::countr_zero(here));
  uint64_t word = start / 64 + 1;
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
  return index == kBuckets ? far_at_ : std::min(far_at_, buckets_[index].first->what.at);
}

bool EventQueue::step(Picoseconds until) {
  const uint64_t index = first_bucket();
  if (index == kBuckets) return step_far(until);
  Bucket& bucket = buckets_[index];
  Event* const event = bucket.first;
  const What what = event->what;
  if (what.at >= far_at_ || what.at > until) return step_far(until);
  bucket.first = event->next;
  if (bucket.first == nullptr) {
    words_[index / 64] &= ~(uint64_t{1} << index % 64);
    if (words_[index / 64] == 0) summary_[index / 4096] &= ~(uint64_t{1} << index / 64 % 64);
  } else {
    __builtin_prefetch(bucket.first->what.context);
  }
  pool_.give(event);
  size_--;
  now_ = what.at;
  what.run(what.context, what.argument);
  return true;
}

void EventQueue::insert_before_last(Bucket& bucket, Event& event) {
  Event** link = &bucket.first;  // stops at the last one, which is later
  while ((*link)->what.at <= event.what.at) link = &(*link)->next;
  event.next = *link;
  *link = &event;
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
