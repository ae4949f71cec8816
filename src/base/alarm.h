// One descriptor for a program's own epoll loop. It is readable when another descriptor is readable, or when a set time
// has come. Base layer; one thread.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/wait.h"

namespace tern::base {

class TERN_API Alarm {
 public:
  /// Watches the descriptor `watched`. kUnavailable: there are no descriptors left, or too many are watched. kNoMemory:
  /// the system has no memory for an epoll set. After an error the object is not open.
  Status open(int watched);
  bool is_open() const { return set_.is_open(); }
  /// -1 before open().
  int descriptor() const { return set_.descriptor(); }
  /// Makes the descriptor readable from `at_ns` (monotonic_ns()) on, until the next call of set(). UINT64_MAX: never. A
  /// time in the past: at once.
  void set(uint64_t at_ns) { timer_.set_at(at_ns); }

 private:
  WaitSet set_;
  Timer timer_;
};

}  // namespace tern::base
