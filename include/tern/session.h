// Sessions: their names, states and events. Standard library only.
#pragma once

#include <cstdint>
#include <string_view>

#include <tern/duration.h>
#include <tern/status.h>

namespace tern {

/// A name of a session. After the session's end the name is an error, and it is never used for another session.
struct Session {
  uint64_t name = UINT64_MAX;  ///< an index, and a count of the sessions that had it
  friend bool operator==(const Session&, const Session&) = default;  ///< the same session of the same endpoint
};

enum class SessionState : uint8_t {
  kConnecting,  ///< calls wait until it is open
  kOpen,        ///< a full packet has passed both ways
  kEnded,       ///< for ever; or there never was such a session
};

namespace detail {
/// A coroutine that waits until a session opens or ends. For the library.
struct SessionWaiter {
  SessionWaiter* next = nullptr;
  void (*run)(SessionWaiter* waiter, const Status& status) = nullptr;
};
}  // namespace detail

/// A change of a session's state: the argument of Endpoint::on_session_event()'s listener.
struct SessionEvent {
  Session session;  ///< its name at this endpoint
  /// True: this endpoint has created the session. False: a client has created it, and this endpoint serves it.
  bool is_client = false;
  SessionState state = SessionState::kEnded;  ///< the new one; kConnecting only with SessionOptions::reconnect
  Status status;                              ///< with kEnded and kConnecting: the reason
};

/// The result of Endpoint::session_info(). All numbers are 0 once the session has ended.
struct SessionInfo {
  SessionState state = SessionState::kEnded;  ///< the present one
  bool is_client = false;                     ///< as in SessionEvent
  /// With kEnded: the reason, as in SessionEvent. It is known for the last 256 ended sessions of the endpoint. kMisuse
  /// for all others, and for a name that no session ever had.
  Status status;
  uint8_t window = 0;  ///< calls that may be in flight: the part of SessionOptions::window that the server has granted
  /// Of a client: credits that packets in flight may hold, which is the smaller of the server's credit limit and the
  /// congestion controller's window. A packet holds one credit, or over UDP one for each 2 KiB of it.
  uint32_t credits = 0;
  /// Of a client: payload of the longest packets that are known to pass, which long messages use. A session over UDP
  /// searches for longer ones when it has messages of several packets.
  uint32_t payload_bytes = 0;
  uint32_t congestion_window = 0;  ///< of a client: packets in flight that the controller alone would allow
  uint32_t packets_in_flight = 0;  ///< of a client: packets that hold a credit
  uint64_t retransmissions = 0;    ///< of a client: request packets, and requests for response packets, sent again
  Duration round_trip{0};          ///< of a client's packets, smoothed, without the time of handlers; 0: not known yet
  Duration round_trip_min{0};      ///< the smallest of the last 5 to 10 s; 0: not known yet
  Duration round_trip_last{0};     ///< the newest; one of each burst is measured. 0: not known yet
  uint64_t packets_sent = 0;       ///< of all kinds
  uint64_t packets_received = 0;   ///< sent by the peer, up to the newest that has arrived; lost ones count
  /// Payload of messages that do not fit one packet of the size with which the session began, retransmissions included.
  uint64_t long_bytes_sent = 0;
  uint64_t long_bytes_received = 0;  ///< payload of such messages that has arrived
  /// Of a client: the present rate limit of its congestion controller or of SessionOptions::rate_bytes_per_sec, headers
  /// included. UINT64_MAX: no limit.
  uint64_t rate_bytes_per_sec = UINT64_MAX;
  /// "HOST:PORT" of the peer's Nexus, numeric. Empty: the peer has not answered yet, or the session has ended. Valid
  /// until the loop runs again.
  std::string_view peer;
};

}  // namespace tern
