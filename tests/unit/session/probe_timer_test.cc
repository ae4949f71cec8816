#include "session/probe_timer.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr ProbeTimer::Timeouts kTimeouts{.rto_ns = 100, .liveness_ns = 4000};

TEST(ProbeTimer, probe_is_due_after_the_timeout) {
  ProbeTimer timer;
  EXPECT_EQ(timer.due_ns(5000, kTimeouts), 5100u);
}

TEST(ProbeTimer, waits_double_up_to_a_quarter_of_the_liveness_timeout) {
  ProbeTimer timer;
  uint64_t now_ns = 5000;
  for (const uint64_t wait_ns : {100u, 200u, 400u, 800u, 800u, 800u}) {
    EXPECT_EQ(timer.due_ns(5000, kTimeouts), now_ns + wait_ns);
    now_ns += wait_ns;
    timer.on_probe(now_ns, kTimeouts);
  }
}

TEST(ProbeTimer, waits_that_have_doubled_do_not_grow_with_a_longer_timeout) {
  ProbeTimer timer;
  uint64_t now_ns = 5000;
  for (int i = 0; i < 4; i++) timer.on_probe(now_ns += 1000, kTimeouts);
  constexpr ProbeTimer::Timeouts kLonger{.rto_ns = 500, .liveness_ns = 4000};
  EXPECT_EQ(timer.due_ns(5000, kLonger), now_ns + 1000);
  now_ns += 1000;
  EXPECT_EQ(timer.on_probe(now_ns, kLonger), now_ns + 1000);
  constexpr ProbeTimer::Timeouts kLongest{.rto_ns = 2000, .liveness_ns = 4000};
  EXPECT_EQ(timer.due_ns(5000, kLongest), now_ns + 2000) << "the timeout itself";
}

TEST(ProbeTimer, backs_off_with_the_first_probe_until_there_is_progress) {
  ProbeTimer timer;
  EXPECT_FALSE(timer.has_backed_off());
  EXPECT_EQ(timer.on_probe(5100, kTimeouts), 5300u);
  EXPECT_TRUE(timer.has_backed_off());
  EXPECT_FALSE(timer.look_at_progress(0, false)) << "there was none";
  EXPECT_TRUE(timer.has_backed_off());
  EXPECT_TRUE(timer.look_at_progress(5150, false));
  EXPECT_FALSE(timer.has_backed_off());
  EXPECT_EQ(timer.due_ns(5000, kTimeouts), 5200u) << "not sooner than a timeout after the last probe";
}

TEST(ProbeTimer, early_probe_comes_once_until_there_is_progress) {
  ProbeTimer timer;
  EXPECT_EQ(timer.early_ns(kTimeouts, 20), 20u);
  EXPECT_EQ(timer.early_ns(kTimeouts, 300), 100u) << "not later than the timeout";
  timer.look_at_sample(1, 30);
  EXPECT_EQ(timer.early_ns(kTimeouts, 20), 60u) << "twice the time of an answer";
  timer.on_early_probe(5060);
  EXPECT_TRUE(timer.has_probed_early());
  EXPECT_FALSE(timer.has_backed_off());
  EXPECT_EQ(timer.due_ns(5000, kTimeouts), 5160u) << "the timeout begins after the early probe";
  EXPECT_FALSE(timer.look_at_progress(0, false));
  EXPECT_TRUE(timer.has_probed_early());
  EXPECT_TRUE(timer.look_at_progress(5100, false));
  EXPECT_FALSE(timer.has_probed_early());
}

TEST(ProbeTimer, idle_session_ends_the_back_off) {
  ProbeTimer timer;
  timer.on_probe(5100, kTimeouts);
  EXPECT_TRUE(timer.look_at_progress(0, true));
  EXPECT_FALSE(timer.has_backed_off());
}

TEST(ProbeTimer, is_patient_with_a_server_that_holds_its_answers) {
  ProbeTimer timer;
  EXPECT_EQ(timer.patience_ns(kTimeouts), 100u);
  timer.look_at_sample(1, 300);
  EXPECT_EQ(timer.patience_ns(kTimeouts), 600u);
  EXPECT_EQ(timer.due_ns(5000, kTimeouts), 5600u);
  timer.look_at_sample(2, 10'000);
  EXPECT_EQ(timer.patience_ns(kTimeouts), 1000u) << "at most a quarter of the liveness timeout";
}

TEST(ProbeTimer, patience_decays_with_each_new_sample) {
  ProbeTimer timer;
  timer.look_at_sample(1, 320);
  timer.look_at_sample(1, 10);
  EXPECT_EQ(timer.patience_ns(kTimeouts), 640u) << "the same sample";
  timer.look_at_sample(2, 10);
  EXPECT_EQ(timer.patience_ns(kTimeouts), 600u);
  for (uint64_t i = 3; i < 200; i++) timer.look_at_sample(i, 10);
  EXPECT_EQ(timer.patience_ns(kTimeouts), 100u);
}

}  // namespace
}  // namespace tern::session
