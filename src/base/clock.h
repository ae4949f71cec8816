// The process's clock. Base layer; any thread, no state.
#pragma once

#include <time.h>

#include <cstdint>

namespace tern::base {

/// Returns the nanoseconds of CLOCK_MONOTONIC. This clock is the time base of all endpoints on real transports (which
/// read it by TickClock), of the real Environment and of Timer. It stands still while the machine is suspended. The
/// call is a vDSO call, without a system call.
inline uint64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// Returns the nanoseconds for which the calling thread has had a CPU. The call is a system call.
inline uint64_t thread_cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace tern::base
