#include "session/rtt_estimator.h"

#include <gtest/gtest.h>

namespace tern::session {
namespace {

TEST(RttEstimator, the_path_probe_bounds_the_first_timeout) {
  RttEstimator rtt;
  rtt.at_most(50'000, 1);
  EXPECT_FALSE(rtt.has_sample());
  EXPECT_EQ(rtt.rto_ns(1000), RttEstimator::kFirstRtoNsMin);
  EXPECT_EQ(rtt.rto_ns(3'000'000), 3'000'000U);
  RttEstimator middle;
  middle.at_most(1'500'000, 1);
  EXPECT_EQ(middle.rto_ns(1000), 4'500'000U);
  RttEstimator far;
  far.at_most(20'000'000, 1);
  EXPECT_EQ(far.rto_ns(1000), RttEstimator::kFirstRtoNs);
}

TEST(RttEstimator, first_rto_is_the_default_before_a_sample) {
  const RttEstimator rtt;
  EXPECT_FALSE(rtt.has_sample());
  EXPECT_EQ(rtt.rto_ns(1000), RttEstimator::kFirstRtoNs);
  EXPECT_EQ(rtt.rto_ns(2 * RttEstimator::kFirstRtoNs), 2 * RttEstimator::kFirstRtoNs);
}

TEST(RttEstimator, first_sample_as_in_rfc_6298) {
  RttEstimator rtt;
  rtt.add(8000, 8000, 1);
  EXPECT_TRUE(rtt.has_sample());
  EXPECT_EQ(rtt.srtt_ns(), 8000u);
  EXPECT_EQ(rtt.rto_ns(0), 8000u + 4 * 4000);
  EXPECT_EQ(rtt.rto_ns(1'000'000), 1'000'000u);
  EXPECT_EQ(rtt.reorder_ns(), RttEstimator::kReorderNsMin);
}

TEST(RttEstimator, reordering_time_is_a_quarter_of_a_long_round_trip) {
  RttEstimator rtt;
  rtt.add(40'000'000, 40'000'000, 1);
  EXPECT_EQ(rtt.reorder_ns(), 10'000'000u);
}

TEST(RttEstimator, smooths_and_converges) {
  RttEstimator rtt;
  rtt.add(8000, 8000, 1);
  rtt.add(16000, 16000, 1);
  EXPECT_EQ(rtt.srtt_ns(), 9000u);  // 7/8 of 8000 and 1/8 of 16000
  EXPECT_EQ(rtt.rto_ns(0), 9000u + 4 * ((3 * 4000 + 8000) / 4));
  EXPECT_EQ(rtt.min_ns(), 8000u);
  EXPECT_EQ(rtt.latest_ns(), 16000u);
  for (int i = 0; i < 200; i++) rtt.add(50'000, 50'000, 1);
  EXPECT_NEAR(static_cast<double>(rtt.srtt_ns()), 50'000, 10);
  EXPECT_NEAR(static_cast<double>(rtt.rto_ns(0)), 75'000, 100);  // not 50'000: the next may be a little longer
  EXPECT_EQ(rtt.min_ns(), 8000u);
}

TEST(RttEstimator, sample_of_zero_counts_as_one_ns) {
  RttEstimator rtt;
  rtt.add(0, 0, 1);
  EXPECT_TRUE(rtt.has_sample());
  EXPECT_EQ(rtt.latest_ns(), 1u);
  EXPECT_EQ(rtt.reorder_ns(), RttEstimator::kReorderNsMin);
}

TEST(RttEstimator, smallest_is_of_the_last_windows) {
  constexpr uint64_t kWindow = RttEstimator::kMinWindowNs;
  constexpr uint64_t kStart = 100 * kWindow;
  RttEstimator rtt;
  EXPECT_EQ(rtt.min_ns(), UINT64_MAX);
  rtt.add(100, 100, kStart);  // a wrong sample
  rtt.add(8000, 8000, kStart + 1);
  EXPECT_EQ(rtt.min_ns(), 100u);
  rtt.add(9000, 9000, kStart + kWindow);
  EXPECT_EQ(rtt.min_ns(), 100u) << "it counts for a window at least";
  rtt.add(9500, 9500, kStart + 2 * kWindow);
  EXPECT_EQ(rtt.min_ns(), 9000u) << "and for two at most";
  rtt.add(8500, 8500, kStart + 2 * kWindow + 1);
  EXPECT_EQ(rtt.min_ns(), 8500u);
  rtt.add(20'000, 20'000, kStart + 4 * kWindow);
  EXPECT_EQ(rtt.min_ns(), 20'000u) << "what was before a long pause is older than two windows";
}

TEST(RttEstimator, an_upper_bound_of_the_smallest_counts_for_as_long) {
  constexpr uint64_t kWindow = RttEstimator::kMinWindowNs;
  RttEstimator rtt;
  rtt.at_most(0, 100 * kWindow);
  EXPECT_EQ(rtt.min_ns(), UINT64_MAX) << "no path takes nothing";
  rtt.at_most(5000, 100 * kWindow);
  EXPECT_FALSE(rtt.has_sample());
  rtt.add(8000, 8000, 101 * kWindow);
  EXPECT_EQ(rtt.min_ns(), 5000u);
  rtt.add(8000, 8000, 102 * kWindow);
  EXPECT_EQ(rtt.min_ns(), 8000u);
}

TEST(RttEstimator, round_trips_of_minutes_count_as_the_longest) {
  RttEstimator rtt;
  rtt.add(300'000'000'000, 300'000'000'000, 1);
  rtt.add(300'000'000'000, 300'000'000'000, 2);
  EXPECT_EQ(rtt.srtt_ns(), RttEstimator::kLongestNs);
  EXPECT_EQ(rtt.min_ns(), RttEstimator::kLongestNs);
  EXPECT_GE(rtt.rto_ns(0), RttEstimator::kLongestNs * 3 / 2);
}

}  // namespace
}  // namespace tern::session
