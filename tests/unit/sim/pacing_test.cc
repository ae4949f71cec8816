// Paced sessions on simulated hosts with slow loops: the session reaches its rate and does not exceed it.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kPut = 1;
constexpr size_t kBytes = 50'000;

/// A server, or a client with four calls at a time. The calls end together, so there are pauses of a round trip.
struct Peer : SimProgram {
  explicit Peer(Host& host) : SimProgram(host, {.credit_limit = 128}) {
    EXPECT_TRUE(rpc->on_request(kPut, [](Request request) { request.respond(); }).ok());
  }
  void begin(const std::string& server, uint64_t bytes_per_sec) {
    session = *rpc->create_session(server, {.rate_bytes_per_sec = bytes_per_sec});
    for (int i = 0; i < 4; i++) put();
  }
  void put() {
    const auto call =
        rpc->enqueue_request(session, kPut, rpc->alloc_msgbuf(kBytes), rpc->alloc_msgbuf(8), [this](Completion& done) {
          if (done.status.code() == Code::kCancelled) return;  // the endpoint ends
          EXPECT_TRUE(done.status.ok()) << done.status.message();
          bytes += kBytes;
          put();
        });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  Session session;
  uint64_t bytes = 0;  ///< bytes of ended calls
};

/// Returns the payload per second, measured after the start.
double bytes_per_sec(uint64_t rate, Duration turn) {
  auto made = Simulation::create(Topology::star(2), {.seed = 3});
  EXPECT_TRUE(made.ok()) << made.status().message();
  Simulation& simulation = **made;
  Peer* peers[2] = {};
  for (uint32_t i = 0; i < 2; i++) {
    const auto program = [&](Host& host) {
      auto peer = std::make_shared<Peer>(host);
      peers[i] = peer.get();
      return peer;
    };
    EXPECT_TRUE(simulation.host(i).boot(program).ok());
    HostCost cost;
    cost.iteration = turn;
    if (i == 0) simulation.host(i).set_cost(cost);
  }
  peers[0]->begin(simulation.host(1).uri(), rate);
  simulation.run_for(20ms);
  const uint64_t before = peers[0]->bytes;
  simulation.run_for(200ms);
  return static_cast<double>(peers[0]->bytes - before) / 0.2;
}

TEST(SimulatedPacing, slow_loops_reach_the_rate) {
  for (const uint64_t rate : {500'000'000}) {
    for (const Duration turn : {Duration(20us)}) {
      const double reached = bytes_per_sec(rate, turn);
      // Each packet has a header of 24 B.
      EXPECT_GT(reached, static_cast<double>(rate) * 0.95 * 0.975) << rate << " B/s, a turn takes " << turn.count();
      EXPECT_LT(reached, static_cast<double>(rate) * 1.01) << rate << " B/s, a turn takes " << turn.count();
    }
  }
}

}  // namespace
}  // namespace tern::sim
