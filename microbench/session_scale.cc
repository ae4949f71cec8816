// session_scale: the cost of many sessions (paper section 6.3). The client's --threads endpoints open --sessions
// sessions to the same number of endpoints of the server. Each session has its own credits, round-trip times and
// congestion state, like a session to a separate machine, and must answer a call. Then the program measures the rate
// over random sessions of all, and the rate over 20 sessions of each thread. The main thread waits; servers and clients
// are side threads, or processes with --processes.
//
// With --transport=sim it is the paper's own experiment: a simulated cluster of --nodes with --threads each, and a
// session from every thread to every other one (common/mesh.h). With --launcher it is the same experiment between real
// processes, one on each node (common/mesh_ranks.h).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster.h"
#include "common/memory.h"
#include "common/mesh.h"
#include "common/mesh_ranks.h"
#include "common/ranks.h"
#include "common/run.h"

DEFINE_uint64(nodes, 100, "sim: hosts of the cluster, at most 200");
DEFINE_uint64(
    threads, 1,
    "endpoints of each side, each with a thread; sim and --launcher: endpoints of a host or process, each with "
    "a session to every other one of the cluster");
DEFINE_uint64(sessions, 20000, "total number of sessions from the client's endpoints to the server's");
DEFINE_uint64(window, 60, "requests that an endpoint has in flight; a multiple of --batch");
DEFINE_uint64(batch, 3, "requests that are issued together; the next batch follows when all are answered");
DEFINE_uint64(session_window, 8, "slots of a session, 1 to 64");
DEFINE_uint64(
    ahead, 0,
    "prefetch sessions this many calls before their call, up to 64, and choose them twice as many calls before; "
    "0: do not prefetch");
DEFINE_uint64(size, 32, "bytes of a request and of its response");

namespace {

using programs::Clock;
using programs::memory_bytes;
using programs::Report;
using programs::Run;

enum RequestType : uint16_t {
  kEcho = 1,
  kMemory,  ///< to endpoint 0 of the server: the client's name, 8 bytes; the answer is a MemoryReply
};
struct MemoryReply {
  uint64_t threads;           ///< number of the server's threads
  uint64_t bytes;             ///< memory_bytes() of the server process
  uint64_t changes_of_asker;  ///< how often the asking client has changed; while it stays the same, there is only one
                              ///< client
};
/// The number of sessions of each thread that the rate is compared with. It is the paper's number, and fits any cache.
constexpr uint64_t kFewSessions = 20;
constexpr size_t kSizeMax = size_t{1} << 20;
constexpr double kVirtualSeconds = 0.01;  ///< 123 000 calls of each node at the paper's rate

tern::Status add_handlers(tern::Endpoint& server) {
  const tern::Status status = server.on_request(kEcho, programs::echo, {.max_request_bytes = kSizeMax});
  if (!status.ok()) return status;
  return server.on_request(kMemory, [asker = uint64_t{0}, changes = uint64_t{0}](tern::Request request) mutable {
    uint64_t name = 0;
    if (request.bytes().size() == sizeof(name)) std::memcpy(&name, request.bytes().data(), sizeof(name));
    if (std::exchange(asker, name) != name) ++changes;
    const MemoryReply reply = {FLAGS_threads, memory_bytes(), changes};
    auto out = request.response(sizeof(reply));
    if (!out.ok()) return;
    std::memcpy(out->data(), &reply, sizeof(reply));
    request.respond();
  });
}

/// The measurements of one thread; only the first thread measures memory. The client's thread writes them, and the main
/// thread reads them after the run.
struct Measured {
  double connect_seconds = 0;
  uint64_t bytes_before = 0;    ///< both sides, with one session of each thread
  uint64_t bytes_in_use = 0;    ///< both sides, with all sessions, right after the load
  uint64_t bytes_at_rest = 0;   ///< both sides, after all sessions have been idle
  bool is_only_client = false;  ///< no other client process asked the server during the measurement
  uint64_t completed = 0;       ///< over all sessions
  uint64_t completed_few = 0;   ///< over kFewSessions
  uint64_t retransmissions = 0;
};

/// One of the client's endpoints. Side thread.
class Client {
 public:
  /// All threads share `meetings`: the total number of arrivals of threads at meetings.
  Client(Run& run, std::string server, size_t index, std::atomic<uint64_t>& meetings)
      : run_(run), server_(std::move(server)), index_(index), meetings_(meetings), calls_(FLAGS_window) {
    random_ += index;
    ahead_.resize(2 * FLAGS_ahead);
    batches_.resize(FLAGS_window / FLAGS_batch);
    // The program touches its own memory before it first measures memory.
    sessions_.resize(FLAGS_sessions / FLAGS_threads + (index < FLAGS_sessions % FLAGS_threads ? 1 : 0));
  }
  const Measured& measured() const { return measured_; }

  void run(tern::Nexus& nexus, std::atomic<size_t>& done) {
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(static_cast<uint16_t>(index_)));
    if (!rpc.ok()) return run_.fail("no client endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    if (!run_.enter(*endpoint_)) return;
    const tern::Status status = play([&](tern::Duration duration) { return (*rpc)->run_event_loop(duration); });
    if (status.ok()) {
      done.fetch_add(1, std::memory_order_release);
    } else {
      run_.fail("measuring sessions with " + server_, status);
    }
    run_.leave();
  }

 private:
  static constexpr tern::Duration kStep = std::chrono::milliseconds(1);
  /// More than twice the time after which a client reports a session's last requests, so that nothing is kept for them.
  /// A client with many sessions reports 100 000 of them a second.
  static constexpr tern::Duration kRest = std::chrono::milliseconds(500);
  static constexpr tern::Duration kRestPerSession = std::chrono::microseconds(24);
  /// The two rates are measured in turns, so that a change in the machine's speed affects both.
  static constexpr int kTurns = 4;
  static constexpr tern::Duration kWarmUp = std::chrono::milliseconds(100);

  struct Call {
    tern::MsgBuf request;
    tern::MsgBuf response;
    uint64_t number = 0;
    uint32_t batch = 0;
  };

  /// `loop(duration)` runs the event loop.
  template <class Loop>
  tern::Status play(const Loop& loop) {
    const auto until = [&](const auto& is_reached) -> tern::Status {
      while (!is_reached()) {
        if (run_.is_over() || run_.has_failed()) return {tern::Code::kCancelled, "the run was ended"};
        if (!failure_.ok()) return failure_;
        if (auto status = loop(kStep); !status.ok()) return status;
      }
      return failure_;
    };
    const auto wait = [&](tern::Duration duration) {
      const Clock::time_point end = Clock::now() + duration;
      return until([end] { return Clock::now() >= end; });
    };
    // Waits until all threads have come to the meeting.
    const auto meet = [&]() -> tern::Status {
      meetings_.fetch_add(1, std::memory_order_acq_rel);
      return until([this, wanted = ++meetings_wanted_ * FLAGS_threads] {
        return meetings_.load(std::memory_order_acquire) >= wanted;
      });
    };
    const auto measure_memory = [&](uint64_t& bytes) -> tern::Status {
      if (auto status = meet(); !status.ok() || index_ != 0) return status.ok() ? meet() : status;
      if (auto status = ask_memory(); !status.ok()) return status;
      if (auto status = until([&] { return memory_.bytes != kUnknown; }); !status.ok()) return status;
      if (memory_.threads != FLAGS_threads) {
        return {tern::Code::kMisuse, "the server has another number of endpoints; give both sides the same --threads"};
      }
      bytes = memory_bytes();
      if (bytes == 0 || memory_.bytes == 0) {
        return {tern::Code::kUnavailable, "/proc/self/smaps_rollup is missing: it needs Linux 4.14"};
      }
      const bool is_one_process = FLAGS_role == "both" && !FLAGS_processes;
      if (!is_one_process) bytes += memory_.bytes;
      return meet();
    };

    if (auto status = prepare(); !status.ok()) return status;
    if (auto status = measure_memory(measured_.bytes_before); !status.ok()) return status;
    const uint64_t changes_of_asker = memory_.changes_of_asker;

    const Clock::time_point begin = Clock::now();
    // Makes one answered call on each session. The call waits for the session to open, and ends with the reason if it
    // does not open.
    source_ = Source::kNew;
    begin_calls();
    if (auto status = until([this] { return in_flight_ == 0; }); !status.ok()) return status;
    measured_.connect_seconds = seconds_since(begin);
    if (answered_ != sessions_.size()) {
      return {tern::Code::kNoResponse, "not every session has answered a call"};
    }

    for (int turn = 0; turn < kTurns; ++turn) {
      if (auto status = meet(); !status.ok()) return status;
      if (auto status = measure_rate(kFewSessions, measured_.completed_few, loop, until, wait); !status.ok())
        return status;
      if (auto status = meet(); !status.ok()) return status;
      if (auto status = measure_rate(sessions_.size(), measured_.completed, loop, until, wait); !status.ok())
        return status;
    }
    if (auto status = measure_memory(measured_.bytes_in_use); !status.ok()) return status;
    if (auto status = wait(std::max(kRest, kRestPerSession * static_cast<int64_t>(sessions_.size()))); !status.ok())
      return status;
    if (auto status = measure_memory(measured_.bytes_at_rest); !status.ok()) return status;
    measured_.is_only_client = memory_.changes_of_asker == changes_of_asker;
    measured_.retransmissions = endpoint_->counters().retransmissions;
    if (endpoint_->counters().sessions_failed != 0) {
      return {tern::Code::kPeerUnreachable, "a session has failed meanwhile"};
    }
    return {};
  }

  template <class Loop, class Until, class Wait>
  tern::Status measure_rate(uint64_t sessions, uint64_t& completed, const Loop& loop, const Until& until,
                            const Wait& wait) {
    source_ = Source::kRandom;
    random_sessions_ = std::min<uint64_t>(sessions, sessions_.size());
    for (const tern::Session*& session : ahead_) session = random_session();
    begin_calls();
    if (auto status = wait(kWarmUp); !status.ok()) return status;
    const uint64_t before = answered_;
    const Clock::time_point begin = Clock::now();
    const auto length = std::chrono::duration<double>(FLAGS_seconds / kTurns);
    if (auto status = loop(std::chrono::duration_cast<tern::Duration>(length)); !status.ok()) return status;
    // Scales the count to exactly `length`. This is safe because an interrupted run is an error anyway.
    completed += static_cast<uint64_t>(static_cast<double>(answered_ - before) * length.count() / seconds_since(begin));
    source_ = Source::kNone;
    return until([this] { return in_flight_ == 0; });
  }

  /// Creates a separate session for control requests, and the buffers, because they must not count in the measurement.
  tern::Status prepare() {
    auto control = endpoint_->create_session(server_ + "/0");
    if (!control.ok()) return control.status();
    control_ = *control;
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
    return {};
  }

  tern::Status ask_memory() {
    memory_.bytes = kUnknown;
    tern::MsgBuf request = endpoint_->alloc_msgbuf(sizeof(name_));
    if (!request) return {tern::Code::kNoMemory, "there is no memory for a message buffer"};
    std::memcpy(request.bytes().data(), &name_, sizeof(name_));
    auto call = endpoint_->enqueue_request(control_, kMemory, std::move(request),
                                           endpoint_->alloc_msgbuf(sizeof(memory_)), [this](tern::Completion& done) {
                                             const auto reply = done.response.bytes();
                                             if (!done.status.ok()) {
                                               failure_ = done.status;
                                             } else if (reply.size() != sizeof(memory_)) {
                                               failure_ = kOtherVersion;
                                             } else {
                                               std::memcpy(&memory_, reply.data(), sizeof(memory_));
                                             }
                                           });
    return call.status();
  }

  /// Returns null on an error; failure_ then has the reason.
  const tern::Session* create_next_session() {
    const std::string uri = server_ + "/" + std::to_string((index_ + created_) % FLAGS_threads);
    tern::SessionOptions options = {.window = static_cast<uint8_t>(FLAGS_session_window)};
    options.connect_timeout = std::chrono::seconds(30);  // the server is there, but may be busy with other sessions
    auto session = endpoint_->create_session(uri, options);
    if (!session.ok()) {
      failure_ = session.status();
      return nullptr;
    }
    sessions_[created_] = *session;
    return &sessions_[created_++];
  }

  void begin_calls() {
    for (uint32_t batch = 0; batch < batches_.size(); ++batch) issue_batch(batch);
  }

  void issue_batch(uint32_t batch) {
    for (uint32_t i = 0; i < FLAGS_batch; ++i) {
      const tern::Session* session = next_session();
      if (session == nullptr) return;
      Call& call = calls_[batch * FLAGS_batch + i];
      call.number = ++issued_;
      programs::number_request(call.request, call.number);
      auto accepted = endpoint_->enqueue_request(*session, kEcho, std::move(call.request), std::move(call.response),
                                                 [this, &call](tern::Completion& done) { on_done(call, done); });
      if (!accepted.ok()) [[unlikely]] {
        failure_ = accepted.status();
        return;
      }
      ++batches_[batch];
      ++in_flight_;
    }
  }

  void on_done(Call& call, tern::Completion& done) {
    --in_flight_;
    const tern::Status status = programs::check_echo(done, FLAGS_size, call.number);
    call.request = std::move(done.request);
    call.response = std::move(done.response);
    if (status.ok()) [[likely]] {
      ++answered_;
    } else if (!programs::may_fail(status)) {
      failure_ = status;
    }
    if (call.response.bytes().size() != FLAGS_size && !call.response.resize(FLAGS_size)) {
      failure_ = {tern::Code::kNoMemory, "a response buffer has not come home"};
    }
    if (--batches_[call.batch] == 0 && failure_.ok()) issue_batch(call.batch);
  }

  /// Null: no more calls for now.
  const tern::Session* next_session() {
    switch (source_) {
      case Source::kNone:
        return nullptr;
      case Source::kNew:
        return created_ < sessions_.size() ? create_next_session() : nullptr;
      case Source::kRandom:
        break;
    }
    if (ahead_.empty()) return random_session();
    const tern::Session* next = std::exchange(ahead_[next_ahead_], random_session());
    __builtin_prefetch(ahead_[next_ahead_]);  // the program's own memory: the name of the session
    endpoint_->prefetch(*ahead_[(next_ahead_ + FLAGS_ahead) % ahead_.size()]);
    next_ahead_ = (next_ahead_ + 1) % ahead_.size();
    return next;
  }

  const tern::Session* random_session() {
    random_ ^= random_ << 13;  // xorshift64
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return &sessions_[static_cast<size_t>(((random_ >> 32) * random_sessions_) >> 32)];
  }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  enum class Source : uint8_t { kNone, kNew, kRandom };  ///< which sessions calls use
  static constexpr uint64_t kUnknown = UINT64_MAX;
  static constexpr tern::Status kOtherVersion{tern::Code::kMisuse, "the server is another version of this program"};

  Run& run_;
  const std::string server_;
  const size_t index_;
  std::atomic<uint64_t>& meetings_;
  uint64_t meetings_wanted_ = 0;
  Measured measured_;
  const uint64_t name_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  tern::Endpoint* endpoint_ = nullptr;
  tern::Session control_;
  std::vector<tern::Session> sessions_;
  size_t created_ = 0;  ///< number of sessions in sessions_ that were created
  MemoryReply memory_ = {0, kUnknown, 0};
  tern::Status failure_;
  Source source_ = Source::kNone;
  uint64_t random_sessions_ = 0;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  std::vector<const tern::Session*> ahead_;  ///< the next sessions, in a ring; empty without --ahead
  size_t next_ahead_ = 0;
  uint64_t issued_ = 0;
  uint64_t answered_ = 0;
  size_t in_flight_ = 0;
  std::vector<Call> calls_;
  std::vector<uint32_t> batches_;  ///< by batch: number of calls that are not answered yet
};

std::optional<programs::Launch> launch;  ///< set with --launcher

/// The load that the flags select, for both meshes.
programs::MeshLoad mesh_load() {
  programs::MeshLoad load;
  load.batch = static_cast<uint32_t>(FLAGS_batch);
  load.window = static_cast<uint32_t>(FLAGS_window);
  load.size = static_cast<uint32_t>(FLAGS_size);
  load.session_window = static_cast<uint8_t>(FLAGS_session_window);
  return load;
}

/// The part of one process with --launcher.
int run_ranked(const std::vector<int>& cpus) {
  Report report;
  report.bench = "session_scale";
  report.params = programs::common_params();
  report.params.update({{"threads", FLAGS_threads},
                        {"batch", FLAGS_batch},
                        {"window", FLAGS_window},
                        {"session_window", FLAGS_session_window},
                        {"size", FLAGS_size},
                        {"seconds", FLAGS_seconds}});
  const std::string flags = programs::text_of(report.params);
  return programs::play_rank(*launch, cpus, FLAGS_threads, flags, [&](const programs::Ranked& ranked) {
    programs::MeshLoad load = mesh_load();
    load.run = &ranked.run;
    // Reading the clock for each call would cost a tenth of the call. The number is prime, because with 16 and a
    // --batch of 2, 4, 8 or 16 each timed call would be the last one of its batch.
    load.calls_per_sample = 17;
    programs::RankedMesh mesh(ranked, static_cast<uint32_t>(FLAGS_threads), 1, load);
    const auto result = mesh.run();
    if (!result) return ranked.finish({});
    const auto sessions = static_cast<double>(result->sessions);
    report.metrics["rate_mrps"] = static_cast<double>(result->totals.completed) / result->totals.seconds / 1e6;
    programs::add_percentiles(report.metrics, result->latencies_ticks);
    if (result->latencies_ticks.count() > 0) {
      report.metrics["p9999_us"] = result->latencies_ticks.at(0.9999) * tern::microbench::Ticks::ns_per_tick() / 1e3;
    }
    report.metrics["sessions"] = result->sessions;
    report.metrics["connect_us_per_session"] = result->connect_seconds / sessions * 1e6;
    report.metrics["bytes_per_session_end"] =
        (static_cast<double>(result->bytes_in_use) - static_cast<double>(result->bytes_before)) / (2 * sessions);
    report.metrics["retransmissions"] = result->totals.retransmissions;
    if (FLAGS_corrupt > 0) report.metrics["calls_failed"] = result->totals.failed;
    return ranked.finish(report);
  });
}

int run(int argc, char** argv, const std::vector<int>& cpus) {
  if (launch) return run_ranked(cpus);
  // All sessions come from one address, each as if from a machine of its own.
  constexpr size_t kSpareSessions = 1024;
  tern::NexusOptions server_options = programs::nexus_options();
  server_options.sessions_per_address_max = FLAGS_sessions + kSpareSessions;
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    for (size_t i = 0; i < FLAGS_threads; ++i) {
      tern::RpcOptions options = programs::rpc_options(static_cast<uint16_t>(i));
      options.server_sessions_per_peer_max = static_cast<uint32_t>(server_options.sessions_per_address_max);
      run.add_side(cpus[i % cpus.size()],
                   [&run, &nexus, options] { programs::serve(run, nexus, add_handlers, options); });
    }
    return FLAGS_threads;
  };
  const auto run_client = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    std::atomic<uint64_t> meetings{0};
    std::atomic<size_t> done{0};
    std::list<Client> clients;
    for (size_t i = 0; i < FLAGS_threads; ++i) {
      Client& client = clients.emplace_back(run, server, i, meetings);
      run.add_side(cpus[(FLAGS_threads + i) % cpus.size()], [&] { client.run(nexus, done); });
    }
    const auto has_ended = [&] { return done.load(std::memory_order_acquire) == FLAGS_threads; };
    while (!has_ended()) {
      if (!run.wait_for(1, has_ended)) break;
    }
    run.end();
    if (!has_ended()) return std::nullopt;

    Measured measured = clients.front().measured();
    for (auto client = std::next(clients.begin()); client != clients.end(); ++client) {
      const Measured& of = client->measured();
      measured.connect_seconds = std::max(measured.connect_seconds, of.connect_seconds);
      measured.completed += of.completed;
      measured.completed_few += of.completed_few;
      measured.retransmissions += of.retransmissions;
    }
    const auto sessions = static_cast<double>(FLAGS_sessions);
    const auto growth_per_session = [&](uint64_t bytes) {
      return (static_cast<double>(bytes) - static_cast<double>(measured.bytes_before)) / sessions;
    };
    Report report;
    report.bench = "session_scale";
    report.params = programs::common_params();
    report.params.update({{"sessions", FLAGS_sessions},
                          {"threads", FLAGS_threads},
                          {"batch", FLAGS_batch},
                          {"window", FLAGS_window},
                          {"ahead", FLAGS_ahead},
                          {"session_window", FLAGS_session_window},
                          {"size", FLAGS_size},
                          {"seconds", FLAGS_seconds}});
    if (measured.is_only_client) {
      report.metrics["bytes_per_session"] = growth_per_session(measured.bytes_at_rest);
      report.metrics["bytes_per_session_in_use"] = growth_per_session(measured.bytes_in_use);
    }
    report.metrics["rate_mrps"] = static_cast<double>(measured.completed) / FLAGS_seconds / 1e6;
    report.metrics["rate_mrps_20_sessions"] = static_cast<double>(measured.completed_few) / FLAGS_seconds / 1e6;
    report.metrics["connect_us_per_session"] = measured.connect_seconds / sessions * 1e6;
    report.metrics["retransmissions"] = measured.retransmissions;
    return report;
  };
  return programs::play_roles(argc, argv, {cpus[0], cpus[FLAGS_threads % cpus.size()]}, start_server, run_client,
                              server_options);
}

/// The mesh in virtual time.
int run_simulated() {
  programs::catch_interrupts();
  auto made = programs::Cluster::create(tern::sim::Topology::cx4(static_cast<uint32_t>(FLAGS_nodes)));
  if (!made.ok()) return programs::fail_with("no cluster", made.status());
  programs::Mesh mesh(**made, static_cast<uint32_t>(FLAGS_threads), mesh_load());
  const std::unique_ptr<programs::Cluster> cluster =
      std::move(*made);  // destroyed first, because its callbacks refer to `mesh`
  if (!mesh.run(programs::virtual_seconds(), programs::echo, memory_bytes)) return cluster->explain_failure();

  Report report;
  report.bench = "session_scale";
  report.params = cluster->params();
  report.params.update({{"nodes", FLAGS_nodes},
                        {"threads", FLAGS_threads},
                        {"batch", FLAGS_batch},
                        {"window", FLAGS_window},
                        {"session_window", FLAGS_session_window},
                        {"size", FLAGS_size}});
  mesh.add_metrics(report.metrics);
  cluster->add_metrics(report.metrics);
  return programs::print(report);
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  if (!programs::check_simulated_flags({"nodes"}) || !programs::check_ranked_flags(launch, {"sessions", "ahead"}))
    return false;
  const bool is_simulated = programs::is_simulated();
  if (is_simulated && !programs::is_given("seconds")) FLAGS_seconds = kVirtualSeconds;
  const char* problem = nullptr;
  if (FLAGS_threads < 1 || FLAGS_threads > 64) {
    problem = "--threads must be between 1 and 64";
  } else if (FLAGS_sessions < kFewSessions * FLAGS_threads || FLAGS_sessions > 1000000) {
    problem = "--sessions must be at least 20 for each of --threads, and at most 1000000";
  } else if (FLAGS_batch < 1 || FLAGS_window < FLAGS_batch || FLAGS_window > 4096 || FLAGS_window % FLAGS_batch != 0) {
    problem = "--window must be at most 4096 and a multiple of --batch";
  } else if (FLAGS_session_window < 1 || FLAGS_session_window > 64) {
    problem = "--session_window must be between 1 and 64";
  } else if (is_simulated && FLAGS_ahead != 0) {
    problem = "--ahead does not work with --transport=sim";
  } else if (FLAGS_ahead > 64) {
    problem = "--ahead must be at most 64";
  } else if (FLAGS_size > kSizeMax) {
    problem = "--size must be at most 1 MiB: this benchmark is about small requests";
  } else if (is_simulated && (FLAGS_nodes < 2 || FLAGS_nodes > 200)) {
    problem = "--nodes must be between 2 and 200";
  } else if (is_simulated && programs::is_given("sessions")) {
    problem = "--sessions does not work with --transport=sim, where --nodes and --threads determine the number";
  } else if (is_simulated && FLAGS_drop != 0) {
    problem = "--drop is for microbench/loss; here queues decide what is lost";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run_main(
      argc, argv,
      "The cost of many sessions. Example: session_scale --transport=shm --sessions=20000 --json\n"
      "bytes_per_session is the memory of both ends together, after each session was used and is idle again, if the "
      "server has "
      "no other client during the measurement;\n"
      "rate_mrps is over random sessions of all, rate_mrps_20_sessions over 20 of each thread, each for --seconds.\n"
      "Both sides need the same --threads.\n"
      "With --transport=sim: a mesh of --nodes times --threads endpoints; --seconds is virtual time, by default 0.01.\n"
      "With --launcher: the same between many processes with --threads each; docs/cluster.md",
      check_flags, run, run_simulated);
}
