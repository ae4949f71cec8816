// Events of virtual time, earliest first, and those of equal time in the order in which they were added.
// Sim layer, network part. One thread; knows nothing of what an event does.
//
// A calendar of buckets holds the near events, each bucket a list in order, with a bit per bucket that is not empty. A
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
  size_t size() const { return near_.taken() + far_.size(); }
  /// Calls run(context, argument) at `at`, which is not before now().
  void add(Picoseconds at, Run run, void* context, uint64_t argument) {
    if (at < now_) [[unlikely]]
      is_past(at);
    if (bucket_of(at) - bucket_of(now_) >= kBuckets) [[unlikely]]
      return add_far({at, run, context, argument});
    Event* const event = near_.take(Event{nullptr, {at, run, context, argument}});
    if (event == nullptr) [[unlikely]]
      is_out_of_memory();
    insert(*event);
  }
  /// Runs the earliest event if its time is `until` or before, and returns true; otherwise the time becomes `until`.
  bool step(Picoseconds until);

 private:
  // A bucket is an eighth of a nanosecond, and has one event where a hundred hosts send small packets (10 events in a
  // nanosecond). All buckets are 4 us, which is more than a frame of a fast link takes from node to node.
  static constexpr uint32_t kBucketBits = 7;
  static constexpr uint64_t kBuckets = 32768;
  static constexpr uint64_t kWords = kBuckets / 64;

  struct What {
    Picoseconds at;
    Run run;
    void* context;
    uint64_t argument;
  };
  struct Event {
    Event* next;
    What what;
  };
  struct Far {
    What what;
    uint64_t sequence;
  };
  struct IsLater;
  static uint64_t bucket_of(Picoseconds at) { return at >> kBucketBits; }
  void insert(Event& event) {
    const uint64_t index = bucket_of(event.what.at) % kBuckets;
    Event*& last = last_[index];
    if (last == nullptr) {
      last = event.next = &event;
      words_[index / 64] |= uint64_t{1} << index % 64;
      return;
    }
    if (last->what.at > event.what.at) return insert_before(*last, event);
    event.next = last->next;
    last = last->next = &event;
  }
  static void insert_before(Event& last, Event& event);
  /// The bucket of the earliest event of the calendar, which is not empty.
  uint64_t first_bucket() const {
    const uint64_t start = bucket_of(now_) % kBuckets;
    const uint64_t here = words_[start / 64] >> start % 64;
    return here != 0 ? start + static_cast<uint64_t>(std::countr_zero(here)) : first_bucket_after(start / 64);
  }
  uint64_t first_bucket_after(uint64_t word) const;
  void add_far(const What& what);
  bool step_far(Picoseconds until);
  [[noreturn]] void is_past(Picoseconds at) const;
  [[noreturn]] static void is_out_of_memory();

  Picoseconds now_ = 0;
  Picoseconds far_at_ = UINT64_MAX;       ///< time of the earliest event in `far_`
  std::array<uint64_t, kWords> words_{};  ///< a bit for each bucket that is not empty
  std::array<Event*, kBuckets> last_{};   ///< last event of each bucket: a ring, in which its `next` is the first
  base::Pool<Event> near_;                ///< events of the calendar
  std::vector<Far> far_;                  ///< a heap
  uint64_t sequence_ = 0;
};

}  // namespace tern::sim
