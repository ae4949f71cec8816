#include "rpc/timers.h"

#include <gtest/gtest.h>

#include <vector>

namespace tern::rpc {
namespace {

class TimersTest : public testing::Test {
 protected:
  void add(uint64_t at_ns, int name) {
    detail::InlineFunction<> then([this, name] { ran_.push_back(name); });
    EXPECT_TRUE(timers_.add(at_ns, then));
    timers_.check_invariants();
  }
  std::vector<int> run(uint64_t now_ns) {
    ran_.clear();
    timers_.run(now_ns);
    timers_.check_invariants();
    return ran_;
  }

  Timers timers_;
  std::vector<int> ran_;
};

TEST_F(TimersTest, timers_run_when_due_earliest_first) {
  EXPECT_EQ(timers_.next_ns(), UINT64_MAX);
  add(30, 3);
  add(10, 1);
  add(20, 2);
  EXPECT_EQ(timers_.next_ns(), 10u);
  EXPECT_EQ(run(9), std::vector<int>{});
  EXPECT_EQ(run(20), (std::vector<int>{1, 2}));
  EXPECT_EQ(timers_.next_ns(), 30u);
  EXPECT_EQ(run(30), std::vector<int>{3});
  EXPECT_EQ(timers_.next_ns(), UINT64_MAX);
}

TEST_F(TimersTest, timers_of_one_time_run_in_the_order_they_were_added) {
  for (int name = 0; name < 20; name++) add(5, name);
  const std::vector<int> ran = run(5);
  ASSERT_EQ(ran.size(), 20u);
  for (int name = 0; name < 20; name++) EXPECT_EQ(ran[static_cast<size_t>(name)], name);
}

TEST_F(TimersTest, timer_added_by_a_timer_runs_in_the_next_call) {
  detail::InlineFunction<> adds([this] {
    ran_.push_back(1);
    add(10, 2);
  });
  ASSERT_TRUE(timers_.add(10, adds));
  add(10, 3);
  EXPECT_EQ(run(10), (std::vector<int>{1, 3}));
  EXPECT_EQ(run(10), std::vector<int>{2});
}

TEST_F(TimersTest, cleared_timers_do_not_run) {
  add(1, 1);
  timers_.clear();
  EXPECT_EQ(timers_.next_ns(), UINT64_MAX);
  EXPECT_EQ(run(1), std::vector<int>{});
}

}  // namespace
}  // namespace tern::rpc
