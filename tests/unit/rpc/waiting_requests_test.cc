#include "rpc/waiting_requests.h"

#include <gtest/gtest.h>

#include "rpc/handlers.h"
#include "rpc/mailbox.h"

namespace tern::rpc {
namespace {

constexpr uint64_t kMs = 1'000'000;

class WaitingRequestsTest : public testing::Test {
 protected:
  WaitingRequestsTest() {
    for (size_t i = 0; i < 4; i++) {
      requests_[i].handler = &handler_;
      requests_[i].deadline_ns = (100 + 10 * i) * kMs;
    }
  }
  ~WaitingRequestsTest() override {
    while (waiting_.take(0).request != nullptr) {
    }
  }
  void add(size_t count) {
    for (size_t i = 0; i < count; i++) waiting_.add(&requests_[i]);
  }
  void expect_next(uint64_t now_ns, const Incoming* request, bool is_late) {
    const auto next = waiting_.take(now_ns);
    EXPECT_EQ(next.request, request);
    EXPECT_EQ(next.is_late, is_late);
    waiting_.check_invariants();
  }

  HandlerEntry handler_;
  Incoming requests_[4];
  WaitingRequests waiting_;
};

TEST_F(WaitingRequestsTest, in_order_while_all_are_in_time) {
  add(3);
  for (size_t i = 0; i < 3; i++) expect_next(50 * kMs, &requests_[i], false);
  expect_next(50 * kMs, nullptr, false);
}

TEST_F(WaitingRequestsTest, the_newest_first_once_one_is_late_until_none_waits) {
  add(4);
  expect_next(100 * kMs, &requests_[0], true);
  expect_next(100 * kMs, &requests_[3], false);
  expect_next(100 * kMs, &requests_[2], false);
  expect_next(100 * kMs, &requests_[1], false);
  add(2);
  expect_next(50 * kMs, &requests_[0], false);
  expect_next(50 * kMs, &requests_[1], false);
}

TEST_F(WaitingRequestsTest, a_late_one_that_ends_while_it_waits_counts) {
  add(3);
  waiting_.remove(&requests_[0], 100 * kMs);
  expect_next(100 * kMs, &requests_[2], false);
  add(1);
  waiting_.remove(&requests_[0], 50 * kMs);
  waiting_.remove(&requests_[1], 50 * kMs);
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(WaitingRequestsTest, request_with_less_time_left_than_the_handler_takes_is_late) {
  handler_.time.add(0, 5 * kMs);
  EXPECT_FALSE(requests_[0].is_hopeless(94 * kMs));
  EXPECT_TRUE(requests_[0].is_hopeless(95 * kMs));
  requests_[0].deadline_ns = UINT64_MAX;
  EXPECT_FALSE(requests_[0].is_hopeless(95 * kMs));
}

TEST(HandlerTime, follows_the_measured_run_times) {
  HandlerTime time;
  EXPECT_EQ(time.expected_ns(0), 0u);
  time.add(10 * kMs, 12 * kMs);
  EXPECT_EQ(time.expected_ns(12 * kMs), 2 * kMs);
  time.add(12 * kMs, 16 * kMs);
  EXPECT_EQ(time.expected_ns(16 * kMs), 2 * kMs + kMs / 4);
  time.add(1000 * kMs, 1007 * kMs);
  EXPECT_EQ(time.expected_ns(1007 * kMs), 7 * kMs) << "the last run before is too long ago";
}

TEST(HandlerTime, one_interrupted_run_changes_little) {
  HandlerTime time;
  time.add(0, 2 * kMs);
  time.add(2 * kMs, 990 * kMs);
  EXPECT_LT(time.expected_ns(990 * kMs), 3 * kMs);
  for (uint64_t ns = 990 * kMs; ns < 2000 * kMs; ns += 20 * kMs) time.add(ns, ns + 20 * kMs);
  EXPECT_GT(time.expected_ns(2000 * kMs), 18 * kMs) << "but what is so from now on counts";
}

TEST(HandlerTime, is_forgotten_so_that_it_is_measured_again) {
  HandlerTime time;
  time.add(0, 2 * kMs);
  EXPECT_EQ(time.expected_ns(102 * kMs), 2 * kMs);
  EXPECT_EQ(time.expected_ns(103 * kMs), 0u);
  for (const uint64_t begin_ns : {200 * kMs, 500 * kMs, 1200 * kMs}) time.add(begin_ns, begin_ns + 60 * kMs);
  EXPECT_EQ(time.expected_ns(1260 * kMs + 16 * 60 * kMs), 60 * kMs);
  EXPECT_EQ(time.expected_ns(1260 * kMs + 16 * 60 * kMs + 1), 0u);
}

TEST(HandlerTime, one_interrupted_run_after_a_pause_changes_little) {
  HandlerTime time;
  time.add(0, 2 * kMs);
  time.add(200 * kMs, 1200 * kMs);
  EXPECT_EQ(time.expected_ns(1300 * kMs), 8 * kMs);
  EXPECT_EQ(time.expected_ns(1329 * kMs), 0u);
}

TEST(HandlerTime, very_first_run_does_not_last) {
  HandlerTime time;
  time.add(0, 1000 * kMs);
  EXPECT_EQ(time.expected_ns(1100 * kMs), 1000 * kMs);
  EXPECT_EQ(time.expected_ns(1101 * kMs), 0u);
}

}  // namespace
}  // namespace tern::rpc
