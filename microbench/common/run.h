// One measurement: the threads that take part in it, when they count, and how it ends, well or not.
// The main thread directs; side threads own an endpoint each and are pinned to a CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../apps/common/flags.h"
#include "../../apps/common/report.h"
#include "../../apps/common/sides.h"
#include "../percentiles.h"
#include "../placement.h"

namespace programs {

using Clock = std::chrono::steady_clock;

/// Latencies in ticks as the percentiles that a benchmark reports, and with --json as a list of [share, us] to draw.
inline void add_percentiles(nlohmann::ordered_json& metrics, const tern::microbench::Percentiles& latencies_ticks) {
  const double us_per_tick = tern::microbench::Ticks::ns_per_tick() / 1e3;
  metrics["p50_us"] = latencies_ticks.at(0.5) * us_per_tick;
  metrics["p99_us"] = latencies_ticks.at(0.99) * us_per_tick;
  metrics["p999_us"] = latencies_ticks.at(0.999) * us_per_tick;
  if (!FLAGS_json) return;
  for (const double share : tern::microbench::kDrawnShares) {
    metrics["percentiles_us"].push_back({share, latencies_ticks.at(share) * us_per_tick});
  }
}

/// Calls and retransmissions of some clients between two moments, or since their start.
struct Totals {
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t retransmissions = 0;
  double seconds = 0;  ///< between the two moments; a point in time if since the start

  friend Totals operator-(const Totals& to, const Totals& from) {
    return {to.completed - from.completed, to.failed - from.failed, to.retransmissions - from.retransmissions,
            to.seconds - from.seconds};
  }
};

/// What a client thread has done so far, for the main thread to read while it runs. Written by the client thread.
struct alignas(64) Progression {
  std::atomic<uint64_t> completed{0};        ///< calls that ended well
  std::atomic<uint64_t> failed{0};           ///< calls that may_fail() has forgiven
  std::atomic<uint64_t> retransmissions{0};  ///< of its endpoint, some calls ago

  /// Whoever sees the count sees what its thread wrote before.
  void count_completed() { completed.store(completed.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void count_failed() { failed.fetch_add(1, std::memory_order_relaxed); }
  Totals totals() const {
    return {completed.load(std::memory_order_acquire), failed.load(std::memory_order_relaxed),
            retransmissions.load(std::memory_order_relaxed),
            std::chrono::duration<double>(Clock::now().time_since_epoch()).count()};
  }
};

/// A call that ends so is no reason to end the measurement: packets were corrupted above every checksum, and the
/// session goes on.
inline bool may_fail(tern::Status status) {
  return FLAGS_corrupt > 0 && !status.ok() && status.code() != tern::Code::kPeerUnreachable &&
         status.code() != tern::Code::kSessionReset && status.code() != tern::Code::kCancelled;
}

class Run {
 public:
  ~Run() { end(); }

  /// Main thread. Runs `body` in a thread of its own on this CPU; if there is none, the run has failed.
  void add_side(int cpu, std::function<void()> body) {
    if (!add_thread(threads_, cpu, std::move(body))) fail("a side", {tern::Code::kUnavailable, kNoThread});
  }

  /// Server side thread: it can be reached.
  void ready() { ready_.fetch_add(1, std::memory_order_release); }

  /// Side thread, before it runs its loop. False: the measurement is over already, leave.
  [[nodiscard]] bool enter(tern::Endpoint& endpoint) {
    std::lock_guard lock(mutex_);
    if (is_over_) return false;
    endpoints_.push_back(&endpoint);
    return true;
  }
  /// Side thread, after its loop and before its endpoint is destroyed: waits for the end of the measurement and for all
  /// others, so that no side sees another's endpoint go while it still calls it.
  void leave() {
    std::unique_lock lock(mutex_);
    ++left_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_over_ && left_ == endpoints_.size(); });
  }

  /// Any thread. The first sentence counts; what fails once all is over is no failure.
  void fail(const std::string& what, tern::Status status) {
    std::lock_guard lock(mutex_);
    if (is_over_ || !error_.empty()) return;
    error_ = what + ": " + std::string(status.message());
    has_failed_.store(true, std::memory_order_release);
  }
  /// Any thread of a server: its work is done, well.
  void finish() { is_finished_.store(true, std::memory_order_release); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  bool is_finished() const { return is_finished_.load(std::memory_order_acquire); }
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// Side threads: latencies count now.
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  void set_recording(bool on) { is_recording_.store(on, std::memory_order_relaxed); }

  /// Main thread. Sleeps so long, or until `done()`. False: failed or interrupted meanwhile.
  template <class Done>
  [[nodiscard]] bool wait_for(double seconds, const Done& done) {
    const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
    while (!interrupted && !has_failed()) {
      const Clock::time_point now = Clock::now();
      if (now >= end || done()) return true;
      std::this_thread::sleep_for(std::min<Clock::duration>(end - now, std::chrono::milliseconds(20)));
    }
    return false;
  }
  [[nodiscard]] bool wait_for(double seconds) {
    return wait_for(seconds, [] { return false; });
  }
  /// Main thread. Until so many server side threads are ready; their birth takes bounded time. False: as above.
  [[nodiscard]] bool wait_for_ready(size_t sides) {
    const auto is_ready = [&] { return ready_.load(std::memory_order_acquire) == sides; };
    while (!is_ready()) {
      if (!wait_for(1, is_ready)) return false;
    }
    return true;
  }

  /// Main thread. Stops every loop and joins; what the sides have written can be read afterwards.
  void end() {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
      for (tern::Endpoint* endpoint : endpoints_) endpoint->stop();
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    endpoints_.clear();
  }

  /// Main thread, after end(): the exit code of a run that went wrong; prints its sentence.
  int explain_failure() {
    if (has_failed()) return programs::fail("%s", error_.c_str());
    programs::fail("interrupted before the measurement was complete");
    return kInterruptedExit;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<tern::Endpoint*> endpoints_;  ///< of sides that have entered
  size_t left_ = 0;
  std::atomic<size_t> ready_{0};
  std::string error_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_finished_{false};
  alignas(64) std::atomic<bool> is_recording_{false};
  std::vector<std::thread> threads_;
};

/// Answers with the request's own bytes.
inline void echo(tern::Request request) {
  const std::span<const std::byte> in = request.bytes();
  auto out = request.response(in.size());
  if (!out.ok()) return;  // dropped: the client gets kNoResponse
  std::copy(in.begin(), in.end(), out->begin());
  request.respond();
}

/// Server side thread: an endpoint, whose handlers `add_handlers(endpoint)` registers, until the end of the run.
template <tern::Transport T, class AddHandlers>
void serve(Run& run, tern::Nexus& nexus, const AddHandlers& add_handlers,
           const tern::RpcOptions& options = rpc_options(0)) {
  auto rpc = tern::Rpc<T>::create(nexus, transport_options<T>(Role::kServer), options);
  if (!rpc.ok()) return run.fail("no server endpoint", rpc.status());
  tern::Status status = add_handlers(**rpc);
  if (!status.ok()) return run.fail("no handler", status);
  if (!run.enter(**rpc)) return;
  run.ready();
  status = (*rpc)->run_event_loop();
  if (!status.ok()) run.fail("the server's event loop", status);
  run.leave();
}

/// Main thread of a client. Waits for the first calls, warms up, and measures for --seconds. `totals` says what has
/// been done since the start, or nothing if it cannot be known any more. Nothing: failed or interrupted, or no call was
/// answered unless `may_be_idle`.
template <class GetTotals>
std::optional<Totals> measure(Run& run, const GetTotals& totals, bool may_be_idle = false) {
  // Each call ends with the reason if there is no server; the library's timeouts bound the wait for it.
  bool has_begun = false;
  while (!has_begun) {
    if (!run.wait_for(0.02)) return std::nullopt;
    const std::optional<Totals> so_far = totals();
    if (!so_far) return std::nullopt;
    has_begun = so_far->completed > 0;
  }
  constexpr double kWarmUpSeconds = 0.3;  // caches, branch predictors and the RTT estimate settle in a part of it
  if (!run.wait_for(kWarmUpSeconds)) return std::nullopt;

  Progress line;
  const std::optional<Totals> begin = totals();
  if (!begin) return std::nullopt;
  run.set_recording(true);
  while (true) {
    const std::optional<Totals> now = totals();
    if (!now) return std::nullopt;
    const Totals measured = *now - *begin;
    const double left = FLAGS_seconds - measured.seconds;
    if (left <= 0) {
      run.set_recording(false);
      if (measured.completed > 0 || may_be_idle) return measured;
      run.fail("nothing to report", {tern::Code::kPeerUnreachable, "no call was answered during --seconds"});
      return std::nullopt;
    }
    if (measured.seconds > 0.1) {
      line.show(measured.seconds, FLAGS_seconds, static_cast<double>(measured.completed) / measured.seconds / 1e6);
    }
    if (!run.wait_for(std::min(left, 0.25))) return std::nullopt;
  }
}

/// A program of two sides, as --role and --processes say. Returns its exit code.
///   start_server(run, nexus): adds the server's side threads; each calls run.ready() when it can be reached.
///   run_client(run, nexus, server_uri): adds the client's, measures, ends the run; nothing: failed or interrupted.
/// `cpus`: of the server's and of the client's first thread, whose distance is reported.
template <class StartServer, class RunClient>
int play_roles(int argc, char** argv, std::pair<int, int> cpus, const StartServer& start_server,
               const RunClient& run_client, const tern::NexusOptions& server_options = nexus_options()) {
  catch_interrupts();
  const auto placement = [&]() -> std::optional<double> {
    if (FLAGS_role != "both" || cpus.first == cpus.second) return std::nullopt;
    const double round_trip_ns = tern::microbench::placement_ns(cpus.first, cpus.second);
    return round_trip_ns >= 0 ? std::optional(round_trip_ns) : std::nullopt;
  };
  const std::optional<double> placement_before = placement();

  // The Nexuses outlive the run, whose side threads own the endpoints.
  std::unique_ptr<tern::Nexus> server_nexus;
  std::unique_ptr<tern::Nexus> client_nexus;
  ServerProcess server_process;
  Run run;

  std::string server = server_uri();
  if (FLAGS_processes) {
    if (!server_process.start(argc, argv)) return interrupted ? kInterruptedExit : 1;
    server = server_process.uri();
  } else if (FLAGS_role != "client") {
    auto nexus = tern::Nexus::create(server, server_options);
    if (!nexus.ok()) return fail_with("no Nexus at " + server, nexus.status());
    server_nexus = std::move(*nexus);
    server = server_nexus->uri();
    const size_t sides = start_server(run, *server_nexus);
    if (!run.wait_for_ready(sides)) {
      run.end();
      return run.explain_failure();
    }
  }
  if (FLAGS_role == "server") {
    announce_server(server);
    while (!run.is_finished() && run.wait_for(1, [&] { return run.is_finished(); })) {
    }
    run.end();
    return run.has_failed() ? run.explain_failure() : 0;
  }

  const std::string listen = client_listen_uri(server);
  auto nexus = tern::Nexus::create(listen, nexus_options());
  if (!nexus.ok()) return fail_with("no Nexus at " + listen, nexus.status());
  client_nexus = std::move(*nexus);
  std::optional<Report> report = run_client(run, *client_nexus, server);
  run.end();
  if (!report) return run.explain_failure();
  server_process.stop();
  const std::optional<double> placement_after = placement();
  if (placement_before && placement_after) report->placement_ns = std::minmax(*placement_before, *placement_after);
  print(*report);
  return 0;
}

/// main() of a benchmark: flags, then its own checks (`check_flags()`, false once it has said what is wrong), then
/// `run.operator()<T>(argc, argv, cpus)` with the command line as it was given, for a server process. With
/// `run_simulated()` it also runs over a transport of a simulation.
template <class CheckFlags, class RunOver, class RunSimulated = std::nullptr_t>
int run_main(int argc, char** argv, const char* usage, const CheckFlags& check_flags, const RunOver& run,
             const RunSimulated& run_simulated = nullptr) {
  std::vector<char*> words(argv, argv + argc);
  constexpr bool kIsSimulated = !std::is_null_pointer_v<RunSimulated>;
  if (!parse_flags(argc, argv, usage, kIsSimulated ? Scope::kBoth : Scope::kReal) || !check_flags()) return 1;
  if constexpr (kIsSimulated) {
    if (is_simulated()) return run_simulated();
  }
  const std::vector<int> cpus = side_cpus();
  if (cpus.empty()) return 1;
  return with_transport(
      [&]<class T>() { return run.template operator()<T>(static_cast<int>(words.size()), words.data(), cpus); });
}

}  // namespace programs
