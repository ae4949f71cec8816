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
    poll.on_woken(gap_ns);
    adaptive.on_woken(gap_ns);
  }
}

TEST(SpinLimitTest, block_polls_only_after_a_short_gap) {
  SpinLimit block({.wait = Wait::kBlock, .spin = microseconds(7)}, false);
  EXPECT_EQ(block.ns(), 0u);
  block.on_woken(kLong);
  EXPECT_EQ(block.ns(), 0u);
  block.on_woken(kShort);
  EXPECT_EQ(block.ns(), SpinLimit::kShortGapNs);
}

TEST(SpinLimitTest, block_stops_polling_after_one_long_gap) {
  SpinLimit block({.wait = Wait::kBlock}, false);
  block.on_woken(kShort);
  block.on_woken(kLong);
  EXPECT_EQ(block.ns(), 0u);
}

TEST(SpinLimitTest, block_never_polls_in_virtual_time) {
  SpinLimit block({.wait = Wait::kBlock}, true);
  block.on_woken(kShort);
  EXPECT_EQ(block.ns(), 0u);
}

TEST(SpinLimitTest, a_negative_spin_is_none) {
  EXPECT_EQ(SpinLimit({.wait = Wait::kAdaptive, .spin = microseconds(-1)}, false).ns(), 0u);
}

}  // namespace
}  // namespace tern::rpc
