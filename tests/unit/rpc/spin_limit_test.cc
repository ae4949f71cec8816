#include "rpc/spin_limit.h"

#include <gtest/gtest.h>

namespace tern::rpc {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kShort = SpinLimit::kShortGapNs - 1;
constexpr uint64_t kLong = SpinLimit::kShortGapNs;

TEST(SpinLimitTest, poll_and_adaptive_have_a_fixed_limit) {
  SpinLimit poll({.wait = Wait::kPoll}, false);
  SpinLimit adaptive({.wait = Wait::kAdaptive, .spin = microseconds(7)}, false);
  for (const uint64_t gap_ns : {kLong, kShort, kLong}) {
    EXPECT_EQ(poll.ns(), UINT64_MAX);
    EXPECT_EQ(adaptive.ns(), 7000u);
    poll.on_woken(gap_ns, 0);
    adaptive.on_woken(gap_ns, 0);
  }
}

TEST(SpinLimitTest, block_polls_only_after_a_short_gap) {
  SpinLimit block({.wait = Wait::kBlock, .spin = microseconds(7)}, false);
  EXPECT_EQ(block.ns(), 0u);
  block.on_woken(kLong, 0);
  EXPECT_EQ(block.ns(), 0u);
  block.on_woken(kShort, 0);
  EXPECT_EQ(block.ns(), SpinLimit::kSpinNs);
}

TEST(SpinLimitTest, block_polls_again_at_once_after_polling_that_paid) {
  SpinLimit block({.wait = Wait::kBlock}, false);
  block.on_woken(kShort, 0);
  block.on_woken(kLong, SpinLimit::kPaidNs);
  EXPECT_EQ(block.ns(), 0u);
  block.on_woken(kShort, SpinLimit::kPaidNs);
  EXPECT_EQ(block.ns(), SpinLimit::kSpinNs);
}

TEST(SpinLimitTest, block_polls_ever_less_while_it_is_in_vain) {
  SpinLimit block({.wait = Wait::kBlock}, false);
  constexpr int kWakeUps = 10'000;
  int polls = 0;
  for (int i = 0; i < kWakeUps; i++) {
    polls += block.ns() != 0 ? 1 : 0;
    block.on_woken(kShort, 0);
  }
  EXPECT_GT(polls, kWakeUps / 100);
  EXPECT_LT(polls, kWakeUps / 50);  // one wake-up in 65 at last
}

TEST(SpinLimitTest, block_never_polls_in_virtual_time) {
  SpinLimit block({.wait = Wait::kBlock}, true);
  block.on_woken(kShort, 0);
  EXPECT_EQ(block.ns(), 0u);
}

TEST(SpinLimitTest, a_negative_spin_is_none) {
  EXPECT_EQ(SpinLimit({.wait = Wait::kAdaptive, .spin = microseconds(-1)}, false).ns(), 0u);
}

}  // namespace
}  // namespace tern::rpc
