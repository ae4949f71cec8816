#include "cc/departure_queue.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace tern::cc {
namespace {

/// Adds names with these times, and lets all of them depart.
void fill_and_run(DepartureQueue& queue, uint32_t names) {
  for (uint32_t i = 0; i < names; i++) ASSERT_TRUE(queue.add(names - i, i));
  uint32_t departed = 0;
  queue.run(names, SIZE_MAX, [&](uint32_t name) { ASSERT_EQ(name, names - ++departed); });
  EXPECT_EQ(departed, names);
  EXPECT_TRUE(queue.empty());
}

TEST(DepartureQueueTest, gives_back_the_memory_of_many_names_when_it_is_empty) {
  DepartureQueue queue;
  fill_and_run(queue, 100'000);
  EXPECT_EQ(queue.capacity(), 0u);
}

TEST(DepartureQueueTest, keeps_the_memory_of_few_names) {
  DepartureQueue queue;
  fill_and_run(queue, 1000);
  EXPECT_GE(queue.capacity(), 1000u);
}

}  // namespace
}  // namespace tern::cc
