// One measurement: its threads, the time in which they count, and its end or failure.
// The main thread directs. Each side thread owns an endpoint and is pinned to a CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

#include "../../apps/common/any_rpc.h"
#include "../../apps/common/flags.h"
#include "../../apps/common/report.h"
#include "../../apps/common/sides.h"
#include "../percentiles.h"
#include "../placement.h"

namespace programs {

using Clock = std::chrono::steady_clock;

inline void add_percentiles(nlohmann::ordered_json& metrics, const tern::microbench::Percentiles& latencies_ticks) {
  tern::microbench::add_percentiles(metrics, latencies_ticks, tern::microbench::Ticks::ns_per_tick() / 1e3, FLAGS_json);
}

/// Calls and retransmissions of some clients between two moments, or since their start.
struct Totals {
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t retransmissions = 0;
  double seconds = 0;  ///< between the two moments; for totals since the start, a point in time

  friend Totals operator-(const Totals& to, const Totals& from) {
    return {to.completed - from.completed, to.failed - from.failed, to.retransmissions - from.retransmissions,
            to.seconds - from.seconds};
  }
};

/// The progress of a client thread, which writes it. The main thread reads it while the client thread runs.
struct alignas(64) Progression {
  std::atomic<uint64_t> completed{0};        ///< calls that ended with ok
  std::atomic<uint64_t> failed{0};           ///< failed calls that may_fail() allows
  std::atomic<uint64_t> retransmissions{0};  ///< of its endpoint, as of a few calls ago

  /// A thread that reads the count also sees the earlier writes of the client thread.
  void count_completed() { completed.store(completed.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void count_failed() { failed.fetch_add(1, std::memory_order_relaxed); }
  Totals totals() const {
    return {completed.load(std::memory_order_acquire), failed.load(std::memory_order_relaxed),
            retransmissions.load(std::memory_order_relaxed),
            std::chrono::duration<double>(Clock::now().time_since_epoch()).count()};
  }
};

/// True for a failure that does not end the measurement: --corrupt damaged packets above every checksum, and the
/// session continues.
inline bool may_fail(tern::Status status) {
  return FLAGS_corrupt > 0 && !status.ok() && status.code() != tern::Code::kPeerUnreachable &&
         status.code() != tern::Code::kSessionReset && status.code() != tern::Code::kCancelled;
}

/// Writes a call's number into its request, so that check_echo() recognises the answer. A shorter request has no
/// number.
inline void number_request(tern::MsgBuf& request, uint64_t number) {
  if (request.bytes().size() >= sizeof(number)) std::memcpy(request.bytes().data(), &number, sizeof(number));
}
/// The call's status; an error if the answer has another length or number than the request had.
inline tern::Status check_echo(const tern::Completion& done, size_t bytes, uint64_t number) {
  if (!done.status.ok()) [[unlikely]]
    return done.status;
  uint64_t echoed = number;
  const auto answer = done.response.bytes();
  if (answer.size() >= sizeof(echoed)) std::memcpy(&echoed, answer.data(), sizeof(echoed));
  if (answer.size() == bytes && echoed == number) [[likely]]
    return {};
  return {tern::Code::kUnavailable, "the answer is not the request"};
}

class Run {
 public:
  ~Run() { end(); }

  /// Runs `body` in a new thread on this CPU. If there is no thread, the run fails. Main thread.
  void add_side(int cpu, std::function<void()> body) {
    if (!add_thread(threads_, cpu, std::move(body))) fail("a side", {tern::Code::kUnavailable, kNoThread});
  }

  /// The server can be reached. Server side thread.
  void ready() { ready_.fetch_add(1, std::memory_order_release); }

  /// Must be called by a side thread before it runs its loop. Returns false if the measurement is already over; the
  /// thread must then leave.
  [[nodiscard]] bool enter(tern::Endpoint& endpoint) {
    std::lock_guard lock(mutex_);
    if (is_over_) return false;
    endpoints_.push_back(&endpoint);
    return true;
  }
  /// Must be called by a side thread after its loop and before its endpoint is destroyed. It waits for the end of the
  /// measurement and for all other threads, so that no endpoint is destroyed while another side still calls it.
  void leave() {
    std::unique_lock lock(mutex_);
    ++left_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_over_ && left_ == endpoints_.size(); });
  }

  /// Only the first error counts. An error after the end is ignored. One after an interruption is not explained,
  /// because the interruption has often ended the other side. Any thread.
  void fail(const std::string& what, tern::Status status) {
    std::lock_guard lock(mutex_);
    if (is_over_ || !error_.empty()) return;
    if (!interrupted) error_ = what + ": " + std::string(status.message());
    has_failed_.store(true, std::memory_order_release);
  }
  /// The server has finished its work without an error. Any thread of a server.
  void finish() { is_finished_.store(true, std::memory_order_release); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  bool is_finished() const { return is_finished_.load(std::memory_order_acquire); }
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// True while latencies count. Side threads.
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  void set_recording(bool on) { is_recording_.store(on, std::memory_order_relaxed); }

  /// Sleeps for `seconds`, or until `done()`. Returns false if the run failed or was interrupted meanwhile. Main
  /// thread.
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
  /// Waits until `sides` server side threads are ready, which takes bounded time. Returns false if the run failed or
  /// was interrupted. Main thread.
  [[nodiscard]] bool wait_for_ready(size_t sides) {
    const auto is_ready = [&] { return ready_.load(std::memory_order_acquire) == sides; };
    while (!is_ready()) {
      if (!wait_for(1, is_ready)) return false;
    }
    return true;
  }

  /// Stops every loop and joins the threads. Afterwards the results of the sides can be read. Main thread.
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

  /// Prints the error message of a failed run, and returns the exit code. Must be called after end(). Main thread.
  int explain_failure() {
    if (!error_.empty()) return programs::fail("%s", error_.c_str());
    programs::fail("interrupted before the measurement was complete");
    return kInterruptedExit;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<tern::Endpoint*> endpoints_;  ///< endpoints of the sides that have entered
  size_t left_ = 0;
  std::atomic<size_t> ready_{0};
  std::string error_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_finished_{false};
  alignas(64) std::atomic<bool> is_recording_{false};
  std::vector<std::thread> threads_;
};

/// Answers with the request's bytes.
inline void echo(tern::Request request) {
  const std::span<const std::byte> in = request.bytes();
  auto out = request.response(in.size());
  if (!out.ok()) return;  // dropped: the client gets kNoResponse
  std::copy(in.begin(), in.end(), out->begin());
  request.respond();
}

/// Runs an endpoint until the end of the run; `add_handlers(endpoint)` registers its handlers. Server side thread.
template <class AddHandlers>
void serve(Run& run, tern::Nexus& nexus, const AddHandlers& add_handlers,
           const tern::RpcOptions& options = rpc_options(0)) {
  auto rpc = create_rpc(nexus, options, Role::kServer);
  if (!rpc.ok()) return run.fail("no server endpoint", rpc.status());
  tern::Endpoint& endpoint = (*rpc)->endpoint();
  tern::Status status = add_handlers(endpoint);
  if (!status.ok()) return run.fail("no handler", status);
  if (!run.enter(endpoint)) return;
  run.ready();
  status = (*rpc)->run_event_loop();
  if (!status.ok()) run.fail("the server's event loop", status);
  run.leave();
}

/// Waits for the first calls, warms up, and measures for --seconds. `totals` returns the work since the start, or
/// nullopt if it is no longer known. Returns nullopt if the run failed or was interrupted, or if no call was answered
/// and not `may_be_idle`. Main thread of a client.
template <class GetTotals>
std::optional<Totals> measure(Run& run, const GetTotals& totals, bool may_be_idle = false) {
  // If there is no server, each call ends with the reason. The library's timeouts bound the wait.
  bool has_begun = false;
  while (!has_begun) {
    if (!run.wait_for(0.02)) return std::nullopt;
    const std::optional<Totals> so_far = totals();
    if (!so_far) return std::nullopt;
    has_begun = so_far->completed > 0;
  }
  constexpr double kWarmUpSeconds = 0.3;  // long enough for caches, branch predictors and the RTT estimate
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

/// Runs a program of two sides as --role and --processes select. Returns its exit code.
///   start_server(run, nexus): adds the server's side threads; each calls run.ready() when it can be reached.
///   run_client(run, nexus, server_uri): adds the client's threads, measures, and ends the run. It returns nullopt if
/// the run failed or was interrupted.
/// `cpus` has the CPU of the server's first thread and that of the client's first thread. Their distance is reported.
template <class StartServer, class RunClient>
int play_roles(int argc, char** argv, std::pair<int, int> cpus, const StartServer& start_server,
               const RunClient& run_client, const tern::NexusOptions& server_options = nexus_options()) {
  if (!check_page_of_sides()) return 1;
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
  if (const std::string problem = server_process.stop(); !problem.empty()) return fail("%s", problem.c_str());
  const std::optional<double> placement_after = placement();
  if (placement_before && placement_after) report->placement_ns = std::minmax(*placement_before, *placement_after);
  return print(*report);
}

/// main() of a benchmark. It parses the flags, calls `check_flags()` (which prints an error and returns false), and
/// then calls `run(argc, argv, cpus)` with the words of the command line, for a server process. With `run_simulated()`
/// the benchmark also runs over a transport of a simulation.
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
  return run(static_cast<int>(words.size()), words.data(), cpus);
}

}  // namespace programs
