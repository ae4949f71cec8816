// Events of virtual time, earliest first, and those of equal time in the order in which they were added.
// Sim layer, network part. One thread; knows nothing of what an event does.
//
// A calendar of buckets holds the near events, each bucket a list in order, with a bit per bucket that is not empty.
// The width of a bucket follows the density of the events: wide buckets are few cache lines, narrow ones short lists. A
// heap holds the events beyond the calendar's horizon until their time comes. An event of the heap was added while its
// time was beyond the horizon, and therefore before any event of the calendar with the same time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tern/detail/export.h>

#include "base/pool.h"

namespace tern::sim {

/// Virtual time in picoseconds: a byte at 100 Gbit/s takes 80 of them. Wraps after 213 days.
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
  /// Calls run(context, argument) at `at`, which is not before now().
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
  /// Runs all events until then, each followed by `after()`. An event may run others itself.
  template <class After>
  void run_until(Picoseconds until, const After& after) {
    while (step(until)) after();
  }
  /// Runs the earliest event if its time is `until` or before, and returns true; otherwise the time becomes `until`.
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
      // What comes next is looked up while this one runs, if it is not far away.
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
  // A bucket is 16 ns to an eighth of a nanosecond, which has one event where a hundred hosts send small packets (10
  // events in a nanosecond). All buckets are 4 us, which is more than a frame of a fast link takes from node to node.
  static constexpr uint32_t kWidestBits = 14;
  static constexpr uint32_t kNarrowestBits = 7;
  static constexpr uint64_t kHorizon = 256;  ///< in widest buckets, for any width, so that it never comes nearer
  static constexpr uint64_t kBucketsMax = kHorizon << (kWidestBits - kNarrowestBits);
  // A bucket gets half as wide when there was a step of a walk through a list for every fourth event, and twice as wide
  // when there was one for less than every 32nd, because twice the width doubles the steps.
  static constexpr uint64_t kEventsPerStepMin = 4;
  static constexpr uint64_t kEventsPerStepMax = 32;
  static constexpr uint64_t kStepsPerCheck = 1024;  ///< and at least four times as many events

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
  /// The bucket of the earliest event of the calendar, which is not empty.
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
  uint32_t bucket_bits_ = 0;         ///< a bucket is so many bits of a time
  uint64_t added_ = 0;               ///< to the calendar
  uint64_t ran_ = 0;                 ///< of those
  Event* free_ = nullptr;
  uint64_t bucket_mask_ = 0;
  std::array<uint64_t, kBucketsMax / 64> words_{};  ///< a bit for each bucket that is not empty
  std::array<Event*, kBucketsMax> last_;  ///< last event of each bucket: a ring, in which its `next` is the first
  uint64_t added_before_ = 0;             ///< `added_` at the last check of the width
  uint64_t steps_ = 0;                    ///< of walks through lists since then
  base::Pool<Event> pool_;
  std::vector<Far> far_;  ///< a heap
  uint64_t sequence_ = 0;
};

}  // namespace tern::sim
