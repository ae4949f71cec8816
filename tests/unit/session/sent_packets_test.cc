#include "session/sent_packets.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

using Kind = SentPacket::Kind;
constexpr uint64_t kNumberOfFirst = 1u << 24;

class SentPacketsTest : public testing::Test {
 protected:
  SentPacketsTest() { sent_.start(kFirst); }
  /// Adds packets kFirst + i at time i, of slot i % 8.
  void add(uint64_t count, Kind kind = Kind::kShort) {
    for (uint64_t i = 0; i < count; i++) {
      if (sent_.is_full()) {
        ASSERT_TRUE(sent_.grow());
      }
      const uint64_t n = sent_.next_number() - kFirst;
      sent_.add({.time_ns = n, .slot = static_cast<uint8_t>(n % 8), .kind = kind});
    }
  }

  /// Sends a burst of `count` packets. A packet's time is its number.
  void write_burst(uint32_t count) {
    const SentPackets::Burst burst = sent_.burst();
    const uint64_t first = sent_.next_number();
    for (uint64_t n = first; n < first + count; n++) {
      burst[static_cast<uint32_t>(n)] = {.time_ns = n, .kind = Kind::kShort};
    }
    sent_.on_burst(count);
  }

  static constexpr uint64_t kFirst = (1u << 24) + 7;
  SentPackets::Embedded embedded_;
  SentPackets sent_{embedded_};
};

TEST_F(SentPacketsTest, holds_numbers_from_oldest_to_next) {
  EXPECT_TRUE(sent_.is_empty());
  EXPECT_FALSE(sent_.contains(kFirst));
  EXPECT_EQ(sent_.largest_answered(), kFirst - 1);
  add(2);
  EXPECT_TRUE(sent_.contains(kFirst));
  EXPECT_TRUE(sent_.contains(kFirst + 1));
  EXPECT_FALSE(sent_.contains(kFirst - 1));
  EXPECT_FALSE(sent_.contains(kFirst + 2));
  EXPECT_EQ(sent_.in_flight(), 2u);
}

TEST_F(SentPacketsTest, packets_without_a_credit_have_a_number_only) {
  add(1, Kind::kNone);
  EXPECT_EQ(sent_.in_flight(), 0u);
  EXPECT_EQ(sent_.next_number(), kFirst + 1);
  sent_.advance_oldest();
  EXPECT_TRUE(sent_.is_empty());
}

TEST_F(SentPacketsTest, oldest_advances_over_answered_packets_only) {
  add(4);
  sent_.remove(sent_[kFirst + 1]);
  sent_.advance_oldest();
  EXPECT_EQ(sent_.oldest(), kFirst);
  sent_.remove(sent_[kFirst]);
  sent_.advance_oldest();
  EXPECT_EQ(sent_.oldest(), kFirst + 2);
  EXPECT_EQ(sent_.in_flight(), 2u);
}

TEST_F(SentPacketsTest, grows_and_keeps_its_records) {
  add(3);
  sent_.remove_oldest(sent_[kFirst]);
  add(200);
  EXPECT_EQ(sent_.oldest(), kFirst + 1);
  EXPECT_EQ(sent_.in_flight(), 202u);
  for (uint64_t n = sent_.oldest(); sent_.contains(n); n++) {
    EXPECT_EQ(sent_[n].time_ns, n - kFirst);
    EXPECT_EQ(sent_[n].slot, (n - kFirst) % 8);
  }
}

TEST_F(SentPacketsTest, has_a_largest_size) {
  add(SentPackets::kSizeMax);
  EXPECT_TRUE(sent_.is_full());
  EXPECT_FALSE(sent_.grow());
  EXPECT_EQ(sent_.size(), SentPackets::kSizeMax);
}

TEST_F(SentPacketsTest, shrinks_to_the_owners_memory) {
  add(100);
  for (uint64_t n = kFirst; n < kFirst + 100; n++) sent_.remove(sent_[n]);
  sent_.advance_oldest();
  ASSERT_TRUE(sent_.is_empty());
  sent_.shrink(embedded_);
  EXPECT_EQ(sent_.size(), SentPackets::kEmbedded);
  EXPECT_EQ(sent_.next_number(), kFirst + 100);
  add(1);
  EXPECT_EQ(&sent_[kFirst + 100], &embedded_[(kFirst + 100) % SentPackets::kEmbedded]);
}

TEST_F(SentPacketsTest, long_packets_hold_several_credits) {
  sent_.set_credit_limit(4);
  sent_.add({.count = 3, .kind = Kind::kWide});
  EXPECT_EQ(sent_.in_flight(), 3u);
  EXPECT_TRUE(sent_.has_credit());
  sent_.add({.count = 5, .kind = Kind::kPart});
  EXPECT_EQ(sent_.in_flight(), 8u);
  EXPECT_FALSE(sent_.has_credit());
  EXPECT_EQ(sent_.burst_end(), sent_.next_number());
  sent_.add({.count = 32, .kind = Kind::kRfr});
  EXPECT_EQ(sent_.in_flight(), 9u) << "a request for 32 packets is one short packet";
  for (uint64_t n = kFirst; n < kFirst + 3; n++) sent_.remove(sent_[n]);
  EXPECT_EQ(sent_.in_flight(), 0u);
}

TEST_F(SentPacketsTest, burst_ends_with_credits_or_with_space) {
  sent_.set_credit_limit(3);
  EXPECT_EQ(sent_.burst_end(), kFirst + 3);
  add(1);
  EXPECT_EQ(sent_.burst_end(), kFirst + 3);
  sent_.set_credit_limit(100);
  EXPECT_EQ(sent_.burst_end(), kFirst + SentPackets::kEmbedded);
  sent_.set_credit_limit(1);
  EXPECT_FALSE(sent_.has_credit());
  EXPECT_EQ(sent_.burst_end(), kFirst + 1);
}

TEST_F(SentPacketsTest, lower_limit_than_packets_in_flight_leaves_no_credit) {
  add(3);
  sent_.set_credit_limit(1);
  EXPECT_FALSE(sent_.has_credit());
  EXPECT_EQ(sent_.burst_end(), sent_.next_number());
}

TEST_F(SentPacketsTest, burst_takes_credits) {
  sent_.set_credit_limit(8);
  write_burst(3);
  EXPECT_EQ(sent_.in_flight(), 3u);
  EXPECT_EQ(sent_.next_number(), kFirst + 3);
  EXPECT_EQ(sent_[kFirst + 2].time_ns, kFirst + 2);
}

TEST_F(SentPacketsTest, burst_may_pass_the_end_of_a_numbers_low_half) {
  const uint64_t first = (uint64_t{7} << 32) - 2;
  sent_.start(first);
  sent_.set_credit_limit(8);
  EXPECT_EQ(sent_.burst_end(), first + 4);  // the ring has four records
  write_burst(4);
  EXPECT_EQ(sent_.next_number(), first + 4);
  for (uint64_t n = first; n < first + 4; n++) EXPECT_EQ(sent_[n].time_ns, n);
}

TEST_F(SentPacketsTest, largest_answered_never_falls) {
  add(4);
  sent_.note_answered(kFirst + 2);
  sent_.note_answered(kFirst + 1);
  EXPECT_EQ(sent_.largest_answered(), kFirst + 2);
}

TEST(SentPacket, asks_for_the_range_of_its_slot) {
  const SentPacket rfr{.index = 5, .count = 3, .missing = 3, .slot = 2, .kind = Kind::kRfr};
  EXPECT_TRUE(rfr.asks_for(2, 5));
  EXPECT_TRUE(rfr.asks_for(2, 7));
  EXPECT_FALSE(rfr.asks_for(2, 4));
  EXPECT_FALSE(rfr.asks_for(2, 8));
  EXPECT_FALSE(rfr.asks_for(1, 6));
  EXPECT_FALSE((SentPacket{.index = 5, .count = 3, .slot = 2, .kind = Kind::kPart}.asks_for(2, 6)));
}

TEST(SentPackets, counts_packets_without_memory) {
  SentPackets sent;
  sent.start(kNumberOfFirst);
  EXPECT_TRUE(sent.is_full());
  sent.skip();
  EXPECT_TRUE(sent.is_empty());
  EXPECT_EQ(sent.next_number(), kNumberOfFirst + 1);
  EXPECT_FALSE(sent[sent.oldest()].holds_credit());
  SentPackets::Embedded embedded;
  sent.shrink(embedded);
  sent.add({.kind = Kind::kShort});
  EXPECT_EQ(sent.in_flight(), 1u);
  sent.remove(sent[kNumberOfFirst + 1]);
  sent.advance_oldest();
  sent.rest();
  EXPECT_EQ(sent.next_number(), kNumberOfFirst + 2);
  EXPECT_FALSE(sent[sent.oldest()].holds_credit());
}

TEST(SentPackets, the_embedded_ring_has_no_old_records_when_it_is_used_again) {
  SentPackets::Embedded embedded;
  SentPackets sent(embedded);
  sent.start(1);
  for (uint64_t n = 1; !sent.is_full(); n++) sent.add({.index = 7, .kind = SentPacket::Kind::kShort});
  ASSERT_TRUE(sent.grow());
  for (uint64_t n = sent.oldest(); n < sent.next_number(); n++) sent.remove(sent[n]);
  sent.advance_oldest();
  ASSERT_TRUE(sent.is_empty());
  sent.shrink(embedded);
  for (uint64_t n = sent.next_number(); n < sent.next_number() + sent.size(); n++) {
    EXPECT_EQ(sent[n].kind, SentPacket::Kind::kNone);
  }
}

}  // namespace
}  // namespace tern::session
