#include "neighbours/address_claim.h"

#include <gtest/gtest.h>

#include <vector>

namespace tern::neighbours {
namespace {

using State = AddressClaim::State;
using Message = AddressClaim::Message;

constexpr uint64_t kInterval = 100;
constexpr uint64_t kStart = 1000;
const frames::MacAddress kOther({2, 0, 0, 0, 0, 9});

struct Sent {
  uint64_t at;
  Message message;
  friend bool operator==(const Sent&, const Sent&) = default;
};

/// Runs until the given time, and returns the sent messages with their times.
std::vector<Sent> run(AddressClaim* claim, uint64_t until_ns) {
  std::vector<Sent> sent;
  while (claim->next_message_ns() <= until_ns) {
    const uint64_t now_ns = claim->next_message_ns();
    sent.push_back({now_ns, claim->next_message(now_ns)});
    EXPECT_NE(sent.back().message, Message::kNone);
  }
  EXPECT_EQ(claim->next_message(until_ns), Message::kNone);
  return sent;
}

AddressClaim claimed() {
  AddressClaim claim(kInterval, kStart);
  run(&claim, kStart + AddressClaim::kAnnounceIntervalNs * 2);
  EXPECT_EQ(claim.state(), State::kClaimed);
  return claim;
}

TEST(AddressClaimTest, address_is_probed_three_times_then_announced_twice) {
  AddressClaim claim(kInterval, kStart);
  EXPECT_EQ(claim.state(), State::kProbing);
  EXPECT_EQ(
      run(&claim, kStart + 299),
      (std::vector<Sent>{{kStart, Message::kProbe}, {kStart + 100, Message::kProbe}, {kStart + 200, Message::kProbe}}));
  EXPECT_EQ(claim.state(), State::kProbing);
  EXPECT_EQ(run(&claim, UINT64_MAX - 1),
            (std::vector<Sent>{{kStart + 300, Message::kAnnouncement},
                               {kStart + 300 + AddressClaim::kAnnounceIntervalNs, Message::kAnnouncement}}));
  EXPECT_EQ(claim.state(), State::kClaimed);
  EXPECT_EQ(claim.next_message_ns(), UINT64_MAX);
}

TEST(AddressClaimTest, address_of_another_host_is_not_taken) {
  for (const bool is_probe : {false, true}) {  // another host has the address, or probes it at the same time
    AddressClaim claim(kInterval, kStart);
    EXPECT_EQ(claim.next_message(kStart), Message::kProbe);
    is_probe ? claim.on_probe(kOther) : claim.on_conflict(kOther, kStart + 1);
    EXPECT_EQ(claim.state(), State::kLost);
    EXPECT_EQ(claim.other_mac(), kOther);
    EXPECT_TRUE(run(&claim, UINT64_MAX - 1).empty());
    claim.on_link_up(kStart + 2);
    EXPECT_EQ(claim.state(), State::kLost);
  }
}

TEST(AddressClaimTest, claimed_address_survives_a_probe) {
  AddressClaim claim = claimed();
  claim.on_probe(kOther);
  EXPECT_EQ(claim.state(), State::kClaimed);
}

TEST(AddressClaimTest, first_conflict_is_answered_and_a_second_within_ten_seconds_loses_the_address) {
  AddressClaim claim = claimed();
  const uint64_t now_ns = 10 * AddressClaim::kDefendIntervalNs;
  claim.on_conflict(kOther, now_ns);
  EXPECT_EQ(claim.state(), State::kClaimed);
  EXPECT_EQ(run(&claim, now_ns), (std::vector<Sent>{{now_ns, Message::kAnnouncement}}));
  const uint64_t later_ns = now_ns + AddressClaim::kDefendIntervalNs;
  claim.on_conflict(kOther, later_ns);
  EXPECT_EQ(claim.state(), State::kClaimed);
  EXPECT_EQ(run(&claim, later_ns).size(), 1u);
  claim.on_conflict(kOther, later_ns + AddressClaim::kDefendIntervalNs - 1);
  EXPECT_EQ(claim.state(), State::kLost);
  EXPECT_EQ(claim.other_mac(), kOther);
}

TEST(AddressClaimTest, link_that_comes_up_makes_it_probe_again) {
  AddressClaim claim = claimed();
  const uint64_t now_ns = 10 * AddressClaim::kDefendIntervalNs;
  claim.on_link_up(now_ns);
  EXPECT_EQ(claim.state(), State::kProbing);
  EXPECT_EQ(run(&claim, UINT64_MAX - 1).size(), size_t{AddressClaim::kProbes + AddressClaim::kAnnouncements});
  EXPECT_EQ(claim.state(), State::kClaimed);
}

}  // namespace
}  // namespace tern::neighbours
