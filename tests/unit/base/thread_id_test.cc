#include "base/thread_id.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace tern::base {
namespace {

TEST(ThreadId, is_that_of_the_calling_thread_only) {
  const uint64_t here = thread_id();
  EXPECT_EQ(thread_id(), here);
  EXPECT_TRUE(is_this_thread(here));
  EXPECT_FALSE(is_this_thread(kNoThreadId));
  std::thread([here] {
    EXPECT_FALSE(is_this_thread(here));
    EXPECT_FALSE(is_this_thread(kNoThreadId));
    EXPECT_TRUE(is_this_thread(thread_id()));
    EXPECT_FALSE(is_this_thread(here));
  }).join();
}

TEST(ThreadName, is_that_of_the_calling_thread_only) {
  const void* const here = thread_name();
  EXPECT_TRUE(is_this_thread(here));
  EXPECT_FALSE(is_this_thread(nullptr));
  std::thread([here] {
    EXPECT_FALSE(is_this_thread(here));
    EXPECT_TRUE(is_this_thread(thread_name()));
  }).join();
}

// Threads one after the other mostly have the same stack, and so the same pthread_self(3).
TEST(ThreadId, is_not_used_again_after_a_thread_has_ended) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 20; i++) std::thread([&ids] { EXPECT_TRUE(ids.insert(thread_id()).second); }).join();
}

}  // namespace
}  // namespace tern::base
