// Management's census(), and checks of its tables against each other. For tests.
#include "base/check.h"
#include "nexus/management.h"

namespace tern::nexus {

void Management::check_invariants() const {
  check_sessions();
  check_timers();
  check_peers();
  check_shares();
}

Management::Census Management::census() const {
  Census census{.peers = peers_by_run_.size(), .sessions_established = 0};
  sessions_.for_each([&](const Session& session) {
    census.sessions_established += session.state == State::kOpen || session.state == State::kUnconfirmed;
  });
  return census;
}

void Management::check_sessions() const {
  size_t live = 0, keyed = 0, requested = 0, requesting = 0, asking = 0;
  for (uint32_t index = 0; index < sessions_.size(); index++) {
    const Session& session = sessions_[index];
    if (session.state == State::kFree) continue;
    live++;
    CHECK(peers_[session.peer].in_use);
    const bool is_keyed =
        session.state == State::kConnecting || session.state == State::kUnconfirmed || session.state == State::kOpen;
    keyed += is_keyed;
    requested += !session.is_client;
    if (is_keyed) CHECK(find_key(session.local_endpoint, session.is_client, session.local_key), ==, index);
    if (!session.is_client) CHECK(find_request(session.token, session.peer), ==, index);
    requesting += session.state == State::kConnecting;
    asking += questions_.contains(index);
    CHECK(requests_.contains(index), ==, session.state == State::kConnecting);
    if (questions_.contains(index)) CHECK(session.is_client && session.state == State::kOpen);
    if (!session.is_client && (session.state == State::kUnconfirmed || session.state == State::kOpen)) {
      CHECK(session.offer, <, endpoints_.at(session.local_endpoint).offers.size());
    }
    const bool needs_timer = session.state == State::kConnecting || session.state == State::kUnconfirmed ||
                             session.state == State::kClosing || session.state == State::kClosed ||
                             questions_.contains(index);
    CHECK((session.timer_place != kNone), ==, needs_timer);
    if (is_watched(session.state)) CHECK(peers_[session.peer].remote_run, !=, 0u);
  }
  CHECK(live, ==, sessions_live_);
  CHECK(keyed, ==, sessions_by_key_.size());
  CHECK(requested, ==, sessions_by_request_.size());
  CHECK(requesting, ==, requests_.size());
  CHECK(asking, ==, questions_.size());
}

void Management::check_timers() const {
  for (uint32_t i = 0; i < timers_.size(); i++) {
    const Timer& timer = timers_[i];
    if (i > 0) CHECK(!(timer < timers_[(i - 1) / 2]));
    CHECK((timer.is_peer ? peers_[timer.index].timer_place : sessions_[timer.index].timer_place), ==, i);
  }
}

void Management::check_peers() const {
  size_t chained = 0;
  for (const auto& [address, head] : peers_by_address_) {
    for (uint32_t at = head; at != kNone; at = peers_[at].next) {
      chained++;
      CHECK(peers_[at].address == address);
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
    CHECK(&sources_.at(source_of(peer.address)) == peer.source);
    if (watched > 0 || count == 0) CHECK(peer.timer_place, !=, kNone);
    listed += count;
  }
  CHECK(listed, ==, sessions_live_);
}

/// Checks the amounts that the sources and the endpoints have been charged.
void Management::check_shares() const {
  Source total;
  for (const auto& [key, source] : sources_) {
    CHECK(source.relations, >, 0u);
    total.relations += source.relations;
    total.sessions += source.sessions;
    total.asked += source.asked;
  }
  CHECK(total.relations, ==, peers_by_run_.size());
  CHECK(total.sessions, ==, sessions_by_request_.size());
  size_t asked = 0, waiting = 0;
  std::unordered_map<uint16_t, size_t> believed;
  for (const auto& [id, endpoint] : endpoints_) {
    asked += endpoint.asked;
    believed[id] = endpoint.believed;
  }
  sessions_.for_each([&](const Session& session) {
    waiting += session.state == State::kAsked;
    if (is_believed(session.state)) CHECK(believed[session.local_endpoint]--, >, 0u);
  });
  for (const auto& [id, left] : believed) CHECK(left, ==, 0u);
  CHECK(total.asked, ==, waiting);
  CHECK(asked, >=, waiting);
}

}  // namespace tern::nexus
