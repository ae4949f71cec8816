// Sessions' beginnings and ends, timers, mail: what an endpoint does between packets.

#include "rpc/endpoint_core.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"

namespace tern::rpc {

using session::ClientSession;
using session::ClientSlot;
using session::ServerSlot;

namespace {

/// How often a session that is being opened is looked at.
constexpr uint64_t kOpenStepNs = 100'000;
constexpr uint64_t kPathProbeGapNsMax = 20'000'000;
/// For the first answer of a data address, then twice as long each time: the longest round trip on Earth, and a server
/// that is in a callback.
constexpr uint64_t kPathPatienceNs = 400'000'000;
/// From the transport's news that a peer is gone to the session's end: management's reason comes sooner, if it comes.
constexpr uint64_t kPeerLostNs = 50'000'000;
/// 8 packets of 64 kB in flight keep one copy through shared memory at full speed; more only pushes the data out of
/// the cache (measured, ANCHORS: 8 in rotation 95-100 % of a bare copy, 32 in rotation 33-51 %).
constexpr uint32_t kBulkBytes = 512u << 10;
constexpr uint32_t kBulkPacketsMin = 8;

/// Of a link, around a packet: Ethernet (preamble, checksum and gap included), IPv4, UDP.
constexpr size_t kFrameBytes = 24 + 14 + 20 + 8;
/// So long after its last answer a client does not count on the limit that it had where that is sized by the downlink.
constexpr uint64_t kCreditsLastNs = 4 * session::CreditPolicy::kDownlinkEpochNs;
/// In so many target delays (1 ms in a datacenter) flows come and go.
constexpr uint64_t kCongestionTargets = 50;

/// A session whose next business is not within so many RTOs is not looked at each RTO.
constexpr uint64_t kRestRtos = 4;
/// So many sessions ahead their memory is fetched: a look takes a few ns, and memory a hundred.
constexpr size_t kTicksAhead = 8;

/// Its calls have ended since the last look, and it will be looked at when its report is due.
bool is_done_for_now(const Client& client) {
  return client.is_resting && client.session.is_at_rest() && client.queue == nullptr && client.peer_lost_ns == 0;
}

uint64_t to_ns(Duration duration) { return static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0)); }

std::string host_of(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  std::string host = host_and_port.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.sequence > b.sequence;
};

}  // namespace

EndpointCore::EndpointCore(nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received,
                           const RpcOptions& options, std::string_view transport, uint64_t rto_ns_min,
                           CongestionControl default_control)
    : nexus_(nexus),
      arena_(arena),
      received_(received),
      mailbox_(new Mailbox(arena, received, nexus.environment())),
      port_(options.endpoint_id, std::string(transport), [mailbox = mailbox_] { mailbox->announce_control(); }),
      options_(options),
      rto_ns_min_(rto_ns_min),
      default_control_(default_control),
      peers_(nexus.environment().random()) {}

EndpointCore::~EndpointCore() {
  if (spare_ != nullptr) mailbox_->give_incoming(spare_);
  mailbox_->close();
}

void EndpointCore::bind_owner() {
  owner_.store(memory::thread_name(), std::memory_order_relaxed);
  mailbox_->bind_owner();
  arena_.bind_owner();
  received_.bind_owner();
}

// ---- Registration, memory, timers ----

Status EndpointCore::add_handler(uint16_t type, std::unique_ptr<Endpoint::Handler> handler,
                                 const HandlerOptions& options) {
  if (!is_owner()) return {Code::kWrongThread, "on_request() belongs to the thread that made the endpoint"};
  if (is_bound_) return {Code::kMisuse, "on_request() only before the first loop iteration"};
  if (type >= wire::kRequestTypes) return {Code::kMisuse, "request types are 0 to 4095"};
  if (spare_record() == nullptr) return {Code::kNoMemory, "no memory for the record of a request"};
  if (type >= handlers_.size()) handlers_.resize(type + 1u);
  if (handlers_[type].handler != nullptr) return {Code::kMisuse, "this request type has a handler already"};
  handlers_[type] = {std::move(handler), options};
  if (handlers_.size() > dispatch_types_) {
    auto larger = std::make_unique<Dispatch[]>(handlers_.size());
    std::copy_n(dispatch_.get(), dispatch_types_, larger.get());
    dispatch_ = std::move(larger);
    dispatch_types_ = static_cast<uint32_t>(handlers_.size());
  }
  if (!options.worker) {
    dispatch_[type] = {handlers_[type].handler.get(), std::min(options.max_request_bytes, wire::kMessageBytesMax) + 1};
  }
  return {};
}

MsgBuf EndpointCore::alloc_msgbuf(size_t len_bytes) {
  if (!is_owner()) return MsgBuf();
  return MsgBuf(arena_.alloc(len_bytes));
}

Duration EndpointCore::now() {
  if (!is_in_loop_ && !is_closed_) now_ns_ = clock_ns();
  return Duration(now_ns_);
}

Status EndpointCore::add_timer(Duration delay, detail::InlineFunction<> then) {
  if (!is_owner()) return {Code::kWrongThread, "after() belongs to the thread that runs the event loop: use post()"};
  if (is_closed_) return {Code::kSessionReset, "the endpoint is closed: nothing runs in its loop any more"};
  if (!is_in_loop_) now_ns_ = clock_ns();
  timers_.push_back({now_ns_ + to_ns(delay), timer_sequence_++, std::move(then)});
  std::push_heap(timers_.begin(), timers_.end(), kLater);
  at_latest(timers_.front().at_ns);
  return {};
}

void EndpointCore::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  waking_.fetch_add(1, std::memory_order_seq_cst);
  if (has_transport_.load(std::memory_order_seq_cst)) wake_transport();
  waking_.fetch_sub(1, std::memory_order_release);
}

void EndpointCore::wait_for_wakers() {
  has_transport_.store(false, std::memory_order_seq_cst);
  while (waking_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

// ---- Client sessions ----

Result<Session> EndpointCore::create_session(std::string_view uri, const SessionOptions& options) {
  if (!is_owner()) {
    return Status(Code::kWrongThread, "create_session() belongs to the thread that runs the event loop: use post()");
  }
  if (is_closing_) return Status(Code::kSessionReset, "the endpoint is closing");
  if (options.window < 1 || options.window > wire::kSlotsMax) {
    return Status(Code::kMisuse, "SessionOptions::window is 1 to 64");
  }
  auto parsed = nexus::parse_uri(uri);
  if (!parsed.ok()) return parsed.status();
  auto address = nexus_.environment().resolve(parsed->host_and_port);
  if (!address.ok()) return address.status();
  if (!is_in_loop_) now_ns_ = clock_ns();
  Environment& environment = nexus_.environment();
  const auto random32 = [&] { return static_cast<uint32_t>(environment.random()); };
  uint32_t key;
  if (!clients_.draw(now_ns_, random32, &key)) return Status(Code::kNoMemory, "no memory for another session");

  session::ClientTerms terms;
  terms.local_key = key;
  terms.first_number = random32() & wire::kNumberMask;
  terms.window = options.window;
  terms.rto_ns_min = rto_ns_min_;
  terms.liveness_ns = to_ns(nexus_.options().liveness_timeout);
  terms.report_delay_ns = to_ns(options_.report_delay);
  if (downlink_bytes_per_sec() != 0) terms.credits_last_ns = kCreditsLastNs;
  const uint32_t bulk = std::max(kBulkPacketsMin, kBulkBytes / payload_bytes_max());
  terms.bulk_packets = std::min(bulk, std::max(kBulkPacketsMin, receive_queue_packets() * 3 / 4));
  terms.controller = make_controller(options);
  terms.congestion_lasts_ns = kCongestionTargets * delay_target().target_ns;
  terms.link_bytes_per_sec = link_bytes_per_sec();
  terms.may_pace_below_packet = delay_target().is_of_network;
  terms.seed = random32();
  Client* client = client_pool_.take(terms, client_pools_);
  if (client == nullptr) return Status(Code::kNoMemory, "no memory for another session");
  client->name = clients_.put(key, client);
  clients_to_send_.make_room(clients_.size() + dead_clients_.size());
  client->opening = std::make_unique<Opening>();
  Opening& opening = *client->opening;
  opening.timeout_ns = to_ns(options.connect_timeout);
  opening.patience_ns = kPathPatienceNs;
  opening.nexus_address = *address;
  opening.peer_endpoint = parsed->endpoint_id;
  nexus::SessionTerms& wish = opening.wish;
  wish.transport = port_.transport;
  wish.address = local_address();
  wish.session_key = key;
  wish.endpoint_id = options_.endpoint_id;
  wish.payload_bytes_max = payload_bytes_max();
  wish.window = options.window;
  wish.credits = 0;
  wish.first_number = terms.first_number;
  nexus_.connect(port_, opening.nexus_address, opening.peer_endpoint, wish, opening.timeout_ns);
  return Session{client->name};
}

cc::AnyController EndpointCore::make_controller(const SessionOptions& options) const {
  if (options.rate_bytes_per_sec != 0) return cc::FixedRate(options.rate_bytes_per_sec);
  const transport::DelayTarget delay = delay_target();
  const cc::Path path = {link_bytes_per_sec(), payload_bytes_max() + static_cast<uint32_t>(wire::kHeaderBytes),
                         delay.target_ns, delay.far_ns};
  CongestionControl which = options.congestion_control;
  if (which == CongestionControl::kDefault) which = options_.congestion_control;
  if (which == CongestionControl::kDefault) which = default_control_;
  switch (which) {
    case CongestionControl::kTimely:
      return cc::Timely(path, false);
    case CongestionControl::kPatchedTimely:
      return cc::Timely(path, true);
    case CongestionControl::kSwift:
      return cc::Swift(path);
    case CongestionControl::kDctcp:
      return cc::Dctcp(path);
    default:
      return cc::None();
  }
}

void EndpointCore::on_connect_result(const nexus::ControlEvent& event) {
  Client* client = clients_.find(event.local_key);
  if (client == nullptr || client->is_accepted) return;
  const auto& terms = event.terms;
  if (!event.status.ok()) {
    counters_.sessions_failed++;
    return end_client(client, event.status, false);
  }
  client->is_accepted = true;
  auto refuse = [&](Status status) {
    counters_.sessions_failed++;
    end_client(client, status, true);
  };
  if (terms.payload_bytes_max < wire::kPayloadBytesMin || terms.payload_bytes_max > payload_bytes_max() ||
      terms.window < 1 || terms.window > client->session.window() || terms.credits < 1) {
    return refuse({Code::kRefused, "the server's terms are outside of what this version asked for"});
  }
  Run* run = peers_.join(event.peer.address, event.peer.boot_id);
  if (run == nullptr) return refuse({Code::kNoMemory, "no memory for another session"});
  join_run(client, run);
  auto peer = connect_peer(terms.address, host_of(event.peer.address));
  if (!peer.ok()) return refuse(peer.status());
  client->peer = *peer;
  client->has_peer = true;
  client->session.on_accepted(
      {terms.session_key, terms.payload_bytes_max, terms.window, terms.credits, terms.first_number, terms.path_token},
      now_ns_);
  Opening& opening = *client->opening;
  // The path has its own time: the session may have waited long for its turn to be accepted.
  if (opening.until_ns == 0) opening.until_ns = now_ns_ + std::min(opening.timeout_ns, UINT64_MAX - now_ns_);
  opening.path_probe_gap_ns = rto_ns_min_;
  opening.next_path_probe_ns = now_ns_;
  opening.over_at_ns = now_ns_ + opening.patience_ns;
  if (!client->is_opening) opening_.push_back(client);
  client->is_opening = true;
  open_step(client);
}

/// A session is open once a full packet has been answered by a full packet (clause 7.7).
void EndpointCore::open_step(Client* client) {
  Opening& opening = *client->opening;
  if (now_ns_ >= opening.until_ns) {
    counters_.sessions_failed++;
    return end_client(client,
                      {Code::kPeerUnreachable,
                       "no full-MTU packet was answered on the data path: a firewall, or an MTU smaller than the "
                       "transport's datagram size"},
                      true);
  }
  at_latest(now_ns_ + kOpenStepNs);
  switch (peer_state(client->peer)) {
    case transport::PeerState::kConnecting:
      return;
    case transport::PeerState::kDead:
      counters_.sessions_failed++;
      return end_client(client, {Code::kPeerUnreachable, "the peer's transport went away while connecting"}, true);
    case transport::PeerState::kReady:
      break;
  }
  if (now_ns_ < opening.next_path_probe_ns) return;
  if (!client->session.may_probe_path()) {
    if (now_ns_ >= opening.over_at_ns) begin_handshake_anew(client);
    return;
  }
  path_probes_.push_back(client);
  opening.next_path_probe_ns = now_ns_ + opening.path_probe_gap_ns;
  opening.path_probe_gap_ns = std::min(4 * opening.path_probe_gap_ns, kPathProbeGapNsMax);
}

/// The data address has had the few headers that an address gets before it answers, and they or their answers were
/// lost, or it takes long: the server is asked for another session, which has its own.
void EndpointCore::begin_handshake_anew(Client* client) {
  Opening& opening = *client->opening;
  const uint32_t key = client->session.local_key();
  nexus_.disconnect(port_, key, true);
  disconnect_peer(client->peer);
  client->has_peer = false;
  client->is_accepted = false;
  leave_run(client);
  opening.patience_ns *= 2;
  opening.wish.first_number = static_cast<uint32_t>(nexus_.environment().random()) & wire::kNumberMask;
  client->session.start_over(opening.wish.first_number);
  nexus_.connect(port_, opening.nexus_address, opening.peer_endpoint, opening.wish, opening.until_ns - now_ns_);
}

Status EndpointCore::destroy_session(Session session) {
  if (!is_owner()) {
    return {Code::kWrongThread, "destroy_session() belongs to the thread that runs the event loop: use post()"};
  }
  Client* client = find_client(session);
  if (client == nullptr || client->is_ending) return {Code::kSessionReset, "this session is gone already"};
  client->is_ending = true;
  ending_.push_back({client->session.local_key(), {Code::kCancelled, "its session was destroyed"}});
  disarm();
  return {};
}

bool EndpointCore::is_open(Session session) const {
  const Client* client = is_owner() ? find_client(session) : nullptr;
  return client != nullptr && client->session.state() == ClientSession::State::kOpen;
}

/// The session is over: every call of it ends with `status`, and its key means nothing any more.
void EndpointCore::end_client(Client* client, Status status, bool tell_peer) {
  const uint32_t key = client->session.local_key();
  if (client->is_dead) return;
  client->is_dead = true;
  clients_.retire(key, now_ns_);
  if (client->run != nullptr) leave_run(client);
  if (!client->is_accepted) {
    nexus_.forget(port_, key);
  } else if (tell_peer) {
    nexus_.disconnect(port_, key, true);
  }
  if (client->has_peer) disconnect_peer(client->peer);
  dead_clients_.push_back(client);
  // The continuations may do anything, so the session's calls are taken out first.
  std::vector<Finished> finished;
  for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
    ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
    if (slot->phase == ClientSlot::Phase::kEnded) continue;
    finished.push_back({slot->ticket, slot->request, slot->response, status, 0, std::move(slot->continuation)});
    client->session.release_slot(slot);
  }
  if (client->queue != nullptr) {
    for (QueuedCall& call : *client->queue) {
      finished.push_back({0, call.request, call.response, status, 0, std::move(call.continuation)});
    }
    client->queue.reset();
  }
  for (Finished& call : finished) {
    finish_or_wait(call.ticket, call.request, call.response, call.status, call.app_code, std::move(call.continuation),
                   true);
  }
}

/// Promise 2: not before nothing can read the buffers any more.
void EndpointCore::finish_or_wait(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status,
                                  uint16_t app_code, session::Continuation continuation, bool may_run_now) {
  if (may_run_now && ticket <= released_) {
    run_continuation(continuation, request, response, status, app_code);
  } else {
    waiting_for_ticket_.push_back({ticket, request, response, status, app_code, std::move(continuation)});
    disarm();
  }
}

void EndpointCore::end_call_early(Client* client, ClientSlot* slot, Status status) {
  const uint64_t ticket = slot->ticket;
  detail::Buffer* request = slot->request;
  detail::Buffer* response = slot->response;
  session::Continuation continuation = std::move(slot->continuation);
  client->session.end_early(slot, now_ns_);
  after_input(client);
  finish_or_wait(ticket, request, response, status, 0, std::move(continuation), false);
}

/// Ends the waiting calls for which `is_over` says so. True if there was one.
template <class F>
bool EndpointCore::finish_queued(Client* client, Status status, F&& is_over) {
  if (client->queue == nullptr) return false;
  const size_t before = client->queue->size();
  std::erase_if(*client->queue, [&](QueuedCall& call) {
    if (!is_over(call)) return false;
    finish_or_wait(0, call.request, call.response, status, 0, std::move(call.continuation), false);
    return true;
  });
  const bool has_ended_some = client->queue->size() != before;
  if (client->queue->empty()) client->queue.reset();
  return has_ended_some;
}

Status EndpointCore::cancel(CallId call) {
  if (!is_owner()) return {Code::kWrongThread, "cancel() belongs to the thread that runs the event loop: use post()"};
  const auto sequence = static_cast<uint32_t>(call.value);
  const Status cancelled(Code::kCancelled, "cancelled by its caller");
  Client* client = clients_.find(static_cast<uint32_t>(call.value >> 32));
  if (client != nullptr) {
    for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
      ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
      if (slot->call_sequence != sequence || slot->phase == ClientSlot::Phase::kEnded) continue;
      end_call_early(client, slot, cancelled);
      return {};
    }
    const bool is_queued =
        finish_queued(client, cancelled, [&](const QueuedCall& queued) { return queued.sequence == sequence; });
    if (is_queued) return {};
  }
  return {Code::kMisuse, "no such call: it has ended already"};
}

/// False: there is nothing to do for the session until its next call.
bool EndpointCore::tick(Client* client) {
  if (client->peer_lost_ns != 0) {
    if (now_ns_ - client->peer_lost_ns >= kPeerLostNs) {
      counters_.sessions_failed++;
      end_client(client, {Code::kPeerUnreachable, "the transport to the peer is gone: create a new session"}, true);
      return false;
    }
    at_latest(client->peer_lost_ns + kPeerLostNs);
  }
  const session::ClientTick result = client->session.tick(now_ns_);
  uint64_t next_ns = result.next_ns;
  if (result.has_timed_out) counters_.timeouts++;
  if (result.ask_liveness) {
    nexus_.ask_liveness(port_, client->session.local_key());
  }
  if (result.has_failed) {
    counters_.sessions_failed++;
    end_client(client,
               {Code::kPeerUnreachable, "the peer has not answered for the liveness timeout: create a new session"},
               true);
    return false;
  }
  const Status late(Code::kDeadline, "the call's deadline passed before its response was complete");
  for (uint64_t mask = result.expired_mask; mask != 0; mask &= mask - 1) {
    end_call_early(client, client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))), late);
  }
  finish_queued(client, late, [&](const QueuedCall& call) {
    if (call.deadline_ns <= now_ns_) return true;
    next_ns = std::min(next_ns, call.deadline_ns);
    return false;
  });
  if (client->queue != nullptr) start_queued(client);
  bool must_stay = client->peer_lost_ns != 0 || (client->queue != nullptr && client->session.has_free_slot());
  if (client->session.wants_to_send()) {
    if (!waits_for_pace(client)) list_to_send(client);
    must_stay = true;
  }
  if (must_stay) next_ns = std::min(next_ns, now_ns_ + rto_ns_min_);
  return next_ns != UINT64_MAX && !rest(client, next_ns);
}

/// False: that is too soon, it goes on ticking.
bool EndpointCore::rest(Client* client, uint64_t until_ns) {
  const bool is_soon = until_ns - now_ns_ < kRestRtos * rto_ns_min_ || until_ns <= now_ns_;
  if (is_soon || (client->is_resting && until_ns < client->rest_until_ns)) {
    at_latest(until_ns);
    return false;
  }
  if (client->is_resting) return true;  // and will be looked at too early, if anything
  client->is_resting = true;
  client->rest_until_ns = until_ns;
  resting_.add(until_ns, client->session.local_key());
  return true;
}

// ---- Server sessions ----

void EndpointCore::on_connect_request(const nexus::ControlEvent& event) {
  auto refuse = [&](wire::Refusal refusal) {
    counters_.sessions_refused++;
    nexus_.answer_connect(port_, event.token, nexus::refusal_status(refusal), {});
  };
  const auto& wish = event.terms;
  if (is_closing_) return refuse(wire::Refusal::kEndpointClosing);
  if (wish.transport != port_.transport) return refuse(wire::Refusal::kTransportMismatch);
  if (wish.payload_bytes_max < wire::kPayloadBytesMin || wish.payload_bytes_max > wire::kPayloadBytesMax) {
    return refuse(wire::Refusal::kMtuMismatch);
  }
  if (wish.window < 1 || wish.window > wire::kSlotsMax) return refuse(wire::Refusal::kOther);
  if (const auto refusal = refusal_of_session(event.peer); refusal != wire::Refusal::kNone) return refuse(refusal);
  Environment& environment = nexus_.environment();
  const auto random32 = [&] { return static_cast<uint32_t>(environment.random()); };
  uint32_t key;
  if (!servers_.draw(now_ns_, random32, &key)) return refuse(wire::Refusal::kNoMemory);
  Run* run = peers_.join(event.peer.address, event.peer.boot_id);
  if (run == nullptr) return refuse(wire::Refusal::kNoMemory);
  auto peer = connect_peer(wish.address, host_of(event.peer.address));
  if (!peer.ok()) {
    peers_.leave(run);
    return refuse(peer.status().code() == Code::kNoMemory ? wire::Refusal::kNoMemory : wire::Refusal::kOther);
  }
  session::ServerTerms terms;
  terms.local_key = key;
  terms.remote_key = wish.session_key;
  terms.payload_bytes_max = std::min(wish.payload_bytes_max, payload_bytes_max());
  terms.window = wish.window;
  terms.first_request_count = random32() >> wire::kSlotBits;
  terms.first_client_number = wish.first_number;
  terms.first_number = random32() & wire::kNumberMask;
  terms.path_token = random32() & wire::kTokenMask;
  terms.session_token = random32() & wire::kTokenMask;
  Server* server = server_pool_.take(terms, server_pools_);
  if (server == nullptr) {
    peers_.leave(run);
    disconnect_peer(*peer);
    return refuse(wire::Refusal::kNoMemory);
  }
  servers_.put(key, server);
  servers_to_send_.make_room(servers_.size() + dead_servers_.size());
  server->peer = *peer;
  server->run = run;
  run->servers.add_last(server);
  run->server_sessions++;
  run->host->server_sessions++;
  begin_without_path(server);

  nexus::SessionTerms answer;
  answer.transport = port_.transport;
  answer.address = local_address();
  answer.session_key = key;
  answer.endpoint_id = options_.endpoint_id;
  answer.payload_bytes_max = terms.payload_bytes_max;
  answer.window = terms.window;
  answer.credits = credits_.start_limit(servers_.size());
  answer.first_number = terms.first_number;
  answer.path_token = terms.path_token;
  nexus_.answer_connect(port_, event.token, {}, std::move(answer));
}

void EndpointCore::end_server(Server* server, bool tell_peer) {
  if (server->is_dead) return;
  server->is_dead = true;
  servers_.retire(server->session.local_key(), now_ns_);
  Offers offers(*this, server);
  server->session.end_all(offers);
  if (server->is_pathless) end_without_path(server);
  Run* run = std::exchange(server->run, nullptr);
  run->servers.remove(server);
  run->server_sessions--;
  run->host->server_sessions--;
  peers_.leave(run);
  credits_.set_long_requests(server_pools_.assemblies.taken());
  if (tell_peer) {
    nexus_.disconnect(port_, server->session.local_key(), false);
  }
  disconnect_peer(server->peer);
  dead_servers_.push_back(server);
}

void EndpointCore::release_after(uint64_t ticket, detail::Buffer* buffer) {
  if (ticket <= released_) {
    detail::release_buffer(buffer);
  } else {
    releases_.push_back({ticket, buffer});
  }
}

// ---- Steps of an iteration ----

void EndpointCore::read_mail() {
  mailbox_->drain(answered_, posts_);
  for (Incoming* incoming : answered_) on_answered(incoming);
  answered_.clear();
  for (auto& post : posts_) post.run();
  posts_.clear();
  if (port_.has_events()) read_control_events();
}

void EndpointCore::read_control_events() {
  using Kind = nexus::ControlEvent::Kind;
  for (const nexus::ControlEvent& event : port_.drain()) {
    switch (event.kind) {
      case Kind::kConnectRequest:
        on_connect_request(event);
        break;
      case Kind::kConnectResult:
        on_connect_result(event);
        break;
      case Kind::kDisconnected:
        if (event.is_client_side) {
          if (Client* client = clients_.find(event.local_key); client != nullptr) on_server_left(client);
        } else if (Server* server = servers_.find(event.local_key); server != nullptr) {
          end_server(server, false);
        }
        break;
      case Kind::kPeerGone:
        on_peer_gone(event);
        break;
      case Kind::kLiveness: {
        Client* client = clients_.find(event.local_key);
        if (client == nullptr) break;
        if (event.liveness == nexus::PeerLiveness::kInCallback) client->session.on_peer_in_callback();
        if (event.liveness == nexus::PeerLiveness::kNoSession || event.liveness == nexus::PeerLiveness::kRestarted) {
          counters_.sessions_failed++;
          end_client(client, {Code::kSessionReset, "the server does not know the session any more: create a new one"},
                     false);
        }
        break;
      }
    }
  }
}

/// A session whose path is not proved yet had to make room for others (clause 7.8.2): its client may ask for another.
void EndpointCore::on_server_left(Client* client) {
  const bool may_try_again = client->is_accepted && client->session.state() != ClientSession::State::kOpen &&
                             now_ns_ < client->opening->until_ns;
  if (may_try_again) return begin_handshake_anew(client);
  counters_.sessions_failed++;
  end_client(client, {Code::kSessionReset, "the server closed the session: create a new one"}, false);
}

void EndpointCore::on_peer_gone(const nexus::ControlEvent& event) {
  Run* run = peers_.find_run(event.peer.boot_id);
  if (run == nullptr) return;
  peers_.join(run);  // it stays until the last of its sessions has ended
  while (Server* server = run->servers.first()) {
    counters_.sessions_failed++;
    end_server(server, false);
  }
  while (Client* client = run->clients.first()) {
    counters_.sessions_failed++;
    end_client(client, event.status, false);
  }
  peers_.leave(run);
}

void EndpointCore::run_due() {
  // What the continuations add waits for the next time.
  for (Finished& call : std::exchange(waiting_for_ticket_, {})) {
    if (call.ticket > released_) {
      waiting_for_ticket_.push_back(std::move(call));
    } else {
      run_continuation(call.continuation, call.request, call.response, call.status, call.app_code);
    }
  }
  std::erase_if(releases_, [&](const Release& release) {
    if (release.ticket > released_) return false;
    detail::release_buffer(release.buffer);
    return true;
  });
  if (!ending_.empty()) {
    for (const Ending& ending : std::exchange(ending_, {})) {
      if (Client* client = clients_.find(ending.key); client != nullptr) end_client(client, ending.status, true);
    }
  }
  if (now_ns_ < next_due_ns_) return;
  next_due_ns_ = UINT64_MAX;
  end_pathless();

  // Those that they add have their turn in the next iteration, or one without delay would keep the loop for ever.
  const uint64_t added_from_here = timer_sequence_;
  while (!timers_.empty() && timers_.front().at_ns <= now_ns_ && timers_.front().sequence < added_from_here) {
    std::pop_heap(timers_.begin(), timers_.end(), kLater);
    detail::InlineFunction<> then = std::move(timers_.back().then);
    timers_.pop_back();
    then.run();
  }
  if (!timers_.empty()) at_latest(timers_.front().at_ns);

  departures_.run(now_ns_, [&](uint32_t key) {
    if (Client* client = clients_.find(key); client != nullptr) {
      client->is_departing = false;
      list_to_send(client);
    }
  });
  if (!departures_.empty()) at_latest(departures_.next_ns());

  for (size_t i = 0; i < opening_.size();) {
    Client* client = opening_[i];
    if (!client->is_dead && client->session.state() != ClientSession::State::kOpen) {
      if (client->is_accepted) open_step(client);
      i++;
      continue;
    }
    client->is_opening = false;
    client->opening.reset();
    opening_[i] = opening_.back();
    opening_.pop_back();
  }

  resting_.run(now_ns_, [&](uint32_t key) {
    if (Client* client = clients_.find(key); client != nullptr) {
      client->is_resting = false;
      start_ticking(client);
    }
  });
  for (size_t i = 0; i < ticking_.size();) {
    if (i + kTicksAhead < ticking_.size()) __builtin_prefetch(ticking_[i + kTicksAhead]);
    Client* client = ticking_[i];
    if (!client->is_dead && !is_done_for_now(*client) && tick(client)) {
      i++;
      continue;
    }
    client->is_ticking = false;
    ticking_[i] = ticking_.back();
    ticking_.pop_back();
  }
  if (!resting_.empty()) at_latest(resting_.next_ns());
}

void EndpointCore::depart_later(Client* client) {
  if (std::exchange(client->is_departing, true)) return;  // there was a packet that waits for no pace
  departures_.add(now_ns_, client->session.departure_ns(), client->session.local_key());
  at_latest(departures_.next_ns());
}

void EndpointCore::set_budgets() {
  const uint32_t queue = receive_queue_packets();
  const auto packet_bytes = static_cast<uint32_t>(payload_bytes_max() + wire::kHeaderBytes + kFrameBytes);
  const auto downlink = session::Downlink::of(downlink_bytes_per_sec(), packet_bytes);
  client_pools_.response_packets_free = static_cast<int32_t>(std::max(kBulkPacketsMin, queue * 3 / 4));
  client_pools_.response_share = session::ResponseShare(downlink);
  credits_ = session::CreditPolicy({queue, downlink, options_.credit_limit}, now_ns_);
}

/// Sessions that have ended and that no list names any more.
void EndpointCore::free_dead() {
  for (size_t i = 0; i < dead_clients_.size();) {
    Client* client = dead_clients_[i];
    if (client->is_listed_to_send || client->is_ticking || client->is_opening) {
      next_due_ns_ = now_ns_;  // the lists drop it when they are next walked
      i++;
      continue;
    }
    std::erase(path_probes_, client);
    client_pool_.give(client);
    dead_clients_[i] = dead_clients_.back();
    dead_clients_.pop_back();
  }
  for (size_t i = 0; i < dead_servers_.size();) {
    Server* server = dead_servers_[i];
    if (server->is_listed_to_send) {
      i++;
      continue;
    }
    server_pool_.give(server);
    dead_servers_[i] = dead_servers_.back();
    dead_servers_.pop_back();
  }
}

bool EndpointCore::has_unfinished_work() const {
  if (!waiting_for_ticket_.empty() || !clients_to_send_.empty() || !servers_to_send_.empty()) return true;
  bool is_busy = false;
  clients_.for_each([&](Client* client) { is_busy |= client->session.busy_mask() != 0 || client->queue != nullptr; });
  servers_.for_each([&](Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      // Until its client has reported it, a response may have packets that are not sent, lost, or being copied. A
      // failure may as well become that of the closed session.
      const bool is_on_its_way = slot->phase == ServerSlot::Phase::kResponded;
      is_busy |= slot->call != nullptr || is_on_its_way;
    }
  });
  return is_busy;
}

void EndpointCore::start_closing() {
  is_closing_ = true;
  dispatch_types_ = 0;
}

void EndpointCore::close_all() {
  start_closing();
  is_closed_ = true;
  mailbox_->refuse_posts();
  std::vector<Client*> clients;
  clients_.for_each([&](Client* client) { clients.push_back(client); });
  for (Client* client : clients) end_client(client, {Code::kCancelled, "its endpoint was closed"}, true);
  std::vector<Server*> servers;
  servers_.for_each([&](Server* server) { servers.push_back(server); });
  for (Server* server : servers) end_server(server, true);
  timers_.clear();
}

void EndpointCore::finish_all() {
  while (!waiting_for_ticket_.empty() || !releases_.empty()) run_due();
  ticking_.clear();
  opening_.clear();
  for (Client* client : dead_clients_) client_pool_.give(client);
  for (Server* server : dead_servers_) server_pool_.give(server);
  dead_clients_.clear();
  dead_servers_.clear();
}

}  // namespace tern::rpc
