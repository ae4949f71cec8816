// Decides when a thread that polls gives its CPU to other threads. Rpc layer. No clock: times are arguments.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tern::rpc {

/// For an endpoint that never sleeps, on a CPU that other threads share. There a long wait mostly means that the peer
/// has lost its CPU. If the thread gives up its own CPU at that time, the scheduler gives it back later, when the peer
/// runs: the thread's share is the same in either case. Where a CPU is not shared, or shared only with a thread of low
/// priority, giving it up would only cost time slices.
///
/// So the thread gives up nothing for kWindowNs, and then compares its CPU time with that time. If it had less than
/// 3/4, it gives up its CPU after each kVainNs in vain, for kSharedNs. Then there is another window. Time for which a
/// handler blocks looks like time that others had.
///
/// It gives up nothing if for kFrequentNs no packets came within kVainNs of others: packets are rare then, and the peer
/// may have lost nothing.
class CpuShare {
 public:
  static constexpr uint64_t kVainNs = 50'000;        ///< the answer of a peer that has a CPU comes earlier
  static constexpr uint64_t kWindowNs = 20'000'000;  ///< several time slices
  static constexpr uint64_t kSharedNs = 1'000'000'000;
  static constexpr uint64_t kFrequentNs = 100'000'000;

  /// Called while the thread polls in vain. `vain_since_ns` may be after `now_ns`, if the thread has lent its CPU
  /// since. `cpu_ns()` returns its CPU time. True: the thread should give up its CPU now, and then call has_rested().
  template <class CpuTime>
  bool should_give_up(uint64_t now_ns, uint64_t vain_since_ns, CpuTime&& cpu_ns) {
    if (now_ns >= frequent_until_ns_ || now_ns < std::max(vain_since_ns, rested_ns_) + kVainNs) return false;
    if (now_ns >= shared_until_ns_ && now_ns - window_ns_ >= kWindowNs) end_window(now_ns, cpu_ns());
    return now_ns < shared_until_ns_;
  }
  /// Packets have come, after a wait of `wait_ns`.
  void on_packets(uint64_t now_ns, uint64_t wait_ns) {
    if (wait_ns < kVainNs) frequent_until_ns_ = now_ns + kFrequentNs;
  }
  /// Until `now_ns` the thread had no CPU because it wanted none. Another window begins.
  void has_rested(uint64_t now_ns) {
    rested_ns_ = now_ns;
    window_ns_ = 0;
  }

 private:
  void end_window(uint64_t now_ns, uint64_t cpu_ns) {
    const uint64_t length_ns = now_ns - window_ns_;
    // A window that became longer does not count. So the first call after has_rested() only begins one.
    const bool is_valid = length_ns < 2 * kWindowNs;
    if (is_valid && cpu_ns - window_cpu_ns_ < length_ns / 4 * 3) shared_until_ns_ = now_ns + kSharedNs;
    window_ns_ = now_ns;
    window_cpu_ns_ = cpu_ns;
  }

  uint64_t window_ns_ = 0;      ///< begin of the window; 0: there is none
  uint64_t window_cpu_ns_ = 0;  ///< the thread's CPU time then
  uint64_t shared_until_ns_ = 0;
  uint64_t rested_ns_ = 0;
  uint64_t frequent_until_ns_ = 0;
};

}  // namespace tern::rpc
