// The receivers' control of incast, for requests and responses, without a congestion controller at the senders: whole
// endpoints in the simulated network. unit/session/credit_policy_test.cc tests the policy alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kFetch = 1;                             ///< the response has the length that the request names
constexpr uint16_t kPut = 2;                               ///< the response is empty
constexpr double kPayloadBytesPerNs = 3.125 * 958 / 1048;  ///< 25 Gbit/s, frames of 1024 B

struct Peer : SimProgram {
  Peer(Host& host, RpcOptions options) : SimProgram(host, options) {
    EXPECT_TRUE(rpc->on_request(kFetch,
                                [](Request request) {
                                  uint64_t bytes = 0;
                                  std::memcpy(&bytes, request.bytes().data(), sizeof(bytes));
                                  EXPECT_TRUE(request.response(bytes).ok());
                                  request.respond();
                                })
                    .ok());
    EXPECT_TRUE(rpc->on_request(kPut, [](Request request) { request.respond(); }).ok());
  }
};

class ReceiverTest : public testing::Test {
 protected:
  void make(uint32_t hosts, RpcOptions options = {}) { make(Topology::star(hosts), options); }
  void make(const Topology& topology, RpcOptions options) {
    simulation_.reset();
    simulation_ = simulate<Peer>(topology, {.seed = 3}, options);
  }
  Rpc<Sim>& rpc(uint32_t host) { return *static_cast<Peer*>(simulation_->host(host).program())->rpc; }
  /// Opens sessions from `host` to all others, or from all others to it.
  std::vector<Session> connect(uint32_t host, bool is_client) {
    std::vector<Session> sessions;
    for (uint32_t i = 0; i < simulation_->hosts(); i++) {
      if (i == host) continue;
      auto session = rpc(is_client ? host : i).create_session(simulation_->host(is_client ? i : host).uri());
      EXPECT_TRUE(session.ok()) << session.status().message();
      sessions.push_back(*session);
    }
    const auto are_open = [&] {
      for (size_t i = 0; i < sessions.size(); i++) {
        if (!rpc(is_client ? host : client_of(host, i)).is_open(sessions[i])) return false;
      }
      return true;
    };
    EXPECT_TRUE(simulation_->run_until(are_open, 50ms));
    simulation_->run_for(1ms);
    return sessions;
  }
  static uint32_t client_of(uint32_t host, size_t index) {
    const auto i = static_cast<uint32_t>(index);
    return i < host ? i : i + 1;
  }
  void fetch(Rpc<Sim>& client, Session session, uint64_t bytes, std::vector<Duration>& ends) {
    MsgBuf request = client.alloc_msgbuf(sizeof(bytes));
    std::memcpy(request.bytes().data(), &bytes, sizeof(bytes));
    call(client, session, kFetch, std::move(request), bytes, ends);
  }
  void put(Rpc<Sim>& client, Session session, uint64_t bytes, std::vector<Duration>& ends) {
    call(client, session, kPut, client.alloc_msgbuf(bytes), 1, ends);
  }
  void call(Rpc<Sim>& client, Session session, uint16_t type, MsgBuf request, size_t room,
            std::vector<Duration>& ends) {
    const auto then = [this, &ends](Completion& done) {
      EXPECT_TRUE(done.status.ok()) << done.status.message();
      ends.push_back(simulation_->now());
    };
    auto call = client.enqueue_request(session, type, std::move(request), client.alloc_msgbuf(room), then);
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  /// Returns the maximum queue in front of the receiver, as time.
  Duration longest_queue() const { return Duration(simulation_->counters().queue_bytes_max * 8 / 25); }
  /// No packet was dropped or taken for lost. A late answer is probed for.
  void expect_nothing_lost() {
    for (uint32_t i = 0; i < simulation_->hosts(); i++) EXPECT_EQ(rpc(i).counters().retransmissions, 0u) << i;
    EXPECT_EQ(simulation_->counters().dropped_buffer_full, 0u);
    EXPECT_EQ(simulation_->counters().dropped_receive_full, 0u);
  }
  static double gbps_of_line(uint64_t bytes, Duration time) {
    return static_cast<double>(bytes) / static_cast<double>(time.count()) / kPayloadBytesPerNs;
  }

  std::unique_ptr<Simulation> simulation_;
};

class FanIn : public ReceiverTest, public testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(peers, FanIn, testing::Values(1, 2, 8, 64),
                         [](const auto& peers) { return std::to_string(peers.param); });

TEST_P(FanIn, of_responses_loses_nothing) {
  constexpr uint64_t kBytes = 1 << 20;
  make(GetParam() + 1);
  const auto sessions = connect(0, true);
  std::vector<Duration> ends;
  const Duration begin = simulation_->now();
  for (const Session session : sessions) fetch(rpc(0), session, kBytes, ends);
  ASSERT_TRUE(simulation_->run_until([&] { return ends.size() == sessions.size(); }, 200ms)) << ends.size();
  expect_nothing_lost();
  EXPECT_GE(gbps_of_line(kBytes * sessions.size(), ends.back() - begin), 0.95);
  EXPECT_LE(longest_queue(), 110us);  // at the beginning, because packet 0 of each response is on its way
  EXPECT_GE((ends.front() - begin) * 10, (ends.back() - begin) * 9);  // all sessions have equal shares
}

TEST_P(FanIn, of_requests_loses_nothing) {
  constexpr uint64_t kBytes = 1 << 20;
  make(GetParam() + 1);
  const auto sessions = connect(0, false);
  std::vector<Duration> ends;
  const Duration begin = simulation_->now();
  for (size_t i = 0; i < sessions.size(); i++) put(rpc(client_of(0, i)), sessions[i], kBytes, ends);
  ASSERT_TRUE(simulation_->run_until([&] { return ends.size() == sessions.size(); }, 200ms)) << ends.size();
  expect_nothing_lost();
  EXPECT_GE(gbps_of_line(kBytes * sessions.size(), ends.back() - begin), 0.95);
  // At the beginning, because the first clients get credits before the server knows the number of clients.
  EXPECT_LE(longest_queue(), 150us);
  EXPECT_GE((ends.front() - begin) * 10, (ends.back() - begin) * 8);
}

TEST_F(ReceiverTest, a_fixed_limit_knows_no_downlink) {
  constexpr uint64_t kBytes = 1 << 20;
  make(9, {.credit_limit = 100});
  const auto sessions = connect(0, false);
  std::vector<Duration> ends;
  for (size_t i = 0; i < sessions.size(); i++) put(rpc(client_of(0, i)), sessions[i], kBytes, ends);
  ASSERT_TRUE(simulation_->run_until([&] { return ends.size() == sessions.size(); }, 200ms)) << ends.size();
  EXPECT_NEAR(static_cast<double>(longest_queue().count()), 8 * 100 * 335, 20'000);
}

TEST_F(ReceiverTest, a_limit_that_no_packet_can_carry_is_misuse) {
  auto made = Simulation::create(Topology::star(1));
  ASSERT_TRUE(made.ok());
  Host& host = (*made)->host(0);
  const auto program = [](Host& its_host) {
    auto nexus = Nexus::create(its_host.uri(), its_host.nexus_options());
    EXPECT_TRUE(nexus.ok());
    auto endpoint = Rpc<Sim>::create(**nexus, its_host.transport_options(),
                                     {.credit_limit = RpcOptions::kCreditLimitMax + 1, .huge_pages = false});
    EXPECT_EQ(endpoint.status().code(), Code::kMisuse);
    return std::make_shared<int>();
  };
  ASSERT_TRUE(host.boot(program).ok());
}

// Clause 4.2.4, from the switch to the marks in the server's packets.
TEST_F(ReceiverTest, congestion_marks_are_echoed) {
  for (const bool has_marks : {false, true}) {
    Topology topology = Topology::star(3);
    if (has_marks) topology.switches()[0].ecn_threshold_bytes = 5'000;
    make(topology, {});
    const auto sessions = connect(0, false);
    uint64_t marked = 0, packets = 0, echoed = 0;
    simulation_->set_tap([&](const TappedPacket& packet) {
      if (packet.from_port < 65'536 || packet.bytes.size() < 24) return;
      const auto flags = static_cast<uint8_t>(packet.bytes[1]);
      if (packet.has_arrived && packet.to_host == 0) {
        packets++;
        marked += packet.is_marked;
      } else if (!packet.has_arrived && packet.from_host == 0) {
        echoed += (flags & 16) != 0;
      }
    });
    std::vector<Duration> ends;
    for (size_t i = 0; i < sessions.size(); i++) put(rpc(client_of(0, i)), sessions[i], 200'000, ends);
    ASSERT_TRUE(simulation_->run_until([&] { return ends.size() == sessions.size(); }, 10ms));
    EXPECT_GT(packets, 400u);
    EXPECT_EQ(marked > packets / 2, has_marks);
    // A packet that answers several marked packets has one mark.
    EXPECT_LE(echoed, marked);
    EXPECT_GE(echoed * 10, marked * 9);
  }
}

}  // namespace
}  // namespace tern::sim
