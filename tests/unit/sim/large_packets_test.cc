// Sessions begin with packets that pass every path, and find out by probes which longer ones pass (docs/protocol.md,
// 7.7.9). The network's frames have 9014 B, and the endpoints begin with frames of 1274 B. Virtual time.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;
constexpr size_t kFrameBytes = 9014;
constexpr uint32_t kSafeFrameBytes = 1274;
constexpr uint32_t kSafePayload = kSafeFrameBytes - 42 - 24;
constexpr uint32_t kLargePayload = 8832;  ///< what a payload code says best of 8948
constexpr size_t kLong = 1u << 20;

/// An endpoint that echoes, and a client whose calls check each byte.
struct Peer {
  Peer(Host& host, uint32_t safe_frame_bytes) {
    nexus = std::move(*Nexus::create(host.uri(), host.nexus_options()));
    Sim::Options options = host.transport_options();
    options.safe_frame_bytes = safe_frame_bytes;
    rpc = std::move(*Rpc<Sim>::create(*nexus, options, {.huge_pages = false}));
    EXPECT_TRUE(rpc->on_request(kEcho, [](Request request) { echo(request); }, {.max_request_bytes = kLong}).ok());
    EXPECT_TRUE(host.run(*rpc).ok());
  }
  void call(size_t bytes) {
    auto request = rpc->alloc_msgbuf(bytes);
    const auto seed = static_cast<uint8_t>(++begun);
    for (size_t i = 0; i < bytes; i++) request.bytes()[i] = byte_of(seed, i);
    const auto id = rpc->enqueue_request(session, kEcho, std::move(request), rpc->alloc_msgbuf(bytes),
                                         [this, seed, bytes](Completion& done) {
                                           if (done.status.code() == Code::kCancelled) return;  // the endpoint ends
                                           ended++;
                                           EXPECT_TRUE(done.status.ok()) << done.status.message();
                                           if (!done.status.ok()) return;
                                           EXPECT_EQ(done.response.bytes().size(), bytes);
                                           for (size_t i = 0; i < bytes; i++) {
                                             if (done.response.bytes()[i] != byte_of(seed, i)) {
                                               ADD_FAILURE() << "byte " << i << " of " << bytes;
                                               return;
                                             }
                                           }
                                         });
    EXPECT_TRUE(id.ok()) << id.status().message();
  }
  static std::byte byte_of(uint8_t seed, size_t i) { return static_cast<std::byte>(seed * 37 + i * 11 + (i >> 8)); }
  uint32_t payload() const { return rpc->session_info(session).payload_bytes; }

  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
  Session session;
  uint32_t begun = 0, ended = 0;
};

class LargePackets : public testing::Test {
 protected:
  void boot(uint32_t server_safe_bytes = kSafeFrameBytes) {
    auto simulation = Simulation::create(Topology::star(2, {}), {.seed = 1, .frame_bytes = kFrameBytes});
    ASSERT_TRUE(simulation.ok()) << simulation.status().message();
    simulation_ = std::move(*simulation);
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t safe_bytes = i == 0 ? server_safe_bytes : kSafeFrameBytes;
      const auto program = [=](Host& host) { return std::make_shared<Peer>(host, safe_bytes); };
      ASSERT_TRUE(simulation_->host(i).boot(program).ok());
    }
    client_ = &program_of<Peer>(*simulation_, 1);
    client_->session = *client_->rpc->create_session(simulation_->host(0).uri());
  }
  /// Limits the frames of one host's cable.
  void limit(size_t to_server, size_t to_client) {
    const Node host{Node::Kind::kHost, 1};
    const Node its_switch{Node::Kind::kSwitch, 0};
    EXPECT_TRUE(simulation_->set_frame_limit(host, its_switch, to_server).ok());
    EXPECT_TRUE(simulation_->set_frame_limit(its_switch, host, to_client).ok());
  }
  /// Runs until all calls have ended, and a little longer, so that the answer to a probe arrives, too.
  void finish(Duration within = 1s) {
    EXPECT_TRUE(simulation_->run_until([&] { return client_->ended == client_->begun; }, within));
    simulation_->run_for(100us);
  }
  void call(size_t bytes, Duration within = 1s) {
    client_->call(bytes);
    finish(within);
  }

  std::unique_ptr<Simulation> simulation_;
  Peer* client_ = nullptr;
};

TEST_F(LargePackets, are_found_with_the_first_long_message) {
  boot();
  call(kSafePayload);
  EXPECT_EQ(client_->payload(), kSafePayload);
  call(100'000);
  EXPECT_EQ(client_->payload(), kLargePayload);
  EXPECT_EQ(client_->rpc->counters().retransmissions, 0u);
}

TEST_F(LargePackets, carry_messages_of_every_size_in_both_directions) {
  boot();
  call(10'000);
  for (const size_t full : {kSafePayload, kLargePayload, kSafePayload + kLargePayload, 3 * kLargePayload}) {
    for (const size_t bytes : {full - 1, full, full + 1}) call(bytes);
  }
  call(kLong);
  EXPECT_EQ(client_->rpc->counters().retransmissions, 0u);
}

TEST_F(LargePackets, save_packets) {
  boot();
  call(kLong);
  const auto packets = [&] { return client_->rpc->session_info(client_->session).packets_sent; };
  const uint64_t before = packets();
  call(kLong);
  EXPECT_LT(packets() - before, 300u);  // 119 of the request; each RFR asks for several packets of the response
}

// A response of two packets has a round trip of its own for the second one (docs/protocol.md, 5.3.3).
TEST_F(LargePackets, save_a_round_trip_where_a_response_fits_in_one) {
  boot();
  const auto packets_of_call = [&](size_t bytes) {
    const uint64_t before = client_->rpc->session_info(client_->session).packets_sent;
    call(bytes);
    return client_->rpc->session_info(client_->session).packets_sent - before;
  };
  call(100'000);
  EXPECT_EQ(packets_of_call(5'000), 2u) << "request and RFR";
  EXPECT_EQ(packets_of_call(5'000), 1u);
  EXPECT_EQ(packets_of_call(kSafePayload + 1), 1u);
  EXPECT_EQ(packets_of_call(kLargePayload), 1u) << "the request is as long";
  for (int i = 0; i < 20; i++) client_->call(4'000);
  finish();
  EXPECT_EQ(client_->rpc->counters().retransmissions, 0u);
}

// The path's MTU falls while such responses are under way; calls go on with the smaller size.
TEST_F(LargePackets, whole_responses_give_way_when_they_do_not_pass_any_more) {
  for (const Duration after : {0us, 5us, 10us, 50us}) {
    boot();
    call(100'000);
    for (int i = 0; i < 3; i++) call(5'000);
    for (int i = 0; i < 8; i++) client_->call(5'000);
    simulation_->run_for(after);
    limit(SIZE_MAX, 1600);
    finish(5s);
    for (int i = 0; i < 20; i++) call(5'000, 5s);
    EXPECT_EQ(client_->payload(), 1408u);
    EXPECT_TRUE(client_->rpc->is_open(client_->session));
  }
}

// The path carries the parts of a response, and not the whole. The first calls find that out, each by a timeout.
TEST_F(LargePackets, whole_responses_that_never_pass_cost_eight_timeouts) {
  boot();
  call(100'000);
  for (int i = 0; i < 3; i++) call(8'000);
  limit(SIZE_MAX, 7'600);
  const auto slow_calls = [&](int count) {
    int slow = 0;
    for (int i = 0; i < count; i++) {
      const auto before = simulation_->now();
      call(8'000);  // and 100 us
      slow += simulation_->now() - before > 150us;
    }
    return slow;
  };
  EXPECT_EQ(slow_calls(30), 8);
  EXPECT_EQ(client_->payload(), kLargePayload);
  simulation_->run_for(60s);
  EXPECT_EQ(slow_calls(30), 1) << "the path is tried once a minute";
  limit(SIZE_MAX, SIZE_MAX);
  simulation_->run_for(60s);
  call(8'000);
  const uint64_t packets = client_->rpc->session_info(client_->session).packets_sent;
  call(8'000);
  EXPECT_EQ(client_->rpc->session_info(client_->session).packets_sent - packets, 1u);
}

TEST_F(LargePackets, that_never_pass_cost_six_probes) {
  boot();
  limit(kSafeFrameBytes, kSafeFrameBytes);
  for (int i = 0; i < 5; i++) call(100'000);
  EXPECT_EQ(client_->payload(), kSafePayload);
  EXPECT_EQ(client_->rpc->counters().retransmissions, 0u);
}

TEST_F(LargePackets, that_pass_in_one_direction_only_are_not_used) {
  for (const bool is_to_server : {false, true}) {
    boot();
    limit(is_to_server ? kSafeFrameBytes : SIZE_MAX, is_to_server ? SIZE_MAX : kSafeFrameBytes);
    for (int i = 0; i < 5; i++) call(100'000);
    EXPECT_EQ(client_->payload(), kSafePayload);
  }
}

TEST_F(LargePackets, smaller_ones_are_found_below_the_interfaces_mtu) {
  boot();
  limit(1514, 1514);
  for (int i = 0; i < 5; i++) call(100'000, 5s);
  EXPECT_EQ(client_->payload(), 1408u);
}

// The server's interface takes no longer packets than those with which the session begins.
TEST_F(LargePackets, are_not_used_if_the_server_does_not_take_them) {
  boot(kFrameBytes);
  for (int i = 0; i < 5; i++) call(100'000);
  EXPECT_EQ(client_->payload(), kSafePayload);
}

// The path's MTU falls while messages of both directions are under way.
TEST_F(LargePackets, give_way_when_they_do_not_pass_any_more) {
  for (const int way : {1, 2, 3}) {
    for (const Duration after : {0us, 20us, 100us, 150us, 300us}) {
      boot();
      call(100'000);
      ASSERT_EQ(client_->payload(), kLargePayload);
      for (int i = 0; i < 4; i++) client_->call(300'000);
      simulation_->run_for(after);
      limit((way & 1) != 0 ? 1600 : SIZE_MAX, (way & 2) != 0 ? 1600 : SIZE_MAX);
      finish();
      call(300'000, 5s);
      EXPECT_EQ(client_->payload(), 1408u);
      EXPECT_TRUE(client_->rpc->is_open(client_->session));
    }
  }
}

TEST_F(LargePackets, are_found_again_after_a_while) {
  boot();
  call(100'000);
  limit(kSafeFrameBytes, kSafeFrameBytes);
  call(100'000);
  call(100'000);
  EXPECT_EQ(client_->payload(), kSafePayload);
  limit(SIZE_MAX, SIZE_MAX);
  simulation_->run_for(61s);
  call(100'000);
  EXPECT_EQ(client_->payload(), kLargePayload);
}

TEST_F(LargePackets, arrive_whole_through_faults) {
  boot();
  call(100'000);
  simulation_->set_faults({.drop = 0.02, .duplicate = 0.02, .reorder = 0.05});
  for (int i = 0; i < 60; i++) client_->call(30'000);
  finish(10s);
  for (int i = 0; i < 2000; i++) client_->call(i % 7 == 0 ? 100 : 4'000 + i);
  finish(10s);
}

// The path gets narrow and wide again and again, while packets are lost, duplicated and reordered.
TEST_F(LargePackets, arrive_whole_on_a_path_that_changes) {
  boot();
  call(100'000);
  simulation_->set_faults({.drop = 0.01, .duplicate = 0.01, .reorder = 0.05});
  for (int round = 0; round < 40; round++) {
    for (int i = 0; i < 3; i++) client_->call(50'000 + simulation_->random() % 100'000);
    simulation_->run_for(Duration(simulation_->random() % 400'000));
    limit(round % 3 == 0 ? 1600 : SIZE_MAX, round % 4 == 0 ? 1600 : SIZE_MAX);
    finish(10s);
  }
  EXPECT_TRUE(client_->rpc->is_open(client_->session));
}

}  // namespace
}  // namespace tern::sim
