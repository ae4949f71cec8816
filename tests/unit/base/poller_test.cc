#include "base/poller.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace tern::base {
namespace {

/// Runs `f` in a thread that stays on the first CPU that this process may use.
template <class F>
void on_one_cpu(F f) {
  std::thread([&f] {
    cpu_set_t cpus;
    ASSERT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
    int first = 0;
    while (!CPU_ISSET(first, &cpus)) first++;
    CPU_ZERO(&cpus);
    CPU_SET(first, &cpus);
    ASSERT_EQ(sched_setaffinity(0, sizeof(cpus), &cpus), 0);
    f();
  }).join();
}

TEST(PollerTest, counts_the_pollers_of_its_cpu) {
  on_one_cpu([] {
    Poller poller;
    poller.enter();
    EXPECT_EQ(poller.count_here(), 1u);
    on_one_cpu([] {
      Poller other;
      EXPECT_EQ(other.count_here(), 2u) << "it has entered";
      other.leave();
      other.leave();
      other.enter();
      other.enter();
      EXPECT_EQ(other.count_here(), 2u);
    });
    EXPECT_EQ(poller.count_here(), 1u) << "the other one has gone";
    Poller third;
    third.enter();
    EXPECT_EQ(poller.count_here(), 2u);
    poller.leave();
    EXPECT_EQ(third.count_here(), 1u);
  });
}

TEST(PollerTest, counts_where_it_is) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < 256 && cpus.size() < 2; cpu++) {
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2) GTEST_SKIP() << "this process may use one CPU only";
  std::thread([&cpus] {
    Poller first, second;
    for (const int cpu : cpus) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      if (cpu == cpus[0]) first.enter();
      EXPECT_EQ(second.count_here(), cpu == cpus[0] ? 2u : 1u);
    }
    EXPECT_EQ(first.count_here(), 2u) << "it has moved, too";
  }).join();
}

TEST(PollerTest, pauses_double_while_foreign_threads_use_what_is_lent) {
  on_one_cpu([] {
    Poller poller, other;
    poller.enter();
    uint64_t now_ns = 1'000'000'000;
    EXPECT_FALSE(poller.has_company(now_ns)) << "alone";
    other.enter();
    constexpr uint64_t kShort = 2 * Poller::kTurnNs, kLong = kShort + 1;
    for (uint64_t factor = 1; factor <= 4; factor *= 2) {
      ASSERT_TRUE(poller.has_company(now_ns));
      poller.note_lent(kLong, now_ns);
      EXPECT_FALSE(other.has_company(now_ns + factor * kLong - 1)) << "factor " << factor;
      now_ns += factor * kLong;
    }
    for (int i = 0; i < 3 * 64; i++) {
      ASSERT_TRUE(poller.has_company(now_ns));
      poller.note_lent(kShort, now_ns);
    }
    poller.note_lent(kLong, now_ns);
    EXPECT_FALSE(poller.has_company(now_ns + kLong - 1));
    EXPECT_TRUE(poller.has_company(now_ns + kLong));
  });
}

TEST(PollerTest, a_child_counts_its_own_threads_only) {
  on_one_cpu([] {
    Poller poller;
    poller.enter();
    const pid_t child = fork();
    if (child == 0) {
      Poller own;
      const bool is_alone = own.count_here() == 1;
      own.leave();
      poller.leave();
      own.enter();
      _exit(is_alone && own.count_here() == 1 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(poller.count_here(), 1u);
  });
}

}  // namespace
}  // namespace tern::base
