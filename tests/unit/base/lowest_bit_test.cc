#include "base/lowest_bit.h"

#include <gtest/gtest.h>

using tern::base::lowest_bit;

TEST(LowestBitTest, is_its_position) {
  for (size_t i = 0; i < 64; i++) {
    EXPECT_EQ(lowest_bit(uint64_t{1} << i), i);
    EXPECT_EQ(lowest_bit(~uint64_t{0} << i), i);  // higher bits do not count
  }
}
