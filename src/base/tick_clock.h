// CLOCK_MONOTONIC from the CPU's counter of ticks, for loops that read the time once a burst. Base layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tern/detail/export.h>

#include "base/clock.h"

namespace tern::base {

/// The CPU's counter (TSC) and the kernel's clock.
struct TERN_API CpuTicks {
  /// True if the kernel itself takes its time from the counter, which then has one rate and one value on all CPUs.
  static bool are_steady();
  static uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
  }
  static uint64_t ns() { return monotonic_ns(); }
};

/// A clock of one thread. It never goes back, and differs from CLOCK_MONOTONIC by 0.1 us, or by up to 2 us after a
/// short interruption of the thread at the wrong place. A call reads the counter, in half the time of the vDSO. Once in
/// kWindowTicks it also reads the kernel's clock, and measures the counter's rate anew. A pause does no harm. If the
/// counter jumps, or gets another rate, because the machine was suspended or moved, the error is at most a window's
/// length; a clock that is ahead goes at half its speed until it is right. Without a steady counter each call reads the
/// kernel's clock.
template <class Source = CpuTicks>
class TickClock {
 public:
  explicit TickClock(Source source = {}) : source_(source), is_steady_(source_.are_steady()) {}

  /// Nanoseconds of CLOCK_MONOTONIC.
  uint64_t now_ns() {
    if (limit_ticks_ == 0) [[unlikely]]
      return read_kernel();
    const uint64_t passed = source_.ticks() - base_ticks_;
    if (passed >= limit_ticks_) [[unlikely]]
      return read_kernel();
    return last_ns_ = std::max(last_ns_, base_ns_ + (passed * rate_ >> kRateBits));
  }

 private:
  static constexpr uint64_t kWindowTicks = uint64_t{1} << 22;  ///< 1.5 ms at 2.8 GHz
  /// The rate is not measured over longer times, in which the counter and the clock may have stood still differently.
  static constexpr uint64_t kMeasuredTicksMax = uint64_t{1} << 26;
  /// If reading both takes longer, the thread was interrupted in between, and they do not belong together.
  static constexpr uint64_t kPairTicksMax = 4096;
  static constexpr uint32_t kInterruptionsMax = 100;  ///< after so many in a row the counter itself must be slow
  static constexpr uint32_t kRateBits = 32;
  // Rates outside of 1/16 to 64 ticks a nanosecond are those of no CPU.
  static constexpr uint64_t kNsPerTickMax = 16;
  static constexpr uint64_t kTicksPerNsMax = 64;

  /// Returns the kernel's time, and begins the next window if the counter's rate is known.
  [[gnu::noinline]] uint64_t read_kernel() {
    if (!is_steady_) return last_ns_ = std::max(last_ns_, source_.ns());
    const uint64_t before = source_.ticks();
    const uint64_t kernel_ns = source_.ns();
    const uint64_t reading = source_.ticks() - before;
    const uint64_t ns = last_ns_ = std::max(last_ns_, kernel_ns);
    limit_ticks_ = 0;
    if (reading > kPairTicksMax) {
      if (++interruptions_ == kInterruptionsMax) is_steady_ = false;
      return ns;
    }
    interruptions_ = 0;
    const uint64_t ticks = before + reading / 2;
    const uint64_t ticks_passed = ticks - pair_ticks_;
    if (ticks_passed < kWindowTicks) return ns;
    if (ticks_passed <= kMeasuredTicksMax) measured_rate_ = rate(kernel_ns - pair_ns_, ticks_passed);
    pair_ticks_ = ticks;
    pair_ns_ = kernel_ns;
    if (measured_rate_ != 0) begin_window(ticks, ns, ns - kernel_ns);
    return ns;
  }

  /// Nanoseconds of one tick times 2 to the power of kRateBits. 0: there is no such CPU.
  static uint64_t rate(uint64_t ns, uint64_t ticks) {
    if (ns > ticks * kNsPerTickMax || ns < ticks / kTicksPerNsMax) return 0;
    return (ns << kRateBits) / ticks;
  }

  /// `ahead_ns`: the last window ran too fast by this, so that this one runs slower, by half at most.
  void begin_window(uint64_t ticks, uint64_t ns, uint64_t ahead_ns) {
    const uint64_t window_ns = kWindowTicks * measured_rate_ >> kRateBits;
    rate_ = measured_rate_ - measured_rate_ * std::min(ahead_ns, window_ns / 2) / window_ns;
    base_ticks_ = ticks;
    base_ns_ = ns;
    limit_ticks_ = kWindowTicks;
  }

  Source source_;
  bool is_steady_;              ///< false: the counter is not used
  uint32_t interruptions_ = 0;  ///< readings of both, in a row, that took too long
  uint64_t limit_ticks_ = 0;    ///< length of the window; 0: the next call reads the kernel's clock
  uint64_t base_ticks_ = 0;
  uint64_t base_ns_ = 0;
  uint64_t rate_ = 0;     ///< see rate()
  uint64_t last_ns_ = 0;  ///< what the last call returned
  // The last reading of counter and clock together.
  uint64_t pair_ticks_ = 0;
  uint64_t pair_ns_ = 0;
  uint64_t measured_rate_ = 0;  ///< 0: not yet measured
};

}  // namespace tern::base
