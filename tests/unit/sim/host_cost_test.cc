// The CPU cost of a simulated host: by default that of small_rpc_rate over shm, whose default workload this test runs.
// Time is virtual, so the figures are exact and the same on every machine.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;
constexpr uint32_t kWindow = 60, kBatch = 3, kSessions = 8;
constexpr size_t kBytes = 32;

/// A client and server in one: calls to the other host in batches. A batch begins again once all of its calls have
/// ended.
struct Thread : SimProgram {
  Thread(Simulation& its_simulation, Host& host) : SimProgram(host), simulation(its_simulation) {
    EXPECT_TRUE(rpc->on_request(kEcho, [](Request request) { echo(request); }).ok());
  }
  void begin(const std::string& uri) {
    for (Session& session : sessions) session = *rpc->create_session(uri, {.window = 16});
    for (uint32_t batch = 0; batch < kWindow / kBatch; batch++) issue(batch);
  }
  void issue(uint32_t batch) {
    open[batch] = kBatch;
    for (uint32_t i = 0; i < kBatch; i++) {
      const Session session = sessions[simulation.random() % kSessions];
      const auto call = rpc->enqueue_request(session, kEcho, rpc->alloc_msgbuf(kBytes), rpc->alloc_msgbuf(kBytes),
                                             [this, batch](Completion& done) {
                                               if (done.status.code() == Code::kCancelled) return;  // the endpoint ends
                                               EXPECT_TRUE(done.status.ok()) << done.status.message();
                                               completed++;
                                               if (--open[batch] == 0) issue(batch);
                                             });
      ASSERT_TRUE(call.ok()) << call.status().message();
    }
  }

  Simulation& simulation;
  std::array<Session, kSessions> sessions;
  std::array<uint32_t, kWindow / kBatch> open{};
  uint64_t completed = 0;
};

/// Returns the millions of RPCs a second of a thread that also serves as many, in a network that is no bottleneck.
double rate_mrps(HostCost cost) {
  const SwitchOptions fast{.latency = 0ns};
  auto made = Simulation::create(Topology::star(2, {1'600'000'000'000, 0ns}, fast), {.cost = cost});
  EXPECT_TRUE(made.ok()) << made.status().message();
  Simulation& simulation = **made;
  std::vector<Thread*> threads;
  for (uint32_t i = 0; i < 2; i++) {
    EXPECT_TRUE(simulation.host(i)
                    .boot([&](Host& host) {
                      auto thread = std::make_shared<Thread>(simulation, host);
                      threads.push_back(thread.get());
                      return thread;
                    })
                    .ok());
  }
  for (uint32_t i = 0; i < 2; i++) threads[i]->begin(simulation.host(1 - i).uri());
  const auto completed = [&] { return threads[0]->completed + threads[1]->completed; };
  EXPECT_TRUE(simulation.run_until([&] { return completed() > 10'000; }, 10ms));
  const uint64_t before = completed();
  constexpr Duration kMeasured = 200us;
  simulation.run_for(kMeasured);
  return static_cast<double>(completed() - before) / 2 / (static_cast<double>(kMeasured.count()) / 1e3);
}

TEST(HostCost, the_default_gives_the_rate_that_small_rpc_rate_measures) {
  const double rate = rate_mrps({});
  EXPECT_GT(rate, 8.7 * 0.9);
  EXPECT_LT(rate, 8.7 * 1.1);
}

TEST(HostCost, twice_the_cost_is_half_the_rate) {
  const HostCost once;
  const double rate = rate_mrps({2 * once.iteration, 2 * once.packet_received, 2 * once.packet_sent});
  EXPECT_NEAR(rate, rate_mrps(once) / 2, 0.3);
}

TEST(HostCost, without_a_cost_only_the_network_limits_the_rate) { EXPECT_GT(rate_mrps(HostCost::none()), 30); }

}  // namespace
}  // namespace tern::sim
