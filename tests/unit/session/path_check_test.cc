#include "session/path_check.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

using Round = PathCheck::Round;
constexpr uint64_t kGapNs = 100;

TEST(PathCheck, first_round_sends_a_short_probe_too_when_the_server_is_silent) {
  PathCheck check;
  EXPECT_EQ(check.begin(1000, kGapNs, 5, false), Round::kFullProbe);
  check.end();
  EXPECT_EQ(check.begin(1000, kGapNs, 5, true), Round::kBothProbes);
  EXPECT_TRUE(check.is_running());
  EXPECT_EQ(check.began_ns(), 1000u);
}

TEST(PathCheck, rounds_are_a_gap_apart) {
  PathCheck check;
  check.begin(1000, kGapNs, 5, false);
  EXPECT_EQ(check.next_ns(), 1100u);
  EXPECT_EQ(check.look(1099, kGapNs, 1050), Round::kNone);
  EXPECT_EQ(check.look(1100, kGapNs, 1050), Round::kFullProbe);
  EXPECT_EQ(check.next_ns(), 1200u);
}

TEST(PathCheck, silent_round_says_nothing_of_the_width) {
  PathCheck check;
  uint64_t now_ns = 1000;
  check.begin(now_ns, kGapNs, 5, false);
  for (int i = 0; i < 100; i++) EXPECT_EQ(check.look(now_ns += kGapNs, kGapNs, 1000), Round::kBothProbes);
}

TEST(PathCheck, path_is_narrow_after_rounds_in_which_only_other_packets_were_answered) {
  PathCheck check;
  uint64_t now_ns = 1000;
  check.begin(now_ns, kGapNs, 5, false);
  for (int i = 1; i < PathCheck::kNarrowRounds; i++) {
    now_ns += kGapNs;
    EXPECT_EQ(check.look(now_ns, kGapNs, now_ns - 1), Round::kFullProbe);
  }
  now_ns += kGapNs;
  EXPECT_EQ(check.look(now_ns, kGapNs, now_ns - 1), Round::kPathIsNarrow);
}

TEST(PathCheck, check_that_begins_anew_counts_anew) {
  PathCheck check;
  uint64_t now_ns = 1000;
  for (int j = 0; j < 3; j++) {
    check.begin(now_ns, kGapNs, 5, false);
    for (int i = 1; i < PathCheck::kNarrowRounds; i++) {
      now_ns += kGapNs;
      ASSERT_EQ(check.look(now_ns, kGapNs, now_ns - 1), Round::kFullProbe);
    }
    check.end();
    EXPECT_FALSE(check.is_running());
  }
}

TEST(PathCheck, only_packets_sent_since_it_began_are_of_the_check) {
  PathCheck check;
  EXPECT_FALSE(check.is_of_check(7));
  check.begin(1000, kGapNs, 5, false);
  EXPECT_FALSE(check.is_of_check(4));
  EXPECT_TRUE(check.is_of_check(5));
  check.confirm(777);
  EXPECT_FALSE(check.is_of_check(5));
  EXPECT_FALSE(check.is_running());
  EXPECT_EQ(check.good_ns(), 777u);
}

}  // namespace
}  // namespace tern::session
