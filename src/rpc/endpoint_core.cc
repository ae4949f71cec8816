#include "rpc/endpoint_core.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "rpc/check_options.h"
#include "rpc/fast_path.h"
#include "wire/credits.h"

namespace tern::rpc {

namespace {

/// Overhead of a packet on a link: Ethernet (with preamble, checksum and gap), IPv4 and UDP.
constexpr size_t kFrameBytes = 24 + 14 + 20 + 8;

constexpr const char* kNotLoopThread = "only the thread that first ran the event loop may run it";

}  // namespace

EndpointCore::EndpointCore(TransportPort& transport, nexus::NexusCore& nexus, memory::Arena& arena,
                           memory::Arena& received, const RpcOptions& options, std::string_view transport_name,
                           uint64_t rto_ns_min, CongestionControl default_control)
    : context_(
          nexus, arena, received, options, transport_name, transport, rto_ns_min,
          [this] { owner_.store(nullptr, std::memory_order_relaxed); }, owner_),
      peers_(nexus.environment().random()),
      completions_(context_),
      handlers_(context_, server_sessions_),
      server_sessions_(context_, peers_, completions_, handlers_),
      client_sessions_(context_, peers_, completions_, default_control),
      life_signs_(context_, peers_) {}

EndpointCore::~EndpointCore() {
  handlers_.close();
  context_.mailbox->close();
}

Status EndpointCore::start() {
  if (const Status status = check(context_.options); !status.ok()) return status;
  const TransportPort& transport = context_.transport;
  path_buffer_ = context_.arena.alloc(std::max(transport.payload_bytes_max(), transport.large_payload_bytes()));
  if (path_buffer_ == nullptr) return {Code::kNoMemory, "no memory for one packet of message memory"};
  std::memset(path_buffer_->data(), 0, path_buffer_->length_bytes);
  context_.now_ns = context_.transport.now();
  link_bytes_per_sec_ = context_.transport.link_bytes_per_sec();
  set_budgets();
  context_.mailbox->set_wake([transport = &context_.transport] { transport->wake(); });
  if (Status status = begin_to_trace(); !status.ok()) return status;
  if (Status status = context_.nexus.add_endpoint(context_.port); !status.ok()) return status;
  begin_to_publish();
  // Until a thread runs the loop, and becomes the owner, several threads may allocate and release messages.
  context_.arena.disown();
  if (&context_.received != &context_.arena) context_.received.disown();
  context_.log.endpoint(LogKind::kEndpointCreated);
  is_started_ = true;
  return {};
}

void EndpointCore::begin_to_publish() {
  if (context_.nexus.options().page.empty()) return;
  publisher_ = Publisher::create(context_, client_sessions_, server_sessions_,
                                 context_.nexus.add_to_page(context_.options.endpoint_id, context_.port.transport));
  if (publisher_ == nullptr) {
    context_.counters.page_missing = 1;
  } else {
    context_.agenda.at_latest(context_.now_ns);
  }
}

/// Sets the limits of credits and of responses in flight, for the transport's real sizes.
void EndpointCore::set_budgets() {
  const TransportPort& transport = context_.transport;
  const uint32_t queue = transport.receive_queue_packets();
  const auto packet_bytes = static_cast<uint32_t>(transport.payload_bytes_max() + wire::kHeaderBytes);
  const auto downlink = session::Downlink::of(transport.downlink_bytes_per_sec(), packet_bytes + kFrameBytes);
  const uint32_t credit_bytes = transport.credit_bytes() != 0 ? transport.credit_bytes() : std::bit_ceil(packet_bytes);
  const auto unit = std::max(static_cast<uint8_t>(std::countr_zero(credit_bytes)), wire::kCreditUnitMin);
  client_sessions_.set_budgets(queue, unit, session::ResponseShare(downlink));
  const session::CreditPolicy::Terms terms{queue, unit, wire::credits_of(packet_bytes, unit), downlink,
                                           context_.options.credit_limit};
  server_sessions_.set_budgets({terms, context_.now_ns}, transport.large_payload_bytes());
}

// ---- The owner thread ----

/// Returns the status of a call that is refused because is_owner() is false.
Status EndpointCore::not_owner(const char* wrong_thread) const {
  return context_.port.is_orphaned() ? nexus::kNexusGone : Status(Code::kWrongThread, wrong_thread);
}

/// Makes the calling thread the owner for ever, unless another thread is before it.
Status EndpointCore::bind_owner() {
  if (!is_owner() && (context_.port.is_orphaned() || context_.log.is_telling())) return not_owner(kNotLoopThread);
  const void* nobody = nullptr;
  if (!loop_thread_.compare_exchange_strong(nobody, base::thread_name(), std::memory_order_relaxed)) {
    return not_owner(kNotLoopThread);
  }
  owner_.store(base::thread_name(), std::memory_order_relaxed);
  context_.mailbox->bind_owner();
  context_.arena.bind_owner();
  context_.received.bind_owner();
  may_run_.store(true, std::memory_order_release);  // last: who sees it is not taken for the owner if it is not
  return {};
}

Status EndpointCore::check_entry() {
  // The creator may be is_owner() for a moment after another thread has bound itself.
  const void* const loop_thread = loop_thread_.load(std::memory_order_relaxed);
  if (loop_thread == nullptr) {
    if (Status status = bind_owner(); !status.ok()) return status;
  } else if (!base::is_this_thread(loop_thread) || !is_owner()) {
    return not_owner(kNotLoopThread);
  }
  if (context_.is_in_loop) [[unlikely]] {
    return {Code::kMisuse,
            "the event loop runs already: callbacks must neither run it nor close the endpoint: call stop(), "
            "and close() after the loop has returned"};
  }
  if (is_closed_) [[unlikely]]
    return {Code::kSessionReset, "the endpoint is closed"};
  return {};
}

// ---- The public face ----

Status EndpointCore::add_handler(uint16_t type, std::unique_ptr<RequestHandler> handler,
                                 const HandlerOptions& options) {
  if (!is_owner()) return not_owner("on_request() must be called by the thread that created the endpoint");
  if (is_bound()) return {Code::kMisuse, "on_request() must be called before the first loop iteration"};
  return handlers_.add(type, std::move(handler), options);
}

Status EndpointCore::add_listener(std::unique_ptr<SessionListener> listener) {
  if (!is_owner()) return not_owner("on_session_event() must be called by the thread that created the endpoint");
  if (is_bound()) return {Code::kMisuse, "on_session_event() must be called before the first loop iteration"};
  if (listener == nullptr) return {Code::kNoMemory, "no memory for the listener"};
  if (context_.listener != nullptr) return {Code::kMisuse, "the endpoint has a listener for session events already"};
  context_.listener = std::move(listener);
  return {};
}

Result<Session> EndpointCore::create_session(std::string_view uri, const SessionOptions& options) {
  if (!is_owner()) {
    return not_owner("create_session() must be called by the thread that runs the event loop: use post()");
  }
  if (!failure_.ok()) return failure_;
  return client_sessions_.create(uri, options);
}

Status EndpointCore::destroy_session(Session session) {
  if (!is_owner()) {
    return not_owner("destroy_session() must be called by the thread that runs the event loop: use post()");
  }
  if (is_of_server(session)) {
    return {Code::kMisuse, "a session that a client has opened ends with the client: refuse its requests instead"};
  }
  return client_sessions_.destroy(session);
}

SessionInfo EndpointCore::session_info(Session session) const {
  if (!is_owner()) {
    SessionInfo unknown;
    unknown.status = not_owner("session_info() must be called by the thread that runs the event loop: use post()");
    return unknown;
  }
  const bool is_client = !is_of_server(session);
  SessionInfo info = is_client ? client_sessions_.info(session) : server_sessions_.info(session);
  info.is_client = is_client;
  return info;
}

Result<bool> EndpointCore::wait_for_open(Session session, detail::SessionWaiter* waiter) {
  if (!is_owner()) return not_owner("opened() must be called by the thread that runs the event loop: use post()");
  if (is_of_server(session)) {
    return Status(Code::kMisuse,
                  "opened() accepts sessions of create_session() only: on_session_event() reports the others");
  }
  return client_sessions_.wait_for_open(session, waiter);
}

void EndpointCore::stop_waiting(Session session, detail::SessionWaiter* waiter) {
  client_sessions_.stop_waiting(session, waiter);
}

Duration EndpointCore::now() {
  if (!is_closed_) context_.read_clock_outside_loop();
  return Duration(context_.now_ns);
}

Status EndpointCore::cancel_timer(TimerId timer) {
  if (!is_owner()) return not_owner("cancel_timer() must be called by the thread that runs the event loop: use post()");
  if (timers_.cancel(timer.value)) return {};
  return {Code::kMisuse, "no such timer: it has run, or was cancelled"};
}

Result<TimerId> EndpointCore::add_timer(Duration delay, detail::InlineFunction<> then) {
  if (!is_owner()) return not_owner("after() must be called by the thread that runs the event loop: use post()");
  if (is_closed_) return Status(Code::kSessionReset, "the endpoint is closed: nothing runs in its loop any more");
  context_.read_clock_outside_loop();
  const uint64_t name = timers_.add(context_.now_ns + to_ns(delay), then);
  if (name == 0) return Status(Code::kNoMemory, "no memory for a timer");
  context_.agenda.at_latest(timers_.next_ns());
  return TimerId{name};
}

Status EndpointCore::add_post(detail::InlineFunction<> then) {
  return context_.port.is_orphaned() ? nexus::kNexusGone : context_.mailbox->push_post(std::move(then));
}

void EndpointCore::stop() {
  if (is_forked()) return;  // the transport's event is the parent's, too
  stop_.store(true, std::memory_order_seq_cst);
  waking_.fetch_add(1, std::memory_order_seq_cst);
  if (has_transport_.load(std::memory_order_seq_cst)) context_.transport.wake();
  waking_.fetch_sub(1, std::memory_order_release);
}

/// Copies the counters of the layers below the endpoint. A closed endpoint keeps their last values.
const EndpointCounters& EndpointCore::counters() {
  EndpointCounters& counters = context_.counters;
  counters.controller = client_sessions_.controller_counters();
  if (is_closed_) return counters;
  counters.transport = context_.transport.counters();
  counters.management = context_.nexus.management_counters();
  if (const NetworkCounters* network = context_.transport.network_counters()) counters.network = *network;
  if (const FaultCounters* faults = context_.transport.fault_counters()) counters.faults = *faults;
  return counters;
}

/// Makes later calls of stop() leave the transport alone, and waits for the present ones.
void EndpointCore::wait_for_wakers() {
  has_transport_.store(false, std::memory_order_seq_cst);
  while (waking_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

// ---- Steps of an iteration ----

bool EndpointCore::try_waiting_response(const wire::Header& header, const transport::Payload& payload) {
  Client* client = client_sessions_.find(header.session_key());
  if (client == nullptr) return false;
  session::ClientSlot* slot = client->session.try_finish_waiting(header, payload, context_.now_ns);
  if (slot == nullptr) return false;
  client_sessions_.finish(client, slot, Status(), 0);
  return true;
}

void EndpointCore::on_packet(wire::Header& header, transport::Payload& payload, std::byte* copy_to) {
  if (context_.tracer != nullptr) [[unlikely]]
    trace_packet(header, payload.bytes);
  // A client handles a mark on a received packet as the echo of a mark on its own packet.
  if (payload.is_marked && !wire::is_from_client(header.kind())) header.add_flags(wire::kEcnEcho);
  payload.data = transport::private_copy(payload, copy_to);
  if (!wire::is_known(static_cast<uint8_t>(header.kind()))) {
    context_.counters.dropped_malformed++;
  } else if (wire::is_from_client(header.kind())) {
    server_sessions_.on_packet(header, payload);
  } else {
    client_sessions_.on_packet(header, payload);
  }
}

/// Finds the message anew, because it may be gone since its last part.
transport::ExpectedPacket EndpointCore::expected_packet() {
  const wire::Header& part = context_.last_part;
  transport::ExpectedPacket expected;
  if (part.w0 == 0) return expected;
  if (wire::is_from_client(part.kind())) {
    if (const Server* server = server_sessions_.find(part.session_key())) {
      expected = server->session.expected_after(part);
    }
  } else if (const Client* client = client_sessions_.find(part.session_key())) {
    expected = client->session.expected_after(part);
  }
  if (expected.place == nullptr) context_.last_part = {};
  return expected;
}

void EndpointCore::read_mail() {
  for (Incoming* incoming = context_.mailbox->drain(posts_); incoming != nullptr;) {
    handlers_.on_answered(std::exchange(incoming, incoming->next_free));
  }
  for (auto& post : posts_) post.run();
  posts_.clear();
  context_.arena.share_if_short();
  if (context_.port.has_events()) read_control_events();
}

void EndpointCore::read_control_events() {
  using Kind = nexus::ControlEvent::Kind;
  context_.port.drain([this](nexus::ControlEvent& event) {
    switch (event.kind) {
      case Kind::kConnectRequest:
        server_sessions_.on_connect_request(event);
        break;
      case Kind::kConnectResult:
        client_sessions_.on_connect_result(event);
        break;
      case Kind::kDisconnected:
        if (event.is_client_side) {
          client_sessions_.on_disconnected(event.local_key);
        } else {
          server_sessions_.on_disconnected(event.local_key);
        }
        break;
      case Kind::kPeerGone:
        on_peer_gone(event);
        break;
      case Kind::kAskLife:
        life_signs_.on_question(event);
        break;
      case Kind::kLiveness:
        client_sessions_.on_liveness(event);
        break;
    }
  });
}

void EndpointCore::on_peer_gone(const nexus::ControlEvent& event) {
  Run* run = peers_.find_run(event.peer.boot_id);
  if (run == nullptr) return;
  peers_.join(run);  // keeps the run until the last of its sessions has ended
  server_sessions_.end_run(run, event.status);
  client_sessions_.end_run(run, event.status);
  peers_.leave(run);
  client_sessions_.end_calls_of_dead();
}

void EndpointCore::run_due(bool has_read_all) {
  if (completions_.has_waiting()) client_sessions_.run_waiting();
  completions_.run_releases();
  client_sessions_.end_calls_of_dead();
  client_sessions_.end_destroyed();
  Agenda& agenda = context_.agenda;
  if (context_.now_ns < agenda.next_ns()) return;
  agenda.start_over();
  life_signs_.note_what_is_read(has_read_all, idle_iterations_);
  life_signs_.answer(has_read_all);
  server_sessions_.end_pathless();
  server_sessions_.run_sweep();
  server_sessions_.run_held();
  timers_.run(context_.now_ns);
  agenda.at_latest(timers_.next_ns());
  client_sessions_.run_departures();
  client_sessions_.run_opening();
  client_sessions_.run_ticks(life_signs_.read_until_ns());
  if (publisher_ != nullptr) {
    if (context_.now_ns >= publisher_->next_ns()) publisher_->run(counters());
    agenda.at_latest(publisher_->next_ns());
  }
}

void EndpointCore::free_dead() {
  client_sessions_.free_dead();
  server_sessions_.free_dead();
}

void EndpointCore::start_credit_epoch() {
  client_sessions_.start_credit_epoch(server_sessions_.start_credit_epoch());
  note_activity();
}

void EndpointCore::note_activity() {
  if (publisher_ != nullptr) publisher_->note_activity();
  if (context_.log.is_on()) context_.log.watch(context_.transport.counters(), context_.now_ns);
}

Duration EndpointCore::announce_wait(bool is_now) {
  // The store takes 20 cycles. Without a loop that waits by itself, nothing has reset the value.
  std::atomic<bool>& may_sleep = context_.mailbox->may_sleep;
  if (!may_sleep.load(std::memory_order_relaxed)) may_sleep.store(true, std::memory_order_seq_cst);
  context_.agenda.arm();
  const bool is_due_now = is_now || has_work() || context_.mailbox->has_mail();
  const uint64_t due_ns = is_due_now ? context_.now_ns : context_.agenda.next_ns();
  return due_ns > INT64_MAX ? Duration::max() : Duration(due_ns);
}

// ---- The end ----

void EndpointCore::start_closing() {
  if (!context_.is_closing) closing_since_ns_ = context_.transport.now();
  context_.is_closing = true;
  handlers_.start_closing();
}

bool EndpointCore::has_unfinished_work() const {
  if (completions_.has_waiting() || client_sessions_.has_dead_calls()) return true;
  if (client_sessions_.has_to_send() || server_sessions_.has_to_send()) return true;
  return client_sessions_.is_busy() || server_sessions_.is_busy(closing_since_ns_);
}

void EndpointCore::end_sessions(Status why) {
  client_sessions_.end_all(why);
  server_sessions_.end_all(why);
}

void EndpointCore::fail(Status why) {
  failure_ = why;
  context_.log.endpoint(LogKind::kTransportFailed, why);
  end_sessions(why);
}

void EndpointCore::close_all() {
  context_.is_in_loop = true;
  context_.agenda.leave_armed();  // no program waits any more
  start_closing();
  (void)counters();  // keeps the last values, because the transport and the Nexus may be gone later
  is_closed_ = true;
  may_run_.store(false, std::memory_order_relaxed);
  context_.mailbox->refuse_posts();
  end_sessions({Code::kCancelled, "the endpoint was closed"});
  if (publisher_ != nullptr) publisher_->finish(counters());
  publisher_.reset();
  timers_.clear();
  life_signs_.clear();
  context_.nexus.remove_endpoint(context_.port);
  client_sessions_.forget_to_send();
  server_sessions_.forget_to_send();
  context_.mailbox->set_wake(nullptr);
  wait_for_wakers();
  if (!is_started_) return;
  keep_trace();
  context_.log.endpoint(LogKind::kEndpointClosed);
}

void EndpointCore::finish_all() {
  context_.released = UINT64_MAX;
  while (completions_.has_waiting() || client_sessions_.has_dead_calls() || completions_.has_releases()) {
    run_due(false);
  }
  client_sessions_.finish_all();
  server_sessions_.finish_all();
  if (path_buffer_ != nullptr) detail::release_buffer(std::exchange(path_buffer_, nullptr));
  context_.is_in_loop = false;
}

}  // namespace tern::rpc
