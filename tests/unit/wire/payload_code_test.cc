#include "wire/payload_code.h"

#include <gtest/gtest.h>

namespace tern::wire {
namespace {

TEST(PayloadCodeTest, is_the_largest_that_fits) {
  for (uint32_t bytes = 64; bytes < 70'000; bytes++) {
    const uint8_t code = code_of_payload(bytes);
    ASSERT_LE(payload_of_code(code), bytes);
    if (code != UINT8_MAX) {
      ASSERT_GT(payload_of_code(code + 1), bytes);
    }
  }
}

TEST(PayloadCodeTest, loses_little_of_common_sizes) {
  for (const uint32_t bytes : {1408u, 1428u, 1448u, 3976u, 8844u, 8928u, 8948u, 32'744u, 64'976u}) {
    EXPECT_GT(payload_of_code(code_of_payload(bytes)), 0.94 * bytes) << bytes;
  }
}

TEST(PayloadCodeTest, packets_of_a_message) {
  EXPECT_EQ(packets_of(1, 64), 1u);
  EXPECT_EQ(packets_of(64, 64), 1u);
  EXPECT_EQ(packets_of(65, 64), 2u);
  EXPECT_EQ(packets_of(1u << 30, 512), 1u << 21);
}

}  // namespace
}  // namespace tern::wire
