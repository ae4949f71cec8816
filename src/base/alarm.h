// One descriptor for a program's own epoll loop: readable when another descriptor is, or when a time has come.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern::base {

class TERN_API Alarm {
 public:
  Alarm() = default;
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// kUnavailable: no descriptors left. kNoMemory. It is as before then.
  Status open(int watched);
  bool is_open() const { return epoll_ >= 0; }
  /// -1 before open().
  int descriptor() const { return epoll_; }
  /// Readable from `at_ns` (CLOCK_MONOTONIC) on, until the next call; UINT64_MAX: never; the past: now.
  void set(uint64_t at_ns);

 private:
  int epoll_ = -1;
  int timer_ = -1;
};

}  // namespace tern::base
