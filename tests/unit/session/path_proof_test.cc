#include "session/path_proof.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr uint32_t kPathToken = 11;
constexpr uint32_t kSessionToken = 22;
constexpr uint32_t kPairToken = 33;

using Reply = PathProof::Reply;
constexpr Reply kShort{false, true, kSessionToken};
constexpr Reply kFull{false, false, kSessionToken};
constexpr Reply kPairedShort{true, true, kPairToken};
constexpr Reply kPairedFull{true, false, kSessionToken};

class PathProofTest : public testing::Test {
 protected:
  PathProofTest() { proof_.accept(kPathToken); }
  void expect(const PathProof::Probe& probe, uint8_t flags, bool is_full, uint32_t token) {
    EXPECT_EQ(probe.flags, flags);
    EXPECT_EQ(probe.is_full, is_full);
    EXPECT_EQ(probe.token, token);
  }
  /// Opens a paired session by a short probe and a full one.
  void open_paired() {
    proof_.pair();
    proof_.next();
    ASSERT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kAnswered);
    proof_.next();
    ASSERT_EQ(proof_.on_reply(kPairedFull), PathVerdict::kOpened);
  }
  PathProof proof_;
};

TEST_F(PathProofTest, short_probe_and_then_a_full_one_open_the_session) {
  expect(proof_.next(), 0, false, kPathToken);
  EXPECT_EQ(proof_.on_reply(kFull), PathVerdict::kDropped) << "no full probe was sent";
  EXPECT_EQ(proof_.on_reply(kShort), PathVerdict::kAnswered);
  EXPECT_EQ(proof_.session_token(), kSessionToken);
  EXPECT_EQ(proof_.on_reply(kShort), PathVerdict::kDropped) << "a duplicate";
  expect(proof_.next(), 0, true, kSessionToken);
  EXPECT_EQ(proof_.on_reply(kFull), PathVerdict::kOpened);
}

TEST_F(PathProofTest, address_gets_three_short_probes_until_it_answers) {
  for (int left = 2; left >= 0; left--) {
    EXPECT_TRUE(proof_.may_probe());
    proof_.next();
    EXPECT_EQ(proof_.short_probes_left(), left);
  }
  EXPECT_FALSE(proof_.may_probe());
  EXPECT_EQ(proof_.on_reply(kShort), PathVerdict::kAnswered);
  for (int i = 0; i < 100; i++) {
    EXPECT_TRUE(proof_.may_probe());
    proof_.next();
  }
}

TEST_F(PathProofTest, paired_probes_open_the_session_with_a_pair_token) {
  proof_.pair();
  expect(proof_.next(), wire::kPaired, false, kPathToken);
  EXPECT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kAnswered);
  expect(proof_.next(), wire::kPaired, true, kPairToken);
  EXPECT_EQ(proof_.on_reply(kFull), PathVerdict::kDropped) << "of the other way";
  EXPECT_EQ(proof_.on_reply(kPairedFull), PathVerdict::kOpened);
  EXPECT_EQ(proof_.session_token(), kSessionToken);
}

TEST_F(PathProofTest, unpaired_session_takes_no_paired_reply) {
  proof_.next();
  EXPECT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kDropped);
  EXPECT_EQ(proof_.on_pair_reply(kPairedFull), PathVerdict::kDropped);
}

TEST_F(PathProofTest, late_answer_to_an_unpaired_probe_is_as_good) {
  proof_.next();
  proof_.pair();
  EXPECT_EQ(proof_.on_reply(kShort), PathVerdict::kAnswered);
  EXPECT_FALSE(proof_.is_paired());
  expect(proof_.next(), 0, true, kSessionToken);
}

TEST_F(PathProofTest, each_short_paired_probe_takes_one_reply) {
  proof_.pair();
  proof_.next();
  EXPECT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kAnswered);
  EXPECT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kDropped);
}

TEST_F(PathProofTest, full_paired_probes_without_an_answer_are_followed_by_a_short_one) {
  proof_.pair();
  proof_.next();
  ASSERT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kAnswered);
  for (int i = 0; i < PathProof::kFullPairProbesMax; i++) expect(proof_.next(), wire::kPaired, true, kPairToken);
  expect(proof_.next(), wire::kPaired, false, kPathToken);
  EXPECT_EQ(proof_.on_reply({true, true, kPairToken + 1}), PathVerdict::kFound);
  expect(proof_.next(), wire::kPaired, true, kPairToken + 1);
}

/// A burst of losses may cost all full probes and the short one, and the server answers few short ones.
TEST_F(PathProofTest, full_paired_probes_go_on_if_the_short_one_has_no_answer) {
  proof_.pair();
  proof_.next();
  ASSERT_EQ(proof_.on_reply(kPairedShort), PathVerdict::kAnswered);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < PathProof::kFullPairProbesMax; i++) expect(proof_.next(), wire::kPaired, true, kPairToken);
    expect(proof_.next(), wire::kPaired, false, kPathToken);
  }
  EXPECT_EQ(proof_.on_reply(kPairedFull), PathVerdict::kOpened);
}

TEST_F(PathProofTest, open_session_is_followed_and_learns_its_token_again) {
  ASSERT_NO_FATAL_FAILURE(open_paired());
  EXPECT_EQ(proof_.on_pair_reply(kPairedShort), PathVerdict::kDropped) << "nothing was asked";
  expect(proof_.next_paired(), wire::kPaired, false, kPathToken);
  EXPECT_EQ(proof_.on_pair_reply({true, true, kPairToken + 1}), PathVerdict::kFound);
  expect(proof_.next_paired(), wire::kPaired, true, kPairToken + 1);
  EXPECT_EQ(proof_.on_pair_reply({true, false, kSessionToken + 1}), PathVerdict::kFollowed);
  EXPECT_EQ(proof_.on_pair_reply({true, false, kSessionToken + 2}), PathVerdict::kDropped)
      << "no full probe waits for it";
  EXPECT_EQ(proof_.session_token(), kSessionToken + 1);
  expect(proof_.next_paired(), wire::kPaired, false, kPathToken);
}

/// On a long path the client asks again before the full reply comes.
TEST_F(PathProofTest, full_reply_of_an_open_session_counts_after_the_next_question) {
  ASSERT_NO_FATAL_FAILURE(open_paired());
  proof_.next_paired();
  ASSERT_EQ(proof_.on_pair_reply(kPairedShort), PathVerdict::kFound);
  expect(proof_.next_paired(), wire::kPaired, true, kPairToken);
  expect(proof_.next_paired(), wire::kPaired, false, kPathToken);
  EXPECT_EQ(proof_.on_pair_reply(kPairedFull), PathVerdict::kFollowed);
}

TEST(FollowTimer, asks_at_growing_times_of_a_silence) {
  constexpr uint64_t kLivenessNs = 1600;
  FollowTimer timer;
  std::vector<uint64_t> asked_ns;
  for (uint64_t now_ns = 1000; now_ns <= 1000 + 3 * kLivenessNs; now_ns += 50) {
    if (timer.look(now_ns, 7, true, kLivenessNs)) asked_ns.push_back(now_ns - 1000);
  }
  EXPECT_EQ(asked_ns, (std::vector<uint64_t>{100, 400, 800, 2400, 4000}));
}

TEST(FollowTimer, answer_or_nothing_owed_begins_anew) {
  FollowTimer timer;
  EXPECT_FALSE(timer.look(1000, 7, true, 1600));
  EXPECT_FALSE(timer.look(1100, 8, true, 1600)) << "an answer";
  EXPECT_EQ(timer.next_ns(), 1200u);
  EXPECT_FALSE(timer.look(1200, 8, false, 1600)) << "nothing is owed";
  EXPECT_EQ(timer.next_ns(), 1300u);
  timer.stop();
  EXPECT_FALSE(timer.look(1300, 8, true, 1600)) << "stopped";
  EXPECT_TRUE(timer.look(1400, 8, true, 1600));
}

}  // namespace
}  // namespace tern::session
