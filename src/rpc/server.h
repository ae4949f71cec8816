// The server end of a session, with what the endpoint keeps beside the protocol's state.
#pragma once

#include <cstdint>

#include <tern/detail/buffer.h>
#include <tern/session.h>

#include "base/linked_list.h"
#include "rpc/peers.h"
#include "session/server_session.h"
#include "transport/transport.h"

namespace tern::rpc {

/// Every request touches the first cache line. In a session with one call at a time it touches the third one, too,
/// which is slot 0. Most requests need only ServerSession::payload_bytes_max() of the second one. Requests over shm
/// that are answered at once do not touch the second one.
struct alignas(64) Server {
  explicit Server(const session::ServerTerms& terms) : session(terms) {}

  transport::PeerId peer = 0;
  bool is_listed_to_send = false;
  bool is_dead : 1 = false;        ///< the session has ended; the object is freed when no list names it
  bool has_pair_peer : 1 = false;  ///< the client may be at session.pair_peer(), not proved yet (clause 7.7.4)
  bool is_pathless : 1 = false;    ///< true: in ServerSessions::pathless_; false: in proved_, until is_dead
  bool is_in_held : 1 = false;     ///< in ServerSessions::held_
  uint16_t abandoned = 0;          ///< requests that the application has and that the client has given up
  session::ServerSession session;
  uint32_t packets_shown = 0;  ///< packets sent and received up to Publisher's last look; low half
  uint32_t name_high = 0;
  Run* run = nullptr;  ///< run of the client's Nexus; null after is_dead
  base::ListLinks<Server> in_run;
  base::ListLinks<Server> in_path_list;
  union {
    uint64_t path_until_ns = 0;  ///< is_pathless: time at which the session ends
    uint64_t heard_ns;           ///< not is_pathless: time of the last proved packet that was not of the common case
  };

  /// The session's name in the table of sessions.
  uint64_t name() const { return uint64_t{name_high} << 32 | session.local_key(); }

  /// The links of the lists pathless_ and proved_. Each session is in one of the lists.
  struct InPathList {
    static base::ListLinks<Server>& of(Server& server) { return server.in_path_list; }
    static const base::ListLinks<Server>& of(const Server& server) { return server.in_path_list; }
  };
};

static_assert(sizeof(Server) <= 256, "an endpoint may have a million");

/// Names of server sessions have this bit, so that they differ from those of the endpoint's client sessions: a table
/// counts its names in the high half.
inline constexpr uint64_t kServerName = uint64_t{1} << 63;
inline bool is_of_server(Session session) { return (session.name & kServerName) != 0 && session != Session{}; }

/// A response with more bytes of memory than this counts against the budget, and has a Claim. One packet of most
/// networks carries as much. The number of sessions limits the smaller responses.
inline constexpr uint32_t kUncountedBytes = 1024;
/// The budget does not count a shared response, because its memory belongs to the program and to other slots, too.
inline bool is_counted(const detail::Buffer* response) {
  return response->capacity_bytes > kUncountedBytes && response->in_use != detail::Buffer::kShared;
}

/// The claim of a buffer that counts against a budget. It is kept in `next`, where a buffer's owner may note anything.
inline Claim* claim_of(const detail::Buffer* buffer) { return static_cast<Claim*>(static_cast<void*>(buffer->next)); }
inline void set_claim(detail::Buffer* buffer, Claim* claim) {
  buffer->next = static_cast<detail::Buffer*>(static_cast<void*>(claim));
}

}  // namespace tern::rpc
