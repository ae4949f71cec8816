// The client ends of an endpoint's sessions: opening, calls, packets, timeouts, ends. Owner thread only.
//
//   client_sessions.cc    the beginning and the end of sessions
//   client_opening.cc     handshakes and path proofs
//   client_reconnect.cc   sessions that connect again
//   client_calls.cc       calls, and packets from servers
//   client_ticks.cc       timeouts
//   client_log.cc         log events
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/detail/export.h>
#include <tern/endpoint.h>

#include "base/pool.h"
#include "cc/departure_queue.h"
#include "cc/timing_wheel.h"
#include "rpc/client.h"
#include "rpc/completions.h"
#include "rpc/endpoint_context.h"
#include "rpc/endpoint_internals.h"
#include "rpc/peers.h"
#include "rpc/send_list.h"
#include "session/client_session.h"
#include "session/session_table.h"

namespace tern::rpc {

/// The status of a call that ended because of its deadline.
inline const Status kLateCall(Code::kDeadline, "the call's deadline passed before its response was complete");

class TERN_API ClientSessions {
 public:
  /// If at least this many sessions tick, further ones rest with their last answer. With fewer, their memory for calls
  /// stays in a second-level cache, and a tick costs less than a rest after each call.
  static constexpr size_t kRestAtOnceFrom = 1024;

  /// `default_control`: the transport's controller, for endpoints and sessions whose options name none.
  ClientSessions(EndpointContext& context, Peers& peers, Completions& completions, CongestionControl default_control)
      : context_(context),
        peers_(peers),
        completions_(completions),
        default_control_(default_control),
        rests_at_once_from_(context.transport.shortcuts().rest_at_once ? kRestAtOnceFrom : SIZE_MAX) {}

  // -- Sessions (client_sessions.cc) --

  Result<Session> create(std::string_view uri, const SessionOptions& options);
  /// Ends a session. Its calls end in the next iteration.
  Status destroy(Session session);
  /// The public information about a session. An ended or unknown session is kEnded.
  SessionInfo info(Session session) const;
  /// The public information about a live session.
  static SessionInfo info(const Client* client);
  /// Calls `f(name, client)` for live sessions, as SessionTable::visit() does, with the names that programs know.
  template <class F>
  uint64_t visit(uint64_t from, uint64_t places, F&& f) const {
    return table_.visit(
        from, places, [&f](uint64_t name, Client* client) { return name != client->public_name() || f(name, client); });
  }
  Client* find(uint32_t key) const { return table_.find(key); }
  void prefetch_place(uint64_t key) const { table_.prefetch(key); }
  Client* find(Session session) const { return table_.find_name(session.name); }
  /// Prefetches the session's place in the table. The fourth later call of prefetch() prefetches the session itself,
  /// because the place has arrived then.
  void prefetch(Session session) {
    table_.prefetch(session.name);
    const uint64_t earlier = std::exchange(prefetched_[prefetched_next_], session.name);
    prefetched_next_ = (prefetched_next_ + 1) % prefetched_.size();
    if (const Client* client = table_.find_name(earlier)) client->session.prefetch();
  }
  // These two do not read the session.
  Client* find_awake(Session session) const { return table_.find_awake(session.name); }
  Client* find_asleep(Session session) const { return table_.find_asleep(session.name); }
  /// Number of live sessions.
  size_t size() const { return table_.size() - reconnecting_; }
  template <class F>
  void for_each(F&& f) const {
    table_.for_each_name([&f](uint64_t name, Client* client) {
      if (name == client->name()) f(client);
    });
  }
  /// Returns true if `waiter` will run once, in the loop, close() or ~Rpc, when the session opens or ends for good;
  /// false if it is open. kSessionReset: it has ended.
  Result<bool> wait_for_open(Session session, detail::SessionWaiter* waiter);
  /// Removes `waiter`, which then does not run.
  void stop_waiting(Session session, detail::SessionWaiter* waiter);
  /// Sets the limits of responses in flight, for the transport's real sizes. Called once, before the first session.
  void set_budgets(uint32_t receive_queue_packets, uint8_t credit_unit, const session::ResponseShare& share);
  void start_credit_epoch(bool was_silent) { pools_.response_share.start_epoch(was_silent); }
  /// The server has closed the session.
  void on_disconnected(uint32_t key);
  /// Answer of the Nexus to ask_liveness().
  void on_liveness(const nexus::ControlEvent& event);
  /// Ends all sessions of a Nexus that is gone. end_calls_of_dead() must follow.
  void end_run(Run* run, Status status);
  void end_all(Status status);
  void end_calls_of_dead();
  /// Ends the sessions for which destroy() was called.
  void end_destroyed();
  bool has_destroyed() const { return !ending_.empty(); }
  /// Announces the sessions that have ended with all their calls, and frees those that are in no list.
  void free_dead();
  bool has_dead() const { return !dead_.empty(); }
  const ControllerCounters& controller_counters() const { return pools_.controller_counters; }
  /// True if calls of dead sessions wait for their buffers.
  bool has_dead_calls() const;
  /// Frees all sessions, after the transport was destroyed and every call has ended.
  void finish_all();
  /// True if a call is in a slot or waits for a slot.
  bool is_busy() const;

  // -- Opening (client_opening.cc; clause 7.7) --

  /// The server's Nexus has answered.
  void on_connect_result(const nexus::ControlEvent& event);
  /// Looks at the sessions whose path is being proved, and at those that pause before they connect again.
  void run_opening();

  // -- Calls (client_calls.cc) --

  /// Begins a call that is not of the common case (rpc/fast_path.h). Its arguments have been checked. `deadline_ns`:
  /// UINT64_MAX for none.
  StartedCall start_call(Client* client, uint16_t type, detail::Buffer* request, detail::Buffer* response,
                         uint64_t deadline_ns);
  /// From now to stop_noting(), calls on sessions that are asleep may be noted, and begin later, when their cache lines
  /// have arrived. Otherwise each call on one of many sessions waits for several cache misses.
  void start_noting() { is_noting_ = true; }
  bool is_noting() const { return is_noting_; }
  /// Notes the first call of a session that is asleep, if there is memory for it. The request has at most
  /// wire::kPayloadBytesMin bytes, and the call has no deadline.
  StartedCall note_call(Client* client, Session session, uint16_t type, detail::Buffer* request,
                        detail::Buffer* response);
  /// Begins the noted calls. Whatever looks at a session's calls, or may end it, calls this first.
  void begin_noted() {
    if (noted_count_ != 0) begin_all_noted();
  }
  void stop_noting() {
    begin_noted();
    is_noting_ = false;
  }
  StartedCall refuse_call(Status status) {
    refusal_ = status;
    return {nullptr, 0};
  }
  /// The reason for which the last call was refused.
  Status refusal() const { return refusal_; }
  /// A number for the next call. It counts the calls of all sessions, so that a CallId does not match a call of a later
  /// session with the same key.
  uint32_t next_call_sequence() { return ++call_sequence_; }
  /// `name` is the name of the session that programs know. Its low half, the key, finds the session.
  static uint64_t call_id(uint64_t name, uint32_t sequence) { return name << 32 | sequence; }
  Status cancel(CallId call);
  /// Ends the slot's call, which has its response or its failure.
  void finish(Client* client, session::ClientSlot* slot, Status status, uint16_t app_code);
  /// Ends calls whose buffers are released.
  void run_waiting();

  // -- Packets (client_calls.cc) --

  /// Handles any packet of a server: responses, CRs, acknowledged cancels, path replies.
  void on_packet(const wire::Header& header, const transport::Payload& payload);

  // -- Sending --

  void list_to_send(Client* client) {
    if (!client->is_listed_to_send()) add_to_send(client);
  }
  /// list_to_send() for a session that is not listed.
  void add_to_send(Client* client) {
    client->note_listed(true);
    to_send_.add(client);
    context_.agenda.disarm();
  }
  /// Lists a session to send, because a credit has come back for which its calls waited.
  void send_waiting(Client* client) {
    start_ticking(client);
    list_to_send(client);
  }
  bool has_to_send() const { return !to_send_.empty(); }
  bool are_all_refused() const { return to_send_.are_all_refused(); }
  /// `send(client)` returns a SendTurn.
  template <class F>
  [[gnu::always_inline]] void take_turns(F&& send) {
    to_send_.take_turns([&send](Client * client) __attribute__((always_inline)) {
      const SendTurn turn = client->is_dead ? SendTurn::kDone : send(client);
      if (turn == SendTurn::kDone) [[likely]]
        client->note_listed(false);
      return turn;
    });
  }
  bool has_path_probes() const { return !path_probes_.empty(); }
  /// Calls `send(client, header, payload_bytes)` for each session with a due path probe.
  template <class F>
  void send_path_probes(F&& send);
  void forget_to_send() {
    to_send_.clear();
    path_probes_.clear();
  }
  /// Lets a paced session wait for its departure time. False: there is no memory, and the session stays listed to send.
  [[nodiscard]] bool depart_later(Client* client);
  /// Lists the paced sessions whose departure time has come.
  void run_departures();

  // -- Timeouts (client_ticks.cc) --

  /// Puts the session under ticks, because it has a timeout, or soon will.
  void start_ticking(Client* client) {
    if (!client->is_ticking) begin_to_tick(client);
  }
  [[gnu::noinline]] void begin_to_tick(Client* client);
  /// Ticks the sessions that are due. All packets that arrived before `read_until_ns` have been read.
  void run_ticks(uint64_t read_until_ns);
  /// The transport has lost the peer for ever. The session ends soon; until then the management may report the reason.
  /// Meanwhile only ticks try to send.
  void on_peer_lost(Client* client) {
    client->note_lost_peer(context_.now_ns);
    start_ticking(client);
    client->rest_by_ticks();
  }

  // -- For tests --

  void check_invariants() const;
  size_t count() const { return size() + dead_.size(); }
  template <class F>
  void for_each_buffer(F&& f) const;

 private:
  struct NotedCall {
    Client* client;
    session::ClientBusy* busy;  ///< its first slot has the call
  };
  static constexpr Status kNoMemory{Code::kNoMemory, "no memory for another session"};
  static constexpr Status kClosed{Code::kSessionReset,
                                  "the server closed the session: create a new one, or use SessionOptions::reconnect"};
  static constexpr Status kForgotten{
      Code::kSessionReset,
      "the server does not know the session any more: create a new one, or use SessionOptions::reconnect"};

  // client_sessions.cc
  Status find_nexus(std::string_view uri, Opening& opening);
  session::ClientTerms terms_of(const SessionOptions& options) const;
  nexus::SessionTerms wish_of(const session::ClientTerms& terms) const;
  cc::AnyController make_controller(const SessionOptions& options) const;
  Result<Client*> begin(std::unique_ptr<Opening>& opening, const SessionOptions& options);
  Status ask_nexus(Client* client);
  Client* make(const session::ClientTerms& terms);
  [[nodiscard]] bool reserve_lists(Client* client);
  void free(Client* client);
  void end(Client* client, Status status, bool tell_peer);
  void fail(Client* client, Status status, bool tell_peer);
  void retire(Client* client, Status status, bool tell_peer);
  void end_calls(Client* client);
  bool has_calls_to_end(const Client* client) const;
  void announce_ends();
  void join_run(Client* client, Run* run);
  void leave_run(Client* client);
  void check_agenda() const;
  void check_lists(const Client* client) const;
  // client_log.cc
  static nexus::AddressText address_of(const Client* client);
  void log_opened(const Client* client) const;
  void log_narrow_path(const Client* client, const Status& why) const;
  void log_end(const Client* client, std::string_view peer) const;
  // client_reconnect.cc
  Status keep_connecting(Client* client, const SessionOptions& options);
  void forget_reconnect(Client* client);
  Client* find_ending(uint32_t key) const;
  bool replace(Client* client);
  void run_backing_off();
  bool has_earlier_calls(size_t index) const;
  void resume_waiters(Client* client, Status status) noexcept;
  // client_opening.cc
  Status refusal_of_terms(const Client* client, const nexus::SessionTerms& terms) const;
  void begin_path_proof(Client* client, const nexus::ControlEvent& event);
  void step_opening(Client* client);
  void begin_handshake_anew(Client* client);
  void pair_path(Client* client);
  void list_path_probe(Client* client);
  void note_path_error(Client* client);
  Status why_dead(const Client* client) const;
  Status why_no_path(const Client* client) const;
  void on_path_verdict(Client* client, session::ClientSession::PathVerdict verdict);
  void on_path_answered(Client* client);
  bool is_path_slow(const Client* client) const;
  bool is_path_narrow(const Client* client) const;
  // client_calls.cc
  [[gnu::noinline]] void begin_all_noted();
  void start_queued(Client* client);
  void finish_verdict(Client* client, const session::ClientVerdict& verdict);
  void finish_traced(Client* client, const session::ClientVerdict& verdict);
  /// `request`: the call's request number; 0 if the call had no slot.
  void trace_early_end(const Client* client, uint32_t request, uint32_t sequence, const Status& status) const {
    if (context_.tracer != nullptr) [[unlikely]]
      context_.tracer->ended_early(client, request, sequence, status.code());
  }
  void after_input(Client* client);
  void end_call_early(Client* client, session::ClientSlot* slot, Status status);
  template <class F>
  bool finish_queued(Client* client, Status status, F&& is_over);
  bool is_too_late(const Client* client, const QueuedCall& call) const {
    return call.deadline_ns <= context_.now_ns + least_ns(client);
  }
  /// The shortest time that a call takes, ns: a round trip. 0: not known.
  static uint64_t least_ns(const Client* client) {
    const session::RttEstimator& rtt = client->session.rtt();
    return rtt.has_sample() ? rtt.min_ns() : 0;
  }
  // client_ticks.cc
  void run_pass(uint64_t read_until_ns);
  bool tick(Client* client, uint64_t read_until_ns);
  void end_rests_of(std::span<const uint32_t> keys);
  void stop_ticking(Client* client);
  /// Fills the free place `*to` of ticking_ with the session at `from`, whose place then is the free one.
  void move_ticking(size_t from, size_t* to) {
    if (from == *to) return;
    ticking_[*to] = ticking_[from];
    ticking_[*to]->tick_place = static_cast<uint32_t>(*to);
    *to = from;
  }
  void rest_at_once(Client* client);
  void try_rest(Client* client);
  void fall_asleep(Client* client);
  void set_asleep(Client* client, bool is_asleep);
  void set_report_delay();
  bool end_if_lost(Client* client);
  bool rest(Client* client, uint64_t until_ns);
  /// True if the session is in the timing wheel, and has no packet that may leave before its departure time.
  static bool waits_for_pace(const Client* client) { return client->is_departing && !client->session.has_unpaced(); }

  EndpointContext& context_;
  Peers& peers_;
  Completions& completions_;
  const CongestionControl default_control_;
  const size_t rests_at_once_from_;  ///< kRestAtOnceFrom; SIZE_MAX: sessions never rest at once

  session::ClientPools pools_;
  base::Pool<Client> pool_;
  session::SessionTable<Client> table_;
  std::array<NotedCall, 64> noted_;  ///< the first noted_count_ of them
  size_t noted_count_ = 0;
  bool is_noting_ = false;
  std::array<uint64_t, 4> prefetched_{};  ///< names of the sessions of the last prefetch() calls, in a ring
  size_t prefetched_next_ = 0;            ///< index in prefetched_: the oldest
  // A new session reserves its places in all lists, so that no later insertion can fail.
  SendList<Client> to_send_;
  uint32_t call_sequence_ = 0;  ///< next_call_sequence()
  Status refusal_;
  std::vector<Client*> path_probes_;  ///< sessions that want a path probe sent now
  cc::TimingWheel departures_;        ///< keys of paced sessions that wait for their turn, each at most once
  std::vector<Client*> ticking_;      ///< sessions with a timer within some RTOs, checked about once an RTO
  size_t pass_next_ = 0;              ///< index in ticking_: the next session of the present pass
  size_t pass_end_ = 0;               ///< index in ticking_: the end of the present pass
  uint64_t pass_due_ns_ = 0;          ///< time of the next pass, if there are more sessions than one run checks
  /// Keys of sessions whose next timer is later (a report, a probe of a slow handler), each at most once. An idle
  /// session is neither here nor in ticking_.
  cc::DepartureQueue resting_;
  std::vector<Client*> opening_;      ///< sessions whose path is being proved
  std::vector<Client*> ending_;       ///< sessions that the application has destroyed
  std::vector<Client*> backing_off_;  ///< sessions that will connect again
  size_t reconnecting_ = 0;           ///< sessions with a second name in table_, which their Clients share
  std::vector<Client*> dead_;
};

// ---- Templates ----

template <class F>
void ClientSessions::send_path_probes(F&& send) {
  for (Client* client : path_probes_) {
    client->is_in_path_probes = false;
    auto& session = client->session;
    const bool is_pair_probe = client->is_pair_probe_due;
    client->is_pair_probe_due = false;
    const bool is_probing = session.state() == session::ClientSession::State::kProbing && session.may_probe_path();
    if (client->is_dead || !(is_probing || is_pair_probe)) continue;
    const auto probe = is_probing ? session.path_probe(context_.now_ns) : session.pair_probe(context_.now_ns);
    send(client, probe.header, probe.payload_bytes);
  }
  path_probes_.clear();
}

/// Ends the waiting calls for which `is_over` returns true. `is_over` must reserve memory for their ends. Returns true
/// if it has ended a call.
template <class F>
bool ClientSessions::finish_queued(Client* client, Status status, F&& is_over) {
  if (!client->has_queue()) return false;
  const size_t before = client->queue().size();
  std::erase_if(client->queue(), [&](QueuedCall& call) {
    if (!is_over(call)) return false;
    trace_early_end(client, 0, call.sequence, status);
    completions_.wait(0, call.request, call.response, status, 0, std::move(call.continuation));
    return true;
  });
  const bool has_ended_some = client->queue().size() != before;
  client->end_queue_if_empty();
  return has_ended_some;
}

template <class F>
void ClientSessions::for_each_buffer(F&& f) const {
  const auto add_calls = [&f](const Client* client) {
    for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
      const session::ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
      if (!has_call(*slot)) continue;
      f(slot->request);
      f(slot->response);
    }
    if (!client->has_queue()) return;
    for (const QueuedCall& call : client->queue()) {
      f(call.request);
      f(call.response);
    }
  };
  for_each(add_calls);
  for (const Client* client : dead_) add_calls(client);
}

}  // namespace tern::rpc
