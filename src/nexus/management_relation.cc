// The part of Management that knows who lives: relations with peers, pings, and the timers of both tables.
#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "nexus/management.h"

namespace tern::nexus {

namespace {
/// A stranger's mismatching datagrams cause at most one probe in this time.
constexpr Duration kProbeInterval = std::chrono::milliseconds(1);
/// The timer of a peer may fire late by chance: death needs this many lost pings all the same.
constexpr uint32_t kPingsBeforeDeath = 3;
/// In so many liveness timeouts an endpoint that does not answer (its thread runs a handler, or does not run its loop)
/// keeps a silent peer from being given up: its receive queue may be full of the peer's packets.
constexpr int kTimeoutsOfEndpoints = 4;
/// Until memory is looked for again.
constexpr Duration kMemoryRetry = std::chrono::milliseconds(1);
}  // namespace

size_t Management::SaltedHash::operator()(uint64_t key) const {
  key = (key ^ salt) * 0x9e3779b97f4a7c15u;
  key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
  return key ^ key >> 32;
}

bool Management::is_watched(State state) {
  return state == State::kAsked || state == State::kUnconfirmed || state == State::kOpen || state == State::kClosing;
}

bool Management::is_believed(State state) {
  return state == State::kConnecting || state == State::kAsked || state == State::kUnconfirmed || state == State::kOpen;
}

/// An IPv4 address, or the first 64 bits of an IPv6 address. Of other text, a hash of what comes before the port.
Management::SourceKey Management::source_of(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  const bool is_v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_v6) host = host.substr(1, host.size() - 2);
  host = host.substr(0, host.find('%'));
  char text[INET6_ADDRSTRLEN] = "";
  if (host.size() < sizeof(text)) {
    std::copy(host.begin(), host.end(), text);
    unsigned char bytes[16];
    if (inet_pton(is_v6 ? AF_INET6 : AF_INET, text, bytes) == 1) {
      uint64_t prefix = 0;
      std::memcpy(&prefix, bytes, is_v6 ? 8 : 4);
      return {prefix, is_v6};
    }
  }
  return {std::hash<std::string_view>{}(host), true};
}

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

uint32_t Management::first_peer_at(std::string_view address) const {
  const auto found = peers_by_address_.find(address);
  return found == peers_by_address_.end() ? kNone : found->second;
}

uint32_t Management::new_peer(const AddressText& address, bool is_begun_there, Duration now) {
  if (peers_by_run_.size() >= options_.peers_max) {
    counters_.over_limit++;
    return kNone;
  }
  const auto fail = [this] {
    counters_.no_memory++;
    return kNone;
  };
  if (free_peers_ == kNone) {
    if (!has_timer_room() || !base::try_grow([this] { peers_.emplace_back(); })) return fail();
    free_peers_ = static_cast<uint32_t>(peers_.size() - 1);
  }
  const uint32_t index = free_peers_;
  Peer& peer = peers_[index];
  const uint32_t next_free = peer.next;
  uint64_t own_run = random_nonzero();
  while (peers_by_run_.contains(own_run)) own_run = random_nonzero();
  peer.address = address;
  const SourceKey source_key = source_of(address);
  Source* source = nullptr;
  if (!base::try_grow([&] { source = &sources_[source_key]; })) return fail();
  const bool is_listed = base::try_grow([&] { peers_by_run_.emplace(own_run, index); });
  uint32_t* head = nullptr;
  if (!is_listed ||
      !base::try_grow([&] { head = &peers_by_address_.try_emplace(peer.address.view(), kNone).first->second; })) {
    if (is_listed) peers_by_run_.erase(own_run);
    if (source->relations == 0) sources_.erase(source_key);
    return fail();
  }
  free_peers_ = next_free;
  const uint32_t generation = peer.generation;
  peer = {};
  peer.generation = generation;
  peer.in_use = true;
  peer.address = address;
  peer.own_run = own_run;
  peer.source = source;
  peer.is_begun_there = is_begun_there;
  source->relations++;
  source->peers += is_begun_there;
  peer.next = std::exchange(*head, index);
  peer.idle_since = now;
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
  const auto head = peers_by_address_.find(peer.address.view());
  if (const uint32_t first = head->second; first != index || peer.next != kNone) {
    // The first relation's text is the key, or that of an older one which has become the first.
    uint32_t* link = &head->second;
    while (*link != index) link = &peers_[*link].next;
    *link = peer.next;
    auto node = peers_by_address_.extract(head);
    node.key() = peers_[node.mapped()].address.view();
    peers_by_address_.insert(std::move(node));
  } else {
    peers_by_address_.erase(head);
  }
  peer.source->peers -= peer.is_begun_there;
  if (--peer.source->relations == 0) sources_.erase(source_of(peer.address));
  peer.source = nullptr;
  peer.in_use = false;
  arm_peer(index, kNever);
  peer.generation++;
  peer.asked = {};
  peer.waiting = {};
  peer.next = free_peers_;
  free_peers_ = index;
}

/// Only while no run of the peer is known: a known one ends by a pong or by silence, never by a stranger's claim.
void Management::adopt(uint32_t index, uint64_t remote_run, Duration now) {
  Peer& peer = peers_[index];
  CHECK(peer.remote_run, ==, 0u);
  peer.remote_run = remote_run;
  peer.boot_id = random_nonzero();
  hear(peer, now);
}

void Management::hear(Peer& peer, Duration now) const {
  peer.heard_at = now;
  peer.heard_awake = awake(now);
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
  // A peer that has said nothing since its first request is not asked often: thousands of them may come in a second.
  arm_peer(index, now + (peer.is_proven ? retry_period() : period()));
}

/// Something speaks against the run that we know: ask it at once (clause 7.5.4).
void Management::probe(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.remote_run == 0 || (peer.nonce != 0 && now - peer.pinged_at < kProbeInterval)) return;
  if (peer.watched == 0 && peer.nonce == 0) hear(peer, now);
  ping(index, now);
}

/// Pings are not answered: endpoints may hear the peer all the same (clause 7.5.2). An endpoint that still owes an
/// answer is not asked again.
void Management::ask_life(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  peer.life_asked_at = now;
  told_mark_++;
  for (uint32_t at = peer.first_session; at != kNone; at = sessions_[at].next) {
    const Session& session = sessions_[at];
    if (session.state != State::kUnconfirmed && session.state != State::kOpen) continue;
    LocalEndpoint& endpoint = endpoints_.find(session.local_endpoint)->second;
    if (std::exchange(endpoint.told_mark, told_mark_) == told_mark_) continue;
    const EndpointName name{session.local_endpoint, endpoint.registration};
    auto asked = std::find_if(peer.asked.begin(), peer.asked.end(), [&](const Asked& a) { return a.endpoint == name; });
    if (asked == peer.asked.end()) {
      if (!base::try_grow([&] { peer.asked.push_back({name, std::make_shared<PeerLife>()}); })) return;
      asked = peer.asked.end() - 1;
    }
    if (asked->life->is_asked()) continue;
    ControlEvent event;
    if (!base::try_grow([&] { event.life = PeerLife::ask(asked->life); })) return;
    event.kind = ControlEvent::Kind::kAskLife;
    event.since_ns = static_cast<uint64_t>(std::max(peer.heard_at, Duration(0)).count());
    event.peer = {peer.address, peer.boot_id};
    notify(session.local_endpoint, std::move(event));
  }
}

bool Management::owes_answers(const Peer& peer) {
  return std::any_of(peer.asked.begin(), peer.asked.end(), [](const Asked& asked) { return asked.life->is_asked(); });
}

/// On the awake clock that was at the latest when it would have been if this side had not been absent since it was last
/// heard before.
void Management::look_for_life(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  for (const Asked& asked : peer.asked) {
    const Duration heard_at(static_cast<int64_t>(std::min<uint64_t>(asked.life->heard_at_ns(), INT64_MAX)));
    if (heard_at <= peer.heard_at) continue;
    peer.heard_awake = std::min(awake(now), peer.heard_awake + (heard_at - peer.heard_at));
    peer.heard_at = std::min(heard_at, now);
  }
}

bool Management::is_dead(const Peer& peer) const {
  const Duration silence = awake(seen_at_) - peer.heard_awake;
  if (peer.nonce == 0 || peer.pings_unanswered < kPingsBeforeDeath || silence < options_.liveness_timeout) return false;
  return silence >= kTimeoutsOfEndpoints * options_.liveness_timeout || !owes_answers(peer);
}

Status Management::silence_of(const Peer& peer) {
  const bool has_ended = peer.unreachable == Unreachable::kPort && peer.unreachable_at > peer.heard_at;
  const char* otherwise =
      has_ended ? "the peer's process has ended (ICMP: nothing listens on its Nexus's port any more); create a new "
                  "session when it is back"
                : "the peer's Nexus has not answered for NexusOptions::liveness_timeout; create a new session when it "
                  "is back";
  return {Code::kPeerUnreachable, otherwise};
}

void Management::on_peer_time(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  // In this order: an endpoint that has answered has noted before what it heard.
  const bool may_be_dead = is_dead(peer);
  look_for_life(index, now);
  if (peer.watched == 0 && peer.nonce == 0) {
    if (peer.session_count > 0) return;  // lingering records: the last to go arms the timer
    if (now - peer.idle_since >= options_.linger) return free_peer(index);
    return arm_peer(index, peer.idle_since + options_.linger);
  }
  if (may_be_dead && is_dead(peer)) {
    return peer_gone(index, silence_of(peer), now);
  }
  if (peer.nonce == 0 && now - peer.heard_at < period()) return arm_peer(index, peer.heard_at + period());
  const bool is_in_doubt = peer.nonce != 0 && awake(now) - peer.heard_awake >= options_.liveness_timeout / 2;
  if (is_in_doubt && now - peer.life_asked_at >= period() / 2) ask_life(index, now);
  ping(index, now);
}

void Management::on_ping(std::string_view from, const wire::ManagementMessage& m, Duration now) {
  const uint32_t index = peer_of_run(m.receiver_run);
  // Nobody guesses our run: who names it, before we know theirs, has it from our request.
  if (index != kNone && peers_[index].remote_run == 0) {
    adopt(index, m.sender_run, now);
    peers_[index].is_proven = true;
  }
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
  hear(peer, now);
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
  const bool was_proven = peer.is_proven;
  peer.nonce = 0;
  peer.remote_run = 0;
  peer.is_proven = false;
  told_mark_++;
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
    LocalEndpoint* endpoint = has_believer ? &endpoints_.find(session.local_endpoint)->second : nullptr;
    if (endpoint != nullptr && std::exchange(endpoint->told_mark, told_mark_) != told_mark_) {
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
  auto node = peers_by_run_.extract(peer.own_run);
  do peer.own_run = random_nonzero();
  while (peers_by_run_.contains(peer.own_run));
  node.key() = peer.own_run;
  peers_by_run_.insert(std::move(node));
  peer.asked.clear();  // what is heard of the run that ended says nothing of the next
  if (peer.session_count != 0) return;
  peer.idle_since =
      was_proven ? now : now - options_.linger;  // one that never said more than its first word goes at once
  arm_peer(index, peer.idle_since + options_.linger);
}

void Management::arm_peer(uint32_t index, Duration at) {
  arm(peers_[index].timer_at, peers_[index].timer_place, {at, index, true});
}

void Management::arm_session(uint32_t index, Duration at) {
  arm(sessions_[index].timer_at, sessions_[index].timer_place, {at, index, false});
}

// Each record has at most one timer, for which there is room since the record was made: arming cannot fail.

bool Management::has_timer_room() { return base::try_reserve(timers_, peers_.size() + sessions_.size() + 1); }

void Management::arm(Duration& timer_at, uint32_t& place, Timer timer) {
  if (timer_at == timer.at) return;
  timer_at = timer.at;
  if (timer.at == kNever) return remove_timer(place);
  if (place == kNone) {
    place = static_cast<uint32_t>(timers_.size());
    timers_.push_back(timer);
  } else {
    timers_[place] = timer;
  }
  move_timer(place);
}

void Management::put_timer(size_t place, const Timer& timer) {
  timers_[place] = timer;
  (timer.is_peer ? peers_[timer.index].timer_place : sessions_[timer.index].timer_place) = static_cast<uint32_t>(place);
}

/// Restores the heap's order around a timer that has changed.
void Management::move_timer(size_t place) {
  const Timer timer = timers_[place];
  while (place > 0 && timer < timers_[(place - 1) / 2]) {
    put_timer(place, timers_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  while (true) {
    size_t child = 2 * place + 1;
    if (child >= timers_.size()) break;
    if (child + 1 < timers_.size() && timers_[child + 1] < timers_[child]) child++;
    if (!(timers_[child] < timer)) break;
    put_timer(place, timers_[child]);
    place = child;
  }
  put_timer(place, timer);
}

void Management::remove_timer(uint32_t place) {
  const Timer removed = timers_[place];
  (removed.is_peer ? peers_[removed.index].timer_place : sessions_[removed.index].timer_place) = kNone;
  const Timer last = timers_.back();
  timers_.pop_back();
  if (place == timers_.size()) return;
  timers_[place] = last;
  move_timer(place);
}

/// Doubles the interval and adds a jitter of a quarter, so that many sessions do not repeat in step.
void Management::repeat_later(uint32_t index, Duration interval_max, Duration now) {
  Session& session = sessions_[index];
  const Duration interval = std::chrono::microseconds(session.interval_us);
  const uint64_t spread = static_cast<uint64_t>(interval.count()) / 2 + 1;
  const Duration jittered = interval * 3 / 4 + Duration(static_cast<int64_t>(random() % spread));
  session.interval_us = static_cast<uint32_t>(std::min(2 * interval, interval_max) / std::chrono::microseconds(1));
  arm_session(index, std::min(now + jittered, session.until));
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
    if (!make_room()) {
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
  for (uint32_t i = 0; i < timers_.size(); i++) {
    const Timer& timer = timers_[i];
    if (i > 0) CHECK((timer < timers_[(i - 1) / 2]), ==, false);
    CHECK((timer.is_peer ? peers_[timer.index].timer_place : sessions_[timer.index].timer_place), ==, i);
    CHECK((timer.is_peer ? peers_[timer.index].timer_at : sessions_[timer.index].timer_at).count(), ==,
          timer.at.count());
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
    CHECK((&sources_.at(source_of(peer.address)) == peer.source), ==, true);
    if (watched > 0 || count == 0) CHECK((peer.timer_at != kNever), ==, true);
    listed += count;
  }
  CHECK(listed, ==, live);
  Source total;
  for (const auto& [key, source] : sources_) {
    CHECK(source.relations, >, 0u);
    total.relations += source.relations;
    total.sessions += source.sessions;
    total.asked += source.asked;
  }
  CHECK(total.relations, ==, peers_by_run_.size());
  CHECK(total.sessions, ==, requested);
  size_t asked = 0, waiting = 0, believed = 0, believed_by = 0;
  for (const auto& [id, endpoint] : endpoints_) {
    asked += endpoint.asked;
    for (uint32_t at = endpoint.first_session; at != kNone; at = sessions_[at].next_of_endpoint) {
      CHECK(sessions_[at].local_endpoint, ==, id);
      believed_by++;
    }
  }
  for (const Session& session : sessions_) {
    waiting += session.state == State::kAsked;
    believed += is_believed(session.state);
  }
  CHECK(total.asked, ==, asked);
  CHECK(believed, ==, believed_by);
  CHECK(asked, ==, waiting);
}

}  // namespace tern::nexus
