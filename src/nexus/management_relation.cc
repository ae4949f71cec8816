// The part of Management that knows who lives: relations with peers, pings, and the timers of both tables.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nexus/management.h"

namespace tern::nexus {

namespace {
/// A stranger's mismatching datagrams cause at most one probe in this time.
constexpr Duration kProbeInterval = std::chrono::milliseconds(1);
/// A process that was stopped must not take its own silence for the peer's: death needs this many lost pings.
constexpr uint32_t kPingsBeforeDeath = 3;
}  // namespace

size_t Management::SaltedHash::operator()(uint64_t key) const {
  key = (key ^ salt) * 0x9e3779b97f4a7c15u;
  key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
  return key ^ key >> 32;
}

bool Management::is_watched(State state) {
  return state == State::kAsked || state == State::kUnconfirmed || state == State::kOpen || state == State::kClosing;
}

uint64_t Management::random_nonzero() {
  while (true) {
    if (const uint64_t value = hooks_.random(); value != 0) return value;
  }
}

uint32_t Management::first_peer_at(std::string_view address) const {
  const auto found = peers_by_address_.find(std::string(address));
  return found == peers_by_address_.end() ? kNone : found->second;
}

uint32_t Management::new_peer(std::string_view address, Duration now) {
  if (peers_by_run_.size() >= options_.peers_max) {
    counters_.over_limit++;
    return kNone;
  }
  uint32_t index = free_peers_;
  if (index == kNone) {
    index = static_cast<uint32_t>(peers_.size());
    peers_.emplace_back();
  } else {
    free_peers_ = peers_[index].next;
  }
  Peer& peer = peers_[index];
  const uint32_t generation = peer.generation;
  peer = {};
  peer.generation = generation;
  peer.in_use = true;
  peer.address = address;
  do peer.own_run = random_nonzero();
  while (peers_by_run_.contains(peer.own_run));
  peer.idle_since = now;
  peers_by_run_.emplace(peer.own_run, index);
  const auto [head, is_first] = peers_by_address_.try_emplace(peer.address, index);
  if (!is_first) peer.next = std::exchange(head->second, index);
  arm_peer(index, now + options_.linger);
  return index;
}

uint32_t Management::peer_of_run(uint64_t own_run) const {
  const auto found = peers_by_run_.find(own_run);
  return found == peers_by_run_.end() ? kNone : found->second;
}

void Management::free_peer(uint32_t index) {
  Peer& peer = peers_[index];
  CHECK(peer.session_count, ==, 0u);
  peers_by_run_.erase(peer.own_run);
  const auto head = peers_by_address_.find(peer.address);
  if (head->second == index && peer.next == kNone) {
    peers_by_address_.erase(head);
  } else {
    uint32_t* link = &head->second;
    while (*link != index) link = &peers_[*link].next;
    *link = peer.next;
  }
  peer.in_use = false;
  peer.timer_at = kNever;
  peer.generation++;
  peer.address = {};
  peer.next = free_peers_;
  free_peers_ = index;
}

/// Only while no run of the peer is known: a known one ends by a pong or by silence, never by a stranger's claim.
void Management::adopt(uint32_t index, uint64_t remote_run, Duration now) {
  Peer& peer = peers_[index];
  CHECK(peer.remote_run, ==, 0u);
  peer.remote_run = remote_run;
  peer.boot_id = random_nonzero();
  peer.heard_at = now;
}

void Management::ping(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.nonce == 0) {
    peer.nonce = random_nonzero();  // kept until it is answered, so that any RTT will do
    peer.pings_unanswered = 0;
  }
  peer.pings_unanswered++;
  peer.pinged_at = now;
  send(peer.address, message_of(wire::ManagementKind::kPing, peer, peer.nonce));
  arm_peer(index, now + retry_period());
}

/// Something speaks against the run that we know: ask it at once (clause 7.5.4).
void Management::probe(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.remote_run == 0 || (peer.nonce != 0 && now - peer.pinged_at < kProbeInterval)) return;
  if (peer.watched == 0 && peer.nonce == 0) peer.heard_at = now;
  ping(index, now);
}

void Management::on_peer_time(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.watched == 0 && peer.nonce == 0) {
    if (peer.session_count > 0) return;  // lingering records: the last to go arms the timer
    if (now - peer.idle_since >= options_.linger) return free_peer(index);
    return arm_peer(index, peer.idle_since + options_.linger);
  }
  if (peer.nonce != 0 && now - peer.heard_at >= options_.liveness_timeout &&
      peer.pings_unanswered >= kPingsBeforeDeath) {
    return peer_gone(index,
                     {Code::kPeerUnreachable,
                      "the peer's Nexus has not answered for NexusOptions::liveness_timeout; create a new session "
                      "when it is back"},
                     now);
  }
  if (peer.nonce == 0 && now - peer.heard_at < period()) return arm_peer(index, peer.heard_at + period());
  ping(index, now);
}

void Management::on_ping(std::string_view from, const wire::ManagementMessage& m, Duration now) {
  const uint32_t index = peer_of_run(m.receiver_run);
  // Nobody guesses our run: who names it, before we know theirs, has it from our request.
  if (index != kNone && peers_[index].remote_run == 0) adopt(index, m.sender_run, now);
  const bool is_known = index != kNone && peers_[index].remote_run == m.sender_run;
  wire::ManagementMessage pong;
  pong.kind = wire::ManagementKind::kPong;
  pong.sender_run = is_known ? m.receiver_run : 0;
  pong.receiver_run = m.sender_run;
  pong.token = m.token;
  send(from, pong);
}

void Management::on_pong(const wire::ManagementMessage& m, Duration now) {
  const uint32_t index = peer_of_run(m.receiver_run);
  if (index == kNone || peers_[index].nonce == 0 || peers_[index].nonce != m.token) {
    counters_.stale++;
    return;
  }
  Peer& peer = peers_[index];
  peer.nonce = 0;
  if (m.sender_run != peer.remote_run) {
    return peer_gone(
        index, {Code::kSessionReset, "the peer's Nexus has restarted, or had given this one up; create a new session"},
        now);
  }
  peer.heard_at = now;
  if (peer.watched > 0) {
    arm_peer(index, now + period());
  } else if (peer.session_count == 0) {
    arm_peer(index, peer.idle_since + options_.linger);
  }
}

/// Ends all that was agreed with the run that we knew. Requests that still wait for an answer go on (clause 7.5.5).
void Management::peer_gone(uint32_t index, const Status& status, Duration now) {
  Peer& peer = peers_[index];
  const bool was_watched = peer.watched > 0;
  peer.nonce = 0;
  peer.remote_run = 0;
  std::vector<uint16_t> told;
  for (uint32_t at = peer.first_session, next; at != kNone; at = next) {
    Session& session = sessions_[at];
    next = session.next;
    if (session.state == State::kConnecting) {
      if (!session.request->is_sent) continue;
      session.interval_us = static_cast<uint32_t>(options_.retry_min / std::chrono::microseconds(1));
      arm_session(at, now);
      continue;
    }
    const bool has_believer =
        session.state == State::kAsked || session.state == State::kUnconfirmed || session.state == State::kOpen;
    if (has_believer && std::find(told.begin(), told.end(), session.local_endpoint) == told.end()) {
      told.push_back(session.local_endpoint);
      ControlEvent event;
      event.kind = ControlEvent::Kind::kPeerGone;
      event.status = status;
      event.peer = {peer.address, peer.boot_id};
      notify(session.local_endpoint, std::move(event));
    }
    free_session(at, now);
  }
  if (was_watched) counters_.peers_gone++;
  // A run of ours names one agreement and ends with it: a peer that still believes in us learns better from its next
  // ping, and late messages of the old agreement are not mistaken for the new one's (clause 7.5.3).
  peers_by_run_.erase(peer.own_run);
  do peer.own_run = random_nonzero();
  while (peers_by_run_.contains(peer.own_run));
  peers_by_run_.emplace(peer.own_run, index);
  if (peer.session_count == 0) {
    peer.idle_since = now;
    arm_peer(index, now + options_.linger);
  }
}

void Management::arm_peer(uint32_t index, Duration at) {
  Peer& peer = peers_[index];
  if (peer.timer_at == at) return;
  peer.timer_at = at;
  timers_.push({at, index, peer.generation, true});
}

void Management::arm_session(uint32_t index, Duration at) {
  Session& session = sessions_[index];
  if (session.timer_at == at) return;
  session.timer_at = at;
  if (at != kNever) timers_.push({at, index, session.generation, false});
}

/// Doubles the interval and adds a jitter of a quarter, so that many sessions do not repeat in step.
void Management::repeat_later(uint32_t index, Duration interval_max, Duration now) {
  Session& session = sessions_[index];
  const Duration interval = std::chrono::microseconds(session.interval_us);
  const uint64_t spread = static_cast<uint64_t>(interval.count()) / 2 + 1;
  const Duration jittered = interval * 3 / 4 + Duration(static_cast<int64_t>(hooks_.random() % spread));
  session.interval_us = static_cast<uint32_t>(std::min(2 * interval, interval_max) / std::chrono::microseconds(1));
  arm_session(index, std::min(now + jittered, session.until));
}

void Management::on_time(Duration now) {
  while (!delayed_answers_.empty() && delayed_answers_.front().due <= now) {
    DelayedAnswer delayed = std::move(delayed_answers_.front());
    delayed_answers_.pop_front();
    const LocalEndpoint* endpoint = find_endpoint(delayed.endpoint);
    const bool in_callback = endpoint != nullptr && hooks_.iteration(delayed.endpoint) == endpoint->seen_iteration;
    delayed.answer.liveness = static_cast<uint8_t>(in_callback ? PeerLiveness::kInCallback : PeerLiveness::kIdle);
    send(delayed.to, delayed.answer);
  }
  while (!timers_.empty() && timers_.top().at <= now) {
    const Timer timer = timers_.top();
    timers_.pop();
    if (timer.is_peer) {
      Peer& peer = peers_[timer.index];
      if (peer.generation != timer.generation || peer.timer_at != timer.at) continue;
      peer.timer_at = kNever;
      on_peer_time(timer.index, now);
    } else {
      Session& session = sessions_[timer.index];
      if (session.generation != timer.generation || session.timer_at != timer.at) continue;
      session.timer_at = kNever;
      on_session_time(timer.index, now);
    }
  }
}

Duration Management::next_deadline() {
  while (!timers_.empty()) {
    const Timer& timer = timers_.top();
    const bool is_current =
        timer.is_peer
            ? peers_[timer.index].generation == timer.generation && peers_[timer.index].timer_at == timer.at
            : sessions_[timer.index].generation == timer.generation && sessions_[timer.index].timer_at == timer.at;
    if (is_current) break;
    timers_.pop();
  }
  Duration deadline = timers_.empty() ? kNever : timers_.top().at;
  if (!delayed_answers_.empty()) deadline = std::min(deadline, delayed_answers_.front().due);
  return deadline;
}

size_t Management::sessions_established() const {
  size_t count = 0;
  for (const Session& session : sessions_)
    count += session.state == State::kOpen || session.state == State::kUnconfirmed;
  return count;
}

void Management::check_invariants() const {
  size_t live = 0, keyed = 0, requested = 0;
  for (uint32_t i = 0; i < sessions_.size(); i++) {
    const Session& session = sessions_[i];
    if (session.state == State::kFree) continue;
    live++;
    CHECK(peers_[session.peer].in_use, ==, true);
    const bool is_keyed =
        session.state == State::kConnecting || session.state == State::kUnconfirmed || session.state == State::kOpen;
    keyed += is_keyed;
    requested += !session.is_client;
    const bool needs_timer = session.state == State::kConnecting || session.state == State::kUnconfirmed ||
                             session.state == State::kClosing || session.state == State::kClosed ||
                             (session.state == State::kOpen && session.is_asking);
    CHECK((session.timer_at != kNever), ==, needs_timer);
    if (is_watched(session.state)) CHECK(peers_[session.peer].remote_run, !=, 0u);
  }
  CHECK(live, ==, sessions_live_);
  CHECK(keyed, ==, sessions_by_key_.size());
  CHECK(requested, ==, sessions_by_request_.size());
  size_t chained = 0;
  for (const auto& [address, head] : peers_by_address_) {
    for (uint32_t at = head; at != kNone; at = peers_[at].next) {
      chained++;
      CHECK((peers_[at].address == address), ==, true);
    }
  }
  CHECK(chained, ==, peers_by_run_.size());
  size_t listed = 0;
  for (const Peer& peer : peers_) {
    if (!peer.in_use) continue;
    uint32_t count = 0, watched = 0;
    for (uint32_t at = peer.first_session; at != kNone; at = sessions_[at].next) {
      count++;
      watched += is_watched(sessions_[at].state);
    }
    CHECK(count, ==, peer.session_count);
    CHECK(watched, ==, peer.watched);
    if (watched > 0 || count == 0) CHECK((peer.timer_at != kNever), ==, true);
    listed += count;
  }
  CHECK(listed, ==, live);
  size_t asked = 0, waiting = 0;
  for (const auto& [id, endpoint] : endpoints_) asked += endpoint.asked;
  for (const Session& session : sessions_) waiting += session.state == State::kAsked;
  CHECK(asked, ==, waiting);
}

}  // namespace tern::nexus
