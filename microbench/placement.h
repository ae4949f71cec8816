// The distance of two CPUs: the round trip of a cache line (one line each way, as messages use them). Hypervisors move
// virtual CPUs within seconds, so a benchmark measures the distance just before and just after, and reports the larger
// value. Standard library and pthread only.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>

namespace tern::microbench {

/// Binds the calling thread. Returns false if there is no such CPU, or if this process may not use it.
inline bool pin_to_cpu(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

/// Round trip of a cache line between two CPUs, ns: the median of short batches. Takes some milliseconds in all, and
/// not much longer if other threads run on these CPUs. Returns -1 if the two are the same CPU or cannot be pinned to,
/// or if no thread can be created. About 55: threads of one core; 100-140: cores of one complex; around 500: further
/// apart.
inline double placement_ns(int cpu_a, int cpu_b) {
  constexpr int kBatches = 201, kRounds = 100;
  constexpr uint32_t kEnd = ~uint32_t{0};
  constexpr auto kLongest = std::chrono::milliseconds(200);
  if (cpu_a == cpu_b) return -1;
  struct alignas(64) Line {
    std::atomic<uint32_t> value{0};
  };
  Line there, back;
  std::atomic<int> pinned{0}, failed{0};
  std::array<double, kBatches> batches{};
  int done = 0;
  // Both threads wait for each other, and neither spins if the other could not be pinned.
  const auto is_pinned = [&](int cpu) {
    if (!pin_to_cpu(cpu)) ++failed;
    for (++pinned; pinned.load() < 2;) std::this_thread::yield();
    return failed.load() == 0;
  };
  // Returns the value that follows `value`. An answer takes at most a thousand turns, unless the other side does not
  // run.
  const auto wait_for_next = [](const Line& line, uint32_t value) {
    for (int turns = 0;; ++turns) {
      const uint32_t now = line.value.load(std::memory_order_acquire);
      if (now != value) return now;
      if (turns > 10'000) std::this_thread::yield();
    }
  };
  const auto answer = [&] {
    if (!is_pinned(cpu_b)) return;
    for (uint32_t value = 0; (value = wait_for_next(there, value)) != kEnd;) {
      back.value.store(value, std::memory_order_release);
    }
  };
  const auto ask = [&] {
    if (!is_pinned(cpu_a)) return;
    const auto begin = std::chrono::steady_clock::now();
    auto start = begin;
    for (uint32_t i = 0; done < kBatches && start - begin < kLongest; ++done) {
      for (const uint32_t end = i + kRounds; i < end; ++i) {
        there.value.store(i + 1, std::memory_order_release);
        wait_for_next(back, i);
      }
      const auto now = std::chrono::steady_clock::now();
      batches[static_cast<size_t>(done)] = std::chrono::duration<double, std::nano>(now - start).count() / kRounds;
      start = now;
    }
    there.value.store(kEnd, std::memory_order_release);
  };
  std::thread threads[2];
  try {
    threads[0] = std::thread(answer);
    threads[1] = std::thread(ask);
  } catch (const std::system_error&) {  // no thread can be created: treated like a failed pinning
    ++failed;
    ++pinned;
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  if (failed.load() != 0) return -1;
  std::nth_element(batches.begin(), batches.begin() + done / 2, batches.begin() + done);
  return batches[static_cast<size_t>(done) / 2];
}

}  // namespace tern::microbench
