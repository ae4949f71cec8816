// Waiting for descriptors: an epoll set, an event that other threads raise, and a timer. Base layer. One thread owns
// each object. Other threads may call only WakeEvent::wake().
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/detail/export.h>

#include "base/descriptor.h"

namespace tern::base {

/// A set of descriptors that one thread waits for.
class TERN_API WaitSet {
 public:
  /// False: errno says why.
  [[nodiscard]] bool open();
  bool is_open() const { return static_cast<bool>(epoll_); }
  /// Readable when wait() would return; -1 before open().
  int descriptor() const { return epoll_.get(); }

  /// Watches `fd` for `events` (EPOLLIN, EPOLLOUT). wait() reports them with `name` in data.u64. A descriptor that is
  /// watched already takes the new events and name. False: errno says why.
  [[nodiscard]] bool add(int fd, uint32_t events, uint64_t name);
  /// Does nothing if `fd` is not watched. Must be called before a descriptor is closed of which a forked child may have
  /// a copy, because the copy keeps the watch alive.
  void remove(int fd);

  /// Blocks until an event, a signal, or `deadline_ns` (monotonic_ns(); UINT64_MAX: no limit; a time in the past: does
  /// not block). `events` must not be empty. Fills its front and returns the number of events.
  size_t wait(std::span<epoll_event> events, uint64_t deadline_ns);
  /// Like wait(), for a caller that checks everything it waits for afterwards.
  void wait_any(uint64_t deadline_ns) {
    epoll_event any;
    wait({&any, 1}, deadline_ns);
  }

 private:
  Descriptor epoll_;
};

/// An event that any thread raises and one thread waits for.
class TERN_API WakeEvent {
 public:
  /// False: errno says why.
  [[nodiscard]] bool open();
  /// Readable from wake() until clear(); -1 before open().
  int descriptor() const { return event_.get(); }
  /// Any thread; async-signal-safe. Only the first call after a clear() makes a system call.
  void wake();
  /// Only the waiting thread may call this, after it has waited and before it reads what the wakers have left for it.
  void clear();

 private:
  Descriptor event_;
  std::atomic<bool> is_raised_{false};  ///< set before the descriptor is written, cleared after it was read
};

/// A timer that makes a descriptor readable.
class TERN_API Timer {
 public:
  /// False: errno says why.
  [[nodiscard]] bool open();
  /// Readable from the set time on, until set_at() or take(); -1 before open().
  int descriptor() const { return timer_.get(); }
  /// `at_ns`: monotonic_ns(). A time in the past: at once. UINT64_MAX: never. Costs nothing if the timer is set to this
  /// time already.
  void set_at(uint64_t at_ns);
  /// Stops the timer.
  void stop() { set_at(UINT64_MAX); }
  /// Makes the descriptor unreadable. Returns false if the time had not come.
  bool take();

 private:
  Descriptor timer_;
  uint64_t at_ns_ = UINT64_MAX;
};

}  // namespace tern::base
