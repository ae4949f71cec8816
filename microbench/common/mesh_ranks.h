// The mesh between the processes of a cluster. Each process has --threads endpoints with a thread each, which are
// client and server at once. Every endpoint has sessions with every other endpoint (paper, sections 6.2 and 6.3). The
// main thread directs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "mesh_thread.h"
#include "ranks.h"

namespace programs {

/// The results of one process.
struct RankedMeshResult {
  Totals totals;  ///< calls of this process during the measurement
  tern::microbench::Percentiles latencies_ticks;
  uint64_t sessions = 0;  ///< client sessions of its endpoints; they have as many server sessions
  double connect_seconds = 0;
  uint64_t bytes_before = 0;  ///< memory before any session is open, with the endpoints
  uint64_t bytes_in_use = 0;  ///< memory right after the measurement
};

class RankedMesh {
 public:
  /// `sessions` is the number of sessions of each thread with each other thread.
  RankedMesh(const Ranked& ranked, uint32_t threads, uint32_t sessions, const MeshLoad& load)
      : ranked_(ranked), threads_(threads), sessions_(sessions), load_(load) {}

  /// Returns when nothing is on its way any more. The threads continue to run, and use this object. Returns nullopt if
  /// it failed or was interrupted. Must be called at most once.
  std::optional<RankedMeshResult> run() {
    for (uint32_t i = 0; i < threads_; ++i) {
      Side& side = sides_.emplace_back();
      ranked_.run.add_side(ranked_.cpus[i % ranked_.cpus.size()], [this, &side, i] { serve(side, i); });
    }
    RankedMeshResult result;
    if (!take_part(result)) return std::nullopt;
    for (const Side& side : sides_) result.latencies_ticks.merge(side.latencies_ticks);
    return result;
  }

 private:
  /// A thread and its endpoint.
  struct Side {
    tern::Endpoint* endpoint = nullptr;
    std::optional<MeshThread> mesh;
    tern::microbench::Percentiles latencies_ticks;
  };

  void serve(Side& side, uint32_t index) {
    Run& run = ranked_.run;
    auto rpc = create_rpc(ranked_.nexus, rpc_options(static_cast<uint16_t>(index)));
    if (!rpc.ok()) return run.fail("no endpoint", rpc.status());
    tern::Endpoint& endpoint = (*rpc)->endpoint();
    tern::Status status = prepare(side, endpoint, index);
    if (!status.ok()) return run.fail("no endpoint", status);
    if (!run.enter(endpoint)) return;
    run.ready();
    status = (*rpc)->run_event_loop();
    if (!status.ok()) run.fail("an endpoint's event loop", status);
    run.leave();
  }
  tern::Status prepare(Side& side, tern::Endpoint& endpoint, uint32_t index) {
    side.endpoint = &endpoint;
    const uint64_t seed = uint64_t{ranked_.launch.rank} << 32 | index;
    side.mesh.emplace(endpoint, load_, seed,
                      [this](const std::string& what, tern::Status status) { ranked_.run.fail(what, status); });
    side.mesh->set_recording(&side.latencies_ticks);
    auto status = endpoint.on_request(MeshThread::kEcho, echo, {.max_request_bytes = size_t{1} << 30});
    if (status.ok()) status = side.mesh->prepare();
    const auto on_event = [this](const tern::SessionEvent& event) { on_session_event(event); };
    if (!status.ok()) return status;
    return index == 0 ? ranked_.meeting.add_to(endpoint, on_event) : endpoint.on_session_event(on_event);
  }
  /// Any side thread.
  void on_session_event(const tern::SessionEvent& event) {
    if (!event.is_client) return;
    if (event.state == tern::SessionState::kOpen) {
      opened_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
      open_.fetch_add(1, std::memory_order_release);
    } else if (!has_measured_.load(std::memory_order_acquire)) {
      ranked_.run.fail("a session with another process", event.status);
    }
  }

  /// Returns false if it failed or was interrupted.
  bool take_part(RankedMeshResult& result) {
    Run& run = ranked_.run;
    if (!run.wait_for_ready(threads_)) return false;
    result.bytes_before = memory_bytes();
    if (!ranked_.meet()) return false;

    const Clock::time_point begin = Clock::now();
    result.sessions = open_sessions();
    const auto are_open = [&] { return open_.load(std::memory_order_acquire) == result.sessions; };
    if (!ranked_.wait_until(are_open, "opening sessions")) return false;
    const Clock::time_point opened(Clock::duration(opened_at_.load(std::memory_order_relaxed)));
    result.connect_seconds = std::chrono::duration<double>(opened - begin).count();
    if (!ranked_.meet()) return false;

    for (Side& side : sides_) note(side.mesh->start());
    const auto measured = ranked_.measure([this] { return std::optional(totals()); });
    if (!measured) return false;
    result.totals = *measured;
    result.bytes_in_use = memory_bytes();
    if (!ranked_.meet()) return false;  // the others still measure, and need this process's load

    has_measured_.store(true, std::memory_order_release);
    for (Side& side : sides_) note(side.mesh->stop());
    const auto have_stopped = [this] {
      return std::all_of(sides_.begin(), sides_.end(), [](const Side& side) { return side.mesh->has_stopped(); });
    };
    return ranked_.wait_until(have_stopped, "the last calls");
  }

  /// Opens the sessions of all threads, in their own loops. Returns the number of sessions. Does not wait.
  uint64_t open_sessions() {
    const uint64_t endpoints = ranked_.launch.ranks() * threads_;
    for (uint32_t i = 0; i < threads_; ++i) {
      Side& side = sides_[i];
      const uint64_t own = uint64_t{ranked_.launch.rank} * threads_ + i;
      // First to the endpoint after this one, then to the second after it, and so on. So no Nexus gets requests from
      // all endpoints at once.
      note(side.endpoint->post([this, &side, own, endpoints] {
        for (uint64_t distance = 1; distance < endpoints; ++distance) {
          const std::string uri = uri_of((own + distance) % endpoints);
          for (uint32_t session = 0; session < sessions_; ++session) {
            const tern::Status status = side.mesh->connect(uri, ranked_.patience());
            if (!status.ok()) return ranked_.run.fail("no session with " + uri, status);
          }
        }
      }));
    }
    return (endpoints - 1) * threads_ * sessions_;
  }
  std::string uri_of(uint64_t endpoint) const {
    const uint64_t rank = endpoint / threads_;
    const std::string nexus =
        rank == ranked_.launch.rank ? ranked_.nexus.uri() : "tern://" + ranked_.launch.places[rank].text();
    return nexus + "/" + std::to_string(endpoint % threads_);
  }

  Totals totals() const {
    Totals sum = sides_.front().mesh->totals();
    for (auto side = std::next(sides_.begin()); side != sides_.end(); ++side) {
      const Totals one = side->mesh->totals();
      sum.completed += one.completed;
      sum.failed += one.failed;
      sum.retransmissions += one.retransmissions;
    }
    return sum;
  }
  void note(tern::Status status) {
    if (!status.ok()) ranked_.run.fail("an endpoint takes no posted function", status);
  }

  const Ranked& ranked_;
  const uint32_t threads_;
  const uint32_t sessions_;
  const MeshLoad load_;
  std::deque<Side> sides_;
  std::atomic<uint64_t> open_{0};          ///< open client sessions of this process
  std::atomic<Clock::rep> opened_at_{0};   ///< when the last session opened
  std::atomic<bool> has_measured_{false};  ///< this process and all others have measured: sessions may end
};

}  // namespace programs
