// The common case of a call, inline from the transport to the handler and to the continuation: one packet each way,
// nothing lost, a handler that answers at once. Calls with a deadline, and responses that follow a credit return, have
// a shortcut of their own (try_uncommon()), which is not inline, so that the common case keeps its registers.
//
// Each try_...() does all of its work, or changes nothing and returns false. Then EndpointCore::on_packet() gets the
// packet, and hands it to ServerSessions::on_packet() or ClientSessions::on_packet(). A change here is measured with
// scripts/instructions_per_rpc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "rpc/endpoint_core.h"

namespace tern::rpc {

// ---- A call (Endpoint::enqueue_request()) ----

/// Not inlined, and with no inlined function that returns a StartedCall: g++ then ends it with jumps to the functions
/// of the uncommon cases, and saves nothing on the stack.
[[gnu::noinline]] inline StartedCall EndpointCore::start_call(Session session, uint32_t type, detail::Buffer* request,
                                                              detail::Buffer* response) {
  // A return for each test: g++ would join tests with a common return, which takes more instructions.
  if (!is_owner()) [[unlikely]]
    return start_call_slow(session, type, request, response);
  if (request == nullptr || response == nullptr) [[unlikely]]
    return start_call_slow(session, type, request, response);
  if (!context_.arena.owns(request)) [[unlikely]]
    return start_call_slow(session, type, request, response);
  if (!context_.arena.owns(response)) [[unlikely]]
    return start_call_slow(session, type, request, response);
  if (request == response) [[unlikely]]
    return start_call_slow(session, type, request, response);
  if (type >= wire::kRequestTypes) [[unlikely]]
    return start_call_slow(session, type, request, response);
  Client* client = client_sessions_.find_awake(session);
  if (client == nullptr) [[unlikely]]
    return start_asleep(session, type, request, response);
  if (!client->begins_plainly) [[unlikely]]
    return start_first_call(session, type, request, response, client);
  session::ClientSlot* slot = try_begin(type, request, response, client);
  if (slot == nullptr) [[unlikely]]
    return start_call_slow(session, type, request, response);
  const StartedCall call = {&slot->continuation, ClientSessions::call_id(session.name, slot->call_sequence)};
  if (client->is_listed_to_send()) [[likely]]
    return call;
  return list_to_send(client, call);
}

[[gnu::always_inline]] inline session::Continuation* EndpointCore::start_plain_call(Session session, uint8_t type,
                                                                                    detail::Buffer* request,
                                                                                    detail::Buffer* response,
                                                                                    uint32_t len_bytes) {
  if (request == nullptr || response == nullptr) [[unlikely]]
    return start_call_slow(session, type, request, response).continuation;
  request->length_bytes = len_bytes;
  return start_call(session, type, request, response).continuation;
}

/// Begins a call whose arguments have been checked. Null: it is no common call. ClientSession::try_begin() finds no
/// free slot while calls wait in the queue.
[[gnu::always_inline]] inline session::ClientSlot* EndpointCore::try_begin(uint32_t type, detail::Buffer* request,
                                                                           detail::Buffer* response, Client* client) {
  session::ClientSlot* slot = client->session.try_begin(request, response, static_cast<uint16_t>(type));
  if (slot != nullptr) [[likely]]
    slot->call_sequence = client_sessions_.next_call_sequence();
  return slot;
}

// ---- A packet ----

template <class Loop>
[[gnu::always_inline]] inline bool EndpointCore::try_packet(const wire::Header& header,
                                                            const transport::Payload& payload, std::byte* copy_to,
                                                            Loop& loop) {
  if (payload.is_marked) [[unlikely]]
    return false;  // ECN-marked: the general path echoes the mark
  if (header.shape() == session::kPlainRequest) return try_request(header, payload, copy_to, loop);
  if (header.shape() == session::kPlainResponse) return try_response<Loop>(header, payload);
  return false;
}

/// Handles a request of one packet.
template <class Loop>
[[gnu::always_inline]] inline bool EndpointCore::try_request(const wire::Header& header,
                                                             const transport::Payload& payload, std::byte* copy_to,
                                                             Loop& loop) {
  Server* server = server_sessions_.find(header.session_key());
  const uint64_t type = header.plain_request_type(payload.bytes);
  if (server == nullptr) [[unlikely]]
    return false;
  const Handlers::Dispatch* dispatch = handlers_.find_dispatch(type, payload.bytes);
  if (dispatch == nullptr || payload.lease != nullptr) [[unlikely]]
    return false;
  server->session.prefetch();
  session::ServerSlot* slot =
      server->session.try_begin<Loop::kTraits.readable_bytes>(header, payload.bytes, context_.now_ns);
  if (slot == nullptr) [[unlikely]]
    return false;
  // The copy is made before the other steps, because it needs their registers.
  const std::byte* data = transport::private_copy<Loop::kTraits.readable_bytes>(payload, copy_to);
  constexpr bool kIsCopied = !Loop::kTraits.shortcuts.zero_copy_requests;
  [[maybe_unused]] std::conditional_t<kIsCopied, MsgBuf, std::monostate> message;
  if constexpr (kIsCopied) {
    message = alloc_msgbuf(payload.bytes);
    if (message) data = std::copy_n(data, payload.bytes, message.bytes().data()) - payload.bytes;
  }
  handlers_.record()->open(server, slot, data, payload.bytes, released<Loop>());
  if constexpr (!Loop::kTraits.shortcuts.preallocated_responses) handlers_.record()->space = nullptr;
  context_.counters.requests_handled++;
  handlers_.dispatch(*dispatch);
  end_request(handlers_.record(), loop);
  return true;
}

/// The end of a request whose handler has returned.
template <class Loop>
[[gnu::always_inline]] inline void EndpointCore::end_request(Incoming* incoming, Loop& loop) {
  if (incoming->progress == Incoming::Progress::kAnswered) [[likely]] {
    // The handler may have copied or taken the message, and answered nevertheless in the preallocated buffer.
    if (incoming->is_stable()) [[unlikely]]
      Mailbox::rest(incoming);
    if (!loop.try_answer(incoming)) server_sessions_.send_answer(incoming);
  } else {
    handlers_.keep_if_open(incoming);
  }
}

template <class Loop>
[[gnu::always_inline]] inline bool EndpointCore::try_uncommon(const wire::Header& header,
                                                              const transport::Payload& payload, std::byte* copy_to,
                                                              Loop& loop) {
  if (payload.is_marked || payload.lease != nullptr || context_.tracer != nullptr) return false;
  if (header.shape() == session::kPlainRequest) return try_timed_request(header, payload, copy_to, loop);
  return header.shape() == session::kPlainResponse && try_waiting_response(header, payload);
}

/// Takes two looks at the clock, because a request that would be late is refused, and the time of its handler decides
/// that. If it would be late, Handlers::run() judges it anew, and refuses it.
template <class Loop>
[[gnu::noinline]] bool EndpointCore::try_timed_request(const wire::Header& header, const transport::Payload& payload,
                                                       std::byte* copy_to, Loop& loop) {
  if (header.deadline_code() == wire::kNoDeadline || !session::is_whole_request(header, payload.bytes)) return false;
  Server* server = server_sessions_.find(header.session_key());
  const Handlers::Dispatch* dispatch = handlers_.find_dispatch(header.request_type(), payload.bytes);
  if (server == nullptr || dispatch == nullptr) return false;
  const Handlers::Timed timed = handlers_.time(header.request_type(), header.deadline_code());
  if (timed.entry == nullptr) return false;
  session::ServerSlot* slot = server->session.try_begin(header, payload.bytes, context_.now_ns);
  if (slot == nullptr) return false;
  const std::byte* data = transport::private_copy(payload, copy_to);
  handlers_.record()->open(server, slot, data, payload.bytes, released<Loop>());
  handlers_.record()->deadline_ns = timed.deadline_ns;
  context_.counters.requests_handled++;
  handlers_.dispatch(*dispatch);
  handlers_.end_time(timed);
  Incoming* incoming = handlers_.record();
  if (incoming->progress == Incoming::Progress::kAnswered) incoming->deadline_ns = UINT64_MAX;
  end_request(incoming, loop);
  return true;
}

/// Handles a response of one packet.
template <class Loop>
[[gnu::always_inline]] inline bool EndpointCore::try_response(const wire::Header& header,
                                                              const transport::Payload& payload) {
  Client* client = client_sessions_.find(header.session_key());
  if (client == nullptr) [[unlikely]]
    return false;
  session::ClientSlot* slot =
      client->session.try_finish<Loop::kTraits.readable_bytes, Loop::kTraits.shortcuts.batched_timestamps>(
          header, payload, context_.now_ns);
  if (slot == nullptr) [[unlikely]]
    return false;
  if (client->looks != 0) [[unlikely]] {
    if (!client->is_listed_to_send() && client->session.wants_to_send()) client_sessions_.send_waiting(client);
    if ((client->looks & (Client::kHasQueue | Client::kRestsAtOnce)) != 0) {
      client_sessions_.finish(client, slot, Status(), 0);
      return true;
    }
  }
  if (slot->ticket > released<Loop>()) [[unlikely]] {
    client_sessions_.finish(client, slot, Status(), 0);
  } else {
    detail::Buffer* request = slot->request;
    detail::Buffer* response = slot->response;
    Completions::run(context_.counters, slot->continuation, request, response, Status(), 0);
  }
  return true;
}

}  // namespace tern::rpc
