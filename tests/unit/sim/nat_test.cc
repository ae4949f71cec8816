// Clients behind simulated NATs: sessions open on one address and port pair, and the server follows a change of it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tern/log.h>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;

/// A program with a Nexus and an endpoint that echoes requests and makes calls.
struct Program : SimProgram {
  Program(Host& host, const std::shared_ptr<LogSink>& log) : SimProgram(host, with_log(host.nexus_options(), log)) {
    const auto answer = [this](Request request) {
      handled++;
      echo(request);
    };
    EXPECT_TRUE(rpc->on_request(kEcho, answer).ok());
  }
  static NexusOptions with_log(NexusOptions options, const std::shared_ptr<LogSink>& log) {
    options.log = log;
    return options;
  }
  void call(Session session, size_t bytes) {
    calls++;
    const auto accepted = rpc->enqueue_request(session, kEcho, rpc->alloc_msgbuf(bytes), rpc->alloc_msgbuf(bytes),
                                               [this](Completion& end) {
                                                 EXPECT_TRUE(end.status.ok()) << end.status.message();
                                                 ended++;
                                               });
    EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  }

  uint64_t handled = 0, calls = 0, ended = 0;
};

/// Host 0 is the server, and the other hosts are its clients.
class SimNat : public testing::Test {
 protected:
  void make(uint32_t hosts, uint64_t seed = 1) {
    const auto log = log_to([this](const LogEvent& event) {
      if (event.kind != LogKind::kPathPaired && event.kind != LogKind::kPathMoved) return;
      paths_.push_back({event.kind, event.session, std::string(event.nexus), std::string(event.peer)});
      EXPECT_EQ(event.severity, LogSeverity::kInfo);
      EXPECT_EQ(event.is_client, event.kind == LogKind::kPathPaired);
    });
    simulation_ = simulate<Program>(Topology::star(hosts), {.seed = seed}, log);
  }
  std::string address(uint32_t host) const { return simulation_->host(host).uri().substr(std::strlen("tern://")); }
  Program& program(uint32_t host) { return program_of<Program>(*simulation_, host); }
  Session open(uint32_t client) {
    auto session = program(client).rpc->create_session(simulation_->host(0).uri() + "/0");
    EXPECT_TRUE(session.ok()) << session.status().message();
    return *session;
  }
  bool finish(uint32_t client) {
    Program& its = program(client);
    return simulation_->run_until([&] { return its.ended == its.calls; }, 20s);
  }

  /// An event about a path, from any host.
  struct Path {
    LogKind kind;
    Session session;
    std::string nexus, peer;
  };
  std::vector<Path> paths_;
  std::unique_ptr<Simulation> simulation_;
};

TEST_F(SimNat, a_session_opens_on_one_address_and_port_pair_only_where_it_must) {
  make(3);
  simulation_->set_nat(1);
  for (const uint32_t client : {1u, 2u}) {
    const Session session = open(client);
    for (const size_t bytes : {32, 5000, 100'000}) program(client).call(session, bytes);
    EXPECT_TRUE(finish(client));
    EXPECT_EQ(program(client).rpc->counters().sessions_paired, client == 1 ? 1u : 0u);
    // The server has seen the first client's NAT address before the client knows it.
    ASSERT_EQ(paths_.size(), 2u) << "the log tells of the first client's path, at both ends";
    EXPECT_EQ(paths_[0].kind, LogKind::kPathMoved);
    EXPECT_EQ(paths_[0].nexus, address(0));
    EXPECT_EQ(paths_[0].peer, address(1));
    EXPECT_EQ(paths_[1].kind, LogKind::kPathPaired);
    EXPECT_EQ(paths_[1].session == session, client == 1);
    EXPECT_EQ(paths_[1].nexus, address(1));
    EXPECT_EQ(paths_[1].peer, address(0));
  }
  EXPECT_GT(simulation_->counters().dropped_nat, 0u);
  EXPECT_EQ(program(1).rpc->counters().network.dropped_nat, simulation_->counters().dropped_nat);
}

TEST_F(SimNat, a_flow_that_was_idle_too_long_is_followed) {
  make(2);
  simulation_->set_nat(1, 10ms);
  const Session session = open(1);
  for (int i = 0; i < 10; i++) {
    program(1).call(session, 1000);
    ASSERT_TRUE(finish(1));
    simulation_->run_for(200ms);
  }
  const uint64_t followed = program(0).rpc->counters().paths_followed;
  EXPECT_GT(followed, 5u);
  std::erase_if(paths_, [](const Path& path) { return path.kind == LogKind::kPathPaired; });
  ASSERT_EQ(paths_.size(), followed) << "the log tells of each";
  for (const Path& path : paths_) {
    EXPECT_EQ(path.session, paths_[0].session);
    EXPECT_EQ(path.nexus, address(0));
    EXPECT_EQ(path.peer, address(1));
  }
  EXPECT_EQ(program(0).handled, 10u);
}

/// Under faults and with calls in flight, each call runs once and ends.
TEST_F(SimNat, flows_that_are_forgotten_under_load_cost_no_call) {
  uint64_t followed = 0;
  for (uint64_t seed = 1; seed <= 30; seed++) {
    make(2, seed);
    simulation_->set_nat(1);
    simulation_->set_faults({.drop = 0.01, .duplicate = 0.01, .reorder = 0.05});
    const Session session = open(1);
    for (int round = 0; round < 3; round++) {
      simulation_->run_for(6s);  // a server answers an unknown address three times in five seconds
      for (int i = 0; i < 40; i++) program(1).call(session, 1 + simulation_->random() % 20'000);
      const uint64_t after = program(1).ended + simulation_->random() % 40;
      EXPECT_TRUE(simulation_->run_until([&] { return program(1).ended >= after; }, 20s)) << seed;
      simulation_->forget_flows(1);
      ASSERT_TRUE(finish(1)) << seed;
    }
    EXPECT_EQ(program(0).handled, program(1).calls) << seed;
    followed += program(0).rpc->counters().paths_followed;
    simulation_.reset();
  }
  EXPECT_GT(followed, 60u);
}

}  // namespace
}  // namespace tern::sim
