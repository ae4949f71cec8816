// The incast between the processes of a cluster: rank 0 is the victim, and every other process is a client with --flows
// flows (paper, section 6.5). With --background, each client also exchanges medium-sized RPCs with random other
// clients, in a second thread. The main thread directs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "incast_hosts.h"
#include "mesh_thread.h"
#include "ranks.h"

DECLARE_bool(background);
DECLARE_uint64(background_size);

namespace programs {

/// The parameters that must be equal in all processes.
inline nlohmann::ordered_json incast_ranks_params() {
  nlohmann::ordered_json params = common_params();
  params.update({{"degree", FLAGS_degree},
                 {"flows", FLAGS_flows},
                 {"background", FLAGS_background},
                 {"credits", FLAGS_credits},
                 {"size", FLAGS_size},
                 {"seconds", FLAGS_seconds}});
  if (FLAGS_background) params["background_size"] = FLAGS_background_size;
  return params;
}

/// The second thread of a client, with its endpoint 1: one RPC at a time with endpoint 1 of a random other client.
class IncastBackground {
 public:
  explicit IncastBackground(const Ranked& ranked) : ranked_(ranked) {
    load_.batch = load_.window = load_.session_window = 1;
    load_.size = static_cast<uint32_t>(FLAGS_background_size);
    load_.run = &ranked.run;
  }

  /// The body of the second thread.
  void run() {
    serve(
        ranked_.run, ranked_.nexus, [this](tern::Endpoint& endpoint) { return prepare(endpoint); }, rpc_options(1));
  }
  /// Must be called when all processes are present. Main thread.
  void begin() {
    note(endpoint_->post([this] { connect(); }));
    note(talker_->start());
  }
  void stop() { note(talker_->stop()); }
  bool has_stopped() const { return talker_->has_stopped(); }
  /// Must be called after the run. Main thread.
  void add_metrics(nlohmann::ordered_json& metrics) const {
    metrics["background_rpcs"] = latencies_ticks_.count();
    if (latencies_ticks_.count() == 0) return;
    const double us_per_tick = tern::microbench::Ticks::ns_per_tick() / 1e3;
    metrics["background_p50_us"] = latencies_ticks_.at(0.5) * us_per_tick;
    metrics["background_p99_us"] = latencies_ticks_.at(0.99) * us_per_tick;
  }

 private:
  tern::Status prepare(tern::Endpoint& endpoint) {
    endpoint_ = &endpoint;
    talker_.emplace(endpoint, load_, ranked_.launch.rank, [this](const std::string& what, tern::Status status) {
      ranked_.run.fail(what + " of the background", status);
    });
    talker_->set_recording(&latencies_ticks_);
    const auto status = endpoint.on_request(MeshThread::kEcho, echo, {.max_request_bytes = FLAGS_background_size});
    return status.ok() ? talker_->prepare() : status;
  }
  void connect() {
    for (size_t rank = 1; rank < ranked_.launch.ranks(); ++rank) {
      if (rank == ranked_.launch.rank) continue;
      note(talker_->connect("tern://" + ranked_.launch.places[rank].text() + "/1", ranked_.patience()));
    }
  }
  void note(tern::Status status) {
    if (!status.ok()) ranked_.run.fail("the background", status);
  }

  const Ranked& ranked_;
  MeshLoad load_;
  tern::Endpoint* endpoint_ = nullptr;
  std::optional<MeshThread> talker_;
  tern::microbench::Percentiles latencies_ticks_;
};

/// Rank 0. Returns false if it failed or was interrupted.
inline bool play_incast_victim(const Ranked& ranked) {
  Run& run = ranked.run;
  IncastVictim victim;
  const auto add_handlers = [&](tern::Endpoint& server) {
    const tern::Status status = victim.add_handlers(server);
    return status.ok() ? ranked.meeting.add_to(server) : status;
  };
  const auto take_part = [&]() -> std::optional<Report> {
    run.add_side(ranked.cpus[0], [&] { serve(run, ranked.nexus, add_handlers, IncastVictim::rpc_options()); });
    if (!run.wait_for_ready(1) || !ranked.meet()) return std::nullopt;
    const auto measured = ranked.measure([&] { return std::optional(victim.totals()); });
    if (!measured || !ranked.meet()) return std::nullopt;
    Report report;
    report.bench = "incast";
    report.params = incast_ranks_params();
    report.params["role"] = "server";
    report.metrics["total_gbps"] =
        static_cast<double>(measured->completed) * static_cast<double>(FLAGS_size) * 8 / measured->seconds / 1e9;
    return report;
  };
  return ranked.finish(take_part());
}

/// Every other rank. Returns false if it failed or was interrupted.
inline bool play_incast_client(const Ranked& ranked) {
  Run& run = ranked.run;
  IncastClient client(run, "tern://" + ranked.launch.places[0].text(), FLAGS_flows, ranked.patience());
  IncastBackground background(ranked);
  const auto prepare = [&](tern::Endpoint& endpoint) {
    const tern::Status status = ranked.meeting.add_to(endpoint);
    if (!status.ok()) run.fail("no handler", status);
  };
  const auto take_part = [&]() -> std::optional<Report> {
    run.add_side(ranked.cpus[0], [&] { client.run(ranked.nexus, prepare); });
    if (FLAGS_background) run.add_side(ranked.cpus[1 % ranked.cpus.size()], [&] { background.run(); });
    if (!run.wait_for_ready(FLAGS_background ? 2 : 1) || !ranked.meet()) return std::nullopt;
    client.post_begin();
    if (FLAGS_background) background.begin();
    const auto measured = ranked.measure([&] { return std::optional(client.totals()); });
    if (!measured || !ranked.meet()) return std::nullopt;  // the other clients still measure
    client.take_leave();
    if (FLAGS_background) background.stop();
    const auto has_stopped = [&] { return client.has_stopped() && (!FLAGS_background || background.has_stopped()); };
    if (!ranked.wait_until(has_stopped, "the last requests")) return std::nullopt;
    Report report;
    report.bench = "incast";
    report.params = incast_ranks_params();
    report.params["role"] = "client";
    client.add_metrics(report.metrics, *measured);
    if (FLAGS_background) background.add_metrics(report.metrics);
    return report;
  };
  return ranked.finish(take_part());
}

/// The rest of main() with --launcher.
inline int run_ranked_incast(const Launch& launch, const std::vector<int>& cpus) {
  const std::string flags = text_of(incast_ranks_params());
  return play_rank(launch, cpus, FLAGS_background ? 2 : 1, flags, [](const Ranked& ranked) {
    return ranked.launch.rank == 0 ? play_incast_victim(ranked) : play_incast_client(ranked);
  });
}

}  // namespace programs
