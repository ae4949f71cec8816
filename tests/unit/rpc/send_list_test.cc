#include <gtest/gtest.h>

#include <vector>

#include "rpc/send_list.h"
#include "unit/base/resident_bytes.h"

namespace tern::rpc {
namespace {

constexpr int kItems = 200;

class SendListTest : public ::testing::Test {
 protected:
  SendListTest() : items_(kItems) {
    EXPECT_TRUE(list_.reserve(kItems));
    for (int i = 0; i < kItems; i++) {
      items_[i] = i;
      list_.add(&items_[i]);
    }
  }
  /// Returns the items that had a turn. Each turn ended as `turn` returned.
  template <class F>
  std::vector<int> take_turns(F&& turn) {
    std::vector<int> seen;
    list_.take_turns([&](const int* item) {
      seen.push_back(*item);
      return turn(*item);
    });
    return seen;
  }

  std::vector<int> items_;
  SendList<int> list_;
};

TEST_F(SendListTest, finished_items_leave_and_the_others_keep_their_order) {
  EXPECT_EQ(take_turns([](int i) { return i % 2 == 0 ? SendTurn::kMore : SendTurn::kDone; }).size(), 200u);
  EXPECT_EQ(list_.size(), 100u);
  EXPECT_FALSE(list_.are_all_refused());
  const auto seen = take_turns([](int) { return SendTurn::kDone; });
  for (size_t i = 0; i < seen.size(); i++) EXPECT_EQ(seen[i], 2 * static_cast<int>(i));
  EXPECT_TRUE(list_.empty());
}

TEST_F(SendListTest, a_full_queue_ends_the_turns_and_the_others_are_next) {
  std::vector<int> times(kItems);
  size_t turns = 0, iterations = 0;
  for (; !list_.are_all_refused(); iterations++) {
    ASSERT_LT(iterations, 10u);
    const auto seen = take_turns([&](int) { return SendTurn::kRefused; });
    EXPECT_LE(seen.size(), 64u);
    for (const int i : seen) times[i]++;
    turns += seen.size();
  }
  EXPECT_EQ(list_.size(), 200u);
  EXPECT_EQ(turns, 256u);
  for (const int count : times) EXPECT_GE(count, 1) << "each was refused before all wait";
}

TEST_F(SendListTest, order_survives_growth_in_the_middle_of_a_round) {
  for (int i = 0; i < 5; i++) take_turns([](int) { return SendTurn::kRefused; });  // moves the ring's start
  std::vector<int> expected;
  for (size_t i = 0; i < list_.size(); i++) expected.push_back(*list_[i]);
  EXPECT_NE(expected[0], 0);
  std::vector<int> more(1000);
  ASSERT_TRUE(list_.reserve(kItems + more.size()));
  for (size_t i = 0; i < more.size(); i++) {
    more[i] = static_cast<int>(kItems + i);
    list_.add(&more[i]);
    expected.push_back(more[i]);
  }
  EXPECT_EQ(take_turns([](int) { return SendTurn::kDone; }), expected);
  EXPECT_TRUE(list_.empty());
}

TEST_F(SendListTest, item_added_while_all_wait_gets_a_turn) {
  while (!list_.are_all_refused()) take_turns([](int) { return SendTurn::kRefused; });
  int late = 1000;
  ASSERT_TRUE(list_.reserve(kItems + 1));
  list_.add(&late);
  bool was_seen = false;
  while (!list_.are_all_refused()) {
    take_turns([&](int i) {
      was_seen |= i == late;
      return i == late ? SendTurn::kDone : SendTurn::kRefused;
    });
  }
  EXPECT_TRUE(was_seen);
  EXPECT_EQ(list_.size(), 200u);
}

TEST_F(SendListTest, room_for_one_makes_all_try_again) {
  while (!list_.are_all_refused()) take_turns([](int) { return SendTurn::kRefused; });
  bool is_first = true;
  take_turns([&](int) { return std::exchange(is_first, false) ? SendTurn::kDone : SendTurn::kRefused; });
  EXPECT_FALSE(list_.are_all_refused());
}

#ifndef TERN_IS_SANITIZED  // a sanitizer's allocator keeps notes of these pages
TEST(LongSendListTest, gives_back_its_pages_when_it_is_empty) {
  constexpr size_t kMany = size_t{4} << 20;
  SendList<int> list;
  ASSERT_TRUE(list.reserve(kMany));
  int item = 0;
  for (size_t i = 0; i < kMany; i++) list.add(&item);
  const size_t before = base::resident_bytes();
  if (before == 0) GTEST_SKIP() << "no /proc/self/statm here";
  list.take_turns([](const int*) { return SendTurn::kDone; });
  EXPECT_LT(base::resident_bytes() + kMany * sizeof(int*) / 2, before);
  list.add(&item);
  EXPECT_EQ(list[0], &item);
}
#endif

}  // namespace
}  // namespace tern::rpc
