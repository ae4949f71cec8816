// Sessions: their names, and what becomes of them. Standard library only.
#pragma once

#include <cstdint>
#include <string_view>

#include <tern/duration.h>
#include <tern/status.h>

namespace tern {

/// A name of a session. The name of a session that has ended is an error, and never becomes the name of another one.
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

/// What Endpoint::on_session_event() hears of a session.
struct SessionEvent {
  Session session;  ///< its name at this endpoint
  /// This endpoint has created it. False: a client has, and this endpoint serves it.
  bool is_client = false;
  SessionState state = SessionState::kEnded;  ///< the new one; kConnecting only with SessionOptions::reconnect
  Status status;                              ///< with kEnded and kConnecting, why
};

/// What Endpoint::session_info() tells of a session. All numbers are 0 once it has ended.
struct SessionInfo {
  SessionState state = SessionState::kEnded;  ///< the present one
  bool is_client = false;                     ///< as in SessionEvent
  /// With kEnded, why, as in SessionEvent. Known of the 256 sessions of the endpoint that have ended last; kMisuse for
  /// all others, and for a name that never was a session's.
  Status status;
  uint8_t window = 0;  ///< calls that may be in flight: of SessionOptions::window, what the server has granted
  /// Of a client: credits that packets in flight may hold, the lesser of those that the server grants and of what the
  /// congestion controller allows. A packet holds one, or with UDP one for each 2 KiB of it.
  uint32_t credits = 0;
  uint32_t congestion_window = 0;    ///< of a client: packets in flight that the controller alone would allow
  uint32_t packets_in_flight = 0;    ///< of a client: packets that hold a credit
  uint64_t retransmissions = 0;      ///< of a client: request packets, and requests for response packets, sent again
  Duration round_trip{0};            ///< of a client's packets, smoothed, without what handlers take; 0: not known yet
  Duration round_trip_min{0};        ///< the smallest of the last 5 to 10 s; 0: not known yet
  Duration round_trip_last{0};       ///< the newest; one of each burst is measured. 0: not known yet
  uint64_t packets_sent = 0;         ///< of all kinds
  uint64_t packets_received = 0;     ///< that the peer has sent, up to the newest that has arrived; lost ones count
  uint64_t long_bytes_sent = 0;      ///< payload of messages of more than one packet, retransmissions included
  uint64_t long_bytes_received = 0;  ///< payload of messages of more than one packet
  /// Of a client: what its congestion controller, or SessionOptions::rate_bytes_per_sec, allows it now, headers
  /// included. UINT64_MAX: no limit.
  uint64_t rate_bytes_per_sec = UINT64_MAX;
  /// "HOST:PORT" of the peer's Nexus, numeric. Empty: it has not answered yet, or the session has ended. Valid until
  /// the loop runs again.
  std::string_view peer;
};

}  // namespace tern
