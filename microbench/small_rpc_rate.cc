// small_rpc_rate: how many small RPCs a thread completes in a second (paper section 6.2).
// symmetric: every thread is client and server at once, with its own endpoint and with sessions to every other thread.
// client_server: one client thread and one server thread.
// The main thread directs; the sides are threads, or processes with --processes, each with half of the endpoints.
// With --launcher it is the paper's own experiment: many processes, each with --threads endpoints that have sessions to
// all others (common/mesh_ranks.h).
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/mesh_ranks.h"
#include "common/ranks.h"
#include "common/run.h"

DEFINE_string(pattern, "symmetric",
              "symmetric: threads that are client and server at once; client_server: one of each");
DEFINE_uint64(threads, 2,
              "symmetric: threads in all, half of them on each side, an even number; --launcher: of each process, by "
              "default 1");
DEFINE_uint64(batch, 3, "requests that are issued together; the next batch follows when all are answered");
DEFINE_uint64(window, 60, "requests in flight per client thread; a multiple of --batch");
DEFINE_uint64(sessions, 8, "sessions to each other thread; each request takes one at random");
DEFINE_uint64(
    session_window, 16,
    "slots of a session, 1 to 64: twice the share of a session in the default window, so that a random choice "
    "seldom has to wait for a slot");
DEFINE_uint64(size, 32, "bytes of a request and of its response");
DEFINE_double(handler_us, 0, "the handler computes for so long before it responds");
DEFINE_bool(worker, false, "the handler runs on a worker thread instead of in the event loop");

namespace {

using programs::Progression;
using programs::Report;
using programs::Run;
using programs::Totals;
using tern::microbench::Percentiles;
using tern::microbench::Ticks;

enum RequestType : uint16_t {
  kEcho = 1,
  kJoin,    ///< to endpoint 0 of the server: the text of the client's URI; the server's endpoints call back
  kTotals,  ///< to endpoint 0 of the server: TotalsReply
};
struct TotalsReply {
  uint64_t completed;
  uint64_t failed;
  uint64_t retransmissions;
};
constexpr size_t kUriBytesMax = 256;
constexpr uint16_t kHasClient = 1;  ///< app_code of a refused kJoin
/// One in this number of calls is timed, because reading the clock costs a tenth of an RPC. The number is prime,
/// because with 64 and a --batch of 2, 4, 8 or 16 each timed call would be the last one of its batch.
constexpr uint32_t kCallsPerSample = 61;

bool is_symmetric() { return FLAGS_pattern == "symmetric"; }

/// The numeric local address from which this host sends packets to HOST:PORT, an IPv6 address in brackets. Empty if it
/// is unknown.
std::string own_address_towards(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  std::string host = host_and_port.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), host_and_port.c_str() + colon + 1, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> target(found, &freeaddrinfo);

  const int fd = socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own = {};
  socklen_t own_bytes = sizeof(own);
  const bool is_found = connect(fd, target->ai_addr, target->ai_addrlen) == 0 &&  // connect() sends nothing
                        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0;
  close(fd);
  char text[NI_MAXHOST];
  if (!is_found ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), own_bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return own.ss_family == AF_INET6 ? "[" + std::string(text) + "]" : text;
}

/// The URI by which the server calls this client back. A Nexus that listens at every address returns a loopback URI,
/// which is replaced here.
std::string uri_for(const std::string& server, const tern::Nexus& nexus) {
  constexpr size_t kScheme = std::string_view("tern://").size();
  const std::string uri = nexus.uri();
  const bool is_loopback = uri.starts_with("tern://127.") || uri.starts_with("tern://[::1]");
  const std::string own = is_loopback ? own_address_towards(server.substr(kScheme)) : "";
  return own.empty() ? uri : "tern://" + own + uri.substr(uri.rfind(':'));
}

/// The handler with --handler_us: computes for that time, and sends the request back.
void compute_and_echo(tern::Request request) {
  const uint64_t begin = Ticks::now();
  const double ticks = FLAGS_handler_us * 1e3 / Ticks::ns_per_tick();
  while (static_cast<double>(Ticks::now() - begin) < ticks) {
  }
  programs::echo(std::move(request));
}

/// The state that the threads of one side share.
class Side {
 public:
  Side(Run& of_run, std::string uri, bool serves)
      : is_server(serves),
        issues_calls(!serves || is_symmetric()),
        threads(is_symmetric() ? FLAGS_threads / 2 : 1),
        run(of_run),
        own_uri(std::move(uri)),
        progressions(threads),
        latencies_ticks(threads) {}

  const bool is_server;
  const bool issues_calls;
  const size_t threads;
  Run& run;
  const std::string own_uri;
  std::vector<Progression> progressions;     ///< by thread
  std::vector<Percentiles> latencies_ticks;  ///< by thread; read after the run's end

  /// Sets the other side's URI when it is known. A client's URI arrives by kJoin. Any thread.
  void set_peer_uri(std::string uri) {
    std::lock_guard lock(mutex_);
    peer_uri_ = std::move(uri);
    has_peer_.store(true, std::memory_order_release);
  }
  void add_endpoint() { endpoints_.fetch_add(1, std::memory_order_release); }
  bool can_begin() const { return has_peer() && endpoints_.load(std::memory_order_acquire) == threads; }
  bool has_peer() const { return has_peer_.load(std::memory_order_acquire); }
  std::string peer_uri() {
    std::lock_guard lock(mutex_);
    return peer_uri_;
  }

  /// The totals of this side's own threads.
  Totals totals() const {
    Totals sum = progressions[0].totals();
    for (size_t i = 1; i < threads; ++i) {
      const Totals one = progressions[i].totals();
      sum.completed += one.completed;
      sum.failed += one.failed;
      sum.retransmissions += one.retransmissions;
    }
    return sum;
  }

 private:
  std::mutex mutex_;
  std::string peer_uri_;
  std::atomic<bool> has_peer_{false};
  std::atomic<size_t> endpoints_{0};  ///< endpoints of this side that can be reached
};

/// One endpoint and its thread. Only this thread calls the members whose comment does not say otherwise.
class Worker {
 public:
  Worker(Side& side, size_t index)
      : side_(side),
        index_(index),
        progression_(side.progressions[index]),
        latencies_ticks_(side.latencies_ticks[index]),
        random_(0x9e3779b97f4a7c15u * (2 * index + (side.is_server ? 1 : 2))),
        calls_(FLAGS_window),
        batches_(FLAGS_window / FLAGS_batch) {}

  void run(tern::Nexus& nexus) {
    Run& run = side_.run;
    const auto role = side_.is_server ? programs::Role::kServer : programs::Role::kClient;
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(static_cast<uint16_t>(index_)), role);
    if (!rpc.ok()) return run.fail("no endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    if (const tern::Status status = add_handlers(); !status.ok()) return run.fail("no handler", status);
    if (!run.enter(*endpoint_)) return;
    side_.add_endpoint();
    if (side_.is_server) run.ready();
    tern::Status status;
    if (side_.issues_calls) {
      // Waits until all endpoints that it will call are there. In the symmetric pattern the server learns them from a
      // kJoin.
      while (status.ok() && !side_.can_begin() && !run.is_over()) status = (*rpc)->run_event_loop(kBeginPoll);
      if (status.ok() && !run.is_over()) {
        const tern::Status begun = begin_calls();
        if (!begun.ok()) run.fail("no calls to " + side_.peer_uri(), begun);
      }
    }
    if (status.ok() && !run.is_over()) status = (*rpc)->run_event_loop();
    if (!status.ok()) run.fail("an endpoint's event loop", status);
    run.leave();
  }

  /// Asks the server for its totals. Must be called after the worker's calls have begun. Main thread.
  tern::Status ask_totals() {
    has_totals_.store(false, std::memory_order_relaxed);
    return endpoint_->post([this] { send_totals_request(); });
  }
  bool has_totals() const { return has_totals_.load(std::memory_order_acquire); }
  /// The totals of both sides, at one moment. No calls means that not all threads have begun. Main thread, after
  /// has_totals().
  const Totals& totals() const { return totals_; }

 private:
  static constexpr tern::Duration kBeginPoll = std::chrono::milliseconds(1);

  /// One of the window's calls, which is repeated. It holds its buffers while nothing is in flight.
  struct Call {
    tern::MsgBuf request;
    tern::MsgBuf response;
    uint64_t number = 0;
    uint64_t begin_ticks = 0;  ///< start of a timed call; otherwise 0
    uint32_t batch = 0;
  };

  tern::Status add_handlers() {
    const tern::HandlerOptions options = {.worker = FLAGS_worker, .max_request_bytes = size_t{1} << 30};
    const tern::Status added = FLAGS_handler_us > 0 ? endpoint_->on_request(kEcho, compute_and_echo, options)
                                                    : endpoint_->on_request(kEcho, programs::echo, options);
    if (!added.ok()) return added;
    if (!side_.is_server || !is_symmetric() || index_ != 0) return {};
    auto status = endpoint_->on_request(
        kJoin,
        [this](tern::Request request) {
          const auto bytes = request.bytes();
          if (side_.has_peer()) return request.fail(kHasClient);
          side_.set_peer_uri(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
          request.respond();
        },
        {.max_request_bytes = kUriBytesMax});
    if (!status.ok()) return status;
    return endpoint_->on_request(kTotals, [this](tern::Request request) {
      const Totals totals = side_.totals();
      const TotalsReply reply = {totals.completed, totals.failed, totals.retransmissions};
      auto out = request.response(sizeof(reply));
      if (!out.ok()) return;
      std::memcpy(out->data(), &reply, sizeof(reply));
      request.respond();
    });
  }

  /// Opens the sessions, sends this client's URI to the server, and fills the window.
  tern::Status begin_calls() {
    tern::SessionOptions options = {.window = static_cast<uint8_t>(FLAGS_session_window)};
    options.connect_timeout = std::chrono::seconds(30);  // the server is there, but may be busy with other sessions
    const auto open = [&](const std::string& uri, size_t endpoint) -> tern::Status {
      for (uint64_t i = 0; i < FLAGS_sessions; ++i) {
        auto session = endpoint_->create_session(uri + "/" + std::to_string(endpoint), options);
        if (!session.ok()) return session.status();
        sessions_.push_back(*session);
      }
      return {};
    };
    const std::string peer = side_.peer_uri();
    for (size_t i = 0; i < side_.threads; ++i) {  // sessions_[0] leads to endpoint 0 of the other side
      if (auto status = open(peer, i); !status.ok()) return status;
      if (i == index_) continue;
      if (auto status = open(side_.own_uri, i); !status.ok()) return status;
    }
    for (size_t i = 0; i < calls_.size(); ++i) {
      Call& call = calls_[i];
      call.batch = static_cast<uint32_t>(i / FLAGS_batch);
      call.request = endpoint_->alloc_msgbuf(FLAGS_size);
      call.response = endpoint_->alloc_msgbuf(FLAGS_size);
      if (!call.request || !call.response) {
        return {tern::Code::kNoMemory, "there is no memory for the message buffers; try a smaller --size or --window"};
      }
      std::fill(call.request.bytes().begin(), call.request.bytes().end(), std::byte{0x5a});
    }
    if (is_symmetric() && !side_.is_server && index_ == 0) {
      if (auto status = join(); !status.ok()) return status;
    }
    for (uint32_t batch = 0; batch < batches_.size(); ++batch) issue_batch(batch);
    return {};
  }

  tern::Status join() {
    tern::MsgBuf request = endpoint_->alloc_msgbuf(side_.own_uri.size());
    tern::MsgBuf response = endpoint_->alloc_msgbuf(0);
    if (!request || !response) return {tern::Code::kNoMemory, "there is no memory for the message buffers"};
    std::memcpy(request.bytes().data(), side_.own_uri.data(), side_.own_uri.size());
    auto call = endpoint_->enqueue_request(sessions_[0], kJoin, std::move(request), std::move(response),
                                           [this](tern::Completion& done) { on_joined(done); });
    return call.status();
  }

  void on_joined(const tern::Completion& done) {
    if (done.status.ok() || programs::may_fail(done.status)) return;
    if (done.status.code() != tern::Code::kRefused) return on_failure(done.status);
    on_failure({tern::Code::kRefused, done.app_code == kHasClient
                                          ? "the server has a client already; start one server for each client"
                                          : "the server was started with another --pattern; give both the same"});
  }

  void issue_batch(uint32_t batch) {
    batches_[batch] = static_cast<uint32_t>(FLAGS_batch);
    for (uint32_t i = 0; i < FLAGS_batch; ++i) issue(static_cast<uint32_t>(batch * FLAGS_batch + i));
  }

  void issue(uint32_t index) {
    Call& call = calls_[index];
    call.number = ++issued_;
    programs::number_request(call.request, call.number);
    call.begin_ticks = call.number % kCallsPerSample == 0 ? Ticks::now() : 0;
    auto accepted =
        endpoint_->enqueue_request(random_session(), kEcho, std::move(call.request), std::move(call.response),
                                   [this, index](tern::Completion& done) { on_done(index, done); });
    if (!accepted.ok()) [[unlikely]]
      on_failure(accepted.status());
  }

  void on_done(uint32_t index, tern::Completion& done) {
    Call& call = calls_[index];
    const tern::Status status = programs::check_echo(done, FLAGS_size, call.number);
    if (status.ok()) [[likely]] {
      if (call.begin_ticks != 0) [[unlikely]]
        sample(call);
      progression_.count_completed();
    } else {
      if (!programs::may_fail(status)) return on_failure(status);
      progression_.count_failed();
    }
    call.request = std::move(done.request);
    call.response = std::move(done.response);
    if (call.response.bytes().size() != FLAGS_size && !call.response.resize(FLAGS_size)) [[unlikely]] {
      return on_failure({tern::Code::kNoMemory, "a response buffer has not come home"});
    }
    if (--batches_[call.batch] == 0) issue_batch(call.batch);
  }

  void sample(const Call& call) {
    if (side_.run.is_recording()) latencies_ticks_.add(Ticks::now() - call.begin_ticks);
    progression_.retransmissions.store(endpoint_->counters().retransmissions, std::memory_order_relaxed);
  }

  void on_failure(tern::Status status) {
    const bool peer_has_left =
        status.code() == tern::Code::kSessionReset || status.code() == tern::Code::kPeerUnreachable;
    if (FLAGS_role == "server" && peer_has_left) return side_.run.finish();
    side_.run.fail("a call of this side to itself or to " + side_.peer_uri(), status);
  }

  void send_totals_request() {
    auto call =
        endpoint_->enqueue_request(sessions_[0], kTotals, endpoint_->alloc_msgbuf(0),
                                   endpoint_->alloc_msgbuf(sizeof(TotalsReply)), [this](tern::Completion& done) {
                                     if (programs::may_fail(done.status)) return send_totals_request();
                                     if (!done.status.ok()) return on_failure(done.status);
                                     add_totals(done.response.bytes());
                                   });
    if (!call.ok()) on_failure(call.status());
  }

  void add_totals(std::span<const std::byte> bytes) {
    TotalsReply others;
    if (bytes.size() != sizeof(others))
      return on_failure({tern::Code::kMisuse, "the server is another version of this program"});
    std::memcpy(&others, bytes.data(), sizeof(others));
    totals_ = side_.totals();
    totals_.completed = others.completed == 0 ? 0 : totals_.completed + others.completed;
    totals_.failed += others.failed;
    totals_.retransmissions += others.retransmissions;
    has_totals_.store(true, std::memory_order_release);
  }

  tern::Session random_session() {
    random_ ^= random_ << 13;  // xorshift64
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return sessions_[static_cast<size_t>(((random_ >> 32) * sessions_.size()) >> 32)];
  }

  Side& side_;
  const size_t index_;
  Progression& progression_;
  Percentiles& latencies_ticks_;
  tern::Endpoint* endpoint_ = nullptr;
  std::vector<tern::Session> sessions_;
  uint64_t random_;
  uint64_t issued_ = 0;
  std::vector<Call> calls_;
  std::vector<uint32_t> batches_;  ///< by batch: number of calls that are not answered yet
  Totals totals_;                  ///< written before has_totals_ is set
  std::atomic<bool> has_totals_{false};
};

/// The CPUs of a side's threads follow those of the side before it.
std::vector<std::unique_ptr<Worker>> add_workers(Side& side, tern::Nexus& nexus, const std::vector<int>& cpus) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 0; i < side.threads; ++i) {
    workers.push_back(std::make_unique<Worker>(side, i));
    const size_t place = side.is_server ? i : side.threads + i;
    side.run.add_side(cpus[place % cpus.size()], [worker = workers.back().get(), &nexus] { worker->run(nexus); });
  }
  return workers;
}

/// The totals of both sides if both issue calls, otherwise of this side. nullopt if it failed or was interrupted.
std::optional<Totals> all_totals(Side& side, Worker& worker) {
  if (!is_symmetric()) return side.totals();
  if (side.progressions[0].totals().completed == 0) return Totals();
  if (const tern::Status status = worker.ask_totals(); !status.ok()) {
    side.run.fail("an endpoint takes no posted function", status);
    return std::nullopt;
  }
  while (!worker.has_totals()) {
    if (!side.run.wait_for(1, [&] { return worker.has_totals(); })) return std::nullopt;
  }
  return worker.totals();
}

std::optional<programs::Launch> launch;  ///< set with --launcher

/// The common part of the reports of both modes. `clients` is the number of threads that issued calls.
Report make_report(const Totals& measured, const Percentiles& latencies_ticks, uint64_t threads, double clients) {
  Report report;
  report.bench = "small_rpc_rate";
  report.params = programs::common_params();
  report.params.update({{"pattern", FLAGS_pattern},
                        {"threads", threads},
                        {"batch", FLAGS_batch},
                        {"window", FLAGS_window},
                        {"sessions", FLAGS_sessions},
                        {"session_window", FLAGS_session_window},
                        {"size", FLAGS_size},
                        {"handler_us", FLAGS_handler_us},
                        {"worker", FLAGS_worker},
                        {"seconds", FLAGS_seconds}});
  report.metrics["rate_mrps"] = static_cast<double>(measured.completed) / measured.seconds / clients / 1e6;
  programs::add_percentiles(report.metrics, latencies_ticks);
  report.metrics["retransmissions"] = measured.retransmissions;
  if (FLAGS_corrupt > 0) report.metrics["calls_failed"] = measured.failed;
  return report;
}

/// The part of one process with --launcher.
int run_ranked(const std::vector<int>& cpus) {
  const auto threads = static_cast<uint32_t>(FLAGS_threads);
  const std::string flags = programs::text_of(make_report({}, {}, threads, 1).params);
  return programs::play_rank(*launch, cpus, threads, flags, [threads](const programs::Ranked& ranked) {
    programs::MeshLoad load;
    load.batch = static_cast<uint32_t>(FLAGS_batch);
    load.window = static_cast<uint32_t>(FLAGS_window);
    load.size = static_cast<uint32_t>(FLAGS_size);
    load.session_window = static_cast<uint8_t>(FLAGS_session_window);
    load.run = &ranked.run;
    load.calls_per_sample = kCallsPerSample;
    programs::RankedMesh mesh(ranked, threads, static_cast<uint32_t>(FLAGS_sessions), load);
    const auto result = mesh.run();
    std::optional<Report> report;
    if (result) report = make_report(result->totals, result->latencies_ticks, threads, threads);
    return ranked.finish(report);
  });
}

int run(int argc, char** argv, const std::vector<int>& cpus) {
  if (launch) return run_ranked(cpus);
  std::optional<Side> server_side;
  std::vector<std::unique_ptr<Worker>> server_workers;
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    server_side.emplace(run, nexus.uri(), true);
    server_workers = add_workers(*server_side, nexus, cpus);
    return server_side->threads;
  };
  const auto run_client = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    Side side(run, uri_for(server, nexus), false);
    side.set_peer_uri(server);
    const auto workers = add_workers(side, nexus, cpus);
    const auto measured = programs::measure(run, [&] { return all_totals(side, *workers[0]); });
    run.end();
    if (!measured) return std::nullopt;

    Percentiles latencies_ticks;
    for (const auto& one : side.latencies_ticks) latencies_ticks.merge(one);
    const double clients = static_cast<double>(is_symmetric() ? FLAGS_threads : 1);
    return make_report(*measured, latencies_ticks, is_symmetric() ? FLAGS_threads : 2, clients);
  };
  const size_t client_place = is_symmetric() ? FLAGS_threads / 2 : 1;
  return programs::play_roles(argc, argv, {cpus[0], cpus[client_place % cpus.size()]}, start_server, run_client);
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  if (!programs::check_ranked_flags(launch, {"pattern", "handler_us", "worker"})) return false;
  if (launch && !programs::is_given("threads")) FLAGS_threads = 1;
  const char* problem = nullptr;
  if (FLAGS_pattern != "symmetric" && FLAGS_pattern != "client_server") {
    problem = "--pattern must be one of symmetric, client_server";
  } else if (launch && (FLAGS_threads < 1 || FLAGS_threads > 256)) {
    problem = "--threads must be between 1 and 256";
  } else if (!is_symmetric() && programs::is_given("threads") && FLAGS_threads != 2) {
    problem = "--pattern=client_server has one thread of each: leave out --threads";
  } else if (!launch && (FLAGS_threads < 2 || FLAGS_threads > 256 || FLAGS_threads % 2 != 0)) {
    problem = "--threads must be an even number between 2 and 256";
  } else if (FLAGS_batch < 1 || FLAGS_window < FLAGS_batch || FLAGS_window > 4096 || FLAGS_window % FLAGS_batch != 0) {
    problem = "--window must be at most 4096 and a multiple of --batch";
  } else if (FLAGS_sessions < 1 || FLAGS_sessions > 65536) {
    problem = "--sessions must be between 1 and 65536";
  } else if (FLAGS_session_window < 1 || FLAGS_session_window > 64) {
    problem = "--session_window must be between 1 and 64";
  } else if (FLAGS_size > (size_t{1} << 30)) {
    problem = "--size must be at most 1 GiB, the largest message";
  } else if (!(FLAGS_handler_us >= 0 && FLAGS_handler_us <= 1e6)) {
    problem = "--handler_us must be between 0 and 1000000";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run_main(
      argc, argv,
      "Rate of small RPCs. Example: small_rpc_rate --transport=shm --json\n"
      "rate_mrps is RPCs completed a second by each client thread. Latencies are of one call in 61, on the "
      "client's side.\nThe default window of 60 goes over 8 sessions of 16 slots, so that it is really "
      "in flight.\nBoth sides need the same --pattern and --threads; a symmetric server ends with its client.\n"
      "With --launcher every thread of many processes calls every other one; docs/cluster.md",
      check_flags, run);
}
