// ClientSessions: from the answer of the server's Nexus to a proved path (docs/protocol.md, 7.7).

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/address.h"
#include "base/status_text.h"
#include "rpc/client_sessions.h"
#include "rpc/handshake.h"

namespace tern::rpc {

using session::ClientSession;

namespace {

/// Time between two steps of a session that is being opened.
constexpr uint64_t kOpenStepNs = 100'000;
constexpr uint64_t kPathProbeGapNsMax = 20'000'000;
/// The data address may take this many times the handshake's time to answer.
constexpr uint64_t kPatienceHandshakes = 4;
/// After this many handshakes (of two round trips each) or RTOs without an answer, the client tries one address and
/// port pair. It keeps one short path probe for that.
constexpr uint64_t kPairHandshakes = 3;
constexpr uint64_t kPairRtos = 4;
constexpr uint8_t kPairedProbes = 1;
/// Full packets count as not passing when their answers take this many times the round trip of a short probe.
constexpr uint64_t kFullProbeTimes = 8;

constexpr Status kPeerGone(
    Code::kPeerUnreachable,
    "the peer's data-path address cannot be reached, or its endpoint ended while the session was opening");

/// Returns the transport's remedy for a refusal. Empty: there is none.
std::string_view remedy_of(const transport::Remedies& remedies, wire::Refusal refusal) {
  switch (refusal) {
    case wire::Refusal::kOtherUser:
      return remedies.other_user;
    case wire::Refusal::kOtherHost:
      return remedies.other_host;
    case wire::Refusal::kNoWayBack:
      return remedies.no_way_back;
    case wire::Refusal::kOtherFabric:
      return remedies.other_fabric;
    case wire::Refusal::kOtherPartition:
      return remedies.other_partition;
    default:
      return {};
  }
}

}  // namespace

// ---- The handshake ----

void ClientSessions::on_connect_result(const nexus::ControlEvent& event) {
  Client* client = table_.find(event.local_key);
  if (client == nullptr || client->is_accepted) return;
  const auto& terms = event.terms;
  if (!event.status.ok()) {
    // The server has accepted the session, and has given it up before its answer came. The patience doubles each time,
    // so a server that always does this is asked a few times only.
    const Opening& opening = *client->opening();
    const bool is_given_up = event.status.code() == Code::kSessionReset && opening.patience_ns < opening.timeout_ns;
    if (is_given_up && opening.is_in_time(context_.now_ns)) return begin_handshake_anew(client);
    client->is_refused = event.refusal != wire::Refusal::kNone || event.status.code() == Code::kRefused;
    const char* text = wire::refusal_text(event.refusal);
    const std::string_view remedy = remedy_of(context_.transport.remedies(), event.refusal);
    if (remedy.empty()) return fail(client, event.status, false);
    return fail(client, base::status_of(event.status.code(), text, {text, remedy}), false);
  }
  client->is_accepted = true;
  context_.note_new_session();
  if (Status status = refusal_of_terms(client, terms); !status.ok()) return fail(client, status, true);
  Run* run = peers_.join(event.peer.address.view(), event.peer.boot_id);
  if (run == nullptr) return fail(client, kNoMemory, true);
  join_run(client, run);
  auto peer = context_.transport.connect(terms.address, base::host_of(event.peer.address.view()));
  if (!peer.ok()) return fail(client, peer.status(), true);
  client->peer = *peer;
  client->has_peer = true;
  if (terms.payload_bytes_max > context_.transport.payload_bytes_max(*peer)) {
    const Status contradiction(Code::kRefused,
                               "the server's terms contradict each other: the payload of its packets does not fit the "
                               "datagram size in its data-path address");
    return fail(client, contradiction, true);
  }
  client->session.on_accepted(
      {terms.session_key, terms.payload_bytes_max, terms.window, terms.credits, terms.first_number, terms.path_token,
       terms.credit_unit, context_.transport.large_payload_bytes(*peer)},
      context_.now_ns);
  begin_path_proof(client, event);
}

/// Returns the reason to refuse the server's terms. OK: they are within the client's wish.
Status ClientSessions::refusal_of_terms(const Client* client, const nexus::SessionTerms& terms) const {
  if (terms.payload_bytes_max < wire::kPayloadBytesMin ||
      terms.payload_bytes_max > context_.transport.payload_bytes_max() || terms.window < 1 ||
      terms.window > client->session.window() || terms.credits < 1) {
    return {Code::kRefused, "the server's terms are outside of what this version asked for"};
  }
  return {};
}

/// Asks the server for another session. The data address has had the few headers that an address gets before it
/// answers, and they or their answers were lost; or it takes long; or the server needed the session's place.
void ClientSessions::begin_handshake_anew(Client* client) {
  Opening& opening = *client->opening();
  opening.limit(context_.now_ns);
  const uint32_t key = client->session.local_key();
  if (client->is_accepted) context_.nexus.disconnect(context_.port, key, true);
  note_path_error(client);
  if (client->has_peer) context_.transport.disconnect(client->peer);
  client->has_peer = false;
  client->is_accepted = false;
  if (client->run != nullptr) leave_run(client);
  opening.patience_ns *= 2;
  opening.asked_at_ns = context_.now_ns;
  RandomNumbers random(context_.nexus.environment());
  opening.wish.first_number = random() & wire::kNumberMask;
  client->session.start_over(opening.wish.first_number, opening.wish.window);
  Status status = random.has_failed()
                      ? Status(Code::kUnavailable,
                               "the system gives no random numbers for another handshake: allow getrandom(2) or "
                               "/dev/urandom in the sandbox")
                      : context_.nexus.connect(context_.port, opening.nexus_addresses, opening.peer_endpoint,
                                               opening.wish, opening.until_ns - context_.now_ns);
  if (!status.ok()) fail(client, status, false);
}

// ---- The proof of the path ----

void ClientSessions::begin_path_proof(Client* client, const nexus::ControlEvent& event) {
  const uint64_t now_ns = context_.now_ns;
  const uint64_t rto_ns = context_.rto_ns_min;
  Opening& opening = *client->opening();
  const uint64_t handshake_ns = now_ns - opening.asked_at_ns;
  opening.limit(now_ns);
  // The gap is longer than about a round trip, because the server answers few short probes, and losses come in bursts.
  opening.path_probe_gap_ns = std::max(rto_ns, std::min(handshake_ns, kPathProbeGapNsMax));
  opening.next_path_probe_ns = now_ns;
  opening.patience_ns = std::max(opening.patience_ns, kPatienceHandshakes * handshake_ns);
  opening.over_at_ns = now_ns + opening.patience_ns;
  opening.proof_began_ns = now_ns;
  opening.pair_at_ns = now_ns + std::max(kPairHandshakes * handshake_ns, kPairRtos * rto_ns);
  opening.nexus_address = event.peer.address;
  opening.data_address = event.terms.address;
  opening.has_paired = false;
  if (!client->is_opening) opening_.push_back(client);
  client->is_opening = true;
  step_opening(client);
}

void ClientSessions::run_opening() {
  if (!backing_off_.empty()) run_backing_off();
  for (size_t i = 0; i < opening_.size();) {
    Client* client = opening_[i];
    if (!client->is_dead && client->session.state() != ClientSession::State::kOpen) {
      if (client->is_accepted) step_opening(client);
      i++;
      continue;
    }
    client->is_opening = false;
    client->extras->opening.reset();
    client->drop_empty_extras();
    opening_[i] = opening_.back();
    opening_.pop_back();
  }
}

/// Takes the next step of the path proof. A session is open once a full packet has been answered by a full packet
/// (clause 7.7).
void ClientSessions::step_opening(Client* client) {
  const uint64_t now_ns = context_.now_ns;
  Opening& opening = *client->opening();
  if (now_ns >= opening.until_ns) {
    note_path_error(client);
    const Status why = why_no_path(client);
    if (is_path_narrow(client)) log_narrow_path(client, why);
    return fail(client, why, true);
  }
  context_.agenda.at_latest(now_ns + kOpenStepNs);
  switch (context_.transport.peer_state(client->peer)) {
    case transport::PeerState::kConnecting:
      return;
    case transport::PeerState::kDead:
      return fail(client, why_dead(client), true);
    case transport::PeerState::kReady:
      break;
  }
  const auto may_pair = [&] {
    return context_.transport.can_pair() && !client->session.is_paired() && !client->session.is_path_answered();
  };
  if (may_pair() && now_ns >= opening.pair_at_ns) {
    pair_path(client);
  } else if (now_ns < opening.next_path_probe_ns) {
    return;
  }
  const bool is_last_kept = may_pair() && client->session.short_probes_left() <= kPairedProbes;
  if (is_last_kept || !client->session.may_probe_path()) {
    if (now_ns >= opening.over_at_ns) begin_handshake_anew(client);
    return;
  }
  list_path_probe(client);
  opening.next_path_probe_ns = now_ns + opening.path_probe_gap_ns;
  opening.path_probe_gap_ns = std::min(4 * opening.path_probe_gap_ns, kPathProbeGapNsMax);
}

void ClientSessions::list_path_probe(Client* client) {
  if (!client->is_in_path_probes) path_probes_.push_back(client);
  client->is_in_path_probes = true;
}

/// Changes to one address and port pair, because no answer has come: filters or a NAT on the path may pass answers only
/// to the address that a packet came from (clause 7.7.4). Changes nothing if the transport cannot connect such a peer.
void ClientSessions::pair_path(Client* client) {
  Opening& opening = *client->opening();
  opening.pair_at_ns = UINT64_MAX;
  auto peer = context_.transport.connect_paired(opening.data_address, base::host_of(opening.nexus_address.view()));
  if (!peer.ok()) return;
  note_path_error(client);
  context_.transport.disconnect(std::exchange(client->peer, *peer));
  client->session.pair();
  opening.has_paired = true;
}

void ClientSessions::on_path_verdict(Client* client, ClientSession::PathVerdict verdict) {
  switch (verdict) {
    case ClientSession::PathVerdict::kOpened:
      if (client->session.is_paired()) context_.counters.sessions_paired++;
      if (client->reconnect() != nullptr) client->reconnect()->opened_ns = context_.now_ns;
      log_opened(client);
      context_.announce({Session{client->public_name()}, true, SessionState::kOpen, {}});
      resume_waiters(client, {});
      return start_queued(client);
    case ClientSession::PathVerdict::kDropped:
      context_.counters.dropped_stale++;
      return;
    case ClientSession::PathVerdict::kFound:
      if (client->session.state() != ClientSession::State::kOpen) return;  // the next probe uses the new token
      client->is_pair_probe_due = true;
      return list_path_probe(client);
    case ClientSession::PathVerdict::kFollowed:
    case ClientSession::PathVerdict::kConfirmed:
      return after_input(client);
    case ClientSession::PathVerdict::kAnswered:
      return on_path_answered(client);
  }
}

/// Called after the data address has answered a short probe. The next probes may be of full length.
void ClientSessions::on_path_answered(Client* client) {
  Opening& opening = *client->opening();
  if (opening.has_paired && !client->session.is_paired()) {
    // This is a late answer to an earlier probe.
    auto peer = context_.transport.connect(opening.data_address, base::host_of(opening.nexus_address.view()));
    if (peer.ok()) context_.transport.disconnect(std::exchange(client->peer, *peer));
  }
  opening.path_answered_ns = context_.now_ns;
  opening.next_path_probe_ns = context_.now_ns;
  opening.path_probe_gap_ns = context_.rto_ns_min;
  step_opening(client);
}

// ---- Reasons why a session did not open ----

void ClientSessions::note_path_error(Client* client) {
  if (!client->has_peer) return;
  const transport::PathError error = context_.transport.take_path_error(client->peer);
  if (error != transport::PathError::kNone) client->opening()->path_error = error;
}

/// The error of a session whose peer died before the session opened.
Status ClientSessions::why_dead(const Client* client) const {
  const Status why = context_.transport.peer_failure(client->peer);
  if (why.ok()) return kPeerGone;
  return base::status_of(Code::kPeerUnreachable, "the peer's data-path address cannot be reached",
                         {"the peer's data-path address cannot be reached: ", why.message()});
}

/// True if a short probe was answered, but there was no time for the answer to a full probe.
bool ClientSessions::is_path_slow(const Client* client) const {
  const Opening& opening = *client->opening();
  const uint64_t short_ns = opening.path_answered_ns - opening.proof_began_ns;
  return client->session.is_path_answered() && context_.now_ns - opening.path_answered_ns < kFullProbeTimes * short_ns;
}

/// True if short packets pass, but full packets do not.
bool ClientSessions::is_path_narrow(const Client* client) const {
  const bool may_be =
      client->session.is_path_answered() || client->opening()->path_error == transport::PathError::kTooLong;
  return may_be && !is_path_slow(client);
}

/// The error of a session that the server accepted but that did not open in time.
Status ClientSessions::why_no_path(const Client* client) const {
  const std::string port = client->has_peer ? std::to_string(context_.transport.port_of(client->peer)) : "?";
  const transport::PathError error = client->opening()->path_error;
  const transport::Remedies& remedies = context_.transport.remedies();
  const auto unreachable = [](const char* otherwise, std::initializer_list<std::string_view> text) {
    return base::status_of(Code::kPeerUnreachable, otherwise, text);
  };
  if (is_path_slow(client)) {
    const uint64_t short_ns = client->opening()->path_answered_ns - client->opening()->proof_began_ns;
    const std::string ms = std::to_string(short_ns / 1'000'000);
    return unreachable("the data path is too slow for the connect timeout: raise SessionOptions::connect_timeout",
                       {"the data path is too slow for the connect timeout: an answer took ", ms,
                        " ms; raise SessionOptions::connect_timeout"});
  }
  if (is_path_narrow(client)) {
    const std::string bytes = std::to_string(client->session.payload_bytes_max() + wire::kHeaderBytes);
    return unreachable("full packets do not pass the data path: its MTU is too small for them",
                       {"short packets pass the data path, but packets of ", bytes,
                        " bytes do not: its MTU is too small; raise it, or make the transport's packets shorter",
                        remedies.packet_bytes});
  }
  switch (error) {
    case transport::PathError::kForbidden:
      return unreachable(
          "a firewall of this host blocks packets to the server's data port",
          {"a firewall of this host blocks packets to the server's data port: allow packets to UDP port ", port,
           " to leave"});
    case transport::PathError::kRefused:
      return unreachable(
          "packets to the server's data port are rejected",
          {"packets to the server's data port are rejected: the server's firewall must allow packets to UDP port ",
           port, remedies.address});
    case transport::PathError::kUnreachable:
      return unreachable("no route leads to the server's data address",
                         {"no route leads to the server's data address (UDP port ", port,
                          "), though one leads to its Nexus", remedies.address});
    case transport::PathError::kNone:
    case transport::PathError::kTooLong:
      break;
  }
  if (!context_.transport.can_pair()) return {Code::kPeerUnreachable, "no answer came on the data path"};
  return unreachable(
      "no answer came on the data path: a firewall filters the server's data port",
      {"no answer came on the data path: packets to UDP port ", port,
       " of the server, or its answers from there, are filtered; docs/network.md has rules for firewalls",
       remedies.address});
}

}  // namespace tern::rpc
