// EndpointCore: the beginning of calls that start_call() (rpc/fast_path.h) does not begin, and cancel().

#include "rpc/endpoint_core.h"
#include "rpc/fast_path.h"

namespace tern::rpc {

Status EndpointCore::refusal() const {
  if (!is_owner()) {
    return not_owner("enqueue_request() must be called by the thread that runs the event loop: use post()");
  }
  return client_sessions_.refusal();
}

/// Returns the rule that the arguments of a call break. Null: none. start_call() has the same checks.
const char* EndpointCore::broken_rule(uint32_t type, const detail::Buffer* request,
                                      const detail::Buffer* response) const {
  if (request == nullptr || response == nullptr) {
    return "a MsgBuf is empty: it was moved from, or alloc_msgbuf() failed (no memory, or more than 1 GiB)";
  }
  if (request == response) return "the request and the response must be two different MsgBufs";
  if (!context_.arena.owns(request) || !context_.arena.owns(response)) {
    return "a MsgBuf belongs to another endpoint: allocate it with this endpoint's alloc_msgbuf()";
  }
  return type < wire::kRequestTypes ? nullptr : "a request type must be 0 to 4095";
}

/// Starts calls outside of the fast path, and refuses wrong ones.
StartedCall EndpointCore::start_call_slow(Session session, uint32_t type, detail::Buffer* request,
                                          detail::Buffer* response, Duration deadline) {
  const auto refuse = [this](Status status) { return client_sessions_.refuse_call(status); };
  if (!is_owner()) return {nullptr, 0};  // refusal() has the reason
  client_sessions_.begin_noted();
  Client* client = client_sessions_.find(session);
  if (is_of_server(session)) {
    return refuse({Code::kMisuse, "a session that a client has opened takes no requests: use create_session()"});
  }
  if (client == nullptr) return refuse({Code::kSessionReset, "this session has ended: create a new one"});
  if (const char* rule = broken_rule(type, request, response); rule != nullptr) return refuse({Code::kMisuse, rule});
  const uint64_t deadline_ns = note_deadline(deadline);
  return client_sessions_.start_call(client, static_cast<uint16_t>(type), request, response, deadline_ns);
}

/// Starts a call with a deadline. It is of the common case where one without a deadline would be.
StartedCall EndpointCore::start_timed_call(Session session, uint32_t type, detail::Buffer* request,
                                           detail::Buffer* response, Duration deadline) {
  const bool is_right = is_owner() && broken_rule(type, request, response) == nullptr;
  Client* client = is_right ? client_sessions_.find_awake(session) : nullptr;
  session::ClientSlot* slot =
      client != nullptr && client->begins_plainly ? try_begin(type, request, response, client) : nullptr;
  if (slot == nullptr) return start_call_slow(session, type, request, response, deadline);
  client->session.set_deadline(slot, note_deadline(deadline));
  client_sessions_.list_to_send(client);
  return {&slot->continuation, ClientSessions::call_id(session.name, slot->call_sequence)};
}

/// Returns a call's deadline on the endpoint's clock, ns, when the loop will look at the session. UINT64_MAX: none.
uint64_t EndpointCore::note_deadline(Duration deadline) {
  if (deadline == Duration::max()) return UINT64_MAX;
  context_.read_clock_outside_loop();
  const uint64_t deadline_ns = context_.now_ns + to_ns(deadline);
  context_.agenda.at_latest(deadline_ns);
  return deadline_ns;
}

/// Starts a call of the common case on a session that find_awake() does not find.
StartedCall EndpointCore::start_asleep(Session session, uint32_t type, detail::Buffer* request,
                                       detail::Buffer* response) {
  Client* client = client_sessions_.find_asleep(session);
  if (client == nullptr) return start_call_slow(session, type, request, response);
  if (client_sessions_.is_noting() && request->length_bytes <= wire::kPayloadBytesMin) {
    const StartedCall call =
        client_sessions_.note_call(client, session, static_cast<uint16_t>(type), request, response);
    if (call.continuation != nullptr) return call;
  }
  return start_first_call(session, type, request, response, client);
}

/// Starts a call of the common case on a session that was at rest. A function of its own, because start_call() then
/// ends with a jump to it.
StartedCall EndpointCore::start_first_call(Session session, uint32_t type, detail::Buffer* request,
                                           detail::Buffer* response, Client* client) {
  if (context_.tracer != nullptr) return start_call_slow(session, type, request, response);
  client->session.prefetch();
  client_sessions_.begin_noted();
  client_sessions_.start_ticking(client);
  client->session.wake();  // without memory for the call, start_call_slow() says so
  session::ClientSlot* slot = try_begin(type, request, response, client);
  if (slot == nullptr) return start_call_slow(session, type, request, response);
  const StartedCall call = {&slot->continuation, ClientSessions::call_id(session.name, slot->call_sequence)};
  return client->is_listed_to_send() ? call : list_to_send(client, call);
}

Status EndpointCore::cancel(CallId call) {
  if (!is_owner()) return not_owner("cancel() must be called by the thread that runs the event loop: use post()");
  return client_sessions_.cancel(call);
}

}  // namespace tern::rpc
