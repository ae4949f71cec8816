// Faults in the network: faults of cables, links and hosts that are down, partitions.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sim/network/cable_faults.h"
#include "unit/sim/network/network_fixture.h"

namespace tern::sim {
namespace {

using testing::ElementsAre;

constexpr Picoseconds kNs = kPicosecondsPerNs;
constexpr uint64_t kPackets = 20'000;

/// Matches a count of n draws of probability p within five standard deviations. The seeds are fixed, so the result does
/// not vary.
testing::Matcher<uint64_t> is_about(double p, uint64_t n = kPackets) {
  const double mean = p * static_cast<double>(n);
  const double bound = 5 * std::sqrt(mean * (1 - p));
  return testing::AllOf(testing::Ge(static_cast<uint64_t>(mean - bound)),
                        testing::Le(static_cast<uint64_t>(mean + bound)));
}

class FaultsTest : public NetworkTest {
 protected:
  /// Sends from host 0 to host 1 through one switch. Only the cable to host 1 has faults, so that no queue follows
  /// them.
  void send_through(const Faults& faults, uint64_t packets = kPackets) {
    make(Topology::star(2, {10'000'000'000, 500ns}), 3);
    ASSERT_TRUE(network().set_faults(switch_at(0), host(1), faults));
    for (uint64_t i = 0; i < packets; i++) port(0).send(port(1), 60, kContent);
    run();
  }
  static constexpr std::string_view kContent = "0123456789012345678901234567890123456789";
};

TEST(Chance, happens_at_the_given_rate) {
  std::mt19937_64 random(1);
  const auto count = [&](double p) {
    const Chance chance(p);
    uint64_t times = 0;
    for (uint64_t i = 0; i < kPackets; i++) times += chance.happens(random);
    return times;
  };
  EXPECT_EQ(count(0), 0u);
  EXPECT_EQ(count(-1), 0u);
  EXPECT_EQ(count(std::numeric_limits<double>::quiet_NaN()), 0u);
  EXPECT_EQ(random, std::mt19937_64(1)) << "nothing was drawn";
  EXPECT_EQ(count(1), kPackets);
  EXPECT_EQ(count(2), kPackets);
  EXPECT_THAT(count(0.5), is_about(0.5));
  EXPECT_THAT(count(0.999), is_about(0.999));
  EXPECT_FALSE(Chance(1e-18).is_never());
}

TEST(CableFaults, delays_are_spread_over_all_of_delay_max) {
  std::mt19937_64 random(1);
  const CableFaults faults({.delay_max = 1us});
  std::array<uint64_t, 10> tenths{};
  for (uint64_t i = 0; i < kPackets; i++) {
    const Picoseconds delay = faults.draw_delay(random);
    ASSERT_GE(delay, 1u);
    ASSERT_LE(delay, 1000 * kNs);
    tenths[(delay - 1) / (100 * kNs)]++;
  }
  for (const uint64_t count : tenths) EXPECT_THAT(count, is_about(0.1));
}

/// These delays exceed the range of virtual time, and the drawn delay must not overflow to a time before now.
TEST(CableFaults, the_longest_delay_max_is_twelve_days) {
  std::mt19937_64 random(1);
  for (const Duration most : {Duration::max(), Duration(std::chrono::hours(24 * 365 * 100))}) {
    const CableFaults faults({.delay_max = most});
    Picoseconds longest = 0;
    for (int i = 0; i < 100; i++) longest = std::max(longest, faults.draw_delay(random));
    EXPECT_LE(longest, 1'000'000'000'000'000 * kNs);
    EXPECT_GE(longest, 900'000'000'000'000 * kNs);
  }
  EXPECT_EQ(CableFaults({.delay_max = Duration::min()}).draw_delay(random), 0u);
}

TEST_F(FaultsTest, none__changes_nothing) {
  send_through({});
  EXPECT_EQ(port(1).arrivals().size(), kPackets);
  const uint64_t hash = network().trace_hash();
  make(Topology::star(2, {10'000'000'000, 500ns}), 3);
  for (uint64_t i = 0; i < kPackets; i++) port(0).send(port(1), 60, kContent);
  run();
  EXPECT_EQ(network().trace_hash(), hash);
}

TEST_F(FaultsTest, drop) {
  send_through({.drop = 0.1});
  EXPECT_THAT(counters().dropped_fault, is_about(0.1));
  EXPECT_EQ(port(1).arrivals().size(), kPackets - counters().dropped_fault);
  EXPECT_EQ(port(0).departures().size(), kPackets) << "the sender sees nothing of it";
  expect_all_counted();

  send_through({.drop = 1});
  EXPECT_EQ(port(1).arrivals().size(), 0u);
}

TEST_F(FaultsTest, drop__in_one_direction_only) {
  send_through({.drop = 1});
  for (int i = 0; i < 10; i++) port(1).send(port(0), 60);
  run();
  EXPECT_EQ(port(0).arrivals().size(), 10u);
  EXPECT_FALSE(network().set_faults(host(0), host(1), {})) << "no such cable";
  EXPECT_FALSE(network().set_faults(host(7), switch_at(0), {}));

  network().set_faults({.drop = 1});  // all cables now
  for (int i = 0; i < 10; i++) port(1).send(port(0), 60);
  run();
  EXPECT_EQ(port(0).arrivals().size(), 10u);
}

TEST_F(FaultsTest, frame_limit__loses_longer_frames_in_one_direction) {
  make(Topology::star(2, {10'000'000'000, 500ns}), 3);
  ASSERT_TRUE(network().set_frame_limit(switch_at(0), host(1), 100));
  EXPECT_FALSE(network().set_frame_limit(host(0), host(1), 100)) << "no such cable";
  const auto send_all = [&] {
    for (const uint32_t bytes : {60u, 100u, 101u, 1514u}) {
      port(0).send(port(1), bytes);
      port(1).send(port(0), bytes);
    }
    run();
  };
  send_all();
  EXPECT_THAT(tickets(1), ElementsAre(0, 1));
  EXPECT_EQ(tickets(0).size(), 4u);
  EXPECT_EQ(counters().dropped_too_long, 2u);
  // Other faults of the cable are set and cleared.
  network().set_faults({.drop = 1});
  network().set_faults({});
  send_all();
  EXPECT_EQ(counters().dropped_too_long, 4u);
  network().set_frame_limit(switch_at(0), host(1), SIZE_MAX);
  send_all();
  EXPECT_EQ(counters().dropped_too_long, 4u);
  network().set_frame_limit(switch_at(0), host(1), 100);
  network().heal();
  send_all();
  EXPECT_EQ(counters().dropped_too_long, 4u);
  EXPECT_EQ(tickets(1).size(), 2u + 2 + 4 + 4);
}

TEST_F(FaultsTest, frame_limit__of_a_topology_holds_from_its_time_on) {
  for (const FrameLimitWay way : {FrameLimitWay::kBoth, FrameLimitWay::kThere, FrameLimitWay::kBack}) {
    make(Topology::star(2, {.frame_bytes_max = 100, .frame_limit_from = 1us, .frame_limit_way = way}));
    port(0).send(port(1), 1514);
    run_until(10'000 * kNs);
    EXPECT_EQ(port(1).arrivals().size(), 1u);
    port(0).send(port(1), 1514);
    port(0).send(port(1), 100);
    run();
    EXPECT_EQ(port(1).arrivals().size(), 2u) << "on the way up, or down";
    EXPECT_EQ(counters().dropped_too_long, 1u);
  }
}

TEST_F(FaultsTest, duplicate) {
  send_through({.duplicate = 0.1, .delay_max = 10us});
  const uint64_t duplicates = port(1).arrivals().size() - kPackets;
  EXPECT_THAT(duplicates, is_about(0.1));
  expect_all_counted(duplicates);
  std::map<uint64_t, std::vector<Picoseconds>> times;
  for (const Arrival& arrival : port(1).arrivals()) {
    EXPECT_EQ(arrival.content, kContent);
    times[arrival.ticket].push_back(arrival.at);
  }
  EXPECT_EQ(times.size(), kPackets);
  for (const auto& [ticket, at] : times) {
    ASSERT_LE(at.size(), 2u);
    EXPECT_LE(at.back() - at.front(), 10'000 * kNs);
    EXPECT_TRUE(at.size() == 1 || at.front() < at.back());
  }
}

TEST_F(FaultsTest, reorder__others_are_not_held_up) {
  send_through({.reorder = 0.01, .delay_max = 10us});
  ASSERT_EQ(port(1).arrivals().size(), kPackets);
  const std::vector<uint64_t> arrived = tickets(1);
  EXPECT_FALSE(std::is_sorted(arrived.begin(), arrived.end()));
  // A frame is late if a frame that was sent after it arrives before it.
  std::set<uint64_t> late;
  uint64_t newest = 0;
  for (const uint64_t ticket : arrived) {
    if (ticket < newest) late.insert(ticket);
    newest = std::max(newest, ticket);
  }
  // A delay shorter than the gap to the next frame (67 ns of 10 us) is not visible.
  EXPECT_THAT(late.size(), is_about(0.01));
}

TEST_F(FaultsTest, delay__holds_up_later_packets) {
  send_through({.delay = 0.001, .delay_max = 10us});
  ASSERT_EQ(port(1).arrivals().size(), kPackets);
  const std::vector<uint64_t> arrived = tickets(1);
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
  Picoseconds gap_max = 0;
  int gaps = 0;
  for (size_t i = 1; i < kPackets; i++) {
    const Picoseconds gap = port(1).arrivals()[i].at - port(1).arrivals()[i - 1].at;
    gap_max = std::max(gap_max, gap);
    gaps += gap > 84 * 800;
  }
  EXPECT_GT(gaps, 5);
  EXPECT_GT(gap_max, 5000 * kNs);
  EXPECT_LE(gap_max, 10'000 * kNs + 84 * 800);
}

TEST_F(FaultsTest, delay__changed_faults_let_no_frame_overtake) {
  const auto changes = std::to_array<void (*)(Network&)>({
      [](Network& network) { network.set_frame_limit(switch_at(0), host(1), kFrameBytesMax); },
      [](Network& network) { network.set_faults({.drop = 1e-15, .delay = 1e-15}); },
  });
  for (const auto change : changes) {
    make(Topology::star(2, {10'000'000'000, 500ns}), 3);
    ASSERT_TRUE(network().set_faults(switch_at(0), host(1), {.delay = 1, .delay_max = 1ms}));
    port(0).send(port(1), 60);
    run_until(10'000 * kNs);
    ASSERT_EQ(port(1).arrivals().size(), 0u);
    change(network());
    port(0).send(port(1), 60);
    run();
    EXPECT_THAT(tickets(1), ElementsAre(0, 1));
  }
}

TEST_F(FaultsTest, delay__ends_with_faults_without_it) {
  const auto changes = std::to_array<void (*)(Network&)>({
      [](Network& network) { network.heal(); },
      [](Network& network) { network.set_faults({.drop = 1e-15}); },
  });
  for (const auto change : changes) {
    make(Topology::star(2, {10'000'000'000, 500ns}), 3);
    network().set_faults({.delay = 1, .delay_max = 1ms});
    port(0).send(port(1), 60);
    run_until(10'000 * kNs);
    change(network());
    port(0).send(port(1), 60);
    run_until(20'000 * kNs);
    EXPECT_THAT(tickets(1), ElementsAre(1));
  }
}

TEST_F(FaultsTest, delay_max_of_nothing) {
  send_through({.duplicate = 1, .reorder = 1, .delay = 1, .delay_max = 0ns}, 100);
  EXPECT_EQ(port(1).arrivals().size(), 200u);
  const std::vector<uint64_t> arrived = tickets(1);
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
}

TEST_F(FaultsTest, corrupt__one_to_four_bits) {
  send_through({.corrupt = 0.2});
  ASSERT_EQ(port(1).arrivals().size(), kPackets);
  std::map<int, uint64_t> by_flips;
  uint64_t in_header = 0, flips = 0;
  for (const Arrival& arrival : port(1).arrivals()) {
    ASSERT_EQ(arrival.content.size(), kContent.size());
    int different = 0;
    for (size_t i = 0; i < kContent.size(); i++) {
      const int bits = std::popcount(static_cast<unsigned char>(arrival.content[i] ^ kContent[i]));
      different += bits;
      if (i < wire::kHeaderBytes) in_header += static_cast<uint64_t>(bits);
    }
    by_flips[different]++;
    flips += static_cast<uint64_t>(different);
  }
  EXPECT_THAT(by_flips[0], is_about(0.8));
  for (int n = 1; n <= 4; n++) EXPECT_THAT(by_flips[n], is_about(0.05)) << n;
  EXPECT_EQ(by_flips.size(), 5u);
  // Half of the draws choose from the header's 24 bytes, and half from all 40: 0.5 + 0.5 * 24 / 40.
  EXPECT_NEAR(static_cast<double>(in_header) / static_cast<double>(flips), 0.8, 0.02);
}

TEST_F(FaultsTest, corrupt__of_tiny_packets) {
  make(Topology::star(2), 3);
  ASSERT_TRUE(network().set_faults(host(0), switch_at(0), {.corrupt = 1}));
  for (int i = 0; i < 200; i++) port(0).send(port(1), 60, "");
  for (int i = 0; i < 200; i++) port(0).send(port(1), 60, "x");
  run();
  ASSERT_EQ(port(1).arrivals().size(), 400u);
  for (size_t i = 200; i < 400; i++) EXPECT_NE(port(1).arrivals()[i].content, "x") << "flips do not undo each other";
}

// Links.

TEST_F(FaultsTest, link_down__frames_on_the_wire_are_lost) {
  make(Topology::star(2, {10'000'000'000, 500ns}));
  const Picoseconds wire = 1024 * 800;
  for (int i = 0; i < 4; i++) port(0).send(port(1), 1000);
  run_until(wire + 100 * kNs);  // two frames have begun: the first is at the switch, the second on the first cable
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), false));
  run_until(2 * wire + 100 * kNs);
  EXPECT_EQ(port(0).departures().size(), 3u) << "the interface sends into nothing";
  EXPECT_TRUE(network().set_link_up(switch_at(0), host(0), true));  // while the third frame is on the wire
  run();
  EXPECT_THAT(tickets(1), ElementsAre(0, 3));
  EXPECT_EQ(counters().dropped_fault, 2u);
  expect_all_counted();
}

TEST_F(FaultsTest, link_down__down_and_up_again_still_loses_frames_on_the_wire) {
  make(Topology::star(2, {10'000'000'000, 500ns}));
  port(0).send(port(1), 1000);
  run_until(100 * kNs);
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), false));
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), true));
  port(0).send(port(1), 1000);
  run();
  EXPECT_THAT(tickets(1), ElementsAre(1));
}

TEST_F(FaultsTest, link_down__on_the_last_wire) {
  make(Topology::star(2, {10'000'000'000, 500ns}));
  port(0).send(port(1), 1000);
  run_until((500 + 300 + 100) * kNs);  // the frame's first bit has left the switch
  EXPECT_TRUE(network().set_link_up(switch_at(0), host(1), false));
  EXPECT_TRUE(network().set_link_up(switch_at(0), host(1), true));
  run();
  EXPECT_EQ(port(1).arrivals().size(), 0u);
  EXPECT_EQ(counters().dropped_fault, 1u);
}

TEST_F(FaultsTest, link_down__both_directions) {
  make(Topology::star(2, {10'000'000'000, 500ns}));
  EXPECT_TRUE(network().set_link_up(host(1), switch_at(0), false));
  port(0).send(port(1), 1000);
  port(1).send(port(0), 1000);
  run();
  EXPECT_EQ(counters().dropped_fault, 2u);
  EXPECT_FALSE(network().set_link_up(host(0), host(1), false)) << "no such cable";
  EXPECT_TRUE(network().set_link_up(host(1), switch_at(0), false)) << "down already";
}

TEST_F(FaultsTest, link_down__others_are_used_at_once) {
  // A triangle: the direct path, and one over the third switch.
  Topology topology;
  std::vector<Node> at;
  for (int i = 0; i < 3; i++) at.push_back(topology.add_switch({.latency = 0ns}));
  for (uint32_t i = 0; i < 3; i++) {
    topology.connect(at[i], at[(i + 1) % 3], {100'000'000'000, 1000ns});
    topology.connect(topology.add_host(), at[i], {100'000'000'000, 0ns});
  }
  make(topology);
  const auto time_to_1 = [&] {
    port(1).clear();
    run_until(now() + 1000 * kNs);  // the interface becomes idle even after frames without a path
    const Picoseconds start = now();
    port(0).send(port(1), 1000);
    run();
    return port(1).arrivals().empty() ? 0 : port(1).arrivals()[0].at - start;
  };
  const Picoseconds wire = 1024 * 80;
  EXPECT_EQ(time_to_1(), 1000 * kNs + wire);
  EXPECT_TRUE(network().set_link_up(at[0], at[1], false));
  EXPECT_EQ(time_to_1(), 2000 * kNs + wire);
  EXPECT_TRUE(network().set_link_up(at[2], at[1], false));
  EXPECT_EQ(time_to_1(), 0u) << "no way";
  EXPECT_EQ(counters().dropped_fault, 1u);
  EXPECT_TRUE(network().set_link_up(at[2], at[1], true));
  EXPECT_EQ(time_to_1(), 2000 * kNs + wire);
  network().heal();
  EXPECT_EQ(time_to_1(), 1000 * kNs + wire);
}

TEST_F(FaultsTest, link_down__the_switch_drains_its_queue_into_nothing) {
  make(Topology::star(3, {10'000'000'000, 500ns}));
  for (int i = 0; i < 20; i++) {
    port(0).send(port(2), 1000);
    port(1).send(port(2), 1000);
  }
  run_until(10 * Picoseconds{1024} * 800);
  const size_t arrived = port(2).arrivals().size();
  EXPECT_LT(arrived, 40u);  // the other frames wait at the switch
  EXPECT_TRUE(network().set_link_up(host(2), switch_at(0), false));
  run();
  EXPECT_EQ(port(2).arrivals().size(), arrived);
  expect_all_counted();
  EXPECT_TRUE(network().set_link_up(host(2), switch_at(0), true));
  port(2).clear();
  port(0).send(port(2), 1000);
  run();
  EXPECT_EQ(port(2).arrivals().size(), 1u);
}

// Hosts and partitions.

TEST_F(FaultsTest, host_down__nothing_leaves_or_arrives) {
  make(Topology::star(3, {10'000'000'000, 500ns}));
  port(0).send(port(1), 1000);
  port(1).send(port(0), 1000);
  port(1).send(port(0), 1000);
  run_until(100 * kNs);
  network().set_host_up(1, false);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 0u);
  EXPECT_EQ(counters().dropped_no_receiver, 1u);
  EXPECT_THAT(tickets(0), ElementsAre(0)) << "what had left before";
  EXPECT_EQ(port(1).departures().size(), 2u) << "tickets are released there, too";
  EXPECT_EQ(counters().dropped_fault, 1u);
  expect_all_counted();

  network().heal();
  port(0).send(port(1), 1000);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 0u) << "not healed by that";
  network().set_host_up(1, true);
  port(0).send(port(1), 1000);
  port(1).send(port(2), 1000);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 1u);
  EXPECT_EQ(port(2).arrivals().size(), 1u);
}

TEST_F(FaultsTest, host_down__packets_in_the_queue_are_lost_though_the_host_is_up_at_once) {
  make(Topology::star(2, {10'000'000'000, 500ns}));
  for (int i = 0; i < 3; i++) port(0).send(port(1), 1000);  // the first one leaves
  network().set_host_up(0, false);
  port(0).send(port(1), 1000);
  network().set_host_up(0, true);
  EXPECT_EQ(port(0).departures().size(), 4u) << "tickets are released";
  port(0).send(port(1), 1000);
  run();
  EXPECT_THAT(tickets(1), ElementsAre(0, 4));
  EXPECT_EQ(counters().dropped_fault, 3u);
  expect_all_counted();
}

TEST_F(FaultsTest, host_down__stays_so_when_its_link_comes_up) {
  make(Topology::star(2));
  network().set_host_up(0, false);
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), false));
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), true));
  port(0).send(port(1), 100);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 0u);
}

TEST_F(FaultsTest, partition__is_asymmetric) {
  make(Topology::star(3, {10'000'000'000, 500ns}));
  port(0).send(port(1), 1000);  // this frame is on its way
  network().set_partition(0, 1, true);
  port(0).send(port(1), 1000);
  port(0).send(port(2), 1000);
  port(1).send(port(0), 1000);
  port(2).send(port(1), 1000);
  run();
  EXPECT_EQ(port(0).arrivals().size(), 1u);
  EXPECT_EQ(port(2).arrivals().size(), 1u);
  ASSERT_EQ(port(1).arrivals().size(), 1u);
  EXPECT_EQ(port(1).arrivals()[0].from_host, 2u);
  EXPECT_EQ(counters().dropped_fault, 2u);
  expect_all_counted();

  network().set_partition(0, 1, false);
  port(0).send(port(1), 1000);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 2u);
}

TEST_F(FaultsTest, heal__ends_all_of_them) {
  make(Topology::star(2));
  network().set_faults({.drop = 1});
  network().set_partition(0, 1, true);
  EXPECT_TRUE(network().set_link_up(host(0), switch_at(0), false));
  network().heal();
  for (int i = 0; i < 100; i++) port(0).send(port(1), 100);
  run();
  EXPECT_EQ(port(1).arrivals().size(), 100u);
  EXPECT_EQ(counters().dropped_fault, 0u);
}

}  // namespace
}  // namespace tern::sim
