// The values that a network computes from its topology.
#include <algorithm>

#include "unit/sim/network/network_fixture.h"

namespace tern::sim {
namespace {

constexpr uint64_t k1G = 1'000'000'000, k10G = 10'000'000'000, k100G = 100'000'000'000;
constexpr Picoseconds kNs = kPicosecondsPerNs;

using NetworkBuildTest = NetworkTest;

/// The longest round trip is twice the longest time of a full frame.
TEST_F(NetworkBuildTest, the_longest_round_trip_is_that_of_the_farthest_hosts) {
  const auto expect_longest = [this](const Topology& topology) {
    Picoseconds longest = 0;
    for (uint32_t from = 0; from < topology.hosts(); from++) {
      for (uint32_t to = 0; to < topology.hosts(); to++) {
        if (from == to) continue;
        make(topology);
        // Different flows take different ways.
        for (int flow = 0; flow < 20; flow++) {
          const Picoseconds begin = now();
          RecordingPort sender(network(), from);
          port(to).clear();
          sender.send(port(to), kFrameBytesMax);
          run();
          sender.close();
          ASSERT_EQ(port(to).arrivals().size(), 1u);
          longest = std::max(longest, port(to).arrivals()[0].at - begin);
        }
      }
    }
    EXPECT_EQ(network().longest_round_trip(), 2 * longest);
  };
  Topology topology = Topology::star(2, {k10G, 500ns}, {.latency = 300ns});
  expect_longest(topology);
  EXPECT_EQ(network().longest_round_trip(), 2 * ((500 + 300 + 500) * kNs + (kFrameBytesMax + 24) * 800));
  // Three hosts at two switches, one of which is far away.
  const Node other = topology.add_switch({.latency = 300ns});
  topology.connect({Node::Kind::kSwitch, 0}, other, {k10G, 1us});
  topology.connect(topology.add_host(), other, {k10G, 20us});
  expect_longest(topology);
  // The cables of the same switch have different rates and delays.
  topology = Topology::star(3, {k100G, 500ns});
  topology.links()[0].options = {k10G, 200ns};
  topology.links()[1].options.delay = 1000ns;
  expect_longest(topology);
  expect_longest(Topology::cx4(10));
}

TEST_F(NetworkBuildTest, the_longest_round_trip_counts_slow_cables_between_switches) {
  Topology topology = Topology::star(1, {k100G, 500ns}, {.latency = 300ns});
  const Node other = topology.add_switch({.latency = 300ns});
  topology.connect(topology.add_host(), other, {k100G, 500ns});
  const Picoseconds delays = (500 + 300 + 100 + 300 + 500) * kNs, slow_wire = (kFrameBytesMax + 24) * 8000;
  topology.connect({Node::Kind::kSwitch, 0}, other, {k1G, 100ns});
  make(topology);
  EXPECT_EQ(network().longest_round_trip(), 2 * (delays + slow_wire));
  port(0).send(port(1), kFrameBytesMax);
  run();
  EXPECT_EQ(port(1).arrivals().at(0).at, delays + slow_wire);
  // A fast way of as many cables is the first one in the table of routes. Some flows still take the slow one.
  topology.links().back().options.bits_per_sec = k100G;
  topology.connect({Node::Kind::kSwitch, 0}, other, {k1G, 100ns});
  make(topology);
  EXPECT_EQ(network().longest_round_trip(), 2 * (delays + slow_wire));
}

}  // namespace
}  // namespace tern::sim
