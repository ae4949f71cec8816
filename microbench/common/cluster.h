// A simulated cluster for a benchmark: hosts with a Nexus each, endpoints, virtual time, and their flags. This file
// defines flags: include it only in a program's one source file. One thread. All results follow from --seed, except
// wall_seconds and the metrics of memory, which a program measures in its own process.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tern/nexus.h>
#include <tern/sim.h>
#include <tern/transport/sim.h>

#include "../../apps/common/flags.h"
#include "../../apps/common/report.h"
#include "../../apps/common/sides.h"
#include "../percentiles.h"

DEFINE_uint64(frame_bytes, 1024, "sim: the largest frame, Ethernet, IP and UDP headers included");
DEFINE_double(alpha, 0, "sim: dynamic threshold of the switches' shared buffers; 0: the topology's own");
DEFINE_uint64(ecn_bytes, 0, "sim: frames that find more in their output queue are marked; 0: the topology's own");
DEFINE_bool(host_cost, true, "sim: endpoints use CPU time as on a real CPU; false: they use almost none");

namespace programs {

/// Must be called by main() before the flags are parsed. Sets the defaults of simulated programs.
inline void set_simulated_defaults(const char* seconds) {
  gflags::SetCommandLineOptionWithMode("transport", std::string(tern::Sim::kName).c_str(), gflags::SET_FLAGS_DEFAULT);
  gflags::SetCommandLineOptionWithMode("seconds", seconds, gflags::SET_FLAGS_DEFAULT);
}

/// Must be called after parse_flags(). Flags of other transports have no meaning over sim, and flags of sim none over
/// other transports. `own` has further flags of this program that need sim. On error it prints a sentence and returns
/// false.
inline bool check_simulated_flags(std::initializer_list<const char*> own = {}) {
  if (!is_simulated()) {
    std::vector<const char*> names = {"frame_bytes", "alpha", "ecn_bytes", "host_cost"};
    names.insert(names.end(), own.begin(), own.end());
    for (const char* name : names) {
      if (!is_given(name)) continue;
      fail("--%s works only with --transport=sim", name);
      return false;
    }
    return true;
  }
  if (!check_flags_in_simulation({"cpus"})) return false;
  if (FLAGS_frame_bytes < 578 || FLAGS_frame_bytes > 9018) {
    fail("--frame_bytes=%s is not between 578 and 9018", std::to_string(FLAGS_frame_bytes).c_str());
    return false;
  }
  if (!(FLAGS_alpha >= 0 && FLAGS_alpha <= 1024)) {
    fail("--alpha=%g is not between 0 and 1024", FLAGS_alpha);
    return false;
  }
  if (FLAGS_ecn_bytes > UINT32_MAX) {
    fail("--ecn_bytes must be at most 4294967295");
    return false;
  }
  if (FLAGS_seconds > 1000) {
    fail("--seconds=%g of virtual time would take days; at most 1000", FLAGS_seconds);
    return false;
  }
  return true;
}

/// --seconds as virtual time.
inline tern::Duration virtual_seconds() { return tern::Duration(static_cast<int64_t>(FLAGS_seconds * 1e9)); }

/// The hosts of a Topology, each with a Nexus, and their endpoints. Objects that their callbacks use must outlive the
/// cluster, because its destructor cancels pending calls.
class Cluster {
 public:
  /// --frame_bytes, --alpha, --ecn_bytes, --host_cost and --seed apply.
  static tern::Result<std::unique_ptr<Cluster>> create(tern::sim::Topology topology) {
    for (tern::sim::SwitchOptions& options : topology.switches()) {
      if (FLAGS_alpha > 0) options.alpha = FLAGS_alpha;
      if (FLAGS_ecn_bytes > 0) options.ecn_threshold_bytes = FLAGS_ecn_bytes;
    }
    tern::sim::SimulationOptions options;
    options.seed = FLAGS_seed;
    options.frame_bytes = FLAGS_frame_bytes;
    if (!FLAGS_host_cost) options.cost = tern::sim::HostCost::none();
    auto simulation = tern::sim::Simulation::create(topology, options);
    if (!simulation.ok()) return simulation.status();
    auto cluster = std::unique_ptr<Cluster>(new Cluster(std::move(topology), std::move(*simulation)));
    if (tern::Status status = cluster->boot(); !status.ok()) return status;
    return cluster;
  }
  ~Cluster() { is_over_ = true; }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  tern::sim::Simulation& simulation() { return *simulation_; }
  /// The simulated topology, with the flags applied.
  const tern::sim::Topology& topology() const { return topology_; }

  /// The cluster owns the new endpoint, and the simulation runs it until the cluster's end.
  tern::Result<tern::Endpoint*> add_endpoint(uint32_t host, const tern::RpcOptions& options) {
    Machine& machine = *machines_[host];
    tern::Sim::Options transport_options = simulation_->host(host).transport_options();
    apply_transport_flags(transport_options);
    auto rpc = tern::Rpc<tern::Sim>::create(*machine.nexus, transport_options, options);
    if (!rpc.ok()) return rpc.status();
    if (tern::Status status = simulation_->host(host).run(**rpc); !status.ok()) return status;
    machine.endpoints.push_back(std::move(*rpc));
    return static_cast<tern::Endpoint*>(machine.endpoints.back().get());
  }
  std::string uri(uint32_t host, uint16_t endpoint_id) {
    return simulation_->host(host).uri() + "/" + std::to_string(endpoint_id);
  }
  /// Sums a counter over all endpoints.
  uint64_t sum(uint64_t tern::EndpointCounters::*counter) const {
    uint64_t total = 0;
    for (const Machine* machine : machines_) {
      for (const auto& endpoint : machine->endpoints) total += endpoint->counters().*counter;
    }
    return total;
  }

  /// May be called from callbacks. Only the first error counts. An error after the end is ignored.
  void fail(const std::string& what, tern::Status status) {
    if (is_over_ || !error_.empty()) return;
    error_ = what + ": " + std::string(status.message());
  }
  /// False after an error, or after the program was interrupted.
  bool is_well() const { return error_.empty() && !interrupted; }
  /// Runs the simulation for `duration` of virtual time. Returns is_well().
  [[nodiscard]] bool run_for(tern::Duration duration) {
    for (const tern::Duration end = simulation_->now() + duration; is_well() && simulation_->now() < end;) {
      simulation_->run_for(std::min(kStep, end - simulation_->now()));
      show_progress();
    }
    return is_well();
  }
  /// Runs the simulation until `done()`, which it checks from time to time. Fails if that takes more than `limit`.
  template <class Done>
  [[nodiscard]] bool run_until(const Done& done, tern::Duration limit, const char* what) {
    const tern::Duration end = simulation_->now() + limit;
    while (!done()) {
      if (simulation_->now() >= end) fail(what, {tern::Code::kUnavailable, "it takes too much virtual time"});
      if (!run_for(kStep)) return false;
    }
    return is_well();
  }
  /// Sets the phase that the progress line shows from now on.
  void set_phase(const char* phase) { phase_ = phase; }

  /// Prints the error message of a failed run. Returns its exit code.
  int explain_failure() const {
    if (!error_.empty()) return programs::fail("%s", error_.c_str());
    programs::fail("interrupted before the measurement was complete");
    return kInterruptedExit;
  }

  /// The parameters that every simulated benchmark reports.
  nlohmann::ordered_json params() const {
    const tern::sim::SwitchOptions& one = topology_.switches().front();
    nlohmann::ordered_json params = {
        {"cc", FLAGS_cc},     {"hosts", topology_.hosts()}, {"frame_bytes", FLAGS_frame_bytes},
        {"alpha", one.alpha}, {"ecn_bytes", nullptr},       {"host_cost", FLAGS_host_cost},
        {"seed", FLAGS_seed}, {"seconds", FLAGS_seconds}};
    if (one.ecn_threshold_bytes != SIZE_MAX) params["ecn_bytes"] = one.ecn_threshold_bytes;
    if (!FLAGS_transport_options.empty()) params["transport_options"] = FLAGS_transport_options;
    return params;
  }
  /// Adds the metrics of every simulated benchmark. Drops and retransmissions count from the first packet on.
  void add_metrics(nlohmann::ordered_json& metrics) const {
    const tern::sim::NetworkCounters& network = simulation_->counters();
    metrics["drops"] = network.dropped_buffer_full + network.dropped_receive_full + network.dropped_fault;
    metrics["retransmissions"] = sum(&tern::EndpointCounters::retransmissions);
    metrics["timeouts"] = sum(&tern::EndpointCounters::timeouts);
    metrics["marked"] = network.packets_marked;
    metrics["queue_bytes_max"] = network.queue_bytes_max;
    metrics["packets"] = network.packets_sent;
    metrics["virtual_seconds"] = seconds_of(simulation_->now());
    char hash[17];
    std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(simulation_->trace_hash()));
    metrics["trace_hash"] = hash;
    metrics["wall_seconds"] = wall_seconds();
  }

  static double seconds_of(tern::Duration duration) { return static_cast<double>(duration.count()) * 1e-9; }

 private:
  struct Machine {
    std::unique_ptr<tern::Nexus> nexus;  // outlives its endpoints
    std::vector<std::unique_ptr<tern::Rpc<tern::Sim>>> endpoints;
  };
  static constexpr tern::Duration kStep = std::chrono::microseconds(100);

  Cluster(tern::sim::Topology topology, std::unique_ptr<tern::sim::Simulation> simulation)
      : topology_(std::move(topology)), simulation_(std::move(simulation)) {}

  tern::Status boot() {
    machines_.resize(simulation_->hosts());
    tern::Status failure;
    for (uint32_t i = 0; i < simulation_->hosts(); ++i) {
      const tern::Status status = simulation_->host(i).boot([&](tern::sim::Host& host) {
        auto machine = std::make_shared<Machine>();
        auto nexus = tern::Nexus::create(host.uri(), host.nexus_options());
        if (nexus.ok()) {
          machine->nexus = std::move(*nexus);
        } else {
          failure = nexus.status();
        }
        machines_[i] = machine.get();
        return machine;
      });
      if (!status.ok()) return status;
    }
    return failure;
  }

  double wall_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin_).count();
  }
  void show_progress() {
    progress_.show(phase_, seconds_of(simulation_->now()),
                   static_cast<double>(simulation_->counters().packets_sent) / wall_seconds() / 1e6);
  }

  tern::sim::Topology topology_;
  std::vector<Machine*> machines_;  ///< the simulation owns them
  std::string error_;
  bool is_over_ = false;
  const char* phase_ = "opening sessions";
  const std::chrono::steady_clock::time_point wall_begin_ = std::chrono::steady_clock::now();
  Progress progress_;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< is destroyed first, because callbacks use the other members
};

/// Runs an Experiment in its own cluster and returns its report. On error it prints a sentence, sets `exit_code`, and
/// returns nullopt. Experiment has
///   Experiment(Cluster&, arguments...);
///   tern::Status prepare();     makes the endpoints, before virtual time passes
///   bool run();                 false: Cluster::fail() was called, or the program was interrupted
///   void add_params(nlohmann::ordered_json&) const;
///   void add_metrics(nlohmann::ordered_json&) const;
template <class Experiment, class... Arguments>
std::optional<Report> run_experiment(const char* bench, tern::sim::Topology topology, int& exit_code,
                                     const Arguments&... arguments) {
  auto made = Cluster::create(std::move(topology));
  if (!made.ok()) {
    exit_code = fail_with("no cluster", made.status());
    return std::nullopt;
  }
  Experiment experiment(**made, arguments...);
  const std::unique_ptr<Cluster> cluster = std::move(*made);  // destroyed first, because its callbacks refer to
                                                              // `experiment`
  if (tern::Status status = experiment.prepare(); !status.ok()) {
    exit_code = fail_with(std::string("no ") + bench, status);
    return std::nullopt;
  }
  if (!experiment.run()) {
    exit_code = cluster->explain_failure();
    return std::nullopt;
  }
  Report report;
  report.bench = bench;
  report.params = cluster->params();
  experiment.add_params(report.params);
  experiment.add_metrics(report.metrics);
  cluster->add_metrics(report.metrics);
  return report;
}

/// The rest of main() for a benchmark that is one experiment: runs it and prints its report. Returns the exit code.
template <class Experiment>
int print_experiment(const char* bench, tern::sim::Topology topology) {
  int exit_code = 0;
  const auto report = run_experiment<Experiment>(bench, std::move(topology), exit_code);
  return report ? print(*report) : exit_code;
}

}  // namespace programs
