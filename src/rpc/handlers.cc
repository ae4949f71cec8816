#include "rpc/handlers.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "rpc/server_sessions.h"

namespace tern::rpc {

using session::ServerSlot;

namespace {

/// A longer hold time is reported as too long (clause 2.9).
constexpr uint64_t kLongHoldNs = 10'000'000;
/// Most late requests that are refused in one turn, because other work waits meanwhile.
constexpr uint32_t kRefusedInTurn = 64;

}  // namespace

// ---- Registration ----

Status Handlers::add(uint16_t type, std::unique_ptr<RequestHandler> handler, const HandlerOptions& options) {
  if (type >= wire::kRequestTypes) return {Code::kMisuse, "a request type must be 0 to 4095"};
  if (handler == nullptr || find_record() == nullptr) return {Code::kNoMemory, "no memory for the record of a request"};
  if (type < entries_.size() && entries_[type].handler != nullptr) {
    return {Code::kMisuse, "this request type has a handler already"};
  }
  if (type >= entries_.size()) {
    std::unique_ptr<Dispatch[]> larger(new (std::nothrow) Dispatch[type + 1u]);
    if (larger == nullptr || !base::try_grow([&] { entries_.resize(type + 1u); })) {
      return {Code::kNoMemory, "no memory for the table of handlers"};
    }
    std::copy_n(dispatch_.get(), dispatch_types_, larger.get());
    dispatch_ = std::move(larger);
    dispatch_types_ = static_cast<uint32_t>(entries_.size());
  }
  entries_[type].handler = std::move(handler);
  entries_[type].options = options;
  if (!options.worker) {
    dispatch_[type] = {entries_[type].handler.get(), std::min(options.max_request_bytes, wire::kMessageBytesMax) + 1};
  }
  return {};
}

void Handlers::close() {
  if (spare_ != nullptr) context_.mailbox->give_incoming(std::exchange(spare_, nullptr));
}

RequestRefusal Handlers::refusal_of(uint32_t type, size_t bytes) {
  EndpointCounters& counters = context_.counters;
  if (type >= entries_.size() || entries_[type].handler == nullptr) {
    return {&counters.refused_no_handler, wire::FailureCode::kUnknownType};
  }
  if (bytes > entries_[type].options.max_request_bytes) {
    return {&counters.refused_too_large, wire::FailureCode::kTooLarge};
  }
  return {};
}

// ---- Records ----

/// Returns the record for the next request. The endpoint keeps one, so that the fast path need not allocate it. Null:
/// there is no memory; requests then take the general path, which tries again.
Incoming* Handlers::find_record() {
  if (spare_ != nullptr) return spare_;
  spare_ = context_.mailbox->take_incoming(this);
  const bool may_dispatch = spare_ != nullptr && !context_.is_closing;
  dispatch_types_ = may_dispatch ? static_cast<uint32_t>(entries_.size()) : 0;
  return spare_;
}

/// Binds the record to its slot until the answer, because the request outlives its handler, or goes to a worker.
void Handlers::bind(Incoming* incoming) {
  incoming->slot->call = incoming;
  spare_ = nullptr;
  find_record();
}

void Handlers::unbind(Incoming* incoming) {
  incoming->slot->call = nullptr;
  context_.mailbox->give_incoming(incoming);
}

/// Keeps a request whose handler has returned without an answer. The message must outlive the receive buffer, and the
/// client must learn that its request has arrived. Another thread may have the Request already. `may_wait`: the request
/// was one packet of the session's own size, so that the answer may tell the client (clause 4.2.6).
void Handlers::keep(Incoming* incoming, bool may_wait) {
  bind(incoming);
  if (sessions_.release_shared_response(incoming->slot)) incoming->space = nullptr;
  incoming->note_session();
  sessions_.owe_credit_return(incoming->server, incoming->slot, may_wait);
  if (context_.mailbox->make_stable(incoming)) return;
  context_.counters.refused_no_memory++;
  incoming->slot->call = nullptr;
  fail(incoming->server, incoming->slot, wire::FailureCode::kNoMemory);
  incoming->server = nullptr;
  incoming->is_cancelled.store(true, std::memory_order_relaxed);
  context_.mailbox->make_empty(incoming);
}

void Handlers::keep_if_open(Incoming* incoming) {
  if (!incoming->is_open()) return;
  incoming->server->session.defer(incoming->slot);
  keep(incoming, true);
}

// ---- Requests ----

void Handlers::fail(Server* server, ServerSlot* slot, wire::FailureCode code) {
  trace_answer(server, slot, 0);
  server->session.fail(slot, code, 0);
  sessions_.list_to_send(server);
}

void Handlers::run(Server* server, ServerSlot* slot, const std::byte* data, uint32_t bytes, detail::Buffer* owned) {
  EndpointCounters& counters = context_.counters;
  auto refuse = [&](uint64_t& counter, wire::FailureCode code) {
    counter++;
    if (owned != nullptr) detail::release_buffer(owned);
    fail(server, slot, code);
  };
  if (const RequestRefusal why = refusal_of(slot->type, bytes); why.counter != nullptr) {
    return refuse(*why.counter, why.code);
  }
  HandlerEntry& entry = entries_[slot->type];
  if (context_.is_closing) return refuse(counters.refused_closing, wire::FailureCode::kClosing);
  Timed timed{.deadline_ns = UINT64_MAX};
  if (slot->deadline_code != wire::kNoDeadline) {
    timed = begin_time(entry, slot->deadline_code);
    if (is_late(timed)) return refuse(counters.refused_deadline, wire::FailureCode::kDeadline);
  }
  Incoming* incoming = find_record();
  if (incoming == nullptr) return refuse(counters.refused_no_memory, wire::FailureCode::kNoMemory);
  incoming->open(server, slot, data, bytes, context_.released);
  incoming->place.store(owned != nullptr ? Incoming::Place::kStable : Incoming::Place::kLent,
                        std::memory_order_relaxed);
  incoming->deadline_ns = timed.deadline_ns;
  incoming->copy = owned;
  if (owned != nullptr) incoming->type = slot->type;
  incoming->handler = &entry;
  if (context_.tracer != nullptr) [[unlikely]]
    incoming->traced = TracedRequest::of(server, *slot, context_.tracer.get());
  if (!entry.options.worker && takes_long(timed)) return let_wait(incoming);
  counters.requests_handled++;
  const bool may_wait = owned == nullptr && bytes <= server->session.payload_bytes_max();
  if (entry.options.worker) return run_in_worker(incoming, may_wait);
  run_here(entry, incoming, timed, may_wait);
}

/// Runs the handler, in the loop or in a worker. Afterwards another thread may have the record, or the record is gone.
void Handlers::call(RequestHandler& handler, Incoming* incoming) {
  const TracedRequest traced = incoming->traced;
  if (traced.tracer == nullptr) [[likely]]
    return handler(incoming);
  traced.tracer->request(trace::Kind::kHandlerBegin, traced, incoming->bytes);
  handler(incoming);
  traced.tracer->request(trace::Kind::kHandlerEnd, traced, 0);
}

// ---- Deadlines ----

/// The times of a request that begins now. `deadline_code`: not kNoDeadline.
inline Handlers::Timed Handlers::begin_time(HandlerEntry& entry, uint32_t deadline_code) const {
  const uint64_t now_ns = context_.transport.now();
  return {&entry, now_ns, arrived_ns() + wire::decode_time_left(deadline_code), entry.time.expected_ns(now_ns)};
}

Handlers::Timed Handlers::time(uint32_t type, uint32_t deadline_code) {
  const Timed timed = begin_time(entries_[type], deadline_code);
  return is_late(timed) || takes_long(timed) ? Timed() : timed;
}

void Handlers::end_time(const Timed& timed) {
  const uint64_t end_ns = context_.transport.now();
  timed.entry->time.add(timed.begin_ns, end_ns, timed.expected_ns);
  if (end_ns - timed.begin_ns >= kLongHandlerNs) note_poll(context_.now_ns);
}

void Handlers::run_here(HandlerEntry& entry, Incoming* incoming, const Timed& timed, bool may_wait) {
  call(*entry.handler, incoming);
  if (timed.entry != nullptr) end_time(timed);
  if (incoming->progress == Incoming::Progress::kAnswered) {
    Mailbox::rest(incoming);
    trace_answer(incoming->server, incoming->slot, incoming->space->length_bytes);
    sessions_.send_answer(incoming);
  } else if (incoming->is_open()) {
    keep(incoming, may_wait);
  }
}

/// Lets the request wait: the loop handles cancels and other packets before the handler runs, and sends the answers of
/// other handlers. Its credit return does not wait, because other handlers that take long may run first.
void Handlers::let_wait(Incoming* incoming) {
  keep(incoming, false);
  if (incoming->server == nullptr) return context_.mailbox->give_incoming(incoming);  // no memory: failed already
  incoming->space = nullptr;                                                          // that buffer belongs to the loop
  incoming->waits_in_loop = true;
  waiting_.add(incoming);
  context_.agenda.at_latest(context_.now_ns);
}

/// Also refuses requests that can no longer finish in time.
void Handlers::run_waiting() {
  const uint64_t begin_ns = context_.transport.now();
  for (uint32_t i = 0; i < kRefusedInTurn; i++) {
    const auto [incoming, is_late] = waiting_.take(begin_ns);
    if (incoming == nullptr) break;
    incoming->waits_in_loop = false;
    context_.counters.requests_handled++;
    if (is_late) {
      incoming->set_failed(wire::FailureCode::kDeadline);
      on_answered(incoming);
      continue;
    }
    HandlerEntry& entry = *incoming->handler;
    call(*entry.handler, incoming);
    entry.time.add(begin_ns, context_.transport.now());
    break;
  }
  if (has_waiting()) context_.agenda.at_latest(context_.now_ns);
}

void Handlers::run_in_worker(Incoming* incoming, bool may_wait) {
  keep(incoming, may_wait);
  if (incoming->server == nullptr) {  // no memory: failed already
    context_.counters.requests_handled--;
    return context_.mailbox->give_incoming(incoming);
  }
  incoming->space = nullptr;  // that buffer belongs to the loop
  has_submitted_ = true;
  context_.mailbox->remind();
  if (Incoming* refused = submit(incoming); refused != nullptr) {
    Server* server = refused->server;
    ServerSlot* slot = refused->slot;
    flush_work();  // so that there is space soon
    context_.counters.refused_worker_queue++;
    context_.counters.requests_handled--;
    unbind(refused);
    fail(server, slot, wire::FailureCode::kOverloaded);
  }
}

/// Returns the request that no worker will take. Null: each request has a worker.
Incoming* Handlers::submit(Incoming* incoming) {
  Mailbox* mailbox = context_.mailbox;
  const bool has_deadline = incoming->has_deadline();
  if (!mailbox->add_waiting(incoming)) return nullptr;
  const bool is_submitted =
      context_.nexus.submit_work([mailbox, has_deadline] {  // two words fit into the task without an allocation
        Incoming* next = nullptr;
        if (!mailbox->begin_task(has_deadline, next)) return;
        if (next != nullptr) run_taken(next);
        mailbox->leave_worker();
      });
  return is_submitted ? nullptr : mailbox->take_back_waiting(incoming);
}

/// Runs the handler of a request that a worker has taken.
void Handlers::run_taken(Incoming* incoming) {
  HandlerEntry& entry = *incoming->handler;
  if (!incoming->has_deadline()) return call(*entry.handler, incoming);
  const Mailbox* const mailbox = incoming->mailbox;
  const uint64_t begin_ns = mailbox->now_ns();
  call(*entry.handler, incoming);
  entry.time.add(begin_ns, mailbox->now_ns());
}

// ---- Answers ----

detail::Buffer* Handlers::take_response_buffer(Incoming* incoming, size_t len_bytes) {
  ServerSlot* slot = incoming->slot;
  if (incoming->server == nullptr || slot->response == nullptr || slot->response_ticket > context_.released) {
    return nullptr;
  }
  if (!context_.transport.shortcuts().preallocated_responses) return nullptr;
  // set_response() will replace these.
  if (slot->response->in_use == detail::Buffer::kShared || slot->response->capacity_bytes < len_bytes) return nullptr;
  incoming->space = nullptr;
  slot->response->revoke_lease();
  return sessions_.take_response(slot);
}

/// Takes a request that was late, so that its handler has not run, out of the count of handlers that have run.
void Handlers::count_if_late(const Incoming* incoming) {
  if (incoming->answer != Incoming::Answer::kFailure || incoming->failure != wire::FailureCode::kDeadline) return;
  context_.counters.refused_deadline++;
  context_.counters.requests_handled--;
}

void Handlers::on_answered(Incoming* incoming) {
  const bool is_response = incoming->answer == Incoming::Answer::kResponse;
  if (!is_response) count_if_late(incoming);
  Server* server = incoming->server;
  if (server == nullptr) {
    sessions_.on_abandoned_answered(incoming);
    return context_.mailbox->give_incoming(incoming);
  }
  ServerSlot* slot = incoming->slot;
  trace_answer(server, slot, is_response ? incoming->response->length_bytes : 0);
  if (!is_response) {
    server->session.fail(slot, incoming->failure, incoming->app_code);
  } else {
    sessions_.set_response(server, slot, std::exchange(incoming->response, nullptr));
  }
  // The hold time is kLongHoldNs at most. A client takes no round-trip sample from a hold of that length.
  slot->received_ns = std::max(slot->received_ns, context_.now_ns - std::min(context_.now_ns, kLongHoldNs));
  if (incoming == spare_) {
    Mailbox::rest(incoming);  // its handler runs
  } else {
    unbind(incoming);
  }
  sessions_.list_to_send(server);
  if (is_response && is_counted(slot->response)) [[unlikely]]
    sessions_.count_response(server, slot);
}

void Handlers::abandon(Incoming* incoming, Server* server) {
  incoming->server = nullptr;
  incoming->slot = nullptr;
  if (incoming->waits_in_loop) {
    waiting_.remove(incoming, context_.now_ns);
    incoming->waits_in_loop = false;
    return context_.mailbox->give_incoming(incoming);
  }
  if (context_.mailbox->remove_waiting(incoming)) {
    context_.counters.requests_handled--;
    return context_.mailbox->give_incoming(incoming);
  }
  sessions_.count_abandoned(incoming, server);
  incoming->is_cancelled.store(true, std::memory_order_relaxed);
}

bool Handlers::is_in_handler(const ServerSlot* slot) const {
  return spare_ != nullptr && spare_->slot == slot && slot->phase == ServerSlot::Phase::kRunning &&
         spare_->progress != Incoming::Progress::kNone;
}

// ---- When packets have come ----

void Handlers::note_poll(uint64_t ns) {
  polled_ns_ = ns;
  polled_iteration_ = context_.port.iteration.load(std::memory_order_relaxed);
}

/// The earliest time at which the packets that are received now can have arrived.
uint64_t Handlers::arrived_ns() const {
  const bool is_recent = context_.port.iteration.load(std::memory_order_relaxed) - polled_iteration_ <= 2;
  const bool has_rested = rested_ns_ >= polled_ns_ && context_.now_ns - rested_ns_ > kNapNs;
  return polled_ns_ == 0 || !is_recent || has_rested ? context_.now_ns : polled_ns_;
}

void Handlers::check_invariants(size_t waiting) const {
  waiting_.check_invariants();
  CHECK(waiting, ==, waiting_.size());
  CHECK(dispatch_types_, <=, entries_.size());
}

}  // namespace tern::rpc
