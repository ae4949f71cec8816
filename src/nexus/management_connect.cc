// The client side of the handshake: requests, their turns over a server's addresses, and the replies (docs/protocol.md,
// 7.3).
#include <algorithm>
#include <utility>

#include "base/status_text.h"
#include "base/try.h"
#include "nexus/management.h"
#include "nexus/management_terms.h"

namespace tern::nexus {

namespace {
using wire::ManagementKind;
using wire::ManagementMessage;
using wire::Refusal;

/// The cookies of one request that are echoed at once. A server's keys change every few seconds. If a server sends new
/// cookies more often, the timer's repetition of the request echoes them.
constexpr uint8_t kCookiesMax = 4;
/// The most addresses of one server that are tried.
constexpr size_t kTargetsMax = 8;
/// The time of one address before the next one is tried; it doubles in each round. A round trip around the world takes
/// less.
constexpr Duration kTurn = std::chrono::milliseconds(250);
/// The most sessions with a peer that are examined for one hint, because a hint may be forged.
constexpr uint32_t kHintedMax = 64;
/// Longer timeouts are cut to this, so that no sum of times overflows.
constexpr Duration kTimeoutMax = std::chrono::hours(24 * 365);
constexpr Status kNoMemory{Code::kNoMemory, "no memory for the Nexus's record of another session"};
}  // namespace

// ---- Requests ----

bool Management::connect(EndpointName from, std::span<const AddressText> addresses, uint16_t peer_endpoint,
                         const SessionTerms& terms, Duration timeout, Duration now) {
  see(now);
  if (find_endpoint(from) == nullptr) return true;
  if (!reserve_notices()) return false;
  const auto begin = [&]() -> Status {
    Requests made;
    const size_t count = std::min(addresses.size(), kTargetsMax);
    if (!base::try_grow([&] { made[0].targets.resize(count); })) return kNoMemory;
    Request& request = made[0];
    for (size_t i = 0; i < count; i++) request.targets[i].address = addresses[i];
    if (count == 0 || !to_wire(terms, request.terms) || find_local(from, terms.session_key, true) != kNone) {
      return {Code::kMisuse, "session terms out of range, or a session key that is in use"};
    }
    // The first address to try is one at which a peer is known.
    for (size_t i = count; i-- > 0;) {
      const uint32_t peer = first_peer_at(addresses[i]);
      if (peer != kNone && peers_[peer].remote_run != 0) request.target = i;
    }
    request.terms.endpoint_id = from.id;
    request.timeout = std::clamp(timeout, Duration(0), kTimeoutMax);
    request.over_at = awake(now) + request.timeout;
    return begin_request(from.id, terms.session_key, peer_endpoint, made.extract(made.begin()), now);
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

/// Takes the node of a request, so that it needs no memory for it. If the status is not ok, nothing has changed.
Status Management::begin_request(uint16_t endpoint, uint32_t local_key, uint16_t peer_endpoint,
                                 Requests::node_type request, Duration now) {
  const AddressText& address = request.mapped().targets[request.mapped().target].address;
  uint32_t peer = first_peer_at(address);
  const bool is_full =
      sessions_live_ >= options_.sessions_max || (peer == kNone && peers_by_run_.size() >= options_.peers_max);
  if (is_full) {
    return {Code::kQueueFull, "this Nexus has as many sessions or peers as it can hold; destroy some first"};
  }
  if (peer == kNone) peer = new_peer(address, false, now);
  if (peer == kNone || !base::try_reserve(peers_[peer].waiting, peers_[peer].waiting.size() + 1)) return kNoMemory;
  const uint32_t index = new_session(peer, endpoint, State::kConnecting, true, now);
  if (index == kNone) return kNoMemory;
  Session& session = sessions_[index];
  session.token = random_nonzero();
  session.remote_endpoint = peer_endpoint;
  session.local_key = local_key;
  enter_keys(index);
  request.key() = index;
  const Request& begun = requests_.insert(std::move(request)).position->second;
  peers_[peer].waiting.push_back({index, session.generation});
  begin_turn(index, now);
  start_waiting_requests(peer, now);
  if (!begun.is_sent) arm_session(index, turn_end(begun, now));
  return {};
}

void Management::begin_turn(uint32_t index, Duration now) {
  Request& request = request_of(index);
  request.turn_since = now;
  if (request.targets.size() == 1) return;
  request.turn_until = now + kTurn * (1 << std::min<size_t>(request.turns / request.targets.size(), 6));
}

void Management::start_request(uint32_t index, Duration now) {
  Request& request = request_of(index);
  request.is_sent = true;
  request.is_counted = true;
  peers_[sessions_[index].peer].requests_out++;
  if (request.turns == 0) request.over_at = awake(now) + request.timeout;
  begin_turn(index, now);
  send_request(index);
  repeat_later(index, {options_.retry_min, options_.retry_max}, now, turn_end(request, now));
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

void Management::stop_counting(uint32_t index, Duration now) {
  const auto request = requests_.find(index);
  if (request == requests_.end() || !std::exchange(request->second.is_counted, false)) return;
  const uint32_t peer = sessions_[index].peer;
  peers_[peer].requests_out--;
  start_waiting_requests(peer, now);
}

void Management::send_request(uint32_t index) {
  const Session& session = sessions_[index];
  ManagementMessage m = message_of(ManagementKind::kConnectRequest, peers_[session.peer], session.token);
  m.version_min = options_.version_min;
  m.version_max = options_.version_max;
  m.to_endpoint = session.remote_endpoint;
  const Request& request = request_of(index);
  m.terms = request.terms;
  m.cookie = request.cookie;
  send(peers_[session.peer].address, m);
}

Duration Management::turn_end(const Request& request, Duration now) const {
  return std::min(now + (request.over_at - awake(now)), request.turn_until);
}

void Management::on_connecting_time(uint32_t index, Duration now) {
  const Session& session = sessions_[index];
  Request& request = request_of(index);
  // A request that waits to be sent does not count as unanswered as long as the peer answers other requests.
  if (!request.is_sent) {
    const Duration answered_at = peers_[session.peer].answered_at;
    request.over_at = std::max(request.over_at, answered_at + request.timeout);
    if (awake(now) < answered_at + kTurn) begin_turn(index, now);
  }
  if (awake(now) >= request.over_at) {
    note_turn(index);
    return conclude_connect(index, no_answer(request), now);
  }
  if (now >= request.turn_until) return try_next_address(index, now);
  const Duration until = turn_end(request, now);
  if (!request.is_sent) return arm_session(index, until);
  send_request(index);
  // From here on, a request that its endpoint does not answer no longer delays the requests to other endpoints of the
  // peer.
  const Intervals intervals{options_.retry_min, options_.retry_max};
  if (interval_of(session, intervals) >= intervals.max) stop_counting(index, now);
  repeat_later(index, intervals, now, until);
}

// ---- Addresses that do not answer ----

/// Records why the address whose turn is over did not answer, if a hint has come.
void Management::note_turn(uint32_t index) {
  Request& request = request_of(index);
  const Peer& peer = peers_[sessions_[index].peer];
  if (peer.unreachable_at >= request.turn_since) request.targets[request.target].why = peer.unreachable;
}

/// Begins a new request under another token, so that late answers to the old request are undone (clause 7.3.6).
void Management::try_next_address(uint32_t index, Duration now) {
  note_turn(index);
  stop_counting(index, now);
  Requests::node_type node = requests_.extract(index);
  Request& request = node.mapped();
  request.turns++;
  request.target = (request.target + 1) % request.targets.size();
  request.is_sent = false;
  request.cookie = 0;
  request.cookies_taken = 0;
  const Session& session = sessions_[index];
  const uint16_t endpoint = session.local_endpoint, peer_endpoint = session.remote_endpoint;
  const uint32_t local_key = session.local_key;
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectResult, {});
  free_session(index, now);
  event.status = begin_request(endpoint, local_key, peer_endpoint, std::move(node), now);
  if (!event.status.ok()) notify(endpoint, std::move(event));
}

void Management::on_unreachable(std::string_view to, Unreachable why, Duration now) {
  see(now);
  for (uint32_t at = first_peer_at(to); at != kNone; at = peers_[at].next) {
    Peer& peer = peers_[at];
    peer.unreachable = why;
    peer.unreachable_at = now;
    // The list begins with the newest requests. A request takes one hint for each address; later turns last their time.
    uint32_t looked_at = 0;
    for (uint32_t index = peer.first_session, next; index != kNone && looked_at < kHintedMax; index = next) {
      next = sessions_[index].next;
      looked_at++;
      if (sessions_[index].state != State::kConnecting) continue;
      const Request& request = request_of(index);
      if (request.turns + 1 >= request.targets.size()) continue;
      if (!reserve_notices()) return;  // each request that cannot go on is told to its endpoint
      try_next_address(index, now);
    }
  }
}

/// The status of a connect that no address has answered. It names each address, and the reason where a hint gave one.
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

// ---- Replies ----

/// The server wants proof that this side receives at its address. Repeats the request with the cookie.
void Management::on_cookie(const ManagementMessage& m, Duration now) {
  const uint32_t index = find_key(m.to_endpoint, true, m.to_key);
  if (index == kNone || sessions_[index].token != m.token || peers_[sessions_[index].peer].own_run != m.receiver_run ||
      sessions_[index].state != State::kConnecting) {
    counters_.stale++;
    return;
  }
  peers_[sessions_[index].peer].answered_at = awake(now);
  Request& request = request_of(index);
  if (request.cookie == m.cookie) return;
  request.cookie = m.cookie;
  if (request.cookies_taken >= kCookiesMax) return;
  request.cookies_taken++;
  send_request(index);
}

void Management::on_connect_reply(std::string_view from, const ManagementMessage& m, Duration now) {
  const uint32_t index = find_key(m.to_endpoint, true, m.to_key);
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
  if (!is_accepted) return conclude_connect(index, {m.code, wire::refusal_text(m.refusal)}, now, m.refusal);
  if (peer.remote_run != 0 && peer.remote_run != m.sender_run) {
    // One of the two runs has ended. The request is repeated until the probe shows which one.
    counters_.stale++;
    return probe(session.peer, now);
  }
  const bool is_version_offered = m.version_min >= options_.version_min && m.version_min <= options_.version_max;
  if (!is_version_offered || m.terms.transport_name() != request_of(index).terms.transport_name()) {
    send_unwanted(from, m);
    if (!is_version_offered) return refuse_version(index, m.version_min, now);
    return conclude_connect(index, refusal_status(Refusal::kTransportMismatch), now);
  }
  if (peer.remote_run == 0) adopt(session.peer, m.sender_run, now);
  peer.is_proven = true;
  set_state(index, State::kOpen, now);
  arm_session(index, kNever);
  session.remote_key = m.terms.session_key;
  session.version = m.version_min;
  send_about(index, ManagementKind::kConfirm);
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectResult, {});
  event.terms = from_wire(m.terms);
  notify(session.local_endpoint, std::move(event));
}

/// Servers of version 1 send 0 in the place where later servers send their highest version (clause 7.2.3).
void Management::refuse_version(uint32_t index, uint8_t server_version, Duration now) {
  const char* text = wire::version_refusal_text(options_.version_max, std::max<uint8_t>(server_version, 1));
  conclude_connect(index, {refusal_code(Refusal::kNoCommonVersion), text}, now);
}

/// A server has accepted a session that this side does not want, or no longer wants. One disconnect for each reply is
/// enough, because the server asks by itself if the disconnect is lost.
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

void Management::conclude_connect(uint32_t index, const Status& status, Duration now, wire::Refusal refusal) {
  ControlEvent event = event_of(sessions_[index], ControlEvent::Kind::kConnectResult, status);
  event.refusal = refusal;
  const uint16_t endpoint = sessions_[index].local_endpoint;
  free_session(index, now);
  notify(endpoint, std::move(event));
}

}  // namespace tern::nexus
