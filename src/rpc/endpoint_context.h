// State that all parts of an endpoint share: its environment, the time of this iteration, the counters.
// Owner thread only, except for `mailbox` and `port`, which have locks of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include <tern/endpoint.h>

#include "memory/arena.h"
#include "nexus/control.h"
#include "nexus/nexus_core.h"
#include "rpc/agenda.h"
#include "rpc/ended_sessions.h"
#include "rpc/endpoint_internals.h"
#include "rpc/endpoint_log.h"
#include "rpc/mailbox.h"
#include "rpc/tracer.h"
#include "rpc/transport_port.h"
#include "wire/header.h"

namespace tern::rpc {

/// Returns `duration` in ns, or 0 if it is negative.
inline uint64_t to_ns(Duration duration) { return static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0)); }

/// Limits what each budget can use to half of the memory limit, because one client could otherwise use up all memory.
/// The receive budget counts messages, whose blocks may be twice as large.
inline RpcOptions within_memory_limit(RpcOptions options) {
  options.receive_budget_bytes = std::min(options.receive_budget_bytes, options.memory_limit_bytes / 4);
  options.response_budget_bytes = std::min(options.response_budget_bytes, options.memory_limit_bytes / 2);
  return options;
}

/// How the loop receives packets.
enum class Receiving : uint8_t {
  kPlain,
  kAhead,   ///< many sessions: a burst's sessions are prefetched before its packets are handled
  kTraced,  ///< all packets take the general path
};

struct EndpointContext {
  /// Takes over `its_arena` and `its_received`, which may be one arena. `orphan` runs when the Nexus dies first.
  /// `owner` is the owner thread's name (base::thread_name()).
  EndpointContext(nexus::NexusCore& its_nexus, memory::Arena& its_arena, memory::Arena& its_received,
                  const RpcOptions& its_options, std::string_view transport_name, TransportPort& its_transport,
                  uint64_t its_rto_ns_min, std::function<void()> orphan, std::atomic<const void*>& owner)
      : nexus(its_nexus),
        arena(its_arena),
        received(its_received),
        transport(its_transport),
        options(within_memory_limit(its_options)),
        rto_ns_min(its_rto_ns_min),
        mailbox(new Mailbox(its_arena, its_received, its_nexus.environment())),
        port(
            its_options.endpoint_id, transport_name, [box = mailbox] { box->announce_control(); }, std::move(orphan)),
        agenda(its_transport),
        log(its_nexus, port, owner) {}
  EndpointContext(const EndpointContext&) = delete;
  EndpointContext& operator=(const EndpointContext&) = delete;

  /// Reads the clock if no iteration runs. During an iteration the endpoint's time stands still.
  void read_clock_outside_loop() {
    if (!is_in_loop) now_ns = transport.now();
  }

  /// The program has begun a session, the endpoint has accepted one, or a server has.
  void note_new_session() { new_session_ns = now_ns; }
  /// True for a time slice of the scheduler after note_new_session(). The management thread probably works on sessions
  /// of this endpoint then, and may need its CPU.
  bool has_new_session_lately() const { return now_ns - new_session_ns < kTimeSliceNs; }
  static constexpr uint64_t kTimeSliceNs = 3'000'000;

  /// Counts sessions that were made (1) or freed (-1).
  void count_sessions(int64_t change) {
    sessions += static_cast<size_t>(change);
    choose_receiving();
  }
  void choose_receiving() {
    if (tracer != nullptr) {
      receiving = Receiving::kTraced;
    } else {
      receiving = sessions > kCachedSessions ? Receiving::kAhead : Receiving::kPlain;
    }
  }
  /// The lines of this many sessions that packets touch stay in a second-level cache, whose misses cost little.
  static constexpr size_t kCachedSessions = 256;

  /// Calls the program's listener, if there is one.
  void announce(const SessionEvent& event) const {
    if (listener != nullptr) (*listener)(event);
  }

  nexus::NexusCore& nexus;
  memory::Arena& arena;     ///< memory of messages to send
  memory::Arena& received;  ///< memory of requests that have arrived; may be `arena`
  TransportPort& transport;
  const RpcOptions options;
  const uint64_t rto_ns_min;  ///< the transport's Traits::rto_ns_min
  Mailbox* const mailbox;     ///< closed by ~EndpointCore; deletes itself with the last record of a request
  nexus::EndpointPort port;   ///< the Nexus's access to the endpoint

  uint64_t now_ns = 0;    ///< time of this iteration; written by the loop
  uint64_t released = 0;  ///< the transport's released() as of this iteration; written by the loop
  EndpointCounters counters;
  EndedSessions ended;
  std::unique_ptr<SessionListener> listener;  ///< null: the program has none
  Agenda agenda;
  EndpointLog log;
  std::unique_ptr<Tracer> tracer;  ///< null: RpcOptions::trace_records is 0. Does not change after start()
  size_t sessions = 0;             ///< of both kinds; written by count_sessions()
  Receiving receiving = Receiving::kPlain;
  bool is_in_loop = false;  ///< an iteration runs
  /// The loop polls for at least this long before it sleeps. UINT64_MAX: it does not sleep, or the program runs each
  /// iteration. 0: it may sleep at once, or the program waits between iterations.
  uint64_t poll_ns = UINT64_MAX;
  bool is_closing = false;      ///< new requests and new sessions are refused
  uint64_t new_session_ns = 0;  ///< time of the last note_new_session()
  wire::Header last_part;       ///< header of the last new part of a long message; all 0: no part is expected
};

}  // namespace tern::rpc
