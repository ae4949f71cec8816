#include "session/reports.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

using Phase = ClientSlot::Phase;
constexpr uint64_t kDelayNs = 1000;
constexpr uint64_t kRtoNs = 10;
constexpr uint64_t kLivenessNs = 1280;

class ReportsTest : public testing::Test {
 protected:
  ReportsTest() {
    reports_.start(100);
    for (uint32_t i = 0; i < 3; i++) slots_[i].request_number = 64 * 5 + i;
  }
  Reports::Slots slots() const { return pointers_; }
  bool look(bool is_at_rest, uint64_t next_number = 200) {
    return reports_.look(slots(), is_at_rest, now_, kDelayNs, next_number);
  }
  std::vector<uint32_t> report(bool is_at_rest) {
    std::byte payload[16];
    std::vector<uint32_t> numbers(reports_.fill(slots(), is_at_rest, payload) / 4);
    for (size_t i = 0; i < numbers.size(); i++) std::memcpy(&numbers[i], payload + 4 * i, 4);
    return numbers;
  }
  void send(uint64_t number, bool is_at_rest) {
    reports_.on_sent(number, is_at_rest, now_, kRtoNs, kDelayNs, kLivenessNs);
  }

  ClientSlot slots_[3];
  std::array<ClientSlot*, 4> pointers_ = {&slots_[0], &slots_[1], &slots_[2], nullptr};  ///< the last was never used
  Reports reports_;
  uint64_t now_ = 50'000;
};

TEST_F(ReportsTest, session_at_rest_reports_all_slots_at_once) {
  EXPECT_TRUE(look(true));
  EXPECT_EQ(report(true), (std::vector<uint32_t>{320, 321, 322}));
}

TEST_F(ReportsTest, busy_session_reports_slots_that_two_looks_have_found_free) {
  slots_[1].phase = Phase::kWaiting;
  EXPECT_FALSE(look(false));
  EXPECT_EQ(reports_.look_at_ns(), now_ + kDelayNs);
  slots_[2].request_number += 64;  // the slot was used meanwhile
  EXPECT_TRUE(look(false));
  EXPECT_EQ(report(false), (std::vector<uint32_t>{320, 322 + 64})) << "at the second look it is noted, too";
}

TEST_F(ReportsTest, acknowledged_slots_are_not_reported_again) {
  EXPECT_TRUE(look(true));
  report(true);
  send(200, true);
  EXPECT_TRUE(reports_.is_outstanding());
  EXPECT_EQ(reports_.age_at(203), 3u);
  EXPECT_GE(reports_.age_at(199), 1u << 31) << "this packet is earlier";
  reports_.on_acknowledged(slots(), UINT64_MAX);
  EXPECT_FALSE(reports_.is_outstanding());
  EXPECT_TRUE(reports_.is_over(201));
  EXPECT_FALSE(look(true, 201));
  EXPECT_TRUE(report(true).empty());
}

TEST_F(ReportsTest, slot_that_is_used_after_the_report_is_not_acknowledged_by_it) {
  EXPECT_TRUE(look(true));
  report(true);
  send(200, true);
  slots_[0].request_number += 64;
  reports_.on_acknowledged(slots(), UINT64_MAX);
  EXPECT_FALSE(slots_[0].is_reported());
  EXPECT_TRUE(slots_[1].is_reported());
}

TEST_F(ReportsTest, waits_for_acknowledgements_double_until_it_gives_up) {
  uint64_t wait_ns = kDelayNs / Reports::kDelayParts;
  for (int i = 0; i < Reports::kTriesMax; i++) {
    ASSERT_TRUE(look(true));
    report(true);
    send(200, true);
    EXPECT_EQ(reports_.look_at_ns(), now_ + wait_ns);
    now_ += wait_ns;
    wait_ns *= 2;
  }
  EXPECT_FALSE(look(true));
  EXPECT_TRUE(slots_[0].is_reported()) << "the server forgets by itself";
  EXPECT_EQ(reports_.look_at_ns(), UINT64_MAX);
  EXPECT_TRUE(reports_.is_over(200));
}

TEST_F(ReportsTest, rest_plans_a_look_and_short_calls_put_it_off) {
  EXPECT_TRUE(reports_.is_over(100));
  EXPECT_FALSE(reports_.is_over(101)) << "a packet was sent since";
  reports_.on_rest(now_ + kDelayNs);
  reports_.on_rest(now_ + 2 * kDelayNs);
  EXPECT_EQ(reports_.look_at_ns(), now_ + kDelayNs) << "it is planned already";
  EXPECT_FALSE(reports_.is_due_at_rest(now_ + kDelayNs - 1, kDelayNs, kDelayNs));
  now_ += kDelayNs;
  EXPECT_FALSE(reports_.is_due_at_rest(now_, 400, kDelayNs)) << "an answer came 400 ns ago";
  EXPECT_EQ(reports_.look_at_ns(), now_ + 600);
  EXPECT_TRUE(reports_.is_due_at_rest(now_ + 600, kDelayNs, kDelayNs));
}

TEST_F(ReportsTest, report_that_is_sent_again_waits_for_no_silence) {
  EXPECT_TRUE(look(true));
  send(200, true);
  now_ = reports_.look_at_ns();
  EXPECT_TRUE(reports_.is_due_at_rest(now_, 1, kDelayNs));
}

TEST_F(ReportsTest, packets_in_flight_at_a_report_have_to_be_reported_too) {
  slots_[1].phase = Phase::kWaiting;
  look(false);
  EXPECT_TRUE(look(false));
  send(200, false);
  reports_.on_acknowledged(slots(), UINT64_MAX);
  EXPECT_FALSE(reports_.is_over(201));
}

// Only the low half of a packet number is stored.
TEST_F(ReportsTest, numbers_beyond_32_bits) {
  const uint64_t number = (uint64_t{7} << 32) - 1;
  for (const bool is_at_rest : {true, false}) {
    reports_.start(number);
    EXPECT_TRUE(reports_.is_over(number));
    for (auto& slot : slots_) slot.set_unreported();
    look(is_at_rest, number);
    look(is_at_rest, number);
    send(number, is_at_rest);
    EXPECT_TRUE(reports_.is_outstanding());
    EXPECT_EQ(reports_.age_at(number + 1), 1u);
    reports_.on_acknowledged(slots(), UINT64_MAX);
    EXPECT_EQ(reports_.is_over(number + 1), is_at_rest);
    EXPECT_FALSE(reports_.is_over(number + 2));
  }
}

TEST_F(ReportsTest, busy_time_begins_with_new_tries) {
  for (int i = 0; i < Reports::kTriesMax; i++) send(200, true);
  reports_.on_busy(now_ + kDelayNs);
  EXPECT_EQ(reports_.look_at_ns(), now_ + kDelayNs);
  EXPECT_TRUE(look(true)) << "it has not given up";
}

}  // namespace
}  // namespace tern::session
