// The queue of events in virtual time. The earliest event runs first; events with equal times run in the order in which
// they were added. Sim layer, network part. One thread; does not know what an event does.
//
// Near events are in a calendar of buckets (a calendar queue). Each bucket is a sorted list, and a bitmap says which
// buckets are not empty. The width of the buckets follows the density of the events, because wide buckets take few
// cache lines, and narrow buckets have short lists. Events beyond the calendar's horizon are in a heap until their time
// comes. An event of the heap was added while its time was beyond the horizon, and therefore before any event of the
// calendar with the same time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tern/detail/export.h>

#include "base/pool.h"

namespace tern::sim {

/// Virtual time in picoseconds, because a byte at 100 Gbit/s takes 80 ps. Wraps after 213 days.
using Picoseconds = uint64_t;
inline constexpr Picoseconds kPicosecondsPerNs = 1000;

class TERN_API EventQueue {
 public:
  using Run = void (*)(void* context, uint64_t argument);

  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  Picoseconds now() const { return now_; }
  bool empty() const { return size() == 0; }
  size_t size() const { return (added_ - ran_) + far_.size(); }
  /// Calls run(context, argument) at the time `at`, which must not be before now().
  [[gnu::always_inline]] void add(Picoseconds at, Run run, void* context, uint64_t argument) {
    if (at < now_) [[unlikely]]
      is_past(at);
    if ((at >> kWidestBits) - (now_ >> kWidestBits) >= kHorizon) [[unlikely]]
      return add_far(at, run, context, argument);
    if (free_ == nullptr) [[unlikely]]
      grow();
    Event* const event = free_;
    free_ = event->next;
    event->what = {at, run, context, argument};
    added_++;
    insert(event);
  }
  /// Runs all events with times up to `until`, and calls after() after each of them. Then sets now() to `until`. An
  /// event may itself call run_until() or step().
  template <class After>
  void run_until(Picoseconds until, const After& after) {
    while (step(until)) after();
  }
  /// Runs the earliest event and returns true if its time is not after `until`. Otherwise sets now() to `until` (never
  /// back) and returns false.
  [[gnu::always_inline]] bool step(Picoseconds until) {
    if (added_ == ran_) [[unlikely]]
      return step_far(until);
    const uint64_t index = first_bucket();
    Event* const last = last_[index];
    Event* const event = last->next;
    const What what = event->what;
    if (what.at >= far_at_ || what.at > until) [[unlikely]]
      return step_far(until);
    if (event == last) {
      const uint64_t word = words_[index / 64] & ~(uint64_t{1} << index % 64);
      words_[index / 64] = word;
      // The context of the next event is prefetched while this event runs, if its bucket is in the same word.
      const uint64_t rest = word >> index % 64;
      if (rest != 0) {
        __builtin_prefetch(last_[index + static_cast<uint64_t>(std::countr_zero(rest))]->next->what.context);
      }
    } else {
      last->next = event->next;
      __builtin_prefetch(event->next->what.context);
    }
    event->next = free_;
    free_ = event;
    ran_++;
    now_ = what.at;
    what.run(what.context, what.argument);
    return true;
  }

 private:
  // A bucket is 16 ns to 1/8 ns wide. A bucket of 1/8 ns has about one event when a hundred hosts send small packets
  // (10 events in a nanosecond). All buckets together are 67 us wide. That is more than a frame of a fast link takes
  // from node to node, and more than the time to the next timer of most busy endpoints.
  static constexpr uint32_t kWidestBits = 14;
  static constexpr uint32_t kNarrowestBits = 7;
  /// Width of the calendar, in widest buckets. It is the same for any width of the buckets, because the horizon must
  /// not come nearer: an event of the heap is older than events of the calendar with the same time.
  static constexpr uint64_t kHorizon = 4096;
  static constexpr uint64_t kBucketsMax = kHorizon << (kWidestBits - kNarrowestBits);
  // Inserting an event before others walks through its bucket's list. The buckets get half as wide if the walks take
  // more than one step per 4 events, and twice as wide if they take less than one step per 32 events. These limits are
  // far apart because twice the width doubles the steps.
  static constexpr uint64_t kEventsPerStepMin = 4;
  static constexpr uint64_t kEventsPerStepMax = 32;
  /// adapt() runs after this many steps. step_far() also runs it after kEventsPerStepMin times as many events.
  static constexpr uint64_t kStepsPerCheck = 1024;

  struct What {
    Picoseconds at;
    Run run;
    void* context;
    uint64_t argument;
  };
  struct Event {
    Event* next = nullptr;
    What what{};
  };
  struct Far {
    What what;
    uint64_t sequence;
  };
  struct IsLater;
  uint64_t bucket_of(Picoseconds at) const { return at >> bucket_bits_ & bucket_mask_; }
  void insert(Event* event) {
    const uint64_t index = bucket_of(event->what.at);
    const uint64_t bit = uint64_t{1} << index % 64;
    uint64_t& word = words_[index / 64];
    if ((word & bit) == 0) {
      word |= bit;
      last_[index] = event->next = event;
      return;
    }
    Event* const last = last_[index];
    if (last->what.at > event->what.at) return insert_before(last, event);
    event->next = last->next;
    last_[index] = last->next = event;
  }
  void insert_before(Event* last, Event* event);
  /// The bucket of the calendar's earliest event. The calendar must not be empty.
  uint64_t first_bucket() const {
    const uint64_t start = bucket_of(now_);
    const uint64_t here = words_[start / 64] >> start % 64;
    return here != 0 ? start + static_cast<uint64_t>(std::countr_zero(here)) : first_bucket_after(start / 64);
  }
  uint64_t first_bucket_after(uint64_t word) const;
  void adapt();
  void set_bucket_bits(uint32_t bits);
  void add_far(Picoseconds at, Run run, void* context, uint64_t argument);
  void grow();
  bool step_far(Picoseconds until);
  [[noreturn]] void is_past(Picoseconds at) const;

  Picoseconds now_ = 0;
  Picoseconds far_at_ = UINT64_MAX;  ///< time of the earliest event in `far_`
  uint32_t bucket_bits_ = 0;         ///< log2 of a bucket's width in picoseconds
  uint64_t added_ = 0;               ///< events added to the calendar
  uint64_t ran_ = 0;                 ///< events of the calendar that have run
  Event* free_ = nullptr;
  uint64_t bucket_mask_ = 0;
  std::array<uint64_t, kBucketsMax / 64> words_{};  ///< bitmap of the buckets that are not empty
  std::array<Event*, kBucketsMax> last_;  ///< last event of each bucket's circular list: its `next` is the first event
  uint64_t added_before_ = 0;             ///< `added_` at the last adapt()
  uint64_t steps_ = 0;                    ///< steps of walks through lists since the last adapt()
  base::Pool<Event> pool_;
  std::vector<Far> far_;  ///< heap of the events that were beyond the horizon when they were added
  uint64_t sequence_ = 0;
};

}  // namespace tern::sim
