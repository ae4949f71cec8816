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
  std::atomic<uint64_t> used_ns = 0;  ///< time for which threads have had this CPU, but for what they lent
  std::atomic<uint32_t> pollers = 0;
  std::atomic<uint32_t> good_turns = 0;      ///< times that the CPU was lent since the last pause, modulo kGoodTurns
  std::atomic<uint64_t> pause_factor = 1;    ///< the next pause is this many times as long as the time lent before it
  std::atomic<uint64_t> pause_until_ns = 0;  ///< no thread lends the CPU before this time
};
constexpr uint64_t kPauseFactorMax = 128;  // about 1% of the time goes to foreign threads with slices of up to 10 ms
constexpr uint64_t kPauseNsMax = 1'000'000'000;
constexpr uint32_t kGoodTurns = 64;  // this many in a row halve the factor
constexpr int kCpus = 256;           // more CPUs share a count: their threads may lend a CPU in vain
Count counts[kCpus];

// The threads of a parent are not in its child.
[[maybe_unused]] const int forgets_at_fork = pthread_atfork(nullptr, nullptr, [] {
  for (Count& count : counts) count.pollers.store(0, std::memory_order_relaxed);
});

}  // namespace

/// Counts this thread on the CPU that it is on.
void Poller::move_here() {
  const int cpu = sched_getcpu();  // -1: unknown
  if (cpu_ != kNowhere && cpu >= 0 && cpu % kCpus == cpu_) return;
  leave(since_ns_);
  if (cpu < 0) return;
  cpu_ = cpu % kCpus;
  counts[cpu_].pollers.fetch_add(1, std::memory_order_relaxed);
}

void Poller::note_used(uint64_t now_ns) {
  if (cpu_ != kNowhere && now_ns > since_ns_)
    counts[cpu_].used_ns.fetch_add(now_ns - since_ns_, std::memory_order_relaxed);
  since_ns_ = now_ns;
}

/// A thread that is never idle may have moved since.
void Poller::note_now(uint64_t now_ns) {
  note_used(now_ns);
  if (cpu_ != kNowhere) move_here();
}

void Poller::enter(uint64_t now_ns) {
  if (cpu_ == kNowhere) since_ns_ = now_ns;
  move_here();
}

void Poller::leave(uint64_t now_ns) {
  if (cpu_ == kNowhere) return;
  note_used(now_ns);
  std::atomic<uint32_t>& pollers = counts[std::exchange(cpu_, kNowhere)].pollers;
  uint32_t count = pollers.load(std::memory_order_relaxed);
  // 0: this is the child of a fork() since enter().
  while (count != 0 && !pollers.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
  }
}

uint32_t Poller::count_here() {
  move_here();
  return cpu_ != kNowhere ? counts[cpu_].pollers.load(std::memory_order_relaxed) : 1;
}

bool Poller::has_company(uint64_t now_ns) {
  if (count_here() < 2) return false;
  return now_ns >= counts[cpu_].pause_until_ns.load(std::memory_order_relaxed);
}

void Poller::begin_lending(uint64_t now_ns) {
  note_used(now_ns);
  used_before_ns_ = counts[cpu_].used_ns.load(std::memory_order_relaxed);
}

uint64_t Poller::end_lending(uint64_t now_ns) {
  const uint64_t from_ns = std::exchange(since_ns_, now_ns);
  const uint64_t lent_ns = now_ns - from_ns;
  const int lent_cpu = cpu_;
  move_here();
  if (cpu_ != lent_cpu) return lent_ns;  // it was moved, and nothing tells who used either CPU
  Count& here = counts[cpu_];
  const uint64_t used_ns = std::min(here.used_ns.load(std::memory_order_relaxed) - used_before_ns_, lent_ns);
  const uint64_t factor = here.pause_factor.load(std::memory_order_relaxed);
  if (lent_ns - used_ns > std::max(kForeignNs, lent_ns / 2)) {
    // The other threads that had lent the CPU saw the same foreign one, and the first of them has begun a pause.
    if (here.pause_until_ns.load(std::memory_order_relaxed) > from_ns) return used_ns;
    here.pause_until_ns.store(now_ns + std::min(factor * lent_ns, kPauseNsMax), std::memory_order_relaxed);
    here.pause_factor.store(std::min(2 * factor, kPauseFactorMax), std::memory_order_relaxed);
    here.good_turns.store(0, std::memory_order_relaxed);
    return used_ns;
  }
  const uint32_t turns = here.good_turns.load(std::memory_order_relaxed) + 1;
  here.good_turns.store(turns % kGoodTurns, std::memory_order_relaxed);
  if (turns == kGoodTurns) here.pause_factor.store(std::max<uint64_t>(factor / 2, 1), std::memory_order_relaxed);
  return lent_ns;
}

}  // namespace tern::base
