// kv: an in-memory key-value server and its load generator, the second example after hello.
// Read the files in this order: protocol.h (the messages), store.h (the values), server.h (partitions with a queue and
// an endpoint), workload.h (the values that are written and checked), load.h and client.h (the load generator), this
// file.
// The main thread checks the flags, starts the two sides as --role and --processes select, and prints the report.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../common/any_rpc.h"
#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "client.h"
#include "load.h"
#include "server.h"

DEFINE_uint64(server_threads, 1, "server: partitions, each with a thread and an endpoint of its own");
DEFINE_string(store, "",
              "server: directory that keeps the values after the server ends or is killed, but not after a crash of "
              "the machine; default: shared memory that ends with it");
DEFINE_uint64(memory_mb, 256, "server: MiB for all values, claimed at once; beyond it PUTs are refused");
DEFINE_uint64(queue_max, 1024,
              "server: requests that may wait in a partition; beyond it, or if its deadline would pass while it waits, "
              "a request is refused");
DEFINE_uint64(client_threads, 1, "client: threads, each with an endpoint of its own");
DEFINE_uint64(client, 0, "client: which of --clients processes this one is, from 0; each writes keys of its own");
DEFINE_uint64(clients, 1, "client: processes that use the server at the same time");
DEFINE_uint64(keys, 10000,
              "client: number of keys; all clients of a server must have the same --keys and --value_bytes");
DEFINE_double(get_share, 0.9, "client: share of operations that read; the others are PUTs");
DEFINE_double(multi_get_share, 0.1, "client: share of reading operations that are multi-gets");
DEFINE_uint64(multi_get_keys, 16, "client: keys of a multi-get, 1 to 64");
DEFINE_double(zipf, 0,
              "client: exponent of the keys' popularity by Zipf's law, 0 (all equally popular) to less than 1");
DEFINE_string(value_bytes, "32..1024", "client: N, MIN..MAX, or etc (sizes of Facebook's ETC pool)");
DEFINE_uint64(window, 16, "client: operations under way in each thread");
DEFINE_double(deadline_us, 0, "client: deadline of each operation, after which it is tried again; 0: none");
DEFINE_double(reconnect_seconds, 10, "client: time for which it tries to reach a server that has gone");

namespace {

using std::chrono::milliseconds;

tern::Duration seconds(double count) { return tern::Duration(static_cast<int64_t>(count * 1e9)); }

/// Checks this program's own flags. On error it prints a sentence and returns nullopt.
std::optional<kv::LoadOptions> load_options() {
  const auto sizes = kv::ValueSizes::parse(FLAGS_value_bytes);
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  const auto is_between = [](uint64_t value, uint64_t least, uint64_t most) { return value >= least && value <= most; };
  const std::pair<bool, const char*> rules[] = {
      {is_between(FLAGS_server_threads, 1, 64) && is_between(FLAGS_client_threads, 1, 64),
       "--server_threads and --client_threads must be between 1 and 64"},
      {is_between(FLAGS_memory_mb, FLAGS_server_threads, 1u << 20),
       "--memory_mb must be between 1 for each of --server_threads and 1048576"},
      {is_between(FLAGS_queue_max, 1, 1u << 20), "--queue_max must be between 1 and 1048576"},
      {is_between(FLAGS_clients, 1, 1024) && FLAGS_client < FLAGS_clients,
       "--clients must be between 1 and 1024, and --client less than --clients"},
      {is_between(FLAGS_keys, FLAGS_clients * FLAGS_client_threads, 1u << 26),
       "--keys must be between 1 for each client thread and 67108864"},
      {is_share(FLAGS_get_share) && is_share(FLAGS_multi_get_share),
       "--get_share and --multi_get_share must be between 0 and 1"},
      {is_between(FLAGS_multi_get_keys, 1, kv::kMultiGetMax), "--multi_get_keys must be between 1 and 64"},
      {FLAGS_zipf >= 0 && FLAGS_zipf < 1, "--zipf must be at least 0 and less than 1"},
      {sizes.has_value(), "--value_bytes must be N, MIN..MAX with both between 1 and 65536, or etc"},
      {is_between(FLAGS_window, 1, 4096), "--window must be between 1 and 4096"},
      {FLAGS_deadline_us >= 0 && FLAGS_deadline_us <= 1e9, "--deadline_us must be between 0 and 1000000000"},
      {FLAGS_reconnect_seconds >= 0 && FLAGS_reconnect_seconds <= 1e6,
       "--reconnect_seconds must be between 0 and 1000000"}};
  for (const auto& [is_kept, sentence] : rules) {
    if (is_kept) continue;
    programs::fail("%s", sentence);
    return std::nullopt;
  }
  kv::LoadOptions options;
  options.keys = FLAGS_keys;
  options.writers = FLAGS_clients * FLAGS_client_threads;
  options.get_share = FLAGS_get_share;
  options.multi_get_share = FLAGS_multi_get_share;
  options.multi_get_keys = FLAGS_multi_get_keys;
  options.skew = FLAGS_zipf;
  options.sizes = *sizes;
  options.window = FLAGS_window;
  if (FLAGS_deadline_us > 0) options.deadline = seconds(FLAGS_deadline_us / 1e6);
  options.reconnect = seconds(FLAGS_reconnect_seconds);
  options.seed = FLAGS_seed;
  return options;
}

/// The client threads of this process, for all stages. Main thread.
class Load {
 public:
  explicit Load(const kv::LoadOptions& options) : options_(options) {}
  ~Load() { stop(); }

  /// Returns when all stages are complete, or have failed, or the program was interrupted.
  void run(tern::Nexus& nexus, const std::vector<int>& cpus) {
    if (!add_clients()) return;
    for (size_t i = 0; i < FLAGS_client_threads; ++i) {
      const int cpu = cpus[(FLAGS_server_threads + i) % cpus.size()];
      const bool has_thread = programs::add_thread(threads_, cpu, [this, &nexus, i] {
        run_client(nexus, i);
        ++ended_;
      });
      if (!has_thread) control_.fail(programs::kNoThread);
    }
    wait([&] { return control_.loaded == threads_.size(); });
    control_.stage = kv::Stage::kRunning;
    const auto end = kv::Clock::now() + seconds(FLAGS_seconds);
    wait([&] { return kv::Clock::now() >= end; });
    control_.stage = kv::Stage::kReadingBack;
    wait([&] { return ended_ == threads_.size(); });
    stop();
  }
  /// Must be called after run(). Returns 0 if the run succeeded. Otherwise prints a sentence and returns the exit code.
  int explain_failure() {
    const auto is_done = [](const auto& client) { return client->is_done(); };
    const bool is_whole = !control_.has_failed && std::all_of(clients_.begin(), clients_.end(), is_done);
    // An error after an interruption is not explained, because the interruption has often ended the server, too.
    if (programs::interrupted && !is_whole) {
      programs::fail("interrupted before everything was read back");
      return programs::kInterruptedExit;
    }
    if (control_.has_failed) return programs::fail("%s", control_.problem().c_str());
    const auto has_results = [](const auto& client) { return client->report().has_results(); };
    if (std::any_of(clients_.begin(), clients_.end(), has_results)) return 0;
    return programs::fail("nothing to report: no operation was answered during --seconds");
  }
  const std::vector<std::unique_ptr<kv::Client>>& clients() const { return clients_; }

 private:
  /// Each client keeps 16 bytes for each key. Returns false if there is no memory for them.
  bool add_clients() {
    try {
      for (size_t i = 0; i < FLAGS_client_threads; ++i) {
        clients_.push_back(std::make_unique<kv::Client>(options_, control_, FLAGS_client * FLAGS_client_threads + i));
      }
      return true;
    } catch (const std::bad_alloc&) {
      control_.fail(
          "there is no memory for that many keys in each client thread; try fewer --keys or --client_threads");
      return false;
    }
  }
  template <class Done>
  void wait(const Done& done) {
    while (!done() && !control_.has_failed && !programs::interrupted) std::this_thread::sleep_for(milliseconds(1));
  }
  void run_client(tern::Nexus& nexus, size_t i) {
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(static_cast<uint16_t>(i)));
    if (!rpc.ok()) return control_.fail("no endpoint: " + std::string(rpc.status().message()));
    const auto stop_when_told = [this, &endpoint = (*rpc)->endpoint()](const auto& self) -> void {
      if (is_stopped_ || !endpoint.after(milliseconds(10), [self] { self(self); }).ok()) endpoint.stop();
    };
    stop_when_told(stop_when_told);
    clients_[i]->begin((*rpc)->endpoint());
    const tern::Status status = (*rpc)->run_event_loop();
    if (!status.ok()) control_.fail("an event loop ended: " + std::string(status.message()));
  }
  void stop() {
    is_stopped_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const kv::LoadOptions& options_;
  kv::LoadControl control_;
  std::vector<std::unique_ptr<kv::Client>> clients_;
  std::vector<std::thread> threads_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<size_t> ended_{0};
};

programs::Report report_of(const std::vector<std::unique_ptr<kv::Client>>& clients) {
  programs::Report report;
  report.bench = "kv";
  report.params = programs::common_params();
  if (FLAGS_role != "client") {  // else the server's own flags decide
    report.params.update(
        {{"server_threads", FLAGS_server_threads}, {"memory_mb", FLAGS_memory_mb}, {"queue_max", FLAGS_queue_max}});
  }
  report.params.update({{"client_threads", FLAGS_client_threads},
                        {"client", FLAGS_client},
                        {"clients", FLAGS_clients},
                        {"keys", FLAGS_keys},
                        {"get_share", FLAGS_get_share},
                        {"multi_get_share", FLAGS_multi_get_share},
                        {"multi_get_keys", FLAGS_multi_get_keys},
                        {"zipf", FLAGS_zipf},
                        {"value_bytes", FLAGS_value_bytes},
                        {"window", FLAGS_window},
                        {"deadline_us", FLAGS_deadline_us},
                        {"seconds", FLAGS_seconds}});
  auto& metrics = report.metrics;
  metrics["rate_mrps"] = 0;
  double rate_mrps = 0;
  const std::pair<kv::RequestType, std::string> types[] = {
      {kv::kGet, "get"}, {kv::kPut, "put"}, {kv::kMultiGet, "multi_get"}};
  for (const auto& [type, name] : types) {
    double type_mrps = 0;
    std::vector<uint32_t> ns;
    for (const auto& client : clients) {
      const auto& latencies = client->report().by_type[type];
      ns.insert(ns.end(), latencies.ns.begin(), latencies.ns.end());
      type_mrps += static_cast<double>(latencies.count) / client->report().seconds / 1e6;
    }
    metrics[name + "_mrps"] = type_mrps;
    rate_mrps += type_mrps;
    if (ns.empty()) continue;
    std::sort(ns.begin(), ns.end());
    for (const auto& [share, suffix] : {std::pair(0.5, "_p50_us"), {0.99, "_p99_us"}, {0.999, "_p999_us"}}) {
      metrics[name + suffix] = ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))] / 1e3;
    }
  }
  metrics["rate_mrps"] = rate_mrps;
  const auto add = [&](const char* name, uint64_t kv::ClientReport::*count) {
    uint64_t sum = 0;
    for (const auto& client : clients) sum += client->report().*count;
    metrics[name] = sum;
  };
  add("values_checked", &kv::ClientReport::values_checked);
  add("keys_read_back", &kv::ClientReport::keys_read_back);
  add("keys_not_stored", &kv::ClientReport::keys_not_stored);
  add("refused_overloaded", &kv::ClientReport::refused_overloaded);
  add("refused_full", &kv::ClientReport::refused_full);
  add("expired", &kv::ClientReport::expired);
  add("lost", &kv::ClientReport::lost);
  add("reconnects", &kv::ClientReport::reconnects);
  return report;
}

/// Ends the server, and prints how many requests it refused.
int end_server(kv::Server& server) {
  server.stop();
  if (!server.problem().empty()) return programs::fail("the server has ended: %s", server.problem().c_str());
  const kv::ServerCounts counts = server.counts();
  if (counts.refused_overloaded + counts.refused_full > 0) {
    std::fprintf(stderr, "kv: %ju requests served; refused: %ju overloaded, %ju store full\n", counts.served,
                 counts.refused_overloaded, counts.refused_full);
  }
  return 0;
}

int run(int argc, char** argv, const std::vector<int>& cpus, kv::LoadOptions load_options) {
  programs::catch_interrupts();
  std::signal(SIGXFSZ, SIG_IGN);              // writes beyond the limit of a file's size (ulimit -f) then fail with an
                                              // error
  std::unique_ptr<tern::Nexus> server_nexus;  // outlives the endpoints of the server
  kv::Server server({FLAGS_store, FLAGS_server_threads, FLAGS_memory_mb << 20, FLAGS_queue_max});
  programs::ServerProcess server_process;
  load_options.server = programs::server_uri();
  if (FLAGS_processes) {
    if (!server_process.start(argc, argv)) return programs::interrupted ? programs::kInterruptedExit : 1;
    load_options.server = server_process.uri();
  } else if (FLAGS_role != "client") {
    auto nexus = tern::Nexus::create(load_options.server, programs::nexus_options());
    if (!nexus.ok()) return programs::fail_with("no Nexus at " + load_options.server, nexus.status());
    server_nexus = std::move(*nexus);
    const std::string problem = server.start(*server_nexus, cpus, programs::rpc_options(0));
    if (!problem.empty()) return programs::fail("%s", problem.c_str());
    load_options.server = server_nexus->uri();
  }
  if (FLAGS_role == "server") {
    programs::announce_server(load_options.server);
    while (!programs::interrupted && !server.has_ended()) std::this_thread::sleep_for(milliseconds(10));
    return end_server(server);
  }

  const std::string listen = programs::client_listen_uri(load_options.server);
  auto nexus = tern::Nexus::create(listen, programs::nexus_options());
  if (!nexus.ok()) return programs::fail_with("no Nexus at " + listen, nexus.status());
  Load load(load_options);
  load.run(**nexus, cpus);
  if (const int failure = load.explain_failure(); failure != 0) return failure;
  if (const std::string problem = server_process.stop(); !problem.empty()) {
    return programs::fail("%s", problem.c_str());
  }
  if (const int failure = end_server(server); failure != 0) return failure;
  return programs::print(report_of(load.clients()));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);  // the words of the command line, for a server process
  if (!programs::parse_flags(
          argc, argv,
          "A key-value server and a load generator that checks each value it reads. Example: kv --transport=shm "
          "--json\n"
          "A run loads --keys, measures for --seconds, and reads all that it has written once more. What it reads must "
          "be\nintact, not older than what was acknowledged, and not newer than what was written; else it ends with a "
          "sentence"))
    return 1;
  const std::vector<int> cpus = programs::side_cpus();
  if (cpus.empty()) return 1;
  const auto options = load_options();
  if (!options || !programs::check_page_of_sides()) return 1;
  return run(static_cast<int>(words.size()), words.data(), cpus, *options);
}
