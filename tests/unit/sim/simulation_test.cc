#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;
constexpr uint16_t kLate = 2;
constexpr uint16_t kWork = 3;

/// A Nexus and an endpoint that echoes requests, at once or later.
struct Node0 : SimProgram {
  explicit Node0(Host& host) : SimProgram(host) {
    const auto answer = [this](Request& request) {
      handled++;
      echo(request);
    };
    EXPECT_TRUE(rpc->on_request(kEcho,
                                [&host, answer, this](Request request) {
                                  host.spend(handler_time);
                                  answer(request);
                                })
                    .ok());
    EXPECT_TRUE(rpc->on_request(kLate,
                                [answer, this](Request request) {
                                  auto kept = std::make_shared<Request>(std::move(request));
                                  EXPECT_TRUE(rpc->after(50us, [kept, answer] { answer(*kept); }).ok());
                                })
                    .ok());
    EXPECT_TRUE(rpc->on_request(kWork, [answer](Request request) { answer(request); }, {.worker = true}).ok());
  }

  /// Calls `type` with `bytes` bytes; `done` gets the status.
  void call(Session session, uint16_t type, size_t bytes, std::function<void(Status)> done) {
    MsgBuf request = rpc->alloc_msgbuf(bytes);
    MsgBuf response = rpc->alloc_msgbuf(bytes);
    std::memset(request.bytes().data(), 0x5a, bytes);
    auto shared = std::make_shared<std::function<void(Status)>>(std::move(done));
    const auto accepted =
        rpc->enqueue_request(session, type, std::move(request), std::move(response), [shared, bytes](Completion& end) {
          if (end.status.ok()) {
            EXPECT_EQ(end.response.bytes().size(), bytes);
            for (const std::byte byte : end.response.bytes()) ASSERT_EQ(byte, std::byte{0x5a});
          }
          (*shared)(end.status);
        });
    EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  }

  int handled = 0;
  Duration handler_time{0};
};

std::unique_ptr<Simulation> make(uint32_t hosts, uint64_t seed = 1) {
  return simulate<Node0>(Topology::star(hosts), {.seed = seed});
}

Node0& node(Simulation& simulation, uint32_t host) { return program_of<Node0>(simulation, host); }

Session connect(Simulation& simulation, uint32_t from, uint32_t to) {
  auto session = node(simulation, from).rpc->create_session(simulation.host(to).uri());
  EXPECT_TRUE(session.ok()) << session.status().message();
  return *session;
}

TEST(Simulation, a_call_is_answered_in_microseconds_of_virtual_time) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  ASSERT_TRUE(simulation->run_until([&] { return node(*simulation, 0).rpc->is_open(session); }, 10ms));
  Status status(Code::kMisuse, "not yet");
  const Duration begin = simulation->now();
  node(*simulation, 0).call(session, kEcho, 32, [&](Status end) { status = end; });
  EXPECT_TRUE(simulation->run_until([&] { return status.ok(); }, 1ms));
  EXPECT_EQ(node(*simulation, 1).handled, 1);
  EXPECT_LT(simulation->now() - begin, 10us);
}

TEST(Simulation, long_messages_later_answers_and_workers) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  int done = 0;
  for (const uint16_t type : {kEcho, kLate, kWork}) {
    for (const size_t bytes : {0, 1, 1000, 100'000, 1 << 20}) {
      node(*simulation, 0).call(session, type, bytes, [&](Status end) {
        EXPECT_TRUE(end.ok()) << end.message();
        done++;
      });
    }
  }
  EXPECT_TRUE(simulation->run_until([&] { return done == 15; }, 100ms)) << done;
}

TEST(Simulation, a_handlers_time_is_its_callers_latency) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  simulation->run_for(10ms);
  const auto time_of_a_call = [&] {
    bool is_done = false;
    const Duration begin = simulation->now();
    node(*simulation, 0).call(session, kEcho, 32, [&](Status end) { is_done = end.ok(); });
    EXPECT_TRUE(simulation->run_until([&] { return is_done; }, 10ms));
    return simulation->now() - begin;
  };
  const Duration without = time_of_a_call();
  node(*simulation, 1).handler_time = 300us;
  EXPECT_NEAR(static_cast<double>((time_of_a_call() - without).count()), 300e3, 1e3);
}

TEST(Simulation, a_tap_sees_packets_leave_and_arrive_and_changes_nothing) {
  static constexpr uint32_t kFirstEndpointPort = 65536;
  struct Seen {
    int departed = 0, arrived = 0, of_nexuses = 0;
    Duration departed_at{0}, arrived_at{0};
  };
  const auto play = [](bool has_tap, Seen& seen) {
    auto simulation = make(2);
    const Session session = connect(*simulation, 0, 1);
    EXPECT_TRUE(simulation->run_until([&] { return node(*simulation, 0).rpc->is_open(session); }, 10ms));
    if (has_tap) {
      simulation->set_tap([&](const TappedPacket& packet) {
        if (packet.from_port < kFirstEndpointPort) return void(seen.of_nexuses++);
        if (packet.from_host != 0) return;
        EXPECT_EQ(packet.to_host, 1u);
        EXPECT_GE(packet.to_port, kFirstEndpointPort);
        EXPECT_EQ(packet.frame_bytes, 42 + 24 + 32u);
        EXPECT_FALSE(packet.is_marked);
        ASSERT_EQ(packet.bytes.size(), 24 + 32u);
        EXPECT_EQ(packet.bytes.back(), std::byte{0x5a});  // the packet contains the message when it leaves
        (packet.has_arrived ? seen.arrived : seen.departed)++;
        (packet.has_arrived ? seen.arrived_at : seen.departed_at) = simulation->now();
      });
    }
    bool is_done = false;
    node(*simulation, 0).call(session, kEcho, 32, [&](Status end) { is_done = end.ok(); });
    EXPECT_TRUE(simulation->run_until([&] { return is_done; }, 1ms));
    if (has_tap) simulation->set_tap(nullptr);
    const Seen before = seen;
    simulation->run_for(1s);  // a time in which Nexuses send pings
    EXPECT_EQ(seen.of_nexuses, before.of_nexuses);
    return simulation->trace_hash();
  };
  Seen nothing, seen;
  EXPECT_EQ(play(false, nothing), play(true, seen));
  EXPECT_EQ(seen.departed, 1);
  EXPECT_EQ(seen.arrived, 1);
  // Two cables of 500 ns, a switch of 300 ns, and a frame of 98 + 24 bytes at 25 Gbit/s.
  EXPECT_NEAR(static_cast<double>((seen.arrived_at - seen.departed_at).count()), 1339, 1);
}

TEST(Simulation, an_observer_may_replace_and_remove_itself) {
  auto simulation = make(2);
  int first = 0, second = 0;
  const auto observe = [&] {
    auto owned = std::make_shared<int>();
    simulation->set_observer([&, owned] {
      const std::weak_ptr own_life = owned;
      int& own_second = second;
      simulation->set_observer([&sim = *simulation, &own_second] {
        if (++own_second % 2 == 0) sim.set_observer(nullptr);
      });
      EXPECT_FALSE(own_life.expired());
      first++;
    });
  };
  connect(*simulation, 0, 1);
  observe();
  simulation->run_for(1ms);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  observe();
  EXPECT_FALSE(simulation->run_until([] { return false; }, 1s));
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 4);
}

TEST(Simulation, a_busy_server_is_no_congested_network) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  simulation->run_for(10ms);
  node(*simulation, 1).handler_time = 300us;
  constexpr int kCalls = 200;
  int done = 0;
  const Duration begin = simulation->now();
  for (int i = 0; i < kCalls; i++) {
    node(*simulation, 0).call(session, kEcho, 900, [&](Status end) { done += end.ok(); });
  }
  EXPECT_TRUE(simulation->run_until([&] { return done == kCalls; }, 1s)) << done;
  // The server was busy for almost all of the time.
  EXPECT_LT(simulation->now() - begin, kCalls * 300us * 11 / 10);
}

TEST(Simulation, the_same_seed_gives_the_same_trace_and_another_another) {
  const auto trace_of = [](uint64_t seed) {
    auto simulation = make(4, seed);
    simulation->set_faults({.drop = 0.01, .duplicate = 0.01, .reorder = 0.01});
    int done = 0;
    for (uint32_t i = 0; i < 4; i++) {
      const Session session = connect(*simulation, i, (i + 1) % 4);
      for (int n = 0; n < 50; n++) node(*simulation, i).call(session, n % 3 + 1, 3000, [&](Status) { done++; });
    }
    simulation->run_for(200ms);
    EXPECT_EQ(done, 200);
    return simulation->trace_hash();
  };
  const uint64_t first = trace_of(7);
  EXPECT_EQ(first, trace_of(7));
  EXPECT_NE(first, trace_of(8));
}

TEST(Simulation, a_crash_ends_calls_and_a_restart_serves_new_sessions) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  simulation->run_for(10ms);
  Status status;
  bool is_over = false;
  node(*simulation, 0).call(session, kLate, 32, [&](Status end) {
    status = end;
    is_over = true;
  });
  simulation->run_for(10us);
  ASSERT_TRUE(simulation->host(1).crash().ok());
  EXPECT_FALSE(simulation->host(1).is_up());
  EXPECT_TRUE(simulation->run_until([&] { return is_over; }, 2s));
  EXPECT_EQ(status.code(), Code::kPeerUnreachable);

  ASSERT_TRUE(simulation->host(1).boot([](Host& host) { return std::make_shared<Node0>(host); }).ok());
  const Session again = connect(*simulation, 0, 1);
  is_over = false;
  node(*simulation, 0).call(again, kEcho, 32, [&](Status end) {
    EXPECT_TRUE(end.ok()) << end.message();
    is_over = true;
  });
  EXPECT_TRUE(simulation->run_until([&] { return is_over; }, 2s));
}

TEST(Simulation, a_crash_lets_no_packet_out_though_the_host_boots_at_once) {
  int left = 0;
  auto simulation = make(5);
  for (uint32_t client = 1; client < 5; client++) connect(*simulation, client, 0);
  simulation->run_for(10ms);
  simulation->set_tap([&](const TappedPacket& packet) { left += packet.from_host == 0 ? 1 : 0; });
  ASSERT_TRUE(simulation->host(0).crash().ok());  // its Nexus would tell its four clients
  ASSERT_TRUE(simulation->host(0).boot([](Host& host) { return std::make_shared<Node0>(host); }).ok());
  simulation->run_for(20us);
  EXPECT_EQ(left, 0);
}

// The endpoint's loop has requested another turn, an answer waits for the wire, and a paced request for its departure.
// The crash ends all of this and wakes nothing.
TEST(Simulation, a_crash_between_two_turns_of_a_busy_endpoint) {
  const auto slow_network = simulate<Node0>(Topology::star(2, {.bits_per_sec = 1'000'000}), {});
  Simulation& simulation = *slow_network;
  const Session to = connect(simulation, 0, 1);
  SessionOptions slow;
  slow.rate_bytes_per_sec = 1000;
  const auto paced = node(simulation, 1).rpc->create_session(simulation.host(0).uri(), slow);
  ASSERT_TRUE(paced.ok());
  simulation.run_for(200ms);
  int ended = 0;
  for (int i = 0; i < 2; i++) node(simulation, 1).call(*paced, kEcho, 500, [&](Status) { ended++; });
  simulation.run_for(100ms);
  EXPECT_EQ(ended, 1);
  node(simulation, 0).call(to, kEcho, 5000, [](Status) {});
  ASSERT_TRUE(simulation.run_until([&] { return node(simulation, 1).handled == 1; }, 1s));
  simulation.run_for(20ms);
  bool has_run = false;
  Rpc<Sim>& rpc = *node(simulation, 1).rpc;
  const auto again = [&] {
    has_run = true;
    EXPECT_TRUE(rpc.after(0ns, [] {}).ok());
  };
  EXPECT_TRUE(rpc.after(0ns, again).ok());
  ASSERT_TRUE(simulation.run_until([&] { return has_run; }, 1ms));
  EXPECT_TRUE(simulation.host(1).crash().ok());
  EXPECT_EQ(ended, 2);
}

// The interval between two packets is half a second, and the first packet is lost. Probes are not paced.
TEST(Simulation, a_session_that_waits_for_its_pace_hears_that_its_server_lives) {
  auto simulation = make(2);
  SessionOptions slow;
  slow.rate_bytes_per_sec = 500;
  const auto session = node(*simulation, 0).rpc->create_session(simulation->host(1).uri(), slow);
  ASSERT_TRUE(session.ok());
  simulation->run_for(10ms);
  simulation->set_partition(0, 1, true);
  Status status(Code::kMisuse, "not yet");
  bool is_over = false;
  node(*simulation, 0).call(*session, kEcho, 400, [&](Status end) {
    status = end;
    is_over = true;
  });
  simulation->run_for(20ms);
  simulation->set_partition(0, 1, false);
  EXPECT_TRUE(simulation->run_until([&] { return is_over; }, 5s));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Simulation, a_paused_host_answers_later) {
  auto simulation = make(2);
  const Session session = connect(*simulation, 0, 1);
  simulation->run_for(10ms);
  bool is_done = false;
  const Duration begin = simulation->now();
  simulation->host(1).pause(5ms);
  node(*simulation, 0).call(session, kEcho, 32, [&](Status end) { is_done = end.ok(); });
  EXPECT_TRUE(simulation->run_until([&] { return is_done; }, 100ms));
  EXPECT_GE(simulation->now() - begin, 5ms);
  EXPECT_LT(simulation->now() - begin, 6ms);
}

TEST(Simulation, an_idle_simulation_goes_quiet) {
  auto simulation = make(3);
  connect(*simulation, 0, 1);
  simulation->run_for(1s);
  const uint64_t sent = simulation->counters().packets_sent;
  simulation->run_for(10s);
  // Only management may still send pings.
  EXPECT_LT(simulation->counters().packets_sent - sent, 500u);
}

}  // namespace
}  // namespace tern::sim
