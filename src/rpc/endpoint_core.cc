// Sessions' beginnings and ends, timers, mail: what an endpoint does between packets.

#include "rpc/endpoint_core.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/status_text.h"

namespace tern::rpc {

using session::ClientSession;
using session::ClientSlot;
using session::ServerSlot;

namespace {

/// How often a session that is being opened is looked at.
constexpr uint64_t kOpenStepNs = 100'000;
constexpr uint64_t kPathProbeGapNsMax = 20'000'000;
/// For the first answer of a data address, at least, or a part of the connect timeout, if that is less: a short trouble
/// of the network that takes all probes of a handshake must not cost the session. Four times what the handshake took,
/// if that is more. Twice as long each time.
constexpr uint64_t kPathPatienceNsMin = 50'000'000;
constexpr uint64_t kPathPatienceParts = 8;
/// Without an answer for so many handshakes, of two round trips each, or so many RTOs, another way is tried. One short
/// path probe is kept for it.
constexpr uint64_t kPairHandshakes = 3;
constexpr uint64_t kPairRtos = 4;
constexpr uint8_t kPairedProbes = 1;
/// From the transport's news that a peer is gone to the session's end: management's reason comes sooner, if it comes.
constexpr uint64_t kPeerLostNs = 50'000'000;
/// 8 packets of 64 kB in flight keep one copy through shared memory at full speed; more only pushes the data out of
/// the cache (measured, ANCHORS: 8 in rotation 95-100 % of a bare copy, 32 in rotation 33-51 %).
constexpr uint32_t kBulkBytes = 512u << 10;
constexpr uint32_t kBulkPacketsMin = 8;

/// Of a link, around a packet: Ethernet (preamble, checksum and gap included), IPv4, UDP.
constexpr size_t kFrameBytes = 24 + 14 + 20 + 8;
/// So long after its last answer a client does not count on the limit that it had where that is sized by the downlink.
constexpr uint64_t kCreditsLastNs = 4 * session::CreditPolicy::kDownlinkEpochNs;
/// In so many target delays (1 ms in a datacenter) flows come and go.
constexpr uint64_t kCongestionTargets = 50;

/// A peer that is asked for signs of life may have sent some which lie in the receive queue: so many receives at most
/// look for them. A socket's buffer has some thousand packets.
constexpr uint32_t kLifeLooks = 256;

/// A session whose next business is not within so many RTOs is not looked at each RTO.
constexpr uint64_t kRestRtos = 4;
/// So many sessions ahead their memory is fetched: a look takes a few ns, and memory a hundred.
constexpr size_t kTicksAhead = 8;

/// Its calls have ended since the last look, and it will be looked at when its report is due.
bool is_done_for_now(const Client& client) {
  return client.is_resting && client.session.is_at_rest() && client.queue == nullptr && client.peer_lost_ns == 0;
}

/// 32 bits at a time, which a stranger cannot guess.
class RandomNumbers {
 public:
  explicit RandomNumbers(Environment& environment) : environment_(environment) {}
  uint32_t operator()() {
    const uint64_t value = environment_.random();
    has_failed_ |= value == 0;
    return static_cast<uint32_t>(value);
  }
  /// The system has refused some: what has been drawn is worth nothing.
  bool has_failed() const { return has_failed_; }

 private:
  Environment& environment_;
  bool has_failed_ = false;
};

uint64_t to_ns(Duration duration) { return static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0)); }

/// Why a session ended whose packets of full length do not pass any more.
Status narrow_path(const ClientSession& session) {
  char text[16];
  const uint32_t bytes = session.payload_bytes_max() + static_cast<uint32_t>(wire::kHeaderBytes);
  const char* end = std::to_chars(text, text + sizeof(text), bytes).ptr;
  return base::status_of(
      Code::kPeerUnreachable,
      "full packets do not pass between the peers any more, short ones do: a route with a smaller "
      "MTU, or a policer; lower the transport's datagram size on either side",
      {"packets of ", std::string_view(text, static_cast<size_t>(end - text)),
       " bytes do not pass between the peers any more, short ones do: a route with a smaller MTU, or "
       "a policer; lower the transport's datagram size on either side"});
}

constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.sequence > b.sequence;
};

}  // namespace

std::string_view EndpointCore::host_of(std::string_view host_and_port) {
  std::string_view host = host_and_port.substr(0, host_and_port.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

EndpointCore::EndpointCore(nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received,
                           const RpcOptions& options, std::string_view transport, uint64_t rto_ns_min,
                           CongestionControl default_control)
    : nexus_(nexus),
      arena_(arena),
      received_(received),
      mailbox_(new Mailbox(arena, received, nexus.environment())),
      port_(
          options.endpoint_id, transport, [mailbox = mailbox_] { mailbox->announce_control(); },
          [this] { owner_.store(nullptr, std::memory_order_relaxed); }),
      options_(options),
      rto_ns_min_(rto_ns_min),
      default_control_(default_control),
      peers_(nexus.environment().random()) {}

EndpointCore::~EndpointCore() {
  if (spare_ != nullptr) mailbox_->give_incoming(spare_);
  mailbox_->close();
}

void EndpointCore::bind_owner() {
  owner_.store(memory::thread_name(), std::memory_order_relaxed);
  mailbox_->bind_owner();
  arena_.bind_owner();
  received_.bind_owner();
}

// ---- Registration, memory, timers ----

Status EndpointCore::add_handler(uint16_t type, std::unique_ptr<Endpoint::Handler> handler,
                                 const HandlerOptions& options) {
  if (!is_owner()) return not_owner("on_request() belongs to the thread that made the endpoint");
  if (is_bound_) return {Code::kMisuse, "on_request() only before the first loop iteration"};
  if (type >= wire::kRequestTypes) return {Code::kMisuse, "request types are 0 to 4095"};
  if (handler == nullptr || spare_record() == nullptr)
    return {Code::kNoMemory, "no memory for the record of a request"};
  if (type < handlers_.size() && handlers_[type].handler != nullptr) {
    return {Code::kMisuse, "this request type has a handler already"};
  }
  // Both tables, or none: other code takes them to be of one size.
  if (type >= handlers_.size()) {
    std::unique_ptr<Dispatch[]> larger(new (std::nothrow) Dispatch[type + 1u]);
    if (larger == nullptr || !base::try_grow([&] { handlers_.resize(type + 1u); })) {
      return {Code::kNoMemory, "no memory for the table of handlers"};
    }
    std::copy_n(dispatch_.get(), dispatch_types_, larger.get());
    dispatch_ = std::move(larger);
    dispatch_types_ = static_cast<uint32_t>(handlers_.size());
  }
  handlers_[type].handler = std::move(handler);
  handlers_[type].options = options;
  if (!options.worker) {
    dispatch_[type] = {handlers_[type].handler.get(), std::min(options.max_request_bytes, wire::kMessageBytesMax) + 1};
  }
  return {};
}

MsgBuf EndpointCore::alloc_msgbuf(size_t len_bytes) {
  if (!is_owner()) return MsgBuf();
  return MsgBuf(arena_.alloc(len_bytes));
}

Duration EndpointCore::now() {
  if (!is_in_loop_ && !is_closed_) now_ns_ = clock_ns();
  return Duration(now_ns_);
}

Status EndpointCore::add_timer(Duration delay, detail::InlineFunction<> then) {
  if (!is_owner()) return not_owner("after() belongs to the thread that runs the event loop: use post()");
  if (is_closed_) return {Code::kSessionReset, "the endpoint is closed: nothing runs in its loop any more"};
  if (!base::try_reserve(timers_, timers_.size() + 1)) return {Code::kNoMemory, "no memory for a timer"};
  if (!is_in_loop_) now_ns_ = clock_ns();
  timers_.push_back({now_ns_ + to_ns(delay), timer_sequence_++, std::move(then)});
  std::push_heap(timers_.begin(), timers_.end(), kLater);
  at_latest(timers_.front().at_ns);
  return {};
}

void EndpointCore::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  waking_.fetch_add(1, std::memory_order_seq_cst);
  if (has_transport_.load(std::memory_order_seq_cst)) wake_transport();
  waking_.fetch_sub(1, std::memory_order_release);
}

void EndpointCore::wait_for_wakers() {
  has_transport_.store(false, std::memory_order_seq_cst);
  while (waking_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

// ---- Client sessions ----

/// What the URI of a session says. May throw std::bad_alloc.
Status EndpointCore::find_nexus(std::string_view uri, Opening& opening) {
  auto parsed = nexus::parse_uri(uri);
  if (!parsed.ok()) return parsed.status();
  if (parsed->port == 0) {
    return {Code::kMisuse, "port 0 names no server: use the port that the server's Nexus::uri() shows"};
  }
  auto addresses = nexus_.environment().resolve_all(parsed->host_and_port);
  if (!addresses.ok()) return addresses.status();
  opening.nexus_addresses.assign(addresses->begin(), addresses->end());
  opening.peer_endpoint = parsed->endpoint_id;
  return {};
}

Result<Session> EndpointCore::create_session(std::string_view uri, const SessionOptions& options) {
  if (!is_owner()) {
    return not_owner("create_session() belongs to the thread that runs the event loop: use post()");
  }
  if (is_closing_) return Status(Code::kSessionReset, "the endpoint is closing");
  if (options.window < 1 || options.window > wire::kSlotsMax) {
    return Status(Code::kMisuse, "SessionOptions::window is 1 to 64");
  }
  const Status no_memory(Code::kNoMemory, "no memory for another session");
  auto opening = std::unique_ptr<Opening>(new (std::nothrow) Opening);
  Status status = no_memory;
  const bool is_parsed = opening != nullptr && base::try_grow([&] { status = find_nexus(uri, *opening); });
  if (!is_parsed || !status.ok()) return is_parsed ? status : no_memory;
  if (!is_in_loop_) now_ns_ = clock_ns();
  RandomNumbers random(nexus_.environment());
  session::ClientTerms terms;
  terms.first_number = random() & wire::kNumberMask;
  terms.seed = random();
  uint32_t key;
  const bool has_key = clients_.draw(now_ns_, random, &key);
  if (random.has_failed()) return Status(Code::kUnavailable, "the system gives no random numbers for another session");
  if (!has_key) return no_memory;

  terms.local_key = key;
  terms.window = options.window;
  terms.rto_ns_min = rto_ns_min_;
  terms.liveness_ns = to_ns(nexus_.options().liveness_timeout);
  terms.report_delay_ns = to_ns(options_.report_delay);
  if (downlink_bytes_per_sec() != 0) terms.credits_last_ns = kCreditsLastNs;
  const uint32_t bulk = std::max(kBulkPacketsMin, kBulkBytes / payload_bytes_max());
  terms.bulk_packets = std::min(bulk, std::max(kBulkPacketsMin, receive_queue_packets() * 3 / 4));
  terms.controller = make_controller(options);
  terms.congestion_lasts_ns = kCongestionTargets * delay_target().target_ns;
  terms.link_bytes_per_sec = link_bytes_per_sec();
  terms.may_pace_below_packet = delay_target().is_of_network;
  Client* client = client_pool_.take(terms, client_pools_);
  if (client == nullptr) return no_memory;
  if (!make_room_for(client)) {
    client_pool_.give(client);
    return no_memory;
  }
  opening->timeout_ns = to_ns(options.connect_timeout);
  opening->asked_at_ns = now_ns_;
  opening->patience_ns = std::min(kPathPatienceNsMin, opening->timeout_ns / kPathPatienceParts);
  nexus::SessionTerms& wish = opening->wish;
  wish.transport = port_.transport;
  wish.address = local_address();
  wish.session_key = key;
  wish.endpoint_id = options_.endpoint_id;
  wish.payload_bytes_max = payload_bytes_max();
  wish.window = options.window;
  wish.credits = 0;
  wish.first_number = terms.first_number;
  status = nexus_.connect(port_, opening->nexus_addresses, opening->peer_endpoint, wish, opening->timeout_ns);
  if (!status.ok()) {
    free_client(client);
    return status;
  }
  client->opening = std::move(opening);
  client->name = clients_.put(key, client);
  return Session{client->name};
}

/// A session that has just been made will never need more memory in the lists that it comes to be in. False: no memory.
bool EndpointCore::make_room_for(Client* client) {
  const size_t sessions = client_pool_.taken();
  const size_t slots = client->session.window();
  for (auto* list : {&ticking_, &opening_, &ending_, &path_probes_, &dead_clients_}) {
    if (!base::try_reserve(*list, sessions)) return false;
  }
  if (!clients_to_send_.make_room(sessions) ||
      !base::try_reserve(waiting_for_ticket_, waiting_for_ticket_.size() + slots_max_ + slots)) {
    return false;
  }
  client->slots = static_cast<uint8_t>(slots);
  slots_max_ += slots;
  return true;
}

void EndpointCore::free_client(Client* client) {
  slots_max_ -= client->slots;
  client_pool_.give(client);
}

cc::AnyController EndpointCore::make_controller(const SessionOptions& options) const {
  if (options.rate_bytes_per_sec != 0) return cc::FixedRate(options.rate_bytes_per_sec);
  const transport::DelayTarget delay = delay_target();
  const cc::Path path = {link_bytes_per_sec(), payload_bytes_max() + static_cast<uint32_t>(wire::kHeaderBytes),
                         delay.target_ns, delay.far_ns, delay.is_of_network};
  CongestionControl which = options.congestion_control;
  if (which == CongestionControl::kDefault) which = options_.congestion_control;
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

void EndpointCore::on_connect_result(const nexus::ControlEvent& event) {
  Client* client = clients_.find(event.local_key);
  if (client == nullptr || client->is_accepted) return;
  const auto& terms = event.terms;
  if (!event.status.ok()) {
    counters_.sessions_failed++;
    return end_client(client, event.status, false);
  }
  client->is_accepted = true;
  auto refuse = [&](Status status) {
    counters_.sessions_failed++;
    end_client(client, status, true);
  };
  if (terms.payload_bytes_max < wire::kPayloadBytesMin || terms.payload_bytes_max > payload_bytes_max() ||
      terms.window < 1 || terms.window > client->session.window() || terms.credits < 1) {
    return refuse({Code::kRefused, "the server's terms are outside of what this version asked for"});
  }
  Run* run = peers_.join(event.peer.address.view(), event.peer.boot_id);
  if (run == nullptr) return refuse({Code::kNoMemory, "no memory for another session"});
  join_run(client, run);
  auto peer = connect_peer(terms.address, host_of(event.peer.address.view()));
  if (!peer.ok()) return refuse(peer.status());
  client->peer = *peer;
  client->has_peer = true;
  if (terms.payload_bytes_max > payload_bytes_max(*peer)) {
    return refuse({Code::kRefused,
                   "the server's terms contradict each other: its packets' payload is larger than the datagram size in "
                   "its data-path address carries"});
  }
  client->session.on_accepted(
      {terms.session_key, terms.payload_bytes_max, terms.window, terms.credits, terms.first_number, terms.path_token},
      now_ns_);
  Opening& opening = *client->opening;
  // The path has its own time: the session may have waited long for its turn to be accepted.
  if (opening.until_ns == 0) opening.until_ns = now_ns_ + std::min(opening.timeout_ns, UINT64_MAX - now_ns_);
  opening.path_probe_gap_ns = rto_ns_min_;
  opening.next_path_probe_ns = now_ns_;
  opening.patience_ns = std::max(opening.patience_ns, 4 * (now_ns_ - opening.asked_at_ns));
  opening.over_at_ns = now_ns_ + opening.patience_ns;
  opening.pair_at_ns = now_ns_ + std::max(kPairHandshakes * (now_ns_ - opening.asked_at_ns), kPairRtos * rto_ns_min_);
  opening.nexus_address = event.peer.address;
  opening.data_address = terms.address;
  opening.has_paired = false;
  if (!client->is_opening) opening_.push_back(client);
  client->is_opening = true;
  open_step(client);
}

/// A session is open once a full packet has been answered by a full packet (clause 7.7).
void EndpointCore::open_step(Client* client) {
  Opening& opening = *client->opening;
  if (now_ns_ >= opening.until_ns) {
    counters_.sessions_failed++;
    note_path_error(client);
    return end_client(client, why_no_path(client), true);
  }
  at_latest(now_ns_ + kOpenStepNs);
  switch (peer_state(client->peer)) {
    case transport::PeerState::kConnecting:
      return;
    case transport::PeerState::kDead:
      counters_.sessions_failed++;
      return end_client(client, {Code::kPeerUnreachable, "the peer's transport went away while connecting"}, true);
    case transport::PeerState::kReady:
      break;
  }
  const auto may_pair = [&] {
    return can_pair() && !client->session.is_paired() && !client->session.is_path_answered();
  };
  if (may_pair() && now_ns_ >= opening.pair_at_ns) {
    pair_path(client);
  } else if (now_ns_ < opening.next_path_probe_ns) {
    return;
  }
  const bool is_last_kept = may_pair() && client->session.short_probes_left() <= kPairedProbes;
  if (is_last_kept || !client->session.may_probe_path()) {
    if (now_ns_ >= opening.over_at_ns) begin_handshake_anew(client);
    return;
  }
  list_path_probe(client);
  opening.next_path_probe_ns = now_ns_ + opening.path_probe_gap_ns;
  opening.path_probe_gap_ns = std::min(4 * opening.path_probe_gap_ns, kPathProbeGapNsMax);
}

void EndpointCore::list_path_probe(Client* client) {
  if (!std::exchange(client->is_in_path_probes, true)) path_probes_.push_back(client);
}

/// No answer has come: filters or a NAT may be in the way that pass answers only to where a packet came from (clause
/// 7.7.4). Where there is no such peer, all stays as it was.
void EndpointCore::pair_path(Client* client) {
  Opening& opening = *client->opening;
  opening.pair_at_ns = UINT64_MAX;
  auto peer = connect_paired(opening.data_address, host_of(opening.nexus_address.view()));
  if (!peer.ok()) return;
  note_path_error(client);
  disconnect_peer(std::exchange(client->peer, *peer));
  client->session.pair();
  opening.has_paired = true;
}

void EndpointCore::note_path_error(Client* client) {
  if (!client->has_peer) return;
  const transport::PathError error = take_path_error(client->peer);
  if (error != transport::PathError::kNone) client->opening->path_error = error;
}

/// Of a session that did not open in time though the server has said yes.
Status EndpointCore::why_no_path(const Client* client) const {
  const std::string port = client->has_peer ? std::to_string(port_of(client->peer)) : "?";
  const transport::PathError error = client->opening->path_error;
  const auto unreachable = [](const char* otherwise, std::initializer_list<std::string_view> text) {
    return base::status_of(Code::kPeerUnreachable, otherwise, text);
  };
  if (client->session.is_path_answered() || error == transport::PathError::kTooLong) {
    const std::string bytes = std::to_string(client->session.payload_bytes_max() + wire::kHeaderBytes);
    return unreachable(
        "full packets do not pass the data path: its MTU is too small; lower Udp::Options::datagram_bytes",
        {"short packets pass the data path, but datagrams of ", bytes,
         " bytes do not: its MTU is too small; lower Udp::Options::datagram_bytes on either side"});
  }
  switch (error) {
    case transport::PathError::kForbidden:
      return unreachable("a firewall of this host takes packets to the server's data port",
                         {"a firewall of this host takes packets to the server's data port: let packets to UDP port ",
                          port, " leave"});
    case transport::PathError::kRefused:
      return unreachable("packets to the server's data port are rejected",
                         {"packets to the server's data port are rejected: its firewall must let packets to UDP port ",
                          port, " in (Udp::Options::bind of the server fixes the port)"});
    case transport::PathError::kUnreachable:
      return unreachable("no route leads to the server's data address",
                         {"no route leads to the server's data address (UDP port ", port,
                          "), though one leads to its Nexus: check Udp::Options::bind of the server"});
    case transport::PathError::kNone:
    case transport::PathError::kTooLong:
      break;
  }
  if (!can_pair()) return {Code::kPeerUnreachable, "nothing was answered on the data path"};
  return unreachable("nothing was answered on the data path: a firewall filters the server's data port",
                     {"nothing was answered on the data path: packets to UDP port ", port,
                      " of the server, or its answers from there, are filtered (Udp::Options::bind of the server fixes "
                      "the port; docs/network.md has rules for firewalls)"});
}

/// The data address has had the few headers that an address gets before it answers, and they or their answers were
/// lost, or it takes long: the server is asked for another session, which has its own.
void EndpointCore::begin_handshake_anew(Client* client) {
  Opening& opening = *client->opening;
  const uint32_t key = client->session.local_key();
  nexus_.disconnect(port_, key, true);
  note_path_error(client);
  disconnect_peer(client->peer);
  client->has_peer = false;
  client->is_accepted = false;
  leave_run(client);
  opening.patience_ns *= 2;
  opening.asked_at_ns = now_ns_;
  RandomNumbers random(nexus_.environment());
  opening.wish.first_number = random() & wire::kNumberMask;
  client->session.start_over(opening.wish.first_number);
  Status status = random.has_failed()
                      ? Status(Code::kUnavailable, "the system gives no random numbers for another handshake")
                      : nexus_.connect(port_, opening.nexus_addresses, opening.peer_endpoint, opening.wish,
                                       opening.until_ns - now_ns_);
  if (status.ok()) return;
  counters_.sessions_failed++;
  end_client(client, status, false);
}

Status EndpointCore::destroy_session(Session session) {
  if (!is_owner()) {
    return not_owner("destroy_session() belongs to the thread that runs the event loop: use post()");
  }
  Client* client = find_client(session);
  if (client == nullptr || client->is_ending) return {Code::kSessionReset, "this session is gone already"};
  client->is_ending = true;
  ending_.push_back(client);
  disarm();
  return {};
}

bool EndpointCore::is_open(Session session) const {
  const Client* client = is_owner() ? find_client(session) : nullptr;
  return client != nullptr && client->session.state() == ClientSession::State::kOpen;
}

/// The session is over: every call of it ends with `status`, and its key means nothing any more.
void EndpointCore::end_client(Client* client, Status status, bool tell_peer) {
  if (client->is_dead) return;
  retire_client(client, status, tell_peer);
  end_calls(client);
}

/// All of it but the ends of its calls: runs nothing of the application's.
void EndpointCore::retire_client(Client* client, Status status, bool tell_peer) {
  const uint32_t key = client->session.local_key();
  client->is_dead = true;
  client->end_status = status;
  clients_.retire(key, now_ns_);
  if (client->run != nullptr) leave_run(client);
  if (!client->is_accepted) {
    nexus_.forget(port_, key);
  } else if (tell_peer) {
    nexus_.disconnect(port_, key, true);
  }
  if (client->has_peer) disconnect_peer(client->peer);
  dead_clients_.push_back(client);
}

/// Of a dead session. Calls whose buffers the transport still has stay in their slots until later (promise 2).
/// Continuations may do anything, but they do not find the session.
void EndpointCore::end_calls(Client* client) {
  for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
    ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
    if (!has_call(*slot) || slot->ticket > released_) continue;
    detail::Buffer* request = slot->request;
    detail::Buffer* response = slot->response;
    session::Continuation continuation = std::move(slot->continuation);
    client->session.release_slot(slot);
    run_continuation(continuation, request, response, client->end_status, 0);
  }
  while (client->queue != nullptr) {
    QueuedCall call = std::move(client->queue->front());
    client->queue->pop_front();
    if (client->queue->empty()) client->queue.reset();
    run_continuation(call.continuation, call.request, call.response, client->end_status, 0);
  }
}

void EndpointCore::end_calls_of_dead() {
  for (size_t i = 0; i < dead_clients_.size(); i++) end_calls(dead_clients_[i]);  // there may be more of them meanwhile
}

bool EndpointCore::has_calls(const Client* client) {
  if (client->queue != nullptr) return true;
  for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
    if (has_call(*client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))))) return true;
  }
  return false;
}

/// Calls that are over wait for their buffers.
bool EndpointCore::has_ended_calls() const {
  return !waiting_for_ticket_.empty() || std::any_of(dead_clients_.begin(), dead_clients_.end(), has_calls);
}

/// Promise 2: a call ends not before nothing can read its buffers any more. There is room for it.
void EndpointCore::wait_for_ticket(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status,
                                   uint16_t app_code, session::Continuation continuation) {
  waiting_for_ticket_.push_back({ticket, request, response, status, app_code, std::move(continuation)});
  disarm();
}

void EndpointCore::end_call_early(Client* client, ClientSlot* slot, Status status) {
  const uint64_t ticket = slot->ticket;
  detail::Buffer* request = slot->request;
  detail::Buffer* response = slot->response;
  session::Continuation continuation = std::move(slot->continuation);
  client->session.end_early(slot, now_ns_);
  after_input(client);
  wait_for_ticket(ticket, request, response, status, 0, std::move(continuation));
}

/// Ends the waiting calls for which `is_over` says so, which has made room for them. True if there was one.
template <class F>
bool EndpointCore::finish_queued(Client* client, Status status, F&& is_over) {
  if (client->queue == nullptr) return false;
  const size_t before = client->queue->size();
  std::erase_if(*client->queue, [&](QueuedCall& call) {
    if (!is_over(call)) return false;
    wait_for_ticket(0, call.request, call.response, status, 0, std::move(call.continuation));
    return true;
  });
  const bool has_ended_some = client->queue->size() != before;
  if (client->queue->empty()) client->queue.reset();
  return has_ended_some;
}

Status EndpointCore::cancel(CallId call) {
  if (!is_owner()) return not_owner("cancel() belongs to the thread that runs the event loop: use post()");
  const auto sequence = static_cast<uint32_t>(call.value);
  const Status cancelled(Code::kCancelled, "cancelled by its caller");
  Client* client = clients_.find(static_cast<uint32_t>(call.value >> 32));
  if (!has_room_to_wait()) return {Code::kNoMemory, "no memory for the end of a call: it goes on"};
  if (client != nullptr) {
    for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
      ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
      if (slot->call_sequence != sequence || !has_call(*slot)) continue;
      end_call_early(client, slot, cancelled);
      return {};
    }
    const bool is_queued =
        finish_queued(client, cancelled, [&](const QueuedCall& queued) { return queued.sequence == sequence; });
    if (is_queued) return {};
  }
  return {Code::kMisuse, "no such call: it has ended already"};
}

/// False: there is nothing to do for the session until its next call.
bool EndpointCore::tick(Client* client) {
  if (client->peer_lost_ns != 0) {
    if (now_ns_ - client->peer_lost_ns >= kPeerLostNs) {
      counters_.sessions_failed++;
      end_client(client, {Code::kPeerUnreachable, "the transport to the peer is gone: create a new session"}, true);
      return false;
    }
    at_latest(client->peer_lost_ns + kPeerLostNs);
  }
  const session::ClientTick result = client->session.tick(now_ns_, read_until_ns_);
  const Status silent(Code::kPeerUnreachable,
                      "the peer has not answered for the liveness timeout: create a new session");
  uint64_t next_ns = result.next_ns;
  if (result.has_timed_out) counters_.timeouts++;
  if (result.wants_pair_probe) {
    client->is_pair_probe_due = true;
    list_path_probe(client);
  }
  if (result.ask_liveness) {
    nexus_.ask_liveness(port_, client->session.local_key());
  }
  if (result.has_failed) {
    counters_.sessions_failed++;
    end_client(client, result.is_path_narrow ? narrow_path(client->session) : silent, true);
    return false;
  }
  const Status fruitless(Code::kNoResponse,
                         "the server has not sent the rest of the response though its packets could have passed");
  for (uint64_t mask = result.fruitless_mask; mask != 0; mask &= mask - 1) {
    if (!has_room_to_wait()) {
      next_ns = std::min(next_ns, now_ns_ + rto_ns_min_);
      break;
    }
    end_call_early(client, client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))), fruitless);
  }
  for (uint64_t mask = result.expired_mask; mask != 0; mask &= mask - 1) {
    if (!has_room_to_wait()) {
      next_ns = std::min(next_ns, now_ns_ + rto_ns_min_);  // they end when there is memory
      break;
    }
    end_call_early(client, client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))), kLateCall);
  }
  finish_queued(client, kLateCall, [&](const QueuedCall& call) {
    const bool is_late = is_too_late(client, call);
    if (is_late && has_room_to_wait()) return true;
    next_ns = std::min(next_ns, is_late ? now_ns_ + rto_ns_min_ : call.deadline_ns - least_ns(client));
    return false;
  });
  if (client->queue != nullptr) start_queued(client);
  bool must_stay = client->peer_lost_ns != 0 || (client->queue != nullptr && client->session.has_free_slot());
  if (client->session.wants_to_send()) {
    if (!waits_for_pace(client)) list_to_send(client);
    must_stay = true;
  }
  if (must_stay) next_ns = std::min(next_ns, now_ns_ + rto_ns_min_);
  return next_ns != UINT64_MAX && !rest(client, next_ns);
}

/// False: that is too soon, it goes on ticking.
bool EndpointCore::rest(Client* client, uint64_t until_ns) {
  const bool is_soon = until_ns - now_ns_ < kRestRtos * rto_ns_min_ || until_ns <= now_ns_;
  if (is_soon || (client->is_resting && until_ns < client->rest_until_ns)) {
    at_latest(until_ns);
    return false;
  }
  if (client->is_resting) return true;                         // and will be looked at too early, if anything
  if (!resting_.add(until_ns, client->session.local_key())) {  // no memory
    at_latest(until_ns);
    return false;
  }
  client->is_resting = true;
  client->rest_until_ns = until_ns;
  return true;
}

// ---- Server sessions ----

void EndpointCore::on_connect_request(const nexus::ControlEvent& event) {
  auto refuse = [&](wire::Refusal refusal) {
    counters_.sessions_refused++;
    (void)nexus_.answer_connect(port_, event.token, nexus::refusal_status(refusal), {});
  };
  const auto& wish = event.terms;
  if (is_closing_) return refuse(wire::Refusal::kEndpointClosing);
  if (wish.transport != port_.transport) return refuse(wire::Refusal::kTransportMismatch);
  if (wish.payload_bytes_max < wire::kPayloadBytesMin || wish.payload_bytes_max > wire::kPayloadBytesMax) {
    return refuse(wire::Refusal::kMtuMismatch);
  }
  if (wish.window < 1 || wish.window > wire::kSlotsMax) return refuse(wire::Refusal::kOther);
  if (const auto refusal = refusal_of_session(event.peer); refusal != wire::Refusal::kNone) return refuse(refusal);
  RandomNumbers random(nexus_.environment());
  session::ServerTerms terms;
  terms.first_request_count = random() >> wire::kSlotBits;
  terms.first_number = random() & wire::kNumberMask;
  terms.path_token = random() & wire::kTokenMask;
  terms.session_token = random() & wire::kTokenMask;
  uint32_t key;
  const bool has_key = servers_.draw(now_ns_, random, &key);
  if (random.has_failed()) return refuse(wire::Refusal::kOther);
  Run* run = has_key ? peers_.join(event.peer.address.view(), event.peer.boot_id) : nullptr;
  if (run == nullptr) return refuse(wire::Refusal::kNoMemory);
  auto peer = connect_peer(wish.address, host_of(event.peer.address.view()));
  if (!peer.ok()) {
    peers_.leave(run);
    switch (peer.status().code()) {
      case Code::kNoMemory:
        return refuse(wire::Refusal::kNoMemory);
      case Code::kRefused:  // connect() of a transport says so of peers that it may not have
        return refuse(wire::Refusal::kOtherUser);
      case Code::kPeerUnreachable:  // of what only processes of one host share
        return refuse(wire::Refusal::kOtherHost);
      case Code::kUnavailable:
        return refuse(wire::Refusal::kNoWayBack);
      default:
        return refuse(wire::Refusal::kOther);
    }
  }
  terms.local_key = key;
  terms.remote_key = wish.session_key;
  terms.payload_bytes_max = std::min(wish.payload_bytes_max, payload_bytes_max(*peer));
  terms.window = wish.window;
  terms.first_client_number = wish.first_number;
  Server* server = server_pool_.take(terms, server_pools_);
  const size_t servers = server_pool_.taken();
  const bool has_memory =
      server != nullptr && servers_to_send_.make_room(servers) && base::try_reserve(dead_servers_, servers);
  if (!has_memory) {
    if (server != nullptr) server_pool_.give(server);
    peers_.leave(run);
    disconnect_peer(*peer);
    return refuse(wire::Refusal::kNoMemory);
  }
  server->name = servers_.put(key, server);
  server->peer = *peer;
  server->run = run;
  run->servers.add_last(server);
  run->server_sessions++;
  run->host->server_sessions++;
  begin_without_path(server);

  nexus::SessionTerms answer;
  answer.transport = port_.transport;
  answer.address = local_address();
  answer.session_key = key;
  answer.endpoint_id = options_.endpoint_id;
  answer.payload_bytes_max = terms.payload_bytes_max;
  answer.window = terms.window;
  answer.credits = credits_.start_limit(servers_.size());
  answer.first_number = terms.first_number;
  answer.path_token = terms.path_token;
  if (!nexus_.answer_connect(port_, event.token, {}, answer).ok()) end_server(server, false);
}

void EndpointCore::end_server(Server* server, bool tell_peer) {
  if (server->is_dead) return;
  server->is_dead = true;
  servers_.retire(server->session.local_key(), now_ns_);
  Offers offers(*this, server);
  server->session.end_all(offers);
  (server->is_pathless ? pathless_ : proved_).remove(server);
  if (proved_.first() == nullptr) sweep_at_ns_ = UINT64_MAX;
  Run* run = std::exchange(server->run, nullptr);
  run->servers.remove(server);
  run->server_sessions--;
  run->host->server_sessions--;
  peers_.leave(run);
  credits_.set_long_requests(server_pools_.assemblies.taken());
  if (tell_peer) {
    nexus_.disconnect(port_, server->session.local_key(), false);
  }
  disconnect_peer(server->peer);
  if (std::exchange(server->has_pair_peer, false)) disconnect_peer(server->pair_peer);
  dead_servers_.push_back(server);
}

void EndpointCore::release_after(uint64_t ticket, detail::Buffer* buffer) {
  if (ticket <= released_) {
    detail::release_buffer(buffer);
  } else {
    Releases& list = releases_.first == nullptr ? releases_ : later_releases_;
    buffer->next = std::exchange(list.first, buffer);
    list.ticket = std::max(list.ticket, ticket);
  }
}

void EndpointCore::run_releases() {
  while (releases_.first != nullptr && releases_.ticket <= released_) {
    while (releases_.first != nullptr) {
      detail::release_buffer(std::exchange(releases_.first, releases_.first->next));
    }
    releases_ = std::exchange(later_releases_, {});
  }
}

/// The continuations of calls whose buffers are free. What they add waits for the next time.
void EndpointCore::run_waiting() {
  const size_t count = waiting_for_ticket_.size();
  size_t left = 0;
  for (size_t i = 0; i < count; i++) {
    if (waiting_for_ticket_[i].ticket > released_) {
      if (left != i) waiting_for_ticket_[left] = std::move(waiting_for_ticket_[i]);
      left++;
      continue;
    }
    Finished call = std::move(waiting_for_ticket_[i]);
    if (Client* client = clients_.find_name(call.blocked_session); call.blocked_session != 0 && client != nullptr) {
      client->session.unblock_slot(client->session.slot(call.blocked_slot));
      start_queued(client);
    }
    run_continuation(call.continuation, call.request, call.response, call.status, call.app_code);
  }
  const auto begin = waiting_for_ticket_.begin();
  waiting_for_ticket_.erase(begin + static_cast<ptrdiff_t>(left), begin + static_cast<ptrdiff_t>(count));
}

// ---- Steps of an iteration ----

void EndpointCore::read_mail() {
  for (Incoming* incoming = mailbox_->drain(posts_); incoming != nullptr;) {
    on_answered(std::exchange(incoming, incoming->next_free));
  }
  for (auto& post : posts_) post.run();
  posts_.clear();
  if (port_.has_events()) read_control_events();
}

void EndpointCore::read_control_events() {
  using Kind = nexus::ControlEvent::Kind;
  for (nexus::ControlEvent& event : port_.drain()) {
    switch (event.kind) {
      case Kind::kConnectRequest:
        on_connect_request(event);
        break;
      case Kind::kConnectResult:
        on_connect_result(event);
        break;
      case Kind::kDisconnected:
        if (event.is_client_side) {
          if (Client* client = clients_.find(event.local_key); client != nullptr) on_server_left(client);
        } else if (Server* server = servers_.find(event.local_key); server != nullptr) {
          end_server(server, false);
        }
        break;
      case Kind::kPeerGone:
        on_peer_gone(event);
        break;
      case Kind::kAskLife:
        on_ask_life(event);
        break;
      case Kind::kLiveness: {
        Client* client = clients_.find(event.local_key);
        if (client == nullptr) break;
        if (event.liveness == nexus::PeerLiveness::kInCallback) client->session.on_peer_in_callback();
        if (event.liveness == nexus::PeerLiveness::kIdle) client->session.on_peer_idle();
        if (event.liveness == nexus::PeerLiveness::kNoSession || event.liveness == nexus::PeerLiveness::kRestarted) {
          counters_.sessions_failed++;
          end_client(client, {Code::kSessionReset, "the server does not know the session any more: create a new one"},
                     false);
        }
        break;
      }
    }
  }
}

/// A session whose path is not proved yet had to make room for others (clause 7.8.2): its client may ask for another.
void EndpointCore::on_server_left(Client* client) {
  const bool may_try_again = client->is_accepted && client->session.state() != ClientSession::State::kOpen &&
                             now_ns_ < client->opening->until_ns;
  if (may_try_again) return begin_handshake_anew(client);
  counters_.sessions_failed++;
  end_client(client, {Code::kSessionReset, "the server closed the session: create a new one"}, false);
}

void EndpointCore::on_peer_gone(const nexus::ControlEvent& event) {
  Run* run = peers_.find_run(event.peer.boot_id);
  if (run == nullptr) return;
  peers_.join(run);  // it stays until the last of its sessions has ended
  while (Server* server = run->servers.first()) {
    counters_.sessions_failed++;
    end_server(server, false);
  }
  while (Client* client = run->clients.first()) {
    counters_.sessions_failed++;
    retire_client(client, event.status, false);
  }
  peers_.leave(run);
  end_calls_of_dead();
}

/// Data is a sign of life, too (clause 7.5.2). What was not read yet may be data: a question that finds no news waits
/// until all has been read.
void EndpointCore::on_ask_life(nexus::ControlEvent& event) {
  Run* run = peers_.find_run(event.peer.boot_id);
  if (run == nullptr) return;
  if (credits_.epoch() != run->life_epoch) run->life_epoch_before = std::exchange(run->life_epoch, credits_.epoch());
  if (note_life(event) || !base::try_reserve(life_questions_, life_questions_.size() + 1)) return;
  life_questions_.push_back({std::move(event), kLifeLooks});
  at_latest(now_ns_);
}

/// True if there was news of the peer. Of its packets in the common case a server session only notes the credit epoch:
/// an epoch after that of the last question is news.
bool EndpointCore::note_life(const nexus::ControlEvent& question) {
  const Run* run = peers_.find_run(question.peer.boot_id);
  if (run == nullptr) return false;
  uint64_t heard_ns = 0;
  for (const Client* client = run->clients.first(); client != nullptr; client = run->clients.after(client)) {
    heard_ns = std::max(heard_ns, client->session.last_answer_ns());
  }
  for (const Server* server = run->servers.first(); server != nullptr; server = run->servers.after(server)) {
    const bool is_news = server->session.heard_epoch > run->life_epoch_before;
    heard_ns = std::max(heard_ns, is_news ? now_ns_ : server->heard_ns);
  }
  if (heard_ns <= question.since_ns) return false;
  nexus::EndpointPort::note_life(question, heard_ns);
  return true;
}

/// An iteration that received nothing has read all that came before it. While there is none, an eighth of the time
/// counts, and all that is older than eight liveness timeouts, so that a silent peer is noticed under any load.
void EndpointCore::note_what_is_read(bool has_read_all) {
  if (has_read_all) {
    read_until_ns_ = now_ns_;
  } else if (idle_iterations_ != idle_iterations_seen_) {
    read_until_ns_ = due_ran_ns_;
  } else {
    const uint64_t oldest_ns = 8 * to_ns(nexus_.options().liveness_timeout);
    read_until_ns_ += (now_ns_ - due_ran_ns_) / 8;
    read_until_ns_ = std::max(read_until_ns_, now_ns_ - std::min(now_ns_, oldest_ns));
  }
  idle_iterations_seen_ = idle_iterations_;
  due_ran_ns_ = now_ns_;
}

void EndpointCore::answer_life_questions(bool has_read_all) {
  std::erase_if(life_questions_, [&](LifeQuestion& question) {
    return note_life(question.event) || has_read_all || question.looks_left-- == 0;
  });
  if (!life_questions_.empty()) at_latest(now_ns_);
}

void EndpointCore::run_due(bool has_read_all) {
  if (!waiting_for_ticket_.empty()) run_waiting();
  run_releases();
  end_calls_of_dead();
  // Those that continuations add wait for the next time.
  const size_t count = ending_.size();
  for (size_t i = 0; i < count; i++) {
    Client* client = ending_[i];
    client->is_ending = false;
    end_client(client, {Code::kCancelled, "its session was destroyed"}, true);
  }
  ending_.erase(ending_.begin(), ending_.begin() + static_cast<ptrdiff_t>(count));
  if (now_ns_ < next_due_ns_) return;
  next_due_ns_ = UINT64_MAX;
  note_what_is_read(has_read_all);
  if (!life_questions_.empty()) answer_life_questions(has_read_all);
  end_pathless();
  if (sweep_at_ns_ != UINT64_MAX) sweep();

  // Those that they add have their turn in the next iteration, or one without delay would keep the loop for ever.
  const uint64_t added_from_here = timer_sequence_;
  while (!timers_.empty() && timers_.front().at_ns <= now_ns_ && timers_.front().sequence < added_from_here) {
    std::pop_heap(timers_.begin(), timers_.end(), kLater);
    detail::InlineFunction<> then = std::move(timers_.back().then);
    timers_.pop_back();
    then.run();
  }
  if (!timers_.empty()) at_latest(timers_.front().at_ns);

  departures_.run(now_ns_, [&](uint32_t key) {
    if (Client* client = clients_.find(key); client != nullptr) {
      client->is_departing = false;
      list_to_send(client);
    }
  });
  if (!departures_.empty()) at_latest(departures_.next_ns());

  for (size_t i = 0; i < opening_.size();) {
    Client* client = opening_[i];
    if (!client->is_dead && client->session.state() != ClientSession::State::kOpen) {
      if (client->is_accepted) open_step(client);
      i++;
      continue;
    }
    client->is_opening = false;
    client->opening.reset();
    opening_[i] = opening_.back();
    opening_.pop_back();
  }

  resting_.run(now_ns_, [&](uint32_t key) {
    if (Client* client = clients_.find(key); client != nullptr) {
      client->is_resting = false;
      start_ticking(client);
    }
  });
  for (size_t i = 0; i < ticking_.size();) {
    if (i + kTicksAhead < ticking_.size()) __builtin_prefetch(ticking_[i + kTicksAhead]);
    Client* client = ticking_[i];
    if (!client->is_dead && !is_done_for_now(*client) && tick(client)) {
      i++;
      continue;
    }
    client->is_ticking = false;
    ticking_[i] = ticking_.back();
    ticking_.pop_back();
  }
  if (!resting_.empty()) at_latest(resting_.next_ns());
}

bool EndpointCore::depart_later(Client* client) {
  if (client->is_departing) return true;  // there was a packet that waits for no pace
  if (!departures_.add(now_ns_, client->session.departure_ns(), client->session.local_key())) return false;
  client->is_departing = true;
  at_latest(departures_.next_ns());
  return true;
}

void EndpointCore::set_budgets() {
  const uint32_t queue = receive_queue_packets();
  const auto packet_bytes = static_cast<uint32_t>(payload_bytes_max() + wire::kHeaderBytes + kFrameBytes);
  const auto downlink = session::Downlink::of(downlink_bytes_per_sec(), packet_bytes);
  client_pools_.response_packets_free = static_cast<int32_t>(std::max(kBulkPacketsMin, queue * 3 / 4));
  client_pools_.response_share = session::ResponseShare(downlink);
  credits_ = session::CreditPolicy({queue, downlink, options_.credit_limit}, now_ns_);
}

/// Sessions that have ended and that no list names any more.
void EndpointCore::free_dead() {
  for (size_t i = 0; i < dead_clients_.size();) {
    Client* client = dead_clients_[i];
    if (client->is_listed_to_send || client->is_ticking || client->is_opening || client->is_ending ||
        has_calls(client)) {
      next_due_ns_ = now_ns_;  // the lists drop it when they are next walked
      i++;
      continue;
    }
    if (client->is_in_path_probes) std::erase(path_probes_, client);
    free_client(client);
    dead_clients_[i] = dead_clients_.back();
    dead_clients_.pop_back();
  }
  for (size_t i = 0; i < dead_servers_.size();) {
    Server* server = dead_servers_[i];
    if (server->is_listed_to_send) {
      i++;
      continue;
    }
    server_pool_.give(server);
    dead_servers_[i] = dead_servers_.back();
    dead_servers_.pop_back();
  }
}

bool EndpointCore::has_unfinished_work() const {
  if (has_ended_calls() || !clients_to_send_.empty() || !servers_to_send_.empty()) return true;
  // Three times what lies between two questions of a client: some may be lost.
  const uint64_t quiet_ns = to_ns(nexus_.options().liveness_timeout) * 3 / 4;
  bool is_busy = false;
  clients_.for_each([&](Client* client) { is_busy |= client->session.busy_mask() != 0 || client->queue != nullptr; });
  servers_.for_each([&](Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      // Until its client has reported it, or has not asked for it for some time, a response may have packets that are
      // not sent, lost, or being copied. A failure may as well become that of the closed session.
      const uint64_t asked_ns = std::max(slot->received_ns, std::min(closing_since_ns_, now_ns_));
      const bool is_wanted = server->session.is_to_leave(*slot) || slot->response_ticket > released_ ||
                             now_ns_ - std::min(asked_ns, now_ns_) < quiet_ns;
      const bool is_on_its_way = slot->phase == ServerSlot::Phase::kResponded && is_wanted;
      is_busy |= slot->call != nullptr || is_on_its_way;
    }
  });
  return is_busy;
}

void EndpointCore::start_closing() {
  if (!is_closing_) closing_since_ns_ = clock_ns();
  is_closing_ = true;
  dispatch_types_ = 0;
}

void EndpointCore::close_all() {
  start_closing();
  is_closed_ = true;
  mailbox_->refuse_posts();
  clients_.for_each([&](Client* client) {
    retire_client(client, {Code::kCancelled, "its endpoint was closed"}, true);
  });
  end_calls_of_dead();
  servers_.for_each([&](Server* server) { end_server(server, true); });
  timers_.clear();
  life_questions_.clear();
}

void EndpointCore::finish_all() {
  while (has_ended_calls() || releases_.first != nullptr) run_due(false);
  ticking_.clear();
  opening_.clear();
  ending_.clear();
  for (Client* client : dead_clients_) free_client(client);
  for (Server* server : dead_servers_) server_pool_.give(server);
  dead_clients_.clear();
  dead_servers_.clear();
}

}  // namespace tern::rpc
