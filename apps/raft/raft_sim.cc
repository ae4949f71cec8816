// raft_sim: the latency of PUTs in a simulated CX5 cluster (100 Gbit/s, one switch), compared with an RPC without
// replication between the same two hosts. The replicas are those of raft_server. One thread.
//
// The simulator charges for packets, with handlers as short as that of an echo (HostCost). A replica's own steps and
// libraft take longer than an echo's handler. The program first measures that difference on this machine, in a run in
// which the steps take no virtual time; a second run charges the medians. So the results differ a little between
// machines, but are the same everywhere if the times are given.
#include <gflags/gflags.h>

#include <tern/sim.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../common/flags.h"
#include "../common/report.h"
#include "heap.h"
#include "load.h"
#include "no_storage.h"
#include "replica.h"
#include "step_times.h"

DEFINE_uint64(replicas, 3, "replicas, three to seven");
DEFINE_uint64(clients, 1, "clients, each with one operation at a time");
DEFINE_uint64(batch_max, 64, "commands that the leader writes to its log at a time");
DEFINE_uint64(operations, 20'000, "PUTs");
DEFINE_string(
    step_ns, "",
    "times in ns of a client's request at the leader, a message received, the answer that commits, another answer, and "
    "the work afterwards, as in 900,500,600,300,400; default: measured");

namespace {

using replicated::StepTimes;
using std::chrono::milliseconds;
using tern::sim::Host;
using Node = replicated::Node<tern::Sim>;

struct ClientProgram {
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<replicated::Load> load;
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc;
};

class Run {
 public:
  explicit Run(const StepTimes& charged) : charged_(charged) {
    const auto hosts = static_cast<uint32_t>(FLAGS_replicas) + 1;
    // The links and the switch are those of Topology::cx5_pair().
    const auto pair = tern::sim::Topology::cx5_pair();
    const auto topology = tern::sim::Topology::star(hosts, pair.links().front().options, pair.switches().front());
    simulation_ = std::move(*tern::sim::Simulation::create(topology, {.seed = FLAGS_seed}));
    storages_.resize(FLAGS_replicas);
    for (uint32_t i = 0; i < FLAGS_replicas; i++) boot(i);
    boot_client();
  }
  /// Returns false if the run failed; the error message has been printed.
  bool run() {
    const bool is_done = simulation_->run_until([this] { return client_->load->is_done(); }, std::chrono::seconds(60));
    const std::string problem = client_->load->problem();
    if (is_done && problem.empty()) return true;
    programs::fail("%s", problem.empty() ? "the load does not end" : problem.c_str());
    return false;
  }
  replicated::LoadReport report() const { return client_->load->report(); }
  const programs::Latencies* leader_latencies() {
    for (uint32_t i = 0; i < FLAGS_replicas; i++) {
      auto* node = static_cast<Node*>(simulation_->host(i).program());
      if (node != nullptr && node->replica->is_ready()) return &node->replica->served();
    }
    return nullptr;
  }

 private:
  static tern::Sim::Options transport_options(Host& host) {
    tern::Sim::Options options = host.transport_options();
    programs::apply_transport_flags(options);
    return options;
  }
  static tern::RpcOptions rpc_options() {
    tern::RpcOptions options = programs::rpc_options(0);
    options.huge_pages = false;
    return options;
  }
  void boot(uint32_t i) {
    (void)simulation_->host(i).boot([this, i](Host& host) {
      replicated::ReplicaOptions options;
      options.port.cluster = 1;
      options.port.id = i + 1;
      options.port.address = host.uri();
      options.port.election_timeout = milliseconds(10);
      options.port.heartbeat = milliseconds(1);
      options.batch_max = static_cast<unsigned>(FLAGS_batch_max);
      options.is_measured = true;
      options.snapshot_entries = 1u << 30;  // because the paper's logs are not shortened
      options.port.on_step = [this, &host](replicated::Step step, bool begins) { on_step(host, step, begins); };
      for (uint32_t j = 0; j < FLAGS_replicas; j++) options.replicas.emplace_back(j + 1, simulation_->host(j).uri());
      auto node = std::make_shared<Node>();
      const std::string problem =
          node->open(host.uri(), host.nexus_options(), transport_options(host), rpc_options(), storages_[i], options);
      if (!problem.empty()) programs::fail("%s", problem.c_str());
      (void)host.run(*node->rpc);
      return node;
    });
  }
  void boot_client() {
    (void)simulation_->host(static_cast<uint32_t>(FLAGS_replicas)).boot([this](Host& host) {
      auto program = std::make_shared<ClientProgram>();
      program->nexus = std::move(*tern::Nexus::create(host.uri(), host.nexus_options()));
      program->rpc = std::move(*tern::Rpc<tern::Sim>::create(*program->nexus, transport_options(host), rpc_options()));
      replicated::LoadOptions options;
      options.client.cluster = 1;
      for (uint32_t i = 0; i < FLAGS_replicas; i++) options.client.replicas.push_back(simulation_->host(i).uri());
      options.clients = FLAGS_clients;
      options.operations = FLAGS_operations;
      options.has_echoes = FLAGS_clients == 1;
      options.length = std::chrono::seconds(50);
      program->load = std::make_unique<replicated::Load>(*program->rpc, *host.nexus_options().environment, options);
      (void)host.run(*program->rpc);
      client_ = program.get();
      (void)program->rpc->after(milliseconds(100), [load = program->load.get()] { load->begin(); });
      return program;
    });
  }
  void on_step(Host& host, replicated::Step step, bool begins) {
    if (client_ == nullptr || !client_->load->is_running()) return;
    const uint64_t applied = static_cast<Node*>(host.program())->replica->state().last_applied;
    if (begins) {
      applied_ = applied;
    } else if (step != replicated::Step::kEcho) {
      host.spend(charged_[replicated::charge_of(step, applied != applied_)]);
    }
  }

  const StepTimes charged_;
  uint64_t applied_ = 0;  ///< last applied index when the current step began
  std::vector<replicated::NoStorage> storages_;
  ClientProgram* client_ = nullptr;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< is destroyed first, because its programs use the other
                                                       ///< members
};

}  // namespace

int main(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("transport", "sim", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(
          argc, argv,
          "Latency of PUTs of 16 B keys and 64 B values in a simulated CX5 cluster. Example: raft_sim "
          "--json --step_ns=900,500,600,300,400",
          programs::Scope::kSimulated) ||
      !programs::check_flags_in_simulation({"drop", "seconds"}))
    return 1;
  if (!FLAGS_step_ns.empty() && programs::is_given("cpus")) {
    return programs::fail("--cpus has no effect with --step_ns, because then no steps are measured");
  }
  if (FLAGS_replicas < 3 || FLAGS_replicas > replicated::kReplicasMax || FLAGS_clients < 1 || FLAGS_clients > 1024 ||
      FLAGS_batch_max < 1 || FLAGS_batch_max > 1024 || FLAGS_operations < 1) {
    return programs::fail(
        "--replicas must be between 3 and 7, --clients between 1 and 1024, --batch_max between 1 and 1024, "
        "--operations at least 1");
  }
  replicated::use_own_heap();
  StepTimes times = {};
  if (FLAGS_step_ns.empty()) {
    const auto measured = replicated::measure_steps(FLAGS_replicas, FLAGS_operations);
    if (!measured) return 1;
    times = *measured;
  } else if (!programs::parse_times(FLAGS_step_ns, std::span(times).first<replicated::kEchoCharge>())) {
    return programs::fail("--step_ns must be five times in ns, at most 1000000000, as in 900,500,600,300,400");
  }
  Run run(times);
  if (!run.run()) return 1;
  const auto load = run.report();
  const programs::Latencies* leader = run.leader_latencies();
  programs::Report report;
  report.bench = "raft_sim";
  report.params = {{"cc", FLAGS_cc},
                   {"replicas", FLAGS_replicas},
                   {"clients", FLAGS_clients},
                   {"batch_max", FLAGS_batch_max},
                   {"execute_ns", times[replicated::kExecuteCharge].count()},
                   {"receive_ns", times[replicated::kReceiveCharge].count()},
                   {"commit_ns", times[replicated::kCommitCharge].count()},
                   {"answer_ns", times[replicated::kAnswerCharge].count()},
                   {"settle_ns", times[replicated::kSettleCharge].count()},
                   {"seed", FLAGS_seed}};
  if (!FLAGS_transport_options.empty()) report.params["transport_options"] = FLAGS_transport_options;
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  report.metrics["put_krps"] = static_cast<double>(load.puts.count()) / load.seconds / 1e3;
  report.metrics["put_p50_us"] = us(load.puts.quantile_ns(0.5));
  report.metrics["put_p99_us"] = us(load.puts.quantile_ns(0.99));
  if (leader != nullptr) {
    // The leader reads the clock when it answers. The time of that step is charged at its end.
    const auto last_step = static_cast<uint64_t>(times[replicated::kCommitCharge].count());
    report.metrics["leader_p50_us"] = us(leader->quantile_ns(0.5) + last_step);
    report.metrics["leader_p99_us"] = us(leader->quantile_ns(0.99) + last_step);
  }
  if (load.echoes.count() > 0) {
    report.metrics["echo_p50_us"] = us(load.echoes.quantile_ns(0.5));
    report.metrics["echo_p99_us"] = us(load.echoes.quantile_ns(0.99));
    report.metrics["put_per_echo_p50"] =
        static_cast<double>(load.puts.quantile_ns(0.5)) / static_cast<double>(load.echoes.quantile_ns(0.5));
  }
  return programs::print(report);
}
