// A simulated cluster of replicas and a client, for the tests of apps/raft. One thread.
#pragma once

#include <gtest/gtest.h>
#include <tern/sim.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../apps/raft/administrator.h"
#include "../apps/raft/client.h"
#include "../apps/raft/replica.h"
#include "raft/memory_storage.h"

namespace replicated_test {

using namespace std::chrono_literals;
using replicated::Outcome;
using tern::sim::Host;

constexpr uint64_t kCluster = 7;
constexpr tern::Duration kElection = 10ms;

/// Hosts 0 to replicas - 1 run the replicas, from id 1 on. The clients are on the last host.
class Cluster {
 public:
  using Node = replicated::Node<tern::Sim>;
  struct ClientProgram {
    std::unique_ptr<tern::Nexus> nexus;
    std::vector<std::unique_ptr<replicated::Client>> clients;
    std::unique_ptr<replicated::Administrator> administrator;
    std::unique_ptr<tern::Rpc<tern::Sim>> rpc;
  };

  struct Setup {
    uint32_t begin = 3;   ///< replicas that begin the cluster
    uint32_t spares = 0;  ///< replicas that wait until they are added
    uint64_t seed = 1;
    size_t clients = 1;
    std::function<void(uint32_t, replicated::ReplicaOptions&)> tune =
        {};  ///< changes the options of replica `first + 1`
    std::function<void(replicated::ClientOptions&)> tune_client = {};
  };

  Cluster() : Cluster(Setup()) {}
  explicit Cluster(Setup setup)
      : setup_(std::move(setup)), storages_(setup_.begin + setup_.spares), problems_(storages_.size()) {
    const auto topology = tern::sim::Topology::star(replicas() + 1);
    simulation_ = std::move(*tern::sim::Simulation::create(topology, {.seed = setup_.seed}));
    for (uint32_t i = 0; i < replicas(); i++) forget(i);
    for (uint32_t i = 0; i < replicas(); i++) boot(i);
    boot_clients();
  }

  tern::sim::Simulation& simulation() { return *simulation_; }
  uint32_t replicas() const { return static_cast<uint32_t>(storages_.size()); }
  std::string uri(uint32_t i) { return simulation_->host(i).uri(); }

  replicated::ReplicaOptions options(uint32_t i) {
    replicated::ReplicaOptions options;
    options.port.cluster = kCluster;
    options.port.id = i + 1;
    options.port.address = uri(i);
    options.port.election_timeout = kElection;
    options.port.heartbeat = kElection / 10;
    options.port.snapshot_timeout = 1s;
    for (uint32_t j = 0; j < setup_.begin && i < setup_.begin; j++) options.replicas.emplace_back(j + 1, uri(j));
    if (setup_.tune) setup_.tune(i, options);
    return options;
  }
  void boot(uint32_t i) {
    ASSERT_TRUE(simulation_->host(i)
                    .boot([this, i](Host& host) {
                      auto node = std::make_shared<Node>();
                      tern::RpcOptions rpc_options;
                      rpc_options.huge_pages = false;
                      auto nexus_options = host.nexus_options();
                      nexus_options.liveness_timeout = 50ms;
                      problems_[i] = node->open(host.uri(), nexus_options, host.transport_options(), rpc_options,
                                                *storages_[i], options(i));
                      EXPECT_EQ(problems_[i], "");
                      EXPECT_TRUE(host.run(*node->rpc).ok());
                      return node;
                    })
                    .ok());
  }
  void crash(uint32_t i) { EXPECT_TRUE(simulation_->host(i).crash().ok()); }
  /// Restarts the replica without its stored state.
  void forget(uint32_t i) { storages_[i] = std::make_unique<replicated::MemoryStorage>(); }

  replicated::Replica* replica(uint32_t i) {
    auto* node = static_cast<Node*>(simulation_->host(i).program());
    return node != nullptr ? node->replica.get() : nullptr;
  }
  /// The place of the serving leader. replicas(): there is none.
  uint32_t leader() {
    uint32_t found = replicas();
    for (uint32_t i = 0; i < replicas(); i++) {
      if (replica(i) == nullptr || !replica(i)->is_ready()) continue;
      if (found == replicas() || replica(i)->state().current_term > replica(found)->state().current_term) found = i;
    }
    return found;
  }
  bool wait_for_leader(tern::Duration limit = 1s) {
    return simulation_->run_until([this] { return leader() != replicas(); }, limit);
  }

  replicated::ClientOptions client_options() {
    replicated::ClientOptions options;
    options.cluster = kCluster;
    for (uint32_t i = 0; i < setup_.begin; i++) options.replicas.push_back(uri(i));
    options.attempt = 20ms;
    options.patience = 2s;
    options.pause = 100us;
    if (setup_.tune_client) setup_.tune_client(options);
    return options;
  }
  void boot_clients() {
    const uint32_t last = replicas();
    if (simulation_->host(last).is_up()) crash(last);
    ASSERT_TRUE(simulation_->host(last)
                    .boot([this](Host& host) {
                      auto program = std::make_shared<ClientProgram>();
                      auto nexus_options = host.nexus_options();
                      nexus_options.liveness_timeout = 50ms;
                      program->nexus = std::move(*tern::Nexus::create(host.uri(), nexus_options));
                      program->rpc = std::move(*tern::Rpc<tern::Sim>::create(*program->nexus, host.transport_options(),
                                                                             {.huge_pages = false}));
                      for (size_t i = 0; i < setup_.clients; i++) {
                        program->clients.push_back(std::make_unique<replicated::Client>(
                            *program->rpc, *nexus_options.environment, client_options()));
                      }
                      program->administrator = std::make_unique<replicated::Administrator>(
                          *program->rpc, *nexus_options.environment, client_options());
                      EXPECT_TRUE(host.run(*program->rpc).ok());
                      clients_ = program.get();
                      return program;
                    })
                    .ok());
  }
  tern::Status close_clients() { return clients_->rpc->close({}); }
  replicated::Client& client(size_t i = 0) { return *clients_->clients[i]; }

  struct Result {
    bool has_ended = false;
    std::string problem;
    Outcome outcome = Outcome::kStale;
    std::string value;
  };
  /// Runs the simulation until the command has ended.
  Result run(replicated::Operation operation, const std::string& key, const std::string& value = {},
             const std::string& expected = {}, size_t i = 0) {
    auto result = std::make_shared<Result>();
    // The call runs in the client's own thread, as in a program.
    EXPECT_TRUE(
        clients_->rpc
            ->post([this, result, c = std::make_unique<std::array<std::string, 3>>(std::array{key, value, expected}),
                    operation, i] {
              client(i).execute(
                  operation, (*c)[0], (*c)[1],
                  [result](const replicated::Reply& reply) {
                    *result = {true, reply.problem, reply.outcome, std::string(reply.value)};
                  },
                  (*c)[2]);
            })
            .ok());
    simulation_->run_until([&] { return result->has_ended; }, 10s);
    return *result;
  }
  Result put(const std::string& key, const std::string& value) { return run(replicated::Operation::kPut, key, value); }
  Result get(const std::string& key) { return run(replicated::Operation::kGet, key); }

  /// Asks the leader, as raft_client does. The answer is empty until it arrives, and then "done" or the error.
  std::shared_ptr<std::string> start_change(replicated::Action action, uint64_t id, const std::string& address = {}) {
    auto answer = std::make_shared<std::string>();
    replicated::Administrator& administrator = *clients_->administrator;
    EXPECT_TRUE(clients_->rpc
                    ->post([&administrator, answer, action, id, a = std::make_unique<std::string>(address)] {
                      administrator.change(action, id, *a, [answer](std::string problem) {
                        *answer = problem.empty() ? "done" : problem;
                      });
                    })
                    .ok());
    return answer;
  }
  std::string change(replicated::Action action, uint64_t id, const std::string& address = {}) {
    const auto answer = start_change(action, id, address);
    simulation_->run_until([&] { return !answer->empty(); }, 10s);
    return *answer;
  }

 private:
  const Setup setup_;
  std::vector<std::unique_ptr<replicated::MemoryStorage>> storages_;
  std::vector<std::string> problems_;
  ClientProgram* clients_ = nullptr;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< destroyed first
};

}  // namespace replicated_test
