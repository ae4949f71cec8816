// latency: one request of --size bytes at a time, from a client to a server that sends it back. Prints percentiles of
// the round trip. The main thread directs; server and client are side threads, or processes with --processes.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/run.h"

DEFINE_uint64(size, 32, "bytes of a request and of its response");

namespace {

using programs::Report;
using programs::Run;
using tern::microbench::Percentiles;
using tern::microbench::Ticks;

constexpr uint16_t kEcho = 1;
constexpr size_t kSizeMax = size_t{1} << 30;

tern::Status add_handlers(tern::Endpoint& server) {
  return server.on_request(kEcho, programs::echo, {.max_request_bytes = kSizeMax});
}

/// The client, with the state that its continuation needs. Client side thread; the main thread reads `progress`.
class Pinger {
 public:
  Pinger(Run& run, std::string server, programs::Progression& progress, Percentiles& round_trips_ticks)
      : run_(run), server_(std::move(server)), progress_(progress), round_trips_ticks_(round_trips_ticks) {}

  void run(tern::Nexus& nexus) {
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(0));
    if (!rpc.ok()) return run_.fail("no client endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    auto session = endpoint_->create_session(server_);
    if (!session.ok()) return run_.fail("no session with " + server_, session.status());
    session_ = *session;
    request_ = endpoint_->alloc_msgbuf(FLAGS_size);
    response_ = endpoint_->alloc_msgbuf(FLAGS_size);
    if (!request_ || !response_) {
      return run_.fail("no message buffers",
                       {tern::Code::kNoMemory, "there is no memory for them, try a smaller --size"});
    }
    std::fill(request_.bytes().begin(), request_.bytes().end(), std::byte{0x5a});
    if (!run_.enter(*endpoint_)) return;
    started_ticks_ = Ticks::now();
    send();
    if (!run_.has_failed()) {
      const tern::Status status = (*rpc)->run_event_loop();
      if (!status.ok()) run_.fail("the client's event loop", status);
    }
    sessions_paired_ = endpoint_->counters().sessions_paired;
    run_.leave();
  }

  /// The number of sessions whose answers arrive at the port that the requests leave from. Main thread, after
  /// Run::end().
  uint64_t sessions_paired() const { return sessions_paired_; }

 private:
  void send() {
    programs::number_request(request_, ++number_);
    auto call = endpoint_->enqueue_request(session_, kEcho, std::move(request_), std::move(response_),
                                           [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) [[unlikely]]
      run_.fail("a call to " + server_ + " was refused", call.status());
  }

  /// Sends the next request at once, so that one reading of the clock ends a round trip and begins the next.
  void on_done(tern::Completion& done) {
    const uint64_t now_ticks = Ticks::now();
    const tern::Status status = programs::check_echo(done, FLAGS_size, number_);
    if (status.ok()) [[likely]] {
      if (run_.is_recording()) round_trips_ticks_.add(now_ticks - started_ticks_);
      progress_.count_completed();
    } else {
      if (!programs::may_fail(status)) return run_.fail("a call to " + server_, status);
      progress_.count_failed();
    }
    started_ticks_ = now_ticks;
    progress_.retransmissions.store(endpoint_->counters().retransmissions, std::memory_order_relaxed);
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    if (response_.bytes().size() != FLAGS_size && !response_.resize(FLAGS_size)) [[unlikely]] {
      return run_.fail("a call to " + server_, {tern::Code::kNoMemory, "its response buffer has not come home"});
    }
    send();
  }

  Run& run_;
  const std::string server_;
  programs::Progression& progress_;
  Percentiles& round_trips_ticks_;
  tern::Endpoint* endpoint_ = nullptr;
  tern::Session session_;
  tern::MsgBuf request_;
  tern::MsgBuf response_;
  uint64_t number_ = 0;  ///< calls begun
  uint64_t started_ticks_ = 0;
  uint64_t sessions_paired_ = 0;
};

int run(int argc, char** argv, const std::vector<int>& cpus) {
  const int server_cpu = cpus[0];
  const int client_cpu = cpus[1 % cpus.size()];
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    run.add_side(server_cpu, [&] { programs::serve(run, nexus, add_handlers); });
    return 1;
  };
  const auto run_client = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    programs::Progression progress;
    Percentiles round_trips_ticks;
    Pinger pinger(run, server, progress, round_trips_ticks);
    run.add_side(client_cpu, [&] { pinger.run(nexus); });
    const auto measured = programs::measure(run, [&] { return std::optional(progress.totals()); });
    run.end();  // the client has made its last writes
    if (!measured) return std::nullopt;

    Report report;
    report.bench = "latency";
    report.params = programs::common_params();
    report.params["size"] = FLAGS_size;
    report.params["seconds"] = FLAGS_seconds;
    report.metrics["rate_mrps"] = static_cast<double>(measured->completed) / measured->seconds / 1e6;
    programs::add_percentiles(report.metrics, round_trips_ticks);
    report.metrics["retransmissions"] = measured->retransmissions;
    report.metrics["sessions_paired"] = pinger.sessions_paired();
    if (FLAGS_corrupt > 0) report.metrics["calls_failed"] = measured->failed;
    return report;
  };
  return programs::play_roles(argc, argv, {server_cpu, client_cpu}, start_server, run_client);
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  if (FLAGS_size <= kSizeMax) return true;
  programs::fail("--size=%lu is above the largest message, 1 GiB", FLAGS_size);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run_main(argc, argv, "Latency of one call at a time. Example: latency --transport=udp --json",
                            check_flags, run);
}
