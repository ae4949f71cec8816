// A packet's way through an endpoint: from the receive loop to a handler or a continuation, and a call's way in.
// The common case (one packet each way, dispatch mode) is what comes first in each function.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "rpc/endpoint_core.h"

namespace tern::rpc {

using session::ClientSession;
using session::ClientSlot;
using session::Drop;
using session::ServerSlot;

namespace {

/// Handlers that take longer run one at a time, as far as their requests have deadlines: in a burst of 16 packets, the
/// answer of the first would wait for the others' handlers, and take a round trip on the slowest of local networks.
constexpr uint64_t kLongHandlerNs = 50'000;
/// The hold time of an answer beyond it is said to be too long (clause 2.9).
constexpr uint64_t kLongHoldNs = 10'000'000;
/// Late requests that are refused in one turn: a bound for what other work waits for.
constexpr uint32_t kRefusedInTurn = 64;

}  // namespace

// ---- Calls ----

/// Whatever is not the common case, and everything that is wrong.
Endpoint::Started EndpointCore::start_call_slow(Session session, uint16_t type, MsgBuf& request, MsgBuf& response,
                                                Duration deadline) {
  if (!is_owner()) {
    return refuse_call(not_owner("enqueue_request() belongs to the thread that runs the event loop: use post()"));
  }
  Client* client = find_client(session);
  if (client == nullptr) return refuse_call({Code::kSessionReset, "this session is gone: create a new one"});
  if (!request || !response) {
    return refuse_call(
        {Code::kMisuse,
         "a MsgBuf is empty: it was moved from, or alloc_msgbuf() could not (no memory, more than 1 GiB, or called "
         "from a thread that does not own the endpoint)"});
  }
  if (request.buffer() == response.buffer()) {
    return refuse_call({Code::kMisuse, "the request and the response need a MsgBuf each"});
  }
  if (!arena_.owns(request.buffer()) || !arena_.owns(response.buffer())) {
    return refuse_call(
        {Code::kMisuse, "a MsgBuf belongs to another endpoint: allocate it with this endpoint's alloc_msgbuf()"});
  }
  if (type >= wire::kRequestTypes) return refuse_call({Code::kMisuse, "request types are 0 to 4095"});
  uint64_t deadline_ns = UINT64_MAX;
  if (deadline != Duration::max()) {
    if (!is_in_loop_) now_ns_ = clock_ns();
    deadline_ns = now_ns_ + static_cast<uint64_t>(std::max<int64_t>(deadline.count(), 0));
    at_latest(deadline_ns);
  }
  start_ticking(client);
  const uint32_t sequence = call_sequence_ + 1;
  const uint64_t id = uint64_t{client->session.local_key()} << 32 | sequence;
  if (client->session.has_free_slot() && client->queue == nullptr) {
    ClientSlot* slot = client->session.begin(request.buffer(), response.buffer(), type);
    if (slot == nullptr) return refuse_call({Code::kNoMemory, "no memory for the state of a call"});
    request.take();
    response.take();
    slot->deadline_ns = deadline_ns;
    slot->call_sequence = call_sequence_ = sequence;
    list_to_send(client);
    return {&slot->continuation, id};
  }
  const size_t waiting = client->queue != nullptr ? client->queue->size() : 0;
  if (waiting >= options_.queue_limit) {
    return refuse_call({Code::kQueueFull, "queue_limit calls wait on this session: wait for some to complete"});
  }
  const bool has_room = base::try_grow([client] {
    if (client->queue == nullptr) client->queue = std::make_unique<std::deque<QueuedCall>>();
    client->queue->emplace_back();
  });
  if (!has_room) {
    if (waiting == 0) client->queue.reset();
    return refuse_call({Code::kNoMemory, "no memory for a call that waits for a slot"});
  }
  call_sequence_ = sequence;
  QueuedCall& call = client->queue->back();
  call.request = request.take();
  call.response = response.take();
  call.deadline_ns = deadline_ns;
  call.sequence = sequence;
  call.type = type;
  return {&call.continuation, id};
}

/// The common case on a session that was at rest. A function of its own, for then start_call() calls nothing that it
/// would have to return from.
Endpoint::Started EndpointCore::start_first_call(Session session, uint16_t type, MsgBuf& request, MsgBuf& response,
                                                 Client* client) {
  begin_to_tick(client);
  return begin_call(session, type, request, response, client);
}

/// Whoever comes here is about to use a session that was not used for a while: its lines are on their way at once.
void EndpointCore::begin_to_tick(Client* client) {
  client->session.prefetch();
  client->session.forget_old_credits(now_ns_);
  client->session.forget_old_congestion(now_ns_);
  client->is_ticking = true;
  ticking_.push_back(client);
  at_latest(now_ns_ + rto_ns_min_);
}

/// Slots have become free, or the session has opened: calls that waited take them, in order. One that would end before
/// any answer could be here ends now.
void EndpointCore::start_queued(Client* client) {
  while (client->queue != nullptr && client->session.has_free_slot()) {
    QueuedCall& call = client->queue->front();
    if (is_too_late(client, call) && has_room_to_wait()) {
      wait_for_ticket(0, call.request, call.response, kLateCall, 0, std::move(call.continuation));
      client->queue->pop_front();
      if (client->queue->empty()) client->queue.reset();
      continue;
    }
    ClientSlot* slot = client->session.begin(call.request, call.response, call.type);
    start_ticking(client);
    if (slot == nullptr) return;  // no memory now: the next tick tries again
    slot->continuation = std::move(call.continuation);
    slot->deadline_ns = call.deadline_ns;
    slot->call_sequence = call.sequence;
    client->queue->pop_front();
    if (client->queue->empty()) client->queue.reset();
    list_to_send(client);
  }
}

// ---- Packets to a server ----

void EndpointCore::on_any_packet(uint64_t w0, uint64_t w1, uint64_t w2, transport::Payload payload, std::byte* room) {
  wire::Header header = {w0, w1, w2};
  // A client looks for marks in one place: those that its own packets met, and those of the packets that it gets.
  if (payload.is_marked && !wire::is_from_client(header.kind())) header.add_flags(wire::kEcnEcho);
  payload.data = transport::private_copy(payload, room);
  if (!wire::is_known(static_cast<uint8_t>(header.kind()))) {
    counters_.dropped_malformed++;
  } else if (wire::is_from_client(header.kind())) {
    on_client_packet(header, payload);
  } else {
    on_server_packet(header, payload);
  }
}

void EndpointCore::on_client_packet(const wire::Header& header, const transport::Payload& payload) {
  Server* server = servers_.find(header.session_key());
  if (server == nullptr) {
    counters_.dropped_unknown_session++;
    return;
  }
  Offers offers(*this, server);
  const session::ServerVerdict verdict = server->session.on_packet(header, payload, now_ns_, offers);
  if (verdict.drop != Drop::kNone) [[unlikely]]
    count_drop(verdict.drop);
  if (verdict.was_assembled) forget_claim(Budget::kArriving, verdict.message);
  if (verdict.drop == Drop::kNone) {
    server->heard_ns = now_ns_;
    note_news(server, header, verdict.is_part);
  }
  if (server->is_pathless && server->session.is_open()) on_path_proved(server);
  if (verdict.wants_pair) return answer_pair_probe(server);
  if (verdict.has_paired) follow(server);
  if (verdict.is_part) credits_.hear_long(server->session.heard_long_epoch());
  if (verdict.has_opened) credits_.hear_opening(server->session.heard_epoch);
  credits_.set_long_requests(server_pools_.assemblies.taken());
  if (verdict.started != nullptr) {
    const std::byte* data = verdict.message != nullptr ? verdict.message->data() : payload.data;
    return run_handler(server, verdict.started, data, verdict.started->request_bytes, verdict.message);
  }
  if (!server->session.wants_to_send()) return;
  if (verdict.is_about_a_call) {
    list_to_send(server);
  } else {
    list_to_send_quietly(server);
  }
}

/// A request beyond what the endpoint takes is refused before anything is allocated for it.
session::ServerOffers::Room EndpointCore::Offers::room_for(const wire::Header& request, bool is_long) {
  const size_t bytes = request.message_bytes();
  const auto refuse = [](uint64_t& counter, wire::FailureCode code) -> Room {
    counter++;
    return {nullptr, code};
  };
  EndpointCounters& counters = core_.counters_;
  if (core_.is_closing_) return refuse(counters.refused_closing, wire::FailureCode::kClosing);
  if (const Refusal why = core_.refusal_of(request.request_type(), bytes); why.counter != nullptr) {
    return refuse(*why.counter, why.code);
  }
  const bool is_beyond = is_long && !core_.make_room_for_arriving(server_, bytes);
  detail::Buffer* buffer = is_beyond ? nullptr : core_.received_.alloc(bytes);
  if (buffer != nullptr && is_long) {
    const uint32_t slot = request.request_number() & (wire::kSlotsMax - 1);
    Claim* claim = core_.peers_.claim(Budget::kArriving, server_->run, server_, slot, bytes, core_.now_ns_);
    if (claim == nullptr) detail::release_buffer(std::exchange(buffer, nullptr));
    if (claim != nullptr) set_claim(buffer, claim);
  }
  if (buffer == nullptr) return refuse(counters.refused_no_memory, wire::FailureCode::kNoMemory);
  return {buffer, {}};
}

void EndpointCore::Offers::take_back_room(detail::Buffer* buffer, uint32_t, bool is_long) {
  if (is_long) core_.forget_claim(Budget::kArriving, buffer);
  detail::release_buffer(buffer);
}

void EndpointCore::Offers::abandon(void* call) {
  auto* incoming = static_cast<Incoming*>(call);
  incoming->server = nullptr;
  incoming->slot = nullptr;
  if (incoming->waits_in_loop) {
    core_.waiting_requests_.remove(incoming, core_.now_ns_);
    incoming->waits_in_loop = false;
    return core_.mailbox_->give_incoming(incoming);
  }
  if (core_.mailbox_->remove_waiting(incoming)) return core_.mailbox_->give_incoming(incoming);
  core_.count_abandoned(incoming, server_);
  incoming->is_cancelled.store(true, std::memory_order_relaxed);
}

/// By its type and size alone.
EndpointCore::Refusal EndpointCore::refusal_of(uint32_t type, size_t bytes) {
  if (type >= handlers_.size() || handlers_[type].handler == nullptr) {
    return {&counters_.refused_no_handler, wire::FailureCode::kUnknownType};
  }
  if (bytes > handlers_[type].options.max_request_bytes) {
    return {&counters_.refused_too_large, wire::FailureCode::kTooLarge};
  }
  return {};
}

void EndpointCore::fail_request(Server* server, ServerSlot* slot, wire::FailureCode code, uint16_t app_code) {
  server->session.fail(slot, code, app_code);
  list_to_send(server);
}

/// `data` is `owned`'s, or the transport's (then `owned` is null) until this returns.
void EndpointCore::run_handler(Server* server, ServerSlot* slot, const std::byte* data, uint32_t bytes,
                               detail::Buffer* owned) {
  auto refuse = [&](uint64_t& counter, wire::FailureCode code) {
    counter++;
    if (owned != nullptr) detail::release_buffer(owned);
    fail_request(server, slot, code, 0);
  };
  if (const Refusal why = refusal_of(slot->type, bytes); why.counter != nullptr) return refuse(*why.counter, why.code);
  HandlerEntry& entry = handlers_[slot->type];
  if (is_closing_) return refuse(counters_.refused_closing, wire::FailureCode::kClosing);
  uint64_t deadline_ns = UINT64_MAX;
  uint64_t begin_ns = 0;
  if (slot->deadline_code != wire::kNoDeadline) {
    begin_ns = clock_ns();
    deadline_ns = arrived_ns() + wire::decode_time_left(slot->deadline_code);
    if (deadline_ns <= begin_ns + entry.time.expected_ns(begin_ns)) {
      return refuse(counters_.refused_deadline, wire::FailureCode::kDeadline);
    }
  }
  Incoming* incoming = spare_record();
  if (incoming == nullptr) return refuse(counters_.refused_no_memory, wire::FailureCode::kNoMemory);
  open(incoming, server, slot, data, bytes);
  incoming->is_stable.store(owned != nullptr, std::memory_order_relaxed);
  incoming->deadline_ns = deadline_ns;
  incoming->copy = owned;
  incoming->handler = &entry;
  incoming->time = &entry.time;
  if (!entry.options.worker && deadline_ns != UINT64_MAX && entry.time.expected_ns(begin_ns) >= kLongHandlerNs) {
    return let_wait(incoming);
  }
  counters_.requests_handled++;
  if (entry.options.worker) return run_in_worker(entry, incoming);
  (*entry.handler)(incoming);
  if (begin_ns != 0) {
    const uint64_t end_ns = clock_ns();
    entry.time.add(begin_ns, end_ns);
    if (end_ns - begin_ns >= kLongHandlerNs) note_poll(now_ns_);
  }
  if (incoming->progress == Incoming::Progress::kAnswered) {
    Mailbox::rest(incoming);
    send_answer(incoming);
  } else if (incoming->is_open()) {
    keep(incoming);
  }
}

/// Cancels, and what else has come, are looked at before its handler runs, and the answers of others leave.
void EndpointCore::let_wait(Incoming* incoming) {
  keep(incoming);
  if (incoming->server == nullptr) return on_answered(incoming);  // no memory: failed already
  incoming->room = nullptr;                                       // the loop's own
  incoming->waits_in_loop = true;
  waiting_requests_.add(incoming);
  at_latest(now_ns_);
}

void EndpointCore::refuse_late(Incoming* incoming) {
  incoming->answer = Incoming::Answer::kFailure;
  incoming->failure = wire::FailureCode::kDeadline;
  on_answered(incoming);
}

/// Those that can no longer finish in time are refused on the way.
void EndpointCore::run_waiting_request() {
  const uint64_t begin_ns = clock_ns();
  for (uint32_t i = 0; i < kRefusedInTurn; i++) {
    const auto [incoming, is_late] = waiting_requests_.take(begin_ns);
    if (incoming == nullptr) break;
    incoming->waits_in_loop = false;
    counters_.requests_handled++;
    if (is_late) {
      refuse_late(incoming);
      continue;
    }
    auto& entry = *static_cast<HandlerEntry*>(incoming->handler);
    (*entry.handler)(incoming);
    entry.time.add(begin_ns, clock_ns());
    break;
  }
  if (has_waiting_requests()) at_latest(now_ns_);
}

Incoming* EndpointCore::spare_record() {
  if (spare_ != nullptr) return spare_;
  spare_ = mailbox_->take_incoming(this);
  const bool may_dispatch = spare_ != nullptr && !is_closing_;
  dispatch_types_ = may_dispatch ? static_cast<uint32_t>(handlers_.size()) : 0;
  return spare_;
}

/// The request outlives its handler, or has a worker for it: the record is the slot's until the answer.
void EndpointCore::bind(Incoming* incoming) {
  incoming->slot->call = incoming;
  spare_ = nullptr;
  spare_record();
}

void EndpointCore::unbind(Incoming* incoming) {
  incoming->slot->call = nullptr;
  mailbox_->give_incoming(incoming);
}

/// The handler has returned without an answer: the message must outlive the receive buffer. Another thread may have the
/// Request already. The client learns that its request has arrived.
void EndpointCore::keep(Incoming* incoming) {
  bind(incoming);
  incoming->server->session.owe_credit_return(now_ns_);
  list_to_send(incoming->server);
  // Acquire: another thread may have made the copy, and read the receive buffer for it until just now.
  if (incoming->is_stable.load(std::memory_order_acquire) || mailbox_->make_stable(incoming)) return;
  counters_.refused_no_memory++;
  incoming->slot->call = nullptr;
  fail_request(incoming->server, incoming->slot, wire::FailureCode::kNoMemory, 0);
  incoming->server = nullptr;
  incoming->is_cancelled.store(true, std::memory_order_relaxed);
  mailbox_->make_empty(incoming);
}

/// What try_request() began and its handler has not answered in place.
void EndpointCore::keep_if_open(Incoming* incoming) {
  if (!incoming->is_open()) return;
  incoming->server->session.defer(incoming->slot);
  keep(incoming);
}

void EndpointCore::run_in_worker(HandlerEntry& entry, Incoming* incoming) {
  keep(incoming);
  if (incoming->server == nullptr) {  // no memory: failed already
    counters_.requests_handled--;
    return on_answered(incoming);
  }
  incoming->room = nullptr;  // the loop's own
  if (Incoming* refused = submit(entry, incoming); refused != nullptr) {
    Server* server = refused->server;
    ServerSlot* slot = refused->slot;
    counters_.refused_worker_queue++;
    counters_.requests_handled--;
    unbind(refused);
    fail_request(server, slot, wire::FailureCode::kOverloaded, 0);
  }
}

/// Returns the request that no worker will take; null: each has one.
Incoming* EndpointCore::submit(HandlerEntry& entry, Incoming* incoming) {
  if (incoming->deadline_ns == UINT64_MAX) {
    Endpoint::Handler* handler = entry.handler.get();
    const bool is_submitted =
        nexus_.submit_work([handler, incoming] {  // two words: they fit into the task without an allocation
          Mailbox* mailbox = incoming->mailbox;
          // After close() the handler may be gone; the Request then just goes home.
          if (!mailbox->enter_worker()) return mailbox->push_answered(incoming);
          if (incoming->is_cancelled.load(std::memory_order_relaxed)) {
            mailbox->push_answered(incoming);
          } else {
            (*handler)(incoming);
          }
          mailbox->leave_worker();
        });
    return is_submitted ? nullptr : incoming;
  }
  Mailbox* mailbox = mailbox_;
  if (!mailbox->add_waiting(incoming)) return nullptr;
  const bool is_submitted = nexus_.submit_work([mailbox] {
    if (!mailbox->begin_task()) return;
    if (Incoming* next = mailbox->take_waiting(); next != nullptr) {
      auto& its = *static_cast<HandlerEntry*>(next->handler);
      const uint64_t begin_ns = mailbox->now_ns();
      (*its.handler)(next);
      its.time.add(begin_ns, mailbox->now_ns());
    }
    mailbox->leave_worker();
  });
  return is_submitted ? nullptr : mailbox->take_back_waiting(incoming);
}

detail::Buffer* EndpointCore::take_room(Incoming* incoming) {
  ServerSlot* slot = incoming->slot;
  if (incoming->server == nullptr || slot->response == nullptr || slot->response_ticket > released_) return nullptr;
  incoming->room = nullptr;
  slot->response->revoke_lease();
  return take_response(slot);
}

/// Any answer of a request, in the owner's thread.
void EndpointCore::on_answered(Incoming* incoming) {
  Server* server = incoming->server;
  if (server == nullptr) {
    on_abandoned_answered(incoming);
    return mailbox_->give_incoming(incoming);
  }
  ServerSlot* slot = incoming->slot;
  const bool is_response = incoming->answer == Incoming::Answer::kResponse;
  if (!is_response) {
    if (incoming->failure == wire::FailureCode::kDeadline) {
      counters_.refused_deadline++;
      counters_.requests_handled--;
    }
    server->session.fail(slot, incoming->failure, incoming->app_code);
  } else {
    if (slot->response != nullptr) release_after(slot->response_ticket, take_response(slot));
    slot->response = std::exchange(incoming->response, nullptr);
    slot->response_ticket = 0;
    slot->response_bytes = slot->response->length_bytes;
    server->session.respond(slot);
  }
  // What was held for so long is no sample of the round trip, however long: from here on nobody has asked.
  slot->received_ns = std::max(slot->received_ns, now_ns_ - std::min(now_ns_, kLongHoldNs));
  if (incoming == spare_) {
    Mailbox::rest(incoming);  // its handler runs
  } else {
    unbind(incoming);
  }
  list_to_send(server);
  if (is_response && slot->response->capacity_bytes > kUncountedBytes) [[unlikely]]
    count_response(server, slot);
}

void EndpointCore::list_to_send_quietly(Server* server) {
  if (server->is_listed_to_send) return;
  server->is_listed_to_send = true;
  servers_to_send_.add(server);
  disarm();
}

/// Its first answer of this iteration.
void EndpointCore::add_to_send(Server* server) {
  server->is_listed_to_send = true;
  servers_to_send_.add(server);
  if (server->session.heard_epoch != credits_.epoch()) [[unlikely]]
    return hear(server);
  disarm();
}

/// Its first one of this credit epoch. A function of its own: add_to_send() ends with a call, or saves registers for
/// it.
void EndpointCore::hear(Server* server) {
  credits_.hear(server->session.heard_epoch);
  disarm();
}

void EndpointCore::start_credit_epoch() {
  const bool was_silent = credits_.start_epoch(now_ns_, {counters_.packets_received, downlink_bytes()});
  client_pools_.response_share.start_epoch(was_silent);
  if (sweep_at_ns_ == UINT64_MAX) begin_sweep();
}

// ---- Clients that are reached where their packets come from (clause 7.7.4) ----

/// The address that a short paired path probe has come from gets a token of its own. While it has not come back, the
/// session's peer stays; there is one such address at a time.
void EndpointCore::answer_pair_probe(Server* server) {
  const auto peer = connect_back(server->peer);
  if (!peer.ok()) return;
  if (server->has_pair_peer && server->pair_peer == *peer) {
    disconnect_peer(*peer);  // a reference is enough
  } else {
    const uint64_t random = nexus_.environment().random();
    if (random == 0) return disconnect_peer(*peer);  // the system refuses some
    if (server->has_pair_peer) disconnect_peer(server->pair_peer);
    server->has_pair_peer = true;
    server->pair_peer = *peer;
    server->pair_token = static_cast<uint32_t>(random) & wire::kTokenMask;
  }
  server->session.owe_pair_reply(server->pair_token);
  list_to_send_quietly(server);
}

/// The client receives where the last token went: from now on all goes there.
void EndpointCore::follow(Server* server) {
  if (!std::exchange(server->has_pair_peer, false)) return;  // that was long ago
  if (server->pair_peer != server->peer) counters_.paths_followed++;
  disconnect_peer(std::exchange(server->peer, server->pair_peer));
}

// ---- Packets to a client ----

void EndpointCore::on_server_packet(const wire::Header& header, const transport::Payload& payload) {
  Client* client = clients_.find(header.session_key());
  if (client == nullptr) {
    counters_.dropped_unknown_session++;
    return;
  }
  auto& session = client->session;
  switch (header.kind()) {
    case wire::Kind::kResponse:
      return finish_verdict(client, session.on_response(header, payload, now_ns_));
    case wire::Kind::kCr:
      return finish_verdict(client, session.on_credit_return(header, payload, now_ns_));
    case wire::Kind::kCancelled:
      return finish_verdict(client, session.on_cancelled(header, now_ns_));
    default:
      return on_path_verdict(client, session.on_path_reply(header, payload.bytes, now_ns_));
  }
}

void EndpointCore::on_path_verdict(Client* client, ClientSession::PathVerdict verdict) {
  switch (verdict) {
    case ClientSession::PathVerdict::kOpened:
      if (client->session.is_paired()) counters_.sessions_paired++;
      return start_queued(client);
    case ClientSession::PathVerdict::kDropped:
      counters_.dropped_stale++;
      return;
    case ClientSession::PathVerdict::kFound:
      if (client->session.state() != ClientSession::State::kOpen) return;  // the next probe makes use of it
      client->is_pair_probe_due = true;
      return list_path_probe(client);
    case ClientSession::PathVerdict::kFollowed:
    case ClientSession::PathVerdict::kConfirmed:
      return after_input(client);
    case ClientSession::PathVerdict::kAnswered:
      break;
  }
  if (client->opening->has_paired && !client->session.is_paired()) {
    // The answer to an earlier probe was late, but has come.
    auto peer = connect_peer(client->opening->data_address, host_of(client->opening->nexus_address.view()));
    if (peer.ok()) disconnect_peer(std::exchange(client->peer, *peer));
  }
  client->opening->next_path_probe_ns = now_ns_;
  client->opening->path_probe_gap_ns = rto_ns_min_;
  open_step(client);
}

void EndpointCore::finish_verdict(Client* client, const session::ClientVerdict& verdict) {
  if (verdict.drop != Drop::kNone) [[unlikely]]
    count_drop(verdict.drop);
  if (verdict.finished != nullptr) [[likely]]
    finish(client, verdict.finished, verdict.status, verdict.app_code);
  after_input(client);
}

void EndpointCore::count_drop(Drop drop) {
  if (drop == Drop::kMalformed) counters_.dropped_malformed++;
  if (drop == Drop::kStale) counters_.dropped_stale++;
  if (drop == Drop::kUnproven) counters_.dropped_unproven++;
  if (drop == Drop::kLease) counters_.dropped_lease++;
  if (drop == Drop::kNoMemory) counters_.refused_no_memory++;
}

void EndpointCore::finish(Client* client, ClientSlot* slot, Status status, uint16_t app_code) {
  detail::Buffer* request = slot->request;
  detail::Buffer* response = slot->response;
  const uint64_t ticket = slot->ticket;
  session::Continuation continuation = std::move(slot->continuation);
  client->session.release_slot(slot);
  if (ticket <= released_) {
    start_queued(client);
    return run_continuation(continuation, request, response, status, app_code);
  }
  wait_for_ticket(ticket, request, response, status, app_code, std::move(continuation));
  if (!base::try_reserve(waiting_for_ticket_, waiting_for_ticket_.size() + slots_max_)) {
    client->session.block_slot(slot);
    waiting_for_ticket_.back().blocked_session = client->name;
    waiting_for_ticket_.back().blocked_slot = slot->request_number & (wire::kSlotsMax - 1);
  }
  start_queued(client);
}

}  // namespace tern::rpc
