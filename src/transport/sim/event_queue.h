// What happens next: events of virtual time, earliest first, equal times in the order in which they were added.
// Transport room. One thread; knows nothing of what an event does.
#pragma once

#include <cstdint>

namespace tern::transport {

/// Virtual time in picoseconds: a byte at 100 Gbit/s takes 80 of them. Wraps after 213 days.
using Picoseconds = uint64_t;
inline constexpr Picoseconds kPicosecondsPerNs = 1000;

class EventQueue {
 public:
  using Run = void (*)(void* context, uint64_t argument);

  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  Picoseconds now() const { return now_; }
  bool empty() const;
  /// Only when not empty.
  Picoseconds next() const;
  /// Calls run(context, argument) at `at`, which is not before now().
  void add(Picoseconds at, Run run, void* context, uint64_t argument);
  /// Runs the earliest event, if there is one at `until` or before; else the time is `until`. True: it ran one.
  bool step(Picoseconds until);

 private:
  Picoseconds now_ = 0;
};

}  // namespace tern::transport
