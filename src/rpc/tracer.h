// The trace of an endpoint (RpcOptions::trace_records): records of its calls and packets in a ring.
//
// An endpoint with a trace takes the general path for every call and packet, and only that path makes records. In the
// common case an endpoint without a trace therefore pays two branches: one in each call of receive(), and one in each
// turn of a session to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <tern/detail/export.h>
#include <tern/environment.h>
#include <tern/status.h>

#include "base/thread_safety.h"
#include "session/client_session.h"
#include "session/server_slot.h"
#include "trace/ring.h"
#include "wire/header.h"

namespace tern::rpc {

class Tracer;
struct Client;
struct Server;

/// A request at a server, for records of threads that do not own its slot.
struct TracedRequest {
  Tracer* tracer = nullptr;  ///< the endpoint's, valid while a handler of the endpoint runs; null: no trace
  uint32_t session_key = 0;
  uint32_t number = 0;
  uint16_t type = 0;

  /// Returns the slot's request.
  static TracedRequest of(const Server* server, const session::ServerSlot& slot, Tracer* tracer = nullptr);
};

/// Owner thread only, except for members that say otherwise.
class TERN_API Tracer {
 public:
  /// `nexus` is the address of the Nexus. Null: no memory.
  static std::unique_ptr<Tracer> create(size_t records, std::string_view nexus, std::string_view transport,
                                        uint16_t endpoint, Environment& environment);
  /// Any thread. See trace::dump().
  Status dump(const std::string& path) const;
  /// Any thread. See trace::dump_into().
  Status dump_into(const std::string& folder) const;

  // -- A client's session --

  void enqueued(const Client* client, uint32_t sequence, uint16_t type, uint32_t request_bytes);
  void started(const Client* client, const session::ClientSlot& slot);
  /// Records kCompleted, kContinuationBegin or kContinuationEnd. The slot may be free already.
  void call(trace::Kind kind, const Client* client, uint32_t request, uint32_t value);
  /// `request`: the call's request number; 0 if the call had no slot.
  void ended_early(const Client* client, uint32_t request, uint32_t sequence, Code code);
  void sent(const Client* client, const wire::Header& header, uint32_t bytes);
  void received(const Client* client, const wire::Header& header, uint32_t bytes);
  /// Records the result of transmit(): the packet was a retransmission, or the session must wait with its next packet.
  void turned(const Client* client, session::ClientSession::Turn turn, uint64_t now_ns);

  // -- A server's session --

  void sent(const Server* server, const wire::Header& header, uint32_t bytes);
  void received(const Server* server, const wire::Header& header, uint32_t bytes);
  /// Records kHandlerBegin, kHandlerEnd or kAnswered. Any thread.
  void request(trace::Kind kind, const TracedRequest& request, uint32_t value);

 private:
  Tracer(std::unique_ptr<trace::Ring> ring, Environment& environment)
      : ring_(std::move(ring)), environment_(environment) {}
  void put(const trace::Record& record);
  void put_now(trace::Record record) REQUIRES(mutex_);

  const std::unique_ptr<trace::Ring> ring_;
  Environment& environment_;
  base::Mutex mutex_;        ///< one thread writes to the ring at a time; readers do not take it
  trace::Record last_sent_;  ///< last packet of a client's session
};

}  // namespace tern::rpc
