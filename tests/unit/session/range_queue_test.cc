#include "session/range_queue.h"

#include <gtest/gtest.h>

namespace tern::session {
namespace {

Range range_of(uint32_t request_number, uint32_t first) { return {request_number, first, 1, 0, 0}; }

TEST(RangeQueue, first_in_first_out) {
  RangeQueue queue;
  EXPECT_TRUE(queue.empty());
  for (uint32_t i = 0; i < 10; i++) EXPECT_TRUE(queue.push(range_of(64, i)));
  for (uint32_t i = 0; i < 10; i++) {
    EXPECT_EQ(queue.front().first, i);
    queue.pop();
  }
  EXPECT_TRUE(queue.empty());
}

TEST(RangeQueue, takes_256_and_no_more) {
  RangeQueue queue;
  for (uint32_t i = 0; i < RangeQueue::kMax; i++) EXPECT_TRUE(queue.push(range_of(64, i)));
  EXPECT_FALSE(queue.push(range_of(64, 0)));
  queue.pop();
  EXPECT_TRUE(queue.push(range_of(64, 0)));
}

TEST(RangeQueue, forgets_one_slot_and_keeps_the_others_in_order) {
  RangeQueue queue;
  queue.forget_slot(3);  // a slot without ranges is allowed, too
  for (uint32_t i = 0; i < 9; i++) EXPECT_TRUE(queue.push(range_of(64 + i % 3, i)));
  queue.forget_slot(1);
  EXPECT_EQ(queue.size(), 6u);
  for (const uint32_t first : {0u, 2u, 3u, 5u, 6u, 8u}) {
    EXPECT_EQ(queue.front().first, first);
    queue.pop();
  }
}

}  // namespace
}  // namespace tern::session
