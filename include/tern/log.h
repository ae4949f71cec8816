// Events of a Nexus, its endpoints, sessions and peers, which the library passes to a sink of the program
// (NexusOptions::log). These are control events only; packets and calls make no events. Standard library only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/session.h>
#include <tern/status.h>

namespace tern {

/// The kind of an event. Each kind lists the fields of LogEvent that it sets, besides `severity`, `time`, `nexus` and
/// `left_out`. Events of an endpoint have `endpoint` and `transport`; those of a session have `session`, `is_client`
/// and `peer`.
enum class LogKind : uint8_t {
  kNexusCreated,  ///< Nexus::create() has succeeded
  kNexusClosed,   ///< the Nexus is destroyed: its last event
  kPageMissing,   ///< the page of NexusOptions::page could not be made: `status`
  kPeerDead,      ///< a peer's Nexus no longer answers: `peer`, `status`; `count` sessions with it end
  /// A peer's Nexus has restarted, or had declared this one dead: `peer`, `status`; `count` sessions with it end.
  kPeerRestarted,
  kEndpointCreated,  ///< Rpc::create() has succeeded
  kEndpointClosed,   ///< Rpc::close() or ~Rpc: the endpoint's last event
  kSessionOpened,    ///< a full packet has passed both ways
  /// A session was refused: `status`. At a client: by the server. At a server: a client's request, which has no
  /// `session` yet.
  kSessionRefused,
  kSessionFailed,  ///< a session has ended that was never open, and was not refused: `status`
  kSessionLost,    ///< an open session has ended, but not by its owner: `status`
  /// A session was ended on purpose: `status`. It was ended by destroy_session(), by the end of its endpoint, or at a
  /// server by its client.
  kSessionClosed,
  /// A session of SessionOptions::reconnect was lost, or an attempt to open it has failed: `status`. The next attempt
  /// begins after `pause`. Comes in place of kSessionRefused, kSessionFailed and kSessionLost.
  kSessionReconnecting,
  /// Full packets of a session no longer pass, but short ones do: `packet_bytes`. The event of the session's end
  /// follows.
  kPathTooSmall,
  kPathPaired,  ///< a client's session opened on one address and port pair, because the two-port way is filtered
  kPathMoved,   ///< a server's session continues with its client at another address
  /// A device or interface has reported an event, such as a link that goes down or comes back; a queue was reset; or
  /// the system has refused packets. `status` describes the fault, `count` is its number. At most one event of each
  /// fault a second. A fault is noticed within some ms while the endpoint has work, and before it sleeps.
  kTransportFault,
  kTransportFailed,  ///< the transport will never move a packet again, and the endpoint's sessions end: `status`
  kTraceMissing,     ///< an endpoint could not write its file in RpcOptions::trace_folder: `status`
};
/// In words: "session_opened".
TERN_API std::string_view to_string(LogKind kind);

/// The importance of an event for the operator of the program.
enum class LogSeverity : uint8_t {
  kInfo,     ///< expected: an object began or ended as intended
  kWarning,  ///< a peer or the network has failed, or a limit was reached; the endpoint goes on
  kError,    ///< this endpoint or Nexus can no longer work
};
/// In words: "warning".
TERN_API std::string_view to_string(LogSeverity severity);
/// The severity of all events of a kind.
TERN_API LogSeverity severity_of(LogKind kind);

/// An event. All texts are valid within LogSink::on_event() only.
struct LogEvent {
  LogKind kind = LogKind::kNexusCreated;      ///< the kind of event
  LogSeverity severity = LogSeverity::kInfo;  ///< severity_of(kind)
  Duration time{0};                           ///< on the Nexus's clock: CLOCK_MONOTONIC, or virtual time
  std::string_view nexus;                     ///< "HOST:PORT" at which the Nexus listens, numeric
  std::optional<uint16_t> endpoint;           ///< RpcOptions::endpoint_id
  std::string_view transport;                 ///< of the endpoint: "shm", "udp", ...
  Session session;                            ///< its name at the endpoint; Session{}: none
  bool is_client = false;                     ///< true: the endpoint has created the session; false: a client has
  std::string_view peer;                      ///< "HOST:PORT" of the peer's Nexus, numeric. Empty: not known
  Status status;                              ///< the reason; its message has static storage duration
  Duration pause{0};                          ///< until the next attempt
  uint32_t packet_bytes = 0;                  ///< of a full packet with its header
  uint64_t count = 0;                         ///< its meaning depends on the kind
  /// The number of events of this kind that were left out since the last one. Each endpoint, and the management, passes
  /// on at most 100 events a second of kSessionRefused, and of kSessionFailed at a server, because strangers can cause
  /// them.
  uint64_t left_out = 0;
};

/// In English, without a line break: "warning: endpoint 0 (udp) of 127.0.0.1:31850: session 1a: session_lost, ...".
/// Throws std::bad_alloc.
TERN_API std::string to_string(const LogEvent& event);

/// Takes the events of a Nexus and its endpoints: NexusOptions::log. A sink may serve several Nexuses.
class LogSink {
 public:
  virtual ~LogSink() = default;
  /// Takes an event. Runs in the thread of the event: the owner thread of the endpoint, in its loop or in a call of one
  /// of its members; the management thread of the Nexus for peers, and for refusals that no endpoint decides; the
  /// thread that makes or destroys a Nexus or an Rpc. It must therefore be thread-safe, and should be quick, because
  /// the loop waits for it. Meanwhile the library holds no lock, formats nothing and allocates nothing. It may call
  /// every function that any thread may call: Endpoint::post(), stop(), alloc_msgbuf(), id(), Nexus::uri(). Members
  /// that belong to the owner thread return kWrongThread within this call, also in that thread; use post(). It must not
  /// destroy the Nexus or the Rpc. An exception that leaves it ends the process.
  virtual void on_event(const LogEvent& event) = 0;
};

namespace detail {
template <class F>
struct FunctionLogSink final : LogSink {
  explicit FunctionLogSink(F f) : function(std::move(f)) {}
  void on_event(const LogEvent& event) override { function(event); }
  F function;
};
}  // namespace detail

/// A sink that calls `function(const LogEvent&)`. Throws std::bad_alloc.
template <class F>
std::shared_ptr<LogSink> log_to(F function) {
  return std::make_shared<detail::FunctionLogSink<F>>(std::move(function));
}

}  // namespace tern
