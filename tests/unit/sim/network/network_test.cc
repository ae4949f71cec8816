// Frames through hosts, cables and switches: their times, drops, marks and paths.

#include "sim/network/network.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "transport/sim/sim_nic.h"
#include "unit/sim/network/network_fixture.h"

namespace tern::sim {
namespace {

using testing::ElementsAre;

constexpr uint64_t k10G = 10'000'000'000, k100G = 100'000'000'000;
constexpr Picoseconds kNs = kPicosecondsPerNs;

/// hosts 0.. at switch 0 with `rate`, and the last host with `rate_last`.
Topology star_with_last(uint32_t hosts, uint64_t rate, uint64_t rate_last, SwitchOptions options = {}) {
  Topology topology = Topology::star(hosts, {rate, 100ns}, options);
  topology.links().back().options.bits_per_sec = rate_last;
  return topology;
}

TEST_F(NetworkTest, a_slow_host_takes_its_time_however_long) {
  make(Topology::star(1));
  EventTargets targets(network().events());
  transport::SimNic nic(network(), targets, 0, 0);
  constexpr Picoseconds kSecond = 1'000'000'000 * kNs;
  EXPECT_EQ(nic.slowed(kSecond), kSecond);
  nic.slowness = transport::SimNic::kHealthy / 2;
  EXPECT_EQ(nic.slowed(kSecond), kSecond / 2);
  nic.slowness = transport::SimNic::kHealthy * 1'000'000;
  EXPECT_EQ(nic.slowed(kSecond), kSecond * 1'000'000);
  EXPECT_EQ(nic.slowed(10 * kSecond), transport::SimNic::kLongest);
}

TEST_F(NetworkTest, a_frame_takes_wire_delay_and_latency) {
  make(Topology::star(2, {k10G, 500ns}, {.latency = 300ns}));
  port(0).send(port(1), 1000, "hello");
  EXPECT_EQ(network().link_bits_per_sec(0), k10G);
  run();
  ASSERT_EQ(port(1).arrivals().size(), 1u);
  const Arrival& arrival = port(1).arrivals()[0];
  // Cut-through: the time on the wire (800 ps a byte) counts once.
  EXPECT_EQ(arrival.at, 500 * kNs + 300 * kNs + (1000 + 24) * 800 + 500 * kNs);
  EXPECT_EQ(arrival.content, "hello");
  EXPECT_EQ(arrival.from_host, 0u);
  EXPECT_FALSE(arrival.is_marked);
  EXPECT_EQ(counters().packets_sent, 1u);
  expect_all_counted();
}

TEST_F(NetworkTest, small_frames_are_filled_up) {
  for (const uint32_t bytes : {1u, 59u, 60u, 61u}) {
    make(Topology::star(2, {k10G, 0ns}, {.latency = 0ns}));
    port(0).send(port(1), bytes);
    run();
    EXPECT_EQ(port(1).arrivals().at(0).at, (std::max(bytes, 60u) + 24) * 800);
  }
}

TEST_F(NetworkTest, rates_need_not_divide_a_second) {
  make(Topology::star(2, {7'000'000'000, 0ns}, {.latency = 0ns}));
  port(0).send(port(1), 1000);
  run();
  EXPECT_EQ(port(1).arrivals().at(0).at, uint64_t{1024} * 8'000'000'000'000 / 7'000'000'000);
}

TEST_F(NetworkTest, a_frame_waits_for_those_before_it) {
  make(Topology::star(2, {k10G, 500ns}, {.latency = 300ns}));
  for (int i = 0; i < 3; i++) port(0).send(port(1), 1000);
  EXPECT_EQ(port(0).departures().size(), 1u) << "the first one within send()";
  run();
  const Picoseconds wire = 1024 * 800;
  EXPECT_THAT(port(0).departures(), ElementsAre(0, wire, 2 * wire));
  ASSERT_EQ(port(1).arrivals().size(), 3u);
  EXPECT_EQ(port(1).arrivals()[1].at - port(1).arrivals()[0].at, wire);
  EXPECT_EQ(port(1).arrivals()[2].at - port(1).arrivals()[1].at, wire);
  EXPECT_EQ(counters().queue_bytes_max, 0u) << "the switch sends them on as fast as they come";

  port(0).clear();
  run_until(now() + wire);
  port(0).send(port(1), 1000);
  EXPECT_THAT(port(0).departures(), ElementsAre(now())) << "idle again";
}

TEST_F(NetworkTest, cut_through__a_faster_output_does_not_underrun) {
  make(star_with_last(2, k10G, k100G, {.latency = 300ns}));
  port(0).send(port(1), 1000);
  run();
  // The last bit leaves the switch as soon as it has arrived: 800 ps a byte, not 80.
  EXPECT_EQ(port(1).arrivals().at(0).at, (100 + 300 + 100) * kNs + 1024 * 800);
}

TEST_F(NetworkTest, cut_through__a_slower_output_begins_at_once) {
  make(star_with_last(2, k100G, k10G, {.latency = 300ns}));
  port(0).send(port(1), 1000);
  run();
  EXPECT_EQ(port(1).arrivals().at(0).at, (100 + 300 + 100) * kNs + 1024 * 800);
}

Picoseconds round_trip(Network& network, RecordingPort& a, RecordingPort& b, uint32_t frame_bytes) {
  const Picoseconds start = network.events().now();
  a.send(b, frame_bytes);
  while (b.arrivals().empty()) network.events().step(UINT64_MAX);
  b.send(a, frame_bytes);
  while (a.arrivals().empty()) network.events().step(UINT64_MAX);
  return a.arrivals()[0].at - start;
}

TEST_F(NetworkTest, cx4__round_trips_are_the_papers) {
  make(Topology::cx4(100));
  // Hosts 0 and 1 are in different racks. To 5900 ns come two times the time of 84 B on a 25 Gbit/s wire (26.88 ns),
  // once because the uplink must not underrun and once for the last bit, less the 6.72 ns on the uplink itself. All of
  // this counts in each direction.
  EXPECT_EQ(round_trip(network(), port(0), port(1), 60), 5900 * kNs + 2 * (26'880 + 26'880 - 6'720));
  port(0).clear();
  EXPECT_EQ(round_trip(network(), port(0), port(5), 60), 3500 * kNs + 2 * 26'880) << "the same rack";
}

TEST_F(NetworkTest, cx5_pair__round_trip_leaves_the_papers_rest_to_the_hosts) {
  make(Topology::cx5_pair());
  EXPECT_EQ(round_trip(network(), port(0), port(1), 60), (4 * 380 + 2 * 300) * kNs + 2 * 6'720);
}

TEST_F(NetworkTest, a_packet_to_its_own_host_goes_through_the_switch) {
  make(Topology::star(1, {k10G, 500ns}, {.latency = 300ns}));
  RecordingPort other(network(), 0);
  port(0).send(other, 1000);
  run();
  ASSERT_EQ(other.arrivals().size(), 1u);
  EXPECT_EQ(other.arrivals()[0].at, 1300 * kNs + 1024 * 800);
}

// Buffers and marks.

constexpr uint32_t kFrame = 1000;

TEST_F(NetworkTest, nothing_is_lost_below_the_threshold) {
  // Two senders, so half of the frames wait. With 100 kB and alpha 1, 50 of 100 frames fit into alpha * free = 50 kB.
  make(Topology::star(3, {k10G, 100ns}, {.buffer_bytes = 100'000, .alpha = 1}));
  for (int i = 0; i < 50; i++) {
    port(0).send(port(2), kFrame);
    port(1).send(port(2), kFrame);
  }
  run();
  EXPECT_EQ(port(2).arrivals().size(), 100u);
  EXPECT_EQ(counters().dropped_buffer_full, 0u);
  EXPECT_EQ(counters().queue_bytes_max, 50u * kFrame);
  EXPECT_EQ(counters().packets_marked, 0u);
  expect_all_counted();
}

TEST_F(NetworkTest, dynamic_threshold__queue_gets_alpha_times_the_free_buffer) {
  // For a single queue Q: Q + frame <= alpha * (B - Q), so Q <= alpha / (1 + alpha) * B.
  struct Case {
    double alpha;
    uint64_t queue_max;
  };
  for (const Case c : {Case{0.5, 30'167}, Case{1, 45'250}, Case{2, 60'333}, Case{8, 80'444}, Case{1024, 90'412}}) {
    make(Topology::star(5, {k10G, 100ns}, {.buffer_bytes = 90'500, .alpha = c.alpha}));
    for (int i = 0; i < 100; i++) {
      for (uint32_t from = 0; from < 4; from++) port(from).send(port(4), kFrame);
    }
    run();
    // The last frame was admitted when the queue was a frame shorter.
    EXPECT_LE(counters().queue_bytes_max, c.queue_max + kFrame) << c.alpha;
    EXPECT_GT(counters().queue_bytes_max, c.queue_max - kFrame) << c.alpha;
    EXPECT_LE(counters().queue_bytes_max, 90'500u);
    EXPECT_GT(counters().dropped_buffer_full, 0u);
    EXPECT_EQ(port(4).arrivals().size() + counters().dropped_buffer_full, 400u);
    expect_all_counted();
  }
}

TEST_F(NetworkTest, dynamic_threshold__is_shared_by_the_queues) {
  // With alpha 1 each of two queues gets a third: Q <= B - 2 * Q.
  make(Topology::star(6, {k10G, 100ns}, {.buffer_bytes = 90'000, .alpha = 1}));
  for (int i = 0; i < 100; i++) {
    for (uint32_t from = 0; from < 2; from++) port(from).send(port(4), kFrame);
    for (uint32_t from = 2; from < 4; from++) port(from).send(port(5), kFrame);
  }
  run();
  EXPECT_NEAR(static_cast<double>(counters().queue_bytes_max), 30'000, 2 * kFrame);
  EXPECT_NEAR(static_cast<double>(port(4).arrivals().size()), static_cast<double>(port(5).arrivals().size()), 1);
  expect_all_counted();
}

TEST_F(NetworkTest, without_a_buffer_only_idle_outputs_take_frames) {
  make(Topology::star(3, {k10G, 100ns}, {.buffer_bytes = 0}));
  port(0).send(port(2), kFrame);
  port(1).send(port(2), kFrame);
  run();
  EXPECT_EQ(port(2).arrivals().size(), 1u);
  EXPECT_EQ(counters().dropped_buffer_full, 1u);
}

TEST_F(NetworkTest, ecn__marks_frames_that_find_a_queue_above_the_threshold) {
  make(Topology::star(3, {k10G, 100ns}, {.ecn_threshold_bytes = 3 * kFrame}));
  for (int i = 0; i < 10; i++) {
    port(0).send(port(2), kFrame);
    port(1).send(port(2), kFrame);
  }
  run();
  // Two frames arrive and one leaves at a time, so the queue grows by a frame with each pair.
  const auto& arrivals = port(2).arrivals();
  ASSERT_EQ(arrivals.size(), 20u);
  const auto marked = std::count_if(arrivals.begin(), arrivals.end(), [](const Arrival& a) { return a.is_marked; });
  EXPECT_EQ(static_cast<uint64_t>(marked), counters().packets_marked);
  const auto first = std::find_if(arrivals.begin(), arrivals.end(), [](const Arrival& a) { return a.is_marked; });
  // The queue does not become shorter, so all frames after the first marked one are marked.
  EXPECT_TRUE(std::all_of(first, arrivals.end(), [](const Arrival& a) { return a.is_marked; }));
  EXPECT_GE(first - arrivals.begin(), 7) << "output, and more than three frames waiting";
  EXPECT_LE(first - arrivals.begin(), 10);
}

TEST_F(NetworkTest, ecn__a_queue_of_the_threshold_is_not_marked) {
  make(Topology::star(6, {k10G, 100ns}, {.ecn_threshold_bytes = 3 * kFrame}));
  // One frame leaves; 0 to 3 are in front of the others.
  for (uint32_t from = 0; from < 5; from++) port(from).send(port(5), kFrame);
  run();
  EXPECT_EQ(counters().packets_marked, 0u);
  EXPECT_EQ(counters().queue_bytes_max, 4u * kFrame);
  for (const Arrival& arrival : port(5).arrivals()) EXPECT_FALSE(arrival.is_marked);

  make(Topology::star(7, {k10G, 100ns}, {.ecn_threshold_bytes = 3 * kFrame}));
  // Four frames are in front of the last one.
  for (uint32_t from = 0; from < 6; from++) port(from).send(port(6), kFrame);
  run();
  ASSERT_EQ(port(6).arrivals().size(), 6u);
  EXPECT_EQ(counters().packets_marked, 1u);
  EXPECT_TRUE(port(6).arrivals()[5].is_marked);
}

TEST_F(NetworkTest, marks_do_not_outlive_their_packet) {
  make(Topology::star(3, {k10G, 100ns}, {.ecn_threshold_bytes = 0}));
  for (int i = 0; i < 5; i++) {
    port(0).send(port(2), kFrame);
    port(1).send(port(2), kFrame);
  }
  run();
  EXPECT_GT(counters().packets_marked, 0u);
  port(2).clear();
  for (int i = 0; i < 20; i++) {
    port(0).send(port(2), kFrame);
    run();
  }
  for (const Arrival& arrival : port(2).arrivals()) EXPECT_FALSE(arrival.is_marked);
}

// Paths.

/// Two racks, with `cables` parallel cables to each of `spines` spines.
Topology two_tier(uint32_t hosts_per_rack, uint32_t spines, uint32_t cables) {
  Topology topology;
  std::vector<Node> racks = {topology.add_switch(), topology.add_switch()};
  for (uint32_t s = 0; s < spines; s++) {
    const Node spine = topology.add_switch();
    for (const Node rack : racks) {
      for (uint32_t c = 0; c < cables; c++) topology.connect(rack, spine, {k10G, 100ns});
    }
  }
  for (uint32_t i = 0; i < 2 * hosts_per_rack; i++) topology.connect(topology.add_host(), racks[i % 2], {k100G, 100ns});
  return topology;
}

TEST_F(NetworkTest, ecmp__flows_spread_over_all_paths) {
  make(two_tier(1, 2, 2));
  constexpr int kFlows = 400;
  std::vector<std::unique_ptr<RecordingPort>> flows;
  for (int i = 0; i < kFlows; i++) flows.push_back(std::make_unique<RecordingPort>(network(), 0));
  // All flows start at once through a 100 Gbit/s interface onto four cables of 10 Gbit/s, and get the sum of their
  // rates.
  for (int round = 0; round < 10; round++) {
    for (auto& flow : flows) flow->send(port(1), 1000);
  }
  run();
  ASSERT_EQ(port(1).arrivals().size(), size_t{10 * kFlows});
  const double wire_us = 1024 * 8 / 10e9 * 1e6;
  const double used = 10 * kFlows * wire_us / (static_cast<double>(now()) / 1e6);
  EXPECT_GT(used, 3) << "of four cables in use until the last one is done";
  EXPECT_LE(used, 4);
}

TEST_F(NetworkTest, ecmp__a_flow_stays_on_its_path) {
  make(two_tier(1, 4, 4));
  // A short frame behind a long one would overtake it on another path.
  for (int i = 0; i < 500; i++) {
    port(0).send(port(1), 1500);
    port(0).send(port(1), 60);
  }
  run();
  const std::vector<uint64_t> arrived = tickets(1);
  ASSERT_EQ(arrived.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
  // The flow gets one cable of 10 Gbit/s, not sixteen.
  EXPECT_GE(now(), Picoseconds{500} * (1524 + 84) * 800);
}

TEST_F(NetworkTest, paths_are_shortest) {
  // A ring of five switches with a host each: 0 to 2 has two cables, and 0 to 3 has two in the other direction.
  Topology topology;
  std::vector<Node> ring;
  for (int i = 0; i < 5; i++) ring.push_back(topology.add_switch({.latency = 0ns}));
  for (uint32_t i = 0; i < 5; i++) {
    topology.connect(ring[i], ring[(i + 1) % 5], {k10G, 1000ns});
    topology.connect(topology.add_host(), ring[i], {k10G, 0ns});
  }
  make(topology);
  for (uint32_t to = 1; to < 5; to++) port(0).send(port(to), 976);
  run();
  constexpr Picoseconds kWire = 1000 * 800;
  EXPECT_EQ(port(1).arrivals().at(0).at, 1 * 1000 * kNs + kWire);
  EXPECT_EQ(port(2).arrivals().at(0).at, 2 * 1000 * kNs + 2 * kWire);
  EXPECT_EQ(port(3).arrivals().at(0).at, 2 * 1000 * kNs + 3 * kWire);
  EXPECT_EQ(port(4).arrivals().at(0).at, 1 * 1000 * kNs + 4 * kWire);
}

// Ports.

TEST_F(NetworkTest, open_port__numbers) {
  make(Topology::star(2));
  EXPECT_GT(port(0).number(), 65535u);
  RecordingPort named(network(), 0, 31850);
  EXPECT_EQ(named.number(), 31850u);
  EXPECT_EQ(network().open_port(0, &named, 31850), 0u) << "taken";
  EXPECT_EQ(network().open_port(0, &named, 70000), 0u) << "not to be wished for";
  RecordingPort elsewhere(network(), 1, 31850);
  EXPECT_EQ(elsewhere.number(), 31850u);
  port(1).send(named, 100);
  run();
  EXPECT_EQ(named.arrivals().size(), 1u);
  EXPECT_EQ(elsewhere.arrivals().size(), 0u);

  named.close();
  RecordingPort again(network(), 0, 31850);
  EXPECT_EQ(again.number(), 31850u) << "free again";
  RecordingPort first(network(), 0);
  first.close();
  RecordingPort second(network(), 0);
  EXPECT_NE(second.number(), first.number()) << "once used, never again";
}

TEST_F(NetworkTest, close_port__drops_frames_that_have_not_left) {
  make(Topology::star(2, {k10G, 100ns}));
  RecordingPort other(network(), 0);
  for (int i = 0; i < 3; i++) {
    port(0).send(port(1), 1000, "mine");
    other.send(port(1), 1000, "the other's");
  }
  run_until(1);
  port(0).close();
  run();
  EXPECT_EQ(port(0).departures().size(), 1u);
  EXPECT_EQ(other.departures().size(), 3u);
  std::vector<std::string> contents;
  for (const Arrival& arrival : port(1).arrivals()) contents.push_back(arrival.content);
  EXPECT_THAT(contents, ElementsAre("mine", "the other's", "the other's", "the other's"));
  EXPECT_EQ(counters().packets_sent, 4u);

  for (int i = 0; i < 2; i++) other.send(port(1), 1000);
  RecordingPort alone(network(), 1);
  for (int i = 0; i < 2; i++) alone.send(port(0), 1000);
  alone.close();
  run();
  EXPECT_EQ(alone.departures().size(), 1u) << "and nothing is there when the next one could begin";

  // The queue that close() has emptied still works, one frame after the other.
  for (int i = 0; i < 3; i++) other.send(port(1), 1000);
  other.close();
  RecordingPort third(network(), 0);
  const size_t before = port(1).arrivals().size();
  for (int i = 0; i < 3; i++) third.send(port(1), 1000);
  run();
  ASSERT_EQ(port(1).arrivals().size(), before + 4) << "the one that had begun, and three";
  for (size_t i = before + 1; i < before + 4; i++) {
    EXPECT_EQ(port(1).arrivals()[i].at - port(1).arrivals()[i - 1].at, Picoseconds{1024} * 800);
  }
}

TEST_F(NetworkTest, packet_to_an_absent_port__is_counted) {
  make(Topology::star(2));
  port(0).send(1, 99, 100);
  port(0).send(1, 65536 + 99, 100);
  port(0).send(1, UINT32_MAX, 100);
  port(0).send(2, 65536, 100);  // no such host
  port(0).send(UINT32_MAX, 65536, 100);
  port(0).send(port(1), 100);
  port(1).close();
  run();
  EXPECT_EQ(port(0).departures().size(), 6u);
  EXPECT_EQ(counters().dropped_no_receiver, 6u);
  EXPECT_EQ(counters().packets_delivered, 0u);
  expect_all_counted();
}

TEST_F(NetworkTest, send_at__sends_the_list_then_and_in_order) {
  make(Topology::star(2, {k10G, 100ns}));
  SimPacket* first = port(0).packet_to(1, port(1).number(), 1000, "first");
  first->next = port(0).packet_to(1, port(1).number(), 1000, "second");
  first->next->next = nullptr;
  network().send_at(5'000'000, first);
  port(0).send(port(1), 1000, "at once");
  run();
  EXPECT_THAT(port(0).departures(), ElementsAre(0, 5'000'000, 5'000'000 + Picoseconds{1024} * 800));
  std::vector<std::string> contents;
  for (const Arrival& arrival : port(1).arrivals()) contents.push_back(arrival.content);
  EXPECT_THAT(contents, ElementsAre("at once", "first", "second"));
}

TEST_F(NetworkTest, send_at__of_a_port_that_is_closed_meanwhile_loses_the_list) {
  make(Topology::star(2));
  RecordingPort closing(network(), 0);
  SimPacket* first = closing.packet_to(1, port(1).number(), 1000);
  SimPacket* second = closing.packet_to(1, port(1).number(), 1000);
  first->next = second;
  second->next = nullptr;
  network().send_at(1000, first);
  closing.close();
  run();
  EXPECT_TRUE(closing.departures().empty());
  EXPECT_EQ(counters().packets_sent, 0u);
  EXPECT_EQ(network().take_packet(), second) << "the pool has the list again";
}

TEST_F(NetworkTest, refuse__is_counted_in_place_of_delivery) {
  make(Topology::star(2));
  struct Full final : SimPort {
    Network* network = nullptr;
    void on_departure(SimPacket&) override {}
    void on_arrival(SimPacket* packet) override { network->refuse(packet); }
  } full;
  full.network = &network();
  port(0).send(1, network().open_port(1, &full), 100);
  run();
  EXPECT_EQ(counters().dropped_receive_full, 1u);
  EXPECT_EQ(counters().packets_delivered, 0u);
  expect_all_counted();
}

// The trace.

class TraceTest : public NetworkTest {
 protected:
  /// Returns the hash of a busy network with random faults.
  uint64_t trace_of(uint64_t seed, uint32_t frame_bytes = 1000) {
    make(two_tier(10, 2, 2), seed);
    network().set_faults({.drop = 0.01, .duplicate = 0.01, .reorder = 0.01, .delay = 0.01, .corrupt = 0.01});
    for (uint32_t round = 0; round < 50; round++) {
      for (uint32_t from = 0; from < 20; from++) port(from).send(port((from * 7 + round) % 20), frame_bytes);
    }
    run();
    return network().trace_hash();
  }
};

TEST_F(TraceTest, same_seed_same_trace) {
  const uint64_t first = trace_of(5);
  EXPECT_EQ(trace_of(5), first);
  EXPECT_NE(trace_of(6), first);
  EXPECT_NE(trace_of(5, 1001), first);
  // The hash is the same on every machine.
  EXPECT_EQ(first, 11505014964180690343u);
}

}  // namespace
}  // namespace tern::sim
