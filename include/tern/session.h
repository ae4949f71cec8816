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

/// What Endpoint::session_info() tells of a session.
struct SessionInfo {
  SessionState state = SessionState::kEnded;  ///< the present one
  bool is_client = false;                     ///< as in SessionEvent
  uint64_t retransmissions = 0;  ///< of a client: request packets, and requests for response packets, sent again
  Duration round_trip{0};        ///< of a client's packets, smoothed, without what handlers take; 0: not known yet
  /// Of a client: what its congestion controller, or SessionOptions::rate_bytes_per_sec, allows it now, headers
  /// included. UINT64_MAX: no limit.
  uint64_t rate_bytes_per_sec = UINT64_MAX;
  /// "HOST:PORT" of the peer's Nexus, numeric. Empty: it has not answered yet, or the session has ended. Valid until
  /// the loop runs again.
  std::string_view peer;
};

}  // namespace tern
