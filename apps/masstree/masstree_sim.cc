// masstree_sim: the index server and its load in a simulated cluster of CX5 NICs (100 Gbit/s, one switch), with a CPU
// for each thread. It measures the latency of GETs without SCANs, with SCANs in workers, and with SCANs in the event
// loops. Server, load and index are those of masstree. One thread.
//
// The simulator charges CPU time for packets (HostCost). The program first measures the index operations and the
// hand-over to a worker on this machine, and the simulator charges the medians. So the results differ between machines,
// but are the same everywhere if the times are given (--step_ns).
#include <gflags/gflags.h>

#include <tern/environment.h>
#include <tern/sim.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../common/flags.h"
#include "../common/report.h"
#include "backend.h"
#include "cluster.h"
#include "phases.h"

DEFINE_uint64(server_threads, 4, "dispatch threads of the server");
DEFINE_uint64(workers, 4, "worker threads of the server");
DEFINE_uint64(client_hosts, 4, "hosts of clients");
DEFINE_uint64(client_threads, 4, "client threads of each host");
DEFINE_uint64(window, 2, "operations under way in each client thread");
DEFINE_uint64(keys, 1'000'000, "random keys that the index has at the beginning");
DEFINE_double(put_share, 0.05, "share of operations that write");
DEFINE_double(insert_share, 0.05, "share of PUTs that write a new key, as long as new keys are left");
DEFINE_double(scan_share, 0.01, "share of SCANs among the operations that do not write");
DEFINE_uint64(scan_keys, 128, "keys of a SCAN, 1 to 1024");
DEFINE_double(milliseconds, 20, "virtual length of each phase");
DEFINE_string(
    step_ns, "",
    "times in ns of a GET, a PUT and a SCAN in the index, of the hand-over to a worker in the event loop, and "
    "until the worker begins, as in 600,700,20000,1500,5000; default: measured");

namespace {

using ordered::Costs;
using ordered::Index;
using ordered::Phase;
using std::chrono::nanoseconds;

nanoseconds median(std::vector<nanoseconds>& times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

template <class F>
nanoseconds time_of(F f) {
  constexpr int kTimes = 5000;
  std::vector<nanoseconds> times;
  for (int i = 0; i < kTimes; i++) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    times.push_back(std::chrono::steady_clock::now() - begin);
  }
  return median(times);
}

/// Measures the filled index. Does not change its values.
void measure_index(Index& index, Costs& costs) {
  ordered::Random random(FLAGS_seed);
  const auto random_key = [&] { return ordered::key_of(FLAGS_seed, random.below(FLAGS_keys)); };
  uint64_t sum = 0;
  costs.steps[static_cast<size_t>(ordered::Step::kGet)] = time_of([&] { sum += index.get(random_key()).value_or(0); });
  costs.steps[static_cast<size_t>(ordered::Step::kPut)] = time_of([&] {
    const uint64_t key = random_key();
    sum += static_cast<uint64_t>(index.put(key, ordered::value_of(key, 1)));
  });
  costs.steps[static_cast<size_t>(ordered::Step::kScan)] =
      time_of([&] { index.scan(random_key(), FLAGS_scan_keys, [&](uint64_t, uint64_t value) { sum += value; }); });
  if (sum == 0) programs::fail("the index is empty");
}

/// Measures the library's own worker thread, which is asleep when each task arrives.
tern::Status measure_worker(Costs& costs) {
  auto workers = tern::real_environment().start_workers(1, 1);
  if (!workers.ok()) return workers.status();
  constexpr int kTimes = 500;
  std::vector<nanoseconds> hand_overs, wake_ups;
  for (int i = 0; i < kTimes; i++) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::atomic<std::chrono::steady_clock::rep> begun{0};
    const auto begin = std::chrono::steady_clock::now();
    const bool is_submitted =
        (*workers)->submit([&] { begun = std::chrono::steady_clock::now().time_since_epoch().count(); });
    if (!is_submitted) return {tern::Code::kNoMemory, "there is no memory for a task"};
    const auto end = std::chrono::steady_clock::now();
    while (begun == 0) std::this_thread::yield();
    hand_overs.push_back(end - begin);
    wake_ups.push_back(std::max(std::chrono::steady_clock::duration(begun) - end.time_since_epoch(), nanoseconds(0)));
  }
  costs.hand_over = median(hand_overs);
  costs.wake_up = median(wake_ups);
  return {};
}

/// Parses --step_ns. Returns false if it has another form.
bool parse_costs(Costs& costs) {
  std::array<nanoseconds, 5> ns;
  if (!programs::parse_times(FLAGS_step_ns, ns)) return false;
  costs = {{ns[0], ns[1], ns[2]}, ns[3], ns[4]};
  return true;
}

bool check_flags() {
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  const auto is_between = [](uint64_t value, uint64_t least, uint64_t most) { return value >= least && value <= most; };
  const uint64_t clients = FLAGS_client_hosts * FLAGS_client_threads;
  const std::pair<bool, const char*> rules[] = {
      {is_between(FLAGS_server_threads, 1, 64) && is_between(FLAGS_workers, 1, 64),
       "--server_threads and --workers must be between 1 and 64"},
      {is_between(FLAGS_client_hosts, 1, 64) && is_between(FLAGS_client_threads, 1, 64),
       "--client_hosts and --client_threads must be between 1 and 64"},
      {is_between(FLAGS_keys, clients, 1u << 26), "--keys must be between 1 for each client thread and 67108864"},
      {is_between(FLAGS_window, 1, 64), "--window must be between 1 and 64"},
      {is_share(FLAGS_put_share) && is_share(FLAGS_insert_share) && is_share(FLAGS_scan_share),
       "--put_share, --insert_share and --scan_share must be between 0 and 1"},
      {is_between(FLAGS_scan_keys, 1, ordered::kScanLimitMax), "--scan_keys must be between 1 and 1024"},
      {FLAGS_milliseconds >= 0.001 && FLAGS_milliseconds <= 10'000, "--milliseconds must be between 0.001 and 10000"}};
  for (const auto& [is_kept, sentence] : rules) {
    if (is_kept) continue;
    programs::fail("%s", sentence);
    return false;
  }
  return true;
}

int print(const ordered::Cluster<Index>& cluster, const Costs& costs) {
  programs::Report report;
  report.bench = "masstree_sim";
  report.params = {{"index", Index::kName},
                   {"cc", FLAGS_cc},
                   {"server_threads", FLAGS_server_threads},
                   {"workers", FLAGS_workers},
                   {"client_hosts", FLAGS_client_hosts},
                   {"client_threads", FLAGS_client_threads},
                   {"window", FLAGS_window},
                   {"keys", FLAGS_keys},
                   {"put_share", FLAGS_put_share},
                   {"insert_share", FLAGS_insert_share},
                   {"scan_share", FLAGS_scan_share},
                   {"scan_keys", FLAGS_scan_keys},
                   {"milliseconds", FLAGS_milliseconds},
                   {"seed", FLAGS_seed},
                   {"get_ns", costs.steps[0].count()},
                   {"put_ns", costs.steps[1].count()},
                   {"scan_ns", costs.steps[2].count()},
                   {"hand_over_ns", costs.hand_over.count()},
                   {"wake_up_ns", costs.wake_up.count()}};
  if (!FLAGS_transport_options.empty()) report.params["transport_options"] = FLAGS_transport_options;
  for (const auto& one : ordered::kMeasured) {
    const ordered::PhaseReport phase = cluster.report(one.phase);
    if (phase.gets.count() == 0) continue;
    report.params["phase"] = one.name;
    report.metrics = nlohmann::ordered_json::object();
    ordered::add_metrics(phase, report.metrics);
    if (const int failure = programs::print(report); failure != 0) return failure;
  }
  report.params["phase"] = "summary";
  report.metrics = nlohmann::ordered_json::object();
  const ordered::PhaseReport plain = cluster.report(Phase::kPlain);
  ordered::add_comparison(plain, cluster.report(Phase::kScansInWorkers), "worker", report.metrics);
  ordered::add_comparison(plain, cluster.report(Phase::kScansInLoops), "dispatch", report.metrics);
  report.metrics["answers_checked"] = cluster.sum(&ordered::Load::checked);
  report.metrics["keys_read_back"] = cluster.sum(&ordered::Load::read_back);
  report.metrics["trace_hash"] = cluster.trace_hash();
  return programs::print(report);
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("transport", "sim", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(argc, argv,
                             "Latency of GETs beside SCANs in a simulated CX5 cluster. Example: masstree_sim --json "
                             "--step_ns=600,700,20000,1500,5000",
                             programs::Scope::kSimulated))
    return 1;
  if (!programs::check_flags_in_simulation({"cpus", "drop", "seconds"}) || !check_flags()) return 1;
  Costs costs = {};
  if (!FLAGS_step_ns.empty() && !parse_costs(costs)) {
    return programs::fail("--step_ns must be five times in ns, at most 1000000000, as in 600,700,20000,1500,5000");
  }
  try {
    // The load's own inserts stay far below the server's bound.
    Index index(FLAGS_keys * 2);
    if (!ordered::fill(index, FLAGS_keys, FLAGS_seed)) throw std::bad_alloc();
    if (FLAGS_step_ns.empty()) {
      measure_index(index, costs);
      const tern::Status status = measure_worker(costs);
      if (!status.ok()) {
        return programs::fail_with("cannot measure the hand-over to a worker (--step_ns can give its times)", status);
      }
    }
    ordered::ClusterOptions options;
    options.server_threads = FLAGS_server_threads;
    options.workers = FLAGS_workers;
    options.client_hosts = FLAGS_client_hosts;
    options.client_threads = FLAGS_client_threads;
    options.keys = FLAGS_keys;
    options.load.window = FLAGS_window;
    options.load.put_share = FLAGS_put_share;
    options.load.insert_share = FLAGS_insert_share;
    options.load.scan_share = FLAGS_scan_share;
    options.load.scan_keys = static_cast<uint32_t>(FLAGS_scan_keys);
    options.load.seed = FLAGS_seed;
    options.costs = costs;
    options.rpc = programs::rpc_options(0);
    options.set_transport_options = [](tern::Sim::Options& of_endpoint) {
      programs::apply_transport_flags(of_endpoint);
    };
    ordered::Cluster<Index> cluster(index, options);
    const std::string problem = cluster.run({Phase::kPlain, Phase::kScansInWorkers, Phase::kScansInLoops},
                                            nanoseconds(static_cast<int64_t>(FLAGS_milliseconds * 1e6)));
    if (!problem.empty()) return programs::fail("%s", problem.c_str());
    return print(cluster, costs);
  } catch (const std::bad_alloc&) {
    return programs::fail("there is no memory for that many keys; try fewer --keys");
  }
}
