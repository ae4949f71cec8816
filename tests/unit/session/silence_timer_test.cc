#include "session/silence_timer.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr uint64_t kLivenessNs = 800;
constexpr uint64_t kStepNs = kLivenessNs / 8;

class SilenceTimerTest : public testing::Test {
 protected:
  SilenceTimerTest() { timer_.start(now_); }
  /// Looks `steps` times at the intervals of the timer, with all input read.
  void look(int steps, bool is_answer_owed = true) {
    for (int i = 0; i < steps; i++) timer_.look(now_ += kStepNs, UINT64_MAX, answered_, is_answer_owed);
  }

  SilenceTimer timer_{kLivenessNs};
  uint64_t now_ = 10'000;
  uint64_t answered_ = 0;
};

TEST_F(SilenceTimerTest, asks_once_after_half_of_the_timeout) {
  look(3);
  EXPECT_FALSE(timer_.take_question());
  look(1);
  EXPECT_TRUE(timer_.is_long());
  EXPECT_TRUE(timer_.take_question());
  EXPECT_FALSE(timer_.take_question());
}

TEST_F(SilenceTimerTest, server_that_could_answer_has_one_timeout) {
  look(4);
  EXPECT_TRUE(timer_.take_question());
  timer_.on_peer_idle();
  look(3);
  EXPECT_FALSE(timer_.is_over());
  look(1);
  EXPECT_TRUE(timer_.is_over());
}

TEST_F(SilenceTimerTest, server_with_unknown_state_has_four_timeouts) {
  look(8 * SilenceTimer::kTimeoutsUnasked - 1);
  EXPECT_FALSE(timer_.is_over());
  look(1);
  EXPECT_TRUE(timer_.is_over());
}

TEST_F(SilenceTimerTest, unasked_answer_has_no_effect) {
  timer_.on_peer_idle();
  look(8);
  EXPECT_FALSE(timer_.is_over());
}

TEST_F(SilenceTimerTest, packet_of_the_server_ends_the_silence) {
  look(4);
  EXPECT_TRUE(timer_.take_question());
  answered_ = now_;
  look(1);
  EXPECT_FALSE(timer_.is_long());
  look(3);
  EXPECT_FALSE(timer_.is_long());
  look(1);
  EXPECT_TRUE(timer_.take_question()) << "another silence has another question";
}

TEST_F(SilenceTimerTest, server_that_owes_nothing_is_not_silent) {
  look(100, false);
  EXPECT_FALSE(timer_.is_long());
}

TEST_F(SilenceTimerTest, peer_in_a_callback_is_not_silent) {
  look(7);
  timer_.on_peer_in_callback();
  look(3);
  EXPECT_FALSE(timer_.is_long());
}

TEST_F(SilenceTimerTest, long_time_without_a_look_counts_as_one_step) {
  now_ += 100 * kLivenessNs;
  look(1);
  EXPECT_EQ(timer_.watched_ns(), kStepNs);
  look(2);
  EXPECT_FALSE(timer_.is_long());
  look(1);
  EXPECT_TRUE(timer_.is_long());
}

TEST_F(SilenceTimerTest, unread_time_does_not_count_as_silence) {
  const uint64_t read_until_ns = now_;
  for (int i = 0; i < 20; i++) timer_.look(now_ += kStepNs, read_until_ns, 0, true);
  EXPECT_FALSE(timer_.is_long());
  EXPECT_EQ(timer_.watched_ns(), 20 * kStepNs) << "but it was watched";
}

TEST_F(SilenceTimerTest, watched_time_goes_on_from_one_busy_time_to_the_next) {
  look(2);
  timer_.stop();
  EXPECT_FALSE(timer_.is_running());
  now_ += 1'000'000;
  timer_.start(now_);
  EXPECT_TRUE(timer_.is_running());
  look(1);
  EXPECT_EQ(timer_.watched_ns(), 3 * kStepNs);
}

}  // namespace
}  // namespace tern::session
