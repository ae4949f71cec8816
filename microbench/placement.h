// Where two CPUs are to each other: the round trip of a cache line (one line each way, as messages use them).
// Hypervisors move virtual CPUs within seconds, so a benchmark measures it just before and just after, and reports the
// larger. Standard library and pthread only.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tern::microbench {

/// Binds the calling thread. False: no such CPU, or it is not allowed here.
inline bool pin_to_cpu(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

/// Round trip of a cache line between two CPUs, ns: the median of short batches, some milliseconds in all. -1 when the
/// two are the same CPU or cannot be pinned to. About 55: threads of one core; 100-140: cores of one complex; around
/// 500: further apart.
inline double placement_ns(int cpu_a, int cpu_b) {
  constexpr int kBatches = 21, kRounds = 1000;
  if (cpu_a == cpu_b) return -1;
  struct alignas(64) Line {
    std::atomic<uint32_t> value{0};
  };
  Line there, back;
  std::atomic<int> pinned{0}, failed{0};
  std::array<double, kBatches> batches{};
  // Both wait for each other, and neither spins for one that could not be pinned.
  const auto is_pinned = [&](int cpu) {
    if (!pin_to_cpu(cpu)) ++failed;
    for (++pinned; pinned.load() < 2;) std::this_thread::yield();
    return failed.load() == 0;
  };
  const auto wait_for = [](const Line& line, uint32_t value) {
    while (line.value.load(std::memory_order_acquire) != value) {
    }
  };
  std::thread other([&] {
    if (!is_pinned(cpu_b)) return;
    for (uint32_t i = 1; i <= kBatches * kRounds; ++i) {
      wait_for(there, i);
      back.value.store(i, std::memory_order_release);
    }
  });
  std::thread one([&] {
    if (!is_pinned(cpu_a)) return;
    uint32_t i = 1;
    for (double& batch : batches) {
      const auto start = std::chrono::steady_clock::now();
      for (const uint32_t end = i + kRounds; i < end; ++i) {
        there.value.store(i, std::memory_order_release);
        wait_for(back, i);
      }
      batch = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kRounds;
    }
  });
  one.join();
  other.join();
  if (failed.load() != 0) return -1;
  std::nth_element(batches.begin(), batches.begin() + kBatches / 2, batches.end());
  return batches[kBatches / 2];
}

}  // namespace tern::microbench
