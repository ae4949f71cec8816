// Objects that events of virtual time call. An event may outlive its object, so it carries a name instead of a pointer,
// and an event whose object is gone does nothing. Sim layer, network part. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/network/event_queue.h"

namespace tern::sim {

class EventTarget {
 public:
  virtual void on_event() = 0;

 protected:
  ~EventTarget() = default;
};

class EventTargets {
 public:
  explicit EventTargets(EventQueue& events) : events_(events) {}
  EventTargets(const EventTargets&) = delete;
  EventTargets& operator=(const EventTargets&) = delete;

  EventQueue& events() { return events_; }

  /// Gives `target` a name, which is valid until remove().
  uint64_t add(EventTarget* target) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.push_back({});
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    entries_[index].target = target;
    return uint64_t{entries_[index].uses} << 32 | index;
  }
  void remove(uint64_t name) {
    Entry& entry = entries_[static_cast<uint32_t>(name)];
    entry.target = nullptr;
    entry.uses++;
    free_.push_back(static_cast<uint32_t>(name));
  }
  /// Calls the target's on_event() at the time `at`, unless remove() is called before.
  void schedule(Picoseconds at, uint64_t name) { events_.add(at, &run, this, name); }

 private:
  struct Entry {
    EventTarget* target = nullptr;
    uint32_t uses = 0;
  };
  static void run(void* self, uint64_t name) {
    const Entry& entry = static_cast<EventTargets*>(self)->entries_[static_cast<uint32_t>(name)];
    if (entry.target != nullptr && entry.uses == name >> 32) entry.target->on_event();
  }

  EventQueue& events_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
};

/// Wakes one target at the earliest of several times, with few events. Only set() with an earlier time adds an event.
/// The target must call set() again for a later time when it is woken.
class Alarm {
 public:
  Alarm(EventTargets& targets, EventTarget* target) : targets_(targets), name_(targets.add(target)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  ~Alarm() { targets_.remove(name_); }

  /// Calls the target's on_event() at `at` or earlier.
  void set(Picoseconds at) {
    if (at >= near_) return;
    // In the steady state there are at most two events: a timer, and an earlier one.
    if (near_ != kNever) far_ = near_;
    near_ = at;
    targets_.schedule(at, name_);
  }
  /// The target's on_event() must call this first.
  void on_event() {
    const Picoseconds now = targets_.events().now();
    if (near_ <= now) {
      near_ = far_;
      far_ = kNever;
    }
    if (near_ <= now) near_ = kNever;
  }

 private:
  static constexpr Picoseconds kNever = UINT64_MAX;
  EventTargets& targets_;
  const uint64_t name_;
  Picoseconds near_ = kNever;  ///< time of the earliest event
  /// Time of a later event. Events beyond these two are not remembered, and call on_event() unexpectedly.
  Picoseconds far_ = kNever;
};

}  // namespace tern::sim
