// Waiting for descriptors: an epoll set, an event that other threads raise, and a timer. Base layer. One thread owns
// each object; only WakeEvent::wake() may be called by others.
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

  /// Blocks until an event, a signal, or `deadline_ns` (monotonic_ns(); UINT64_MAX: no limit; the past: does not
  /// block). Fills the front of `events`, which is not empty, and returns how many there are.
  size_t wait(std::span<epoll_event> events, uint64_t deadline_ns);
  /// As wait(), for a caller that looks at everything afterwards.
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
  /// The waiting thread only, after it has waited and before it looks at what the wakers have left for it.
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
  /// Readable once the time has come, until it is set again or taken; -1 before open().
  int descriptor() const { return timer_.get(); }
  /// `at_ns`: monotonic_ns(). The past: at once. UINT64_MAX: never. Costs nothing if it is set to this time already.
  void set_at(uint64_t at_ns);
  /// Never from now on.
  void stop() { set_at(UINT64_MAX); }
  /// Makes the descriptor unreadable. False: the time had not come.
  bool take();

 private:
  Descriptor timer_;
  uint64_t at_ns_ = UINT64_MAX;
};

}  // namespace tern::base
