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
    poller.enter(1);
    EXPECT_EQ(poller.count_here(), 1u);
    on_one_cpu([] {
      Poller other;
      EXPECT_EQ(other.count_here(), 2u) << "it has entered";
      other.leave(2);
      other.leave(2);
      other.enter(1);
      other.enter(1);
      EXPECT_EQ(other.count_here(), 2u);
    });
    EXPECT_EQ(poller.count_here(), 1u) << "the other one has gone";
    Poller third;
    third.enter(1);
    EXPECT_EQ(poller.count_here(), 2u);
    poller.leave(2);
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
      if (cpu == cpus[0]) first.enter(1);
      EXPECT_EQ(second.count_here(), cpu == cpus[0] ? 2u : 1u);
    }
    EXPECT_EQ(first.count_here(), 2u) << "it has moved, too";
  }).join();
}

/// A time after all pauses of earlier tests, because threads of one CPU share them.
uint64_t later() {
  static uint64_t now_ns = 0;
  return now_ns += 1'000'000'000'000;
}

/// Lends the CPU of `lender` for `lent_ns`, of which `user` uses `used_ns`.
uint64_t lend(Poller& lender, Poller& user, uint64_t lent_ns, uint64_t used_ns, uint64_t& now_ns) {
  EXPECT_TRUE(lender.has_company(now_ns));
  user.leave(now_ns);
  lender.begin_lending(now_ns);
  user.enter(now_ns);
  user.leave(now_ns + used_ns);
  now_ns += lent_ns;
  user.enter(now_ns);
  return lender.end_lending(now_ns);
}

/// Makes the next pause as long as the time lent before it.
void shorten_pauses(Poller& lender, Poller& user, uint64_t& now_ns) {
  for (int i = 0; i < 7 * 64; i++) EXPECT_EQ(lend(lender, user, 1000, 0, now_ns), 1000u);
}

TEST(PollerTest, pauses_double_while_foreign_threads_use_what_is_lent) {
  on_one_cpu([] {
    Poller poller, other;
    uint64_t now_ns = later();
    poller.enter(now_ns);
    EXPECT_FALSE(poller.has_company(now_ns)) << "alone";
    other.enter(now_ns);
    constexpr uint64_t kShort = Poller::kForeignNs, kLong = kShort + 1;
    EXPECT_EQ(lend(poller, other, kShort, 0, now_ns), kShort);
    for (uint64_t factor = 1; factor <= 4; factor *= 2) {
      EXPECT_EQ(lend(poller, other, kLong, 0, now_ns), 0u);
      EXPECT_FALSE(other.has_company(now_ns + factor * kLong - 1)) << "factor " << factor;
      now_ns += factor * kLong;
    }
    shorten_pauses(poller, other, now_ns);
    EXPECT_EQ(lend(poller, other, kLong, 0, now_ns), 0u);
    EXPECT_FALSE(poller.has_company(now_ns + kLong - 1));
    EXPECT_TRUE(poller.has_company(now_ns + kLong));
    now_ns += kLong;
    shorten_pauses(poller, other, now_ns);
  });
}

TEST(PollerTest, time_that_others_of_this_process_use_is_no_foreign_time) {
  on_one_cpu([] {
    Poller poller, other;
    uint64_t now_ns = later();
    poller.enter(now_ns);
    other.enter(now_ns);
    constexpr uint64_t kLong = 10 * Poller::kForeignNs;
    EXPECT_EQ(lend(poller, other, kLong, kLong / 2, now_ns), kLong);
    EXPECT_TRUE(poller.has_company(now_ns));
    poller.begin_lending(now_ns);
    other.note(now_ns + kLong / 2);
    EXPECT_EQ(poller.end_lending(now_ns + kLong), kLong) << "another thread has not lent the CPU on, but used it";
    now_ns += kLong;
    EXPECT_EQ(lend(poller, other, kLong, kLong / 2 - 1, now_ns), kLong / 2 - 1);
    EXPECT_FALSE(poller.has_company(now_ns));
    now_ns += kLong;
    shorten_pauses(poller, other, now_ns);
  });
}

/// With 32 threads on a CPU, one time slice of a foreign one would otherwise make the pause as long as it may be.
TEST(PollerTest, one_use_by_a_foreign_thread_makes_one_pause) {
  on_one_cpu([] {
    Poller first, second;
    constexpr uint64_t kLong = 2 * Poller::kForeignNs;
    uint64_t now_ns = later();
    for (Poller* each : {&first, &second}) each->enter(now_ns);
    for (Poller* each : {&first, &second}) {
      ASSERT_TRUE(each->has_company(now_ns));
      each->begin_lending(now_ns);
    }
    now_ns += kLong;
    EXPECT_EQ(first.end_lending(now_ns), 0u);
    EXPECT_EQ(second.end_lending(now_ns), 0u);
    now_ns += kLong;
    EXPECT_TRUE(first.has_company(now_ns)) << "the pause has not doubled";
    lend(first, second, kLong, 0, now_ns);
    EXPECT_FALSE(first.has_company(now_ns + 2 * kLong - 1)) << "it doubles the next time";
    now_ns += 2 * kLong;
    shorten_pauses(first, second, now_ns);
  });
}

TEST(PollerTest, a_thread_that_has_moved_begins_no_pause) {
  on_one_cpu([] {
    cpu_set_t first;
    ASSERT_EQ(sched_getaffinity(0, sizeof(first), &first), 0);
    cpu_set_t other;
    CPU_ZERO(&other);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      if (!CPU_ISSET(cpu, &first)) CPU_SET(cpu, &other);
    }
    Poller poller, company;
    const uint64_t now_ns = later();
    poller.enter(now_ns);
    company.enter(now_ns);
    ASSERT_TRUE(poller.has_company(now_ns));
    poller.begin_lending(now_ns);
    if (sched_setaffinity(0, sizeof(other), &other) != 0) GTEST_SKIP() << "this process may use one CPU only";
    constexpr uint64_t kLong = 10 * Poller::kForeignNs;
    EXPECT_EQ(poller.end_lending(now_ns + kLong), kLong);
    Poller comes_later;
    ASSERT_EQ(sched_setaffinity(0, sizeof(first), &first), 0);
    comes_later.enter(now_ns);
    EXPECT_TRUE(comes_later.has_company(now_ns + kLong));
  });
}

TEST(PollerTest, a_child_counts_its_own_threads_only) {
  on_one_cpu([] {
    Poller poller;
    poller.enter(1);
    const pid_t child = fork();
    if (child == 0) {
      Poller own;
      const bool is_alone = own.count_here() == 1;
      own.leave(2);
      poller.leave(2);
      own.enter(1);
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
