#include "base/poller.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace tern::base {

namespace {

/// Of one CPU. Its threads run one after the other, so the last three fields hardly ever race; a lost change does not
/// matter.
struct alignas(64) Count {
  std::atomic<uint32_t> pollers = 0;
  std::atomic<uint32_t> short_turns = 0;     ///< times that the CPU was lent since the last long time
  std::atomic<uint64_t> pause_factor = 1;    ///< the next pause is this many times as long as the long time before it
  std::atomic<uint64_t> pause_until_ns = 0;  ///< no thread lends the CPU before this time
};
constexpr uint64_t kPauseFactorMax = 128;  // less than 1% of the time goes to foreign threads
constexpr uint32_t kShortTurns = 64;       // so many short times in a row halve the factor
constexpr int kCpus = 256;                 // more CPUs share a count: their threads may lend a CPU in vain
Count counts[kCpus];

// The threads of a parent are not in its child.
[[maybe_unused]] const int forgets_at_fork = pthread_atfork(nullptr, nullptr, [] {
  for (Count& count : counts) count.pollers.store(0, std::memory_order_relaxed);
});

}  // namespace

void Poller::enter() {
  const int cpu = sched_getcpu();  // -1: unknown
  if (cpu_ != kNowhere && cpu >= 0 && cpu % kCpus == cpu_) return;
  leave();
  if (cpu < 0) return;
  cpu_ = cpu % kCpus;
  counts[cpu_].pollers.fetch_add(1, std::memory_order_relaxed);
}

void Poller::leave() {
  if (cpu_ == kNowhere) return;
  std::atomic<uint32_t>& pollers = counts[std::exchange(cpu_, kNowhere)].pollers;
  uint32_t count = pollers.load(std::memory_order_relaxed);
  // 0: this is the child of a fork() since enter().
  while (count != 0 && !pollers.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
  }
}

uint32_t Poller::count_here() {
  enter();  // it may have moved
  return cpu_ != kNowhere ? counts[cpu_].pollers.load(std::memory_order_relaxed) : 1;
}

bool Poller::has_company(uint64_t now_ns) {
  if (count_here() < 2) return false;
  return now_ns >= counts[cpu_].pause_until_ns.load(std::memory_order_relaxed);
}

uint64_t Poller::note_lent(uint64_t lent_ns, uint64_t now_ns) {
  const uint64_t turns_ns = count_here() * kTurnNs;
  if (cpu_ == kNowhere) return std::min(lent_ns, turns_ns);
  Count& here = counts[cpu_];
  const uint64_t factor = here.pause_factor.load(std::memory_order_relaxed);
  if (lent_ns > turns_ns) {
    here.pause_until_ns.store(now_ns + factor * lent_ns, std::memory_order_relaxed);
    here.pause_factor.store(std::min(2 * factor, kPauseFactorMax), std::memory_order_relaxed);
    here.short_turns.store(0, std::memory_order_relaxed);
    return turns_ns;
  }
  const uint32_t turns = here.short_turns.load(std::memory_order_relaxed) + 1;
  here.short_turns.store(turns % kShortTurns, std::memory_order_relaxed);
  if (turns == kShortTurns) here.pause_factor.store(std::max<uint64_t>(factor / 2, 1), std::memory_order_relaxed);
  return lent_ns;
}

}  // namespace tern::base
