// What each peer may have of an endpoint, and who gives way when a budget is used up (docs/protocol.md, 5.7 and 7.8).

#include <algorithm>
#include <utility>

#include "rpc/endpoint_core.h"

namespace tern::rpc {

using session::ServerSlot;

namespace {

/// From the handshake to the proof of the path. It takes some round trips, of which the slowest on Earth is below a
/// second, and clients try for 2 s if nothing else is said.
constexpr uint64_t kPathLimitNs = 5'000'000'000;
/// So old, a session without a path makes room for whoever comes: three round trips on most networks.
constexpr uint64_t kPathGraceNs = 100'000'000;
/// An endpoint that looks so much too late was not running: what its clients have sent meanwhile is still to be read.
constexpr uint64_t kAbsentNs = 1'000'000'000;

/// Between two looks at what a session keeps: a quarter of the time after which it is too old.
constexpr uint64_t kSweepNs = session::ServerSession::kKeepNs / 4;
/// Sessions of one look, some us of work.
constexpr size_t kSweepSessions = 256;
/// Requests that the application still has and the client has given up: for each slot of a session as many.
constexpr uint32_t kAbandonedPerSlot = 4;
/// And for each host, whose sessions may have ended.
constexpr uint32_t kAbandonedPerHost = 16'384;

/// What server_sessions_per_peer_max is by default.
constexpr uint32_t kShareMin = 1;
constexpr uint32_t kShareMax = 65'536;

}  // namespace

// ---- Budgets ----

void EndpointCore::forget_claim(Budget budget, detail::Buffer* buffer) {
  if (Claim* claim = claim_of(buffer); claim != nullptr) peers_.release(budget, claim);
  set_claim(buffer, nullptr);
}

/// False: nobody has to give way for these bytes of the peer's.
bool EndpointCore::make_room_for_arriving(const Server* server, size_t bytes) {
  const size_t budget = options_.receive_budget_bytes;
  if (bytes > budget) return false;
  while (peers_.bytes(Budget::kArriving) > budget - bytes) {
    const Claim* claim = peers_.first_to_go_for(Budget::kArriving, server->run, bytes, now_ns_);
    if (claim == nullptr) return false;
    Server* loser = claim->server;
    Offers offers(*this, loser);
    loser->session.give_up_arriving(loser->session.slot(claim->slot), offers);  // and with it the claim
    counters_.gave_way_arriving++;
    list_to_send_quietly(loser);
  }
  return true;
}

/// The slot has a new response, whose memory counts.
void EndpointCore::count_response(Server* server, ServerSlot* slot) {
  const uint32_t index = session::ServerSession::index_of(*slot);
  Claim* claim = peers_.claim(Budget::kResponses, server->run, server, index, slot->response->capacity_bytes, now_ns_);
  set_claim(slot->response, claim);
  if (claim == nullptr) {
    counters_.refused_no_memory++;
    Offers offers(*this, server);
    return server->session.give_up_response(slot, offers);
  }
  while (peers_.bytes(Budget::kResponses) > options_.response_budget_bytes && peers_.claims(Budget::kResponses) > 1 &&
         give_up_one_response()) {
  }
}

/// False: there is none that can be given up now.
bool EndpointCore::give_up_one_response() {
  Claim* claim = peers_.first_to_go(Budget::kResponses);
  Server* server = claim->server;
  ServerSlot* slot = server->session.slot(claim->slot);
  if (slot->received_ns > claim->news_ns) {  // a request came, and was answered in the same memory
    Peers::note_news(Budget::kResponses, claim, slot->received_ns);
    return true;
  }
  if (slot->phase == ServerSlot::Phase::kResponded) {
    Offers offers(*this, server);
    server->session.give_up_response(slot, offers);  // and with it the claim
    counters_.gave_way_response++;
    return true;
  }
  const bool is_in_handler = spare_ != nullptr && spare_->slot == slot && slot->phase == ServerSlot::Phase::kRunning &&
                             spare_->progress != Incoming::Progress::kNone;
  if (is_in_handler) {  // which writes to that memory, or may
    Peers::note_news(Budget::kResponses, claim, now_ns_);
    return peers_.first_to_go(Budget::kResponses) != claim;
  }
  release_after(slot->response_ticket, take_response(slot));  // only kept for the next response
  return true;
}

/// A part of a request has come, or its client asks for the response.
void EndpointCore::note_news(Server* server, const wire::Header& header, bool is_part) {
  const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
  const ServerSlot* slot = index < server->session.window() ? server->session.slot(index) : nullptr;
  if (slot == nullptr) return;
  if (slot->assembly != nullptr) {
    if (is_part) Peers::note_news(Budget::kArriving, claim_of(slot->assembly->buffer), now_ns_);
  } else if (slot->phase == ServerSlot::Phase::kResponded && slot->response->capacity_bytes > kUncountedBytes) {
    Peers::note_news(Budget::kResponses, claim_of(slot->response), now_ns_);
  }
}

// ---- Sessions ----

/// Why the peer may not have another session; kNone: it may. Others that have not proved their path make room.
wire::Refusal EndpointCore::refusal_of_session(const nexus::PeerNexus& peer) {
  const uint32_t most = options_.server_sessions_max;
  const uint32_t wanted = options_.server_sessions_per_peer_max;
  const uint32_t share = wanted != 0 ? wanted : std::clamp(most - most / 2, kShareMin, kShareMax);
  const Run* run = peers_.find_run(peer.boot_id);
  const Host* host = peers_.find_host(peer.address.view());
  if (host != nullptr && host->abandoned >= kAbandonedPerHost) return wire::Refusal::kEndpointShare;
  if (host != nullptr && host->server_sessions >= share && !make_room_for_session(run, host)) {
    return wire::Refusal::kEndpointShare;
  }
  // Looked up again: the run may have ended with its last session.
  if (servers_.size() >= most && !make_room_for_session(peers_.find_run(peer.boot_id), nullptr)) {
    return wire::Refusal::kNoCapacity;
  }
  return wire::Refusal::kNone;
}

/// Of those without a path the oldest one ends if it is of `host` (null: of any), and old enough or of a run that would
/// still have more sessions than `run` (null: has none yet).
bool EndpointCore::make_room_for_session(const Run* run, const Host* host) {
  Server* oldest = pathless_.first();
  if (oldest == nullptr || (host != nullptr && oldest->run->host != host)) return false;
  const uint32_t own = run != nullptr ? run->server_sessions : 0;
  const bool is_old = now_ns_ >= oldest->path_until_ns - kPathLimitNs + kPathGraceNs;
  if (!is_old && oldest->run->server_sessions <= own + 1) return false;
  give_up_pathless(oldest);
  return true;
}

void EndpointCore::give_up_pathless(Server* server) {
  counters_.sessions_without_path++;
  end_server(server, true);
}

void EndpointCore::begin_without_path(Server* server) {
  server->is_pathless = true;
  server->path_until_ns = now_ns_ + kPathLimitNs;
  pathless_.add_last(server);
  at_latest(server->path_until_ns);
}

void EndpointCore::end_pathless() {
  Server* first = pathless_.first();
  if (first != nullptr && now_ns_ >= first->path_until_ns + kAbsentNs) {
    for (Server* server = first; server != nullptr; server = pathless_.after(server)) {
      server->path_until_ns = now_ns_ + kPathLimitNs;
    }
  }
  while (first != nullptr && now_ns_ >= first->path_until_ns) {
    give_up_pathless(first);
    first = pathless_.first();
  }
  if (first != nullptr) at_latest(first->path_until_ns);
}

// ---- What nobody asks for ----

/// After a round that has found nothing to keep, the next packets begin another.
void EndpointCore::begin_sweep() {
  if (proved_.first() == nullptr) return;
  sweep_left_ = servers_.size();
  sweep_keeps_some_ = false;
  sweep_at_ns_ = now_ns_ + kSweepNs;
  at_latest(sweep_at_ns_);
}

/// Responses that no client asks for, and that none has reported, go (clause 5.5.2).
void EndpointCore::sweep() {
  if (now_ns_ < sweep_at_ns_) return at_latest(sweep_at_ns_);
  if (now_ns_ - sweep_at_ns_ >= kAbsentNs) sweep_since_ns_ = now_ns_;  // questions are still to be read
  for (size_t i = 0; i < kSweepSessions && sweep_left_ != 0; i++, sweep_left_--) {
    Server* server = proved_.first();
    if (server == nullptr) break;
    Offers offers(*this, server);
    sweep_keeps_some_ |= server->session.forget_old(now_ns_, sweep_since_ns_, offers);
    proved_.move_last(server);
  }
  const bool is_over = sweep_left_ == 0 || proved_.first() == nullptr;
  if (is_over && !sweep_keeps_some_) {
    sweep_at_ns_ = UINT64_MAX;
    return;
  }
  if (is_over) return begin_sweep();
  const size_t looks = servers_.size() / kSweepSessions + 1;
  sweep_at_ns_ = now_ns_ + kSweepNs / looks;
  at_latest(sweep_at_ns_);
}

// ---- Requests that nobody waits for ----

/// Those that no handler has had yet just end.
bool EndpointCore::Offers::may_abandon(void* call) {
  const auto* incoming = static_cast<const Incoming*>(call);
  return server_->abandoned < kAbandonedPerSlot * server_->session.window() || incoming->waits_in_loop ||
         core_.mailbox_->is_waiting(incoming);
}

void EndpointCore::count_abandoned(Incoming* incoming, Server* server) {
  Run* run = server->run;
  peers_.join(run);
  run->abandoned++;
  run->host->abandoned++;
  server->abandoned++;
  incoming->abandoned_by = run;
  incoming->abandoned_session = server->name;
}

void EndpointCore::on_abandoned_answered(Incoming* incoming) {
  Run* run = std::exchange(incoming->abandoned_by, nullptr);
  if (run == nullptr) return;
  if (Server* server = servers_.find_name(incoming->abandoned_session); server != nullptr) server->abandoned--;
  run->host->abandoned--;
  run->abandoned--;
  peers_.leave(run);
}

// ---- Runs ----

void EndpointCore::join_run(Client* client, Run* run) {
  client->run = run;
  run->clients.add_last(client);
}

void EndpointCore::leave_run(Client* client) {
  Run* run = std::exchange(client->run, nullptr);
  run->clients.remove(client);
  peers_.leave(run);
}

}  // namespace tern::rpc
