#include "session/rtt_estimator.h"

#include <gtest/gtest.h>

namespace tern::session {
namespace {

TEST(RttEstimator, before_the_first_sample) {
  const RttEstimator rtt;
  EXPECT_FALSE(rtt.has_sample());
  EXPECT_EQ(rtt.rto_ns(1000), RttEstimator::kFirstRtoNs);
  EXPECT_EQ(rtt.rto_ns(2 * RttEstimator::kFirstRtoNs), 2 * RttEstimator::kFirstRtoNs);
}

TEST(RttEstimator, first_sample_as_in_rfc_6298) {
  RttEstimator rtt;
  rtt.add(8000);
  EXPECT_TRUE(rtt.has_sample());
  EXPECT_EQ(rtt.srtt_ns(), 8000u);
  EXPECT_EQ(rtt.rto_ns(0), 8000u + 4 * 4000);
  EXPECT_EQ(rtt.rto_ns(1'000'000), 1'000'000u);
  EXPECT_EQ(rtt.reorder_ns(), RttEstimator::kReorderNsMin);
}

TEST(RttEstimator, reordering_time_is_a_quarter_of_a_long_round_trip) {
  RttEstimator rtt;
  rtt.add(40'000'000);
  EXPECT_EQ(rtt.reorder_ns(), 10'000'000u);
}

TEST(RttEstimator, smooths_and_converges) {
  RttEstimator rtt;
  rtt.add(8000);
  rtt.add(16000);
  EXPECT_EQ(rtt.srtt_ns(), 9000u);  // 7/8 of 8000 and 1/8 of 16000
  EXPECT_EQ(rtt.rto_ns(0), 9000u + 4 * ((3 * 4000 + 8000) / 4));
  EXPECT_EQ(rtt.min_ns(), 8000u);
  EXPECT_EQ(rtt.latest_ns(), 16000u);
  for (int i = 0; i < 200; i++) rtt.add(50'000);
  EXPECT_NEAR(static_cast<double>(rtt.srtt_ns()), 50'000, 10);
  EXPECT_NEAR(static_cast<double>(rtt.rto_ns(0)), 75'000, 100);  // not 50'000: the next may be a little longer
  EXPECT_EQ(rtt.min_ns(), 8000u);
}

TEST(RttEstimator, a_sample_of_nothing_is_one) {
  RttEstimator rtt;
  rtt.add(0);
  EXPECT_TRUE(rtt.has_sample());
  EXPECT_EQ(rtt.latest_ns(), 1u);
  EXPECT_EQ(rtt.reorder_ns(), RttEstimator::kReorderNsMin);
}

}  // namespace
}  // namespace tern::session
