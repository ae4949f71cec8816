// An endpoint's events in the log of its Nexus (NexusOptions::log). Owner thread only.
//
// The sink is a function of the program, and runs in the middle of the library's steps. The endpoint therefore has no
// owner thread while the sink runs: calls that are for the owner thread only are refused (kWrongThread), so that the
// sink cannot change the endpoint's state. No member may be called on the path of a packet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tern/counters.h>
#include <tern/log.h>

#include "base/log_limit.h"
#include "nexus/nexus_core.h"

namespace tern::rpc {

class EndpointLog {
 public:
  /// `owner` is the endpoint's owner thread (base::thread_name()), and is changed while the sink runs.
  EndpointLog(nexus::NexusCore& nexus, const nexus::EndpointPort& port, std::atomic<const void*>& owner)
      : nexus_(nexus), port_(port), owner_(owner), is_on_(nexus.has_log()) {}

  /// True if there is a sink.
  bool is_on() const { return is_on_; }
  /// True if the sink runs now. Any thread.
  bool is_telling() const { return owner_.load(std::memory_order_relaxed) == &kTelling; }

  /// Logs an event of the endpoint itself.
  void endpoint(LogKind kind, const Status& status = {}) const;
  /// The details of a session besides its name.
  struct Details {
    Duration pause{0};
    uint32_t packet_bytes = 0;
  };
  void session(LogKind kind, Session session, bool is_client, std::string_view peer, const Status& status = {}) const {
    this->session(kind, session, is_client, peer, status, {});
  }
  void session(LogKind kind, Session session, bool is_client, std::string_view peer, const Status& status,
               const Details& details) const;
  /// kSessionRefused or kSessionFailed at a server. `session` may be Session{}.
  void client_turned_away(LogKind kind, Session session, std::string_view peer, const Status& status);
  /// Checks the transport's counters and logs new faults.
  void watch(const TransportCounters& counters, uint64_t now_ns);

 private:
  static constexpr size_t kFaults = 3;
  static constexpr char kTelling = 0;  ///< its address is no thread's name

  void tell(LogEvent& event) const;

  nexus::NexusCore& nexus_;
  const nexus::EndpointPort& port_;
  std::atomic<const void*>& owner_;
  const bool is_on_;
  base::LogLimit limit_;
  std::array<uint64_t, kFaults> faults_told_{};  ///< the transport's counters as of the last events
  uint64_t watched_ns_ = 0;                      ///< time of the last look
};

}  // namespace tern::rpc
