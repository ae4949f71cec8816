// An endpoint without its transport: its parts, and the order in which they run.
// RpcCore<Impl> has the transport and the loop, and calls this. Owner thread only, unless a member says otherwise.
//
//   ClientSessions   sessions that this endpoint has opened, and their calls
//   ServerSessions   sessions that clients have opened, and the shares of peers
//   Handlers         requests, from a whole message to the answer
//   Completions      calls and responses that wait until the transport has released their memory
//   Timers           Endpoint::after()
//   LifeSigns        questions of the Nexus whether peers live
//   Publisher        shows counters and sessions to other processes
//   Peers            hosts and runs of Nexuses, across sessions
//   Tracer           records of calls and packets, if the program wants them
//   EndpointContext  the state that all of them share
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/detail/export.h>
#include <tern/endpoint.h>
#include <tern/nexus.h>

#include "base/thread_id.h"
#include "rpc/client_sessions.h"
#include "rpc/completions.h"
#include "rpc/endpoint_context.h"
#include "rpc/endpoint_internals.h"
#include "rpc/handlers.h"
#include "rpc/life_signs.h"
#include "rpc/peers.h"
#include "rpc/publisher.h"
#include "rpc/server_sessions.h"
#include "rpc/timers.h"
#include "rpc/transport_port.h"

namespace tern::rpc {

class TERN_API EndpointCore {
 public:
  /// Takes over `arena` and `received`, which may be one arena. `transport` must exist until close_all() returns.
  /// `rto_ns_min` and `default_control` are the transport's.
  EndpointCore(TransportPort& transport, nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received,
               const RpcOptions& options, std::string_view transport_name, uint64_t rto_ns_min,
               CongestionControl default_control);
  ~EndpointCore();
  EndpointCore(const EndpointCore&) = delete;
  EndpointCore& operator=(const EndpointCore&) = delete;

  // -- The public interface (Endpoint calls these) --

  Status add_handler(uint16_t type, std::unique_ptr<RequestHandler> handler, const HandlerOptions& options);
  Status add_listener(std::unique_ptr<SessionListener> listener);
  Result<Session> create_session(std::string_view uri, const SessionOptions& options);
  Status destroy_session(Session session);
  SessionInfo session_info(Session session) const;
  void prefetch(Session session) {
    if (is_owner()) client_sessions_.prefetch(session);
  }
  /// Any thread.
  MsgBuf alloc_msgbuf(size_t len_bytes) {
    return MsgBuf(context_.port.is_orphaned() ? nullptr : context_.mailbox->alloc(len_bytes));
  }
  /// Starts a call without a deadline. Has the fast path (fast_path.h).
  StartedCall start_call(Session session, uint32_t type, detail::Buffer* request, detail::Buffer* response);
  StartedCall start_timed_call(Session session, uint32_t type, detail::Buffer* request, detail::Buffer* response,
                               Duration deadline);
  /// Starts any call.
  StartedCall start_call_slow(Session session, uint32_t type, detail::Buffer* request, detail::Buffer* response,
                              Duration deadline = Duration::max());
  session::Continuation* start_plain_call(Session session, uint8_t type, detail::Buffer* request,
                                          detail::Buffer* response, uint32_t len_bytes);
  Status refusal() const;
  /// Any thread.
  Status dump_trace(std::string_view file) const;
  Status cancel(CallId call);
  Duration now();
  Result<bool> wait_for_open(Session session, detail::SessionWaiter* waiter);
  void stop_waiting(Session session, detail::SessionWaiter* waiter);
  Status cancel_timer(TimerId timer);
  Result<TimerId> add_timer(Duration delay, detail::InlineFunction<> then);
  /// Any thread.
  Status add_post(detail::InlineFunction<> then);
  /// Any thread, and signal handlers.
  void stop();
  const EndpointCounters& counters();
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  uint16_t id() const { return context_.options.endpoint_id; }

  // -- The loop of RpcCore --

  /// The state that the loop reads and writes: the time, released(), and the counters of packets.
  EndpointContext& context() { return context_; }
  const EndpointContext& context() const { return context_; }
  ClientSessions& client_sessions() { return client_sessions_; }
  ServerSessions& server_sessions() { return server_sessions_; }
  Handlers& handlers() { return handlers_; }
  /// The part of the construction that can fail. Called once, before the transport has packets.
  Status start();
  /// Zeros, as long as the transport's longest payload, for path probes and replies.
  detail::Buffer* path_buffer() const { return path_buffer_; }

  /// True if this thread may run an iteration now; enter() must follow. If false, check_entry() binds the owner thread,
  /// or returns the reason.
  bool may_enter() const { return may_run_.load(std::memory_order_acquire) && is_owner() && !context_.is_in_loop; }
  Status check_entry();
  void enter() { context_.agenda.leave_armed(); }
  void begin_iteration(uint64_t released) {
    context_.is_in_loop = true;
    // Odd within an iteration, so that the Nexus can tell peers whether this endpoint hangs in a callback.
    step_iteration();
    context_.released = released;
  }
  void end_iteration() {
    step_iteration();
    context_.is_in_loop = false;
  }
  /// Counts an iteration that has received nothing. Returns their number.
  uint32_t count_idle_iteration() { return ++idle_iterations_; }
  /// Raises that number, so that the next one is a multiple of `multiple`, a power of two.
  void round_idle_iterations(uint32_t multiple) { idle_iterations_ |= multiple - 1; }
  /// Handles a packet of the common case. `copy_to` has space for `payload.bytes`, or is null
  /// (transport::BurstVisitor). `loop` has the transport's kTraits, and try_answer(Incoming*), which sends an answer at
  /// once or returns false. False: the packet is not of the common case, and nothing has changed; the caller then calls
  /// on_packet(). Inline, in rpc/fast_path.h.
  template <class Loop>
  bool try_packet(const wire::Header& header, const transport::Payload& payload, std::byte* copy_to, Loop& loop);
  /// As try_packet(), for a request that has a deadline, or a response that follows a credit return for its request, if
  /// the packet is of the common case otherwise.
  template <class Loop>
  bool try_uncommon(const wire::Header& header, const transport::Payload& payload, std::byte* copy_to, Loop& loop);
  /// Prefetches the sessions of packets that will be handled next. Each word is the first word of a packet's header; it
  /// may be anything.
  void look_ahead(std::span<const uint64_t> first_words) const;
  /// Handles any packet. The header and the payload are changed, and not copied: a copy loads several fields at once,
  /// and waits a dozen cycles if they have just been written one by one.
  void on_packet(wire::Header& header, transport::Payload& payload, std::byte* copy_to);
  /// For transport::ExpectingVisitor: the part of a long message that will probably come next.
  transport::ExpectedPacket expected_packet();
  /// Handles answers from other threads, posted functions, and events of the Nexus.
  void read_mail();
  /// Runs timers, ticks, opening sessions, and the calls and buffers that wait for tickets. `has_read_all`: this
  /// iteration has found nothing to receive.
  void run_due(bool has_read_all);
  bool has_due() const {
    return context_.now_ns >= context_.agenda.next_ns() || completions_.has_waiting() || completions_.has_releases() ||
           client_sessions_.has_destroyed();
  }
  /// True if a session or a path probe waits to be sent at the end of the iteration.
  bool has_packets_to_send() const {
    return client_sessions_.has_to_send() || server_sessions_.has_to_send() || client_sessions_.has_path_probes();
  }
  /// True if the next iteration has work even without input.
  bool has_work() const { return client_sessions_.has_to_send() || server_sessions_.has_to_send() || has_due(); }
  /// Like has_work(), but ignores sessions whose packets the transport has refused.
  bool has_work_but_for_refused() const {
    return !client_sessions_.are_all_refused() || !server_sessions_.are_all_refused() || has_due();
  }
  bool has_dead() const { return client_sessions_.has_dead() || server_sessions_.has_dead(); }
  void free_dead();
  /// Starts another credit epoch, whose time has come (clause 4.5).
  void start_credit_epoch();
  /// The time at which the program must call again. It may wait until then, because an earlier time wakes the
  /// transport. `is_now`: the loop itself has something to do now.
  Duration announce_wait(bool is_now);
  /// Called before the endpoint may wait. Schedules an update of the Nexus's page (page/page_file.h) if there is news
  /// for it, and logs new faults of the transport.
  void note_rest() {
    if ((publisher_ != nullptr || context_.log.is_on()) && !is_closed_) note_activity();
  }
  /// Called when the program may wait until the next iteration, for the descriptor or the time of next_due(), and in
  /// later iterations again.
  void note_waiting_program() {
    context_.poll_ns = 0;
    server_sessions_.return_all_held();
  }
  bool is_stopped() const { return stop_.load(std::memory_order_seq_cst); }
  bool is_stopped_lately() const { return stop_.load(std::memory_order_relaxed); }
  void forget_stop() { stop_.store(false, std::memory_order_relaxed); }

  // -- The end --

  /// New requests are refused from now on.
  void start_closing();
  bool has_unfinished_work() const;
  /// Ends every session at once, for this reason; continuations run. In an iteration.
  void end_sessions(Status why);
  /// Calls end_sessions(). No session begins from now on.
  void fail(Status why);
  /// The reason given to fail(); ok before that.
  Status failure() const { return failure_; }
  /// Calls end_sessions(), and ends everything else. Afterwards no thread uses the transport, which may be destroyed.
  void close_all();
  /// Called after the transport was destroyed: runs the last continuations, and releases the last buffers.
  void finish_all();
  /// True if this process is a forked child of the process that made the endpoint.
  bool is_forked() const { return context_.port.is_forked(); }

  // -- For tests --

  static EndpointCore& of(Endpoint& endpoint) { return EndpointInternals::core_of(endpoint); }
  /// CHECKs sessions, lists, flags, counts and the owners of buffers against each other. Between two iterations.
  void check_invariants() const;
  /// Counts that are 0 for an endpoint at rest without sessions.
  struct Census {
    size_t client_sessions = 0, server_sessions = 0;
    size_t requests_open = 0;  ///< requests that the application has, or that arrive
    size_t buffers_out = 0;    ///< buffers of message memory, including the program's, without the endpoint's own
    size_t arriving_bytes = 0, response_bytes = 0;  ///< bytes of the two budgets
    uint64_t next_due_ns = UINT64_MAX;
  };
  Census census() const;
  template <class F>
  void for_each_client_session(F&& f) const {
    client_sessions_.for_each([&](const Client* client) { f(client->session); });
  }
  template <class F>
  void for_each_server_session(F&& f) const {
    server_sessions_.for_each([&](const Server* server) { f(server->session); });
  }
  /// Null: there is no such session.
  const session::ClientSession* client_session(Session session) const {
    const Client* client = client_sessions_.find(session);
    return client == nullptr ? nullptr : &client->session;
  }

  // -- For simulated time --

  /// Prefetches the cache lines of the session of a packet that waits to be received, because the other endpoints of a
  /// simulation have used the cache since the last packet. The packet may be anything. All of it is inlined, because
  /// the compiler drops calls of a function that only prefetches.
  [[gnu::always_inline]] void prefetch(const wire::Header& header) const {
    if (wire::is_from_client(header.kind())) {
      if (const Server* server = server_sessions_.find(header.session_key())) server->session.prefetch_all();
    } else {
      if (const Client* client = client_sessions_.find(header.session_key())) client->session.prefetch();
    }
  }
  /// True: the iteration counter shows from now on that the last iteration still runs. False: it shows that no
  /// iteration runs.
  void stay_in_callback(bool is_inside) {
    auto& iteration = context_.port.iteration;
    const uint64_t count = iteration.load(std::memory_order_relaxed);
    if ((count % 2 == 1) == is_inside) return;
    // The second call takes back the first one's step, so that the next iteration follows the last one.
    iteration.store(is_inside ? count + 1 : count - 1, std::memory_order_relaxed);
  }

 private:
  bool is_owner() const { return base::is_this_thread(owner_.load(std::memory_order_relaxed)); }
  /// True if the loop has run, so that the owner cannot change.
  bool is_bound() const { return loop_thread_.load(std::memory_order_relaxed) != nullptr; }
  Status not_owner(const char* wrong_thread) const;
  Status bind_owner();
  void step_iteration() {
    auto& iteration = context_.port.iteration;
    iteration.store(iteration.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void wait_for_wakers();
  void set_budgets();
  Status begin_to_trace();
  void trace_packet(const wire::Header& header, uint32_t bytes);
  void keep_trace() const;
  void begin_to_publish();
  void note_activity();
  void read_control_events();
  void on_peer_gone(const nexus::ControlEvent& event);
  void check_runs() const;
  void check_buffers() const;
  size_t buffers_out() const;
  // The fast paths of a call and of a packet, and the functions for the calls that they leave over.
  session::ClientSlot* try_begin(uint32_t type, detail::Buffer* request, detail::Buffer* response, Client* client);
  uint64_t note_deadline(Duration deadline);
  const char* broken_rule(uint32_t type, const detail::Buffer* request, const detail::Buffer* response) const;
  template <class Loop>
  bool try_timed_request(const wire::Header& header, const transport::Payload& payload, std::byte* copy_to, Loop& loop);
  bool try_waiting_response(const wire::Header& header, const transport::Payload& payload);
  template <class Loop>
  void end_request(Incoming* incoming, Loop& loop);
  [[gnu::noinline]] StartedCall start_asleep(Session session, uint32_t type, detail::Buffer* request,
                                             detail::Buffer* response);
  [[gnu::noinline]] StartedCall start_first_call(Session session, uint32_t type, detail::Buffer* request,
                                                 detail::Buffer* response, Client* client);
  /// A function of its own, because the common case then ends with a jump to it, and need not save registers.
  [[gnu::noinline]] StartedCall list_to_send(Client* client, StartedCall call) {
    client_sessions_.add_to_send(client);
    return call;
  }
  template <class Loop>
  bool try_request(const wire::Header& header, const transport::Payload& payload, std::byte* copy_to, Loop& loop);
  template <class Loop>
  bool try_response(const wire::Header& header, const transport::Payload& payload);
  /// The transport's released() in this iteration. UINT64_MAX if the transport releases at once.
  template <class Loop>
  uint64_t released() const {
    return Loop::kTraits.releases_at_once ? UINT64_MAX : context_.released;
  }

  std::atomic<const void*> owner_{base::thread_name()};  ///< at first the creator
  EndpointContext context_;
  Peers peers_;
  Completions completions_;
  Handlers handlers_;
  ServerSessions server_sessions_;
  ClientSessions client_sessions_;
  Timers timers_;
  LifeSigns life_signs_;
  std::unique_ptr<Publisher> publisher_;  ///< null: no page shows this endpoint

  uint32_t idle_iterations_ = 0;                   ///< iterations that found nothing to receive
  std::atomic<const void*> loop_thread_{nullptr};  ///< the owner from the loop's first run on
  std::atomic<bool> may_run_{false};               ///< is_bound() and not is_closed_
  bool is_started_ = false;                        ///< start() has succeeded
  bool is_closed_ = false;
  Status failure_;  ///< the transport's failure, which is final
  uint64_t link_bytes_per_sec_ = 0;
  uint64_t closing_since_ns_ = UINT64_MAX;
  detail::Buffer* path_buffer_ = nullptr;
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_transport_{true};        ///< for stop(), which any thread may call while the endpoint closes
  std::atomic<uint32_t> waking_{0};              ///< calls of stop() that may be using the transport
  std::vector<detail::InlineFunction<>> posts_;  ///< scratch of read_mail()
};

}  // namespace tern::rpc
