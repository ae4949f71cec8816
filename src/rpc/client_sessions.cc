#include "rpc/client_sessions.h"

#include <bit>
#include <new>

#include "base/check.h"
#include "base/slab.h"
#include "base/try.h"
#include "rpc/check_options.h"
#include "rpc/handshake.h"
#include "rpc/names.h"
#include "wire/credits.h"

namespace tern::rpc {

using session::ClientSession;

namespace {

/// The first patience for an answer of a data address is the smaller of this and the connect timeout over
/// kPathPatienceParts. A short failure of the network that loses all probes of a handshake must not end the session.
constexpr uint64_t kPathPatienceNsMin = 50'000'000;
constexpr uint64_t kPathPatienceParts = 8;
/// 8 packets of 64 kB in flight keep one copy through shared memory at full speed. More packets only push the data out
/// of the cache (measured, ANCHORS: 8 in rotation 95-100 % of a bare copy, 32 in rotation 33-51 %).
constexpr uint32_t kBulkBytes = 512u << 10;
constexpr uint32_t kBulkPacketsMin = 8;
/// A client without an answer for this time falls back to its initial credit limit, if the downlink decides the limit.
constexpr uint64_t kCreditsLastNs = 4 * session::CreditPolicy::kDownlinkEpochNs;
/// Flows come and go in this many target delays (1 ms in a datacenter).
constexpr uint64_t kCongestionTargets = 50;

bool has_calls(const Client* client) {
  if (client->has_queue()) return true;
  for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
    if (has_call(*client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))))) return true;
  }
  return false;
}

}  // namespace

// ---- The beginning ----

/// Reads the URI of a session. May throw std::bad_alloc.
Status ClientSessions::find_nexus(std::string_view uri, Opening& opening) {
  auto parsed = nexus::parse_uri(uri);
  if (!parsed.ok()) return parsed.status();
  if (parsed->port == 0) {
    return {Code::kMisuse, "port 0 names no server: use the port that the server's Nexus::uri() shows"};
  }
  auto addresses = context_.nexus.environment().resolve_all(parsed->host_and_port);
  if (!addresses.ok()) return addresses.status();
  opening.nexus_addresses.assign(addresses->begin(), addresses->end());
  opening.peer_endpoint = parsed->endpoint_id;
  return {};
}

Result<Session> ClientSessions::create(std::string_view uri, const SessionOptions& options) {
  if (context_.is_closing) return Status(Code::kSessionReset, "the endpoint is closing");
  if (const Status status = check(options); !status.ok()) return status;
  auto opening = std::unique_ptr<Opening>(new (std::nothrow) Opening);
  Status status = kNoMemory;
  const bool is_parsed = opening != nullptr && base::try_grow([&] { status = find_nexus(uri, *opening); });
  if (!is_parsed || !status.ok()) return is_parsed ? status : kNoMemory;
  context_.read_clock_outside_loop();
  context_.note_new_session();
  auto begun = begin(opening, options);
  if (!begun.ok()) return begun.status();
  Client* client = *begun;
  status = options.reconnect ? keep_connecting(client, options) : Status();
  if (status.ok()) status = ask_nexus(client);
  if (status.ok()) return Session{client->public_name()};
  forget_reconnect(client);
  table_.erase(static_cast<uint32_t>(client->name()));
  free(client);
  return status;
}

/// Makes a session that has a name, but has not asked the Nexus yet. Takes `opening` if it succeeds.
Result<Client*> ClientSessions::begin(std::unique_ptr<Opening>& opening, const SessionOptions& options) {
  RandomNumbers random(context_.nexus.environment());
  session::ClientTerms terms = terms_of(options);
  terms.first_number = random() & wire::kNumberMask;
  terms.seed = random();
  const bool has_key = table_.draw(context_.now_ns, random, &terms.local_key);
  if (random.has_failed())
    return Status(
        Code::kUnavailable,
        "the system gives no random numbers for another session: allow getrandom(2) or /dev/urandom in the sandbox");
  auto extras = std::unique_ptr<ClientExtras>(new (std::nothrow) ClientExtras);
  Client* client = has_key && extras != nullptr ? make(terms) : nullptr;
  if (client == nullptr) return kNoMemory;
  opening->timeout_ns = to_ns(options.connect_timeout);
  opening->patience_ns = std::min(kPathPatienceNsMin, opening->timeout_ns / kPathPatienceParts);
  opening->wish = wish_of(terms);
  extras->opening = std::move(opening);
  client->extras = std::move(extras);
  client->name_high = static_cast<uint32_t>(table_.put(terms.local_key, client) >> 32);
  client->is_backing_off = true;
  return client;
}

/// Asks the server's Nexus for a session.
Status ClientSessions::ask_nexus(Client* client) {
  Opening& opening = *client->opening();
  opening.asked_at_ns = context_.now_ns;
  Status status = context_.nexus.connect(context_.port, opening.nexus_addresses, opening.peer_endpoint, opening.wish,
                                         opening.timeout_ns);
  if (status.ok()) client->is_backing_off = false;
  return status;
}

/// Returns the terms of a session, without the random ones.
session::ClientTerms ClientSessions::terms_of(const SessionOptions& options) const {
  const TransportPort& transport = context_.transport;
  session::ClientTerms terms;
  terms.window = options.window;
  terms.rto_ns_min = context_.rto_ns_min;
  terms.liveness_ns = to_ns(context_.nexus.options().liveness_timeout);
  terms.report_delay_ns = to_ns(context_.options.report_delay);
  if (transport.downlink_bytes_per_sec() != 0) terms.credits_last_ns = kCreditsLastNs;
  const uint32_t packets =
      std::min(kBulkBytes / transport.payload_bytes_max(), transport.receive_queue_packets() * 3 / 4);
  terms.bulk_bytes = std::max(packets, kBulkPacketsMin) * transport.payload_bytes_max();
  terms.shortcuts = transport.shortcuts();
  terms.controller = make_controller(options);
  terms.congestion_lasts_ns = kCongestionTargets * transport.delay_target().target_ns;
  terms.link_bytes_per_sec = transport.link_bytes_per_sec();
  terms.may_pace_below_packet = transport.delay_target().is_of_network;
  return terms;
}

/// Returns the terms that the client asks for.
nexus::SessionTerms ClientSessions::wish_of(const session::ClientTerms& terms) const {
  nexus::SessionTerms wish;
  wish.transport = context_.port.transport;
  wish.address = context_.transport.address();
  wish.session_key = terms.local_key;
  wish.endpoint_id = context_.options.endpoint_id;
  wish.payload_bytes_max = context_.transport.payload_bytes_max();
  wish.window = terms.window;
  wish.credits = wire::kCreditUnitMax;
  wish.first_number = terms.first_number;
  return wish;
}

cc::AnyController ClientSessions::make_controller(const SessionOptions& options) const {
  if (options.rate_bytes_per_sec != 0) return cc::FixedRate(options.rate_bytes_per_sec);
  const TransportPort& transport = context_.transport;
  const transport::DelayTarget delay = transport.delay_target();
  const cc::Path path = {transport.link_bytes_per_sec(),
                         transport.payload_bytes_max() + static_cast<uint32_t>(wire::kHeaderBytes), delay.target_ns,
                         delay.far_ns, delay.is_of_network};
  CongestionControl which = options.congestion_control;
  if (which == CongestionControl::kDefault) which = context_.options.congestion_control;
  if (which == CongestionControl::kDefault) which = default_control_;
  switch (which) {
    case CongestionControl::kTimely:
      return cc::Timely(path, false);
    case CongestionControl::kPatchedTimely:
      return cc::Timely(path, true);
    case CongestionControl::kSwift:
      return cc::Swift(path);
    case CongestionControl::kDctcp:
      return cc::Dctcp(path);
    default:
      return cc::None();
  }
}

/// Makes a session, with memory for every list that it may be in. Null: there is no memory.
Client* ClientSessions::make(const session::ClientTerms& terms) {
  Client* client = pool_.take(terms, pools_);
  if (client == nullptr) return nullptr;
  if (!client->session.has_memory() || !reserve_lists(client)) {
    pool_.give(client);
    return nullptr;
  }
  context_.count_sessions(1);
  return client;
}

bool ClientSessions::reserve_lists(Client* client) {
  const size_t sessions = pool_.taken();
  for (auto* list : {&ticking_, &opening_, &ending_, &backing_off_, &path_probes_, &dead_}) {
    if (!base::try_reserve_untouched(*list, sessions)) return false;
  }
  client->slots = static_cast<uint8_t>(client->session.window());
  return to_send_.reserve(sessions) && completions_.add_slots(client->slots);
}

void ClientSessions::free(Client* client) {
  completions_.remove_slots(client->slots);
  context_.count_sessions(-1);
  pool_.give(client);
}

void ClientSessions::set_budgets(uint32_t receive_queue_packets, uint8_t credit_unit,
                                 const session::ResponseShare& share) {
  const uint32_t packet_bytes = context_.transport.payload_bytes_max() + static_cast<uint32_t>(wire::kHeaderBytes);
  const uint32_t packets = std::max(kBulkPacketsMin, receive_queue_packets * 3 / 4);
  pools_.response_credits_free = static_cast<int32_t>(packets * wire::credits_of(packet_bytes, credit_unit));
  pools_.credit_unit = credit_unit;
  pools_.response_share = share;
}

void ClientSessions::join_run(Client* client, Run* run) {
  client->run = run;
  run->clients.add_last(client);
}

void ClientSessions::leave_run(Client* client) {
  Run* run = std::exchange(client->run, nullptr);
  run->clients.remove(client);
  peers_.leave(run);
}

// ---- The end ----

Status ClientSessions::destroy(Session session) {
  Client* client = find(session);
  if (client == nullptr || client->is_ending) return {Code::kSessionReset, "this session has ended already"};
  client->is_ending = true;
  forget_reconnect(client);
  ending_.push_back(client);
  context_.agenda.disarm();
  return {};
}

SessionInfo ClientSessions::info(Session session) const {
  const Client* client = find(session);
  if (client == nullptr) client = find_ending(static_cast<uint32_t>(session.name));
  return client != nullptr ? info(client) : context_.ended.info(session);
}

SessionInfo ClientSessions::info(const Client* client) {
  const session::RttEstimator& rtt = client->session.rtt();
  SessionInfo info;
  info.state = client->session.state() == ClientSession::State::kOpen ? SessionState::kOpen : SessionState::kConnecting;
  info.is_client = true;
  info.retransmissions = client->retransmissions;
  info.window = static_cast<uint8_t>(client->session.window());
  info.credits = client->session.credit_limit();
  info.payload_bytes = client->session.large_payload_bytes();
  info.congestion_window = client->session.congestion_window();
  info.packets_in_flight = client->session.packets_in_flight();
  if (rtt.has_sample()) {
    info.round_trip = Duration(rtt.srtt_ns());
    info.round_trip_min = Duration(rtt.min_ns());
    info.round_trip_last = Duration(rtt.latest_ns());
  }
  info.packets_sent = client->session.packets_sent();
  info.packets_received = client->session.packets_received();
  info.long_bytes_sent = client->session.long_bytes_sent();
  info.long_bytes_received = client->session.long_bytes_received();
  info.rate_bytes_per_sec = client->session.rate_bytes_per_sec();
  if (client->run != nullptr) info.peer = client->run->address.view();
  return info;
}

void ClientSessions::end_destroyed() {
  // Continuations may destroy further sessions, which are added to the list. The next end_destroyed() ends these.
  const size_t count = ending_.size();
  for (size_t i = 0; i < count; i++) {
    Client* client = ending_[i];
    client->is_ending = false;
    end(client, {Code::kCancelled, "the session was destroyed"}, true);
  }
  ending_.erase(ending_.begin(), ending_.begin() + static_cast<ptrdiff_t>(count));
}

/// The server has closed the session. If the session's path is not proved yet, it had to give way to others (clause
/// 7.8.2), and the client may ask for another session.
void ClientSessions::on_disconnected(uint32_t key) {
  Client* client = table_.find(key);
  // A session that is not accepted repeats its handshake: the event is about an earlier one, which had the same key.
  if (client == nullptr || !client->is_accepted) return;
  const bool may_try_again =
      client->session.state() != ClientSession::State::kOpen && client->opening()->is_in_time(context_.now_ns);
  if (may_try_again) return begin_handshake_anew(client);
  fail(client, kClosed, false);
}

void ClientSessions::on_liveness(const nexus::ControlEvent& event) {
  Client* client = table_.find(event.local_key);
  if (client == nullptr) return;
  switch (event.liveness) {
    case nexus::PeerLiveness::kInCallback:
      return client->session.on_peer_in_callback();
    case nexus::PeerLiveness::kIdle:
      return client->session.on_peer_idle();
    case nexus::PeerLiveness::kNoSession:
    case nexus::PeerLiveness::kRestarted:
      return fail(client, kForgotten, false);
  }
}

void ClientSessions::end_run(Run* run, Status status) {
  while (Client* client = run->clients.first()) {
    context_.counters.sessions_failed++;
    retire(client, status, false);
  }
}

void ClientSessions::end_all(Status status) {
  for_each([&](Client* client) {
    forget_reconnect(client);
    retire(client, status, true);
  });
  end_calls_of_dead();
}

/// Ends a session that counts as failed.
void ClientSessions::fail(Client* client, Status status, bool tell_peer) {
  context_.counters.sessions_failed++;
  end(client, status, tell_peer);
}

/// Ends a session: all its calls end with `status`, and its key has no meaning any more.
void ClientSessions::end(Client* client, Status status, bool tell_peer) {
  if (client->is_dead) return;
  begin_noted();
  retire(client, status, tell_peer);
  end_calls(client);
}

/// Ends a session, but not its calls. The sink of the log is the only function of the application that it may call.
void ClientSessions::retire(Client* client, Status status, bool tell_peer) {
  const uint32_t key = client->session.local_key();
  const nexus::AddressText peer = address_of(client);
  client->is_dead = true;
  table_.retire(key, context_.now_ns);
  if (client->run != nullptr) leave_run(client);
  new (&client->end_status) Status(status);
  client->waits_before_end = completions_.waits();
  if (client->is_accepted && tell_peer) {
    context_.nexus.disconnect(context_.port, key, true);
  } else if (!client->is_accepted && !client->is_backing_off) {
    context_.nexus.forget(context_.port, key);
  }
  if (client->has_peer) context_.transport.disconnect(client->peer);
  dead_.push_back(client);
  client->is_replaced = client->reconnect() != nullptr && replace(client);
  if (!client->is_replaced) context_.ended.note(client->public_name(), status);
  log_end(client, peer);
}

void ClientSessions::end_calls_of_dead() {
  for (size_t i = 0; i < dead_.size(); i++) end_calls(dead_[i]);  // continuations may add to the list
}

bool ClientSessions::has_dead_calls() const { return std::any_of(dead_.begin(), dead_.end(), has_calls); }

/// The program's listener may end further sessions.
void ClientSessions::announce_ends() {
  for (size_t i = 0; i < dead_.size(); i++) {
    Client* client = dead_[i];
    if (client->is_end_announced) continue;
    if (!client->is_replaced && (has_calls_to_end(client) || has_earlier_calls(i))) continue;
    client->is_end_announced = true;
    const SessionState state = client->is_replaced ? SessionState::kConnecting : SessionState::kEnded;
    context_.announce({Session{client->public_name()}, true, state, client->end_status});
    resume_waiters(client, client->end_status);
  }
}

/// True if some continuations of a dead session have not run yet.
bool ClientSessions::has_calls_to_end(const Client* client) const {
  return has_calls(client) || completions_.has_waiting_of(client->waits_before_end);
}

void ClientSessions::free_dead() {
  announce_ends();
  std::erase_if(dead_, [this](Client* client) {
    if (client->is_listed_to_send() || client->is_ticking || client->is_opening || client->is_ending ||
        client->is_backing_off || !client->is_end_announced || (client->is_replaced && has_calls_to_end(client))) {
      context_.agenda.at_latest(context_.now_ns);  // the lists drop the session in their next pass
      return false;
    }
    if (client->is_in_path_probes) std::erase(path_probes_, client);
    free(client);
    return true;
  });
}

void ClientSessions::finish_all() {
  announce_ends();
  ticking_.clear();
  opening_.clear();
  ending_.clear();
  backing_off_.clear();
  for (Client* client : dead_) free(client);
  dead_.clear();
}

bool ClientSessions::is_busy() const {
  bool is_busy = false;
  for_each([&](Client* client) { is_busy |= client->session.busy_mask() != 0 || client->has_queue(); });
  return is_busy;
}

// ---- For tests ----

void ClientSessions::check_invariants() const {
  Names<Client> known;
  size_t live = 0, reconnecting = 0;
  for_each([&](const Client* client) {
    known.add(client);
    CHECK(!client->is_dead);
    CHECK(table_.find_name(client->name()) == client);
    if (client->reconnect() != nullptr) CHECK(table_.find_name(client->public_name()) == client);
    reconnecting += client->reconnect() != nullptr;
    CHECK(table_.find(client->session.local_key()) == client);
    if (table_.find_asleep(client->name()) != nullptr) CHECK(client->is_asleep);
    CHECK(client->run != nullptr, ==, client->is_accepted);
    live++;
  });
  CHECK(live, ==, size());
  CHECK(reconnecting, ==, reconnecting_);
  for (const Client* client : dead_) {
    known.add(client);
    CHECK(client->is_dead);
  }
  known.sort();
  CHECK(known.items().size(), ==, pool_.taken());
  const auto to_send = names_of<Client>(to_send_);
  const auto ticking = names_of<Client>(ticking_);
  const auto opening = names_of<Client>(opening_);
  const auto ending = names_of<Client>(ending_);
  const auto backing_off = names_of<Client>(backing_off_);
  const auto path_probes = names_of<Client>(path_probes_);
  for (const auto* list : {&to_send, &ticking, &opening, &ending, &backing_off, &path_probes}) {
    check_known(*list, known);
  }

  size_t resting = 0, departing = 0, slots = 0, blocked = 0;
  for (const Client* client : known.items()) {
    CHECK(to_send.count(client) == 1, ==, client->is_listed_to_send());
    CHECK(ticking.count(client) == 1, ==, client->is_ticking);
    if (client->is_ticking) CHECK(ticking_[client->tick_place] == client);
    if (client->rests_at_once()) CHECK(client->begins_plainly && !client->has_lost_peer());
    CHECK(client->begins_plainly, ==, client->is_ticking && context_.tracer == nullptr);
    CHECK(opening.count(client) == 1, ==, client->is_opening);
    CHECK(ending.count(client) == 1, ==, client->is_ending);
    CHECK(backing_off.count(client) == 1, ==, client->is_backing_off);
    CHECK(path_probes.count(client) == 1, ==, client->is_in_path_probes);
    slots += client->slots;
    blocked += client->session.blocked_slots();
    if (client->is_dead) continue;
    check_lists(client);
    resting += client->is_resting;
    departing += client->is_departing;
  }
  CHECK(noted_count_, ==, size_t{0});
  completions_.check_invariants(slots, blocked);
  // All lists have memory for all sessions.
  for (const auto* list : {&ticking_, &opening_, &ending_, &backing_off_, &path_probes_, &dead_}) {
    CHECK(list->capacity(), >=, known.items().size());
  }
  CHECK(resting, <=, resting_.size());
  CHECK(departing, <=, departures_.size());
  check_agenda();
}

/// CHECKs that the next iteration comes in time for each list.
void ClientSessions::check_agenda() const {
  // A session that waits for the Nexus's answer is not checked.
  const auto proves_path = [](const Client* client) { return client->is_accepted; };
  const bool is_due = !ticking_.empty() || std::any_of(opening_.begin(), opening_.end(), proves_path);
  if (is_due) CHECK(context_.agenda.next_ns(), !=, UINT64_MAX);
  const auto check_due = [this](uint64_t at_ns) {
    const uint64_t due_ns = std::max(at_ns, context_.now_ns);  // a late time is due now
    CHECK(context_.agenda.next_ns(), <=, due_ns);
  };
  for (const Client* client : backing_off_) {
    if (!client->is_dead && client->reconnect() != nullptr) check_due(client->reconnect()->begin_ns);
  }
  if (!departures_.empty()) check_due(departures_.next_ns());
  if (!resting_.empty()) check_due(resting_.next_ns());
}

/// Checks the lists of a live session.
void ClientSessions::check_lists(const Client* client) const {
  client->session.check_invariants();
  if (client->session.state() != ClientSession::State::kOpen) CHECK(client->opening() != nullptr);
  if (client->session.busy_mask() != 0) CHECK(client->is_ticking || client->is_resting);  // it has a timer
  if (client->is_asleep) CHECK(!client->is_ticking && client->session.sleeps());
  CHECK(client->has_queue(), ==, client->extras != nullptr && client->extras->queue != nullptr);
  CHECK(client->extras == nullptr || !client->extras->is_empty());
  if (client->has_queue()) {
    CHECK(!client->queue().empty());
    CHECK(client->queue().size(), <=, context_.options.queue_limit);
  }
}

}  // namespace tern::rpc
