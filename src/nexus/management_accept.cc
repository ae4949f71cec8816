// The server side of the handshake: requests, cookies, limits, and the endpoint's answer (docs/protocol.md, 7.3).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "nexus/management.h"
#include "nexus/management_terms.h"

namespace tern::nexus {

namespace {
using wire::ManagementKind;
using wire::ManagementMessage;
using wire::Refusal;

/// Makes the reply to a client for which there is no session here.
ManagementMessage reply_to_request(const ManagementMessage& request, ManagementKind kind) {
  ManagementMessage reply;
  reply.kind = kind;
  reply.receiver_run = request.sender_run;
  reply.token = request.token;
  reply.to_endpoint = request.terms.endpoint_id;
  reply.to_key = request.terms.session_key;
  return reply;
}
}  // namespace

/// Queues a connect request until all other datagrams that have arrived are handled, so that a flood of requests delays
/// no ping (clause 7.3.7).
void Management::take_request(std::string_view from, const ManagementMessage& m, Duration now) {
  const uint32_t peer = relation_named(from, m);
  if (peer != kNone) hear(peers_[peer], now);  // a peer that repeats its request is alive
  base::RingQueue<Arrival>& queue = peer != kNone ? of_peers_ : of_strangers_;
  if (queue.size() >= options_.requests_waiting_max) {
    counters_.over_limit++;
    return;
  }
  queue.push({from, m});
}

void Management::on_requests(Duration now) {
  for (base::RingQueue<Arrival>* queue : {&of_peers_, &of_strangers_}) {
    for (size_t i = 0; i < options_.requests_per_turn && !queue->empty(); i++) {
      const Arrival arrival = queue->pop();
      if (reserve_notices()) on_connect_request(arrival.from, arrival.request, now);
    }
  }
}

/// Returns the relation if the request's sender has proved that it is the other side; otherwise kNone. The proof is
/// this side's run, or the relation's address together with the peer's run, which a stranger cannot guess.
uint32_t Management::relation_named(std::string_view from, const ManagementMessage& request) const {
  if (request.receiver_run != 0) {
    // The relation that the request names counts. Another relation may have the peer's run, and be unknown to the peer.
    const uint32_t peer = peer_of_run(request.receiver_run);
    return peer != kNone && peers_[peer].remote_run == request.sender_run ? peer : kNone;
  }
  for (uint32_t at = first_peer_at(from); at != kNone; at = peers_[at].next) {
    if (peers_[at].remote_run == request.sender_run) return at;
  }
  return kNone;
}

/// Returns a relation for a request under a run that is new here: a relation at this address that does not know its
/// other side yet, or a new relation. The sender may have restarted, so this side pings the runs that are known at this
/// address at once (clause 7.5.4). Returns kNone because of a limit, or if there is no memory.
uint32_t Management::relation_begun(std::string_view from, Duration now) {
  uint32_t blank = kNone, relations = 0;
  for (uint32_t at = first_peer_at(from); at != kNone; at = peers_[at].next, relations++) {
    if (peers_[at].remote_run == 0) {
      blank = at;
    } else {
      probe(at, now);
    }
  }
  if (blank != kNone) return blank;
  if (relations >= options_.peers_per_port_max) {
    counters_.over_limit++;  // the request is lost; the probes above find dead relations
    return kNone;
  }
  return new_peer(AddressText(from), true, now);
}

Refusal Management::limit_of(uint32_t peer, std::string_view from) const {
  if (sessions_live_ >= options_.sessions_max) return Refusal::kNexusFull;
  const auto found = peer == kNone ? sources_.find(source_of(from)) : sources_.end();
  const Source* source = peer != kNone ? peers_[peer].source : found != sources_.end() ? &found->second : nullptr;
  if (source != nullptr && source->sessions >= options_.sessions_per_address_max) return Refusal::kSessionsPerAddress;
  if (peer != kNone) return Refusal::kNone;
  if (source != nullptr && source->peers >= options_.peers_per_address_max) return Refusal::kPeersPerAddress;
  return peers_by_run_.size() >= options_.peers_max ? Refusal::kNexusFull : Refusal::kNone;
}

/// Until the sender has echoed a cookie, the server keeps nothing, asks no endpoint, and sends less than it received
/// (clause 7.3.2). Until the endpoint is asked, the server keeps a relation at most.
void Management::on_connect_request(std::string_view from, const ManagementMessage& m, Duration now) {
  uint32_t peer = relation_named(from, m);
  if (peer == kNone && m.receiver_run != 0) {
    counters_.stale++;
    return send_refusal(from, m, Refusal::kStaleRun);  // the client names a relation that has ended (clause 7.5.4)
  }
  if (peer != kNone && answer_repetition(from, peer, m)) return;
  const auto found_endpoint = endpoints_.find(m.to_endpoint);
  if (found_endpoint == endpoints_.end()) {
    // The process may still be starting. The request is lost, and the client repeats it (clause 7.3.3).
    if (!has_had_endpoint_) return;
    return send_refusal(from, m, Refusal::kNoSuchEndpoint);
  }
  LocalEndpoint& endpoint = found_endpoint->second;
  if (m.version_min > options_.version_max || m.version_max < options_.version_min) {
    return send_refusal(from, m, Refusal::kNoCommonVersion);
  }
  if (endpoint.transport != m.terms.transport_name()) return send_refusal(from, m, Refusal::kTransportMismatch);
  if (peer == kNone && !cookies_.is_good(m.cookie, from, m.token, m.sender_run, now)) {
    return send_cookie(from, m, now);
  }
  if (const Refusal limit = limit_of(peer, from); limit != Refusal::kNone) {
    counters_.over_limit++;
    return send_refusal(from, m, limit);
  }
  if (endpoint.asked >= options_.asked_max) {
    counters_.over_limit++;  // the request is lost; the client repeats it when the endpoint has caught up
    return;
  }
  if (peer == kNone) peer = relation_begun(from, now);
  if (peer == kNone) return;
  if (peers_[peer].source->asked >= options_.asked_per_address_max) {
    counters_.over_limit++;
    return;
  }
  if (peers_[peer].remote_run == 0) adopt(peer, m.sender_run, now);
  ask_endpoint(endpoint, peer, m, now);
}

/// Returns true if the request has been received before. It is then answered again if there is an answer, at its own
/// source, because the client's NAT may have changed its address.
bool Management::answer_repetition(std::string_view from, uint32_t peer, const ManagementMessage& m) {
  const uint32_t found = find_request(m.token, peer);
  if (found == kNone) return false;
  counters_.repeated++;
  const Session& session = sessions_[found];
  const bool is_same = session.remote_key == m.terms.session_key && session.remote_endpoint == m.terms.endpoint_id;
  if (is_same && session.state != State::kAsked) send_reply(from, found);
  return true;
}

/// Makes the record of a new session, and passes the request on to its endpoint. If there is no memory, the request is
/// lost.
void Management::ask_endpoint(LocalEndpoint& endpoint, uint32_t peer, const ManagementMessage& m, Duration now) {
  const uint32_t index = new_session(peer, m.to_endpoint, State::kAsked, false, now);
  if (index == kNone) return;
  endpoint.asked++;
  peers_[peer].source->asked++;
  Session& session = sessions_[index];
  session.token = m.token;
  sessions_by_request_.add(sessions_, index, [this](const Session& any) { return request_hash(any); });
  session.remote_endpoint = m.terms.endpoint_id;
  session.remote_key = m.terms.session_key;
  session.version = std::min(m.version_max, options_.version_max);
  ControlEvent event = event_of(session, ControlEvent::Kind::kConnectRequest, {});
  event.token = cookie_of(index);
  event.terms = from_wire(m.terms);
  notify(m.to_endpoint, std::move(event));
}

// ---- Answers ----

bool Management::answer_connect(EndpointName from, uint64_t token, Refusal refusal, const SessionTerms& terms,
                                Duration now) {
  see(now);
  LocalEndpoint* endpoint = find_endpoint(from);
  if (endpoint == nullptr) return true;
  const bool is_done = answer_session(*endpoint, from, token, refusal, terms, now);
  if (is_done) {
    CHECK(endpoint->asked, >, 0u);
    endpoint->asked--;
  }
  return is_done;
}

/// answer_connect() for an endpoint that is there.
bool Management::answer_session(LocalEndpoint& endpoint, EndpointName from, uint64_t token, Refusal refusal,
                                const SessionTerms& terms, Duration now) {
  const auto index = static_cast<uint32_t>(token);
  if (index >= sessions_.size() || cookie_of(index) != token) return true;
  if (!reserve_notices()) return false;
  Session& session = sessions_[index];
  // The client's Nexus is gone, and the endpoint has been notified, so there is nothing to do.
  if (session.state != State::kAsked || session.local_endpoint != from.id) return true;
  const auto refuse = [&](Refusal why) {
    session.refusal = why;
    end_session(index, now);
    counters_.refused++;
    send_first_reply(index);
    return true;
  };
  if (refusal != Refusal::kNone) return refuse(refusal);
  wire::ManagementTerms offered;
  const bool is_known = find_key(from.id, false, terms.session_key) != kNone;
  if (!to_wire(terms, offered) || offered.credits == 0 || is_known || endpoint.offers.size() >= kOffersMax) {
    // The terms cannot be encoded, the key is taken, or there is no place for another offer. The endpoint's session
    // ends, because the client never learns of it.
    ControlEvent event = event_of(session, ControlEvent::Kind::kDisconnected, {});
    event.local_key = terms.session_key;
    notify(from.id, std::move(event));
    return refuse(Refusal::kOther);
  }
  const uint32_t offer = offer_of(endpoint, terms);
  if (offer == kNone) return false;
  leave_keys(index);
  set_state(index, State::kUnconfirmed, now);
  session.offer = offer;
  session.local_key = terms.session_key;
  enter_keys(index);
  session.payload_bytes_max = terms.payload_bytes_max;
  session.window = terms.window;
  session.credits = terms.credits;
  session.first_number = terms.first_number;
  session.path_token = terms.path_token;
  send_first_reply(index);
  repeat_later(index, kConfirmIntervals, now);
  return true;
}

/// Returns the index of the endpoint's offer with the transport, address and unit of these terms. kNone: there is no
/// memory.
uint32_t Management::offer_of(LocalEndpoint& endpoint, const SessionTerms& terms) {
  std::vector<Offer>& offers = endpoint.offers;
  const auto found = std::find_if(offers.begin(), offers.end(), [&](const Offer& offer) {
    return offer.transport == terms.transport && offer.address.size == terms.address.size &&
           offer.address.bytes == terms.address.bytes && offer.credit_unit == terms.credit_unit;
  });
  const auto index = static_cast<uint32_t>(found - offers.begin());
  if (found != offers.end()) return index;
  if (!base::try_grow([&] { offers.push_back({terms.transport, terms.address, terms.credit_unit}); })) return kNone;
  return index;
}

/// Sends the endpoint's answer as soon as it is there. A client that has left the relation's address gets it when it
/// repeats its request.
void Management::send_first_reply(uint32_t index) {
  const Peer& peer = peers_[sessions_[index].peer];
  if (!has_left_address(peer)) send_reply(peer.address, index);
}

void Management::send_reply(std::string_view to, uint32_t index) {
  const Session& session = sessions_[index];
  ManagementMessage m = message_of(ManagementKind::kConnectReply, peers_[session.peer], session.token);
  m.to_endpoint = session.remote_endpoint;
  m.to_key = session.remote_key;
  m.version_min = session.version;
  m.refusal = session.state == State::kClosing ? Refusal::kSessionClosed : session.refusal;
  m.code = refusal_code(m.refusal);
  if (m.refusal == Refusal::kNone) {
    SessionTerms terms;
    const Offer& offer = endpoints_.find(session.local_endpoint)->second.offers[session.offer];
    terms.transport = offer.transport;
    terms.address = offer.address;
    terms.session_key = session.local_key;
    terms.endpoint_id = session.local_endpoint;
    terms.payload_bytes_max = session.payload_bytes_max;
    terms.window = session.window;
    terms.credits = session.credits;
    terms.first_number = session.first_number;
    terms.path_token = session.path_token;
    terms.credit_unit = offer.credit_unit;
    CHECK(to_wire(terms, m.terms));  // answer_connect() has tested them
  }
  send(to, m);
}

void Management::send_cookie(std::string_view to, const ManagementMessage& request, Duration now) {
  counters_.cookies++;
  ManagementMessage m = reply_to_request(request, ManagementKind::kCookie);
  m.cookie = cookies_.make(to, request.token, request.sender_run, now);
  send(to, m);
}

void Management::send_refusal(std::string_view to, const ManagementMessage& request, Refusal refusal) {
  counters_.refused++;
  // A client that names an ended relation is not refused, but asks again.
  if (refusal != Refusal::kStaleRun) note_refusal(to, request.to_endpoint, refusal);
  ManagementMessage m = reply_to_request(request, ManagementKind::kConnectReply);
  m.code = refusal_code(refusal);
  m.refusal = refusal;
  m.version_min = options_.version_max;
  send(to, m);
}

void Management::note_refusal(std::string_view client, uint16_t endpoint, Refusal refusal) {
  if (!refusals_told_.may_tell(static_cast<uint64_t>(std::max(seen_at_, Duration(0)).count()))) return;
  Happening* happening = add_happening(LogKind::kSessionRefused);
  if (happening == nullptr) return;
  happening->peer = client;
  happening->endpoint = endpoint;
  if (const auto found = endpoints_.find(endpoint); found != endpoints_.end()) {
    happening->transport = found->second.transport;
  }
  happening->status = refusal_status(refusal);
  happening->left_out = refusals_told_.take_left_out();
}

}  // namespace tern::nexus
