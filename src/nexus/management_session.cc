// Records of sessions, from their beginning to their end, and the messages about a session that exists
// (docs/protocol.md, 7.4 and 7.6).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "nexus/management.h"

namespace tern::nexus {

namespace {
using wire::ManagementKind;
using wire::ManagementMessage;
using wire::Refusal;

/// A question about a session ends after this many liveness timeouts, because the peer's thread may get no CPU. The
/// endpoint waits for the answer that long.
constexpr int kTimeoutsOfAsking = 4;
/// An iteration that lasts this long is a callback: packets alone take microseconds.
constexpr Duration kSecondLook = std::chrono::milliseconds(1);
constexpr size_t kDelayedAnswersMax = 4096;
/// A disconnect is sent this often to a peer that lives. One that never acknowledges it would otherwise let more and
/// more sessions take places and packets for ever. While nothing is heard of the peer, the link may be cut, and then
/// only the first disconnects count, so that their interval grows.
constexpr uint8_t kDisconnectsMax = 32;
constexpr uint8_t kDisconnectsUnheard = 8;

/// Makes a message that names the session of `m` as its other side names it.
ManagementMessage reply_to(const ManagementMessage& m, ManagementKind kind) {
  ManagementMessage reply;
  reply.kind = kind;
  reply.sender_run = m.receiver_run;
  reply.receiver_run = m.sender_run;
  reply.token = m.token;
  reply.to_key = m.from_key;
  reply.from_key = m.to_key;
  reply.from_client = !m.from_client;
  reply.cookie = m.cookie;
  return reply;
}
}  // namespace

bool Management::is_watched(State state) {
  return state == State::kAsked || state == State::kUnconfirmed || state == State::kOpen || state == State::kClosing;
}

bool Management::is_believed(State state) {
  return state == State::kConnecting || state == State::kAsked || state == State::kUnconfirmed || state == State::kOpen;
}

uint32_t Management::new_session(uint32_t peer_index, uint16_t local_endpoint, State state, bool is_client,
                                 Duration now) {
  uint32_t index = free_sessions_;
  if (index == kNone) {
    index = static_cast<uint32_t>(sessions_.size());
    if (!reserve_timer() || !base::try_grow([this] { sessions_.emplace_back(); })) {
      counters_.no_memory++;
      return kNone;
    }
  } else {
    free_sessions_ = sessions_[index].next;
  }
  Session& session = sessions_[index];
  const uint32_t generation = session.generation;
  session = Session();
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
  if (session.state == State::kConnecting) {
    stop_counting(index, now);
    requests_.erase(index);
  }
  if (session.state == State::kOpen && session.is_client) questions_.erase(index);
  session.repetitions = 0;
  if (is_watched(session.state)) peer.watched--;
  if (is_believed(session.state) != is_believed(state)) {
    size_t& believed = endpoints_.find(session.local_endpoint)->second.believed;
    if (is_believed(state)) {
      believed++;
    } else {
      believed--;
    }
  }
  session.state = state;
  if (!is_watched(state)) return;
  if (peer.watched++ == 0) {
    if (peer.nonce == 0) hear(peer, now);
    arm_peer(session.peer, now + (peer.nonce == 0 ? period() : retry_period()));
  }
}

void Management::enter_keys(uint32_t index) {
  sessions_by_key_.add(sessions_, index, [this](const Session& session) { return key_hash(session); });
}

void Management::leave_keys(uint32_t index) {
  const Session& session = sessions_[index];
  if (session.state == State::kConnecting || session.state == State::kUnconfirmed || session.state == State::kOpen) {
    sessions_by_key_.remove(sessions_, index, key_hash(session));
  }
  if (session.state == State::kAsked) peers_[session.peer].source->asked--;
}

void Management::free_session(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  leave_keys(index);
  if (!session.is_client) sessions_by_request_.remove(sessions_, index, request_hash(session));
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
  session.next = free_sessions_;
  free_sessions_ = index;
  sessions_live_--;
}

void Management::end_session(uint32_t index, Duration now) {
  Session& session = sessions_[index];
  if (session.is_client) return free_session(index, now);
  leave_keys(index);
  set_state(index, State::kClosed, now);
  if (session.refusal == Refusal::kNone) session.refusal = Refusal::kSessionClosed;
  arm_session(index, now + options_.linger);
}

void Management::begin_closing(uint32_t index, Duration now) {
  leave_keys(index);
  set_state(index, State::kClosing, now);
  send_about(index, ManagementKind::kDisconnect);
  repeat_later(index, kCloseIntervals, now);
}

void Management::on_session_time(uint32_t index, Duration now) {
  switch (sessions_[index].state) {
    case State::kConnecting:
      return on_connecting_time(index, now);
    case State::kUnconfirmed:
      send_about(index, ManagementKind::kAsk);
      return repeat_later(index, kConfirmIntervals, now);
    case State::kOpen: {
      const auto question = questions_.find(index);
      if (now >= question->second) {
        questions_.erase(question);
        return;
      }
      send_about(index, ManagementKind::kAsk);
      return repeat_later(index, kAskIntervals, now, question->second);
    }
    case State::kClosing: {
      Session& session = sessions_[index];
      if (session.repetitions >= kDisconnectsMax) return end_session(index, now);
      const bool is_heard = now - peers_[session.peer].heard_at <= kCloseIntervals.max;
      // One silence does not count. A peer that is heard now and then, and acknowledges nothing, ends the repetitions.
      if (!is_heard && session.repetitions == kDisconnectsUnheard + 1)
        session.repetitions--;  // repeat_later() counts it
      send_about(index, ManagementKind::kDisconnect);
      return repeat_later(index, kCloseIntervals, now);
    }
    case State::kClosed:
      return free_session(index, now);
    case State::kFree:
    case State::kAsked:
      return;
  }
}

// ---- Names ----

uint32_t Management::find_key(uint16_t endpoint, bool is_client, uint32_t key) const {
  const uint64_t name = key_of(endpoint, is_client, key);
  return sessions_by_key_.find(sessions_, hash_(name), [name](const Session& session) {
    return key_of(session.local_endpoint, session.is_client, session.local_key) == name;
  });
}

uint32_t Management::find_request(uint64_t token, uint32_t peer) const {
  return sessions_by_request_.find(sessions_, hash_(token + peer), [token, peer](const Session& session) {
    return session.token == token && session.peer == peer;
  });
}

uint32_t Management::find_local(const EndpointName& from, uint32_t local_key, bool is_client) {
  return find_endpoint(from) == nullptr ? kNone : find_key(from.id, is_client, local_key);
}

/// Returns the session that a peer's message names; kNone unless the message has the session's token.
uint32_t Management::find_named(const ManagementMessage& m) const {
  const uint32_t found = find_key(m.to_endpoint, !m.from_client, m.to_key);
  if (found == kNone) return kNone;
  const Session& session = sessions_[found];
  if (session.token != m.token) return kNone;
  const bool is_same = session.state == State::kConnecting || session.remote_key == m.from_key;
  return is_same ? found : kNone;
}

uint32_t Management::find_cookie(uint64_t cookie, uint64_t token) const {
  const auto index = static_cast<uint32_t>(cookie);
  if (index >= sessions_.size() || cookie_of(index) != cookie) return kNone;
  return sessions_[index].token == token && sessions_[index].state != State::kFree ? index : kNone;
}

// ---- Calls of endpoints ----

void Management::disconnect(EndpointName from, uint32_t local_key, bool is_client_side, Duration now) {
  see(now);
  const uint32_t index = find_local(from, local_key, is_client_side);
  if (index == kNone) return;
  // If a server has accepted meanwhile, it asks about the session, and learns that there is none (clause 7.4.4).
  if (sessions_[index].state == State::kConnecting) return free_session(index, now);
  begin_closing(index, now);
}

void Management::ask_liveness(EndpointName from, uint32_t local_key, Duration now) {
  see(now);
  const uint32_t index = find_local(from, local_key, true);
  if (index == kNone || sessions_[index].state != State::kOpen || questions_.contains(index)) return;
  const Duration until = now + kTimeoutsOfAsking * options_.liveness_timeout;
  if (!base::try_grow([&] { questions_.emplace(index, until); })) {
    counters_.no_memory++;
    return;
  }
  sessions_[index].repetitions = 0;
  send_about(index, ManagementKind::kAsk);
  repeat_later(index, kAskIntervals, now, until);
}

// ---- Messages of peers ----

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
  send(from, reply_to(m, ManagementKind::kDisconnectAck));
  const uint32_t index = find_named(m);
  if (index == kNone) return;
  Session& session = sessions_[index];
  // The disconnect has overtaken the reply. If the reply comes later, it is unexpected, and is undone.
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
  // The server's reply is on its way, or lost. This side repeats the request, and can answer the question afterwards.
  if (index != kNone && sessions_[index].state == State::kConnecting) return;
  ManagementMessage answer = reply_to(m, ManagementKind::kAnswer);
  answer.liveness = static_cast<uint8_t>(PeerLiveness::kNoSession);
  if (index == kNone) return send(from, answer);
  if (sessions_[index].state == State::kUnconfirmed) {  // the client asks only about a session that it holds
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
    // If there is no space, the question is lost, and the peer repeats it.
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
  } else if (questions_.erase(index) != 0) {
    arm_session(index, kNever);
    ControlEvent event = event_of(session, ControlEvent::Kind::kLiveness, {});
    event.liveness = liveness;
    notify(session.local_endpoint, std::move(event));
    if (liveness == PeerLiveness::kNoSession) free_session(index, now);  // the endpoint ends it without a disconnect
  }
}

}  // namespace tern::nexus
