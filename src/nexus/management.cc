// Sessions: what endpoints ask for, what peers' messages about sessions do. Relations are in management_relation.cc.
#include "nexus/management.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/status_text.h"

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
/// So many liveness timeouts, because the peer's thread may be starved: its endpoint waits as long for the answer.
constexpr int kTimeoutsOfAsking = 4;
/// An iteration that lasts this long is a callback: packets alone take microseconds.
constexpr Duration kSecondLook = std::chrono::milliseconds(1);
constexpr size_t kDelayedAnswersMax = 4096;
/// A server's keys turn every few seconds: one that sends a new cookie more often is answered by the timer.
constexpr uint8_t kCookiesMax = 4;
/// Addresses of one server, and what one of them has of the time before the next; twice as much in each round. A round
/// trip around the world takes less.
constexpr size_t kTargetsMax = 8;
constexpr Duration kTurn = std::chrono::milliseconds(250);
/// Sessions with a peer that may be connecting there: so many are looked at for one hint, whoever sent it.
constexpr uint32_t kHintedMax = 64;
constexpr Status kNoMemory{Code::kNoMemory, "no memory for the Nexus's record of another session"};
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
      own_secret_{hooks_.random(), hooks_.random()},
      hash_{hooks_.random()},
      cookies_([this] { return random(); }),
      peers_by_run_(16, hash_),
      peers_by_address_(16, hash_),
      sources_(16, hash_),
      sessions_by_key_(16, hash_),
      sessions_by_request_(16, hash_) {
  if (!of_peers_.try_reserve(options_.requests_waiting_max) ||
      !of_strangers_.try_reserve(options_.requests_waiting_max))
    throw std::bad_alloc();
}

bool Management::make_room() {
  if (base::try_reserve(notices_, notices_.size() + endpoints_.size() + 1)) return true;
  counters_.no_memory++;
  return false;
}

// Endpoints.

bool Management::add_endpoint(EndpointName name, std::string_view transport) {
  LocalEndpoint endpoint;
  endpoint.registration = name.registration;
  endpoint.transport = transport;
  bool is_new = false;
  if (!base::try_grow([&] { is_new = endpoints_.emplace(name.id, std::move(endpoint)).second; })) return false;
  CHECK(is_new, ==, true);
  has_had_endpoint_ = true;
  return true;
}

void Management::remove_endpoint(EndpointName name, Duration now) {
  see(now);
  LocalEndpoint* endpoint = find_endpoint(name);
  if (endpoint == nullptr) return;
  while (endpoint->first_session != kNone) {  // each of these takes it from the list
    const uint32_t index = endpoint->first_session;
    switch (sessions_[index].state) {
      case State::kConnecting:
        free_session(index, now);
        break;
      case State::kUnconfirmed:
      case State::kOpen:
        begin_closing(index, now);
        break;
      default:
        CHECK((sessions_[index].state == State::kAsked), ==, true);
        sessions_[index].code = refusal_status(Refusal::kEndpointClosing).code();
        sessions_[index].refusal = Refusal::kEndpointClosing;
        end_session(index, now);
        send_reply(index);
        break;
    }
  }
  endpoints_.erase(name.id);
}

Management::LocalEndpoint* Management::find_endpoint(const EndpointName& name) {
  const auto found = endpoints_.find(name.id);
  return found != endpoints_.end() && found->second.registration == name.registration ? &found->second : nullptr;
}

/// make_room() has been called in this step.
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

uint32_t Management::new_session(uint32_t peer_index, uint16_t local_endpoint, State state, bool is_client,
                                 Duration now) {
  uint32_t index = free_sessions_;
  if (index == kNone) {
    index = static_cast<uint32_t>(sessions_.size());
    if (!has_timer_room() || !base::try_grow([this] { sessions_.emplace_back(); })) {
      counters_.no_memory++;
      return kNone;
    }
  } else {
    free_sessions_ = sessions_[index].next;
  }
  Session& session = sessions_[index];
  const uint32_t generation = session.generation;
  session = {};
  session.generation = generation;
  session.local_endpoint = local_endpoint;
  session.peer = peer_index;
  session.is_client = is_client;
  Peer& peer = peers_[peer_index];
  session.next = peer.first_session;
  if (session.next != kNone) sessions_[session.next].previous = index;
  peer.first_session = index;
  peer.session_count++;
  peer.source->sessions += !is_client;
  sessions_live_++;
  set_state(index, state, now);
  return index;
}

void Management::set_state(uint32_t index, State state, Duration now) {
  Session& session = sessions_[index];
  Peer& peer = peers_[session.peer];
  if (session.state == State::kConnecting) stop_counting(index, now);
  if (is_watched(session.state)) peer.watched--;
  if (is_believed(session.state) != is_believed(state)) {
    LocalEndpoint& endpoint = endpoints_.find(session.local_endpoint)->second;
    if (is_believed(state)) {
      session.previous_of_endpoint = kNone;
      session.next_of_endpoint = std::exchange(endpoint.first_session, index);
      if (session.next_of_endpoint != kNone) sessions_[session.next_of_endpoint].previous_of_endpoint = index;
    } else {
      const uint32_t previous = session.previous_of_endpoint, next = session.next_of_endpoint;
      (previous == kNone ? endpoint.first_session : sessions_[previous].next_of_endpoint) = next;
      if (next != kNone) sessions_[next].previous_of_endpoint = previous;
    }
  }
  session.state = state;
  if (!is_watched(state)) return;
  if (peer.watched++ == 0) {
    if (peer.nonce == 0) hear(peer, now);
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
    peers_[session.peer].source->asked--;
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
  peer.source->sessions -= !session.is_client;
  if (--peer.session_count == 0) {
    peer.idle_since = now;
    if (peer.nonce == 0) arm_peer(session.peer, now + options_.linger);
  }
  session.generation++;
  arm_session(index, kNever);
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

/// A turn of one address, and the time for all of them.
void Management::set_until(Session& session, Duration now) const {
  const Request& request = *session.request;
  session.until = std::min(now + (request.over_at - awake(now)), request.is_sent ? request.turn_until : kNever);
}

void Management::on_connecting_time(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  Request& request = *session.request;
  // As long as the peer answers others, one that waits for its turn has not been ignored yet.
  if (!request.is_sent) {
    request.over_at = std::max(request.over_at, peers_[session.peer].answered_at + request.timeout);
  }
  if (awake(now) >= request.over_at) {
    note_turn(session);
    return conclude_connect(index, no_answer(request), now);
  }
  if (request.is_sent && now >= request.turn_until) return try_next_address(index, now);
  set_until(session, now);
  if (!request.is_sent) return arm_session(index, session.until);
  send_request(index);
  // An endpoint that does not answer keeps the others of its Nexus waiting no longer.
  if (session.interval_us >= to_us(options_.retry_max)) stop_counting(index, now);
  repeat_later(index, options_.retry_max, now);
}

/// What is known of the address whose turn is over.
void Management::note_turn(const Session& session) const {
  Request& request = *session.request;
  const Peer& peer = peers_[session.peer];
  if (request.is_sent && peer.unreachable_at >= request.sent_at) {
    request.targets[request.target].why = peer.unreachable;
  }
}

/// A new request, of another token: late answers to this one are undone (clause 7.3.6).
void Management::try_next_address(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  note_turn(session);
  stop_counting(index, now);
  std::unique_ptr<Request> request = std::move(session.request);
  request->turns++;
  request->target = (request->target + 1) % request->targets.size();
  request->is_sent = false;
  request->cookie = 0;
  request->cookies_taken = 0;
  const uint16_t endpoint = session.local_endpoint, peer_endpoint = session.remote_endpoint;
  const uint32_t local_key = session.local_key;
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectResult, {});
  free_session(index, now);
  event.status = begin_request(endpoint, local_key, peer_endpoint, std::move(request), now);
  if (!event.status.ok()) notify(endpoint, std::move(event));
}

/// The reason, as far as it is known.
Status Management::no_answer(const Request& request) const {
  constexpr const char* kOtherwise =
      "no answer from the server's Nexus within SessionOptions::connect_timeout; check address, firewall, and that the "
      "server runs";
  const auto words = [](Unreachable why) -> std::string_view {
    switch (why) {
      case Unreachable::kPort:
        return "nothing listens there";
      case Unreachable::kHost:
        return "no such host on its network";
      case Unreachable::kNetwork:
        return "no route";
      case Unreachable::kForbidden:
        return "a firewall refuses";
      case Unreachable::kSilent:
        break;
    }
    return "silence";
  };
  const std::string_view address = request.targets.front().address.view();
  const auto say = [&](std::string_view before, std::string_view after) {
    return base::status_of(Code::kPeerUnreachable, kOtherwise, {before, address, after});
  };
  if (request.targets.size() == 1) {
    switch (request.targets.front().why) {
      case Unreachable::kPort:
        return say("nothing listens at ",
                   " (ICMP: port unreachable): check the port, and that the server runs and listens on that address");
      case Unreachable::kHost:
        return say("no host answers at ", " (host unreachable): it is down, or the address is wrong");
      case Unreachable::kNetwork:
        return say("no route to ",
                   " (network unreachable): check the address, this machine's routes, and that the Nexus does not "
                   "listen on a loopback address");
      case Unreachable::kForbidden:
        return say("a firewall refuses what is sent to ", ": allow UDP to that port");
      case Unreachable::kSilent:
        return say("no answer from ",
                   " within SessionOptions::connect_timeout: a firewall drops what is sent there, the host is down, or "
                   "the server hangs; check address and firewall");
    }
  }
  std::array<std::string_view, 4 * kTargetsMax + 1> parts;
  size_t count = 0;
  parts[count++] = "no address of the server answers: ";
  for (const Target& target : request.targets) {
    if (count > 1) parts[count++] = ", ";
    parts[count++] = target.address.view();
    parts[count++] = " - ";
    parts[count++] = words(target.why);
  }
  return base::status_of(Code::kPeerUnreachable, kOtherwise, std::span(parts).first(count));
}

void Management::on_unreachable(std::string_view to, Unreachable why, Duration now) {
  see(now);
  if (!make_room()) return;
  for (uint32_t at = first_peer_at(to); at != kNone; at = peers_[at].next) {
    Peer& peer = peers_[at];
    peer.unreachable = why;
    peer.unreachable_at = now;
    // The newest requests are at the front. Each takes one hint for each address, later turns last their time.
    uint32_t looked_at = 0;
    for (uint32_t index = peer.first_session, next; index != kNone && looked_at < kHintedMax; index = next) {
      next = sessions_[index].next;
      looked_at++;
      const Session& session = sessions_[index];
      if (session.state != State::kConnecting || !session.request->is_sent) continue;
      if (session.request->turns + 1 < session.request->targets.size()) try_next_address(index, now);
    }
  }
}

void Management::start_request(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  Request& request = *session.request;
  request.is_sent = true;
  request.is_counted = true;
  request.sent_at = now;
  peers_[session.peer].requests_out++;
  if (request.turns == 0) request.over_at = awake(now) + request.timeout;
  if (request.targets.size() > 1) {
    request.turn_until = now + kTurn * (1 << std::min<size_t>(request.turns / request.targets.size(), 6));
  }
  set_until(session, now);
  send_request(index);
  repeat_later(index, options_.retry_max, now);
}

void Management::stop_counting(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  if (session.request == nullptr || !std::exchange(session.request->is_counted, false)) return;
  peers_[session.peer].requests_out--;
  start_waiting_requests(session.peer, now);
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

bool Management::connect(EndpointName from, std::span<const AddressText> addresses, uint16_t peer_endpoint,
                         const SessionTerms& terms, Duration timeout, Duration now) {
  see(now);
  if (find_endpoint(from) == nullptr) return true;
  if (!make_room()) return false;
  const auto begin = [&]() -> Status {
    std::unique_ptr<Request> request(new (std::nothrow) Request);
    const size_t count = std::min(addresses.size(), kTargetsMax);
    if (request == nullptr || !base::try_grow([&] { request->targets.resize(count); })) return kNoMemory;
    for (size_t i = 0; i < count; i++) request->targets[i].address = addresses[i];
    if (count == 0 || !fill_terms(terms, request->terms) || find_local(from, terms.session_key, true) != kNone) {
      return {Code::kMisuse, "session terms out of range, or a session key that is in use"};
    }
    // A peer that is known at one of them answers there.
    for (size_t i = count; i-- > 0;) {
      const uint32_t peer = first_peer_at(addresses[i]);
      if (peer != kNone && peers_[peer].remote_run != 0) request->target = i;
    }
    request->terms.endpoint_id = from.id;
    request->timeout = std::clamp(timeout, Duration(0), kTimeoutMax);
    request->over_at = awake(now) + request->timeout;
    return begin_request(from.id, terms.session_key, peer_endpoint, std::move(request), now);
  };
  const Status status = begin();
  if (status.ok()) return true;
  ControlEvent event;
  event.kind = ControlEvent::Kind::kConnectResult;
  event.is_client_side = true;
  event.local_key = terms.session_key;
  event.status = status;
  if (!addresses.empty()) event.peer.address = addresses.front();
  notify(from.id, std::move(event));
  return true;
}

/// Not ok: nothing has changed.
Status Management::begin_request(uint16_t endpoint, uint32_t local_key, uint16_t peer_endpoint,
                                 std::unique_ptr<Request> request, Duration now) {
  const AddressText& address = request->targets[request->target].address;
  uint32_t peer = first_peer_at(address);
  const bool is_full =
      sessions_live_ >= options_.sessions_max || (peer == kNone && peers_by_run_.size() >= options_.peers_max);
  if (is_full) {
    return {Code::kQueueFull, "this Nexus has no room for another session or peer; destroy some first"};
  }
  if (peer == kNone) peer = new_peer(address, false, now);
  if (peer == kNone || !base::try_reserve(peers_[peer].waiting, peers_[peer].waiting.size() + 1)) return kNoMemory;
  const uint64_t key = key_of(endpoint, true, local_key);
  if (!base::try_grow([&] { sessions_by_key_.emplace(key, kNone); })) return kNoMemory;
  const uint32_t index = new_session(peer, endpoint, State::kConnecting, true, now);
  if (index == kNone) {
    sessions_by_key_.erase(key);
    return kNoMemory;
  }
  sessions_by_key_.find(key)->second = index;
  Session& session = sessions_[index];
  session.token = random_nonzero();
  session.remote_endpoint = peer_endpoint;
  session.local_key = local_key;
  session.request = std::move(request);
  session.interval_us = to_us(options_.retry_min);
  set_until(session, now);
  peers_[peer].waiting.push_back({index, session.generation});
  start_waiting_requests(peer, now);
  if (!session.request->is_sent) arm_session(index, session.until);
  return {};
}

void Management::conclude_connect(uint32_t index, const Status& status, Duration now) {
  ControlEvent event = event_of(sessions_[index], ControlEvent::Kind::kConnectResult, status);
  const uint16_t endpoint = sessions_[index].local_endpoint;
  free_session(index, now);
  notify(endpoint, std::move(event));
}

bool Management::answer_connect(EndpointName from, uint64_t token, const Status& status, const SessionTerms& terms,
                                Duration now) {
  see(now);
  const auto index = static_cast<uint32_t>(token);
  LocalEndpoint* endpoint = find_endpoint(from);
  if (endpoint == nullptr || index >= sessions_.size() || cookie_of(index) != token) return true;
  if (!make_room()) return false;
  Session& session = sessions_[index];
  // Not asked any more: the client's Nexus has gone, and the endpoint has been told so.
  if (session.state != State::kAsked || session.local_endpoint != from.id) return true;
  const auto refuse = [&](Code code, Refusal refusal) {
    session.code = code;
    session.refusal = refusal;
    end_session(index, now);
    counters_.refused++;
    send_reply(index);
    return true;
  };
  if (!status.ok()) return refuse(status.code(), refusal_of(status));
  wire::ManagementTerms offered;
  const uint64_t key = key_of(from.id, false, terms.session_key);
  if (!fill_terms(terms, offered) || offered.credits == 0 || sessions_by_key_.contains(key)) {
    // Terms that cannot travel, or a key twice: the endpoint's session ends, for its client never hears of it.
    ControlEvent event = event_of(session, ControlEvent::Kind::kDisconnected, {});
    event.local_key = terms.session_key;
    notify(from.id, std::move(event));
    return refuse(refusal_status(Refusal::kOther).code(), Refusal::kOther);
  }
  std::shared_ptr<const Offer> offer = endpoint->offer;
  if (offer == nullptr || offer->transport != terms.transport || offer->address.size != terms.address.size ||
      offer->address.bytes != terms.address.bytes) {
    if (!base::try_grow([&] { offer = std::make_shared<const Offer>(Offer{terms.transport, terms.address}); }))
      return false;
  }
  endpoint->offer = offer;
  if (!base::try_grow([&] { sessions_by_key_.emplace(key, index); })) return false;
  leave_keys(session);
  set_state(index, State::kUnconfirmed, now);
  session.offer = std::move(offer);
  session.local_key = terms.session_key;
  session.payload_bytes_max = terms.payload_bytes_max;
  session.window = terms.window;
  session.credits = terms.credits;
  session.first_number = terms.first_number;
  session.path_token = terms.path_token;
  session.credit_unit = terms.credit_unit;
  send_reply(index);
  session.interval_us = to_us(kConfirmAfter);
  repeat_later(index, kConfirmIntervalMax, now);
  return true;
}

void Management::disconnect(EndpointName from, uint32_t local_key, bool is_client_side, Duration now) {
  see(now);
  const uint32_t index = find_local(from, local_key, is_client_side);
  if (index == kNone) return;
  // A server that has said yes meanwhile learns from its own question that there is no such session (clause 7.4.4).
  if (sessions_[index].state == State::kConnecting) return free_session(index, now);
  begin_closing(index, now);
}

void Management::ask_liveness(EndpointName from, uint32_t local_key, Duration now) {
  see(now);
  const uint32_t index = find_local(from, local_key, true);
  if (index == kNone || sessions_[index].state != State::kOpen || sessions_[index].is_asking) return;
  Session& session = sessions_[index];
  session.is_asking = true;
  session.until = now + kTimeoutsOfAsking * options_.liveness_timeout;
  session.interval_us = to_us(kAskAfter);
  send_about(index, ManagementKind::kAsk);
  repeat_later(index, kAskIntervalMax, now);
}

// Messages in.

void Management::on_datagram(std::string_view from, std::span<const std::byte> bytes, Duration now) {
  see(now);
  ManagementMessage m;
  if (const auto drop = wire::parse_management(bytes, m); drop != wire::ManagementDrop::kNone) {
    counters_.dropped[static_cast<size_t>(drop)]++;
    return;
  }
  if (!AddressText::fits(from) || !make_room()) return;
  // Whoever names both runs of a relation is its other side, for nobody guesses them: it lives (clause 7.5.2).
  if (const uint32_t peer = peer_of_run(m.receiver_run);
      peer != kNone && peers_[peer].remote_run == m.sender_run && m.sender_run != 0) {
    hear(peers_[peer], now);
    peers_[peer].is_proven = true;
  }
  switch (m.kind) {
    case ManagementKind::kConnectRequest:
      return take_request(from, m, now);
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
    case ManagementKind::kCookie:
      return on_cookie(m, now);
  }
}

/// Requests wait until all that has arrived with them is done: a flood of them delays no ping (clause 7.3.7).
void Management::take_request(std::string_view from, const ManagementMessage& m, Duration now) {
  const uint32_t peer = relation_named(from, m);
  if (peer != kNone) hear(peers_[peer], now);  // who repeats its request lives
  base::RingQueue<Arrival>& queue = peer != kNone ? of_peers_ : of_strangers_;
  if (queue.size() >= options_.requests_waiting_max) {
    counters_.over_limit++;
    return;
  }
  queue.push({from, m});
}

void Management::on_requests(Duration now) {
  for (base::RingQueue<Arrival>* queue : {&of_peers_, &of_strangers_}) {
    for (size_t i = 0; i < options_.requests_per_turn && !queue->empty(); i++) {
      const Arrival arrival = queue->pop();
      if (make_room()) on_connect_request(arrival.from, arrival.request, now);
    }
  }
}

/// The relation of a request's sender, if it has proved to be its other side: it names our run, or asks from the
/// relation's address under the run that we know and nobody guesses.
uint32_t Management::relation_named(std::string_view from, const ManagementMessage& request) const {
  if (request.receiver_run != 0) {
    // The one that it names: of its run there may be another, which it does not know.
    const uint32_t peer = peer_of_run(request.receiver_run);
    return peer != kNone && peers_[peer].remote_run == request.sender_run ? peer : kNone;
  }
  for (uint32_t at = first_peer_at(from); at != kNone; at = peers_[at].next) {
    if (peers_[at].remote_run == request.sender_run) return at;
  }
  return kNone;
}

/// The relation that a request under a run which is new to us begins: one of ours at this address that does not know
/// the other side yet, or a new one. The sender has perhaps restarted: the runs that we know there are asked at once
/// (clause 7.5.4).
uint32_t Management::relation_begun(std::string_view from, Duration now) {
  uint32_t blank = kNone, relations = 0;
  for (uint32_t at = first_peer_at(from); at != kNone; at = peers_[at].next, relations++) {
    if (peers_[at].remote_run == 0) {
      blank = at;
    } else {
      probe(at, now);
    }
  }
  if (blank != kNone) return blank;
  if (relations >= options_.peers_per_port_max) {
    counters_.over_limit++;  // as if lost: dead relations are found out by the probes above
    return kNone;
  }
  return new_peer(AddressText(from), true, now);
}

Refusal Management::limit_of(uint32_t peer, std::string_view from) const {
  if (sessions_live_ >= options_.sessions_max) return Refusal::kNexusFull;
  const auto found = peer == kNone ? sources_.find(source_of(from)) : sources_.end();
  const Source* source = peer != kNone ? peers_[peer].source : found != sources_.end() ? &found->second : nullptr;
  if (source != nullptr && source->sessions >= options_.sessions_per_address_max) return Refusal::kSessionsPerAddress;
  if (peer != kNone) return Refusal::kNone;
  if (source != nullptr && source->peers >= options_.peers_per_address_max) return Refusal::kPeersPerAddress;
  return peers_by_run_.size() >= options_.peers_max ? Refusal::kNexusFull : Refusal::kNone;
}

/// Until the sender has echoed a cookie nothing is kept, no endpoint is asked, and what is sent is less than what was
/// received (clause 7.3.2). Until the endpoint is asked, a relation at most is kept.
void Management::on_connect_request(std::string_view from, const ManagementMessage& m, Duration now) {
  uint32_t peer = relation_named(from, m);
  if (peer == kNone && m.receiver_run != 0) {
    counters_.stale++;
    return send_refusal(from, m, Refusal::kStaleRun);  // it believes in an agreement that has ended (clause 7.5.4)
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
  const auto found_endpoint = endpoints_.find(m.to_endpoint);
  if (found_endpoint == endpoints_.end()) {
    // A process that is still starting: as if lost, the client repeats (clause 7.3.3).
    if (!has_had_endpoint_) return;
    return send_refusal(from, m, Refusal::kNoSuchEndpoint);
  }
  LocalEndpoint& endpoint = found_endpoint->second;
  if (m.version_min > options_.version_max || m.version_max < options_.version_min) {
    return send_refusal(from, m, Refusal::kNoCommonVersion);
  }
  if (endpoint.transport != m.terms.transport_name()) return send_refusal(from, m, Refusal::kTransportMismatch);
  if (peer == kNone && !cookies_.is_good(m.cookie, from, m.token, m.sender_run, now)) {
    return send_cookie(from, m, now);
  }
  if (const Refusal limit = limit_of(peer, from); limit != Refusal::kNone) {
    counters_.over_limit++;
    return send_refusal(from, m, limit);
  }
  if (endpoint.asked >= options_.asked_max) {
    counters_.over_limit++;  // as if lost: the client repeats when the endpoint has caught up
    return;
  }
  if (peer == kNone) peer = relation_begun(from, now);
  if (peer == kNone) return;
  if (peers_[peer].source->asked >= options_.asked_per_address_max) {
    counters_.over_limit++;
    return;
  }
  if (peers_[peer].remote_run == 0) adopt(peer, m.sender_run, now);

  const RequestName name{m.token, peer};
  if (!base::try_grow([&] { sessions_by_request_.emplace(name, kNone); })) return;
  const uint32_t index = new_session(peer, m.to_endpoint, State::kAsked, false, now);
  if (index == kNone) {
    sessions_by_request_.erase(name);
    return;
  }
  sessions_by_request_.find(name)->second = index;
  endpoint.asked++;
  peers_[peer].source->asked++;
  Session& session = sessions_[index];
  session.token = m.token;
  session.remote_endpoint = m.terms.endpoint_id;
  session.remote_key = m.terms.session_key;
  session.version = std::min(m.version_max, options_.version_max);
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectRequest, {});
  event.token = cookie_of(index);
  event.terms = from_wire(m.terms);
  notify(m.to_endpoint, std::move(event));
}

/// The server answers, and wants to see that we hear it: the request goes again, with the proof.
void Management::on_cookie(const ManagementMessage& m, Duration now) {
  const auto found = sessions_by_key_.find(key_of(m.to_endpoint, true, m.to_key));
  const uint32_t index = found == sessions_by_key_.end() ? kNone : found->second;
  if (index == kNone || sessions_[index].token != m.token || peers_[sessions_[index].peer].own_run != m.receiver_run ||
      sessions_[index].state != State::kConnecting) {
    counters_.stale++;
    return;
  }
  peers_[sessions_[index].peer].answered_at = awake(now);
  Request& request = *sessions_[index].request;
  if (request.cookie == m.cookie) return;
  request.cookie = m.cookie;
  if (request.cookies_taken >= kCookiesMax) return;
  request.cookies_taken++;
  send_request(index);
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
  peer.answered_at = awake(now);
  if (session.state == State::kOpen) {
    if (!is_accepted) return;
    if (session.remote_key != m.terms.session_key || peer.remote_run != m.sender_run) return send_unwanted(from, m);
    return send_about(index, ManagementKind::kConfirm);
  }
  if (m.refusal == Refusal::kStaleRun) return probe(session.peer, now);
  if (m.refusal == Refusal::kNoCommonVersion) return refuse_version(index, m.version_min, now);
  if (!is_accepted) return conclude_connect(index, {m.code, wire::refusal_text(m.refusal)}, now);
  if (peer.remote_run != 0 && peer.remote_run != m.sender_run) {
    counters_.stale++;
    return probe(session.peer, now);  // one of the two is history; the request is repeated until we know which
  }
  const bool is_version_offered = m.version_min >= options_.version_min && m.version_min <= options_.version_max;
  if (!is_version_offered || m.terms.transport_name() != session.request->terms.transport_name()) {
    send_unwanted(from, m);
    if (!is_version_offered) return refuse_version(index, m.version_min, now);
    return conclude_connect(index, refusal_status(Refusal::kTransportMismatch), now);
  }
  if (peer.remote_run == 0) adopt(session.peer, m.sender_run, now);
  peer.is_proven = true;
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

/// The first generation said 0 where this one says its highest version (clause 7.2.3).
void Management::refuse_version(uint32_t index, uint8_t server_version, Duration now) {
  const char* text = wire::version_refusal_text(options_.version_max, std::max<uint8_t>(server_version, 1));
  conclude_connect(index, {refusal_status(Refusal::kNoCommonVersion).code(), text}, now);
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
  LocalEndpoint& endpoint = endpoints_.find(m.to_endpoint)->second;
  const EndpointName name{m.to_endpoint, endpoint.registration};
  const uint64_t iteration = hooks_.iteration(name);
  if (iteration != endpoint.seen_iteration) {
    endpoint.seen_iteration = iteration;
    endpoint.seen_at = now;
  }
  const bool is_inside = iteration % 2 == 1;
  if (is_inside && now - endpoint.seen_at < kSecondLook) {
    // As if lost: the question is repeated.
    if (delayed_answers_.size() >= kDelayedAnswersMax || !delayed_answers_.try_reserve(delayed_answers_.size() + 1))
      return;
    delayed_answers_.push({now + kSecondLook, name, AddressText(from), answer});
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
    if (liveness == PeerLiveness::kNoSession) free_session(index, now);  // the endpoint ends it without a word
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

/// Without memory a datagram is lost, as on its way: all that matters is repeated.
void Management::send(std::string_view to, const ManagementMessage& m) {
  if (!base::try_reserve(datagrams_, datagrams_.size() + 1)) {
    counters_.no_memory++;
    return;
  }
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
  m.cookie = session.request->cookie;
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
    CHECK(fill_terms(terms, m.terms), ==, true);  // answer_connect() has seen that they do
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

void Management::send_cookie(std::string_view to, const ManagementMessage& request, Duration now) {
  counters_.cookies++;
  ManagementMessage m;
  m.kind = ManagementKind::kCookie;
  m.receiver_run = request.sender_run;
  m.token = request.token;
  m.to_endpoint = request.terms.endpoint_id;
  m.to_key = request.terms.session_key;
  m.cookie = cookies_.make(to, request.token, request.sender_run, now);
  send(to, m);
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
  m.version_min = options_.version_max;
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
