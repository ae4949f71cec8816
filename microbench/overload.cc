// overload: clients that call at a fixed rate, independent of the outcome of their calls, and faster than a server's
// handler can serve. The handler takes --handler_us of its CPU, and calls have a deadline. Prints how many calls
// succeed, compared with the number that the handler could serve. The main thread directs; server and clients are side
// threads, or processes with --processes.
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/run.h"

DEFINE_uint64(clients, 4, "clients, each with an endpoint and a thread");
DEFINE_uint64(rate, 1000, "calls a second of each client");
DEFINE_uint64(handler_us, 2000, "CPU time of the handler for each call");
DEFINE_uint64(deadline_ms, 50, "deadline of each call");
DEFINE_bool(sleep, false, "the handler sleeps instead of computing, as if it waited for a disk");
DEFINE_bool(worker, false, "the handler runs on one worker thread instead of in the event loop");

namespace {

using programs::Clock;
using programs::Report;
using programs::Run;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint16_t kWork = 1;
constexpr size_t kBytes = 32;

tern::Status add_handlers(tern::Endpoint& server) {
  const auto work = [](tern::Request request) {
    const auto end = Clock::now() + microseconds(FLAGS_handler_us);
    if (FLAGS_sleep) std::this_thread::sleep_until(end);
    while (Clock::now() < end) {
    }
    request.respond();
  };
  return server.on_request(kWork, work, {.worker = FLAGS_worker});
}

/// Client side thread; the main thread reads `progress`.
class Client {
 public:
  Client(Run& run, std::string server, programs::Progression& progress)
      : run_(run), server_(std::move(server)), progress_(progress) {}

  void run(tern::Nexus& nexus, uint16_t endpoint_id) {
    auto rpc = programs::create_rpc(nexus, programs::rpc_options(endpoint_id));
    if (!rpc.ok()) return run_.fail("no client endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    auto session = endpoint_->create_session(server_);
    if (!session.ok()) return run_.fail("no session with " + server_, session.status());
    session_ = *session;
    if (!run_.enter(*endpoint_)) return;
    open();
    const tern::Status status = (*rpc)->run_event_loop();
    if (!status.ok()) run_.fail("the client's event loop", status);
    run_.leave();
  }

 private:
  /// Makes the first call. It has no deadline: it opens the session, or returns the reason of the failure.
  void open() {
    const auto begin = [this](tern::Completion& done) {
      if (!done.status.ok()) return run_.fail("no session with " + server_, done.status);
      next_ = endpoint_->now();
      call_regularly();
    };
    auto call = endpoint_->enqueue_request(session_, kWork, endpoint_->alloc_msgbuf(kBytes),
                                           endpoint_->alloc_msgbuf(kBytes), begin);
    if (!call.ok()) run_.fail("a call to " + server_ + " was refused", call.status());
  }
  /// If the loop is late, it makes the missed calls at once, so that the load does not depend on the server.
  void call_regularly() {
    const tern::Duration interval = std::chrono::nanoseconds(1'000'000'000 / FLAGS_rate);
    for (; next_ <= endpoint_->now(); next_ += interval) call();
    const auto timer = endpoint_->after(next_ - endpoint_->now(), [this] { call_regularly(); });
    if (!timer) run_.fail("the client's timer", timer.status());
  }
  void call() {
    auto call =
        endpoint_->enqueue_request(session_, kWork, endpoint_->alloc_msgbuf(kBytes), endpoint_->alloc_msgbuf(kBytes),
                                   [this](tern::Completion& done) {
                                     if (done.status.ok()) return progress_.count_completed();
                                     progress_.count_failed();
                                   },
                                   {.deadline = milliseconds(FLAGS_deadline_ms)});
    if (call.ok()) return;
    if (call.status().code() == tern::Code::kQueueFull) return progress_.count_failed();
    run_.fail("a call to " + server_ + " was refused", call.status());
  }

  Run& run_;
  const std::string server_;
  programs::Progression& progress_;
  tern::Endpoint* endpoint_ = nullptr;
  tern::Session session_;
  tern::Duration next_{};
};

int run(int argc, char** argv, const std::vector<int>& cpus) {
  const int server_cpu = cpus[0];
  const int client_cpu = cpus[1 % cpus.size()];
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    run.add_side(server_cpu, [&] { programs::serve(run, nexus, add_handlers); });
    return 1;
  };
  const auto run_clients = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    std::vector<programs::Progression> progress(FLAGS_clients);
    std::list<Client> clients;
    for (size_t i = 0; i < FLAGS_clients; i++) {
      Client& client = clients.emplace_back(run, server, progress[i]);
      run.add_side(client_cpu, [&, i] { client.run(nexus, static_cast<uint16_t>(i)); });
    }
    const auto totals = [&] {
      programs::Totals sum;
      for (const programs::Progression& each : progress) {
        const programs::Totals of = each.totals();
        sum = {sum.completed + of.completed, sum.failed + of.failed, 0, of.seconds};
      }
      return std::optional(sum);
    };
    const auto measured = programs::measure(run, totals);
    run.end();
    if (!measured) return std::nullopt;
    Report report;
    report.bench = "overload";
    report.params = programs::common_params();
    report.params.update({{"clients", FLAGS_clients},
                          {"rate", FLAGS_rate},
                          {"handler_us", FLAGS_handler_us},
                          {"deadline_ms", FLAGS_deadline_ms},
                          {"worker", FLAGS_worker},
                          {"sleep", FLAGS_sleep},
                          {"seconds", FLAGS_seconds}});
    const double rate_rps = static_cast<double>(measured->completed) / measured->seconds;
    report.metrics["rate_rps"] = rate_rps;
    report.metrics["share_of_what_can_be_served"] = rate_rps * static_cast<double>(FLAGS_handler_us) / 1e6;
    report.metrics["failed_rps"] = static_cast<double>(measured->failed) / measured->seconds;
    return report;
  };
  return programs::play_roles(argc, argv, {server_cpu, client_cpu}, start_server, run_clients);
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  const bool is_ok = FLAGS_clients >= 1 && FLAGS_clients <= 64 && FLAGS_rate >= 1 && FLAGS_rate <= 1'000'000 &&
                     FLAGS_handler_us >= 1 && FLAGS_handler_us <= 1'000'000 && FLAGS_deadline_ms >= 1 &&
                     FLAGS_deadline_ms <= 60'000;
  if (!is_ok) {
    programs::fail(
        "--clients must be 1 to 64, --rate and --handler_us must be 1 to 1000000, and --deadline_ms must be 1 to "
        "60000: a minute");
  }
  return is_ok;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run_main(argc, argv,
                            "More calls than a server can do. Example: overload --transport=udp --worker --json",
                            check_flags, run);
}
