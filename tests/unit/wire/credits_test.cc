#include "wire/credits.h"

#include <gtest/gtest.h>

namespace tern::wire {
namespace {

TEST(Credits, cost_is_rounded_up_and_at_least_one) {
  EXPECT_EQ(credits_of(24, 11), 1u);
  EXPECT_EQ(credits_of(2048, 11), 1u);
  EXPECT_EQ(credits_of(2049, 11), 2u);
  EXPECT_EQ(credits_of(65'000, 11), 32u);
  EXPECT_EQ(credits_of(65'560, kPacketCredits), 1u);
  EXPECT_EQ(credits_of(65'560, kCreditUnitMax), 1u);
}

TEST(Credits, limits_survive_as_the_next_lower_one) {
  for (uint32_t credits = 1; credits <= kCreditsMax + 100; credits++) {
    const uint32_t decoded = decode_credits(encode_credits(credits), kCreditUnitMin);
    EXPECT_LE(decoded, credits);
    EXPECT_GE(decoded, std::min(credits, kCreditsMax) - (credits <= kExactCreditsMax ? 0 : kCreditStep - 1));
  }
  EXPECT_EQ(decode_credits(255, kCreditUnitMin), kCreditsMax);
}

TEST(Credits, packets_have_no_larger_limit_than_earlier_peers_know) {
  EXPECT_EQ(decode_credits(127, kPacketCredits), 127u);
  EXPECT_EQ(decode_credits(255, kPacketCredits), 128u);
  EXPECT_EQ(decode_credits(0, kPacketCredits), 0u);
}

TEST(Credits, units_that_a_session_may_have) {
  EXPECT_TRUE(is_credit_unit(kPacketCredits));
  EXPECT_FALSE(is_credit_unit(kCreditUnitMin - 1));
  EXPECT_TRUE(is_credit_unit(kCreditUnitMin));
  EXPECT_TRUE(is_credit_unit(kCreditUnitMax));
  EXPECT_FALSE(is_credit_unit(kCreditUnitMax + 1));
}

}  // namespace
}  // namespace tern::wire
