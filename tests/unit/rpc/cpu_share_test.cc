#include "rpc/cpu_share.h"

#include <gtest/gtest.h>

namespace tern::rpc {
namespace {

constexpr uint64_t kStepNs = 10'000;

/// A thread that has polled in vain since it began. The test decides which part of each step it has the CPU.
class CpuShareTest : public testing::Test {
 protected:
  /// One step, in which the thread has the CPU for `had_ns`. Returns the policy's answer at its end.
  bool step(uint64_t had_ns) {
    now_ns_ += kStepNs;
    cpu_ns_ += had_ns;
    return share_.should_give_up(now_ns_, vain_since_ns_, [this] {
      reads_++;
      return cpu_ns_;
    });
  }
  /// The number of steps, of `length_ns` in all, at which the thread gives up its CPU. Others then have it for a step.
  uint64_t turns(uint64_t length_ns, uint64_t had_ns) {
    uint64_t count = 0;
    for (const uint64_t end_ns = now_ns_ + length_ns; now_ns_ < end_ns;) {
      share_.on_packets(now_ns_, wait_ns_);
      if (!step(had_ns)) continue;
      count++;
      now_ns_ += kStepNs;
      share_.has_rested(now_ns_);
    }
    return count;
  }

  CpuShare share_;
  uint64_t now_ns_ = 5'000'000'000;
  uint64_t cpu_ns_ = 1'000'000'000;
  uint64_t vain_since_ns_ = now_ns_;
  uint64_t wait_ns_ = 0;  ///< before packets
  uint64_t reads_ = 0;    ///< of the CPU time
};

}  // namespace

TEST_F(CpuShareTest, full_cpu_is_kept) {
  EXPECT_EQ(turns(10'000'000'000, kStepNs), 0u);
  EXPECT_LE(reads_, 10'000'000'000 / CpuShare::kWindowNs + 1);
}

TEST_F(CpuShareTest, half_a_cpu_is_given_up_after_each_wait_in_vain) {
  EXPECT_EQ(turns(CpuShare::kWindowNs, kStepNs / 2), 0u);  // the first reading only begins a window
  const uint64_t count = turns(CpuShare::kSharedNs, kStepNs / 2);
  const uint64_t turn_ns = CpuShare::kVainNs + kStepNs;
  EXPECT_GE(count, (CpuShare::kSharedNs - 2 * CpuShare::kWindowNs) / turn_ns);
  EXPECT_LE(count, CpuShare::kSharedNs / turn_ns);
}

/// Time for which the CPU was given up does not count as lost to others.
TEST_F(CpuShareTest, regained_cpu_is_kept) {
  EXPECT_GT(turns(3 * CpuShare::kWindowNs, kStepNs / 2), 0u);
  (void)turns(CpuShare::kSharedNs, kStepNs);
  EXPECT_EQ(turns(5 * CpuShare::kSharedNs, kStepNs), 0u);
}

TEST_F(CpuShareTest, cpu_is_kept_while_answers_come_in_time) {
  (void)turns(3 * CpuShare::kWindowNs, kStepNs / 2);
  for (int i = 0; i < 1000; i++) {
    vain_since_ns_ = now_ns_;
    for (uint64_t ns = kStepNs; ns < CpuShare::kVainNs; ns += kStepNs) EXPECT_FALSE(step(kStepNs / 2));
  }
}

/// The CPU was lent after the iteration had read the clock.
TEST_F(CpuShareTest, wait_that_begins_later_is_not_in_vain) {
  (void)turns(3 * CpuShare::kWindowNs, kStepNs / 2);
  vain_since_ns_ = now_ns_ + 10 * kStepNs;
  EXPECT_FALSE(step(kStepNs / 2));
}

TEST_F(CpuShareTest, cpu_is_kept_while_packets_are_rare) {
  (void)turns(3 * CpuShare::kWindowNs, kStepNs / 2);
  wait_ns_ = CpuShare::kVainNs;
  (void)turns(CpuShare::kFrequentNs, kStepNs / 2);
  EXPECT_EQ(turns(CpuShare::kSharedNs, kStepNs / 2), 0u);
  wait_ns_ = CpuShare::kVainNs - 1;
  EXPECT_GT(turns(3 * CpuShare::kWindowNs, kStepNs / 2), 0u);
}

TEST_F(CpuShareTest, rest_begins_another_window) {
  for (int i = 0; i < 100; i++) {
    EXPECT_EQ(turns(CpuShare::kWindowNs * 3 / 4, kStepNs), 0u);
    now_ns_ += CpuShare::kWindowNs / 2;
    share_.has_rested(now_ns_);
  }
}

/// The thread may have slept between two calls that are so far apart.
TEST_F(CpuShareTest, long_window_does_not_count) {
  for (int i = 0; i < 100; i++) {
    EXPECT_EQ(turns(CpuShare::kWindowNs / 2, kStepNs), 0u);
    now_ns_ += 2 * CpuShare::kWindowNs;
  }
}

}  // namespace tern::rpc
