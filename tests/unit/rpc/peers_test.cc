#include "rpc/peers.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tern::rpc {
namespace {

constexpr Budget kBudget = Budget::kArriving;

TEST(Peers, host_key_is_an_ipv4_address_or_an_ipv6_prefix) {
  const auto key = Peers::host_key;
  EXPECT_EQ(key("10.0.0.1:1"), key("10.0.0.1:65535"));
  EXPECT_NE(key("10.0.0.1:1"), key("10.0.0.2:1"));
  EXPECT_EQ(key("[2001:db8::1]:1"), key("[2001:db8::ffff:1:2:3]:9"));
  EXPECT_NE(key("[2001:db8::1]:1"), key("[2001:db8:0:1::1]:1"));
  EXPECT_EQ(key("[fe80::1%eth0]:1"), key("[fe80::2%eth1]:2"));
  EXPECT_EQ(key("name:1"), key("name:2"));
  EXPECT_NE(key("name:1"), key("other:1"));
  EXPECT_EQ(key("[::ffff:1.2.3.4]:1"), key("1.2.3.4:1"));
  EXPECT_NE(key(""), key("0.0.0.0:1"));
}

TEST(Peers, join_and_leave_keep_a_record_as_long_as_it_is_used) {
  Peers peers(1);
  tern::rpc::Run* first = peers.join("10.0.0.1:1", 7);
  tern::rpc::Run* second = peers.join("10.0.0.1:2", 8);
  EXPECT_EQ(peers.join("10.0.0.1:1", 7), first);
  EXPECT_EQ(first->host, second->host);
  EXPECT_EQ(peers.find_host("10.0.0.1:3"), first->host);
  peers.leave(first);
  EXPECT_EQ(peers.find_run(7), first);
  peers.leave(first);
  EXPECT_EQ(peers.find_run(7), nullptr);
  EXPECT_NE(peers.find_host("10.0.0.1:1"), nullptr);
  peers.leave(second);
  EXPECT_EQ(peers.find_host("10.0.0.1:1"), nullptr);
  peers.check_invariants();
}

TEST(Peers, thousands_are_found_again) {
  Peers peers(2);
  std::vector<tern::rpc::Run*> runs;
  const auto address = [](uint64_t i) {
    return "10.0." + std::to_string(i / 256) + "." + std::to_string(i % 256) + ":1";
  };
  for (uint64_t i = 0; i < 5000; i++) runs.push_back(peers.join(address(i), i));
  for (uint64_t i = 0; i < 5000; i++) {
    ASSERT_EQ(peers.find_run(i), runs[i]);
    ASSERT_EQ(peers.find_host(address(i)), runs[i]->host);
  }
  peers.check_invariants();
  for (tern::rpc::Run* run : runs) peers.leave(run);
  for (uint64_t i = 0; i < 5000; i++) ASSERT_EQ(peers.find_run(i), nullptr);
}

class Claims : public testing::Test {
 protected:
  Claim* claim(tern::rpc::Run* run, size_t bytes, uint64_t now_ns = 0) {
    return peers_.claim(kBudget, run, nullptr, 0, bytes, now_ns);
  }
  void TearDown() override { peers_.check_invariants(); }

  Peers peers_{3};
  tern::rpc::Run* hog_ = peers_.join("10.0.0.1:1", 1);
  tern::rpc::Run* sibling_ = peers_.join("10.0.0.1:2", 2);
  tern::rpc::Run* other_ = peers_.join("10.0.0.2:1", 3);
};

TEST_F(Claims, first_to_go_is_the_longest_idle_claim_of_the_largest_peer) {
  Claim* first = claim(hog_, 100);
  Claim* second = claim(hog_, 100);
  claim(sibling_, 150);
  Claim* large = claim(other_, 300);
  EXPECT_EQ(peers_.first_to_go(kBudget), first) << "two runs of one host count together";
  Peers::note_news(kBudget, first, 1);
  EXPECT_EQ(peers_.first_to_go(kBudget), second);
  peers_.release(kBudget, second);
  EXPECT_EQ(peers_.first_to_go(kBudget), large);
  EXPECT_EQ(peers_.bytes(kBudget), 550u);
  EXPECT_EQ(peers_.bytes(Budget::kResponses), 0u);
}

TEST_F(Claims, claim_gives_way_only_to_a_peer_that_stays_smaller) {
  Claim* first = claim(hog_, 100);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, other_, 100, 0), nullptr);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, other_, 99, 0), first);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, sibling_, 100, 0), nullptr);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, sibling_, 99, 0), first);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, hog_, 1, 0), nullptr);
}

TEST_F(Claims, stalled_claim_gives_way_to_every_peer) {
  Claim* first = claim(hog_, 100, 5);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, hog_, 1000, 4 + Peers::kStalledNs), nullptr);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, hog_, 1000, 5 + Peers::kStalledNs), first);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, other_, 1000, 5 + Peers::kStalledNs), first);
  Peers::note_news(kBudget, first, 6);
  EXPECT_EQ(peers_.first_to_go_for(kBudget, hog_, 1000, 5 + Peers::kStalledNs), nullptr);
}

TEST_F(Claims, sums_hold_whatever_is_claimed_and_released) {
  std::mt19937 random(4);
  std::vector<Claim*> claims;
  for (int step = 0; step < 5000; step++) {
    if (claims.empty() || random() % 2 == 0) {
      claims.push_back(claim(std::vector<tern::rpc::Run*>{hog_, sibling_, other_}[random() % 3], 1 + random() % 1000));
    } else {
      std::swap(claims[random() % claims.size()], claims.back());
      peers_.release(kBudget, claims.back());
      claims.pop_back();
    }
    if (step % 50 == 0) peers_.check_invariants();
  }
  EXPECT_EQ(peers_.claims(kBudget), claims.size());
}

}  // namespace
}  // namespace tern::rpc
