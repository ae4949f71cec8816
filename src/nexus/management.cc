// The common part of Management: endpoints, received datagrams, times, and the datagrams and events that go out. The
// protocol's parts are in management_connect.cc (client side of the handshake), management_accept.cc (server side),
// management_session.cc (sessions until their end), management_peer.cc (relations and pings) and management_timers.cc.
#include "nexus/management.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::nexus {

namespace {
using wire::ManagementKind;
using wire::ManagementMessage;
using wire::Refusal;

/// A step that found no memory is tried again after this time.
constexpr Duration kMemoryRetry = std::chrono::milliseconds(1);
}  // namespace

Management::Management(const ManagementOptions& options, Hooks hooks)
    : options_(options),
      hooks_(std::move(hooks)),
      own_secret_{hooks_.random(), hooks_.random()},
      hash_{hooks_.random()},
      cookies_([this] { return random(); }),
      peers_by_run_(16, hash_),
      peers_by_address_(16, hash_),
      sources_(16, hash_) {
  if (!of_peers_.try_reserve(options_.requests_waiting_max) ||
      !of_strangers_.try_reserve(options_.requests_waiting_max))
    throw std::bad_alloc();
}

bool Management::reserve_notices() {
  if (base::try_reserve(notices_, notices_.size() + endpoints_.size() + 1)) return true;
  counters_.no_memory++;
  return false;
}

// ---- Endpoints ----

bool Management::add_endpoint(EndpointName name, std::string_view transport) {
  LocalEndpoint endpoint;
  endpoint.registration = name.registration;
  endpoint.transport = transport;
  bool is_new = false;
  if (!base::try_grow([&] { is_new = endpoints_.emplace(name.id, std::move(endpoint)).second; })) return false;
  CHECK(is_new);
  has_had_endpoint_ = true;
  return true;
}

void Management::remove_endpoint(EndpointName name, Duration now) {
  see(now);
  LocalEndpoint* endpoint = find_endpoint(name);
  if (endpoint == nullptr) return;
  // An endpoint ends its sessions before (NexusCore::remove_endpoint()). At most the last few are searched for.
  for (auto index = static_cast<uint32_t>(sessions_.size()); endpoint->believed > 0;) {
    const Session& session = sessions_[--index];
    if (session.local_endpoint != name.id || !is_believed(session.state)) continue;
    switch (session.state) {
      case State::kConnecting:
        free_session(index, now);
        break;
      case State::kUnconfirmed:
      case State::kOpen:
        begin_closing(index, now);
        break;
      default:
        CHECK(sessions_[index].state == State::kAsked);
        sessions_[index].refusal = Refusal::kEndpointClosing;
        end_session(index, now);
        send_first_reply(index);
        break;
    }
  }
  endpoints_.erase(name.id);
}

Management::LocalEndpoint* Management::find_endpoint(const EndpointName& name) {
  const auto found = endpoints_.find(name.id);
  return found != endpoints_.end() && found->second.registration == name.registration ? &found->second : nullptr;
}

/// The caller's step must have called reserve_notices() with success, so that there is space for the event.
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

// ---- Time and randomness ----

void Management::see(Duration now) {
  const Duration wanted_at = std::max(next_deadline(), seen_at_);
  if (wanted_at != kNever && now > wanted_at + retry_period()) absent_ += now - wanted_at - retry_period();
  seen_at_ = std::max(seen_at_, now);
}

uint64_t Management::random() {
  if (const uint64_t value = hooks_.random(); value != 0) return value;
  return keyed_hash(own_secret_, "", ++own_randoms_, 0);
}

uint64_t Management::random_nonzero() {
  while (true) {
    if (const uint64_t value = random(); value != 0) return value;
  }
}

size_t Management::SaltedHash::operator()(uint64_t key) const {
  key = (key ^ salt) * 0x9e3779b97f4a7c15u;
  key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
  return key ^ key >> 32;
}

void Management::on_time(Duration now) {
  see(now);
  while (!delayed_answers_.empty() && delayed_answers_.front().due <= now) {
    DelayedAnswer delayed = delayed_answers_.pop();
    const LocalEndpoint* endpoint = find_endpoint(delayed.endpoint);
    const bool in_callback = endpoint != nullptr && hooks_.iteration(delayed.endpoint) == endpoint->seen_iteration;
    delayed.answer.liveness = static_cast<uint8_t>(in_callback ? PeerLiveness::kInCallback : PeerLiveness::kIdle);
    send(delayed.to, delayed.answer);
  }
  while (now >= not_before_ && !timers_.empty() && timers_.front().at <= now) {
    if (!reserve_notices()) {
      not_before_ = now + kMemoryRetry;
      break;
    }
    const Timer timer = timers_.front();
    if (timer.is_peer) {
      arm_peer(timer.index, kNever);
      on_peer_time(timer.index, now);
    } else {
      arm_session(timer.index, kNever);
      on_session_time(timer.index, now);
    }
  }
  on_requests(now);
}

Duration Management::next_deadline() const {
  if (!of_peers_.empty() || !of_strangers_.empty()) return Duration(0);
  Duration deadline = timers_.empty() ? kNever : std::max(timers_.front().at, not_before_);
  if (!delayed_answers_.empty()) deadline = std::min(deadline, delayed_answers_.front().due);
  return deadline;
}

// ---- Datagrams in ----

void Management::on_datagram(std::string_view from, std::span<const std::byte> bytes, Duration now) {
  see(now);
  ManagementMessage m;
  if (const auto drop = wire::parse_management(bytes, m); drop != wire::ManagementDrop::kNone) {
    counters_.dropped[static_cast<size_t>(drop)]++;
    return;
  }
  if (!AddressText::fits(from) || !reserve_notices()) return;
  // A sender that names both runs is the other side of a relation, because a stranger cannot guess the runs: the peer
  // is alive (clause 7.5.2).
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

// ---- Datagrams out ----

ManagementMessage Management::message_of(ManagementKind kind, const Peer& peer, uint64_t token) {
  ManagementMessage m;
  m.kind = kind;
  m.sender_run = peer.own_run;
  m.receiver_run = peer.remote_run;
  m.token = token;
  return m;
}

/// If there is no memory, the datagram is lost. Every datagram that matters is repeated.
void Management::send(std::string_view to, const ManagementMessage& m) {
  if (datagrams_.size() >= kDatagramsMax && hooks_.send_datagrams) hooks_.send_datagrams();
  if (!base::try_reserve(datagrams_, datagrams_.size() + 1)) {
    counters_.no_memory++;
    return;
  }
  datagrams_.emplace_back();
  datagrams_.back().to = to;
  wire::encode_management(m, datagrams_.back().content);
}

Management::Happening* Management::add_happening(LogKind kind) {
  if (happenings_count_ == happenings_.size()) return nullptr;
  Happening& happening = happenings_[happenings_count_++] = {};
  happening.kind = kind;
  return &happening;
}

/// Sends nothing about a client's session to an address that the client has left: asks and disconnects are repeated, as
/// if this one was lost. A server cannot make its clients open sessions, so that theirs are not left out.
void Management::send_about(uint32_t index, ManagementKind kind) {
  const Session& session = sessions_[index];
  if (!session.is_client && has_left_address(peers_[session.peer])) return;
  ManagementMessage m = message_of(kind, peers_[session.peer], session.token);
  m.to_endpoint = session.remote_endpoint;
  m.to_key = session.remote_key;
  m.from_key = session.local_key;
  m.from_client = session.is_client;
  m.cookie = cookie_of(index);
  send(peers_[session.peer].address, m);
}

}  // namespace tern::nexus
