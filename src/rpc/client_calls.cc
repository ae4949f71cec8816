// ClientSessions: calls, from their start to their end, and the packets from servers, except for the common case
// (rpc/fast_path.h).

#include <bit>
#include <span>
#include <utility>

#include "base/try.h"
#include "rpc/client_sessions.h"
#include "rpc/count_drop.h"

namespace tern::rpc {

using session::ClientSlot;
using session::Drop;

// ---- The beginning of a call ----

StartedCall ClientSessions::start_call(Client* client, uint16_t type, detail::Buffer* request, detail::Buffer* response,
                                       uint64_t deadline_ns) {
  start_ticking(client);
  const uint32_t sequence = call_sequence_ + 1;
  if (client->session.has_free_slot() && !client->has_queue()) {
    ClientSlot* slot = client->session.begin(request, response, type);
    if (slot == nullptr) return refuse_call({Code::kNoMemory, "no memory for the state of a call"});
    client->session.set_deadline(slot, deadline_ns);
    slot->call_sequence = call_sequence_ = sequence;
    if (context_.tracer != nullptr) [[unlikely]] {
      context_.tracer->enqueued(client, sequence, type, request->length_bytes);
      context_.tracer->started(client, *slot);
    }
    list_to_send(client);
    return {&slot->continuation, call_id(client->public_name(), sequence)};
  }
  const size_t waiting = client->has_queue() ? client->queue().size() : 0;
  if (waiting >= context_.options.queue_limit) {
    return refuse_call({Code::kQueueFull,
                        "RpcOptions::queue_limit calls are waiting on this session: wait until some have completed, or "
                        "raise the limit"});
  }
  const bool has_memory = base::try_grow([client] {
    client->begin_queue();
    client->queue().emplace_back();
  });
  if (!has_memory) {
    if (client->has_queue()) client->end_queue_if_empty();
    return refuse_call({Code::kNoMemory, "no memory for a call that waits for a slot"});
  }
  call_sequence_ = sequence;
  QueuedCall& call = client->queue().back();
  call.request = request;
  call.response = response;
  call.deadline_ns = deadline_ns;
  call.sequence = sequence;
  call.type = type;
  if (context_.tracer != nullptr) [[unlikely]]
    context_.tracer->enqueued(client, sequence, type, request->length_bytes);
  return {&call.continuation, call_id(client->public_name(), sequence)};
}

StartedCall ClientSessions::note_call(Client* client, Session session, uint16_t type, detail::Buffer* request,
                                      detail::Buffer* response) {
  client->session.prefetch();
  if (noted_count_ == noted_.size()) begin_all_noted();
  session::ClientBusy* busy = pools_.busy.take();
  if (busy == nullptr) return {nullptr, 0};
  table_.set_asleep(static_cast<uint32_t>(session.name), false);
  noted_[noted_count_++] = {client, busy};
  ClientSlot& slot = busy->first_slot;
  slot.request = request;
  slot.response = response;
  slot.type = type;
  slot.call_sequence = next_call_sequence();
  return {&slot.continuation, call_id(session.name, slot.call_sequence)};
}

void ClientSessions::begin_all_noted() {
  const size_t count = std::exchange(noted_count_, 0);
  for (const NotedCall& call : std::span(noted_).first(count)) {
    call.client->is_asleep = false;  // as note_call() has told the table
    start_ticking(call.client);
    call.client->session.begin_first(call.busy);
    list_to_send(call.client);
  }
}

/// Starts waiting calls, in order, in slots that have become free, or after the session has opened. A call whose
/// deadline is before any answer could arrive ends now.
void ClientSessions::start_queued(Client* client) {
  while (client->has_queue() && client->session.has_free_slot()) {
    QueuedCall& call = client->queue().front();
    if (is_too_late(client, call) && completions_.reserve_one()) {
      trace_early_end(client, 0, call.sequence, kLateCall);
      completions_.wait(0, call.request, call.response, kLateCall, 0, std::move(call.continuation));
      client->pop_queued();
      continue;
    }
    ClientSlot* slot = client->session.begin(call.request, call.response, call.type);
    start_ticking(client);
    if (slot == nullptr) return;  // no memory now: the next tick tries again
    slot->continuation = std::move(call.continuation);
    client->session.set_deadline(slot, call.deadline_ns);
    slot->call_sequence = call.sequence;
    if (context_.tracer != nullptr) [[unlikely]]
      context_.tracer->started(client, *slot);
    client->pop_queued();
    list_to_send(client);
  }
}

// ---- The end of a call ----

void ClientSessions::finish(Client* client, ClientSlot* slot, Status status, uint16_t app_code) {
  detail::Buffer* request = slot->request;
  detail::Buffer* response = slot->response;
  const uint64_t ticket = slot->ticket;
  session::Continuation continuation = std::move(slot->continuation);
  client->session.release_slot(slot);
  if (ticket <= context_.released) {
    start_queued(client);
    if (client->rests_at_once())
      rest_at_once(client);  // the continuation's next call takes the memory that the cache has
    return Completions::run(context_.counters, continuation, request, response, status, app_code);
  }
  completions_.wait(ticket, request, response, status, app_code, std::move(continuation));
  if (!completions_.reserve_for_slots()) {
    client->session.block_slot(slot);
    completions_.block_slot(client->name(), slot->request_number & (wire::kSlotsMax - 1));
  }
  start_queued(client);
}

void ClientSessions::run_waiting() {
  completions_.run_waiting([this](uint64_t session_name, uint32_t slot) {
    Client* client = table_.find_name(session_name);
    if (client == nullptr) return;
    client->session.unblock_slot(client->session.slot(slot));
    start_queued(client);
  });
}

void ClientSessions::end_call_early(Client* client, ClientSlot* slot, Status status) {
  trace_early_end(client, slot->request_number, slot->call_sequence, status);
  const uint64_t ticket = slot->ticket;
  detail::Buffer* request = slot->request;
  detail::Buffer* response = slot->response;
  session::Continuation continuation = std::move(slot->continuation);
  client->session.end_early(slot, context_.now_ns);
  completions_.wait(ticket, request, response, status, 0, std::move(continuation));
  after_input(client);  // may end further calls, each of which needs a place of its own in completions_
}

/// Ends the calls of a dead session. Calls whose buffers the transport still has stay in their slots until a later call
/// of this function (promise 2). Continuations may do anything, but they do not find the session.
void ClientSessions::end_calls(Client* client) {
  for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
    ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
    if (!has_call(*slot) || slot->ticket > context_.released) continue;
    detail::Buffer* request = slot->request;
    detail::Buffer* response = slot->response;
    session::Continuation continuation = std::move(slot->continuation);
    trace_early_end(client, slot->request_number, slot->call_sequence, client->end_status);
    client->session.release_slot(slot);
    Completions::run(context_.counters, continuation, request, response, client->end_status, 0);
  }
  while (client->has_queue()) {
    QueuedCall call = std::move(client->queue().front());
    client->pop_queued();
    trace_early_end(client, 0, call.sequence, client->end_status);
    Completions::run(context_.counters, call.continuation, call.request, call.response, client->end_status, 0);
  }
}

Status ClientSessions::cancel(CallId call) {
  const auto sequence = static_cast<uint32_t>(call.value);
  const Status cancelled(Code::kCancelled, "the caller cancelled the call");
  begin_noted();
  const auto key = static_cast<uint32_t>(call.value >> 32);
  Client* client = table_.find(key);
  if (client == nullptr) client = find_ending(key);
  if (!completions_.reserve_one()) return {Code::kNoMemory, "no memory to cancel the call, which goes on"};
  if (client != nullptr) {
    for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
      ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
      if (slot->call_sequence != sequence || !has_call(*slot)) continue;
      end_call_early(client, slot, cancelled);
      return {};
    }
    const bool is_queued =
        finish_queued(client, cancelled, [&](const QueuedCall& queued) { return queued.sequence == sequence; });
    if (is_queued) return {};
  }
  return {Code::kMisuse, "no such call: it has ended already"};
}

// ---- Packets ----

void ClientSessions::on_packet(const wire::Header& header, const transport::Payload& payload) {
  Client* client = table_.find(header.session_key());
  if (client == nullptr) {
    context_.counters.dropped_unknown_session++;
    return;
  }
  auto& session = client->session;
  switch (header.kind()) {
    case wire::Kind::kResponse: {
      const session::ClientVerdict verdict = session.on_response(header, payload, context_.now_ns);
      if (verdict.finished == nullptr && verdict.drop == Drop::kNone) context_.last_part = header;
      return finish_verdict(client, verdict);
    }
    case wire::Kind::kCr:
      finish_verdict(client, session.on_credit_return(header, payload, context_.now_ns));
      // If it has acknowledged a report, the memory for calls need not wait for the next pass over ticking_.
      if (client->rests_at_once()) rest_at_once(client);
      return;
    case wire::Kind::kCancelled:
      return finish_verdict(client, session.on_cancelled(header, context_.now_ns));
    default:
      return on_path_verdict(client, session.on_path_reply(header, payload.bytes, context_.now_ns));
  }
}

void ClientSessions::finish_verdict(Client* client, const session::ClientVerdict& verdict) {
  if (verdict.drop != Drop::kNone) [[unlikely]]
    count_drop(context_.counters, verdict.drop);
  if (verdict.finished != nullptr) [[likely]] {
    if (context_.tracer == nullptr) [[likely]] {
      finish(client, verdict.finished, verdict.status, verdict.app_code);
    } else {
      finish_traced(client, verdict);
    }
  }
  after_input(client);
}

/// finish() may run the continuation, or leave that to a later iteration.
void ClientSessions::finish_traced(Client* client, const session::ClientVerdict& verdict) {
  const ClientSlot* slot = verdict.finished;
  const uint32_t request = slot->request_number;
  const bool runs_now = slot->ticket <= context_.released;
  Tracer& tracer = *context_.tracer;
  tracer.call(trace::Kind::kCompleted, client, request, verdict.status.ok() ? slot->response->length_bytes : 0);
  if (runs_now) tracer.call(trace::Kind::kContinuationBegin, client, request, 0);
  finish(client, verdict.finished, verdict.status, verdict.app_code);
  if (runs_now) tracer.call(trace::Kind::kContinuationEnd, client, request, 0);
}

void ClientSessions::after_input(Client* client) {
  if (client->has_queue()) [[unlikely]]
    start_queued(client);
  if (!client->is_listed_to_send() && client->session.wants_to_send() && !waits_for_pace(client)) [[unlikely]]
    send_waiting(client);
  if (client->session.loss_check_at_ns() != UINT64_MAX) {
    start_ticking(client);
    pass_due_ns_ = std::min(pass_due_ns_, client->session.loss_check_at_ns());
    context_.agenda.at_latest(client->session.loss_check_at_ns());
  }
}

}  // namespace tern::rpc
