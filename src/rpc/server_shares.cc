// ServerSessions: the shares of peers in an endpoint's sessions and budgets, and the peers that give way when a budget
// is used up (docs/protocol.md, 5.7 and 7.8).

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "rpc/server_sessions.h"

namespace tern::rpc {

using session::ServerSlot;

namespace {

/// Limit from the handshake to the proof of the path, which takes some round trips. The slowest round trip on Earth is
/// below a second, and clients try for 2 s by default.
constexpr uint64_t kPathLimitNs = 5'000'000'000;
/// A session without a path that is older makes way for any other session: three round trips on most networks.
constexpr uint64_t kPathGraceNs = 100'000'000;
/// Most sessions without a path that are looked at to find the oldest one of a host. This takes some us.
constexpr uint32_t kMakeWayLooks = 256;
/// If two checks are further apart than this, the endpoint was not running and has not yet read its clients' packets.
constexpr uint64_t kAbsentNs = 1'000'000'000;

/// Interval of checks of a session's kept responses: a quarter of the time for which they are kept.
constexpr uint64_t kSweepNs = session::ServerSession::kKeepNs / 4;
/// Sessions in one check, which takes some us.
constexpr size_t kSweepSessions = 256;
/// Limit of requests of a session that the application keeps after their clients have given them up, for each slot.
constexpr uint32_t kAbandonedPerSlot = 4;
static_assert(kAbandonedPerSlot * wire::kSlotsMax <= UINT16_MAX, "Server::abandoned counts them");
/// Limit of such requests of each host, including those of ended sessions.
constexpr uint32_t kAbandonedPerHost = 16'384;

/// The smallest and the largest default of server_sessions_per_peer_max.
constexpr uint32_t kShareMin = 1;
constexpr uint32_t kShareMax = 65'536;

}  // namespace

// ---- Budgets ----

void ServerSessions::forget_claim(Budget budget, detail::Buffer* buffer) {
  if (Claim* claim = claim_of(buffer); claim != nullptr) peers_.release(budget, claim);
  set_claim(buffer, nullptr);
}

/// Makes space for a request of the peer: other requests give way. False: no request has to give way, and the budget is
/// used up.
bool ServerSessions::make_way_for_arriving(const Server* server, size_t bytes) {
  const size_t budget = context_.options.receive_budget_bytes;
  if (bytes > budget) return false;
  while (peers_.bytes(Budget::kArriving) > budget - bytes) {
    const Claim* claim = peers_.first_to_go_for(Budget::kArriving, server->run, bytes, context_.now_ns);
    if (claim == nullptr) return false;
    Server* loser = claim->server;
    Offers offers(*this, loser);
    loser->session.give_up_arriving(loser->session.slot(claim->slot), offers);  // this also ends the claim
    context_.counters.gave_way_arriving++;
    list_to_send_quietly(loser);
  }
  return true;
}

void ServerSessions::count_response(Server* server, ServerSlot* slot) {
  const uint32_t index = session::ServerSession::index_of(*slot);
  Claim* claim =
      peers_.claim(Budget::kResponses, server->run, server, index, slot->response->capacity_bytes, context_.now_ns);
  set_claim(slot->response, claim);
  if (claim == nullptr) {
    context_.counters.refused_no_memory++;
    Offers offers(*this, server);
    return server->session.give_up_response(slot, offers);
  }
  bool has_moved = false;
  while (peers_.bytes(Budget::kResponses) > context_.options.response_budget_bytes &&
         peers_.claims(Budget::kResponses) > 1) {
    // A claim is as old as the first response in its memory, so that claims of older responses may have moved behind
    // this one. Each of them moves once, but the claim of a response that a handler may write to moves each time.
    if (peers_.first_to_go(Budget::kResponses) == claim && !std::exchange(has_moved, true)) {
      Peers::note_news(Budget::kResponses, claim, context_.now_ns);
    }
    if (!give_up_one_response()) break;
  }
}

/// Gives up the response whose claim gives way first. False: no response can be given up now.
bool ServerSessions::give_up_one_response() {
  Claim* claim = peers_.first_to_go(Budget::kResponses);
  Server* server = claim->server;
  ServerSlot* slot = server->session.slot(claim->slot);
  if (slot->received_ns > claim->news_ns) {  // a new request was answered in the same memory
    Peers::note_news(Budget::kResponses, claim, slot->received_ns);
    return true;
  }
  if (slot->phase == ServerSlot::Phase::kResponded) {
    Offers offers(*this, server);
    server->session.give_up_response(slot, offers);  // this also ends the claim
    context_.counters.gave_way_response++;
    return true;
  }
  if (handlers_.is_in_handler(slot)) {  // the handler may write to that memory
    Peers::note_news(Budget::kResponses, claim, context_.now_ns);
    return peers_.first_to_go(Budget::kResponses) != claim;
  }
  completions_.release_after(slot->response_ticket, take_response(slot));  // only kept for the next response
  return true;
}

/// Notes progress: a part of a request has come, or its client asks for the response.
void ServerSessions::note_news(Server* server, const wire::Header& header, bool is_part) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  const ServerSlot* slot = index < server->session.window() ? server->session.slot(index) : nullptr;
  if (slot == nullptr) return;
  if (slot->assembly != nullptr) {
    if (is_part) Peers::note_news(Budget::kArriving, static_cast<Claim*>(slot->assembly->claim), context_.now_ns);
  } else if (slot->phase == ServerSlot::Phase::kResponded && is_counted(slot->response)) {
    Peers::note_news(Budget::kResponses, claim_of(slot->response), context_.now_ns);
  }
}

// ---- Sessions ----

/// Returns the reason why the peer may not have another session. kNone: it may. Sessions that have not proved their
/// path give way.
wire::Refusal ServerSessions::refusal_of_peer(const nexus::PeerNexus& peer) {
  const uint32_t most = context_.options.server_sessions_max;
  const uint32_t wanted = context_.options.server_sessions_per_peer_max;
  const uint32_t share = wanted != 0 ? wanted : std::clamp(most - most / 2, kShareMin, kShareMax);
  const Run* run = peers_.find_run(peer.boot_id);
  const Host* host = peers_.find_host(peer.address.view());
  if (host != nullptr && host->abandoned >= kAbandonedPerHost) return wire::Refusal::kEndpointShare;
  if (host != nullptr && host->server_sessions >= share && !make_way_for_session(run, host)) {
    return wire::Refusal::kEndpointShare;
  }
  // The run is looked up again, because it may have ended with its last session.
  if (table_.size() >= most && !make_way_for_session(peers_.find_run(peer.boot_id), nullptr)) {
    return wire::Refusal::kNoCapacity;
  }
  return wire::Refusal::kNone;
}

/// Ends the oldest session of `host` (null: of any host) without a path, if it is old enough, or its run would still
/// have more sessions than `run` (null: a run without sessions). False: no session has ended.
bool ServerSessions::make_way_for_session(const Run* run, const Host* host) {
  Server* oldest = pathless_.first();
  for (uint32_t looks = 1; oldest != nullptr && host != nullptr && oldest->run->host != host; looks++) {
    if (looks == kMakeWayLooks) return false;
    oldest = pathless_.after(oldest);
  }
  if (oldest == nullptr) return false;
  const uint32_t own = run != nullptr ? run->server_sessions : 0;
  const bool is_old = context_.now_ns >= oldest->path_until_ns - kPathLimitNs + kPathGraceNs;
  if (!is_old && oldest->run->server_sessions <= own + 1) return false;
  give_up_pathless(oldest);
  return true;
}

constexpr Status kWithoutPath(Code::kPeerUnreachable,
                              "the client did not prove its path in time, or other clients needed its place: a "
                              "firewall may pass management but not data, or an MTU may be too small");

void ServerSessions::give_up_pathless(Server* server) {
  context_.counters.sessions_without_path++;
  end(server, kWithoutPath, true);
}

void ServerSessions::begin_without_path(Server* server) {
  server->is_pathless = true;
  server->path_until_ns = context_.now_ns + kPathLimitNs;
  pathless_.add_last(server);
  context_.agenda.at_latest(server->path_until_ns);
}

void ServerSessions::end_pathless() {
  Server* first = pathless_.first();
  if (first != nullptr && context_.now_ns >= first->path_until_ns + kAbsentNs) {
    for (Server* server = first; server != nullptr; server = pathless_.after(server)) {
      server->path_until_ns = context_.now_ns + kPathLimitNs;
    }
  }
  while (first != nullptr && context_.now_ns >= first->path_until_ns) {
    give_up_pathless(first);
    first = pathless_.first();
  }
  if (first != nullptr) context_.agenda.at_latest(first->path_until_ns);
}

// ---- Responses that no client asks for ----

void ServerSessions::on_path_proved(Server* server) {
  pathless_.remove(server);
  server->is_pathless = false;
  server->heard_ns = context_.now_ns;
  proved_.add_last(server);
  // The packet that opens the session may count as its first news of this epoch (hear_opening()), so that its requests
  // plan no sweep.
  if (sweep_at_ns_ == UINT64_MAX) begin_sweep();
  sweep_keeps_some_ = true;
  context_.log.session(LogKind::kSessionOpened, Session{server->name()}, false, server->run->address);
  context_.announce({Session{server->name()}, false, SessionState::kOpen, {}});
}

/// Begins a sweep. If a sweep finds no response to keep, the next one begins with a client's next packet.
void ServerSessions::begin_sweep() {
  if (proved_.first() == nullptr) return;
  sweep_left_ = table_.size();
  sweep_keeps_some_ = false;
  sweep_at_ns_ = context_.now_ns + kSweepNs;
  context_.agenda.at_latest(sweep_at_ns_);
}

void ServerSessions::run_sweep() {
  if (sweep_at_ns_ == UINT64_MAX) return;
  if (context_.now_ns < sweep_at_ns_) return context_.agenda.at_latest(sweep_at_ns_);
  if (context_.now_ns - sweep_at_ns_ >= kAbsentNs) sweep_since_ns_ = context_.now_ns;  // questions may be unread
  for (size_t i = 0; i < kSweepSessions && sweep_left_ != 0; i++, sweep_left_--) {
    Server* server = proved_.first();
    if (server == nullptr) break;
    Offers offers(*this, server);
    sweep_keeps_some_ |= server->session.forget_old(context_.now_ns, sweep_since_ns_, offers);
    proved_.move_last(server);
  }
  const bool is_over = sweep_left_ == 0 || proved_.first() == nullptr;
  if (is_over && !sweep_keeps_some_) {
    sweep_at_ns_ = UINT64_MAX;
    return;
  }
  if (is_over) begin_sweep();
  // The looks of a sweep are spread over kSweepNs. So is the first look of the next sweep, so that each session is
  // checked every kSweepNs.
  const size_t looks = table_.size() / kSweepSessions + 1;
  sweep_at_ns_ = context_.now_ns + kSweepNs / looks;
  context_.agenda.at_latest(sweep_at_ns_);
}

// ---- Requests whose client has given up ----

/// True if the client may give up the request. A request that no handler has had yet ends, and does not count.
bool ServerSessions::may_abandon(const Incoming* incoming, const Server* server) const {
  return server->abandoned < kAbandonedPerSlot * server->session.window() || handlers_.has_not_begun(incoming);
}

void ServerSessions::count_abandoned(Incoming* incoming, Server* server) {
  Run* run = server->run;
  peers_.join(run);
  run->abandoned++;
  run->host->abandoned++;
  server->abandoned++;
  incoming->abandoned_by = run;
}

void ServerSessions::on_abandoned_answered(Incoming* incoming) {
  Run* run = std::exchange(incoming->abandoned_by, nullptr);
  if (run == nullptr) return;
  if (Server* server = table_.find_name(incoming->noted_session); server != nullptr) server->abandoned--;
  run->host->abandoned--;
  run->abandoned--;
  peers_.leave(run);
}

// ---- For tests ----

/// CHECKs that each message that counts against a budget has its claim, and each claim its message.
void ServerSessions::check_claims() const {
  size_t claims[kBudgets] = {};
  const auto check_claim = [&](Budget budget, const detail::Buffer* buffer, const Server* server, uint32_t slot,
                               size_t bytes) {
    const Claim* claim = claim_of(buffer);
    CHECK(claim != nullptr);
    CHECK(claim->server == server && claim->run == server->run);
    CHECK(claim->slot, ==, slot);
    CHECK(claim->bytes, ==, bytes);
    claims[static_cast<size_t>(budget)]++;
  };
  table_.for_each([&](const Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      if (slot->assembly != nullptr) {
        CHECK(slot->assembly->claim == claim_of(slot->assembly->buffer));
        check_claim(Budget::kArriving, slot->assembly->buffer, server, i, slot->request_bytes);
      }
      if (slot->response != nullptr && is_counted(slot->response)) {
        check_claim(Budget::kResponses, slot->response, server, i, slot->response->capacity_bytes);
      }
    }
  });
  CHECK(claims[static_cast<size_t>(Budget::kArriving)], ==, peers_.claims(Budget::kArriving));
  CHECK(claims[static_cast<size_t>(Budget::kResponses)], ==, peers_.claims(Budget::kResponses));
  CHECK(peers_.bytes(Budget::kArriving), <=, context_.options.receive_budget_bytes);
}

/// CHECKs that each session is of a run, and in the list that fits its path, and that each run has its sessions.
void ServerSessions::check_paths() const {
  size_t pathless = 0;
  table_.for_each([&](const Server* server) {
    CHECK(peers_.find_run(server->run->key) == server->run);
    CHECK(server->is_pathless, ==, !server->session.is_open());
    pathless += server->is_pathless;
  });
  for (const Server* server = pathless_.first(); server != nullptr; server = pathless_.after(server)) {
    CHECK(server->is_pathless);
    CHECK(context_.agenda.next_ns(), <=, std::max(server->path_until_ns, context_.now_ns));
    pathless--;
  }
  CHECK(pathless, ==, 0u);
  size_t servers = 0;
  peers_.for_each_run([&](const Run* run) {
    size_t its_servers = 0;
    for (const Server* server = run->servers.first(); server != nullptr; server = run->servers.after(server)) {
      CHECK(server->run == run && !server->is_dead);
      its_servers++;
    }
    CHECK(run->server_sessions, ==, its_servers);
    CHECK(run->host->server_sessions, <=, table_.size());
    servers += its_servers;
  });
  CHECK(servers, ==, table_.size());
}

}  // namespace tern::rpc
