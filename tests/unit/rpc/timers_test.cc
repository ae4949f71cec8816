#include "rpc/timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace tern::rpc {
namespace {

class TimersTest : public testing::Test {
 protected:
  uint64_t add(uint64_t at_ns, int name) {
    detail::InlineFunction<> then([this, name] { ran_.push_back(name); });
    const uint64_t id = timers_.add(at_ns, then);
    EXPECT_NE(id, 0u);
    timers_.check_invariants();
    return id;
  }
  bool cancel(uint64_t id) {
    const bool was_there = timers_.cancel(id);
    timers_.check_invariants();
    return was_there;
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
  ASSERT_NE(timers_.add(10, adds), 0u);
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

TEST_F(TimersTest, cancelled_timer_does_not_run) {
  add(10, 1);
  const uint64_t second = add(20, 2);
  add(30, 3);
  EXPECT_TRUE(cancel(second));
  EXPECT_FALSE(cancel(second)) << "twice";
  EXPECT_EQ(run(30), (std::vector<int>{1, 3}));
}

TEST_F(TimersTest, cancel_after_the_run_has_no_effect_on_a_timer_in_the_same_place) {
  const uint64_t first = add(10, 1);
  EXPECT_EQ(run(10), std::vector<int>{1});
  const uint64_t second = add(20, 2);
  EXPECT_NE(first, second);
  EXPECT_FALSE(cancel(first));
  EXPECT_FALSE(cancel(0));
  EXPECT_FALSE(cancel(UINT64_MAX));
  EXPECT_EQ(run(20), std::vector<int>{2});
}

TEST_F(TimersTest, timer_may_cancel_itself_and_others_that_are_due) {
  uint64_t own = 0, other = 0;
  detail::InlineFunction<> cancels([&] {
    EXPECT_FALSE(cancel(own)) << "it runs already";
    EXPECT_TRUE(cancel(other));
    ran_.push_back(1);
  });
  own = timers_.add(10, cancels);
  other = add(10, 2);
  add(10, 3);
  EXPECT_EQ(run(10), (std::vector<int>{1, 3}));
}

TEST_F(TimersTest, cancelled_function_may_use_the_timers_while_it_is_destroyed) {
  struct AddsAtItsEnd {
    std::function<void()>* add;
    explicit AddsAtItsEnd(std::function<void()>* its_add) : add(its_add) {}
    AddsAtItsEnd(AddsAtItsEnd&& other) noexcept : add(std::exchange(other.add, nullptr)) {}
    ~AddsAtItsEnd() {
      if (add != nullptr) (*add)();
    }
    void operator()() const {}
  };
  std::function<void()> add_one = [this] { add(5, 7); };
  detail::InlineFunction<> then{AddsAtItsEnd(&add_one)};
  const uint64_t id = timers_.add(1, then);
  EXPECT_TRUE(cancel(id));
  EXPECT_EQ(run(5), std::vector<int>{7});
}

// Compares the timers with a linear list.
TEST_F(TimersTest, random_timers_run_in_order_whichever_are_cancelled) {
  std::mt19937 random(1);
  struct Known {
    uint64_t at_ns, id;
    int name;
  };
  std::vector<Known> waiting;  // in the order of adding
  uint64_t now_ns = 0;
  for (int step = 0; step < 20'000; step++) {
    const uint32_t choice = random() % 8;
    if (choice < 4) {
      const uint64_t at_ns = now_ns + random() % 100;
      waiting.push_back({at_ns, add(at_ns, step), step});
    } else if (choice < 7 && !waiting.empty()) {
      const size_t victim = random() % waiting.size();
      EXPECT_TRUE(cancel(waiting[victim].id));
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(victim));
    } else {
      now_ns += random() % 50;
      std::vector<Known> due;
      std::copy_if(waiting.begin(), waiting.end(), std::back_inserter(due),
                   [&](const Known& timer) { return timer.at_ns <= now_ns; });
      std::erase_if(waiting, [&](const Known& timer) { return timer.at_ns <= now_ns; });
      std::stable_sort(due.begin(), due.end(), [](const Known& a, const Known& b) { return a.at_ns < b.at_ns; });
      std::vector<int> names;
      for (const Known& timer : due) names.push_back(timer.name);
      ASSERT_EQ(run(now_ns), names);
    }
  }
  timers_.clear();
  timers_.check_invariants();
}

}  // namespace
}  // namespace tern::rpc
