// The index server and its load on simulated hosts with CX5 NICs (100 Gbit/s, one switch), a CPU for each thread. The
// simulator charges CPU time for packets (HostCost). The caller gives the times of the index and of the hand-over to a
// worker (Costs), and the options of all endpoints.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tern/sim.h>

#include "load.h"
#include "model.h"
#include "ordered_index.h"
#include "server.h"

namespace ordered {

struct Costs {
  std::array<tern::Duration, kSteps> steps;  ///< by Step
  tern::Duration hand_over;                  ///< time of the event loop for each SCAN that it hands to a worker
  tern::Duration wake_up;                    ///< time from the end of the hand-over until the worker begins
};

struct ClusterOptions {
  size_t server_threads = 1;
  size_t workers = 1;
  size_t client_hosts = 1;
  size_t client_threads = 1;  ///< of each host
  uint64_t keys = 0;          ///< number of keys in the index
  LoadOptions load;           ///< `server` and `writers` are not used
  Costs costs = {};
  tern::RpcOptions rpc = {};  ///< of all endpoints; `endpoint_id` is not used
  /// Sets further options of an endpoint's transport. Null: none.
  void (*set_transport_options)(tern::Sim::Options&) = nullptr;
};

/// The whole simulated cluster. One thread.
template <OrderedIndex Index>
class Cluster {
 public:
  /// `index` must be filled, and must outlive this object.
  Cluster(Index& index, const ClusterOptions& options)
      : options_(options), model_(options.load.seed, options.keys, options.keys / 8) {
    // The links and the switch are those of Topology::cx5_pair().
    const auto pair = tern::sim::Topology::cx5_pair();
    const auto topology = tern::sim::Topology::star(static_cast<uint32_t>(options_.client_hosts) + 1,
                                                    pair.links().front().options, pair.switches().front());
    simulation_ = std::move(*tern::sim::Simulation::create(topology, {.seed = options_.load.seed}));
    boot_server(index);
    for (uint32_t i = 0; i < options_.client_hosts; i++) boot_clients(i);
  }
  /// Takes over the index, runs each of `phases` for `length` of virtual time, and reads back. Returns an empty string,
  /// or the error message.
  std::string run(std::initializer_list<Phase> phases, tern::Duration length) {
    std::string problem = run_phase(Phase::kTakingOver, {});
    if (problem.empty() && model_.count() < options_.keys) problem = "the index lacks keys that it was filled with";
    for (const Phase phase : phases) {
      if (problem.empty()) problem = run_phase(phase, length);
    }
    return problem.empty() ? run_phase(Phase::kReadingBack, {}) : problem;
  }
  PhaseReport report(Phase phase) const {
    PhaseReport sum;
    for (const Load* load : loads_) sum.add(load->report(phase));
    return sum;
  }
  uint64_t sum(uint64_t (Load::*count)() const) const {
    uint64_t all = 0;
    for (const Load* load : loads_) all += (load->*count)();
    return all;
  }
  uint64_t trace_hash() const { return simulation_->trace_hash(); }

 private:
  using Host = tern::sim::Host;
  struct ServerProgram {
    std::unique_ptr<tern::Nexus> nexus;
    std::unique_ptr<Server<Index>> server;
    std::vector<std::unique_ptr<tern::Rpc<tern::Sim>>> rpcs;
  };
  struct ClientProgram {
    std::unique_ptr<tern::Nexus> nexus;
    std::vector<std::unique_ptr<Load>> loads;
    std::vector<std::unique_ptr<tern::Rpc<tern::Sim>>> rpcs;
  };

  std::unique_ptr<tern::Rpc<tern::Sim>> endpoint(Host& host, tern::Nexus& nexus, size_t id) {
    tern::Sim::Options transport_options = host.transport_options();
    if (options_.set_transport_options != nullptr) options_.set_transport_options(transport_options);
    tern::RpcOptions rpc_options = options_.rpc;
    rpc_options.endpoint_id = static_cast<uint16_t>(id);
    rpc_options.huge_pages = false;
    return std::move(*tern::Rpc<tern::Sim>::create(nexus, transport_options, rpc_options));
  }
  void boot_server(Index& index) {
    Host& host = simulation_->host(0);
    // The event loop that hands over a SCAN calls this function.
    host.set_worker_time([this, &host] {
      host.spend(options_.costs.hand_over);
      return options_.costs.wake_up + options_.costs.steps[static_cast<size_t>(Step::kScan)];
    });
    (void)host.boot([this, &index](Host& server_host) {
      auto program = std::make_shared<ServerProgram>();
      auto nexus_options = server_host.nexus_options();
      nexus_options.worker_threads = options_.workers;
      program->nexus = std::move(*tern::Nexus::create(server_host.uri(), nexus_options));
      ServerOptions options;
      options.about = {options_.keys, options_.load.seed, static_cast<uint32_t>(options_.server_threads)};
      // A call in a worker has no effect, because set_worker_time() determines the worker's time.
      options.on_step = [this, &server_host](Step step, bool begins) {
        if (begins) server_host.spend(options_.costs.steps[static_cast<size_t>(step)]);
      };
      program->server = std::make_unique<Server<Index>>(index, std::move(options));
      for (size_t i = 0; i < options_.server_threads; i++) {
        program->rpcs.push_back(endpoint(server_host, *program->nexus, i));
        (void)program->server->add_handlers(*program->rpcs.back());
        (void)server_host.run(*program->rpcs.back());
      }
      return program;
    });
  }
  void boot_clients(uint32_t index) {
    (void)simulation_->host(index + 1).boot([this, index](Host& host) {
      auto program = std::make_shared<ClientProgram>();
      program->nexus = std::move(*tern::Nexus::create(host.uri(), host.nexus_options()));
      for (size_t i = 0; i < options_.client_threads; i++) {
        const size_t writer = index * options_.client_threads + i;
        LoadOptions options = options_.load;
        options.server = simulation_->host(0).uri() + "/" + std::to_string(writer % options_.server_threads);
        options.writers = options_.client_hosts * options_.client_threads;
        program->loads.push_back(
            std::make_unique<Load>(model_, *host.nexus_options().environment, std::move(options), writer));
        program->rpcs.push_back(endpoint(host, *program->nexus, i));
        (void)program->loads.back()->begin(*program->rpcs.back());
        (void)host.run(*program->rpcs.back());
        loads_.push_back(program->loads.back().get());
        endpoints_.push_back(program->rpcs.back().get());
      }
      return program;
    });
  }

  /// Runs a phase for `length`; if `length` is 0, until the phase has ended by itself.
  std::string run_phase(Phase phase, tern::Duration length) {
    phases_++;
    for (size_t i = 0; i < loads_.size(); i++) {
      (void)endpoints_[i]->post([load = loads_[i], phase] { load->begin_phase(phase); });
    }
    if (length.count() > 0) {
      simulation_->run_for(length);
      for (size_t i = 0; i < loads_.size(); i++) {
        (void)endpoints_[i]->post([load = loads_[i]] { load->end_phase(); });
      }
    }
    const auto has_failed = [](const Load* load) { return load->has_failed(); };
    const auto has_ended = [this](const Load* load) { return load->ended() == phases_; };
    const bool is_over = simulation_->run_until(
        [&] {
          return std::any_of(loads_.begin(), loads_.end(), has_failed) ||
                 std::all_of(loads_.begin(), loads_.end(), has_ended);
        },
        std::chrono::seconds(600));
    const auto failed = std::find_if(loads_.begin(), loads_.end(), has_failed);
    if (failed != loads_.end()) return (*failed)->problem();
    return is_over ? "" : "the load does not end";
  }

  const ClusterOptions options_;
  Model model_;
  std::vector<Load*> loads_;
  std::vector<tern::Endpoint*> endpoints_;             ///< the endpoints of the loads
  uint64_t phases_ = 0;                                ///< number of phases that have begun
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< is destroyed first, because its programs use the other
                                                       ///< members
};

}  // namespace ordered
