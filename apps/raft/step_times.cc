#include "step_times.h"

#include <tern/transport/shm.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "../common/flags.h"
#include "../common/sides.h"
#include "load.h"
#include "no_storage.h"
#include "replica.h"

namespace replicated {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Samples = std::array<std::vector<std::chrono::nanoseconds>, kCharges>;

const tern::RpcOptions kRpcOptions = {.wait = tern::Wait::kPoll, .huge_pages = false};
/// The timeout is long because two threads poll, so on a busy machine the threads of a Nexus wait long for a CPU.
const tern::NexusOptions kNexusOptions = {.liveness_timeout = std::chrono::minutes(1)};

/// A cluster over shm. Its first replica, which is measured, has a thread with its own CPU. All other replicas and the
/// load run in the caller's thread.
class Measurement {
 public:
  Measurement(size_t replicas, uint64_t operations) : operations_(operations), nodes_(replicas), storages_(replicas) {
    for (size_t i = 0; i < replicas; i++) members_.emplace_back(i + 1, address(i));
  }
  /// Returns false on an error; the error message has been printed.
  bool run(const std::vector<int>& cpus) {
    programs::pin_to(cpus[0]);
    std::string problem;  // the first replica's error, if it does not start
    std::atomic<bool> is_over = false, has_ended = false;
    std::vector<std::thread> threads;
    const bool has_thread = programs::add_thread(threads, cpus[1], [&] {
      problem = open(0, [this](Step step, bool begins) { on_step(step, begins); });
      while (problem.empty() && !is_over) (void)nodes_[0].rpc->run_event_loop_once();
      nodes_[0].rpc.reset();
      has_ended = true;
    });
    if (!has_thread) return programs::fail("%s", programs::kNoThread) == 0;
    std::string others;
    for (size_t i = 1; i < nodes_.size() && others.empty(); i++) others = open(i, nullptr);
    if (others.empty()) others = run_load(has_ended);
    is_over = true;
    threads.front().join();
    if (others.empty()) others = problem;
    return others.empty() || programs::fail("the steps are not measured: %s", others.c_str()) == 0;
  }
  const Samples& samples() const { return samples_; }

 private:
  /// Addresses of this machine and this process only.
  static std::string address(size_t i) {
    const auto run = static_cast<uint32_t>(getpid());
    return "tern://127." + std::to_string(run >> 16 & 255) + "." + std::to_string(run >> 8 & 255) + "." +
           std::to_string(run & 255) + ":" + std::to_string(31749 + i);
  }
  std::string open(size_t i, std::function<void(Step, bool)> on_step) {
    ReplicaOptions options;
    options.port.cluster = 1;
    options.port.id = i + 1;
    options.port.address = members_[i].second;
    options.port.election_timeout = milliseconds(100);
    options.port.heartbeat = milliseconds(10);
    options.port.on_step = std::move(on_step);
    options.replicas = members_;
    options.snapshot_entries = 1u << 30;
    return nodes_[i].open(members_[i].second, kNexusOptions, {}, kRpcOptions, storages_[i], options);
  }
  std::string run_load(const std::atomic<bool>& has_ended) {
    auto nexus = tern::Nexus::create("tern://127.0.0.1:0", kNexusOptions);
    if (!nexus.ok()) return std::string(nexus.status().message());
    LoadOptions options;
    options.client.cluster = 1;
    for (const auto& member : members_) options.client.replicas.push_back(member.second);
    options.operations = operations_;
    options.has_echoes = true;
    options.read_back_max = 0;
    options.length = std::chrono::seconds(30);
    std::unique_ptr<Load> load;  // outlives the endpoint
    auto rpc = tern::Rpc<tern::Shm>::create(**nexus, {}, kRpcOptions);
    if (!rpc.ok()) return std::string(rpc.status().message());
    load = std::make_unique<Load>(**rpc, tern::real_environment(), options);
    load->begin();
    const auto patience = Clock::now() + std::chrono::seconds(60);
    while (!load->is_done() && !has_ended) {
      is_running_.store(load->is_running(), std::memory_order_relaxed);
      (void)(*rpc)->run_event_loop_once();
      for (size_t i = 1; i < nodes_.size(); i++) (void)nodes_[i].rpc->run_event_loop_once();
      if (Clock::now() > patience) return "the load does not end";
    }
    is_running_ = false;
    const std::string problem = load->problem();
    rpc->reset();
    return problem;
  }
  /// Called in the first replica's thread.
  void on_step(Step step, bool begins) {
    if (!is_running_.load(std::memory_order_relaxed)) return;
    const uint64_t applied = nodes_[0].replica->state().last_applied;
    if (begins) {
      applied_ = applied;
      begun_ = Clock::now();
    } else {
      samples_[charge_of(step, applied != applied_)].push_back(Clock::now() - begun_);
    }
  }

  const uint64_t operations_;
  std::vector<std::pair<uint64_t, std::string>> members_;
  std::vector<Node<tern::Shm>> nodes_;
  std::vector<NoStorage> storages_;
  std::atomic<bool> is_running_ = false;
  // These members belong to the first replica's thread until it has ended.
  Clock::time_point begun_;
  uint64_t applied_ = 0;
  Samples samples_;
};

std::optional<StepTimes> measure_once(const std::vector<int>& cpus, size_t replicas, uint64_t operations) {
  Samples all;
  // An election determines whether the first replica leads, so the measurement is repeated until it has led and has
  // followed.
  for (int tries = 0; tries < 40 && (all[kCommitCharge].empty() || all[kReceiveCharge].size() < operations); tries++) {
    Measurement measurement(replicas, operations);
    if (!measurement.run(cpus)) return std::nullopt;
    for (size_t i = 0; i < kCharges; i++) {
      all[i].insert(all[i].end(), measurement.samples()[i].begin(), measurement.samples()[i].end());
    }
  }
  StepTimes times;
  for (size_t i = 0; i < kCharges; i++) {
    if (all[i].empty()) {
      programs::fail("the steps are not measured: no replica led and followed in 40 elections");
      return std::nullopt;
    }
    const auto middle = all[i].begin() + static_cast<ptrdiff_t>(all[i].size() / 2);
    std::nth_element(all[i].begin(), middle, all[i].end());
    times[i] = *middle;
  }
  for (size_t i = 0; i < kEchoCharge; i++) times[i] = std::max(times[i] - times[kEchoCharge], {});
  return times;
}

}  // namespace

std::optional<StepTimes> measure_steps(size_t replicas, uint64_t operations) {
  constexpr int kRounds = 5;
  const std::vector<int> cpus = programs::side_cpus();
  if (cpus.size() < 2) {
    if (!cpus.empty())
      programs::fail("the steps can be measured on two CPUs only, and this process has one: give --step_ns");
    return std::nullopt;
  }
  std::optional<StepTimes> least;
  for (int round = 0; round < kRounds; round++) {
    const auto times = measure_once(cpus, replicas, operations);
    if (!times) return std::nullopt;
    if (!least) least = times;
    for (size_t i = 0; i < kCharges; i++) (*least)[i] = std::min((*least)[i], (*times)[i]);
  }
  return least;
}

}  // namespace replicated
