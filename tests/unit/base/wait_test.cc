// Waiting for descriptors, wake-ups and times.
#include "base/wait.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/alarm.h"
#include "base/clock.h"

namespace tern::base {
namespace {

constexpr uint64_t kMs = 1'000'000;

Descriptor make_event(unsigned count) { return Descriptor(eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK)); }

class Waiting : public ::testing::Test {
 protected:
  Waiting() { EXPECT_TRUE(set_.open()); }
  /// Returns the number of events now.
  size_t look() { return set_.wait(events_, 0); }

  WaitSet set_;
  std::array<epoll_event, 4> events_;
};

TEST_F(Waiting, reports_events_by_name) {
  const Descriptor quiet = make_event(0), loud = make_event(1);
  ASSERT_TRUE(set_.add(quiet.get(), EPOLLIN, 7));
  ASSERT_TRUE(set_.add(loud.get(), EPOLLIN, 8));
  ASSERT_EQ(set_.wait(events_, UINT64_MAX), 1u);
  EXPECT_EQ(events_[0].data.u64, 8u);
  set_.remove(loud.get());
  EXPECT_EQ(look(), 0u);
  set_.remove(loud.get());
}

TEST_F(Waiting, a_descriptor_that_is_added_again_takes_the_new_name) {
  const Descriptor event = make_event(1);
  ASSERT_TRUE(set_.add(event.get(), EPOLLIN, 1));
  ASSERT_TRUE(set_.add(event.get(), EPOLLIN | EPOLLOUT, 2));
  ASSERT_EQ(look(), 1u);
  EXPECT_EQ(events_[0].data.u64, 2u);
  EXPECT_EQ(events_[0].events, EPOLLIN | EPOLLOUT);
}

TEST_F(Waiting, error_event_is_reported) {
  EXPECT_FALSE(set_.add(-1, EPOLLIN, 0));
  EXPECT_EQ(errno, EBADF);
}

TEST_F(Waiting, ends_at_its_deadline_and_not_before) {
  const uint64_t deadline_ns = monotonic_ns() + 5 * kMs;
  EXPECT_EQ(set_.wait(events_, deadline_ns), 0u);
  EXPECT_GE(monotonic_ns(), deadline_ns);
  EXPECT_EQ(set_.wait(events_, deadline_ns), 0u);  // the deadline has passed: returns at once
}

TEST_F(Waiting, a_wake_up_stays_until_it_is_cleared) {
  WakeEvent wake;
  ASSERT_TRUE(wake.open());
  ASSERT_TRUE(set_.add(wake.descriptor(), EPOLLIN, 0));
  EXPECT_EQ(look(), 0u);
  wake.wake();
  wake.wake();
  EXPECT_EQ(look(), 1u);
  EXPECT_EQ(look(), 1u);
  wake.clear();
  EXPECT_EQ(look(), 0u);
  wake.clear();
  wake.wake();
  EXPECT_EQ(look(), 1u);
}

/// The waker increments a number and wakes. The waiter sleeps without a deadline until it has seen every number.
TEST_F(Waiting, no_wake_up_of_another_thread_is_lost) {
  constexpr uint32_t kWakes = 20'000;
  WakeEvent wake;
  ASSERT_TRUE(wake.open());
  ASSERT_TRUE(set_.add(wake.descriptor(), EPOLLIN, 0));
  std::atomic<uint32_t> sent{0};
  std::array<std::thread, 2> wakers;
  for (std::thread& waker : wakers) {
    waker = std::thread([&] {
      for (uint32_t i = 0; i < kWakes; i++) {
        sent.fetch_add(1, std::memory_order_relaxed);
        wake.wake();
      }
    });
  }
  while (sent.load(std::memory_order_relaxed) < kWakes * wakers.size()) {
    set_.wait(events_, UINT64_MAX);
    wake.clear();
  }
  for (std::thread& waker : wakers) waker.join();
}

TEST_F(Waiting, a_timer_is_readable_from_its_time_on) {
  Timer timer;
  ASSERT_TRUE(timer.open());
  ASSERT_TRUE(set_.add(timer.descriptor(), EPOLLIN, 0));
  EXPECT_EQ(look(), 0u);
  const uint64_t at_ns = monotonic_ns() + 2 * kMs;
  timer.set_at(at_ns);
  EXPECT_EQ(set_.wait(events_, UINT64_MAX), 1u);
  EXPECT_GE(monotonic_ns(), at_ns);
  EXPECT_TRUE(timer.take());
  EXPECT_FALSE(timer.take());
  EXPECT_EQ(look(), 0u);
}

TEST_F(Waiting, a_timer_of_the_past_is_readable_at_once_and_one_that_is_stopped_never) {
  Timer timer;
  ASSERT_TRUE(timer.open());
  ASSERT_TRUE(set_.add(timer.descriptor(), EPOLLIN, 0));
  for (const uint64_t past_ns : {uint64_t{0}, uint64_t{1}, monotonic_ns()}) {
    timer.set_at(past_ns);
    EXPECT_EQ(set_.wait(events_, UINT64_MAX), 1u) << past_ns;
  }
  timer.stop();
  EXPECT_EQ(look(), 0u);
}

TEST_F(Waiting, a_timer_that_was_taken_can_be_set_to_the_same_time_again) {
  Timer timer;
  ASSERT_TRUE(timer.open());
  ASSERT_TRUE(set_.add(timer.descriptor(), EPOLLIN, 0));
  for (int round = 0; round < 3; round++) {
    timer.set_at(1);
    timer.set_at(1);
    EXPECT_EQ(look(), 1u) << round;
    EXPECT_TRUE(timer.take());
    EXPECT_EQ(look(), 0u) << round;
  }
}

TEST_F(Waiting, an_alarm_is_readable_when_its_descriptor_is_or_its_time_has_come) {
  const Descriptor watched = make_event(0);
  Alarm alarm;
  EXPECT_FALSE(alarm.is_open());
  EXPECT_EQ(alarm.descriptor(), -1);
  ASSERT_TRUE(alarm.open(watched.get()).ok());
  ASSERT_TRUE(set_.add(alarm.descriptor(), EPOLLIN, 0));
  EXPECT_EQ(look(), 0u);
  alarm.set(0);
  EXPECT_EQ(look(), 1u);
  alarm.set(UINT64_MAX);
  EXPECT_EQ(look(), 0u);
  const uint64_t one = 1;
  ASSERT_EQ(write(watched.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  EXPECT_EQ(look(), 1u);
}

TEST_F(Waiting, an_alarm_that_cannot_be_opened_stays_closed) {
  Alarm alarm;
  EXPECT_EQ(alarm.open(-1).code(), Code::kUnavailable);
  EXPECT_FALSE(alarm.is_open());
}

TEST(Clock, does_not_go_back) {
  const uint64_t before_ns = monotonic_ns();
  EXPECT_GE(monotonic_ns(), before_ns);
  EXPECT_GT(before_ns, 0u);
}

}  // namespace
}  // namespace tern::base
