// The process's clock. Base layer; any thread, no state.
#pragma once

#include <time.h>

#include <cstdint>

namespace tern::base {

/// Returns the nanoseconds of a clock of clock_gettime(2).
inline uint64_t read_clock_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// Returns the nanoseconds of CLOCK_MONOTONIC. This clock is the time base of all endpoints on real transports (which
/// read it by TickClock), of the real Environment and of Timer. It stands still while the machine is suspended. The
/// call is a vDSO call, without a system call.
inline uint64_t monotonic_ns() { return read_clock_ns(CLOCK_MONOTONIC); }

/// Returns the nanoseconds for which the calling thread has had a CPU. The call is a system call.
inline uint64_t thread_cpu_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace tern::base
