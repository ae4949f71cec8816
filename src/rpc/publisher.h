// Copies an endpoint's counters and its busiest sessions to its segment of the Nexus's page. Owner thread only.
//
// Nothing is done for a packet or a call. About every 100 ms in which something has happened, run_due() copies the
// counters and begins to look at the sessions, a few hundred a step; when it has seen all of them, it copies the
// busiest. An endpoint that does nothing is not woken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "page/page_file.h"
#include "rpc/client_sessions.h"
#include "rpc/endpoint_context.h"
#include "rpc/server_sessions.h"

namespace tern::rpc {

class TERN_API Publisher {
 public:
  static constexpr uint64_t kPeriodNs = 100'000'000;
  /// A step looks at this many sessions and this many places of the table at most. It takes about 0.1 ms of each 5 ms
  /// if the sessions are not in the cache. 10 000 sessions take one period, and more sessions take longer in
  /// proportion.
  static constexpr size_t kSessionsPerStep = 512;
  static constexpr uint64_t kPlacesPerStep = 16384;
  static constexpr uint64_t kStepNs = 5'000'000;

  /// Null: no memory.
  static std::unique_ptr<Publisher> create(EndpointContext& context, const ClientSessions& clients,
                                           const ServerSessions& servers, std::unique_ptr<page::SegmentWriter> to);

  /// Called when a credit epoch begins, which happens while the loop has work, and when the loop is about to wait.
  void note_activity() {
    if (next_ns_ == UINT64_MAX) look_for_news();
  }
  /// Time of the next step. UINT64_MAX: there is nothing new to show.
  uint64_t next_ns() const { return next_ns_; }
  /// Does the next step. Must be called at next_ns() or later.
  void run(const EndpointCounters& counters);
  /// Shows the last counters of an endpoint whose sessions have ended, and the reasons for their ends.
  void finish(const EndpointCounters& counters);

 private:
  struct Candidate {
    uint64_t packets;  ///< packets since the last look
    page::SessionRecord record;
  };
  using Candidates = std::array<Candidate, page::kSessionsMax>;
  enum class Phase : uint8_t { kCounters, kClients, kServers };

  Publisher(EndpointContext& context, const ClientSessions& clients, const ServerSessions& servers,
            std::unique_ptr<page::SegmentWriter> to)
      : context_(context), clients_(clients), servers_(servers), to_(std::move(to)) {}
  void look_for_news();
  uint64_t news() const;
  void write_counters(const EndpointCounters& counters);
  void write_sessions();
  template <class Sessions>
  bool look(const Sessions& sessions);
  void offer(uint64_t name, uint64_t packets, const SessionInfo& info);

  EndpointContext& context_;
  const ClientSessions& clients_;
  const ServerSessions& servers_;
  const std::unique_ptr<page::SegmentWriter> to_;
  std::unique_ptr<Candidates> candidates_;
  /// A heap of indices into candidates_. The candidate with the fewest packets is first.
  std::array<uint16_t, page::kSessionsMax> heap_;
  size_t count_ = 0;  ///< number of candidates
  Phase phase_ = Phase::kCounters;
  uint64_t place_ = 0;     ///< place in the table of sessions at which the next step goes on
  uint64_t began_ns_ = 0;  ///< beginning of the present period
  uint64_t next_ns_ = 0;   ///< see next_ns(); the first step is due at once
  uint64_t shown_ = 0;     ///< news() at the last period
};

}  // namespace tern::rpc
