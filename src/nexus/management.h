// Sessions over the Nexus's management channel, as a pure state machine (docs/protocol.md, chapter 7). Nexus layer.
//
// Time and randomness are arguments. A caller takes datagrams and events out after each call. The class is not
// thread-safe: NexusCore drives it in the management channel's thread. It has no sockets, clocks or locks.
//
// Nothing throws after the constructor. Memory is reserved before state changes. Without memory, a received datagram is
// lost, a timer fires again a millisecond later, and an endpoint's call returns false.
//
// A relation (Peer) is the state that two Nexuses hold about each other. Each side names it by a random number, its
// run, and takes a new run when it has forgotten the other side. Therefore a restart, a peer that has given this side
// up, and a stranger's guess look the same: the answer to the ping is "unknown run", and the sessions of the relation
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <tern/counters.h>
#include <tern/environment.h>
#include <tern/log.h>

#include "base/log_limit.h"
#include "base/ring_queue.h"
#include "base/stable_vector.h"
#include "nexus/control.h"
#include "nexus/cookies.h"
#include "nexus/record_index.h"
#include "wire/header.h"
#include "wire/management.h"

namespace tern::nexus {

struct ManagementOptions {
  Duration liveness_timeout = std::chrono::milliseconds(500);
  uint8_t version_min = wire::kVersion;  ///< lowest version of the data path in the offered range
  uint8_t version_max = wire::kVersion;
  Duration retry_min = std::chrono::milliseconds(2);  ///< time to the first repetition of a request; doubles
  Duration retry_max = std::chrono::milliseconds(100);
  /// For this time an ended server session answers late duplicates of its request, and an idle relation is kept.
  Duration linger = std::chrono::seconds(5);
  size_t peers_max = 65536;        ///< most relations; requests for more are refused
  size_t sessions_max = 1u << 22;  ///< most records, including ended sessions; further requests are refused
  /// Most relations with one address and port. A Nexus has several if it reaches this one by several addresses.
  uint32_t peers_per_port_max = 4;
  // Limits for the clients of one IPv4 address, or one IPv6 /64. The first two are options of NexusOptions.
  size_t peers_per_address_max = 1024;
  size_t sessions_per_address_max = 65536;  ///< most server records, including sessions that ended in the last seconds
  size_t asked_per_address_max = 4096;      ///< most requests that wait for endpoints' answers; further ones are lost
  /// Most unanswered requests to one peer. Further requests wait at this side, because thousands at one time would
  /// overflow the peer's socket, and pings would also be lost.
  uint32_t requests_at_once = 32;
  size_t asked_max = 16384;  ///< most requests that wait for one endpoint's answer; further ones are lost
  /// The number of connect requests of known peers, and of strangers, that one on_time() handles. It handles them after
  /// all other datagrams. 32 requests of strangers take 0.1 ms, in which no socket buffer overflows.
  size_t requests_per_turn = 32;
  size_t requests_waiting_max = 64;  ///< most queued requests of known peers, and of strangers; further ones are lost
};

static_assert(wire::kManagementDrops == detail::kManagementDrops + 1, "the table of counters has each reason");

/// One registration of an endpoint id. Ids are reused; registration numbers are not.
struct EndpointName {
  uint16_t id = 0;
  uint64_t registration = 0;
  friend bool operator==(const EndpointName&, const EndpointName&) = default;
};

class Management {
 public:
  struct Hooks {
    std::function<uint64_t()> random;  ///< returns 0 if the system has no random numbers
    /// Returns the number of loop iterations of a registered endpoint (EndpointPort::iteration).
    std::function<uint64_t(EndpointName)> iteration;
    /// Sends and clears datagrams(). Called in the middle of a step that makes more than kDatagramsMax datagrams: one
    /// endpoint can end a million sessions. Null: the datagrams of a step are kept until its end.
    std::function<void()> send_datagrams = nullptr;
  };
  static constexpr size_t kDatagramsMax = 256;
  struct Datagram {
    AddressText to;
    wire::ManagementBytes content;
  };
  struct Notice {
    EndpointName to;
    ControlEvent event;
  };

  /// May throw std::bad_alloc.
  Management(const ManagementOptions& options, Hooks hooks);
  /// Returns false if the system gave no random numbers to the constructor. The machine must not be used then.
  bool has_secrets() const { return own_secret_[0] != 0 && own_secret_[1] != 0 && hash_.salt != 0; }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  // Calls of endpoints. NexusCore's functions of the same names have the contracts. They return false if there is no
  // memory; then nothing has changed, and the caller calls again later.
  bool add_endpoint(EndpointName name, std::string_view transport);
  void remove_endpoint(EndpointName name, Duration now);
  bool connect(EndpointName from, std::span<const AddressText> addresses, uint16_t peer_endpoint,
               const SessionTerms& terms, Duration timeout, Duration now);
  bool answer_connect(EndpointName from, uint64_t token, wire::Refusal refusal, const SessionTerms& terms,
                      Duration now);
  void disconnect(EndpointName from, uint32_t local_key, bool is_client_side, Duration now);
  void ask_liveness(EndpointName from, uint32_t local_key, Duration now);  ///< without memory the question is lost

  /// Takes a received datagram. A connect request is queued for on_time(), which is then due at once.
  void on_datagram(std::string_view from, std::span<const std::byte> bytes, Duration now);
  /// Takes a hint, which may be forged. The hint gives the reason of a later failure, and makes a request try the next
  /// address of its server.
  void on_unreachable(std::string_view to, Unreachable why, Duration now);
  void on_time(Duration now);
  /// The time at which on_time() must be called; Duration::max(): not before another call.
  Duration next_deadline() const;

  std::vector<Datagram>& datagrams() { return datagrams_; }  ///< the caller sends and clears them after each call
  std::vector<Notice>& notices() { return notices_; }        ///< the caller delivers and erases them, in order

  /// An event for the log.
  struct Happening {
    LogKind kind = LogKind::kPeerDead;
    AddressText peer;
    Status status;
    uint16_t endpoint = 0;    ///< kSessionRefused: the endpoint that the client asked for
    TransportName transport;  ///< transport of that endpoint; empty if there is no such endpoint
    uint64_t sessions = 0;    ///< kPeerDead, kPeerRestarted: sessions that end
    uint64_t left_out = 0;    ///< see LogEvent::left_out
  };
  /// The caller takes the events after each call, and then calls forget_happenings(). Events beyond the space for them
  /// are left out.
  std::span<const Happening> happenings() const { return std::span(happenings_).first(happenings_count_); }
  void forget_happenings() { happenings_count_ = 0; }

  const ManagementCounters& counters() const { return counters_; }
  size_t sessions() const { return sessions_live_; }

  // For tests. The call takes linear time.
  struct Census {
    size_t peers;
    size_t sessions_established;  ///< accepted, and not ended
  };
  Census census() const;
  /// CHECKs the tables against each other.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr Duration kNever = Duration::max();
  /// The interval to the first repetition of a message. It doubles with each repetition, to at most `max`.
  struct Intervals {
    Duration first, max;
  };
  /// The client confirms at once, so the server asks only if the confirmation was lost.
  static constexpr Intervals kConfirmIntervals{std::chrono::milliseconds(50), std::chrono::milliseconds(500)};
  static constexpr Intervals kCloseIntervals{std::chrono::milliseconds(5), std::chrono::milliseconds(200)};
  static constexpr Intervals kAskIntervals{std::chrono::milliseconds(10), std::chrono::milliseconds(100)};

  /// client:  kFree -> kConnecting -> kOpen -> kClosing -> kFree
  ///                        '-> kFree   '-> kFree (the peer closed it, or is gone)
  /// server:  kFree -> kAsked -> kUnconfirmed -> kOpen -> kClosing -> kClosed -> kFree
  ///                      '---------'-----------------'---------------^ (refused; closed by the peer)
  enum class State : uint8_t {
    kFree,
    kConnecting,   ///< client: the request is repeated until it is answered
    kAsked,        ///< server: the endpoint has not answered yet
    kUnconfirmed,  ///< server: the endpoint has accepted; the client has not confirmed the session
    kOpen,
    kClosing,  ///< the endpoint has left; the disconnect is repeated until the peer acknowledges it
    kClosed,   ///< server: kept only to answer late duplicates of the request
  };
  /// The terms in which few sessions of an endpoint differ.
  struct Offer {
    TransportName transport;
    AddressBytes address;
    uint8_t credit_unit;
  };
  static constexpr size_t kOffersMax = 4096;  ///< of an endpoint, which mostly has one address
  /// An address of the server that a client connects to, and the reason why it did not answer.
  struct Target {
    AddressText address;
    Unreachable why = Unreachable::kSilent;
  };
  /// A connect request of this side.
  struct Request {
    wire::ManagementTerms terms;
    Duration timeout;
    Duration over_at{};           ///< end of the request, on the awake clock
    std::vector<Target> targets;  ///< tried in turn
    size_t target = 0;            ///< index of the address whose turn it is
    size_t turns = 0;             ///< turns that are over
    Duration turn_since{};        ///< beginning of this turn, or of the wait in it before the first datagram
    Duration turn_until = kNever;
    uint64_t cookie = 0;        ///< the server's cookie, which the next datagram echoes
    uint8_t cookies_taken = 0;  ///< cookies that were echoed at once
    bool is_sent = false;
    bool is_counted = false;  ///< the request is counted in Peer::requests_out
  };
  using Requests = std::map<uint32_t, Request>;
  /// A Nexus may have a million sessions, so an open session takes little memory: `requests_` and `questions_` have
  /// what only an unfinished step needs.
  struct Session {
    uint64_t token = 0;       ///< token of the client's request
    uint32_t generation = 1;  ///< generation of the record, which is a part of its cookie
    uint32_t peer = kNone;
    uint32_t previous = kNone, next = kNone;                ///< in the peer's list; `next` also in the free list
    uint32_t timer_place = kNone;                           ///< in timers_; kNone: the timer is not armed
    uint32_t next_by_key = kNone, next_by_request = kNone;  ///< in sessions_by_key_ and sessions_by_request_
    uint32_t local_key = 0, remote_key = 0;
    uint16_t local_endpoint = 0, remote_endpoint = 0;
    // Server: our terms. They stay, because a late duplicate of the request gets the same answer (clause 7.3.5). They
    // have as many bits as wire::is_valid() allows.
    uint32_t payload_bytes_max : 21 = 0;
    State state : 3 = State::kFree;
    uint8_t version = 0;
    uint32_t first_number : 24 = 0, credits : 8 = 0;
    uint32_t path_token : 31 = 0;
    bool is_client : 1 = false;
    uint32_t window : 7 = 0, offer : 12 = 0;  ///< offer: index in the endpoint's offers, while kUnconfirmed or kOpen
    wire::Refusal refusal : 5 = wire::Refusal::kNone;  ///< server: the answer to the request; kNone: accepted
    uint8_t repetitions = 0;                           ///< of the message that waits for an answer
  };
  static_assert(sizeof(Session) == 64, "a million sessions have records");
  static_assert(wire::kPayloadBytesLimit < 1u << 21 && wire::kSlotsMax < 1u << 7 && wire::kNumberMask < 1u << 24 &&
                wire::kTokenMask < 1u << 31 && wire::kRefusals <= 1u << 5 && kOffersMax <= 1u << 12);
  struct SessionName {
    uint32_t index, generation;
  };
  /// The share of one IPv4 address or one IPv6 /64. The record exists as long as a relation with that address.
  struct Source {
    size_t relations = 0;  ///< all relations, including those that this side began
    size_t peers = 0;      ///< relations that the other side began
    size_t sessions = 0;   ///< server records
    size_t asked = 0;      ///< sessions in kAsked
  };
  struct SourceKey {
    uint64_t prefix = 0;
    bool is_v6 = false;
    friend bool operator==(const SourceKey&, const SourceKey&) = default;
  };
  /// An endpoint that was asked whether it receives packets of a peer. It has not answered while life->is_asked().
  struct Asked {
    EndpointName endpoint;
    std::shared_ptr<PeerLife> life;
  };
  struct Peer {
    AddressText address;
    uint64_t own_run = 0;
    uint64_t remote_run = 0;  ///< 0: not known yet
    uint64_t boot_id = 0;     ///< the endpoints' name of this run of the peer
    uint64_t nonce = 0;       ///< nonce of the unanswered ping; 0: there is none
    Duration heard_at{};      ///< time of the last sign of life, or the time when this side began to watch
    Duration heard_awake{};   ///< `heard_at` on the awake clock
    Duration pinged_at{};
    Duration idle_since{};      ///< valid while the relation has no sessions
    Duration answered_at{};     ///< time of the last answer to a request, on the awake clock
    Duration unreachable_at{};  ///< time of the last hint
    Unreachable unreachable = Unreachable::kSilent;
    Duration life_asked_at{};  ///< time of the last kAskLife
    std::vector<Asked> asked;  ///< endpoints that were asked for signs of life
    Source* source = nullptr;
    std::vector<SessionName> waiting;  ///< requests that have not been sent, from index `waiting_first`
    size_t waiting_first = 0;
    uint32_t requests_out = 0;  ///< requests without an answer; at most requests_at_once
    uint32_t generation = 1;
    uint32_t first_session = kNone;
    uint32_t session_count = 0;
    uint32_t watched = 0;  ///< number of sessions in a watched state
    uint32_t pings_unanswered = 0;
    uint32_t next = kNone;  ///< the next relation with the same address, or in the free list
    uint32_t timer_place = kNone;
    bool in_use = false;
    bool is_begun_there = false;  ///< the peer's request began the relation
    bool is_proven = false;       ///< the peer has named this side's run
  };
  struct LocalEndpoint {
    uint64_t registration = 0;
    TransportName transport;
    size_t believed = 0;          ///< sessions in a believed state
    uint64_t told_mark = 0;       ///< the value of told_mark_ at the last notice to this endpoint
    uint64_t seen_iteration = 0;  ///< EndpointPort::iteration when it was read last
    Duration seen_at{};           ///< when that value was first read
    size_t asked = 0;             ///< requests that it has not answered, also those whose session has ended since
    /// Offers of the endpoint's sessions. An endpoint mostly makes only one.
    std::vector<Offer> offers;
  };
  struct Timer {
    Duration at;
    uint32_t index;
    bool is_peer;
    friend bool operator<(const Timer& a, const Timer& b) {
      return std::tie(a.at, a.is_peer, a.index) < std::tie(b.at, b.is_peer, b.index);
    }
  };
  /// A received connect request that waits for on_time().
  struct Arrival {
    AddressText from;
    wire::ManagementMessage request;
  };
  /// An answer that waits for a second look at the endpoint's iteration.
  struct DelayedAnswer {
    Duration due;
    EndpointName endpoint;
    AddressText to;
    wire::ManagementMessage answer;
  };
  /// Strangers choose tokens. Because of the salt they cannot choose buckets.
  struct SaltedHash {
    uint64_t salt;
    size_t operator()(uint64_t key) const;
    size_t operator()(const SourceKey& key) const { return (*this)(key.prefix + key.is_v6); }
    size_t operator()(std::string_view address) const { return (*this)(std::hash<std::string_view>{}(address)); }
  };

  // -- management.cc --

  /// Reserves space for the events of one step, so that notify() cannot fail in that step. Returns false if there is no
  /// memory.
  bool reserve_notices();
  LocalEndpoint* find_endpoint(const EndpointName& name);
  void notify(uint16_t endpoint, ControlEvent event);
  ControlEvent event_of(const Session& session, ControlEvent::Kind kind, Status status) const;
  /// Every call that has a time begins with see(). The time between the deadline that this machine asked for and a
  /// later call counts as this side's absence, and not as silence of the peers.
  void see(Duration now);
  /// The awake clock, which stands still while this side is absent.
  Duration awake(Duration now) const { return now - absent_; }
  /// Returns a random number. Never fails: without random numbers of the system, it makes a number from own_secret_.
  uint64_t random();
  uint64_t random_nonzero();
  static wire::ManagementMessage message_of(wire::ManagementKind kind, const Peer& peer, uint64_t token);
  void send(std::string_view to, const wire::ManagementMessage& m);
  void send_about(uint32_t index, wire::ManagementKind kind);  ///< kConfirm, kDisconnect, kAsk
  Happening* add_happening(LogKind kind);                      ///< null: there is no space

  // -- management_connect.cc: the client side of the handshake --

  Status begin_request(uint16_t endpoint, uint32_t local_key, uint16_t peer_endpoint, Requests::node_type request,
                       Duration now);
  Request& request_of(uint32_t index) { return requests_.find(index)->second; }  ///< of a session in kConnecting
  void begin_turn(uint32_t index, Duration now);
  void start_request(uint32_t index, Duration now);
  void start_waiting_requests(uint32_t peer, Duration now);
  void stop_counting(uint32_t index, Duration now);  ///< the request no longer counts in Peer::requests_out
  void send_request(uint32_t index);
  Duration turn_end(const Request& request, Duration now) const;  ///< end of this turn, or of the request
  void on_connecting_time(uint32_t index, Duration now);
  void note_turn(uint32_t index);
  void try_next_address(uint32_t index, Duration now);
  Status no_answer(const Request& request) const;
  void on_cookie(const wire::ManagementMessage& m, Duration now);
  void on_connect_reply(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void refuse_version(uint32_t index, uint8_t server_version, Duration now);
  void send_unwanted(std::string_view to, const wire::ManagementMessage& reply);
  /// Passes the result to the endpoint, and frees the record. `refusal`: the server's refusal, if it has refused.
  void conclude_connect(uint32_t index, const Status& status, Duration now,
                        wire::Refusal refusal = wire::Refusal::kNone);

  // -- management_accept.cc: the server side of the handshake --

  void take_request(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_requests(Duration now);
  void on_connect_request(std::string_view from, const wire::ManagementMessage& m, Duration now);
  bool answer_repetition(std::string_view from, uint32_t peer, const wire::ManagementMessage& m);
  void ask_endpoint(LocalEndpoint& endpoint, uint32_t peer, const wire::ManagementMessage& m, Duration now);
  bool answer_session(LocalEndpoint& endpoint, EndpointName from, uint64_t token, wire::Refusal refusal,
                      const SessionTerms& terms, Duration now);
  uint32_t relation_named(std::string_view from, const wire::ManagementMessage& request) const;
  uint32_t relation_begun(std::string_view from, Duration now);
  /// Returns the limit that refuses another session of that address; kNone: no limit refuses it.
  wire::Refusal limit_of(uint32_t peer, std::string_view from) const;
  static uint32_t offer_of(LocalEndpoint& endpoint, const SessionTerms& terms);
  void send_reply(std::string_view to, uint32_t index);
  void send_first_reply(uint32_t index);  ///< to the relation's address
  void send_cookie(std::string_view to, const wire::ManagementMessage& request, Duration now);
  void send_refusal(std::string_view to, const wire::ManagementMessage& request, wire::Refusal refusal);
  void note_refusal(std::string_view client, uint16_t endpoint, wire::Refusal refusal);

  // -- management_session.cc: records of sessions --

  static bool is_watched(State state);   ///< the session ends when the peer dies
  static bool is_believed(State state);  ///< the endpoint has the session, or waits for it
  /// Returns kNone if there is no memory; then nothing has changed.
  uint32_t new_session(uint32_t peer, uint16_t local_endpoint, State state, bool is_client, Duration now);
  void free_session(uint32_t index, Duration now);
  void set_state(uint32_t index, State state, Duration now);
  void enter_keys(uint32_t index);  ///< the record's key must be set
  void leave_keys(uint32_t index);
  uint32_t find_key(uint16_t endpoint, bool is_client, uint32_t key) const;
  uint32_t find_request(uint64_t token, uint32_t peer) const;
  size_t key_hash(const Session& session) const {
    return hash_(key_of(session.local_endpoint, session.is_client, session.local_key));
  }
  size_t request_hash(const Session& session) const { return hash_(session.token + session.peer); }
  void end_session(uint32_t index, Duration now);  ///< frees a client's record; a server's record lingers
  void begin_closing(uint32_t index, Duration now);
  void on_session_time(uint32_t index, Duration now);
  static uint64_t key_of(uint16_t endpoint, bool is_client, uint32_t key) {
    return static_cast<uint64_t>(endpoint) << 33 | static_cast<uint64_t>(is_client) << 32 | key;
  }
  uint64_t cookie_of(uint32_t index) const { return static_cast<uint64_t>(sessions_[index].generation) << 32 | index; }
  uint32_t find_local(const EndpointName& from, uint32_t local_key, bool is_client);
  uint32_t find_named(const wire::ManagementMessage& m) const;
  uint32_t find_cookie(uint64_t cookie, uint64_t token) const;
  void on_confirm(const wire::ManagementMessage& m, Duration now);
  void on_disconnect(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_disconnect_ack(const wire::ManagementMessage& m, Duration now);
  void on_ask(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_answer(const wire::ManagementMessage& m, Duration now);

  // -- management_peer.cc: relations --

  static SourceKey source_of(std::string_view address);
  uint32_t first_peer_at(std::string_view address) const;
  uint32_t peer_of_run(uint64_t own_run) const;
  /// Returns kNone if the table is full or there is no memory; then nothing has changed.
  uint32_t new_peer(const AddressText& address, bool is_begun_there, Duration now);
  void free_peer(uint32_t index);
  void adopt(uint32_t index, uint64_t remote_run, Duration now);
  void hear(Peer& peer, Duration now) const;  ///< a sign of life
  static bool has_left_address(const Peer& peer);
  void ping(uint32_t index, Duration now);
  void probe(uint32_t index, Duration now);
  void on_ping(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_pong(const wire::ManagementMessage& m, Duration now);
  void on_peer_time(uint32_t index, Duration now);
  void ask_life(uint32_t index, Duration now);
  static bool owes_answers(const Peer& peer);
  void look_for_life(uint32_t index, Duration now);
  bool is_dead(const Peer& peer) const;
  static Status silence_of(const Peer& peer);
  void peer_gone(uint32_t index, const Status& status, Duration now);
  Duration period() const { return options_.liveness_timeout / 4; }
  Duration retry_period() const { return options_.liveness_timeout / 32; }

  // -- management_timers.cc --

  bool reserve_timer();  ///< reserves space for one more record. False: no memory
  void arm_peer(uint32_t index, Duration at);
  void arm_session(uint32_t index, Duration at);
  static Duration interval_of(const Session& session, const Intervals& intervals);
  void repeat_later(uint32_t index, const Intervals& intervals, Duration now, Duration until = kNever);
  void arm(uint32_t place, Timer timer);
  void put_timer(size_t place, const Timer& timer);
  void move_timer(size_t place);
  void remove_timer(uint32_t place);

  // -- management_check.cc --

  void check_sessions() const;
  void check_timers() const;
  void check_peers() const;
  void check_shares() const;

  const ManagementOptions options_;
  const Hooks hooks_;
  const std::array<uint64_t, 2> own_secret_;  ///< for random()
  uint64_t own_randoms_ = 0;
  uint64_t told_mark_ = 0;  ///< number of the last walk over a peer's sessions that notifies each endpoint once
  Duration not_before_{};   ///< if there is no memory, timers wait until then
  Duration seen_at_{};      ///< the time of the last call
  Duration absent_{};       ///< the sum of all absences (clause 7.5.2)
  const SaltedHash hash_;
  Cookies cookies_;
  bool has_had_endpoint_ = false;
  ManagementCounters counters_;
  std::unordered_map<uint16_t, LocalEndpoint> endpoints_;
  std::deque<Peer> peers_;
  uint32_t free_peers_ = kNone;
  std::unordered_map<uint64_t, uint32_t, SaltedHash> peers_by_run_;
  /// The newest relation with the address, which points to that relation's text. Older ones follow by `next`.
  std::unordered_map<std::string_view, uint32_t, SaltedHash> peers_by_address_;
  std::unordered_map<SourceKey, Source, SaltedHash> sources_;
  base::StableVector<Session> sessions_;
  uint32_t free_sessions_ = kNone;
  size_t sessions_live_ = 0;
  Requests requests_;                       ///< by session: the requests of those in kConnecting
  std::map<uint32_t, Duration> questions_;  ///< by session: ends of the questions of ask_liveness() about open ones
  RecordIndex<Session, &Session::next_by_key> sessions_by_key_;          ///< kConnecting, kUnconfirmed, kOpen
  RecordIndex<Session, &Session::next_by_request> sessions_by_request_;  ///< server, all states; by token and peer
  std::vector<Timer> timers_;                       ///< a binary heap; at most one timer for each record
  base::RingQueue<DelayedAnswer> delayed_answers_;  ///< in order of `due`
  base::RingQueue<Arrival> of_peers_, of_strangers_;
  std::vector<Datagram> datagrams_;
  std::vector<Notice> notices_;
  /// The space is a part of the object, so that it needs no memory. One call of this class makes few events, except in
  /// a Nexus with many peers that may have been absent.
  std::array<Happening, 32> happenings_;
  size_t happenings_count_ = 0;
  base::LogLimit refusals_told_;
};

}  // namespace tern::nexus
