// large_rpc_bandwidth: requests of --size bytes from a client to a server, one at a time, out of one reused message
// buffer, with small answers (section 6.4 of the paper). Prints the bandwidth of request payload and percentiles of a
// call. The main thread directs; server and client are side threads, or processes with --processes.
//
// By default the client writes only stamps in three places of each message. The server checks them, so it knows that it
// has the whole message, and the newest one. With --rewrite the client writes the whole message each time, like a
// program that produces data. The data then comes out of the client's cache. Without --rewrite, from the second request
// on, it comes out of a cache into which the server has read it. The time that the client takes to write does not count
// in any result. limits/shm_copy has the same two modes.
//
// With --launcher each of many processes is a server and a client, whose requests go to every other process in turn.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ranks.h"
#include "common/run.h"

DEFINE_uint64(size, 8 << 20, "bytes of a request");
DEFINE_uint64(rate, 0, "bytes a second that the session may send, headers included; 0: no limit");
DEFINE_bool(rewrite, false, "the client writes the whole request before it sends it; this time does not count");

namespace {

using programs::Report;
using programs::Run;
using tern::microbench::Percentiles;
using tern::microbench::Ticks;

constexpr uint16_t kPut = 1;
constexpr uint16_t kTornMessage = 1;  ///< app_code
constexpr uint64_t kRateMax = 1'000'000'000'000;
constexpr size_t kSizeMin = 64;
constexpr size_t kSizeMax = size_t{1} << 30;
using Stamp = uint64_t;  ///< number of the request

/// Writes the stamp at the beginning, at the end, and at a place between them that differs for each request.
void put_stamps(std::span<std::byte> message, Stamp stamp) {
  const size_t between = sizeof stamp + stamp * 0x9e3779b97f4a7c15 % (message.size() - 3 * sizeof stamp);
  for (const size_t at : {size_t{0}, between, message.size() - sizeof stamp}) {
    std::memcpy(message.data() + at, &stamp, sizeof stamp);
  }
}
/// The stamp of a message; nullopt if its stamps differ.
std::optional<Stamp> stamp_of(std::span<const std::byte> message) {
  const auto at = [&](size_t offset) {
    Stamp stamp;
    std::memcpy(&stamp, message.data() + offset, sizeof stamp);
    return stamp;
  };
  const Stamp stamp = at(0);
  const size_t between = sizeof stamp + stamp * 0x9e3779b97f4a7c15 % (message.size() - 3 * sizeof stamp);
  if (at(between) != stamp || at(message.size() - sizeof stamp) != stamp) return std::nullopt;
  return stamp;
}

/// Answers with the stamp of the message.
void take(tern::Request request) {
  const std::span<const std::byte> message = request.bytes();
  const std::optional<Stamp> stamp = message.size() >= kSizeMin ? stamp_of(message) : std::nullopt;
  if (!stamp) return request.fail(kTornMessage);
  auto out = request.response(sizeof *stamp);
  if (!out.ok()) return;  // dropped: the client gets kNoResponse
  std::memcpy(out->data(), &*stamp, sizeof *stamp);
  request.respond();
}

tern::Status add_handlers(tern::Endpoint& server) {
  return server.on_request(kPut, take, {.max_request_bytes = kSizeMax});
}

/// The progress of the client: its calls, and the time that it spent writing. The client thread writes it.
struct Progression {
  programs::Progression calls;
  std::atomic<uint64_t> writing_ticks{0};
};

/// The client, with the state that its continuation needs. Client side thread; the main thread reads `progress`.
class Sender {
 public:
  /// Requests go to the `servers` in turn.
  Sender(Run& run, std::vector<std::string> servers, Progression& progress, Percentiles& calls_ticks)
      : run_(run), servers_(std::move(servers)), progress_(progress), calls_ticks_(calls_ticks) {}

  /// Sets the id of the client's endpoint, and the time in which its sessions must open. Must be called before run().
  void set_place(uint16_t endpoint_id, tern::Duration connect_timeout) {
    endpoint_id_ = endpoint_id;
    session_options_.connect_timeout = connect_timeout;
  }

  void run(tern::Nexus& nexus) {
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(endpoint_id_));
    if (!rpc.ok()) return run_.fail("no client endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    session_options_.rate_bytes_per_sec = FLAGS_rate;
    for (const std::string& server : servers_) {
      auto session = endpoint_->create_session(server, session_options_);
      if (!session.ok()) return run_.fail("no session with " + server, session.status());
      sessions_.push_back(*session);
    }
    request_ = endpoint_->alloc_msgbuf(FLAGS_size);
    response_ = endpoint_->alloc_msgbuf(sizeof(Stamp));
    if (!request_ || !response_) {
      return run_.fail("no message buffers",
                       {tern::Code::kNoMemory, "there is no memory for them, try a smaller --size"});
    }
    std::memset(request_.bytes().data(), 0x5a, FLAGS_size);
    if (!run_.enter(*endpoint_)) return;
    send(Ticks::now());
    if (!run_.has_failed()) {
      const tern::Status status = (*rpc)->run_event_loop();
      if (!status.ok()) run_.fail("the client's event loop", status);
    }
    run_.leave();
  }

  /// Ends the client after the call in flight. Must be called after a call has been answered. Main thread.
  void stop() {
    const tern::Status status = endpoint_->post([this] { is_stopping_ = true; });
    if (!status.ok()) run_.fail("the client takes no posted function", status);
  }
  /// True if nothing is in flight any more. Main thread.
  bool has_stopped() const { return has_stopped_.load(std::memory_order_acquire); }

 private:
  size_t target() const {
    return (stamp_ - 1) % servers_.size();
  }  ///< index of the server of the request with this
     ///< stamp
  const std::string& server() const { return servers_[target()]; }

  void send(uint64_t now_ticks) {
    if (is_stopping_) return has_stopped_.store(true, std::memory_order_release);
    ++stamp_;
    started_ticks_ = now_ticks;
    if (FLAGS_rewrite) {
      std::memset(request_.bytes().data(), static_cast<int>(stamp_), FLAGS_size);
      started_ticks_ = Ticks::now();
      writing_ticks_ += started_ticks_ - now_ticks;
      progress_.writing_ticks.store(writing_ticks_, std::memory_order_relaxed);
    }
    put_stamps(request_.bytes(), stamp_);
    auto call = endpoint_->enqueue_request(sessions_[target()], kPut, std::move(request_), std::move(response_),
                                           [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) [[unlikely]]
      run_.fail("a call to " + server() + " was refused", call.status());
  }

  /// Sends the next request at once, so that one reading of the clock ends a call and begins the next.
  void on_done(tern::Completion& done) {
    const uint64_t now_ticks = Ticks::now();
    if (done.status.ok()) [[likely]] {
      Stamp stamp = 0;
      if (done.response.bytes().size() == sizeof stamp) {
        std::memcpy(&stamp, done.response.bytes().data(), sizeof stamp);
      }
      if (stamp != stamp_ && FLAGS_corrupt == 0) {
        return run_.fail("a call to " + server(),
                         {tern::Code::kNoResponse, "the server has answered another request than the one sent"});
      }
      if (run_.is_recording()) calls_ticks_.add(now_ticks - started_ticks_);
      progress_.calls.count_completed();
    } else {
      if (!programs::may_fail(done.status)) {
        return run_.fail("a call to " + server(), done.app_code == kTornMessage
                                                      ? tern::Status(tern::Code::kRefused, "its message arrived torn")
                                                      : done.status);
      }
      progress_.calls.count_failed();
    }
    progress_.calls.retransmissions.store(endpoint_->counters().retransmissions, std::memory_order_relaxed);
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    send(now_ticks);
  }

  Run& run_;
  const std::vector<std::string> servers_;
  Progression& progress_;
  Percentiles& calls_ticks_;
  uint16_t endpoint_id_ = 0;
  tern::SessionOptions session_options_;
  tern::Endpoint* endpoint_ = nullptr;
  std::vector<tern::Session> sessions_;  ///< by server
  tern::MsgBuf request_;
  tern::MsgBuf response_;
  Stamp stamp_ = 0;
  uint64_t started_ticks_ = 0;
  uint64_t writing_ticks_ = 0;
  bool is_stopping_ = false;
  std::atomic<bool> has_stopped_{false};
};

std::optional<programs::Launch> launch;  ///< set with --launcher

/// The totals without the time in which the client was writing.
std::optional<programs::Totals> totals(const Progression& progress) {
  const double seconds_per_tick = Ticks::ns_per_tick() / 1e9;
  programs::Totals totals = progress.calls.totals();
  totals.seconds -= static_cast<double>(progress.writing_ticks.load(std::memory_order_relaxed)) * seconds_per_tick;
  return totals;
}

nlohmann::ordered_json params() {
  nlohmann::ordered_json params = programs::common_params();
  params["size"] = FLAGS_size;
  params["rate"] = FLAGS_rate;
  params["rewrite"] = FLAGS_rewrite;
  params["seconds"] = FLAGS_seconds;
  return params;
}

Report make_report(const programs::Totals& measured, const Percentiles& calls_ticks) {
  Report report;
  report.bench = "large_rpc_bandwidth";
  report.params = params();
  const double rate_rps = static_cast<double>(measured.completed) / measured.seconds;
  report.metrics["bandwidth_gbps"] = rate_rps * static_cast<double>(FLAGS_size) * 8 / 1e9;
  report.metrics["rate_rps"] = rate_rps;
  programs::add_percentiles(report.metrics, calls_ticks);
  report.metrics["retransmissions"] = measured.retransmissions;
  if (FLAGS_corrupt > 0) report.metrics["calls_failed"] = measured.failed;
  return report;
}

/// The servers of the other processes. The list begins with the next process, so that at the start each server has one
/// client.
std::vector<std::string> other_servers(const programs::Launch& of) {
  std::vector<std::string> servers;
  for (size_t distance = 1; distance < of.ranks(); ++distance) {
    servers.push_back("tern://" + of.places[(of.rank + distance) % of.ranks()].text() + "/0");
  }
  return servers;
}

/// The part of one process with --launcher: endpoint 0 serves, endpoint 1 is the client.
int run_ranked(const std::vector<int>& cpus) {
  return programs::play_rank(*launch, cpus, 2, programs::text_of(params()), [](const programs::Ranked& ranked) {
    Run& run = ranked.run;
    const auto add_all = [&](tern::Endpoint& server) {
      const tern::Status status = add_handlers(server);
      return status.ok() ? ranked.meeting.add_to(server) : status;
    };
    Progression progress;
    Percentiles calls_ticks;
    Sender sender(run, other_servers(ranked.launch), progress, calls_ticks);
    sender.set_place(1, ranked.patience());
    const auto take_part = [&]() -> std::optional<Report> {
      run.add_side(ranked.cpus[0], [&] { programs::serve(run, ranked.nexus, add_all); });
      if (!run.wait_for_ready(1) || !ranked.meet()) return std::nullopt;
      run.add_side(ranked.cpus[1 % ranked.cpus.size()], [&] { sender.run(ranked.nexus); });
      const auto measured = ranked.measure([&] { return totals(progress); });
      if (!measured || !ranked.meet()) return std::nullopt;  // the others still measure
      sender.stop();
      if (!ranked.wait_until([&] { return sender.has_stopped(); }, "the last call")) return std::nullopt;
      return make_report(*measured, calls_ticks);
    };
    return ranked.finish(take_part());
  });
}

int run(int argc, char** argv, const std::vector<int>& cpus) {
  if (launch) return run_ranked(cpus);
  const int server_cpu = cpus[0];
  const int client_cpu = cpus[1 % cpus.size()];
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    run.add_side(server_cpu, [&] { programs::serve(run, nexus, add_handlers); });
    return 1;
  };
  const auto run_client = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    Progression progress;
    Percentiles calls_ticks;
    Sender sender(run, {server}, progress, calls_ticks);
    run.add_side(client_cpu, [&] { sender.run(nexus); });
    const auto measured = programs::measure(run, [&] { return totals(progress); });
    run.end();  // the client has made its last writes
    if (!measured) return std::nullopt;
    return make_report(*measured, calls_ticks);
  };
  return programs::play_roles(argc, argv, {server_cpu, client_cpu}, start_server, run_client);
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  if (!programs::check_ranked_flags(launch)) return false;
  if (FLAGS_size < kSizeMin || FLAGS_size > kSizeMax) {
    programs::fail("--size=%lu is not between %zu and the largest message, 1 GiB", FLAGS_size, kSizeMin);
    return false;
  }
  if (FLAGS_rate > kRateMax) {
    programs::fail("--rate=%lu is more than a terabyte a second", FLAGS_rate);
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run_main(argc, argv,
                            "Bandwidth of large requests. Example: large_rpc_bandwidth --transport=udp --json\n"
                            "With --launcher each of many processes sends to every other one in turn; docs/cluster.md",
                            check_flags, run);
}
