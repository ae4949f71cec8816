// masstree: an ordered index behind RPCs, and a load that checks every answer (paper section 7.2). GETs and PUTs run in
// the server's event loops; SCANs run in workers or, for comparison, in the event loops.
// Read the files in this order: ordered_index.h, protocol.h, server.h, keys.h and model.h (the check of reads), load.h,
// this file.
// The main thread checks the flags, starts the two sides, runs the phases of the load, and prints the report.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../common/any_rpc.h"
#include "../common/endpoint_threads.h"
#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "backend.h"
#include "load.h"
#include "phases.h"
#include "server.h"

DEFINE_uint64(server_threads, 1, "server: dispatch threads, each with an endpoint of its own");
DEFINE_uint64(workers, 1, "server: worker threads");
DEFINE_uint64(keys, 1'000'000, "server: random keys that the index has at the beginning");
DEFINE_uint64(inserts_max, 125'000, "server: keys that clients may add; beyond that number their PUTs are refused");
DEFINE_uint64(client_threads, 1, "client: threads, each with an endpoint of its own");
DEFINE_uint64(window, 16, "client: operations under way in each thread");
DEFINE_double(put_share, 0.05,
              "client: share of operations that write; with 0, several clients may use a server at once");
DEFINE_double(insert_share, 0.05, "client: share of PUTs that write a new key, as long as new keys are left");
DEFINE_double(scan_share, 0.01, "client: share of SCANs among the operations that do not write");
DEFINE_uint64(scan_keys, 128, "client: keys of a SCAN, 1 to 1024");
DEFINE_string(
    phases, "plain,worker,dispatch,hop_worker,hop_dispatch",
    "client: the phases to measure, in turn: plain (GETs and PUTs), worker (and SCANs in workers), dispatch (and "
    "SCANs in event loops), hop_worker and hop_dispatch (requests without work, one at a time)");
DEFINE_uint64(rounds, 3,
              "client: each phase of --seconds is split into this number of parts, in turn with the other phases");

namespace {

using ordered::Index;
using ordered::Phase;
using std::chrono::milliseconds;

// The threads poll during a measurement, so on a machine with few CPUs the Nexuses' own threads run rarely.
constexpr auto kLivenessTimeout = std::chrono::seconds(2);

/// Checks the flags of this program. On error it prints a sentence and returns false.
bool check_flags() {
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  const auto is_between = [](uint64_t value, uint64_t least, uint64_t most) { return value >= least && value <= most; };
  const std::pair<bool, const char*> rules[] = {
      {is_between(FLAGS_server_threads, 1, 64) && is_between(FLAGS_client_threads, 1, 64),
       "--server_threads and --client_threads must be between 1 and 64"},
      {is_between(FLAGS_workers, 1, 64), "--workers must be between 1 and 64"},
      {is_between(FLAGS_keys, FLAGS_client_threads, 1u << 26),
       "--keys must be between 1 for each client thread and 67108864"},
      {is_between(FLAGS_inserts_max, 0, 1u << 26), "--inserts_max must be at most 67108864"},
      {is_between(FLAGS_window, 1, 4096), "--window must be between 1 and 4096"},
      {is_share(FLAGS_put_share) && is_share(FLAGS_insert_share) && is_share(FLAGS_scan_share),
       "--put_share, --insert_share and --scan_share must be between 0 and 1"},
      {is_between(FLAGS_scan_keys, 1, ordered::kScanLimitMax), "--scan_keys must be between 1 and 1024"},
      {is_between(FLAGS_rounds, 1, 1000), "--rounds must be between 1 and 1000"},
      {ordered::parse_phases(FLAGS_phases).has_value(),
       "--phases must be a list of plain, worker, dispatch, hop_worker and hop_dispatch"},
      {FLAGS_seconds / static_cast<double>(FLAGS_rounds) >= 1e-6,
       "--seconds must be at least a microsecond for each of the --rounds; give more --seconds or fewer --rounds"}};
  for (const auto& [is_kept, sentence] : rules) {
    if (is_kept) continue;
    programs::fail("%s", sentence);
    return false;
  }
  return true;
}

/// The server in this process: the index and its dispatch threads.
class ServerSide {
 public:
  /// Returns an empty string when clients can reach the server, or the program was interrupted; otherwise the error
  /// message.
  std::string start(const std::string& uri, const std::vector<int>& cpus) {
    try {
      index_ = std::make_unique<Index>(FLAGS_keys + FLAGS_inserts_max);
    } catch (const std::bad_alloc&) {
    }
    if (index_ == nullptr || !ordered::fill(*index_, FLAGS_keys, FLAGS_seed, programs::interrupted)) {
      return "there is no memory for the index; try fewer --keys";
    }
    if (programs::interrupted) return "";
    auto nexus_options = programs::nexus_options();
    nexus_options.liveness_timeout = kLivenessTimeout;
    nexus_options.worker_threads = FLAGS_workers;
    auto nexus = tern::Nexus::create(uri, nexus_options);
    if (!nexus.ok()) return "no Nexus at " + uri + ": " + std::string(nexus.status().message());
    nexus_ = std::move(*nexus);
    ordered::ServerOptions options;
    options.about = {FLAGS_keys, FLAGS_seed, static_cast<uint32_t>(FLAGS_server_threads)};
    // Workers may run on any CPU of `cpus`, not only on the CPU of the thread that started them.
    options.begin_worker = [cpus] { programs::pin_to_any(cpus); };
    server_ = std::make_unique<ordered::Server<Index>>(*index_, std::move(options));
    return threads_.start(*nexus_, FLAGS_server_threads, cpus, programs::Role::kServer, programs::rpc_options(0),
                          [this](tern::Endpoint& endpoint, size_t) { return server_->add_handlers(endpoint); });
  }
  std::string uri() const { return nexus_->uri(); }
  bool has_ended() const { return threads_.has_ended(); }
  void stop() { threads_.stop(); }
  /// Why the server ended by itself, or the error that it found; empty: neither.
  std::string problem() { return problem_.empty() ? threads_.problem() : problem_; }

  /// Measures GETs of random keys without RPCs, in all dispatch threads at once, for `duration` or until the program is
  /// interrupted. Adds to the results that index_ns() and index_cpu_ns() return.
  void measure_index(std::chrono::nanoseconds duration) {
    const auto measure = [this, duration](size_t i) {
      constexpr uint64_t kBetweenClocks = 256;
      ordered::Random random(index_gets_ + i);
      uint64_t gets = 0, missing = 0;
      const auto cpu_begin = thread_cpu_time();
      const auto begin = std::chrono::steady_clock::now();
      auto now = begin;
      for (; now - begin < duration && !programs::interrupted; now = std::chrono::steady_clock::now()) {
        for (uint64_t j = 0; j < kBetweenClocks; j++) {
          if (!index_->get(ordered::key_of(FLAGS_seed, random.below(FLAGS_keys)))) missing++;
        }
        gets += kBetweenClocks;
      }
      index_cpu_ns_ += static_cast<uint64_t>((thread_cpu_time() - cpu_begin).count());
      index_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(now - begin).count());
      index_gets_ += gets;
      index_missing_ += missing;
    };
    run_in_all(measure);
    if (index_missing_ > 0) problem_ = "the index has lost a key";
  }
  /// Time of a GET without RPC, ns; 0: not measured.
  double index_ns() const { return index_gets_ == 0 ? 0 : static_cast<double>(index_ns_) / index_gets_; }
  /// CPU time of a GET without RPC, ns; 0: not measured. Other programs on the CPU do not affect it.
  double index_cpu_ns() const { return index_gets_ == 0 ? 0 : static_cast<double>(index_cpu_ns_) / index_gets_; }

 private:
  static std::chrono::nanoseconds thread_cpu_time() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
  /// Calls f(i) in each dispatch thread, and returns when all calls have ended.
  void run_in_all(const std::function<void(size_t)>& f) {
    std::atomic<size_t> done{0};
    const std::pair<const std::function<void(size_t)>&, std::atomic<size_t>&> shared(f, done);
    // If a thread has no memory for the function, it is unknown which. run_in_all() then stops all threads, because
    // none may use `shared` after the return.
    const bool is_posted = threads_.post_all([&shared](tern::Endpoint&, size_t i) {
      shared.first(i);
      ++shared.second;
    });
    if (!is_posted) problem_ = "there is no memory for a posted function";
    while (is_posted && done < FLAGS_server_threads && !has_ended()) std::this_thread::sleep_for(milliseconds(1));
    if (!is_posted || has_ended()) threads_.stop();
  }

  std::unique_ptr<Index> index_;
  std::unique_ptr<tern::Nexus> nexus_;
  std::unique_ptr<ordered::Server<Index>> server_;
  std::atomic<uint64_t> index_gets_{0}, index_missing_{0}, index_ns_{0}, index_cpu_ns_{0};
  std::string problem_;
  programs::EndpointThreads threads_;  ///< ends first, because the threads use the other members
};

/// The client threads of this process, for all phases.
class ClientSide {
 public:
  ~ClientSide() { threads_.stop(); }

  /// `server` is a server in this process, or null. Returns true when all phases are complete. Returns false on an
  /// error; problem() then has the message. It is empty if the program was interrupted.
  bool run(const std::string& uri, const std::vector<int>& cpus, ServerSide* server) {
    const std::string listen = programs::client_listen_uri(uri);
    auto nexus_options = programs::nexus_options();
    nexus_options.liveness_timeout = kLivenessTimeout;
    auto nexus = tern::Nexus::create(listen, nexus_options);
    if (!nexus.ok()) return fail("no Nexus at " + listen + ": " + std::string(nexus.status().message()));
    nexus_ = std::move(*nexus);
    if (!ask_about(uri)) return false;
    try {
      model_ = std::make_unique<ordered::Model>(about_.seed, about_.keys, about_.keys / 8);
    } catch (const std::bad_alloc&) {
      return fail("there is no memory for the check of that many keys; give the server fewer --keys");
    }
    if (!start_threads(uri, cpus, server == nullptr ? 0 : FLAGS_server_threads)) return false;
    if (!run_phase(Phase::kTakingOver, {})) return false;
    if (model_->count() < about_.keys)
      return fail("the server at " + uri + " lacks keys that its index was filled with");

    const auto phases = *ordered::parse_phases(FLAGS_phases);
    const std::chrono::nanoseconds part(static_cast<int64_t>(FLAGS_seconds * 1e9) / static_cast<int64_t>(FLAGS_rounds));
    for (uint64_t round = 0; round < FLAGS_rounds; round++) {
      if (server != nullptr) server->measure_index(part);
      for (const auto& one : phases) {
        if (!run_phase(one.phase, part)) return false;
      }
    }
    if (!run_phase(Phase::kReadingBack, {})) return false;
    threads_.stop();  // before the server, whose end they would take for a failure
    return true;
  }
  const std::string& problem() const { return problem_; }
  const ordered::About& about() const { return about_; }
  ordered::PhaseReport report(Phase phase) const {
    ordered::PhaseReport sum;
    for (const auto& load : loads_) sum.add(load->report(phase));
    return sum;
  }
  uint64_t sum(uint64_t (ordered::Load::*count)() const) const {
    uint64_t all = 0;
    for (const auto& load : loads_) all += (load.get()->*count)();
    return all;
  }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  /// Asks the server for the first content of its index.
  bool ask_about(const std::string& uri) {
    tern::Status status;
    std::optional<ordered::About> about;
    bool has_ended = false;  // these three variables outlive the endpoint, because its destructor may run the
                             // continuation
    auto rpc = programs::create_rpc(*nexus_, programs::rpc_options(0));
    if (!rpc.ok()) return fail("no endpoint: " + std::string(rpc.status().message()));
    tern::Endpoint& endpoint = (*rpc)->endpoint();
    auto session = endpoint.create_session(uri, {.connect_timeout = ordered::kConnectTimeout});
    if (!session.ok()) return fail("no session with " + uri + ": " + std::string(session.status().message()));
    tern::MsgBuf request = endpoint.alloc_msgbuf(0), response = endpoint.alloc_msgbuf(ordered::kAboutBytes);
    auto call = endpoint.enqueue_request(*session, ordered::kAbout, std::move(request), std::move(response),
                                         [&](tern::Completion& done) {
                                           status = done.status;
                                           if (status.ok()) about = ordered::parse_about(done.response.bytes());
                                           has_ended = true;
                                         });
    if (!call.ok()) return fail("no call to " + uri + ": " + std::string(call.status().message()));
    while (!has_ended && !programs::interrupted) {
      const tern::Status loop = (*rpc)->run_event_loop(milliseconds(1));
      if (!loop.ok()) return fail("the event loop has ended: " + std::string(loop.message()));
    }
    if (!has_ended) return false;
    if (!status.ok()) return fail("no index server at " + uri + ": " + std::string(status.message()));
    if (!about || about->keys < FLAGS_client_threads || about->keys > 1u << 26) {
      return fail("the program at " + uri + " is not an index server of this version");
    }
    about_ = *about;
    return true;
  }
  /// `busy_cpus` is the number of CPUs at the start of `cpus` that the server's threads use.
  bool start_threads(const std::string& uri, std::vector<int> cpus, size_t busy_cpus) {
    std::rotate(cpus.begin(), cpus.begin() + static_cast<ptrdiff_t>(busy_cpus % cpus.size()), cpus.end());
    for (size_t i = 0; i < FLAGS_client_threads; i++) {
      ordered::LoadOptions options;
      options.server = uri + "/" + std::to_string(i % about_.endpoints);
      options.writers = FLAGS_client_threads;
      options.window = FLAGS_window;
      options.put_share = FLAGS_put_share;
      options.insert_share = FLAGS_insert_share;
      options.scan_share = FLAGS_scan_share;
      options.scan_keys = static_cast<uint32_t>(FLAGS_scan_keys);
      options.seed = FLAGS_seed;
      loads_.push_back(std::make_unique<ordered::Load>(*model_, tern::real_environment(), std::move(options), i));
    }
    std::string problem =
        threads_.start(*nexus_, loads_.size(), cpus, programs::Role::kClient, programs::rpc_options(0),
                       [this](tern::Endpoint& endpoint, size_t i) { return loads_[i]->begin(endpoint); });
    return problem.empty() || fail(std::move(problem));
  }
  /// Runs a phase for `length`; if `length` is 0, until the phase has ended by itself.
  bool run_phase(Phase phase, std::chrono::nanoseconds length) {
    phases_++;
    const bool is_begun =
        threads_.post_all([this, phase](tern::Endpoint&, size_t i) { loads_[i]->begin_phase(phase); });
    if (!is_begun) return fail("there is no memory to begin a phase");
    const auto end = std::chrono::steady_clock::now() + length;
    while (is_going_on() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    if (length.count() > 0) {
      const bool is_ended = threads_.post_all([this](tern::Endpoint&, size_t i) { loads_[i]->end_phase(); });
      if (!is_ended) return fail("there is no memory to end a phase");
    }
    while (is_going_on() && !has_phase_ended()) std::this_thread::sleep_for(milliseconds(1));
    return is_going_on();
  }
  bool has_phase_ended() const {
    return std::all_of(loads_.begin(), loads_.end(), [this](const auto& load) { return load->ended() == phases_; });
  }
  bool is_going_on() {
    // First, because an interruption has often ended the server, too.
    if (programs::interrupted) return false;
    for (const auto& load : loads_) {
      if (load->has_failed()) return fail(load->problem());
    }
    if (threads_.has_ended()) return fail("an event loop has ended: " + threads_.problem());
    return true;
  }

  std::unique_ptr<tern::Nexus> nexus_;
  ordered::About about_ = {};
  std::unique_ptr<ordered::Model> model_;
  std::vector<std::unique_ptr<ordered::Load>> loads_;
  uint64_t phases_ = 0;  ///< number of phases that have begun
  std::string problem_;
  programs::EndpointThreads threads_;  ///< ends first, because the threads use the other members
};

/// Prints a line for each phase, and a last line with the comparison of the phases. Returns the exit code.
int print(const ClientSide& client, const ServerSide* server) {
  programs::Report report;
  report.bench = "masstree";
  report.params = programs::common_params();
  report.params.update(
      {{"index", Index::kName}, {"server_threads", client.about().endpoints}, {"keys", client.about().keys}});
  if (FLAGS_role != "client") report.params["workers"] = FLAGS_workers;  // else the server's own flag decides
  report.params.update({{"client_threads", FLAGS_client_threads},
                        {"window", FLAGS_window},
                        {"put_share", FLAGS_put_share},
                        {"insert_share", FLAGS_insert_share},
                        {"scan_share", FLAGS_scan_share},
                        {"scan_keys", FLAGS_scan_keys},
                        {"rounds", FLAGS_rounds},
                        {"seconds", FLAGS_seconds}});
  const auto phases = *ordered::parse_phases(FLAGS_phases);
  for (const auto& one : phases) {
    report.params["phase"] = one.name;
    report.metrics = nlohmann::ordered_json::object();
    ordered::add_metrics(client.report(one.phase), report.metrics);
    if (const int failure = programs::print(report); failure != 0) return failure;
  }
  report.params["phase"] = "summary";
  report.metrics = nlohmann::ordered_json::object();
  auto& metrics = report.metrics;
  const ordered::PhaseReport plain = client.report(Phase::kPlain);
  if (server != nullptr) {
    metrics["index_get_mops_per_thread"] = 1e3 / server->index_ns();
    if (plain.gets.count() > 0) {
      const double get_mrps_per_thread =
          static_cast<double>(plain.gets.count()) / plain.seconds / client.about().endpoints / 1e6;
      metrics["get_mrps_per_thread"] = get_mrps_per_thread;
      metrics["get_rate_of_index"] = get_mrps_per_thread * server->index_ns() / 1e3;
      metrics["index_get_cpu_ns"] = server->index_cpu_ns();
    }
  }
  ordered::add_comparison(plain, client.report(Phase::kScansInWorkers), "worker", metrics);
  ordered::add_comparison(plain, client.report(Phase::kScansInLoops), "dispatch", metrics);
  const auto hop_worker = client.report(Phase::kNothingInWorker), hop_dispatch = client.report(Phase::kNothingInLoop);
  if (hop_worker.nothings.count() > 0 && hop_dispatch.nothings.count() > 0) {
    metrics["hop_us"] = (static_cast<double>(hop_worker.nothings.quantile_ns(0.5)) -
                         static_cast<double>(hop_dispatch.nothings.quantile_ns(0.5))) /
                        1e3;
  }
  metrics["answers_checked"] = client.sum(&ordered::Load::checked);
  metrics["keys_read_back"] = client.sum(&ordered::Load::read_back);
  return programs::print(report);
}

/// Returns the exit code of an interrupted program.
int end_early() {
  if (FLAGS_role != "server") programs::fail("interrupted before everything was read back");
  return programs::kInterruptedExit;
}

int run(int argc, char** argv, const std::vector<int>& cpus) {
  programs::catch_interrupts();
  ServerSide server;
  programs::ServerProcess server_process;
  const bool has_server = !FLAGS_processes && FLAGS_role != "client";
  std::string uri = programs::server_uri();
  if (FLAGS_processes) {
    if (!server_process.start(argc, argv)) return programs::interrupted ? programs::kInterruptedExit : 1;
    uri = server_process.uri();
  } else if (has_server) {
    const std::string problem = server.start(uri, cpus);
    if (!problem.empty()) return programs::fail("%s", problem.c_str());
    if (programs::interrupted) return end_early();
    uri = server.uri();
  }
  if (FLAGS_role == "server") {
    programs::announce_server(uri);
    while (!programs::interrupted && !server.has_ended()) std::this_thread::sleep_for(milliseconds(10));
    server.stop();
    const std::string problem = server.problem();
    return problem.empty() ? 0 : programs::fail("the server has ended: %s", problem.c_str());
  }
  ClientSide client;
  if (!client.run(uri, cpus, has_server ? &server : nullptr)) {
    if (!client.problem().empty()) return programs::fail("%s", client.problem().c_str());
    return end_early();
  }
  if (const std::string problem = has_server ? server.problem() : server_process.stop(); !problem.empty()) {
    return programs::fail("%s", problem.c_str());
  }
  return print(client, has_server ? &server : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);  // the words of the command line, for a server process
  if (!programs::parse_flags(argc, argv,
                             "An ordered index behind RPCs, and a load that checks every answer. Example: masstree "
                             "--transport=shm --json\n"
                             "Each phase is one line; the last line compares the phases"))
    return 1;
  const std::vector<int> cpus = programs::side_cpus();
  if (cpus.empty() || !check_flags() || !programs::check_page_of_sides()) return 1;
  return run(static_cast<int>(words.size()), words.data(), cpus);
}
