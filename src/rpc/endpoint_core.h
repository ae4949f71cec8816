// Everything of an endpoint but its packets: sessions, calls, handlers, timers, the order of what happens when.
// RpcCore<Impl> adds the transport and the loop. Owner thread only, the mailbox excepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include <tern/detail/export.h>
#include <tern/endpoint.h>
#include <tern/nexus.h>

#include "base/pool.h"
#include "base/try.h"
#include "cc/departure_queue.h"
#include "cc/timing_wheel.h"
#include "memory/arena.h"
#include "nexus/control.h"
#include "nexus/nexus_core.h"
#include "rpc/mailbox.h"
#include "rpc/peers.h"
#include "session/client_session.h"
#include "session/credit_policy.h"
#include "session/server_session.h"
#include "session/session_table.h"
#include "transport/transport.h"

namespace tern::rpc {

/// A call that waits for a slot, or for its session to open.
struct QueuedCall {
  detail::Buffer* request;
  detail::Buffer* response;
  uint64_t deadline_ns;
  uint32_t sequence;
  uint16_t type;
  session::Continuation continuation;
};

/// A session that is being opened.
struct Opening {
  uint64_t timeout_ns;
  uint64_t until_ns = 0;  ///< once the server has said yes
  uint64_t next_path_probe_ns;
  uint64_t path_probe_gap_ns;
  uint64_t asked_at_ns;                             ///< for this session
  uint64_t patience_ns;                             ///< for an answer of the data address, then all begins anew
  uint64_t over_at_ns;                              ///< the end of that patience
  std::vector<nexus::AddressText> nexus_addresses;  ///< of the server's host name
  uint64_t pair_at_ns;      ///< without an answer until then, one address and port pair is tried
  bool has_paired = false;  ///< it was tried
  transport::PathError path_error = transport::PathError::kNone;  ///< the last one of its packets
  nexus::AddressBytes data_address;                               ///< of the server
  nexus::AddressText nexus_address;                               ///< the one that has answered
  nexus::SessionTerms wish;
  uint16_t peer_endpoint;
};

/// The client end of a session and what the endpoint keeps with it. What every call touches comes first, here and in
/// the session: three cache lines, then the session's own slots and packets.
struct alignas(64) Client {
  Client(const session::ClientTerms& terms, session::ClientPools& pools) : session(terms, pools) {}

  transport::PeerId peer = 0;
  bool is_listed_to_send = false;
  bool is_ticking = false;    ///< on ticking_
  bool is_resting = false;    ///< in resting_
  bool is_departing = false;  ///< paced: in the timing wheel, and listed to send when its time comes
  bool is_dead = false;       ///< its key is retired; freed when no list names it
  bool is_opening = false;
  bool is_accepted = false;
  bool has_peer = false;
  bool is_in_path_probes = false;
  bool is_pair_probe_due = false;  ///< of an open session, in path_probes_
  session::ClientSession session;
  uint64_t name = 0;                              ///< tern::Session
  std::unique_ptr<std::deque<QueuedCall>> queue;  ///< null: empty
  uint64_t rest_until_ns = 0;                     ///< is_resting
  uint64_t peer_lost_ns = 0;         ///< since when the transport knows the peer to be gone; 0: it does not
  std::unique_ptr<Opening> opening;  ///< null: open
  Status end_status;                 ///< is_dead: of the calls that it had
  uint8_t slots = 0;                 ///< that it may have; of slots_max_
  Run* run = nullptr;                ///< is_accepted, and not dead
  base::ListLinks<Client> in_run;
  bool is_ending = false;  ///< in ending_
};

/// The server end of a session, laid out likewise: two lines.
struct alignas(64) Server {
  Server(const session::ServerTerms& terms, session::ServerPools& pools) : session(terms, pools) {}

  transport::PeerId peer = 0;
  bool is_listed_to_send = false;
  bool is_dead = false;
  Run* run = nullptr;  ///< until it is dead
  session::ServerSession session;
  base::ListLinks<Server> in_run;
  base::ListLinks<Server> in_path_list;
  uint64_t path_until_ns = 0;  ///< without a path, it ends then
  uint64_t heard_ns = 0;       ///< the last proved packet that was not of the common case
  bool has_pair_peer = false;
  transport::PeerId pair_peer = 0;  ///< where the client may be, which has not proved it yet (clause 7.7.4)
  uint32_t pair_token = 0;          ///< that only `pair_peer` has been told
  bool is_pathless = false;         ///< in EndpointCore::pathless_; else in proved_, until it is dead
  uint64_t name = 0;                ///< in the table of sessions
  uint32_t abandoned = 0;           ///< requests that the application has and the client has given up

  /// Of one list or the other.
  struct InPathList {
    static base::ListLinks<Server>& of(Server& server) { return server.in_path_list; }
    static const base::ListLinks<Server>& of(const Server& server) { return server.in_path_list; }
  };
};

/// A response's memory counts against the budget, and has a Claim, where it has more bytes than this: what one packet
/// has on most networks. What is smaller is limited by the number of sessions.
inline constexpr uint32_t kUncountedBytes = 1024;
/// The claim of a buffer that counts against a budget is where its owner may note what he likes.
inline Claim* claim_of(const detail::Buffer* buffer) { return static_cast<Claim*>(static_cast<void*>(buffer->next)); }
inline void set_claim(detail::Buffer* buffer, Claim* claim) {
  buffer->next = static_cast<detail::Buffer*>(static_cast<void*>(claim));
}

/// What came of a session's turn to send.
enum class SendTurn : uint8_t {
  kDone,     ///< nothing is left, or it waits for what will list the session again
  kMore,     ///< there is more, but not now
  kRefused,  ///< likewise, for the transport has no room
};

/// Sessions that have something to send, each at most once. Room for all of them is made when they are made, so that
/// adding one is a store.
template <class T>
class SendList {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T* operator[](size_t index) const { return items_[index]; }
  /// Since the last one was added or has sent something the transport has refused a packet of each.
  bool wait_for_room() const { return refused_in_a_row_ >= size_; }
  /// False: no memory, and nothing has changed.
  [[nodiscard]] bool make_room(size_t sessions) {
    return sessions <= items_.size() || base::try_grow([&] { items_.resize(2 * sessions); });
  }
  void add(T* item) {
    items_[size_++] = item;
    refused_in_a_row_ = 0;
  }
  /// Gives each its turn, and keeps those that are not done. After kRefusedMax refusals the others have theirs first
  /// the next time: thousands of sessions with a full queue must not be looked at in each iteration.
  template <class F>
  [[gnu::always_inline]] void take_turns(F&& send) {
    const size_t size = std::exchange(size_, 0);
    size_t refused = 0;
    size_t i = 0;
    for (; i < size; i++) {
      const SendTurn turn = send(items_[i]);
      if (turn == SendTurn::kDone) [[likely]]
        continue;
      items_[size_++] = items_[i];
      if (turn == SendTurn::kRefused && ++refused == kRefusedMax) {
        i++;
        break;
      }
    }
    if (size_ != 0) [[unlikely]]
      put_refused_last(i, size, refused);
  }
  void clear() { size_ = 0; }

 private:
  static constexpr size_t kRefusedMax = 64;

  /// The first `tried` of `size` have had their turn, and size_ of them are kept.
  [[gnu::noinline]] void put_refused_last(size_t tried, size_t size, size_t refused) {
    const auto begin = items_.begin();
    const auto end = std::move(begin + static_cast<ptrdiff_t>(tried), begin + static_cast<ptrdiff_t>(size),
                               begin + static_cast<ptrdiff_t>(size_));
    std::rotate(begin, begin + static_cast<ptrdiff_t>(size_), end);
    size_ += size - tried;
    refused_in_a_row_ = refused == tried ? refused_in_a_row_ + refused : 0;
  }

  std::vector<T*> items_;
  size_t size_ = 0;
  size_t refused_in_a_row_ = 0;
};

/// How a call ends whose deadline comes first.
inline const Status kLateCall(Code::kDeadline, "the call's deadline passed before its response was complete");

class TERN_API EndpointCore {
 public:
  virtual ~EndpointCore();
  EndpointCore(const EndpointCore&) = delete;
  EndpointCore& operator=(const EndpointCore&) = delete;

  // -- The public face (Endpoint forwards to these) --

  Status add_handler(uint16_t type, std::unique_ptr<Endpoint::Handler> handler, const HandlerOptions& options);
  Result<Session> create_session(std::string_view uri, const SessionOptions& options);
  Status destroy_session(Session session);
  bool is_open(Session session) const;
  MsgBuf alloc_msgbuf(size_t len_bytes);
  Endpoint::Started start_call(Session session, uint16_t type, MsgBuf& request, MsgBuf& response, Duration deadline);
  Status refusal() const { return refusal_; }
  Status cancel(CallId call);
  Duration now();
  Status add_timer(Duration delay, detail::InlineFunction<> then);
  Status add_post(detail::InlineFunction<> then) {
    return port_.is_orphaned() ? nexus::kNexusGone : mailbox_->push_post(std::move(then));
  }
  void stop();
  const EndpointCounters& counters() const { return counters_; }
  uint16_t id() const { return options_.endpoint_id; }

  // -- For tests --

  static EndpointCore& of(Endpoint& endpoint) { return *endpoint.core_; }
  /// CHECKs sessions, lists, flags, counts and the owners of buffers against each other. Between two iterations.
  void check_invariants() const;
  /// What an endpoint at rest, without sessions, has not.
  struct Census {
    size_t client_sessions = 0, server_sessions = 0;
    size_t requests_open = 0;  ///< with the application, or arriving
    size_t buffers_out = 0;    ///< of message memory, the endpoint's own excepted; the program's are among them
    size_t arriving_bytes = 0, response_bytes = 0;  ///< of the two budgets
    uint64_t next_due_ns = UINT64_MAX;
  };
  Census census() const;
  template <class F>
  void for_each_client_session(F&& f) const {
    clients_.for_each([&](const Client* client) { f(client->session); });
  }

  template <class F>
  void for_each_server_session(F&& f) const {
    servers_.for_each([&](const Server* server) { f(server->session); });
  }
  /// Null: there is none.
  const session::ClientSession* client_session(Session session) const {
    const Client* client = find_client(session);
    return client == nullptr ? nullptr : &client->session;
  }

  /// A packet, which may be anything, waits to be received: asks for the cache lines of its session. Between two
  /// packets of one of many endpoints in a simulation, others have had the cache. Inline to the end: for the compiler,
  /// a function that only prefetches is one without effect, to which it drops the calls.
  [[gnu::always_inline]] void prefetch(const wire::Header& header) const {
    if (wire::is_from_client(header.kind())) {
      if (const Server* server = servers_.find(header.session_key())) server->session.prefetch_all();
    } else {
      if (const Client* client = clients_.find(header.session_key())) client->session.prefetch();
    }
  }

  /// For simulated time: the iteration that has just returned takes its time still, until it is told otherwise.
  void stay_in_callback(bool is_inside) {
    const uint64_t iteration = port_.iteration.load(std::memory_order_relaxed);
    if ((iteration % 2 == 1) == is_inside) return;
    // The next iteration follows the last one, whatever was between them.
    port_.iteration.store(is_inside ? iteration + 1 : iteration - 1, std::memory_order_relaxed);
  }

  // -- Requests on their way back (Request forwards to these; owner thread) --

  /// The slot's response buffer, once the network has let go of it, becomes the request's. Null: there is none.
  detail::Buffer* take_room(Incoming* incoming);
  void on_answered(Incoming* incoming);

 protected:
  EndpointCore(nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received, const RpcOptions& options,
               std::string_view transport, uint64_t rto_ns_min, CongestionControl default_control);

  // The transport, for control only: no packet of a call goes this way.
  virtual Result<transport::PeerId> connect_peer(const nexus::AddressBytes& address, std::string_view host) = 0;
  /// transport::TransportImpl: the optional part. kUnavailable: this transport has it not.
  virtual bool can_pair() const = 0;
  virtual Result<transport::PeerId> connect_paired(const nexus::AddressBytes& address, std::string_view host) = 0;
  virtual Result<transport::PeerId> connect_back(transport::PeerId like) = 0;
  virtual transport::PathError take_path_error(transport::PeerId peer) = 0;
  virtual uint16_t port_of(transport::PeerId peer) const = 0;
  virtual transport::PeerState peer_state(transport::PeerId peer) = 0;
  virtual void disconnect_peer(transport::PeerId peer) = 0;
  virtual nexus::AddressBytes local_address() const = 0;
  virtual uint32_t payload_bytes_max() const = 0;
  virtual uint32_t payload_bytes_max(transport::PeerId peer) const = 0;
  virtual uint32_t receive_queue_packets() const = 0;
  virtual uint64_t downlink_bytes_per_sec() const = 0;  ///< 0: not known
  virtual uint64_t downlink_bytes() const = 0;          ///< 0: likewise
  virtual uint64_t link_bytes_per_sec() const = 0;
  virtual transport::DelayTarget delay_target() const = 0;
  virtual uint64_t clock_ns() = 0;
  virtual void wake_transport() = 0;

  // -- One packet (rpc_core.h calls these from its receive loop; endpoint_packets.cc) --

  /// `room`: transport::BurstVisitor.
  void on_packet(const wire::Header& header, const transport::Payload& payload, std::byte* room);

  // -- Steps of one loop iteration --

  void read_mail();
  void read_control_events();
  /// Timers, ticks, opening sessions, whatever waits for tickets. `has_read_all`: this iteration has found nothing to
  /// receive.
  void run_due(bool has_read_all);
  /// The session has, or will soon have, something that must not be late.
  void start_ticking(Client* client) {
    if (!client->is_ticking) begin_to_tick(client);
  }
  bool has_due() const {
    return now_ns_ >= next_due_ns_ || !waiting_for_ticket_.empty() || releases_.first != nullptr || !ending_.empty();
  }
  /// The next iteration has something to do, whatever comes from outside.
  bool has_work() const { return !clients_to_send_.empty() || !servers_to_send_.empty() || has_due(); }
  /// The transport will never reach the peer again. Management may know why, and has a moment to say so; then the
  /// session ends. Nothing is tried meanwhile but at the ticks.
  void on_peer_lost(Client* client) {
    if (client->peer_lost_ns == 0) client->peer_lost_ns = now_ns_;
    start_ticking(client);
  }
  /// When run_due() has something to do next, if nothing else happens before.
  uint64_t next_due_ns() const { return next_due_ns_; }
  void at_latest(uint64_t ns) {
    if (ns >= next_due_ns_) return;
    next_due_ns_ = ns;
    disarm();
  }
  /// There is something to do: a program that has been told to wait on the descriptor, and then called us from outside
  /// of the loop, must be told otherwise.
  void disarm() {
    if (!is_armed_) [[likely]]
      return;
    is_armed_ = false;
    wake_transport();
  }
  /// Requests with deadlines wait for handlers that take long, one of which runs in an iteration.
  bool has_waiting_requests() const { return !waiting_requests_.empty(); }
  void run_waiting_request();
  /// A handler that takes long runs next, or has run since: what the next iteration receives has come after `ns`.
  void note_poll(uint64_t ns) {
    polled_ns_ = ns;
    polled_iteration_ = port_.iteration.load(std::memory_order_relaxed);
  }
  /// When the packets that are received now have come, at the earliest.
  uint64_t arrived_ns() const {
    const bool is_recent = port_.iteration.load(std::memory_order_relaxed) - polled_iteration_ <= 2;
    const bool has_rested = rested_ns_ >= polled_ns_ && now_ns_ - rested_ns_ > kNapNs;
    return polled_ns_ == 0 || !is_recent || has_rested ? now_ns_ : polled_ns_;
  }
  void free_dead();
  bool has_dead() const { return !dead_clients_.empty() || !dead_servers_.empty(); }
  /// A paced session waits for its departure time. False: no memory, it stays among those that send.
  [[nodiscard]] bool depart_later(Client* client);
  bool transport_is_dead(transport::PeerId peer) { return peer_state(peer) == transport::PeerState::kDead; }
  /// From the transport's real sizes.
  void set_budgets();
  void start_credit_epoch();

  /// From now on stop() does not touch the transport.
  void wait_for_wakers();
  /// New requests are refused from now on.
  void start_closing();
  /// Ends every session at once; continuations run. After it, only destruction.
  void close_all();
  /// The transport is gone: the last continuations run, the last buffers go home.
  void finish_all();
  bool has_unfinished_work() const;

  bool is_owner() const { return owner_.load(std::memory_order_relaxed) == memory::thread_name(); }
  /// Why a call is refused that is_owner() says no to.
  Status not_owner(const char* wrong_thread) const {
    return port_.is_orphaned() ? nexus::kNexusGone : Status(Code::kWrongThread, wrong_thread);
  }
  void bind_owner();
  void list_to_send(Client* client) {
    if (!client->is_listed_to_send) {
      client->is_listed_to_send = true;
      clients_to_send_.add(client);
      disarm();
    }
  }
  void list_to_send(Server* server) {
    if (!server->is_listed_to_send) add_to_send(server);
  }

  std::atomic<const void*> owner_{memory::thread_name()};
  nexus::NexusCore& nexus_;
  memory::Arena& arena_;     ///< of messages that leave
  memory::Arena& received_;  ///< of requests that have arrived; may be the same
  Mailbox* mailbox_;
  nexus::EndpointPort port_;
  RpcOptions options_;
  EndpointCounters counters_;
  uint64_t now_ns_ = 0;            ///< of this iteration
  uint64_t released_ = 0;          ///< the transport's, as of this iteration
  uint64_t polled_ns_ = 0;         ///< when the loop looked for packets before a handler that took long; 0: never
  uint64_t polled_iteration_ = 0;  ///< EndpointPort::iteration then
  uint64_t rested_ns_ = 0;         ///< when the loop was last left to somebody who may wait
  uint64_t next_due_ns_ = UINT64_MAX;
  uint32_t idle_iterations_ = 0;   ///< those that found nothing to receive
  session::CreditPolicy credits_;  ///< what replies grant (clause 4.5)
  bool is_in_loop_ = false;
  bool is_armed_ = false;  ///< outside of the loop: somebody waits and thinks that there is nothing to do
  bool is_bound_ = false;
  bool is_closing_ = false;
  bool is_closed_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_transport_{true};  ///< for stop(), which may come from anywhere while the endpoint closes
  std::atomic<uint32_t> waking_{0};        ///< calls of stop() that may be using the transport
  SendList<Client> clients_to_send_;
  SendList<Server> servers_to_send_;
  detail::Buffer* path_buffer_ = nullptr;  ///< payload_bytes_max() of zeros, for path probes and replies
  const uint64_t rto_ns_min_;
  const CongestionControl default_control_;  ///< the transport's
  std::vector<Client*> path_probes_;         ///< sessions that want a path probe sent now
  cc::TimingWheel departures_;               ///< keys of paced sessions that wait for their turn, each at most once

 private:
  struct HandlerEntry {
    std::unique_ptr<Endpoint::Handler> handler;
    HandlerOptions options;
    HandlerTime time = {};
  };
  /// What the common case needs of a handler.
  struct Dispatch {
    Endpoint::Handler* handler = nullptr;
    size_t limit_bytes = 0;  ///< requests below it run in the loop; 0: none does
  };
  /// Whoever left the loop for less has not waited.
  static constexpr uint64_t kNapNs = 20'000;
  struct Timer {
    uint64_t at_ns;
    uint64_t sequence;
    detail::InlineFunction<> then;
  };
  /// A kAskLife that is answered once all that has arrived is read, or after so many more looks.
  struct LifeQuestion {
    nexus::ControlEvent event;
    uint32_t looks_left;
  };
  /// A continuation that waits until the transport has let go of the call's buffers (promise 2).
  struct Finished {
    uint64_t ticket;
    detail::Buffer* request;
    detail::Buffer* response;
    Status status;
    uint16_t app_code;
    session::Continuation continuation;
    uint64_t blocked_session = 0;  ///< name of the session whose slot takes no call meanwhile; 0: none
    uint32_t blocked_slot = 0;
  };
  /// Buffers, by their `next`, that the transport lets go of with this ticket at the latest.
  struct Releases {
    detail::Buffer* first = nullptr;
    uint64_t ticket = 0;
  };

  Status find_nexus(std::string_view uri, Opening& opening);
  Client* find_client(Session session) const { return clients_.find_name(session.name); }
  // calls
  Endpoint::Started start_call_slow(Session session, uint16_t type, MsgBuf& request, MsgBuf& response,
                                    Duration deadline);
  [[gnu::noinline]] Endpoint::Started start_first_call(Session session, uint16_t type, MsgBuf& request,
                                                       MsgBuf& response, Client* client);
  Endpoint::Started begin_call(Session session, uint16_t type, MsgBuf& request, MsgBuf& response, Client* client);
  Endpoint::Started refuse_call(Status status) {
    refusal_ = status;
    return {nullptr, 0};
  }
  void start_queued(Client* client);
  /// It is in the timing wheel, and has nothing that may leave before.
  static bool waits_for_pace(const Client* client) { return client->is_departing && !client->session.has_unpaced(); }
  /// Calls waited for the credit that has come back.
  void send_waiting(Client* client) {
    start_ticking(client);
    list_to_send(client);
  }
  void after_input(Client* client) {
    if (client->queue != nullptr) [[unlikely]]
      start_queued(client);
    if (!client->is_listed_to_send && client->session.wants_to_send() && !waits_for_pace(client)) [[unlikely]]
      send_waiting(client);
    if (client->session.loss_check_at_ns() != UINT64_MAX) {
      start_ticking(client);
      at_latest(client->session.loss_check_at_ns());
    }
  }
  void finish(Client* client, session::ClientSlot* slot, Status status, uint16_t app_code);
  /// Of a waiting call's time: a round trip takes as much, at the least.
  static uint64_t least_ns(const Client* client) {
    const session::RttEstimator& rtt = client->session.rtt();
    return rtt.has_sample() ? rtt.min_ns() : 0;
  }
  bool is_too_late(const Client* client, const QueuedCall& call) const {
    return call.deadline_ns <= now_ns_ + least_ns(client);
  }
  template <class F>
  bool finish_queued(Client* client, Status status, F&& is_over);
  void end_call_early(Client* client, session::ClientSlot* slot, Status status);
  void run_continuation(session::Continuation& continuation, detail::Buffer* request, detail::Buffer* response,
                        Status status, uint16_t app_code);
  /// Room for one more call that waits for its ticket, beside what slots may bring.
  [[nodiscard]] bool has_room_to_wait() {
    return base::try_reserve(waiting_for_ticket_, waiting_for_ticket_.size() + slots_max_ + 1);
  }
  void wait_for_ticket(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status,
                       uint16_t app_code, session::Continuation continuation);
  void run_waiting();
  void run_releases();
  // client sessions
  cc::AnyController make_controller(const SessionOptions& options) const;
  void open_step(Client* client);
  void begin_handshake_anew(Client* client);
  /// A part of `host_and_port`.
  static std::string_view host_of(std::string_view host_and_port);
  void pair_path(Client* client);
  void list_path_probe(Client* client);
  void note_path_error(Client* client);
  Status why_no_path(const Client* client) const;
  bool make_room_for(Client* client);
  void free_client(Client* client);
  void end_client(Client* client, Status status, bool tell_peer);
  void retire_client(Client* client, Status status, bool tell_peer);
  void end_calls(Client* client);
  void end_calls_of_dead();
  static bool has_calls(const Client* client);
  bool has_ended_calls() const;
  [[gnu::noinline]] void begin_to_tick(Client* client);
  bool tick(Client* client);
  bool rest(Client* client, uint64_t until_ns);
  void finish_verdict(Client* client, const session::ClientVerdict& verdict);
  void on_path_verdict(Client* client, session::ClientSession::PathVerdict verdict);
  void count_drop(session::Drop drop);
  // server side
  /// What a server session gets of the endpoint while it takes a packet.
  class Offers final : public session::ServerOffers {
   public:
    Offers(EndpointCore& core, Server* server) : core_(core), server_(server) {}
    Room room_for(const wire::Header& request, bool is_long) override;
    void take_back_room(detail::Buffer* buffer, uint32_t request_bytes, bool is_long) override;
    void take_back_response(detail::Buffer* response, uint64_t ticket) override {
      if (response->capacity_bytes > kUncountedBytes) core_.forget_claim(Budget::kResponses, response);
      core_.release_after(ticket, response);
    }
    void abandon(void* call) override;
    bool may_abandon(void* call) override;

   private:
    EndpointCore& core_;
    Server* server_;
  };
  bool try_request(const wire::Header& header, const transport::Payload& payload, std::byte* room);
  bool try_response(const wire::Header& header, const transport::Payload& payload);
  // The general case, out of line. By value: the arguments of the common case stay in registers.
  [[gnu::noinline]] void on_any_packet(uint64_t w0, uint64_t w1, uint64_t w2, transport::Payload payload,
                                       std::byte* room);
  void on_client_packet(const wire::Header& header, const transport::Payload& payload);
  void on_server_packet(const wire::Header& header, const transport::Payload& payload);
  void run_handler(Server* server, session::ServerSlot* slot, const std::byte* data, uint32_t bytes,
                   detail::Buffer* owned);
  void open(Incoming* incoming, Server* server, session::ServerSlot* slot, const std::byte* data, uint32_t bytes);
  /// The handler has answered in the slot's response buffer.
  void send_answer(Incoming* incoming);
  /// A record for the next request. Null: no memory; requests then go the general way, which tries again.
  Incoming* spare_record();
  void bind(Incoming* incoming);
  void unbind(Incoming* incoming);
  void run_in_worker(HandlerEntry& entry, Incoming* incoming);
  Incoming* submit(HandlerEntry& entry, Incoming* incoming);
  void let_wait(Incoming* incoming);
  void refuse_late(Incoming* incoming);
  /// Why a request is refused, and where that is counted; no counter: it is not.
  struct Refusal {
    uint64_t* counter = nullptr;
    wire::FailureCode code = {};
  };
  Refusal refusal_of(uint32_t type, size_t bytes);
  void fail_request(Server* server, session::ServerSlot* slot, wire::FailureCode code, uint16_t app_code);
  void keep(Incoming* incoming);
  [[gnu::noinline]] void keep_if_open(Incoming* incoming);
  // shares (endpoint_shares.cc)
  void forget_claim(Budget budget, detail::Buffer* buffer);
  /// The slot's response buffer, which counts no more.
  detail::Buffer* take_response(session::ServerSlot* slot) {
    if (slot->response->capacity_bytes > kUncountedBytes) forget_claim(Budget::kResponses, slot->response);
    return std::exchange(slot->response, nullptr);
  }
  bool make_room_for_arriving(const Server* server, size_t bytes);
  [[gnu::noinline]] void count_response(Server* server, session::ServerSlot* slot);
  bool give_up_one_response();
  void note_news(Server* server, const wire::Header& header, bool is_part);
  wire::Refusal refusal_of_session(const nexus::PeerNexus& peer);
  bool make_room_for_session(const Run* run, const Host* host);
  void give_up_pathless(Server* server);
  void begin_without_path(Server* server);
  void on_path_proved(Server* server) {
    pathless_.remove(server);
    server->is_pathless = false;
    proved_.add_last(server);
  }
  void end_pathless();
  void count_abandoned(Incoming* incoming, Server* server);
  void on_abandoned_answered(Incoming* incoming);
  void begin_sweep();
  void sweep();
  void join_run(Client* client, Run* run);
  void leave_run(Client* client);
  void end_server(Server* server, bool tell_peer);
  void answer_pair_probe(Server* server);
  void follow(Server* server);
  void release_after(uint64_t ticket, detail::Buffer* buffer);
  /// What is no answer to a call: the session takes no part in the credits for it.
  void list_to_send_quietly(Server* server);
  [[gnu::noinline]] void add_to_send(Server* server);
  [[gnu::noinline]] void hear(Server* server);
  void on_connect_request(const nexus::ControlEvent& event);
  void on_connect_result(const nexus::ControlEvent& event);
  void on_ask_life(nexus::ControlEvent& event);
  bool note_life(const nexus::ControlEvent& question);
  void answer_life_questions(bool has_read_all);
  void note_what_is_read(bool has_read_all);
  void on_server_left(Client* client);
  void on_peer_gone(const nexus::ControlEvent& event);
  // for tests (endpoint_check.cc)
  void check_clients() const;
  void check_servers() const;
  void check_buffers() const;
  void check_shares() const;

  session::ClientPools client_pools_;
  session::ServerPools server_pools_;
  base::Pool<Client> client_pool_;
  base::Pool<Server> server_pool_;
  session::SessionTable<Client> clients_;
  session::SessionTable<Server> servers_;
  Incoming* spare_ = nullptr;             ///< record of the request that is handled now, or next; see spare_record()
  std::vector<HandlerEntry> handlers_;    ///< by request type
  WaitingRequests waiting_requests_;      ///< for a handler that runs in the loop
  std::unique_ptr<Dispatch[]> dispatch_;  ///< likewise
  uint32_t dispatch_types_ = 0;           ///< how many dispatch_ has; 0 once the endpoint is closing
  Status refusal_;                        ///< why start_call() refused
  uint32_t call_sequence_ = 0;            ///< of all sessions, so that a CallId does not fit a later user of its key
  std::vector<Timer> timers_;             ///< a heap, earliest first
  uint64_t timer_sequence_ = 0;
  // What a session may need in a list is reserved when it is made: later nothing may fail.
  /// With room for a call of each slot; where there is no more, the slot is blocked while its last call waits.
  std::vector<Finished> waiting_for_ticket_;
  size_t slots_max_ = 0;     ///< of all client sessions
  Releases releases_;        ///< of responses
  Releases later_releases_;  ///< those that came since; only if releases_ has some
  /// Sessions with something due within some RTOs: looked at about once an RTO.
  std::vector<Client*> ticking_;
  /// Keys of those whose next business is further away (a report, a probe of a slow handler), each at most once. An
  /// idle session is in neither.
  cc::DepartureQueue resting_;
  std::vector<Client*> opening_;
  std::vector<Client*> ending_;  ///< destroyed by the application
  std::vector<Client*> dead_clients_;
  std::vector<Server*> dead_servers_;
  std::vector<detail::InlineFunction<>> posts_;  ///< scratch of read_mail()
  std::vector<LifeQuestion> life_questions_;
  // All that arrived before read_until_ns_ has been read: as of the last run_due(), which was at due_ran_ns_.
  uint64_t read_until_ns_ = 0, due_ran_ns_ = 0;
  uint32_t idle_iterations_seen_ = 0;
  Peers peers_;
  base::LinkedList<Server, Server::InPathList> pathless_;  ///< whose path is not proved, the oldest first
  base::LinkedList<Server, Server::InPathList> proved_;    ///< all others; a sweep looks at the first, and moves it
  // A round of looks at what sessions keep; rounds go on until one finds nothing.
  uint64_t sweep_at_ns_ = UINT64_MAX;  ///< the next look; UINT64_MAX: there is none to come
  uint64_t sweep_since_ns_ = 0;        ///< not before was anybody there to be asked
  size_t sweep_left_ = 0;              ///< sessions, in this round
  bool sweep_keeps_some_ = false;      ///< a session of this round has something that will be too old
  uint64_t closing_since_ns_ = UINT64_MAX;
};

// ---- The common case, inline: one packet each way, nothing lost, a handler that answers at once ----
//
// Each of these does all of it, or nothing and leaves it to the general function of the same name.

[[gnu::always_inline]] inline void EndpointCore::on_packet(const wire::Header& header,
                                                           const transport::Payload& payload, std::byte* room) {
  if (payload.is_marked) [[unlikely]] {
    // Has an answer, or is one, that says so.
  } else if (header.shape() == session::kPlainRequest) {
    if (try_request(header, payload, room)) [[likely]]
      return;
  } else if (header.shape() == session::kPlainResponse) {
    if (try_response(header, payload)) [[likely]]
      return;
  }
  // Copies, made here and nowhere else: what has an address lives in memory, and the common case in registers.
  on_any_packet(header.w0, header.w1, header.w2,
                {payload.data, payload.bytes, payload.lease, payload.lease_value, payload.is_marked}, room);
}

[[gnu::always_inline]] inline bool EndpointCore::try_request(const wire::Header& header,
                                                             const transport::Payload& payload, std::byte* room) {
  Server* server = servers_.find(header.session_key());
  const uint32_t type = header.request_type();
  if (server == nullptr || type >= dispatch_types_ || payload.bytes >= dispatch_[type].limit_bytes ||
      payload.lease != nullptr) [[unlikely]] {
    return false;
  }
  server->session.prefetch();
  session::ServerSlot* slot = server->session.try_begin(header, payload.bytes, now_ns_);
  if (slot == nullptr) [[unlikely]]
    return false;
  open(spare_, server, slot, transport::private_copy(payload, room), payload.bytes);
  counters_.requests_handled++;
  (*dispatch_[type].handler)(spare_);
  if (spare_->progress == Incoming::Progress::kAnswered) [[likely]] {
    send_answer(spare_);
  } else {
    keep_if_open(spare_);
  }
  return true;
}

[[gnu::always_inline]] inline bool EndpointCore::try_response(const wire::Header& header,
                                                              const transport::Payload& payload) {
  Client* client = clients_.find(header.session_key());
  if (client == nullptr) [[unlikely]]
    return false;
  session::ClientSlot* slot = client->session.try_finish(header, payload, now_ns_);
  if (slot == nullptr) [[unlikely]]
    return false;
  if (!client->is_listed_to_send && client->session.wants_to_send()) [[unlikely]]
    send_waiting(client);
  if (slot->ticket > released_ || client->queue != nullptr) [[unlikely]] {
    finish(client, slot, Status(), 0);
  } else {
    detail::Buffer* request = slot->request;
    detail::Buffer* response = slot->response;
    run_continuation(slot->continuation, request, response, Status(), 0);
  }
  return true;
}

inline void EndpointCore::open(Incoming* incoming, Server* server, session::ServerSlot* slot, const std::byte* data,
                               uint32_t bytes) {
  incoming->server = server;
  incoming->slot = slot;
  incoming->data = data;
  incoming->bytes = bytes;
  incoming->progress = Incoming::Progress::kOpen;
  incoming->room = slot->response_ticket <= released_ ? slot->response : nullptr;
}

inline void EndpointCore::send_answer(Incoming* incoming) {
  session::ServerSlot* slot = incoming->slot;
  slot->response_bytes = incoming->room->length_bytes;
  incoming->server->session.respond(slot);
  list_to_send(incoming->server);
}

/// The slot of `continuation` may be taken again while it runs, which by then runs from a copy.
[[gnu::always_inline]] inline void EndpointCore::run_continuation(session::Continuation& continuation,
                                                                  detail::Buffer* request, detail::Buffer* response,
                                                                  Status status, uint16_t app_code) {
  request->revoke_lease();
  union Handover {  // destroyed by hand: mostly both buffers have been moved out, and one look tells
    Completion done;
    explicit Handover(Completion&& completion) : done(std::move(completion)) {}
    ~Handover() {}
  } handover{Completion{status, app_code, MsgBuf(request), MsgBuf(response)}};
  Completion& done = handover.done;
  if (status.ok()) [[likely]] {
    counters_.calls_completed++;
  } else {
    counters_.calls_failed++;
  }
  continuation.run(done);
  const auto left =
      reinterpret_cast<uintptr_t>(done.request.buffer()) | reinterpret_cast<uintptr_t>(done.response.buffer());
  if (left != 0) [[unlikely]]
    done.~Completion();
}

[[gnu::always_inline]] inline Endpoint::Started EndpointCore::start_call(Session session, uint16_t type,
                                                                         MsgBuf& request, MsgBuf& response,
                                                                         Duration deadline) {
  const auto slowly = [&] { return start_call_slow(session, type, request, response, deadline); };
  if (!is_owner()) [[unlikely]]
    return slowly();
  Client* client = clients_.find_name(session.name);
  if (client == nullptr) [[unlikely]]
    return slowly();
  detail::Buffer* const out = request.buffer();
  detail::Buffer* const in = response.buffer();
  if (out == nullptr || in == nullptr) [[unlikely]]
    return slowly();
  if (!arena_.owns(out)) [[unlikely]]
    return slowly();
  if (!arena_.owns(in)) [[unlikely]]
    return slowly();
  if (out == in) [[unlikely]]
    return slowly();
  if (type >= wire::kRequestTypes) [[unlikely]]
    return slowly();
  if (deadline != Duration::max()) [[unlikely]]
    return slowly();
  if (!client->is_ticking) [[unlikely]]
    return start_first_call(session, type, request, response, client);
  return begin_call(session, type, request, response, client);
}

/// Everything is right; whether there is room, try_begin() knows: a queue means that there is no free slot.
[[gnu::always_inline]] inline Endpoint::Started EndpointCore::begin_call(Session session, uint16_t type,
                                                                         MsgBuf& request, MsgBuf& response,
                                                                         Client* client) {
  session::ClientSlot* slot = client->session.try_begin(request.buffer(), response.buffer(), type);
  if (slot == nullptr) [[unlikely]]
    return start_call_slow(session, type, request, response, Duration::max());
  request.take();
  response.take();
  slot->deadline_ns = UINT64_MAX;
  slot->call_sequence = ++call_sequence_;
  list_to_send(client);
  return {&slot->continuation, uint64_t{client->session.local_key()} << 32 | slot->call_sequence};
}

}  // namespace tern::rpc
