#include "base/ring_queue.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "unit/base/resident_bytes.h"

namespace tern::base {
namespace {

TEST(RingQueueTest, pop__returns_the_elements_in_their_order_across_growth_and_the_end_of_the_array) {
  RingQueue<std::unique_ptr<int>> queue;
  int pushed = 0, popped = 0;
  for (int round = 1; round < 200; round++) {
    ASSERT_TRUE(queue.try_reserve(queue.size() + static_cast<size_t>(round % 7)));
    for (int i = 0; i < round % 7; i++) queue.push(std::make_unique<int>(pushed++));
    for (int i = 0; i < round % 5 && !queue.empty(); i++) {
      ASSERT_EQ(*queue.front(), popped);
      ASSERT_EQ(*queue.pop(), popped++);
    }
    ASSERT_EQ(queue.size(), static_cast<size_t>(pushed - popped));
  }
  EXPECT_GT(queue.size(), 50u);
  EXPECT_GE(queue.capacity(), queue.size());
}

TEST(RingQueueTest, destructor__destroys_the_elements_that_are_left) {
  const auto counted = std::make_shared<int>(0);
  {
    RingQueue<std::shared_ptr<int>> queue;
    ASSERT_TRUE(queue.try_reserve(8));
    for (int i = 0; i < 8; i++) queue.push(std::shared_ptr<int>(counted));
    queue.pop();
    EXPECT_EQ(counted.use_count(), 8);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

#ifndef TERN_IS_SANITIZED  // sanitizers note for each allocation which of its bytes are valid
TEST(RingQueueTest, try_reserve__takes_no_pages_and_a_short_queue_few) {
  constexpr size_t kBytes = 64u << 20;
  const size_t before = resident_bytes();
  if (before == 0) GTEST_SKIP() << "no /proc/self/statm here";
  RingQueue<uint64_t> queue;
  ASSERT_TRUE(queue.try_reserve(kBytes / sizeof(uint64_t)));
  for (uint64_t i = 0; i < kBytes / sizeof(uint64_t); i++) {
    queue.push(uint64_t{i});
    ASSERT_EQ(queue.pop(), i);
  }
  EXPECT_LT(resident_bytes(), before + kBytes / 2);
}
#endif

}  // namespace
}  // namespace tern::base
