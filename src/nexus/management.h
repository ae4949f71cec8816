// Sessions over the Nexus's management channel, as a pure state machine (docs/protocol.md, chapter 7, 7).
// Nexus room. Time and randomness are arguments; what it wants to send and to tell endpoints is pulled after each
// call. Not thread-safe: NexusCore drives it in the management channel's thread. Knows no sockets, clocks or locks.
//
// Nothing here throws once the machine is made. What grows is reserved before state changes: a datagram for which
// there is no memory is as if lost, a timer looks again in a millisecond, and a call of an endpoint's says so.
//
// What two Nexuses know of each other is a relation (Peer). Each side names it by a random number, its run; a side
// that has forgotten the other takes a new one. So a restart, a peer that has given us up, and a stranger's
// guess look the same: a ping is answered with "I do not know that run", and the sessions of the relation end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <tern/environment.h>

#include "base/ring_queue.h"
#include "nexus/control.h"
#include "nexus/cookies.h"
#include "wire/header.h"
#include "wire/management.h"

namespace tern::nexus {

struct ManagementOptions {
  Duration liveness_timeout = std::chrono::milliseconds(500);
  uint8_t version_min = wire::kVersion;  ///< of the data path, offered as a range
  uint8_t version_max = wire::kVersion;
  Duration retry_min = std::chrono::milliseconds(2);  ///< first repetition of a request; doubles
  Duration retry_max = std::chrono::milliseconds(100);
  /// How long an ended server session still answers its request's late duplicates, and an idle relation is kept.
  Duration linger = std::chrono::seconds(5);
  size_t peers_max = 65536;        ///< relations; beyond it strangers are refused
  size_t sessions_max = 1u << 22;  ///< records, ended ones included; beyond it requests are refused
  /// Relations with one address and port: a Nexus that reaches us by several of our addresses has as many.
  uint32_t peers_per_port_max = 4;
  // What clients of one IPv4 address, or one IPv6 /64, may have. The first two are options of NexusOptions.
  size_t peers_per_address_max = 1024;
  size_t sessions_per_address_max = 65536;  ///< server records, those that ended in the last seconds included
  size_t asked_per_address_max = 4096;      ///< requests that wait for endpoints' answers; beyond it they are lost
  /// Requests to one peer that are out at a time; more wait, so that thousands of sessions that are begun at once do
  /// not drown the peer's socket, and with it everybody's pings. More only wait in that socket, until they are
  /// repeated.
  uint32_t requests_at_once = 32;
  size_t asked_max = 16384;  ///< requests that wait for one endpoint's answer; beyond it they are lost
  /// Connect requests are looked at after everything else that has arrived, so many in one on_time(): those of known
  /// peers first, then strangers'. 32 strangers take 0.1 ms, in which no socket buffer overflows.
  size_t requests_per_turn = 32;
  size_t requests_waiting_max = 64;  ///< of either sort; beyond it they are lost
};

/// What was dropped or repeated. One line per reason, so that docs and tests can name them.
struct ManagementCounters {
  uint64_t dropped[wire::kManagementDrops] = {};  ///< by wire::ManagementDrop
  uint64_t stale = 0;                             ///< well-formed, but of another run, token or session
  uint64_t repeated = 0;                          ///< a connect request that had been answered or forwarded already
  uint64_t over_limit = 0;                        ///< refused or lost because a table is full
  uint64_t refused = 0;                           ///< refusals sent
  uint64_t cookies = 0;                           ///< requests answered with a cookie, and forgotten
  uint64_t no_memory = 0;                         ///< datagrams that are as if lost, timers and calls that come again
  uint64_t peers_gone = 0;
};

/// One registration of an endpoint id: ids are reused, registrations never.
struct EndpointName {
  uint16_t id = 0;
  uint64_t registration = 0;
  friend bool operator==(const EndpointName&, const EndpointName&) = default;
};

class Management {
 public:
  struct Hooks {
    std::function<uint64_t()> random;  ///< 0: the system refuses; never in the machine's constructor
    /// EndpointPort::iteration of a registered endpoint.
    std::function<uint64_t(EndpointName)> iteration;
  };
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
  /// False: the system gave no random numbers; the machine is not to be used.
  bool has_secrets() const { return own_secret_[0] != 0 && own_secret_[1] != 0 && hash_.salt != 0; }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  // What endpoints want; NexusCore's members of the same names say what each means. False: there was no memory for it,
  // nothing has changed, and it is to be called again.
  bool add_endpoint(EndpointName name, std::string_view transport);
  void remove_endpoint(EndpointName name, Duration now);
  bool connect(EndpointName from, std::span<const AddressText> addresses, uint16_t peer_endpoint,
               const SessionTerms& terms, Duration timeout, Duration now);
  bool answer_connect(EndpointName from, uint64_t token, const Status& status, const SessionTerms& terms, Duration now);
  void disconnect(EndpointName from, uint32_t local_key, bool is_client_side, Duration now);
  void ask_liveness(EndpointName from, uint32_t local_key, Duration now);

  /// A stranger's bytes. Connect requests wait for on_time(), which next_deadline() then wants at once.
  void on_datagram(std::string_view from, std::span<const std::byte> bytes, Duration now);
  /// A hint that anybody may have forged: it gives the reason of a later failure, and lets a request go on to the next
  /// address of its server.
  void on_unreachable(std::string_view to, Unreachable why, Duration now);
  void on_time(Duration now);
  /// When on_time() has something to do; Duration::max(): never.
  Duration next_deadline() const;

  std::vector<Datagram>& datagrams() { return datagrams_; }  ///< to be sent and cleared
  std::vector<Notice>& notices() { return notices_; }        ///< to be delivered in order; what was is to be erased

  const ManagementCounters& counters() const { return counters_; }
  size_t peers() const { return peers_by_run_.size(); }
  size_t sessions() const { return sessions_live_; }
  /// Sessions that this side believes in: from the endpoint's or the server's yes until the end.
  size_t sessions_established() const;
  /// CHECKs the tables against each other. For tests; linear.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr Duration kNever = Duration::max();

  /// client:  kFree -> kConnecting -> kOpen -> kClosing -> kFree
  ///                        '-> kFree   '-> kFree (the peer closed it, or is gone)
  /// server:  kFree -> kAsked -> kUnconfirmed -> kOpen -> kClosing -> kClosed -> kFree
  ///                      '---------'-----------------'---------------^ (refused; closed by the peer)
  enum class State : uint8_t {
    kFree,
    kConnecting,   ///< client: the request is repeated until it is answered
    kAsked,        ///< server: the endpoint has not answered yet
    kUnconfirmed,  ///< server: accepted, the client has not shown that it knows
    kOpen,
    kClosing,  ///< the endpoint has left; the peer is told until it acknowledges
    kClosed,   ///< server: kept only to answer late duplicates of the request
  };
  /// What an endpoint offers is the same for all of its sessions: kept once.
  struct Offer {
    TransportName transport;
    AddressBytes address;
  };
  /// An address of the server that a client connects to, and what is known of it.
  struct Target {
    AddressText address;
    Unreachable why = Unreachable::kSilent;
  };
  /// A client's wish while it connects.
  struct Request {
    wire::ManagementTerms terms;
    Duration timeout;
    Duration over_at{};           ///< on the awake clock
    std::vector<Target> targets;  ///< which have their turns, from `target` on
    size_t target = 0;
    size_t turns = 0;  ///< that are over
    Duration turn_until = kNever;
    Duration sent_at{};         ///< of this turn, the first time
    uint64_t cookie = 0;        ///< the server's, to be echoed
    uint8_t cookies_taken = 0;  ///< repetitions that did not wait for the timer
    bool is_sent = false;
    bool is_counted = false;  ///< in Peer::requests_out
  };
  /// 20 000 sessions are ordinary: about 152 B here and 80 B in the two tables.
  struct Session {
    uint64_t token = 0;  ///< of the client's request
    Duration timer_at = kNever;
    Duration until = kNever;             ///< kConnecting: this turn or all is over; kOpen: stops asking then
    std::unique_ptr<Request> request;    ///< kConnecting
    std::shared_ptr<const Offer> offer;  ///< server, kUnconfirmed and kOpen
    uint32_t generation = 1;             ///< of this record; part of its cookie
    uint32_t peer = kNone;
    uint32_t previous = kNone, next = kNone;  ///< in the peer's list; `next` also in the free list
    uint32_t previous_of_endpoint = kNone, next_of_endpoint = kNone;  ///< while the endpoint believes in it
    uint32_t timer_place = kNone;                                     ///< in timers_
    uint32_t local_key = 0, remote_key = 0;
    uint32_t payload_bytes_max = 0;  ///< our terms, server
    uint32_t interval_us = 0;        ///< until the next repetition
    uint16_t local_endpoint = 0, remote_endpoint = 0;
    uint32_t first_number = 0;  ///< our terms, server; likewise the next three
    uint32_t path_token = 0;
    wire::CreditUnit credit_unit = wire::CreditUnit::kPackets;
    uint8_t window = 0, credits = 0;
    uint8_t version = 0;
    State state = State::kFree;
    bool is_client = false;
    bool is_asking = false;  ///< the endpoint waits for kLiveness
    Code code = Code::kOk;   ///< server: the answer that was given
    wire::Refusal refusal = wire::Refusal::kNone;
  };
  struct SessionName {
    uint32_t index, generation;
  };
  /// What clients of one IPv4 address, or one IPv6 /64, have here.
  struct Source {
    size_t relations = 0;  ///< all, ours included: the record lasts as long as there is one
    size_t peers = 0;      ///< relations that were begun there
    size_t sessions = 0;   ///< server records
    size_t asked = 0;
  };
  struct SourceKey {
    uint64_t prefix = 0;
    bool is_v6 = false;
    friend bool operator==(const SourceKey&, const SourceKey&) = default;
  };
  /// An endpoint that has been asked whether it hears a peer. It owes the answer while `life` is asked.
  struct Asked {
    EndpointName endpoint;
    std::shared_ptr<PeerLife> life;
  };
  struct Peer {
    AddressText address;
    uint64_t own_run = 0;
    uint64_t remote_run = 0;  ///< 0: not known
    uint64_t boot_id = 0;     ///< what endpoints know this run of the peer by; new whenever one is adopted
    uint64_t nonce = 0;       ///< of the unanswered ping; 0: none
    Duration heard_at{};      ///< last sign of life, or begin of watching
    Duration heard_awake{};   ///< when that was on the awake clock
    Duration pinged_at{};
    Duration timer_at = kNever;
    Duration idle_since{};      ///< while it has no sessions
    Duration answered_at{};     ///< the last answer to a request, on the awake clock
    Duration unreachable_at{};  ///< the last hint
    Unreachable unreachable = Unreachable::kSilent;
    Duration life_asked_at{};  ///< the last kAskLife
    std::vector<Asked> asked;  ///< endpoints that were asked for signs of life
    Source* source = nullptr;
    std::vector<SessionName> waiting;  ///< requests that wait for their turn, from `waiting_first` on
    size_t waiting_first = 0;
    uint32_t requests_out = 0;
    uint32_t generation = 1;
    uint32_t first_session = kNone;
    uint32_t session_count = 0;
    uint32_t watched = 0;  ///< sessions that need the peer alive
    uint32_t pings_unanswered = 0;
    uint32_t next = kNone;  ///< relation with the same address, or in the free list
    uint32_t timer_place = kNone;
    bool in_use = false;
    bool is_begun_there = false;  ///< by a request of the peer's
    bool is_proven = false;       ///< the peer has named the run by which it knows us
  };
  struct LocalEndpoint {
    uint64_t registration = 0;
    TransportName transport;
    uint32_t first_session = kNone;  ///< of those that it believes in
    uint64_t told_mark = 0;          ///< `told_mark_`, once this walk over a peer's sessions has met one of its
    uint64_t seen_iteration = 0;     ///< the last look, and when that value was first seen
    Duration seen_at{};
    size_t asked = 0;
    std::shared_ptr<const Offer> offer;
  };
  struct Timer {
    Duration at;
    uint32_t index;
    bool is_peer;
    friend bool operator<(const Timer& a, const Timer& b) {
      return std::tie(a.at, a.is_peer, a.index) < std::tie(b.at, b.is_peer, b.index);
    }
  };
  /// A connect request that waits for its turn.
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
  struct RequestName {
    uint64_t token;
    uint32_t peer;
    friend bool operator==(const RequestName&, const RequestName&) = default;
  };
  /// Strangers choose tokens: the salt keeps them from choosing buckets.
  struct SaltedHash {
    uint64_t salt;
    size_t operator()(uint64_t key) const;
    size_t operator()(const RequestName& name) const { return (*this)(name.token + name.peer); }
    size_t operator()(const SourceKey& key) const { return (*this)(key.prefix + key.is_v6); }
    size_t operator()(std::string_view address) const { return (*this)(std::hash<std::string_view>{}(address)); }
  };

  static bool is_watched(State state);
  static bool is_believed(State state);
  static SourceKey source_of(std::string_view address);
  static uint64_t key_of(uint16_t endpoint, bool is_client, uint32_t key) {
    return static_cast<uint64_t>(endpoint) << 33 | static_cast<uint64_t>(is_client) << 32 | key;
  }
  static wire::ManagementMessage message_of(wire::ManagementKind kind, const Peer& peer, uint64_t token);

  /// Room for what one step may tell endpoints: after it notify() cannot fail.
  bool make_room();
  /// As random as the hook, whatever the system says after the machine was made.
  uint64_t random();

  // Peers.
  /// kNone: the table is full, or there is no memory; nothing has changed.
  uint32_t new_peer(const AddressText& address, bool is_begun_there, Duration now);
  uint32_t first_peer_at(std::string_view address) const;
  uint32_t peer_of_run(uint64_t own_run) const;
  void free_peer(uint32_t index);
  void on_peer_time(uint32_t index, Duration now);
  void ping(uint32_t index, Duration now);
  void probe(uint32_t index, Duration now);
  void ask_life(uint32_t index, Duration now);
  void look_for_life(uint32_t index, Duration now);
  void hear(Peer& peer, Duration now) const;
  static bool owes_answers(const Peer& peer);
  bool is_dead(const Peer& peer) const;
  static Status silence_of(const Peer& peer);
  void peer_gone(uint32_t index, const Status& status, Duration now);
  void adopt(uint32_t index, uint64_t remote_run, Duration now);
  void arm_peer(uint32_t index, Duration at);
  Duration period() const { return options_.liveness_timeout / 4; }
  Duration retry_period() const { return options_.liveness_timeout / 32; }

  // Sessions.
  /// kNone: no memory; nothing has changed.
  uint32_t new_session(uint32_t peer, uint16_t local_endpoint, State state, bool is_client, Duration now);
  void free_session(uint32_t index, Duration now);
  void set_state(uint32_t index, State state, Duration now);
  void leave_keys(const Session& session);
  void end_session(uint32_t index, Duration now);  ///< a client's record goes, a server's lingers
  void begin_closing(uint32_t index, Duration now);
  void on_session_time(uint32_t index, Duration now);
  void on_connecting_time(uint32_t index, Duration now);
  Status begin_request(uint16_t endpoint, uint32_t local_key, uint16_t peer_endpoint, std::unique_ptr<Request> request,
                       Duration now);
  void try_next_address(uint32_t index, Duration now);
  void set_until(Session& session, Duration now) const;
  void note_turn(const Session& session) const;
  Status no_answer(const Request& request) const;
  void start_request(uint32_t index, Duration now);
  void start_waiting_requests(uint32_t peer, Duration now);
  void stop_counting(uint32_t index, Duration now);
  void arm_session(uint32_t index, Duration at);
  void arm(Duration& timer_at, uint32_t& place, Timer timer);
  void put_timer(size_t place, const Timer& timer);
  void move_timer(size_t place);
  void remove_timer(uint32_t place);
  bool has_timer_room();
  void repeat_later(uint32_t index, Duration interval_max, Duration now);
  uint32_t find_local(const EndpointName& from, uint32_t local_key, bool is_client);
  uint32_t find_named(const wire::ManagementMessage& m) const;
  uint32_t find_cookie(uint64_t cookie, uint64_t token) const;
  uint64_t cookie_of(uint32_t index) const { return static_cast<uint64_t>(sessions_[index].generation) << 32 | index; }
  void conclude_connect(uint32_t index, const Status& status, Duration now);
  bool fill_terms(const SessionTerms& from, wire::ManagementTerms& to) const;

  // Messages in.
  void take_request(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_requests(Duration now);
  void on_cookie(const wire::ManagementMessage& m, Duration now);
  /// Why no session of that address can be had now, if it cannot.
  wire::Refusal limit_of(uint32_t peer, std::string_view from) const;
  void on_connect_request(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_connect_reply(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void refuse_version(uint32_t index, uint8_t server_version, Duration now);
  void on_confirm(const wire::ManagementMessage& m, Duration now);
  uint32_t relation_named(std::string_view from, const wire::ManagementMessage& request) const;
  uint32_t relation_begun(std::string_view from, Duration now);
  void on_disconnect(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_disconnect_ack(const wire::ManagementMessage& m, Duration now);
  void on_ping(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_pong(const wire::ManagementMessage& m, Duration now);
  void on_ask(std::string_view from, const wire::ManagementMessage& m, Duration now);
  void on_answer(const wire::ManagementMessage& m, Duration now);

  // Messages and events out.
  void send(std::string_view to, const wire::ManagementMessage& m);
  void send_request(uint32_t index);
  void send_reply(uint32_t index);
  void send_about(uint32_t index, wire::ManagementKind kind);  ///< kConfirm, kDisconnect, kAsk
  void send_cookie(std::string_view to, const wire::ManagementMessage& request, Duration now);
  void send_refusal(std::string_view to, const wire::ManagementMessage& request, wire::Refusal refusal);
  void send_unwanted(std::string_view to, const wire::ManagementMessage& reply);
  ControlEvent event_of(const Session& session, ControlEvent::Kind kind, Status status) const;
  void notify(uint16_t endpoint, ControlEvent event);
  LocalEndpoint* find_endpoint(const EndpointName& name);

  uint64_t random_nonzero();

  /// Every call with a time begins with it. What passes after the time at which this machine wanted to be called is
  /// its own absence, not the peers' silence.
  void see(Duration now);
  /// The awake clock, which stands while this side is absent.
  Duration awake(Duration now) const { return now - absent_; }

  const ManagementOptions options_;
  const Hooks hooks_;
  const std::array<uint64_t, 2> own_secret_;  ///< for random()
  uint64_t own_randoms_ = 0;
  uint64_t told_mark_ = 0;  ///< of the last walk over a peer's sessions that tells each endpoint once
  Duration not_before_{};   ///< there was no memory: timers wait until then
  Duration seen_at_{};      ///< the time of the last call
  Duration absent_{};       ///< all absences so far (clause 7.5.2)
  const SaltedHash hash_;
  Cookies cookies_;
  bool has_had_endpoint_ = false;
  ManagementCounters counters_;
  std::unordered_map<uint16_t, LocalEndpoint> endpoints_;
  std::deque<Peer> peers_;
  uint32_t free_peers_ = kNone;
  std::unordered_map<uint64_t, uint32_t, SaltedHash> peers_by_run_;
  /// The newest relation, whose text is the key; others follow by `next`.
  std::unordered_map<std::string_view, uint32_t, SaltedHash> peers_by_address_;
  std::unordered_map<SourceKey, Source, SaltedHash> sources_;
  std::deque<Session> sessions_;
  uint32_t free_sessions_ = kNone;
  size_t sessions_live_ = 0;
  std::unordered_map<uint64_t, uint32_t, SaltedHash> sessions_by_key_;         ///< kConnecting, kUnconfirmed, kOpen
  std::unordered_map<RequestName, uint32_t, SaltedHash> sessions_by_request_;  ///< server, all states
  std::vector<Timer> timers_;                       ///< a binary heap; room for one of each record
  base::RingQueue<DelayedAnswer> delayed_answers_;  ///< in order of `due`
  base::RingQueue<Arrival> of_peers_, of_strangers_;
  std::vector<Datagram> datagrams_;
  std::vector<Notice> notices_;
};

}  // namespace tern::nexus
