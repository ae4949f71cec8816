// The incast between programs: a server, which is the victim, and clients, each with --flows of the --degree flows.
// Every client asks the server for the total that has arrived from all clients. This file defines flags: include it
// only in a program's one source file. The main thread directs; the server and each client run in side threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "numbered_message.h"
#include "run.h"

DEFINE_uint64(flows, 0,
              "--role=client: flows of this client, of the --degree in all; 0: all of them. --launcher: flows of each "
              "client; 0: one");
DECLARE_uint64(degree);
DECLARE_uint64(size);
DECLARE_uint64(credits);

namespace programs {

enum IncastRequest : uint16_t {
  kIncastPut = 1,
  kIncastTotals,  ///< IncastPresence, answered by IncastTotals
};
/// A client sends this repeatedly, to tell the server that it is present.
struct IncastPresence {
  uint64_t client;  ///< a random number
  uint64_t flows;   ///< 0: the client has finished
};
struct IncastTotals {
  uint64_t flows;           ///< of all clients that are present
  uint64_t received_bytes;  ///< payload of complete requests, of all clients, since the server began
  int64_t at_ns;            ///< the server's clock
};

/// The server's handlers. Server side thread, unless a comment says otherwise.
class IncastVictim {
 public:
  static tern::RpcOptions rpc_options() {
    tern::RpcOptions options = programs::rpc_options(0);
    options.receive_budget_bytes += 2 * FLAGS_degree * FLAGS_size;
    options.credit_limit = static_cast<uint32_t>(FLAGS_credits);
    return options;
  }

  tern::Status add_handlers(tern::Endpoint& server) {
    const auto put = [this](tern::Request request) {
      if (!take_message(std::move(request), FLAGS_size)) return;
      received_bytes_ += FLAGS_size;
      progress_.count_completed();
    };
    if (auto status = server.on_request(kIncastPut, put, {.max_request_bytes = FLAGS_size}); !status.ok())
      return status;
    return server.on_request(kIncastTotals, [this](tern::Request request) {
      IncastPresence presence = {};
      if (request.bytes().size() == sizeof(presence)) std::memcpy(&presence, request.bytes().data(), sizeof(presence));
      const IncastTotals totals = totals_for(presence);
      auto out = request.response(sizeof(totals));
      if (!out.ok()) return;
      std::memcpy(out->data(), &totals, sizeof(totals));
      request.respond();
    });
  }
  /// Complete requests that have arrived. Main thread.
  Totals totals() const { return progress_.totals(); }

 private:
  /// A killed client counts as present until it has been silent this long. Each client asks every 10 ms.
  static constexpr auto kSilenceMax = std::chrono::seconds(3);
  struct Client {
    uint64_t flows;
    Clock::time_point heard;
  };

  IncastTotals totals_for(const IncastPresence& presence) {
    const Clock::time_point now = Clock::now();
    clients_[presence.client] = {presence.flows, now};
    std::erase_if(clients_,
                  [now](const auto& each) { return each.second.flows == 0 || now - each.second.heard > kSilenceMax; });
    IncastTotals totals = {0, received_bytes_, std::chrono::nanoseconds(now.time_since_epoch()).count()};
    for (const auto& [name, client] : clients_) totals.flows += client.flows;
    return totals;
  }

  uint64_t received_bytes_ = 0;
  Progression progress_;
  std::map<uint64_t, Client> clients_;  ///< by IncastPresence::client
};

/// A client: one endpoint with a session for each flow. It starts to send when the flows of all clients are present.
/// Client side thread, unless a comment says otherwise.
class IncastClient {
 public:
  /// `connect_timeout` is the timeout of its sessions.
  IncastClient(Run& run, std::string server, uint64_t flows,
               tern::Duration connect_timeout = tern::SessionOptions().connect_timeout)
      : run_(run), server_(std::move(server)), connect_timeout_(connect_timeout), flows_(flows) {}

  /// Calls `prepare()` before the loop; `prepare()` may call begin().
  template <class Prepare>
  void run(tern::Nexus& nexus, const Prepare& prepare) {
    auto rpc = create_rpc(nexus, programs::rpc_options(0));
    if (!rpc.ok()) return run_.fail("no client endpoint", rpc.status());
    endpoint_ = &(*rpc)->endpoint();
    prepare(*endpoint_);
    if (!run_.enter(*endpoint_)) return;
    run_.ready();
    if (const tern::Status status = (*rpc)->run_event_loop(); !status.ok()) {
      run_.fail("the client's event loop", status);
    }
    run_.leave();
  }
  /// Opens the sessions, and tells the server that this client is present. Must be called at most once.
  void begin() {
    if (const tern::Status status = open(); !status.ok()) return run_.fail("no session with " + server_, status);
    ask_totals();
  }

  /// Calls begin() in the loop. Main thread.
  void post_begin() {
    if (const tern::Status status = endpoint_->post([this] { begin(); }); !status.ok()) run_.fail("no flows", status);
  }

  /// The completed work of this client. Main thread.
  Totals totals() const { return progress_.totals(); }
  uint64_t flows_present() const { return flows_present_.load(std::memory_order_acquire); }
  /// Sends no more requests, and tells the server that this client's flows end. Main thread.
  void take_leave() {
    (void)endpoint_->post([this] { is_leaving_ = true; });
  }
  bool has_left() const { return has_left_.load(std::memory_order_acquire); }
  /// True if nothing is on its way to the server any more. Must be called after take_leave(). Main thread.
  bool has_stopped() const { return has_left() && in_flight_.load(std::memory_order_acquire) == 0; }
  /// Main thread, after this client has stopped or the run is over. total_gbps is the rate of all clients, by the
  /// server's clock; it is left out if the server answered no question during the measurement.
  void add_metrics(nlohmann::ordered_json& metrics, const Totals& measured) const {
    if (last_.at_ns > first_.at_ns) {
      const auto bytes = static_cast<double>(last_.received_bytes - first_.received_bytes);
      metrics["total_gbps"] = bytes * 8 / static_cast<double>(last_.at_ns - first_.at_ns);
    }
    metrics["client_gbps"] =
        static_cast<double>(measured.completed) * static_cast<double>(FLAGS_size) * 8 / measured.seconds / 1e9;
    add_percentiles(metrics, calls_ticks_);
    metrics["retransmissions"] = measured.retransmissions;
    if (FLAGS_corrupt > 0) metrics["calls_failed"] = measured.failed;
  }

 private:
  using Ticks = tern::microbench::Ticks;
  static constexpr tern::Duration kAskAgain = std::chrono::milliseconds(10);

  struct Flow {
    tern::Session session;
    tern::MsgBuf request, response;
    uint64_t number = 0;
    uint64_t started_ticks = 0;
  };

  tern::Status open() {
    auto control = endpoint_->create_session(server_, {.connect_timeout = connect_timeout_});
    if (!control.ok()) return control.status();
    control_ = *control;
    for (Flow& flow : flows_) {
      auto session = endpoint_->create_session(server_, {.window = 1, .connect_timeout = connect_timeout_});
      if (!session.ok()) return session.status();
      flow.session = *session;
      flow.request = endpoint_->alloc_msgbuf(FLAGS_size);
      flow.response = endpoint_->alloc_msgbuf(sizeof(uint64_t));
      if (!flow.request || !flow.response) {
        return {tern::Code::kNoMemory, "there is no memory for messages; try a smaller --size or fewer --flows"};
      }
      std::memset(flow.request.bytes().data(), 0x5a, FLAGS_size);
    }
    return {};
  }

  void send(Flow& flow) {
    number_message(flow.request.bytes(), ++flow.number);
    flow.started_ticks = Ticks::now();
    auto call = endpoint_->enqueue_request(flow.session, kIncastPut, std::move(flow.request), std::move(flow.response),
                                           [this, &flow](tern::Completion& done) { on_done(flow, done); });
    if (!call.ok()) return run_.fail("a request to " + server_ + " was refused", call.status());
    in_flight_.fetch_add(1, std::memory_order_relaxed);
  }
  void on_done(Flow& flow, tern::Completion& done) {
    if (done.status.ok()) {
      if (run_.is_recording()) calls_ticks_.add(Ticks::now() - flow.started_ticks);
      progress_.count_completed();
    } else if (may_fail(done.status)) {
      progress_.count_failed();
    } else {
      return fail("a request to " + server_, done);
    }
    progress_.retransmissions.store(endpoint_->counters().retransmissions, std::memory_order_relaxed);
    flow.request = std::move(done.request);
    flow.response = std::move(done.response);
    if (!is_leaving_) send(flow);
    in_flight_.fetch_sub(1, std::memory_order_release);
  }

  void ask_totals() {
    const bool is_farewell = is_leaving_;
    const IncastPresence presence = {name_, is_farewell ? 0 : flows_.size()};
    tern::MsgBuf request = endpoint_->alloc_msgbuf(sizeof(presence));
    if (request) std::memcpy(request.bytes().data(), &presence, sizeof(presence));
    auto call = endpoint_->enqueue_request(
        control_, kIncastTotals, std::move(request), endpoint_->alloc_msgbuf(sizeof(IncastTotals)),
        [this, is_farewell](tern::Completion& done) { on_totals(done, is_farewell); });
    if (!call.ok()) run_.fail("a question to " + server_ + " was refused", call.status());
  }
  /// `is_farewell`: the question told the server that this client has finished.
  void on_totals(const tern::Completion& done, bool is_farewell) {
    if (is_farewell) return has_left_.store(true, std::memory_order_release);
    IncastTotals totals;
    if (done.status.ok() && done.response.bytes().size() == sizeof(totals)) {
      std::memcpy(&totals, done.response.bytes().data(), sizeof(totals));
      if (run_.is_recording()) {
        last_ = totals;
      } else if (last_.at_ns == 0) {
        first_ = totals;
      }
      flows_present_.store(totals.flows, std::memory_order_release);
      if (!has_begun_ && !is_leaving_ && totals.flows >= FLAGS_degree) {
        has_begun_ = true;
        for (Flow& flow : flows_) send(flow);
      }
    } else if (!may_fail(done.status)) {
      return fail("a question to " + server_, done);
    }
    const auto timer = endpoint_->after(kAskAgain, [this] { ask_totals(); });
    if (!timer) run_.fail("the client's timer", timer.status());
  }
  void fail(const std::string& what, const tern::Completion& done) {
    constexpr tern::Status kOtherFlags(tern::Code::kRefused,
                                       "the server refused it; give both sides the same --size and --degree");
    const bool is_refused = done.status.code() == tern::Code::kRefused || done.status.code() == tern::Code::kTooLarge;
    run_.fail(what, is_refused ? kOtherFlags : done.status);
  }

  Run& run_;
  const std::string server_;
  const tern::Duration connect_timeout_;
  const uint64_t name_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  tern::Endpoint* endpoint_ = nullptr;
  tern::Session control_;
  std::vector<Flow> flows_;
  Progression progress_;
  tern::microbench::Percentiles calls_ticks_;
  IncastTotals first_{}, last_{};  ///< at the begin and at the end of the measurement
  bool has_begun_ = false;         ///< false until all --degree flows are present
  bool is_leaving_ = false;
  std::atomic<uint64_t> flows_present_{0};
  std::atomic<bool> has_left_{false};
  std::atomic<size_t> in_flight_{0};
};

/// The rest of main() if --transport is a transport between programs.
inline int run_incast_between_programs(int argc, char** argv, const std::vector<int>& cpus) {
  const int server_cpu = cpus[0];
  const int client_cpu = cpus[1 % cpus.size()];
  IncastVictim victim;
  const auto start_server = [&](Run& run, tern::Nexus& nexus) -> size_t {
    run.add_side(server_cpu, [&] {
      serve(
          run, nexus, [&](tern::Endpoint& server) { return victim.add_handlers(server); }, IncastVictim::rpc_options());
    });
    return 1;
  };
  const auto run_client = [&](Run& run, tern::Nexus& nexus, const std::string& server) -> std::optional<Report> {
    const uint64_t flows = FLAGS_flows == 0 ? FLAGS_degree : FLAGS_flows;
    IncastClient client(run, server, flows);
    run.add_side(client_cpu, [&] { client.run(nexus, [&](tern::Endpoint&) { client.begin(); }); });
    const Clock::time_point begin = Clock::now();
    bool has_told = false;
    const auto totals = [&] {
      const uint64_t present = client.flows_present();
      if (!has_told && present > 0 && present < FLAGS_degree && Clock::now() - begin > std::chrono::seconds(1)) {
        std::fprintf(stderr, "%s: %lu of --degree=%lu flows are there; waiting for the other clients\n",
                     gflags::ProgramInvocationShortName(), present, FLAGS_degree);
        has_told = true;
      }
      return std::optional(client.totals());
    };
    const auto measured = measure(run, totals);
    // The other clients began to measure within some ms of this one, so this client sends until they have ended too.
    const bool is_done = measured && run.wait_for(0.2);
    if (is_done) client.take_leave();
    const bool has_left = is_done && run.wait_for(1, [&] { return client.has_left(); });
    run.end();  // the client has made its last writes
    if (!has_left) return std::nullopt;

    Report report;
    report.bench = "incast";
    report.params = common_params();
    report.params.update({{"degree", FLAGS_degree},
                          {"flows", flows},
                          {"credits", FLAGS_credits},
                          {"size", FLAGS_size},
                          {"seconds", FLAGS_seconds}});
    client.add_metrics(report.metrics, *measured);
    return report;
  };
  return play_roles(argc, argv, {server_cpu, client_cpu}, start_server, run_client);
}

}  // namespace programs
