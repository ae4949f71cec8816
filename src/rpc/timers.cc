#include "rpc/timers.h"

#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::rpc {

uint64_t Timers::add(uint64_t at_ns, detail::InlineFunction<>& then) {
  if (!base::try_reserve(heap_, heap_.size() + 1)) return 0;
  if (first_free_ == kNone) {
    if (places_.size() > kPlaceMask || !base::try_reserve(places_, places_.size() + 1)) return 0;
    first_free_ = static_cast<uint32_t>(places_.size());
    places_.emplace_back();
  }
  const uint32_t index = first_free_;
  Place& place = places_[index];
  first_free_ = place.next_free;
  const Timer timer = {at_ns, sequence_++, index};
  place.name = timer.sequence << kPlaceBits | index;
  place.then = std::move(then);
  heap_.push_back(timer);
  move_up(heap_.size() - 1, timer);
  return place.name;
}

bool Timers::cancel(uint64_t name) {
  const uint64_t index = name & kPlaceMask;
  if (name == 0 || index >= places_.size() || places_[index].name != name) return false;
  // The function is destroyed at the end, because its captures may use the endpoint.
  const detail::InlineFunction<> then = take(places_[index].heap_index);
  return true;
}

void Timers::run(uint64_t now_ns) {
  const uint64_t added_from_here = sequence_;
  while (!heap_.empty() && heap_.front().at_ns <= now_ns && heap_.front().sequence < added_from_here) take(0).run();
}

void Timers::clear() {
  // The loop leaves out timers that captures add during their destruction.
  for (size_t count = heap_.size(); count > 0 && !heap_.empty(); count--) {
    const detail::InlineFunction<> then = take(heap_.size() - 1);
  }
}

// ---- The heap ----

void Timers::put(size_t index, const Timer& timer) {
  heap_[index] = timer;
  places_[timer.place].heap_index = static_cast<uint32_t>(index);
}

/// Puts `timer` at `index` or at an ancestor of it. The timer that was at `index` must be elsewhere already.
void Timers::move_up(size_t index, const Timer& timer) {
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (!is_earlier(timer, heap_[parent])) break;
    put(index, heap_[parent]);
    index = parent;
  }
  put(index, timer);
}

/// Puts `timer` at `index` or at a descendant of it. The timer that was at `index` must be elsewhere already.
void Timers::move_down(size_t index, const Timer& timer) {
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && is_earlier(heap_[child + 1], heap_[child])) child++;
    if (!is_earlier(heap_[child], timer)) break;
    put(index, heap_[child]);
    index = child;
  }
  put(index, timer);
}

/// Removes a timer. Returns its function.
detail::InlineFunction<> Timers::take(size_t index) {
  const uint32_t freed = heap_[index].place;
  const Timer last = heap_.back();
  heap_.pop_back();
  if (index < heap_.size()) {
    if (index > 0 && is_earlier(last, heap_[(index - 1) / 2])) {
      move_up(index, last);
    } else {
      move_down(index, last);
    }
  }
  Place& place = places_[freed];
  place.name = 0;
  place.next_free = std::exchange(first_free_, freed);
  return std::move(place.then);
}

void Timers::check_invariants() const {
  for (size_t i = 0; i < heap_.size(); i++) {
    const Timer& timer = heap_[i];
    if (i > 0) CHECK(!is_earlier(timer, heap_[(i - 1) / 2]));
    CHECK(timer.sequence, <, sequence_);
    CHECK(timer.place, <, places_.size());
    const Place& place = places_[timer.place];
    CHECK(place.heap_index, ==, i);
    CHECK(place.name, ==, (timer.sequence << kPlaceBits | timer.place));
    CHECK(static_cast<bool>(place.then));
  }
  size_t free = 0;
  for (uint32_t place = first_free_; place != kNone; place = places_[place].next_free) {
    CHECK(places_[place].name, ==, 0u);
    free++;
  }
  CHECK(free + heap_.size(), ==, places_.size());
}

}  // namespace tern::rpc
