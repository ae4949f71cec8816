// The timers of peers and sessions: a binary heap with at most one timer for each record. Space for a record's timer is
// reserved when the record is made, so that arming cannot fail.
#include <algorithm>

#include "base/try.h"
#include "nexus/management.h"

namespace tern::nexus {

namespace {
/// An interval doubles at most this many times. No interval needs more, and none overflows.
constexpr int kDoublingsMax = 16;
}  // namespace

bool Management::reserve_timer() { return base::try_reserve(timers_, peers_.size() + sessions_.size() + 1); }

void Management::arm_peer(uint32_t index, Duration at) { arm(peers_[index].timer_place, {at, index, true}); }

void Management::arm_session(uint32_t index, Duration at) { arm(sessions_[index].timer_place, {at, index, false}); }

/// `place`: place of the record's timer; kNone: there is none.
void Management::arm(uint32_t place, Timer timer) {
  const Duration timer_at = place == kNone ? kNever : timers_[place].at;
  if (timer_at == timer.at) return;
  if (timer.at == kNever) return remove_timer(place);
  if (place == kNone) {
    place = static_cast<uint32_t>(timers_.size());
    timers_.push_back(timer);
  } else {
    timers_[place] = timer;
  }
  move_timer(place);
}

void Management::put_timer(size_t place, const Timer& timer) {
  timers_[place] = timer;
  (timer.is_peer ? peers_[timer.index].timer_place : sessions_[timer.index].timer_place) = static_cast<uint32_t>(place);
}

/// Restores the heap's order around a timer that has changed.
void Management::move_timer(size_t place) {
  const Timer timer = timers_[place];
  while (place > 0 && timer < timers_[(place - 1) / 2]) {
    put_timer(place, timers_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  while (true) {
    size_t child = 2 * place + 1;
    if (child >= timers_.size()) break;
    if (child + 1 < timers_.size() && timers_[child + 1] < timers_[child]) child++;
    if (!(timers_[child] < timer)) break;
    put_timer(place, timers_[child]);
    place = child;
  }
  put_timer(place, timer);
}

void Management::remove_timer(uint32_t place) {
  const Timer removed = timers_[place];
  (removed.is_peer ? peers_[removed.index].timer_place : sessions_[removed.index].timer_place) = kNone;
  const Timer last = timers_.back();
  timers_.pop_back();
  if (place == timers_.size()) return;
  timers_[place] = last;
  move_timer(place);
}

Duration Management::interval_of(const Session& session, const Intervals& intervals) {
  return std::min(intervals.first * (1 << std::min<int>(session.repetitions, kDoublingsMax)), intervals.max);
}

/// Arms the timer for the next repetition, but not after `until`. A jitter of a quarter keeps many sessions from
/// repeating in step.
void Management::repeat_later(uint32_t index, const Intervals& intervals, Duration now, Duration until) {
  Session& session = sessions_[index];
  const Duration interval = interval_of(session, intervals);
  const uint64_t spread = static_cast<uint64_t>(interval.count()) / 2 + 1;
  const Duration jittered = interval * 3 / 4 + Duration(static_cast<int64_t>(random() % spread));
  session.repetitions = static_cast<uint8_t>(std::min<int>(session.repetitions + 1, UINT8_MAX));
  arm_session(index, std::min(now + jittered, until));
}

}  // namespace tern::nexus
