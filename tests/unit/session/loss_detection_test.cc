#include "session/loss_detection.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

using Kind = SentPacket::Kind;

constexpr uint64_t kElapsedNs = 20'000;
constexpr uint64_t kReorderNs = 10'000;
constexpr uint64_t kPatienceNs = 1'000'000;
constexpr LossEvidence kEvidence{.largest_answered = 100,
                                 .largest_part = 0,
                                 .elapsed_ns = kElapsedNs,
                                 .reorder_ns = kReorderNs,
                                 .patience_ns = kPatienceNs};

SentPacket request(uint64_t time_ns) { return {.time_ns = time_ns, .index = 64 + 1, .kind = Kind::kShort}; }
SentPacket rfr(uint64_t time_ns, uint8_t missing = 4, Kind kind = Kind::kRfr) {
  return {.time_ns = time_ns, .index = 8, .count = 4, .missing = missing, .slot = 1, .kind = kind};
}

TEST(LostAt, request_is_lost_after_the_newest_answers_time_and_the_reordering_time) {
  EXPECT_EQ(lost_at_ns(request(500), 7, {}, kEvidence), 500 + kElapsedNs + kReorderNs);
}

TEST(LostAt, rfr_that_no_range_has_overtaken_is_lost_after_the_patience) {
  EXPECT_EQ(lost_at_ns(rfr(500), 7, {}, kEvidence), 500 + kPatienceNs);
  EXPECT_EQ(lost_at_ns(rfr(500, 4, Kind::kRfrArrived), 7, {}, kEvidence), 500 + kPatienceNs);
}

TEST(LostAt, rfr_that_a_later_range_has_overtaken_is_lost_like_a_request) {
  LossEvidence evidence = kEvidence;
  evidence.largest_part = 8;
  EXPECT_EQ(lost_at_ns(rfr(500), 7, {}, evidence), 500 + kElapsedNs + kReorderNs);
  EXPECT_EQ(lost_at_ns(rfr(500), 8, {}, evidence), 500 + kPatienceNs) << "a range does not overtake itself";
}

TEST(LostAt, rfr_that_has_begun_to_arrive_is_lost_after_the_reordering_time) {
  EXPECT_EQ(lost_at_ns(rfr(500, 1, Kind::kRfrOvertaken), 7, {}, kEvidence), 500 + kReorderNs);
}

TEST(LostAt, repeated_loss_waits_for_the_gap_between_rounds) {
  const LossRounds rounds{true, 400, 5'000'000};
  EXPECT_EQ(lost_at_ns(request(500), 7, rounds, kEvidence), 400 + 5'000'000u);
  EXPECT_EQ(lost_at_ns(request(399), 7, rounds, kEvidence), 399 + kElapsedNs + kReorderNs)
      << "sent before the round: a part of it";
  EXPECT_EQ(lost_at_ns(request(500), 7, {}, kEvidence), 500 + kElapsedNs + kReorderNs);
}

class DetectLossesTest : public testing::Test {
 protected:
  DetectLossesTest() { sent_.start(1); }
  void add(const SentPacket& packet) {
    if (sent_.is_full()) {
      ASSERT_TRUE(sent_.grow());
    }
    sent_.add(packet);
  }
  /// Returns the time of the next loss. lost_ has the losses.
  uint64_t detect(uint64_t judged, uint64_t largest_answered, uint64_t now_ns, LossRounds rounds = {}) {
    lost_.clear();
    LossEvidence evidence = kEvidence;
    evidence.largest_answered = largest_answered;
    return detect_losses(
        sent_, judged, evidence, now_ns, [&](uint32_t) { return rounds; },
        [&](uint64_t number) {
          lost_.push_back(number);
          sent_.remove(sent_[number]);
        });
  }
  static constexpr uint64_t kWaitNs = kElapsedNs + kReorderNs;

  SentPackets::Embedded embedded_;
  SentPackets sent_{embedded_};
  std::vector<uint64_t> lost_;
};

TEST_F(DetectLossesTest, overtaken_packets_are_lost_when_their_time_is_over) {
  for (uint64_t time_ns : {100u, 200u, 300u, 400u}) add(request(time_ns));
  sent_.remove(sent_[3]);  // this packet was answered
  EXPECT_EQ(detect(3, 3, 99 + kWaitNs), 100 + kWaitNs);
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(detect(3, 3, 100 + kWaitNs), 200 + kWaitNs);
  EXPECT_EQ(lost_, (std::vector<uint64_t>{1}));
  EXPECT_EQ(detect(3, 3, 300 + kWaitNs), UINT64_MAX) << "the packet after the answered one was not overtaken";
  EXPECT_EQ(lost_, (std::vector<uint64_t>{2}));
}

TEST_F(DetectLossesTest, judges_no_packet_above_the_limit) {
  add(request(100));
  add(request(100));
  EXPECT_EQ(detect(1, 5, UINT64_MAX / 2), UINT64_MAX);
  EXPECT_EQ(lost_, (std::vector<uint64_t>{1}));
}

TEST_F(DetectLossesTest, limit_above_the_last_packet_is_no_packet) {
  add(request(100));
  EXPECT_EQ(detect(50, 50, UINT64_MAX / 2), UINT64_MAX);
  EXPECT_EQ(lost_, (std::vector<uint64_t>{1}));
}

TEST_F(DetectLossesTest, answered_rfr_is_lost_only_after_its_own_last_packet) {
  add(rfr(100, 2));
  EXPECT_EQ(detect(1, 1, UINT64_MAX / 2), UINT64_MAX);
  EXPECT_TRUE(lost_.empty());
  sent_[1].kind = Kind::kRfrOvertaken;
  EXPECT_EQ(detect(1, 1, 99 + kReorderNs), 100 + kReorderNs);
  EXPECT_EQ(detect(1, 1, 100 + kReorderNs), UINT64_MAX);
  EXPECT_EQ(lost_, (std::vector<uint64_t>{1}));
}

TEST_F(DetectLossesTest, rounds_are_asked_for_anew_after_each_loss) {
  add(request(100));
  add(request(100));
  add(request(100));
  LossRounds rounds;
  int asked = 0;
  const uint64_t next_ns = detect_losses(
      sent_, 2, kEvidence, 100 + kWaitNs,
      [&](uint32_t slot) {
        EXPECT_EQ(slot, 1u);
        asked++;
        return rounds;
      },
      [&](uint64_t number) {
        lost_.push_back(number);
        sent_.remove(sent_[number]);
        rounds = {true, 50, 7'000'000};
      });
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(lost_, (std::vector<uint64_t>{1}));
  EXPECT_EQ(next_ns, 50 + 7'000'000u) << "the second one is the loss of another round";
}

TEST(LossTimer, keeps_the_earlier_time_and_its_limit) {
  LossTimer timer;
  EXPECT_FALSE(timer.is_set());
  EXPECT_EQ(timer.at_ns(), UINT64_MAX);
  timer.suspect(500, 0, 7, 10);
  timer.suspect(600, 0, 9, 10);
  EXPECT_EQ(timer.at_ns(), 500u);
  EXPECT_EQ(timer.judged(), 7u);
  timer.suspect(400, 0, 8, 10);
  EXPECT_EQ(timer.at_ns(), 400u);
  EXPECT_EQ(timer.judged(), 8u);
  timer.set(UINT64_MAX);
  EXPECT_FALSE(timer.is_set());
}

TEST(LossTimer, waits_until_a_later_packet_is_answered) {
  LossTimer timer;
  timer.suspect(500, 300, 7, 10);
  EXPECT_EQ(timer.at_ns(), 800u);
  timer.on_answer(9);
  EXPECT_EQ(timer.at_ns(), 800u) << "packet 9 had left before the loss was suspected";
  timer.on_answer(10);
  EXPECT_EQ(timer.at_ns(), 500u);
  EXPECT_EQ(timer.judged(), 7u);
  timer.set(900);
  timer.on_answer(11);
  EXPECT_EQ(timer.at_ns(), 900u) << "the next packet is not lost before";
}

}  // namespace
}  // namespace tern::session
