// Programs written for eRPC: the cycle counter and timers. See docs/erpc-migration.md.
#pragma once

#include <chrono>
#include <thread>

#include "../common.h"

namespace erpc {

/// The processor's time stamp counter, or nanoseconds on processors without one.
inline size_t rdtsc() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<size_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}
inline size_t dpath_rdtsc() { return rdtsc(); }

class ChronoTimer {
 public:
  void reset() { start_ = std::chrono::steady_clock::now(); }
  size_t get_ns() const { return static_cast<size_t>((std::chrono::steady_clock::now() - start_).count()); }
  double get_us() const { return static_cast<double>(get_ns()) / 1e3; }
  double get_ms() const { return static_cast<double>(get_ns()) / 1e6; }
  double get_sec() const { return static_cast<double>(get_ns()) / 1e9; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The frequency of rdtsc() in GHz. Takes 10 ms.
inline double measure_rdtsc_freq() {
  const ChronoTimer timer;
  const size_t start = rdtsc();
  while (timer.get_ns() < 10'000'000) std::this_thread::yield();
  return static_cast<double>(rdtsc() - start) / static_cast<double>(timer.get_ns());
}

inline double to_nsec(size_t cycles, double freq_ghz) { return static_cast<double>(cycles) / freq_ghz; }
inline double to_usec(size_t cycles, double freq_ghz) { return to_nsec(cycles, freq_ghz) / 1e3; }
inline double to_msec(size_t cycles, double freq_ghz) { return to_nsec(cycles, freq_ghz) / 1e6; }
inline double to_sec(size_t cycles, double freq_ghz) { return to_nsec(cycles, freq_ghz) / 1e9; }
inline size_t ns_to_cycles(double ns, double freq_ghz) { return static_cast<size_t>(ns * freq_ghz); }
inline size_t us_to_cycles(double us, double freq_ghz) { return ns_to_cycles(us * 1e3, freq_ghz); }
inline size_t ms_to_cycles(double ms, double freq_ghz) { return ns_to_cycles(ms * 1e6, freq_ghz); }

/// Waits by spinning.
inline void nano_sleep(size_t ns, double freq_ghz) {
  const size_t start = rdtsc(), cycles = ns_to_cycles(static_cast<double>(ns), freq_ghz);
  while (rdtsc() - start < cycles) {
  }
}

/// Seconds since a time of clock_gettime(CLOCK_REALTIME).
inline double sec_since(const timespec& since) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec - since.tv_sec) + static_cast<double>(now.tv_nsec - since.tv_nsec) / 1e9;
}
/// Nanoseconds since a time of clock_gettime(CLOCK_REALTIME).
inline double ns_since(const timespec& since) { return sec_since(since) * 1e9; }

/// The mean of the times between start() and stop().
class TscTimer {
 public:
  size_t start_tsc_ = 0;  ///< of the last start()
  size_t tsc_sum_ = 0;    ///< of all intervals
  size_t num_calls_ = 0;  ///< number of stop() calls

  void start() { start_tsc_ = rdtsc(); }
  void stop() {
    tsc_sum_ += rdtsc() - start_tsc_;
    num_calls_++;
  }
  void reset() { *this = TscTimer(); }
  size_t avg_cycles() const { return num_calls_ == 0 ? 0 : tsc_sum_ / num_calls_; }
  double avg_sec(double freq_ghz) const { return to_sec(avg_cycles(), freq_ghz); }
  double avg_usec(double freq_ghz) const { return to_usec(avg_cycles(), freq_ghz); }
  double avg_nsec(double freq_ghz) const { return to_nsec(avg_cycles(), freq_ghz); }
};

}  // namespace erpc
