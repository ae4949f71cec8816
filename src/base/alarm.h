// One descriptor for a program's own epoll loop: readable when another descriptor is, or when a time has come. Base
// layer; one thread.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/wait.h"

namespace tern::base {

class TERN_API Alarm {
 public:
  /// Watches the descriptor `watched`. kUnavailable: there are no descriptors left. kNoMemory. After an error the
  /// object is not open.
  Status open(int watched);
  bool is_open() const { return set_.is_open(); }
  /// -1 before open().
  int descriptor() const { return set_.descriptor(); }
  /// Readable from `at_ns` (monotonic_ns()) on, until the next call; UINT64_MAX: never; the past: now.
  void set(uint64_t at_ns) { timer_.set_at(at_ns); }

 private:
  WaitSet set_;
  Timer timer_;
};

}  // namespace tern::base
