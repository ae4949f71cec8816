// Every thread of a simulated cluster has a session with every other thread, and keeps small RPCs with random other
// threads in flight (paper section 6.3, Figure 5). Each thread of the cluster is an endpoint, which is client and
// server at once. One thread, virtual time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "mesh_thread.h"

namespace programs {

class Mesh {
 public:
  Mesh(Cluster& cluster, uint32_t threads, const MeshLoad& load)
      : cluster_(cluster), nodes_(cluster.simulation().hosts()), threads_(threads), load_(load) {}

  /// `memory_bytes()` returns the memory that this process occupies. Returns false if it failed or was interrupted.
  template <class Handler, class MemoryBytes>
  [[nodiscard]] bool run(tern::Duration length, const Handler& handler, const MemoryBytes& memory_bytes) {
    bytes_before_ = memory_bytes();
    if (tern::Status status = add_threads(handler); !status.ok()) cluster_.fail("no endpoint", status);
    bytes_with_endpoints_ = memory_bytes();
    if (!open_sessions()) return false;
    open_seconds_ = Cluster::seconds_of(cluster_.simulation().now());
    bytes_open_ = memory_bytes();

    for (const auto& thread : mesh_) note(thread->start());
    cluster_.set_phase("warming up");
    if (!cluster_.run_for(kWarmUp)) return false;
    cluster_.set_phase("measuring");
    for (const auto& thread : mesh_) thread->set_recording(&latencies_ns_);
    const tern::Duration begin = cluster_.simulation().now();
    if (!cluster_.run_for(length)) return false;
    measured_ = cluster_.simulation().now() - begin;
    for (const auto& thread : mesh_) thread->set_recording(nullptr);
    bytes_in_use_ = memory_bytes();
    return true;
  }

  void add_metrics(nlohmann::ordered_json& metrics) const {
    if (measured_ > tern::Duration(0)) {
      const auto calls = static_cast<double>(latencies_ns_.count());
      metrics["rate_mrps_per_node"] = calls / static_cast<double>(measured_.count()) * 1e3 / nodes_;
    }
    tern::microbench::add_percentiles(metrics, latencies_ns_, 1e-3, FLAGS_json);
    if (latencies_ns_.count() > 0) metrics["p9999_us"] = latencies_ns_.at(0.9999) / 1e3;
    metrics["calls"] = latencies_ns_.count();
    const auto ends = static_cast<double>(2 * mesh_.size() * (mesh_.size() - 1));
    metrics["sessions_per_node"] = threads_ * (mesh_.size() - 1);
    metrics["session_ends"] = 2 * mesh_.size() * (mesh_.size() - 1);
    metrics["memory_bytes"] = bytes_in_use_;
    metrics["bytes_per_endpoint"] = growth(bytes_before_, bytes_with_endpoints_) / static_cast<double>(mesh_.size());
    metrics["bytes_per_session_end_open"] = growth(bytes_with_endpoints_, bytes_open_) / ends;
    metrics["bytes_per_session_end"] = growth(bytes_with_endpoints_, bytes_in_use_) / ends;
    metrics["open_seconds"] = open_seconds_;
  }

 private:
  static constexpr tern::Duration kWarmUp = std::chrono::milliseconds(2);

  static double growth(uint64_t from, uint64_t to) { return static_cast<double>(to) - static_cast<double>(from); }
  void note(tern::Status status) {
    if (!status.ok()) cluster_.fail("a thread could not be started", status);
  }

  template <class Handler>
  tern::Status add_threads(const Handler& handler) {
    for (uint32_t thread = 0; thread < threads_; ++thread) {
      for (uint32_t node = 0; node < nodes_; ++node) {
        tern::RpcOptions options = rpc_options(static_cast<uint16_t>(thread));
        options.huge_pages = false;  // there are up to a thousand endpoints, and each needs little message memory
        auto endpoint = cluster_.add_endpoint(node, options);
        if (!endpoint.ok()) return endpoint.status();
        if (auto status = (*endpoint)->on_request(MeshThread::kEcho, handler); !status.ok()) return status;
        mesh_.push_back(std::make_unique<MeshThread>(
            **endpoint, load_, cluster_.simulation().random(),
            [this](const std::string& what, tern::Status status) { cluster_.fail(what, status); }));
        uris_.push_back(cluster_.uri(node, static_cast<uint16_t>(thread)));
        if (auto status = mesh_.back()->prepare(); !status.ok()) return status;
      }
    }
    return {};
  }
  /// Opens the sessions in turns: each thread to the thread after itself, then to the second after itself, and so on.
  /// So no Nexus gets requests from all threads at once.
  bool open_sessions() {
    for (size_t distance = 1; distance < mesh_.size(); ++distance) {
      for (size_t i = 0; i < mesh_.size(); ++i) {
        const tern::Status status = mesh_[i]->connect(uris_[(i + distance) % mesh_.size()], kConnectMax);
        if (!status.ok()) cluster_.fail("no session", status);
      }
      if (!cluster_.run_for(kBetweenTurns)) return false;
    }
    size_t open = 0;
    const auto are_open = [&] {
      while (open < mesh_.size() && mesh_[open]->is_open()) ++open;
      return open == mesh_.size();
    };
    return cluster_.run_until(are_open, std::chrono::minutes(1), "opening the sessions");
  }
  static constexpr tern::Duration kConnectMax = std::chrono::minutes(10);  ///< thousands of sessions are opened at once
  static constexpr tern::Duration kBetweenTurns = std::chrono::microseconds(100);

  Cluster& cluster_;
  const uint32_t nodes_;
  const uint32_t threads_;
  const MeshLoad load_;
  std::vector<std::unique_ptr<MeshThread>> mesh_;
  std::vector<std::string> uris_;
  tern::microbench::Percentiles latencies_ns_;
  tern::Duration measured_{0};
  double open_seconds_ = 0;
  uint64_t bytes_before_ = 0, bytes_with_endpoints_ = 0, bytes_open_ = 0, bytes_in_use_ = 0;
};

}  // namespace programs
