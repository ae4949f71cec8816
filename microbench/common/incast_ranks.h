// The incast between the processes of a cluster: rank 0 is the victim, every other process a client with --flows flows
// (paper, section 6.5). With --background, each client also exchanges medium-sized RPCs with random other clients, out
// of a second thread. Main thread directs.
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

/// What all processes must agree on.
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

/// The second thread of a client, its endpoint 1: one RPC at a time with endpoint 1 of a random other client.
class IncastBackground {
 public:
  explicit IncastBackground(const Ranked& ranked) : ranked_(ranked) {
    load_.batch = load_.window = load_.session_window = 1;
    load_.size = static_cast<uint32_t>(FLAGS_background_size);
    load_.run = &ranked.run;
  }

  /// Its thread.
  template <tern::Transport T>
  void run() {
    serve<T>(
        ranked_.run, ranked_.nexus, [this](tern::Endpoint& endpoint) { return prepare(endpoint); }, rpc_options(1));
  }
  /// Main thread, once all processes are there.
  void begin() {
    note(endpoint_->post([this] { connect(); }));
    note(talker_->start());
  }
  void stop() { note(talker_->stop()); }
  bool has_stopped() const { return talker_->has_stopped(); }
  /// Main thread, after the run.
  void add_metrics(nlohmann::ordered_json& metrics) const {
    const double us_per_tick = tern::microbench::Ticks::ns_per_tick() / 1e3;
    metrics["background_p50_us"] = latencies_ticks_.at(0.5) * us_per_tick;
    metrics["background_p99_us"] = latencies_ticks_.at(0.99) * us_per_tick;
    metrics["background_rpcs"] = latencies_ticks_.count();
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
    const auto timeout = std::chrono::nanoseconds(static_cast<int64_t>(ranked_.patience_seconds() * 1e9));
    for (size_t rank = 1; rank < ranked_.launch.ranks(); ++rank) {
      if (rank == ranked_.launch.rank) continue;
      note(talker_->connect("tern://" + ranked_.launch.places[rank].text() + "/1", timeout));
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

/// Rank 0. Nothing: failed or interrupted.
template <tern::Transport T>
std::optional<Report> play_incast_victim(const Ranked& ranked, Meeting& meeting) {
  Run& run = ranked.run;
  IncastVictim victim;
  const auto add_handlers = [&](tern::Endpoint& server) {
    const tern::Status status = victim.add_handlers(server);
    return status.ok() ? meeting.add_to(server) : status;
  };
  run.add_side(ranked.cpus[0], [&] { serve<T>(run, ranked.nexus, add_handlers, IncastVictim::rpc_options()); });
  const double patience = ranked.patience_seconds();
  const auto take_part = [&]() -> std::optional<Totals> {
    if (!run.wait_for_ready(1) || !meeting.hold(patience)) return std::nullopt;
    const auto measured = measure(run, [&] { return std::optional(victim.totals()); });
    return measured && meeting.hold(patience) && meeting.hold_last(patience) ? measured : std::nullopt;
  };
  const auto measured = take_part();
  run.end();
  if (!measured) return std::nullopt;
  Report report;
  report.params = incast_ranks_params();
  report.params["role"] = "server";
  report.metrics["total_gbps"] =
      static_cast<double>(measured->completed) * static_cast<double>(FLAGS_size) * 8 / measured->seconds / 1e9;
  return report;
}

/// Every other rank.
template <tern::Transport T>
std::optional<Report> play_incast_client(const Ranked& ranked, Meeting& meeting) {
  Run& run = ranked.run;
  IncastClient client(run, "tern://" + ranked.launch.places[0].text(), FLAGS_flows);
  IncastBackground background(ranked);
  run.add_side(ranked.cpus[0], [&] {
    client.run<T>(ranked.nexus, [&](tern::Endpoint& endpoint) {
      const tern::Status status = meeting.add_to(endpoint);
      if (!status.ok()) run.fail("no handler", status);
    });
  });
  if (FLAGS_background) run.add_side(ranked.cpus[1 % ranked.cpus.size()], [&] { background.run<T>(); });
  const double patience = ranked.patience_seconds();
  const auto take_part = [&]() -> std::optional<Totals> {
    if (!run.wait_for_ready(FLAGS_background ? 2 : 1) || !meeting.hold(patience)) return std::nullopt;
    client.post_begin();
    if (FLAGS_background) background.begin();
    const auto measured = measure(run, [&] { return std::optional(client.totals()); });
    if (!measured || !meeting.hold(patience)) return std::nullopt;  // the others still measure
    client.take_leave();
    if (FLAGS_background) background.stop();
    const auto has_stopped = [&] { return client.has_stopped() && (!FLAGS_background || background.has_stopped()); };
    const bool is_done = run.wait_for(patience, has_stopped) && has_stopped();
    return is_done && meeting.hold_last(patience) ? measured : std::nullopt;
  };
  const auto measured = take_part();
  run.end();  // the threads have written their last
  if (!measured) return std::nullopt;
  Report report;
  report.params = incast_ranks_params();
  report.params["role"] = "client";
  report.metrics["total_gbps"] = client.total_gbps();
  report.metrics["client_gbps"] =
      static_cast<double>(measured->completed) * static_cast<double>(FLAGS_size) * 8 / measured->seconds / 1e9;
  add_percentiles(report.metrics, client.calls_ticks());
  if (FLAGS_background) background.add_metrics(report.metrics);
  report.metrics["retransmissions"] = measured->retransmissions;
  if (FLAGS_corrupt > 0) report.metrics["calls_failed"] = measured->failed;
  return report;
}

/// Of main(), with --launcher.
template <tern::Transport T>
int run_ranked_incast(const Launch& launch, const std::vector<int>& cpus) {
  return play_rank(launch, cpus, FLAGS_background ? 2 : 1, [](const Ranked& ranked) -> std::optional<Report> {
    Meeting meeting(ranked.run, ranked.launch, FLAGS_start_seconds, "incast " + incast_ranks_params().dump());
    auto report =
        ranked.launch.rank == 0 ? play_incast_victim<T>(ranked, meeting) : play_incast_client<T>(ranked, meeting);
    if (report) report->bench = "incast";
    return report;
  });
}

}  // namespace programs
