#include "rpc/server_sessions.h"

#include <algorithm>

#include "base/address.h"
#include "base/check.h"
#include "base/slab.h"
#include "base/try.h"
#include "rpc/count_drop.h"
#include "rpc/handshake.h"
#include "rpc/names.h"
#include "wire/credits.h"

namespace tern::rpc {

using session::Drop;
using session::ServerSlot;

// ---- Accepting a session (clause 7.7) ----

/// Returns the reason to refuse the client's wish. kNone: the endpoint can serve it.
wire::Refusal ServerSessions::refusal_of_wish(const nexus::SessionTerms& wish) const {
  if (context_.is_closing) return wire::Refusal::kEndpointClosing;
  if (wish.transport != context_.port.transport) return wire::Refusal::kTransportMismatch;
  if (wish.payload_bytes_max < wire::kPayloadBytesMin || wish.payload_bytes_max > wire::kPayloadBytesMax) {
    return wire::Refusal::kMtuMismatch;
  }
  if (wish.window < 1 || wish.window > wire::kSlotsMax) return wire::Refusal::kOther;
  return wire::Refusal::kNone;
}

/// Returns the reason to refuse a session to whose peer the transport cannot connect.
wire::Refusal ServerSessions::refusal_of_connect(Code code, const nexus::AddressBytes& address) const {
  switch (code) {
    case Code::kNoMemory:
      return wire::Refusal::kNoMemory;
    case Code::kMisuse:  // not an address of this version of the transport
      return wire::Refusal::kTransportMismatch;
    case Code::kRefused:  // the transport may not have this peer
      return wire::Refusal::kOtherUser;
    case Code::kPeerUnreachable:  // only processes of one host share the transport
      return wire::Refusal::kOtherHost;
    case Code::kUnavailable: {
      const wire::Refusal known = context_.transport.refusal_of(address);
      return known == wire::Refusal::kNone ? wire::Refusal::kNoWayBack : known;
    }
    default:
      return wire::Refusal::kOther;
  }
}

void ServerSessions::on_connect_request(const nexus::ControlEvent& event) {
  auto refuse = [&](wire::Refusal refusal) {
    context_.counters.sessions_refused++;
    context_.log.client_turned_away(LogKind::kSessionRefused, {}, event.peer.address, nexus::refusal_status(refusal));
    (void)context_.nexus.answer_connect(context_.port, event.token, refusal, {});
  };
  const auto& wish = event.terms;
  if (const auto refusal = refusal_of_wish(wish); refusal != wire::Refusal::kNone) return refuse(refusal);
  if (const auto refusal = refusal_of_peer(event.peer); refusal != wire::Refusal::kNone) return refuse(refusal);
  RandomNumbers random(context_.nexus.environment());
  session::ServerTerms terms;
  terms.first_request_count = random() >> wire::kSlotBits;
  terms.first_number = random() & wire::kNumberMask;
  terms.path_token = random() & wire::kTokenMask;
  terms.session_token = random() & wire::kTokenMask;
  const bool has_key = table_.draw(context_.now_ns, random, &terms.local_key);
  if (random.has_failed()) return refuse(wire::Refusal::kOther);
  Run* run = has_key ? peers_.join(event.peer.address.view(), event.peer.boot_id) : nullptr;
  if (run == nullptr) return refuse(wire::Refusal::kNoMemory);
  auto peer = context_.transport.connect(wish.address, base::host_of(event.peer.address.view()));
  if (!peer.ok()) {
    peers_.leave(run);
    return refuse(refusal_of_connect(peer.status().code(), wish.address));
  }
  terms.remote_key = wish.session_key;
  terms.payload_bytes_max = std::min(wish.payload_bytes_max, context_.transport.payload_bytes_max(*peer));
  terms.credit_unit = credits_.unit();
  if (wish.credits < terms.credit_unit) {
    // The client does not understand the unit. For packets of at most one credit, packets are the same unit.
    const uint32_t credit_bytes = 1u << terms.credit_unit;
    terms.payload_bytes_max =
        std::min(terms.payload_bytes_max, credit_bytes - static_cast<uint32_t>(wire::kHeaderBytes));
    terms.credit_unit = wire::kPacketCredits;
  }
  terms.window = wish.window;
  terms.first_client_number = wish.first_number;
  Server* server = make(terms);
  if (server == nullptr) {
    peers_.leave(run);
    context_.transport.disconnect(*peer);
    return refuse(wire::Refusal::kNoMemory);
  }
  server->peer = *peer;
  server->run = run;
  run->servers.add_last(server);
  run->server_sessions++;
  run->host->server_sessions++;
  begin_without_path(server);
  answer(event, server, terms);
}

/// Makes a session, with memory for every list that it may be in. Null: there is no memory.
Server* ServerSessions::make(const session::ServerTerms& terms) {
  Server* server = pool_.take(terms);
  if (server == nullptr) return nullptr;
  const size_t servers = pool_.taken();
  if (!to_send_.reserve(servers) || !base::try_reserve_untouched(dead_, servers)) {
    pool_.give(server);
    return nullptr;
  }
  context_.count_sessions(1);
  context_.note_new_session();
  server->name_high = static_cast<uint32_t>(table_.put(terms.local_key, server) >> 32);
  return server;
}

void ServerSessions::answer(const nexus::ControlEvent& event, Server* server, const session::ServerTerms& terms) {
  nexus::SessionTerms answer;
  answer.transport = context_.port.transport;
  answer.address = context_.transport.address();
  answer.session_key = terms.local_key;
  answer.endpoint_id = context_.options.endpoint_id;
  answer.payload_bytes_max = terms.payload_bytes_max;
  answer.window = terms.window;
  answer.credits = credits_.start_limit(table_.size());
  answer.credit_unit = terms.credit_unit;
  if (answer.credit_unit == wire::kPacketCredits) {
    answer.credits = std::min(answer.credits, static_cast<uint8_t>(wire::kExactCreditsMax));
  }
  answer.first_number = terms.first_number;
  answer.path_token = terms.path_token;
  const Status status = context_.nexus.answer_connect(context_.port, event.token, {}, answer);
  if (!status.ok()) end(server, status, false);
}

// ---- The end of a session ----

constexpr Status kClosedByClient(Code::kSessionReset, "the client has closed the session");

void ServerSessions::on_disconnected(uint32_t key) {
  if (Server* server = table_.find(key); server != nullptr) {
    end(server, kClosedByClient, false);
  }
}

void ServerSessions::end_run(Run* run, Status status) {
  while (Server* server = run->servers.first()) {
    context_.counters.sessions_failed++;
    end(server, status, false);
  }
}

void ServerSessions::end_all(Status status) {
  table_.for_each([&](Server* server) { end(server, status, true); });
}

/// Ends a session, and announces that to the program at once, as the session's beginning was announced.
void ServerSessions::end(Server* server, Status status, bool tell_peer) {
  if (server->is_dead) return;
  server->is_dead = true;
  context_.ended.note(server->name(), status);
  table_.retire(server->session.local_key(), context_.now_ns);
  Offers offers(*this, server);
  server->session.end_all(offers);
  (server->is_pathless ? pathless_ : proved_).remove(server);
  if (proved_.first() == nullptr) sweep_at_ns_ = UINT64_MAX;
  const nexus::AddressText peer = server->run->address;
  Run* run = std::exchange(server->run, nullptr);
  run->servers.remove(server);
  run->server_sessions--;
  run->host->server_sessions--;
  peers_.leave(run);
  credits_.set_long_requests(pools_.assemblies.taken());
  if (tell_peer) context_.nexus.disconnect(context_.port, server->session.local_key(), false);
  context_.transport.disconnect(server->peer);
  if (server->has_pair_peer) context_.transport.disconnect(server->session.pair_peer());
  server->has_pair_peer = false;
  dead_.push_back(server);
  log_end(server, status, peer);
  if (!server->is_pathless) context_.announce({Session{server->name()}, false, SessionState::kEnded, status});
}

void ServerSessions::log_end(const Server* server, const Status& status, std::string_view peer) {
  const Session session{server->name()};
  const bool is_wanted = status == kClosedByClient || status.code() == Code::kCancelled;
  if (is_wanted) return context_.log.session(LogKind::kSessionClosed, session, false, peer, status);
  if (server->is_pathless) return context_.log.client_turned_away(LogKind::kSessionFailed, session, peer, status);
  context_.log.session(LogKind::kSessionLost, session, false, peer, status);
}

SessionInfo ServerSessions::info(Session session) const {
  const Server* server = table_.find_name(session.name);
  return server != nullptr ? info(server) : context_.ended.info(session);
}

SessionInfo ServerSessions::info(const Server* server) {
  SessionInfo info;
  info.state = server->is_pathless ? SessionState::kConnecting : SessionState::kOpen;
  info.window = static_cast<uint8_t>(server->session.window());
  info.packets_sent = server->session.packets_sent();
  info.packets_received = server->session.packets_received();
  info.long_bytes_sent = server->session.long_bytes_sent();
  info.long_bytes_received = server->session.long_bytes_received();
  info.peer = server->run->address.view();
  return info;
}

void ServerSessions::free_dead() {
  std::erase_if(dead_, [this](Server* server) {
    if (server->is_listed_to_send) return false;
    context_.count_sessions(-1);
    free(server);
    return true;
  });
}

void ServerSessions::finish_all() {
  for (Server* server : dead_) free(server);
  dead_.clear();
}

void ServerSessions::free(Server* server) {
  server->session.give_back(pools_);
  pool_.give(server);
}

bool ServerSessions::is_busy(uint64_t closing_since_ns) const {
  // A client asks at least every quarter of the liveness timeout. Two of its questions may be lost.
  const uint64_t quiet_ns = to_ns(context_.nexus.options().liveness_timeout) * 3 / 4;
  const uint64_t now_ns = context_.now_ns;
  bool is_busy = false;
  table_.for_each([&](Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      // A response may have packets that are not sent, lost, or being copied, until its client has reported it or has
      // not asked for it for some time. A failure does not matter, because the call may also fail with its session.
      const uint64_t asked_ns = std::max(slot->received_ns, std::min(closing_since_ns, now_ns));
      const bool is_wanted = server->session.is_to_leave(*slot) || slot->response_ticket > context_.released ||
                             now_ns - std::min(asked_ns, now_ns) < quiet_ns;
      const bool is_on_its_way = slot->phase == ServerSlot::Phase::kResponded && is_wanted;
      is_busy |= slot->call != nullptr || is_on_its_way;
    }
  });
  return is_busy;
}

// ---- Packets ----

void ServerSessions::on_packet(const wire::Header& header, const transport::Payload& payload) {
  Server* server = table_.find(header.session_key());
  if (server == nullptr) {
    context_.counters.dropped_unknown_session++;
    return;
  }
  Offers offers(*this, server);
  const session::ServerVerdict verdict = server->session.on_packet(header, payload, context_.now_ns, offers);
  if (verdict.drop != Drop::kNone) [[unlikely]]
    count_drop(context_.counters, verdict.drop);
  if (verdict.was_assembled) forget_claim(Budget::kArriving, verdict.message);
  if (server->is_pathless && server->session.is_open()) on_path_proved(server);
  if (verdict.drop == Drop::kNone) {
    if (!server->is_pathless) server->heard_ns = context_.now_ns;
    note_news(server, header, verdict.is_part);
  }
  if (verdict.wants_pair) return answer_pair_probe(server);
  if (verdict.has_paired) follow(server);
  if (verdict.is_part) {
    context_.last_part = header;
    credits_.hear_long(server->session.heard_long_epoch());
  }
  if (verdict.has_opened) credits_.hear_opening(server->session.heard_epoch);
  credits_.set_long_requests(pools_.assemblies.taken());
  // A session that is listed already, perhaps quietly, is not counted when its answer lists it.
  if (verdict.is_about_a_call && server->is_listed_to_send) hear_answered(server);
  if (verdict.started != nullptr) {
    const std::byte* data = verdict.message != nullptr ? verdict.message->data() : payload.data;
    return handlers_.run(server, verdict.started, data, verdict.started->request_bytes, verdict.message);
  }
  if (!server->session.wants_to_send()) return;
  if (verdict.is_about_a_call) {
    list_to_send(server);
  } else {
    list_to_send_quietly(server);
  }
}

/// A request beyond what the endpoint takes is refused before anything is allocated for it.
session::ServerOffers::RequestBuffer ServerSessions::Offers::buffer_for(const wire::Header& request, bool is_long) {
  const size_t bytes = request.message_bytes();
  const auto refuse = [](uint64_t& counter, wire::FailureCode code) -> RequestBuffer {
    counter++;
    return {nullptr, code};
  };
  EndpointContext& context = sessions_.context_;
  EndpointCounters& counters = context.counters;
  if (context.is_closing) return refuse(counters.refused_closing, wire::FailureCode::kClosing);
  const RequestRefusal why = sessions_.handlers_.refusal_of(request.request_type(), bytes);
  if (why.counter != nullptr) return refuse(*why.counter, why.code);
  const bool is_beyond = is_long && !sessions_.make_way_for_arriving(server_, bytes);
  detail::Buffer* buffer = is_beyond ? nullptr : context.mailbox->arena_for(request.request_type()).alloc(bytes);
  Claim* claim = nullptr;
  if (buffer != nullptr && is_long) {
    const uint32_t slot = request.request_number() & (wire::kSlotsMax - 1);
    claim = sessions_.peers_.claim(Budget::kArriving, server_->run, server_, slot, bytes, context.now_ns);
    if (claim == nullptr) detail::release_buffer(std::exchange(buffer, nullptr));
    if (claim != nullptr) set_claim(buffer, claim);
  }
  if (buffer == nullptr) return refuse(counters.refused_no_memory, wire::FailureCode::kNoMemory);
  return {buffer, {}, claim};
}

void ServerSessions::Offers::take_back_buffer(detail::Buffer* buffer, uint32_t, bool is_long) {
  if (is_long) sessions_.forget_claim(Budget::kArriving, buffer);
  detail::release_buffer(buffer);
}

void ServerSessions::Offers::take_back_response(detail::Buffer* response, uint64_t ticket) {
  if (is_counted(response)) sessions_.forget_claim(Budget::kResponses, response);
  sessions_.completions_.release_after(ticket, response);
}

void ServerSessions::Offers::abandon(void* call) { sessions_.handlers_.abandon(static_cast<Incoming*>(call), server_); }

bool ServerSessions::Offers::may_abandon(void* call) {
  return sessions_.may_abandon(static_cast<const Incoming*>(call), server_);
}

// ---- Answers, and the list of sessions that send ----

void ServerSessions::set_response(Server* server, ServerSlot* slot, detail::Buffer* buffer) {
  if (slot->response != nullptr) completions_.release_after(slot->response_ticket, take_response(slot));
  slot->response = buffer;
  slot->response_ticket = 0;
  slot->response_bytes = buffer->length_bytes;
  server->session.respond(slot);
}

/// Lists a session to send packets that answer no call. The session does not count as active for the credits.
void ServerSessions::list_to_send_quietly(Server* server) {
  if (server->is_listed_to_send) return;
  server->is_listed_to_send = true;
  to_send_.add(server);
  context_.agenda.disarm();
}

/// Lists a session with its first answer of this iteration.
void ServerSessions::add_to_send(Server* server) {
  server->is_listed_to_send = true;
  to_send_.add(server);
  if (server->session.heard_epoch != credits_.epoch()) [[unlikely]]
    return hear(server);
  context_.agenda.disarm();
}

/// Counts a session with its first answer of this credit epoch. A function of its own, so that add_to_send() ends with
/// a jump to it, and saves no registers.
void ServerSessions::hear(Server* server) {
  credits_.hear(server->session.heard_epoch);
  if (sweep_at_ns_ == UINT64_MAX) begin_sweep();
  sweep_keeps_some_ = true;  // the sweep may have passed the session already
  context_.agenda.disarm();
}

bool ServerSessions::start_credit_epoch() {
  return credits_.start_epoch(context_.now_ns,
                              {context_.counters.packets_received, context_.transport.downlink_bytes()});
}

// ---- Clients that are reached where their packets come from (clause 7.7.4) ----

/// Gives the source address of a short paired path probe a token of its own. The session's peer changes only when the
/// token comes back. There is one such address at a time. The address of the last token keeps it.
void ServerSessions::answer_pair_probe(Server* server) {
  TransportPort& transport = context_.transport;
  const auto peer = transport.connect_back(server->peer);
  if (!peer.ok()) return;
  uint32_t token = server->session.pair_token();
  // The address of the last token keeps it, also once it has become the session's peer.
  const bool has_token = server->session.has_pair_token() && *peer == server->session.pair_peer();
  if (has_token) {
    transport.disconnect(*peer);  // one reference is enough
  } else {
    const uint64_t random = context_.nexus.environment().random();
    if (random == 0) return transport.disconnect(*peer);  // the system refuses random numbers
    if (server->has_pair_peer) transport.disconnect(server->session.pair_peer());
    server->has_pair_peer = true;
    server->session.pair_peer() = *peer;
    token = static_cast<uint32_t>(random) & wire::kTokenMask;
  }
  server->session.owe_pair_reply(token);
  list_to_send_quietly(server);
}

/// Sends all packets from now on to the address of the last token, because the client receives there.
void ServerSessions::follow(Server* server) {
  if (!server->has_pair_peer) return;  // followed already
  server->has_pair_peer = false;
  if (server->session.pair_peer() != server->peer) {
    context_.counters.paths_followed++;
    context_.log.session(LogKind::kPathMoved, Session{server->name()}, false, server->run->address);
  }
  context_.transport.disconnect(std::exchange(server->peer, server->session.pair_peer()));
}

// ---- For tests ----

size_t ServerSessions::requests_open() const {
  size_t count = 0;
  table_.for_each([&](const Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      count += slot != nullptr && session::ServerSession::is_busy(*slot);
    }
  });
  return count;
}

void ServerSessions::check_invariants() const {
  Names<Server> known;
  size_t live = 0, waiting = 0, held = 0;
  table_.for_each([&](const Server* server) {
    known.add(server);
    live++;
    CHECK(!server->is_dead);
    server->session.check_invariants();
    if (server->session.holds_return()) CHECK(server->is_in_held);
    held += server->is_in_held;
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      if (i == 0) CHECK(reinterpret_cast<uintptr_t>(slot) % 64, ==, 0u);  // a request touches one line of it
      const auto* incoming = static_cast<const Incoming*>(slot->call);
      // The application has a request of this slot if and only if the slot is running.
      CHECK(incoming != nullptr, ==, slot->phase == ServerSlot::Phase::kRunning);
      if (incoming == nullptr) continue;
      CHECK(incoming->server == server && incoming->slot == slot);
      CHECK(incoming->mailbox == context_.mailbox && incoming != handlers_.record());
      CHECK(!incoming->is_cancelled.load(std::memory_order_relaxed));
      waiting += incoming->waits_in_loop;
    }
  });
  CHECK(live, ==, table_.size());
  CHECK(live, <=, context_.options.server_sessions_max);
  handlers_.check_invariants(waiting);
  CHECK(held, <=, held_.size());
  if (!held_.empty()) CHECK(context_.agenda.next_ns(), <=, std::max(held_.front().until_ns, context_.now_ns));
  for (const Server* server : dead_) {
    known.add(server);
    CHECK(server->is_dead);
  }
  known.sort();
  CHECK(known.items().size(), ==, pool_.taken());
  const auto to_send = names_of<Server>(to_send_);
  check_known(to_send, known);
  for (const Server* server : known.items()) CHECK(to_send.count(server) == 1, ==, server->is_listed_to_send);
  check_claims();
  check_paths();
}

}  // namespace tern::rpc
