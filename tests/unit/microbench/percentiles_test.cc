// Percentiles: its ranks.
#include "../microbench/percentiles.h"

#include <gtest/gtest.h>

#include <vector>

namespace tern::microbench {
namespace {

/// The values 1 to `count`, each once: the value of a rank is the rank.
Percentiles ranks_to(uint64_t count) {
  Percentiles ranks;
  for (uint64_t value = 1; value <= count; value++) ranks.add(value);
  return ranks;
}

TEST(Percentiles, no_values__zero) { EXPECT_EQ(Percentiles().at(0.5), 0); }

TEST(Percentiles, at__smallest_value_that_the_share_does_not_exceed) {
  EXPECT_EQ(ranks_to(1).at(0.999), 1);
  EXPECT_EQ(ranks_to(2).at(0.5), 1);
  EXPECT_EQ(ranks_to(2).at(0.51), 2);
  EXPECT_EQ(ranks_to(10).at(0.99), 10);
  EXPECT_EQ(ranks_to(101).at(0.99), 100);
  EXPECT_EQ(ranks_to(1000).at(0.9999), 1000);
  EXPECT_EQ(ranks_to(10).at(0), 1);
  EXPECT_EQ(ranks_to(10).at(1), 10);
}

/// Most shares have no exact double, and 0.07 * 100 is more than 7 in doubles.
TEST(Percentiles, at__share_that_ends_at_a_rank) {
  const Percentiles hundred = ranks_to(100), thousand = ranks_to(1000);
  for (int percent = 1; percent <= 100; percent++) EXPECT_EQ(hundred.at(percent / 100.0), percent);
  for (int mill = 1; mill <= 1000; mill++) EXPECT_EQ(thousand.at(mill / 1000.0), mill);
}

}  // namespace
}  // namespace tern::microbench
