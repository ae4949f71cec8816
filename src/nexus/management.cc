// Sessions: what endpoints ask for, what peers' messages about sessions do. Relations are in management_relation.cc.
#include "nexus/management.h"

#include <algorithm>

#include "base/check.h"

namespace tern::nexus {

namespace {
using wire::ManagementKind;
using wire::ManagementMessage;
using wire::Refusal;

// The client confirms at once; only a lost confirmation is asked for.
constexpr Duration kConfirmAfter = std::chrono::milliseconds(50);
constexpr Duration kConfirmIntervalMax = std::chrono::milliseconds(500);
constexpr Duration kCloseAfter = std::chrono::milliseconds(5);
constexpr Duration kCloseIntervalMax = std::chrono::milliseconds(200);
constexpr Duration kAskAfter = std::chrono::milliseconds(10);
constexpr Duration kAskIntervalMax = std::chrono::milliseconds(100);
/// An iteration that lasts this long is a callback: packets alone take microseconds.
constexpr Duration kSecondLook = std::chrono::milliseconds(1);
constexpr size_t kDelayedAnswersMax = 4096;
/// Longer timeouts are this long: no sum of times overflows.
constexpr Duration kTimeoutMax = std::chrono::hours(24 * 365);

uint32_t to_us(Duration duration) { return static_cast<uint32_t>(duration / std::chrono::microseconds(1)); }

Refusal refusal_of(const Status& status) {
  for (uint8_t i = 1; i < wire::kRefusals; i++) {
    if (status.message() == wire::refusal_text(static_cast<Refusal>(i))) return static_cast<Refusal>(i);
  }
  return Refusal::kOther;
}

SessionTerms from_wire(const wire::ManagementTerms& from) {
  SessionTerms to;
  to.transport = from.transport_name();
  to.address.bytes = from.address;
  to.address.size = from.address_bytes;
  to.session_key = from.session_key;
  to.endpoint_id = from.endpoint_id;
  to.payload_bytes_max = from.payload_bytes_max;
  to.window = from.window;
  to.credits = from.credits;
  to.first_number = from.first_number;
  to.path_token = from.path_token;
  to.credit_unit = from.credit_unit;
  return to;
}
}  // namespace

Management::Management(const ManagementOptions& options, Hooks hooks)
    : options_(options),
      hooks_(std::move(hooks)),
      hash_{hooks_.random()},
      peers_by_run_(16, hash_),
      sessions_by_key_(16, hash_),
      sessions_by_request_(16, hash_) {}

// Endpoints.

void Management::add_endpoint(EndpointName name, std::string transport) {
  LocalEndpoint endpoint;
  endpoint.registration = name.registration;
  endpoint.transport = std::move(transport);
  has_had_endpoint_ = true;
  const bool is_new = endpoints_.emplace(name.id, std::move(endpoint)).second;
  CHECK(is_new, ==, true);
}

void Management::remove_endpoint(EndpointName name, Duration now) {
  if (find_endpoint(name) == nullptr) return;
  for (uint32_t i = 0; i < sessions_.size(); i++) {
    if (sessions_[i].local_endpoint != name.id) continue;
    switch (sessions_[i].state) {
      case State::kConnecting:
        free_session(i, now);
        break;
      case State::kUnconfirmed:
      case State::kOpen:
        begin_closing(i, now);
        break;
      case State::kAsked:
        sessions_[i].code = refusal_status(Refusal::kEndpointClosing).code();
        sessions_[i].refusal = Refusal::kEndpointClosing;
        end_session(i, now);
        send_reply(i);
        break;
      case State::kFree:
      case State::kClosing:
      case State::kClosed:
        break;
    }
  }
  endpoints_.erase(name.id);
}

Management::LocalEndpoint* Management::find_endpoint(const EndpointName& name) {
  const auto found = endpoints_.find(name.id);
  return found != endpoints_.end() && found->second.registration == name.registration ? &found->second : nullptr;
}

void Management::notify(uint16_t endpoint, ControlEvent event) {
  const auto found = endpoints_.find(endpoint);
  if (found == endpoints_.end()) return;
  notices_.push_back({{endpoint, found->second.registration}, std::move(event)});
}

ControlEvent Management::event_of(const Session& session, ControlEvent::Kind kind, Status status) const {
  ControlEvent event;
  event.kind = kind;
  event.is_client_side = session.is_client;
  event.local_key = session.local_key;
  event.status = status;
  event.peer = {peers_[session.peer].address, peers_[session.peer].boot_id};
  return event;
}

bool Management::fill_terms(const SessionTerms& from, wire::ManagementTerms& to) const {
  if (from.transport.size() > to.transport.size() || from.address.size > to.address.size()) return false;
  std::copy(from.transport.begin(), from.transport.end(), to.transport.begin());
  std::copy_n(from.address.bytes.begin(), from.address.size, to.address.begin());
  to.transport_bytes = static_cast<uint8_t>(from.transport.size());
  to.address_bytes = from.address.size;
  to.session_key = from.session_key;
  to.endpoint_id = from.endpoint_id;
  to.payload_bytes_max = from.payload_bytes_max;
  to.window = from.window;
  to.credits = from.credits;
  to.first_number = from.first_number;
  to.path_token = from.path_token;
  to.credit_unit = from.credit_unit;
  return wire::is_valid(to);
}

// Session records.

uint32_t Management::new_session(uint32_t peer_index, State state, bool is_client, Duration now) {
  uint32_t index = free_sessions_;
  if (index == kNone) {
    index = static_cast<uint32_t>(sessions_.size());
    sessions_.emplace_back();
  } else {
    free_sessions_ = sessions_[index].next;
  }
  Session& session = sessions_[index];
  const uint32_t generation = session.generation;
  session = {};
  session.generation = generation;
  session.peer = peer_index;
  session.is_client = is_client;
  Peer& peer = peers_[peer_index];
  session.next = peer.first_session;
  if (session.next != kNone) sessions_[session.next].previous = index;
  peer.first_session = index;
  peer.session_count++;
  sessions_live_++;
  set_state(index, state, now);
  return index;
}

void Management::set_state(uint32_t index, State state, Duration now) {
  Session& session = sessions_[index];
  Peer& peer = peers_[session.peer];
  if (session.state == State::kConnecting) stop_counting(index, now);
  if (is_watched(session.state)) peer.watched--;
  session.state = state;
  if (!is_watched(state)) return;
  if (peer.watched++ == 0) {
    if (peer.nonce == 0) peer.heard_at = now;
    arm_peer(session.peer, now + (peer.nonce == 0 ? period() : retry_period()));
  }
}

void Management::leave_keys(const Session& session) {
  if (session.state == State::kConnecting || session.state == State::kUnconfirmed || session.state == State::kOpen) {
    sessions_by_key_.erase(key_of(session.local_endpoint, session.is_client, session.local_key));
  }
  if (session.state == State::kAsked) {
    const auto endpoint = endpoints_.find(session.local_endpoint);
    CHECK((endpoint != endpoints_.end()), ==, true);
    endpoint->second.asked--;
  }
}

void Management::free_session(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  leave_keys(session);
  if (!session.is_client) sessions_by_request_.erase({session.token, session.peer});
  set_state(index, State::kFree, now);
  Peer& peer = peers_[session.peer];
  (session.previous == kNone ? peer.first_session : sessions_[session.previous].next) = session.next;
  if (session.next != kNone) sessions_[session.next].previous = session.previous;
  if (--peer.session_count == 0) {
    peer.idle_since = now;
    if (peer.nonce == 0) arm_peer(session.peer, now + options_.linger);
  }
  session.generation++;
  session.timer_at = kNever;
  session.request.reset();
  session.offer.reset();
  session.next = free_sessions_;
  free_sessions_ = index;
  sessions_live_--;
}

void Management::end_session(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  if (session.is_client) return free_session(index, now);
  leave_keys(session);
  set_state(index, State::kClosed, now);
  session.offer.reset();
  if (session.code == Code::kOk) {
    session.code = refusal_status(Refusal::kSessionClosed).code();
    session.refusal = Refusal::kSessionClosed;
  }
  arm_session(index, now + options_.linger);
}

void Management::begin_closing(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  leave_keys(session);
  set_state(index, State::kClosing, now);
  session.until = kNever;
  session.interval_us = to_us(kCloseAfter);
  send_about(index, ManagementKind::kDisconnect);
  repeat_later(index, kCloseIntervalMax, now);
}

void Management::on_session_time(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  switch (session.state) {
    case State::kConnecting:
      return on_connecting_time(index, now);
    case State::kUnconfirmed:
      send_about(index, ManagementKind::kAsk);
      return repeat_later(index, kConfirmIntervalMax, now);
    case State::kOpen:
      if (now >= session.until) {
        session.is_asking = false;
        return;
      }
      send_about(index, ManagementKind::kAsk);
      return repeat_later(index, kAskIntervalMax, now);
    case State::kClosing:
      send_about(index, ManagementKind::kDisconnect);
      return repeat_later(index, kCloseIntervalMax, now);
    case State::kClosed:
      return free_session(index, now);
    case State::kFree:
    case State::kAsked:
      return;
  }
}

void Management::on_connecting_time(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  Request& request = *session.request;
  // As long as the peer answers others, one that waits for its turn has not been ignored yet.
  if (!request.is_sent) session.until = std::max(session.until, peers_[session.peer].answered_at + request.timeout);
  if (now >= session.until) {
    return conclude_connect(index,
                            {Code::kPeerUnreachable,
                             "no answer from the server's Nexus within SessionOptions::connect_timeout; check "
                             "address, firewall, and that the server runs"},
                            now);
  }
  if (!request.is_sent) return arm_session(index, session.until);
  send_request(index);
  // An endpoint that does not answer keeps the others of its Nexus waiting no longer.
  if (session.interval_us >= to_us(options_.retry_max)) stop_counting(index, now);
  repeat_later(index, options_.retry_max, now);
}

void Management::start_request(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  session.request->is_sent = true;
  session.request->is_counted = true;
  peers_[session.peer].requests_out++;
  session.until = now + session.request->timeout;
  send_request(index);
  repeat_later(index, options_.retry_max, now);
}

void Management::stop_counting(uint32_t index, Duration now) {
  Request& request = *sessions_[index].request;
  if (!std::exchange(request.is_counted, false)) return;
  peers_[sessions_[index].peer].requests_out--;
  start_waiting_requests(sessions_[index].peer, now);
}

void Management::start_waiting_requests(uint32_t peer_index, Duration now) {
  Peer& peer = peers_[peer_index];
  while (peer.waiting_first < peer.waiting.size() && peer.requests_out < options_.requests_at_once) {
    const SessionName next = peer.waiting[peer.waiting_first++];
    const Session& session = sessions_[next.index];
    if (session.generation == next.generation && session.state == State::kConnecting) start_request(next.index, now);
  }
  if (peer.waiting_first != peer.waiting.size()) return;
  peer.waiting = {};
  peer.waiting_first = 0;
}

uint32_t Management::find_local(const EndpointName& from, uint32_t local_key, bool is_client) {
  if (find_endpoint(from) == nullptr) return kNone;
  const auto found = sessions_by_key_.find(key_of(from.id, is_client, local_key));
  return found == sessions_by_key_.end() ? kNone : found->second;
}

/// The session that a peer's message names, if it knows the token.
uint32_t Management::find_named(const ManagementMessage& m) const {
  const auto found = sessions_by_key_.find(key_of(m.to_endpoint, !m.from_client, m.to_key));
  if (found == sessions_by_key_.end()) return kNone;
  const Session& session = sessions_[found->second];
  if (session.token != m.token) return kNone;
  const bool is_same = session.state == State::kConnecting || session.remote_key == m.from_key;
  return is_same ? found->second : kNone;
}

uint32_t Management::find_cookie(uint64_t cookie, uint64_t token) const {
  const auto index = static_cast<uint32_t>(cookie);
  if (index >= sessions_.size() || cookie_of(index) != cookie) return kNone;
  return sessions_[index].token == token && sessions_[index].state != State::kFree ? index : kNone;
}

// What endpoints ask for.

void Management::connect(EndpointName from, const std::string& address, uint16_t peer_endpoint,
                         const SessionTerms& terms, Duration timeout, Duration now) {
  if (find_endpoint(from) == nullptr) return;
  const auto fail = [&](Status status) {
    ControlEvent event;
    event.kind = ControlEvent::Kind::kConnectResult;
    event.is_client_side = true;
    event.local_key = terms.session_key;
    event.status = status;
    event.peer.address = address;
    notify(from.id, std::move(event));
  };
  auto request = std::make_unique<Request>();
  if (!fill_terms(terms, request->terms) || find_local(from, terms.session_key, true) != kNone) {
    return fail({Code::kMisuse, "session terms out of range, or a session key that is in use"});
  }
  request->terms.endpoint_id = from.id;
  request->timeout = std::clamp(timeout, Duration(0), kTimeoutMax);
  uint32_t peer = sessions_live_ < options_.sessions_max ? first_peer_at(address) : kNone;
  if (peer == kNone && sessions_live_ < options_.sessions_max) peer = new_peer(address, now);
  if (peer == kNone) {
    return fail({Code::kQueueFull, "this Nexus has no room for another session or peer; destroy some first"});
  }
  const uint32_t index = new_session(peer, State::kConnecting, true, now);
  Session& session = sessions_[index];
  session.token = random_nonzero();
  session.local_endpoint = from.id;
  session.remote_endpoint = peer_endpoint;
  session.local_key = terms.session_key;
  session.request = std::move(request);
  session.interval_us = to_us(options_.retry_min);
  session.until = now + session.request->timeout;
  sessions_by_key_.emplace(key_of(from.id, true, terms.session_key), index);
  peers_[peer].waiting.push_back({index, session.generation});
  start_waiting_requests(peer, now);
  if (!session.request->is_sent) arm_session(index, session.until);
}

void Management::conclude_connect(uint32_t index, const Status& status, Duration now) {
  ControlEvent event = event_of(sessions_[index], ControlEvent::Kind::kConnectResult, status);
  const uint16_t endpoint = sessions_[index].local_endpoint;
  free_session(index, now);
  notify(endpoint, std::move(event));
}

void Management::answer_connect(EndpointName from, uint64_t token, const Status& status, const SessionTerms& terms,
                                Duration now) {
  const auto index = static_cast<uint32_t>(token);
  LocalEndpoint* endpoint = find_endpoint(from);
  if (endpoint == nullptr || index >= sessions_.size() || cookie_of(index) != token) return;
  Session& session = sessions_[index];
  // Not asked any more: the client's Nexus has gone, and the endpoint has been told so.
  if (session.state != State::kAsked || session.local_endpoint != from.id) return;
  wire::ManagementTerms offered;
  if (!status.ok()) {
    session.code = status.code();
    session.refusal = refusal_of(status);
    end_session(index, now);
    counters_.refused++;
    return send_reply(index);
  }
  CHECK(fill_terms(terms, offered), ==, true);  // the rpc room's terms
  CHECK(offered.credits, >=, 1);
  CHECK(sessions_by_key_.contains(key_of(from.id, false, terms.session_key)), ==, false);
  const std::shared_ptr<const Offer>& last = endpoint->offer;
  if (last == nullptr || last->transport != terms.transport || last->address.size != terms.address.size ||
      last->address.bytes != terms.address.bytes) {
    endpoint->offer = std::make_shared<const Offer>(Offer{terms.transport, terms.address});
  }
  leave_keys(session);
  set_state(index, State::kUnconfirmed, now);
  session.offer = endpoint->offer;
  session.local_key = terms.session_key;
  session.payload_bytes_max = terms.payload_bytes_max;
  session.window = terms.window;
  session.credits = terms.credits;
  session.first_number = terms.first_number;
  session.path_token = terms.path_token;
  session.credit_unit = terms.credit_unit;
  sessions_by_key_.emplace(key_of(from.id, false, terms.session_key), index);
  send_reply(index);
  session.interval_us = to_us(kConfirmAfter);
  repeat_later(index, kConfirmIntervalMax, now);
}

void Management::disconnect(EndpointName from, uint32_t local_key, bool is_client_side, Duration now) {
  const uint32_t index = find_local(from, local_key, is_client_side);
  if (index == kNone) return;
  // A server that has said yes meanwhile learns from its own question that there is no such session (clause 7.4.4).
  if (sessions_[index].state == State::kConnecting) return free_session(index, now);
  begin_closing(index, now);
}

void Management::ask_liveness(EndpointName from, uint32_t local_key, Duration now) {
  const uint32_t index = find_local(from, local_key, true);
  if (index == kNone || sessions_[index].state != State::kOpen || sessions_[index].is_asking) return;
  Session& session = sessions_[index];
  session.is_asking = true;
  session.until = now + options_.liveness_timeout;
  session.interval_us = to_us(kAskAfter);
  send_about(index, ManagementKind::kAsk);
  repeat_later(index, kAskIntervalMax, now);
}

// Messages in.

void Management::on_datagram(std::string_view from, std::span<const std::byte> bytes, Duration now) {
  ManagementMessage m;
  if (const auto drop = wire::parse_management(bytes, m); drop != wire::ManagementDrop::kNone) {
    counters_.dropped[static_cast<size_t>(drop)]++;
    return;
  }
  // Whoever names both runs of a relation is its other side, for nobody guesses them: it lives (clause 7.5.2).
  if (const uint32_t peer = peer_of_run(m.receiver_run);
      peer != kNone && peers_[peer].remote_run == m.sender_run && m.sender_run != 0) {
    peers_[peer].heard_at = now;
  }
  switch (m.kind) {
    case ManagementKind::kConnectRequest:
      return on_connect_request(from, m, now);
    case ManagementKind::kConnectReply:
      return on_connect_reply(from, m, now);
    case ManagementKind::kConfirm:
      return on_confirm(m, now);
    case ManagementKind::kDisconnect:
      return on_disconnect(from, m, now);
    case ManagementKind::kDisconnectAck:
      return on_disconnect_ack(m, now);
    case ManagementKind::kPing:
      return on_ping(from, m, now);
    case ManagementKind::kPong:
      return on_pong(m, now);
    case ManagementKind::kAsk:
      return on_ask(from, m, now);
    case ManagementKind::kAnswer:
      return on_answer(m, now);
  }
}

/// The relation that a request which names none belongs to, or could begin. An address that speaks under a run that is
/// new to us has perhaps restarted: the runs that we know there are asked at once (clause 7.5.4). kNone: none yet.
uint32_t Management::relation_of(std::string_view from, const ManagementMessage& request, Duration now) {
  uint32_t blank = kNone;
  const uint32_t first = first_peer_at(from);
  for (uint32_t at = first; at != kNone; at = peers_[at].next) {
    if (peers_[at].remote_run == request.sender_run) return at;
    if (peers_[at].remote_run == 0) blank = at;
  }
  for (uint32_t at = first; at != kNone; at = peers_[at].next) probe(at, now);
  return blank;
}

/// Until the endpoint is asked, nothing is kept: a stranger cannot fill a table with what is refused here.
void Management::on_connect_request(std::string_view from, const ManagementMessage& m, Duration now) {
  uint32_t peer;
  if (m.receiver_run == 0) {
    peer = relation_of(from, m, now);
  } else {
    // The one that it names: of its run there may be another, which it does not know.
    peer = peer_of_run(m.receiver_run);
    if (peer == kNone || peers_[peer].remote_run != m.sender_run) {
      counters_.stale++;
      return send_refusal(from, m, Refusal::kStaleRun);  // it believes in an agreement that has ended (clause 7.5.4)
    }
  }
  if (peer != kNone) {
    if (const auto found = sessions_by_request_.find({m.token, peer}); found != sessions_by_request_.end()) {
      counters_.repeated++;
      const Session& session = sessions_[found->second];
      const bool is_same = session.remote_key == m.terms.session_key && session.remote_endpoint == m.terms.endpoint_id;
      if (is_same && session.state != State::kAsked) send_reply(found->second);
      return;
    }
  }
  const auto endpoint = endpoints_.find(m.to_endpoint);
  if (endpoint == endpoints_.end()) {
    // A process that is still starting: as if lost, the client repeats (clause 7.3.2).
    if (!has_had_endpoint_) return;
    return send_refusal(from, m, Refusal::kNoSuchEndpoint);
  }
  if (m.version_min > options_.version_max || m.version_max < options_.version_min) {
    return send_refusal(from, m, Refusal::kNoCommonVersion);
  }
  if (m.terms.transport_name() != endpoint->second.transport) return send_refusal(from, m, Refusal::kTransportMismatch);
  if (endpoint->second.asked >= options_.asked_max) {
    counters_.over_limit++;  // as if lost: the client repeats when the endpoint has caught up
    return;
  }
  if (sessions_live_ >= options_.sessions_max) {
    counters_.over_limit++;
    return send_refusal(from, m, Refusal::kNoCapacity);
  }
  if (peer == kNone) {
    uint32_t relations = 0;
    for (uint32_t at = first_peer_at(from); at != kNone; at = peers_[at].next) relations++;
    if (relations >= options_.peers_per_address_max) {
      counters_.over_limit++;  // as if lost: dead relations are found out by the probes above
      return;
    }
    peer = new_peer(from, now);
  }
  if (peer == kNone) return send_refusal(from, m, Refusal::kNoCapacity);
  if (peers_[peer].remote_run == 0) adopt(peer, m.sender_run, now);

  endpoint->second.asked++;
  const uint32_t index = new_session(peer, State::kAsked, false, now);
  Session& session = sessions_[index];
  session.token = m.token;
  session.local_endpoint = m.to_endpoint;
  session.remote_endpoint = m.terms.endpoint_id;
  session.remote_key = m.terms.session_key;
  session.version = std::min(m.version_max, options_.version_max);
  sessions_by_request_.emplace(RequestName{m.token, peer}, index);
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectRequest, {});
  event.token = cookie_of(index);
  event.terms = from_wire(m.terms);
  notify(m.to_endpoint, std::move(event));
}

void Management::on_connect_reply(std::string_view from, const ManagementMessage& m, Duration now) {
  const auto found = sessions_by_key_.find(key_of(m.to_endpoint, true, m.to_key));
  const uint32_t index = found == sessions_by_key_.end() ? kNone : found->second;
  const bool is_accepted = m.code == Code::kOk;
  if (index == kNone || sessions_[index].token != m.token || peers_[sessions_[index].peer].own_run != m.receiver_run) {
    counters_.stale++;
    if (is_accepted) send_unwanted(from, m);
    return;
  }
  Session& session = sessions_[index];
  Peer& peer = peers_[session.peer];
  peer.answered_at = now;
  if (session.state == State::kOpen) {
    if (!is_accepted) return;
    if (session.remote_key != m.terms.session_key || peer.remote_run != m.sender_run) return send_unwanted(from, m);
    return send_about(index, ManagementKind::kConfirm);
  }
  if (m.refusal == Refusal::kStaleRun) return probe(session.peer, now);
  if (!is_accepted) return conclude_connect(index, {m.code, wire::refusal_text(m.refusal)}, now);
  if (peer.remote_run != 0 && peer.remote_run != m.sender_run) {
    counters_.stale++;
    return probe(session.peer, now);  // one of the two is history; the request is repeated until we know which
  }
  const bool is_version_offered = m.version_min >= options_.version_min && m.version_min <= options_.version_max;
  if (!is_version_offered || m.terms.transport_name() != session.request->terms.transport_name()) {
    send_unwanted(from, m);
    const Refusal why = is_version_offered ? Refusal::kTransportMismatch : Refusal::kNoCommonVersion;
    return conclude_connect(index, refusal_status(why), now);
  }
  if (peer.remote_run == 0) adopt(session.peer, m.sender_run, now);
  set_state(index, State::kOpen, now);
  arm_session(index, kNever);
  session.until = kNever;
  session.request.reset();
  session.remote_key = m.terms.session_key;
  session.version = m.version_min;
  send_about(index, ManagementKind::kConfirm);
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectResult, {});
  event.terms = from_wire(m.terms);
  notify(session.local_endpoint, std::move(event));
}

void Management::on_confirm(const ManagementMessage& m, Duration now) {
  const uint32_t index = m.from_client ? find_named(m) : kNone;
  if (index == kNone) {
    counters_.stale++;
    return;
  }
  if (sessions_[index].state != State::kUnconfirmed) return;
  set_state(index, State::kOpen, now);
  arm_session(index, kNever);
}

void Management::on_disconnect(std::string_view from, const ManagementMessage& m, Duration now) {
  ManagementMessage ack;
  ack.kind = ManagementKind::kDisconnectAck;
  ack.sender_run = m.receiver_run;
  ack.receiver_run = m.sender_run;
  ack.token = m.token;
  ack.to_key = m.from_key;
  ack.from_key = m.to_key;
  ack.from_client = !m.from_client;
  ack.cookie = m.cookie;
  send(from, ack);
  const uint32_t index = find_named(m);
  if (index == kNone) return;
  Session& session = sessions_[index];
  // Overtook the yes: a yes that comes now is unexpected.
  if (session.state == State::kConnecting) return conclude_connect(index, refusal_status(Refusal::kSessionClosed), now);
  notify(session.local_endpoint, event_of(session, ControlEvent::Kind::kDisconnected, {}));
  end_session(index, now);
}

void Management::on_disconnect_ack(const ManagementMessage& m, Duration now) {
  const uint32_t index = find_cookie(m.cookie, m.token);
  if (index == kNone || sessions_[index].state != State::kClosing) return;
  end_session(index, now);
}

void Management::on_ask(std::string_view from, const ManagementMessage& m, Duration now) {
  const uint32_t index = find_named(m);
  // Its reply is on the way or lost; the request is repeated, and then there is an answer.
  if (index != kNone && sessions_[index].state == State::kConnecting) return;
  ManagementMessage answer;
  answer.kind = ManagementKind::kAnswer;
  answer.sender_run = m.receiver_run;
  answer.receiver_run = m.sender_run;
  answer.token = m.token;
  answer.to_key = m.from_key;
  answer.from_key = m.to_key;
  answer.from_client = !m.from_client;
  answer.cookie = m.cookie;
  answer.liveness = static_cast<uint8_t>(PeerLiveness::kNoSession);
  if (index == kNone) return send(from, answer);
  if (sessions_[index].state == State::kUnconfirmed) {  // only who holds the session asks about it
    set_state(index, State::kOpen, now);
    arm_session(index, kNever);
  }
  LocalEndpoint& endpoint = endpoints_.at(m.to_endpoint);
  const EndpointName name{m.to_endpoint, endpoint.registration};
  const uint64_t iteration = hooks_.iteration(name);
  if (iteration != endpoint.seen_iteration) {
    endpoint.seen_iteration = iteration;
    endpoint.seen_at = now;
  }
  const bool is_inside = iteration % 2 == 1;
  if (is_inside && now - endpoint.seen_at < kSecondLook) {
    if (delayed_answers_.size() >= kDelayedAnswersMax) return;  // as if lost: the question is repeated
    delayed_answers_.push_back({now + kSecondLook, name, std::string(from), answer});
    return;
  }
  answer.liveness = static_cast<uint8_t>(is_inside ? PeerLiveness::kInCallback : PeerLiveness::kIdle);
  send(from, answer);
}

void Management::on_answer(const ManagementMessage& m, Duration now) {
  const uint32_t index = find_cookie(m.cookie, m.token);
  if (index == kNone) {
    counters_.stale++;
    return;
  }
  Session& session = sessions_[index];
  const auto liveness = static_cast<PeerLiveness>(m.liveness);
  if (session.state == State::kUnconfirmed) {
    if (liveness == PeerLiveness::kNoSession) {
      notify(session.local_endpoint, event_of(session, ControlEvent::Kind::kDisconnected, {}));
      return end_session(index, now);
    }
    set_state(index, State::kOpen, now);
    arm_session(index, kNever);
  } else if (session.state == State::kOpen && session.is_asking) {
    session.is_asking = false;
    arm_session(index, kNever);
    ControlEvent event = event_of(session, ControlEvent::Kind::kLiveness, {});
    event.liveness = liveness;
    notify(session.local_endpoint, std::move(event));
  }
}

// Messages out.

ManagementMessage Management::message_of(ManagementKind kind, const Peer& peer, uint64_t token) {
  ManagementMessage m;
  m.kind = kind;
  m.sender_run = peer.own_run;
  m.receiver_run = peer.remote_run;
  m.token = token;
  return m;
}

void Management::send(std::string_view to, const ManagementMessage& m) {
  datagrams_.emplace_back();
  datagrams_.back().to = to;
  wire::encode_management(m, datagrams_.back().content);
}

void Management::send_request(uint32_t index) {
  const Session& session = sessions_[index];
  ManagementMessage m = message_of(ManagementKind::kConnectRequest, peers_[session.peer], session.token);
  m.version_min = options_.version_min;
  m.version_max = options_.version_max;
  m.to_endpoint = session.remote_endpoint;
  m.terms = session.request->terms;
  send(peers_[session.peer].address, m);
}

void Management::send_reply(uint32_t index) {
  const Session& session = sessions_[index];
  ManagementMessage m = message_of(ManagementKind::kConnectReply, peers_[session.peer], session.token);
  m.to_endpoint = session.remote_endpoint;
  m.to_key = session.remote_key;
  m.version_min = session.version;
  m.code = session.code;
  m.refusal = session.refusal;
  if (session.state == State::kClosing) {
    m.code = refusal_status(Refusal::kSessionClosed).code();
    m.refusal = Refusal::kSessionClosed;
  }
  if (m.code == Code::kOk) {
    SessionTerms terms;
    terms.transport = session.offer->transport;
    terms.address = session.offer->address;
    terms.session_key = session.local_key;
    terms.endpoint_id = session.local_endpoint;
    terms.payload_bytes_max = session.payload_bytes_max;
    terms.window = session.window;
    terms.credits = session.credits;
    terms.first_number = session.first_number;
    terms.path_token = session.path_token;
    terms.credit_unit = session.credit_unit;
    CHECK(fill_terms(terms, m.terms), ==, true);
  }
  send(peers_[session.peer].address, m);
}

void Management::send_about(uint32_t index, ManagementKind kind) {
  const Session& session = sessions_[index];
  ManagementMessage m = message_of(kind, peers_[session.peer], session.token);
  m.to_endpoint = session.remote_endpoint;
  m.to_key = session.remote_key;
  m.from_key = session.local_key;
  m.from_client = session.is_client;
  m.cookie = cookie_of(index);
  send(peers_[session.peer].address, m);
}

void Management::send_refusal(std::string_view to, const ManagementMessage& request, Refusal refusal) {
  counters_.refused++;
  ManagementMessage m;
  m.kind = ManagementKind::kConnectReply;
  m.receiver_run = request.sender_run;
  m.token = request.token;
  m.to_endpoint = request.terms.endpoint_id;
  m.to_key = request.terms.session_key;
  m.code = refusal_status(refusal).code();
  m.refusal = refusal;
  send(to, m);
}

/// A server says yes to what is not wanted (any more). Once per reply: the server asks by itself if this is lost.
void Management::send_unwanted(std::string_view to, const ManagementMessage& reply) {
  ManagementMessage m;
  m.kind = ManagementKind::kDisconnect;
  m.sender_run = reply.receiver_run;
  m.receiver_run = reply.sender_run;
  m.token = reply.token;
  m.to_endpoint = reply.terms.endpoint_id;
  m.to_key = reply.terms.session_key;
  m.from_key = reply.to_key;
  m.from_client = true;
  send(to, m);
}

}  // namespace tern::nexus
