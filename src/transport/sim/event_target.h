// Who events of virtual time are for. An event outlives what it is for: it carries a name, and names of what is gone
// lead nowhere.
// Transport room. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/sim/event_queue.h"

namespace tern::transport {

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

  /// A name for it, until remove().
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
  /// on_event() at `at`, unless remove() comes first.
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

/// One target that wants to be woken at the earliest of the times it asked for, without an event for each of these:
/// an earlier wish makes a new event, a later one is remembered by whoever has it and asked for again.
class Alarm {
 public:
  Alarm(EventTargets& targets, EventTarget* target) : targets_(targets), name_(targets.add(target)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  ~Alarm() { targets_.remove(name_); }

  /// on_event() at `at`, or before.
  void set(Picoseconds at) {
    if (at >= near_) return;
    // In the steady state at most two are out: a timer, and what comes before it.
    if (near_ != kNever) far_ = near_;
    near_ = at;
    targets_.schedule(at, name_);
  }
  /// To be called first by on_event(): an event has come.
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
  Picoseconds near_ = kNever;  ///< the earliest event that is out
  Picoseconds far_ = kNever;   ///< a later one; there may be more, which then come as surprises
};

}  // namespace tern::transport
