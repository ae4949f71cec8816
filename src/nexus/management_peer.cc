// Relations with peers, and the detection of dead peers (docs/protocol.md, 7.5).
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/address.h"
#include "base/check.h"
#include "base/try.h"
#include "nexus/management.h"

namespace tern::nexus {

namespace {
/// A stranger's mismatching datagrams cause at most one probe in this time.
constexpr Duration kProbeInterval = std::chrono::milliseconds(1);
/// A peer is dead only after this many lost pings, because its timer may fire late by chance.
constexpr uint32_t kPingsBeforeDeath = 3;
/// A peer that lives, but has not answered this many pings, may have left its address. A dead peer gets fewer pings
/// before it is declared gone.
constexpr uint32_t kPingsToALiveAddress = 32;
/// An endpoint that has not answered keeps a silent peer alive for this many liveness timeouts. Its thread may run a
/// handler, or not run its loop, and its receive queue may be full of the peer's packets.
constexpr int kTimeoutsOfEndpoints = 4;
}  // namespace

/// Returns an IPv4 address, or the first 64 bits of an IPv6 address. For any other text returns a hash of the host.
Management::SourceKey Management::source_of(std::string_view address) {
  std::string_view host = base::host_of(address);
  host = host.substr(0, host.find('%'));  // the scope is not a part of the host
  const auto numeric = base::SocketAddress::parse_ip(host);
  if (!numeric) return {std::hash<std::string_view>{}(host), true};
  const bool is_v6 = numeric->family() == AF_INET6;
  uint64_t prefix = 0;
  std::memcpy(&prefix, numeric->ip().data(), is_v6 ? 8 : 4);
  return {prefix, is_v6};
}

uint32_t Management::first_peer_at(std::string_view address) const {
  const auto found = peers_by_address_.find(address);
  return found == peers_by_address_.end() ? kNone : found->second;
}

uint32_t Management::peer_of_run(uint64_t own_run) const {
  const auto found = peers_by_run_.find(own_run);
  return found == peers_by_run_.end() ? kNone : found->second;
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
    if (!reserve_timer() || !base::try_grow([this] { peers_.emplace_back(); })) return fail();
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

void Management::free_peer(uint32_t index) {
  Peer& peer = peers_[index];
  CHECK(peer.session_count, ==, 0u);
  peers_by_run_.erase(peer.own_run);
  const auto head = peers_by_address_.find(peer.address.view());
  if (const uint32_t first = head->second; first != index || peer.next != kNone) {
    // The map's key points to the text of the first relation, which may be the relation that is removed.
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

/// Notes the peer's run. No run may be known yet. Only a pong or silence ends a known run, because any sender can name
/// another one.
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

// ---- Pings ----

/// Returns true if the peer lives, but has not answered kPingsToALiveAddress pings: its messages may come from another
/// address. Until it answers, its address gets one ping in a liveness timeout, and for the peer's sessions no asks,
/// disconnects or first replies (clause 7.5.7). Otherwise a peer could leave its address to a third party, and make
/// this side send there for ever.
bool Management::has_left_address(const Peer& peer) {
  return peer.nonce != 0 && peer.pings_unanswered >= kPingsToALiveAddress;
}

void Management::ping(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.nonce == 0) {
    peer.nonce = random_nonzero();  // one nonce until it is answered, so that any RTT is short enough
    peer.pings_unanswered = 0;
  }
  peer.pings_unanswered++;
  peer.pinged_at = now;
  send(peer.address, message_of(wire::ManagementKind::kPing, peer, peer.nonce));
  // A peer that has sent only its first request is pinged rarely, because thousands of those may come in a second.
  arm_peer(index, now + (peer.is_proven ? retry_period() : period()));
}

/// Pings at once, because a datagram contradicts the run that is known (clause 7.5.4).
void Management::probe(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  if (peer.remote_run == 0 || (peer.nonce != 0 && now - peer.pinged_at < kProbeInterval)) return;
  if (peer.watched == 0 && peer.nonce == 0) hear(peer, now);
  ping(index, now);
}

void Management::on_ping(std::string_view from, const wire::ManagementMessage& m, Duration now) {
  const uint32_t index = peer_of_run(m.receiver_run);
  // If a sender names this side's run before its own run is known here, it knows the run from this side's request.
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
    return peer_gone(index,
                     {Code::kSessionReset,
                      "the peer's Nexus has restarted, or had declared this one dead; create a new session, or use "
                      "SessionOptions::reconnect"},
                     now);
  }
  hear(peer, now);
  if (peer.watched > 0) {
    arm_peer(index, now + period());
  } else if (peer.session_count == 0) {
    arm_peer(index, peer.idle_since + options_.linger);
  }
}

// ---- Silence and death ----

void Management::on_peer_time(uint32_t index, Duration now) {
  Peer& peer = peers_[index];
  // The order matters, because an endpoint notes its packets before it answers.
  const bool may_be_dead = is_dead(peer);
  look_for_life(index, now);
  if (peer.session_count == 0 && now - peer.idle_since >= options_.linger) return free_peer(index);
  if (peer.watched == 0 && peer.nonce == 0) {
    if (peer.session_count > 0) return;  // ended records linger; the last one arms the timer when it is freed
    return arm_peer(index, peer.idle_since + options_.linger);
  }
  if (may_be_dead && is_dead(peer)) {
    return peer_gone(index, silence_of(peer), now);
  }
  if (peer.nonce == 0 && now - peer.heard_at < period()) return arm_peer(index, peer.heard_at + period());
  const Duration doubt_in = options_.liveness_timeout / 2 - (awake(now) - peer.heard_awake);
  const bool is_in_doubt = peer.nonce != 0 && doubt_in <= Duration(0);
  if (is_in_doubt && now - peer.life_asked_at >= period() / 2) ask_life(index, now);
  if (has_left_address(peer) && now - peer.pinged_at < options_.liveness_timeout) {
    return arm_peer(index, now + std::clamp(doubt_in, retry_period(), period()));
  }
  ping(index, now);
}

/// Asks the endpoints whether they receive packets of a peer that answers no pings (clause 7.5.2). An endpoint that has
/// not answered the last question gets no other question.
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

/// Takes over the endpoints' answers. On the awake clock, a packet is no later than it would be if this side had not
/// been absent since the packet before.
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
                  "session when it is back, or use SessionOptions::reconnect"
                : "the peer's Nexus has not answered for NexusOptions::liveness_timeout; create a new session when it "
                  "is back, or use SessionOptions::reconnect";
  return {Code::kPeerUnreachable, otherwise};
}

/// Ends all sessions with the run that was known. Requests that wait for an answer go on (clause 7.5.5).
void Management::peer_gone(uint32_t index, const Status& status, Duration now) {
  Peer& peer = peers_[index];
  const uint32_t watched = peer.watched;
  const bool was_watched = watched > 0;
  const bool was_proven = peer.is_proven;
  peer.nonce = 0;
  peer.remote_run = 0;
  peer.is_proven = false;
  told_mark_++;
  for (uint32_t at = peer.first_session, next; at != kNone; at = next) {
    Session& session = sessions_[at];
    next = session.next;
    if (session.state == State::kConnecting) {
      if (!request_of(at).is_sent) continue;
      session.repetitions = 0;
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
  const bool is_dead = status.code() == Code::kPeerUnreachable;
  Happening* happening = was_watched ? add_happening(is_dead ? LogKind::kPeerDead : LogKind::kPeerRestarted) : nullptr;
  if (happening != nullptr) {
    happening->peer = peer.address;
    happening->status = status;
    happening->sessions = watched;
  }
  // This side takes a new run. A peer that still uses the old one learns of the end from its next ping, and late
  // messages of the old relation are not taken for messages of the new one (clause 7.5.3).
  auto node = peers_by_run_.extract(peer.own_run);
  do peer.own_run = random_nonzero();
  while (peers_by_run_.contains(peer.own_run));
  node.key() = peer.own_run;
  peers_by_run_.insert(std::move(node));
  peer.asked.clear();  // an endpoint's packets of the old run prove nothing about the next run
  if (peer.session_count != 0) return;
  peer.idle_since = was_proven ? now : now - options_.linger;  // a relation without a proof is freed at once
  arm_peer(index, peer.idle_since + options_.linger);
}

}  // namespace tern::nexus
