// Endpoint: the interface for application code. It is independent of the transport, and therefore no template.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tern/congestion_control.h>
#include <tern/counters.h>
#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>
#include <tern/duration.h>
#include <tern/msgbuf.h>
#include <tern/request.h>
#include <tern/session.h>
#include <tern/status.h>

namespace tern {

namespace rpc {
class EndpointCore;
struct EndpointInternals;
}  // namespace rpc
class CallAwaitable;
class OpenAwaitable;
class SleepAwaitable;

/// The argument of a continuation. It returns both buffers to the application: move a buffer out to keep it, because
/// the buffers that stay here are released.
struct Completion {
  Status status;          ///< kOk, or the reason why there is no response
  uint16_t app_code = 0;  ///< with kRefused: the code of Request::fail(); 0: the library refused
  MsgBuf request;         ///< as it was sent
  MsgBuf response;        ///< with kOk, its length is that of the response
};

namespace detail {

/// The continuation of a call with a SharedBuf.
template <class F>
struct WithShared {
  void operator()(Completion& done) {
    (void)done.request.take();  // detaches the buffer, which `request` owns
    request = SharedBuf();
    then(done);
  }
  SharedBuf request;
  F then;
};

}  // namespace detail

/// For one call: Endpoint::enqueue_request().
struct CallOptions {
  /// The call ends with kDeadline this long after now(), unless it ends before. The server receives the deadline.
  Duration deadline = Duration::max();
  /// If the call is refused, its continuation also runs, before enqueue_request() returns, with the reason and both
  /// unchanged buffers. A program then has one path for errors. A continuation that repeats the call at once must look
  /// at the status first, because the call may be refused for ever. Accepted calls cost nothing more.
  bool refusal_runs_then = false;
};

/// For one request type: Endpoint::on_request().
///
/// A request is refused (kDeadline) if less time is left to its deadline than the handler took lately. While requests
/// are refused for that reason, the newest request runs first.
/// A handler that keeps a Request should call is_cancelled() from time to time. The application may keep four cancelled
/// requests for each slot of a session's window. The slots of further ones stay taken until the application answers.
struct HandlerOptions {
  /// Run on a worker thread of the Nexus instead of in the event loop. For handlers above a microsecond or so. With
  /// several NexusOptions::worker_threads the handler runs in several threads at a time, so its captures must be
  /// thread-safe. Workers begin at the latest when the loop has handled the packets that it has received together with
  /// the request.
  bool worker = false;
  /// Larger requests are refused (kTooLarge) before memory is allocated for them.
  size_t max_request_bytes = 8u << 20;
};

/// How run_event_loop() waits for work. When it polls in vain, it calls sched_yield() if another endpoint of the
/// process polls on the same CPU, and for 3 ms after a session was begun or accepted.
enum class Wait : uint8_t {
  /// Never blocks: lowest latency, a whole CPU. If other programs take more than a quarter of that CPU, an endpoint
  /// with many packets calls sched_yield() after each 50 us in vain.
  kPoll,
  kAdaptive,  ///< spins for RpcOptions::spin, then blocks
  kBlock,     ///< blocks; polls while packets come less than 30 us apart, because blocking then costs as much CPU
};

/// For an endpoint: Rpc::create(). A refusal at a limit has a status that names the limit.
struct RpcOptions {
  /// The endpoint's name at its Nexus: E in "tern://HOST:PORT/E". Ids are unique in a Nexus.
  uint16_t endpoint_id = 0;
  /// Memory for requests of more than one packet while they arrive. When it is used up, a new request makes an older
  /// one fail (kNoMemory): one of an address (IPv4 address, or IPv6 /64), or else of a Nexus at the same address, that
  /// would still use more memory than the new request's sender, or else one without progress for 1 s. Of several, the
  /// one without progress for the longest time fails. If there is none, the new request fails.
  size_t receive_budget_bytes = 256u << 20;
  /// Memory for responses of more than 1 KiB that clients have not reported as received. When it is used up, a response
  /// to the address and Nexus that use most memory is freed: the one that its client has not requested for the longest
  /// time. If the client requests the rest of it later, its call ends with kNoMemory. A single response may be larger
  /// than this. Raise it if many clients fetch large responses at a time.
  size_t response_budget_bytes = 256u << 20;
  /// Calls of one session that may wait for a free slot, at least 1. enqueue_request() refuses further ones
  /// (kQueueFull).
  uint32_t queue_limit = 4096;
  /// Server sessions that this endpoint accepts. Further clients get kQueueFull.
  uint32_t server_sessions_max = 1u << 20;
  /// Server sessions with clients of one IPv4 address, or of one IPv6 /64. Further clients get kQueueFull. 0: half of
  /// server_sessions_max, at most 65536. Raise it if more clients share an address.
  uint32_t server_sessions_per_peer_max = 0;
  static constexpr uint32_t kCreditLimitMax = 2048;  ///< of credit_limit
  /// Full packets that one client may have in flight to this endpoint (its credits). 0: the capacity of the receive
  /// queue, and of the incoming link if the transport knows it, divided by the active clients. 1 to 2048: this number,
  /// for experiments and for round trips without load of more than 25 us. The limit is counted in bytes, and is at most
  /// 2160 packets of 2 KiB where the transport's receive queue is memory (udp). One message has at most 512 KiB in
  /// flight, whatever the limit.
  uint32_t credit_limit = 0;
  /// How the loop waits for packets. Use kPoll if a CPU may be spent on it, kBlock if not.
  Wait wait = Wait::kAdaptive;
  /// kAdaptive: how long to spin after the last work. 50 us covers a round trip on most networks.
  Duration spin = std::chrono::microseconds(50);
  /// The congestion controller of client sessions whose SessionOptions say kDefault.
  CongestionControl congestion_control = CongestionControl::kDefault;
  /// A client reports finished requests after this long without new ones, so that the server can free responses. With
  /// many sessions that is later: 10 us for each session that waits for a report or another timer, at most 10 s. The
  /// server frees a response after 25 s without a packet about it.
  Duration report_delay = std::chrono::milliseconds(100);
  /// Use 2 MB pages for message memory if the system has some, otherwise normal pages.
  bool huge_pages = true;
  /// Use 1 GB pages if the system has some. For message memory of many gigabytes.
  bool giant_pages = false;
  /// Limit of all message memory of this endpoint. Of the budgets above, that for requests is at most a quarter of it,
  /// and that for responses at most half.
  size_t memory_limit_bytes = SIZE_MAX;
  /// Keeps this many of the newest steps of calls and packets, 32 bytes each, for dump_trace() and for a CHECK of the
  /// library that fails (docs/tracing.md). Rounded up to a power of two. Calls and packets take the general path then,
  /// which is slower. 0: no trace. More than 2^26 is refused (kMisuse).
  size_t trace_records = 0;
  /// With trace_records: the endpoint writes its trace to a new file in this folder when it closes. "": it does not.
  std::string trace_folder{};
};

/// For a client's session: Endpoint::create_session().
struct SessionOptions {
  /// Requests in flight, 1 to 64. Further ones wait.
  uint8_t window = 8;
  /// Time limit for opening the session. After it, pending calls end with kPeerUnreachable. It holds for the answer to
  /// the connect request, which may wait behind thousands of other requests, and again for the first answer on the data
  /// path. The status names the reason if it is known. The kernel reports a dead host on the same network only after 3
  /// s.
  Duration connect_timeout = std::chrono::seconds(2);
  /// The rate limit of this session, headers included (a fixed-rate congestion controller). After a pause or a late
  /// turn of the loop, packets may leave in a burst of at most 100 us' worth, or of 4 packets after a late turn. 0: no
  /// limit.
  uint64_t rate_bytes_per_sec = 0;
  /// The congestion controller. Ignored with rate_bytes_per_sec.
  CongestionControl congestion_control = CongestionControl::kDefault;
  /// Connect again when the session is lost, refused or does not open, until destroy_session() or the endpoint's end.
  /// The Session stays the same. A loss ends all calls, as without this option. The library repeats no call, so a
  /// handler runs at most once for each. At most RpcOptions::queue_limit later calls wait until the session is open
  /// again; if the next attempt fails, too, they end with its reason. The host name of the URI is resolved only in
  /// create_session(). Without memory for another attempt the session ends (kEnded).
  bool reconnect = false;
  /// With reconnect: the pause before the first attempt. Each attempt that fails doubles it, up to reconnect_pause_max.
  /// It is reset after the session was open for reconnect_pause_max. The real pause is shorter by a random part of up
  /// to one half, so that clients do not all connect at the same time.
  Duration reconnect_pause = std::chrono::milliseconds(10);
  /// With reconnect: the longest pause, at least 1 ms; reconnect_pause, if that is longer.
  Duration reconnect_pause_max = std::chrono::seconds(1);
};

/// An accepted call, for cancel().
struct CallId {
  uint64_t value = 0;  ///< no call has 0
};

/// A timer of after(), for cancel_timer() of the same endpoint.
struct TimerId {
  uint64_t value = 0;  ///< no timer has 0
};

namespace detail {
inline constexpr Status kNullFunction(Code::kMisuse, "the function is null: give one that can be called");
}

/// An endpoint over any transport.
///
/// Owner thread only, unless a member says "any thread". The owner is the thread that first runs the event loop; until
/// then it is the thread that made the endpoint. Calls from other threads return kWrongThread
/// (session_info(): kEnded). Handlers, continuations, timers, posted functions and the listener for session
/// events run in the owner's event loop. They may call all members, but must not run the loop. An exception that leaves
/// one of them ends the process. A null pointer or an empty std::function in place of one is refused (kMisuse).
class Endpoint {
 public:
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Registers the handler for requests of `type` (0..4095). Call this once for each type, before the first call of
  /// run_event_loop(), run_event_loop_once(), descriptor() or close(); otherwise kMisuse. kNoMemory. `handler` may have
  /// captures of any size, and is destroyed with the endpoint.
  template <class F>
  requires std::invocable<F&, Request> Status on_request(uint16_t type, F handler, HandlerOptions options = {}) {
    if (detail::is_null(handler)) [[unlikely]]
      return detail::kNullFunction;
    auto owned = std::unique_ptr<Handler>(new (std::nothrow) OwnedHandler<F>(std::move(handler)));
    return add_handler(type, std::move(owned), options);
  }
  /// For the library: on_request() for a handler that takes the front of the record instead of a Request. The handler
  /// must either revoke the lease of `space`, write an answer there of fewer bytes than its writable_end and set
  /// kAnswered, or make a Request of the front.
  template <class F>
  requires(std::invocable<F&, detail::RequestFront*> && !std::invocable<F&, Request>) Status
      on_request(uint16_t type, F handler, HandlerOptions options = {}) {
    auto owned = std::unique_ptr<Handler>(new (std::nothrow) FrontHandler<F>(std::move(handler)));
    return add_handler(type, std::move(owned), options);
  }

  /// Registers the listener for the events of all sessions of this endpoint. Call this once, at the time of
  /// on_request(); otherwise kMisuse. kNoMemory. The listener runs in the owner's loop, close() or ~Rpc, and is
  /// destroyed with the endpoint.
  ///
  /// A session of create_session(): kOpen when it opens. kEnded exactly once, as the session's last event, after the
  /// continuations of all its calls. With SessionOptions::reconnect, kConnecting with the reason when the session is
  /// lost or an attempt fails; continuations of its calls may run later.
  /// A session of a client: kOpen when the client has proved its path, and then kEnded exactly once. Handlers may still
  /// have requests of it, which are cancelled.
  template <class F>
  requires std::invocable<F&, const SessionEvent&> Status on_session_event(F listener) {
    if (detail::is_null(listener)) [[unlikely]]
      return detail::kNullFunction;
    return add_listener(std::unique_ptr<Listener>(new (std::nothrow) OwnedListener<F>(std::move(listener))));
  }

  /// Begins a session with endpoint E of the Nexus at "tern://HOST:PORT/E" ("/E" may be left out for endpoint 0;
  /// "udp://" means the same as "tern://"). Does not wait for the network. If HOST is a name it may wait for the name
  /// service, and all addresses of the name are tried. Calls wait until the session is open. If it does not open, they
  /// end with the reason.
  /// kMisuse: not such a URI, port 0, or options out of range. kNoMemory. kUnavailable: the name is unknown, the Nexus
  /// cannot send to the host's address family (IPv4, IPv6), or the system gives no random numbers. kSessionReset: the
  /// endpoint is closing or closed.
  TERN_API Result<Session> create_session(std::string_view uri, SessionOptions options = {});
  /// Ends a session. Pending calls end with kCancelled in the next iteration. kSessionReset: it has ended already.
  /// kMisuse: a client's session, which this endpoint serves.
  TERN_API Status destroy_session(Session session);
  /// Returns the session's state, peer and counters. It may be a client's session that this endpoint serves
  /// (Request::session()).
  TERN_API SessionInfo session_info(Session session) const;
  /// True if the session is open. False: it is still connecting, or it has ended.
  bool is_open(Session session) const { return session_info(session).state == SessionState::kOpen; }

  /// A hint: calls of this session will follow. Begins to load the session's entry in a table into the caches. The
  /// fourth later call of prefetch() begins to load the session itself. It pays in programs that visit many sessions at
  /// random, and prefetch each of them about eight calls earlier. For calls from continuations and handlers it pays
  /// with hundreds of thousands of sessions only, because most of their cache misses overlap anyway. Without effect in
  /// another thread than the owner's, and if there is no such session.
  TERN_API void prefetch(Session session) const;

  /// Returns a buffer of this endpoint's arena. Its length is `len_bytes` (up to 1 GiB), its capacity at least
  /// `len_bytes`, its alignment 64 bytes, its content undefined. Empty: no memory, too large, no Nexus. Any thread; the
  /// owner is faster.
  TERN_API MsgBuf alloc_msgbuf(size_t len_bytes);

  /// Sends `request` to the handler of `type`. The response is written to `response`, up to its capacity. The length of
  /// `response` has no effect, so that a buffer can be reused without resize(). A longer response ends the call with
  /// kTooLarge. `then(Completion&)` runs exactly once, in the event loop, close() or ~Rpc, and gets both buffers back.
  /// If the call is refused, `then` never runs, and the caller keeps the buffers: kSessionReset (the session has
  /// ended), kMisuse (empty MsgBuf, or of another endpoint; null `then`), kNoMemory, kQueueFull, kWrongThread. With
  /// CallOptions::refusal_runs_then, `then` runs at once instead, in the caller's thread, and the result is CallId{},
  /// which names no call.
  template <Small F>
  requires std::invocable<F&, Completion&> Result<CallId> enqueue_request(Session session, uint16_t type,
                                                                          MsgBuf&& request, MsgBuf&& response, F then,
                                                                          CallOptions options = {}) {
    if (detail::is_null(then)) [[unlikely]]
      return detail::kNullFunction;
    const Started started = start_call(session, type, request.buffer(), response.buffer(), options.deadline);
    if (started.continuation == nullptr) [[unlikely]] {
      if (!options.refusal_runs_then) return refusal();
      run_refused(then, {refusal(), 0, std::move(request), std::move(response)});
      return CallId{};
    }
    (void)request.take();
    (void)response.take();
    new (started.continuation) Continuation(std::move(then));  // the old one is empty, and needs no destructor
    return CallId{started.id};
  }
  /// As above, with a request that other calls may use at the same time. The call holds it until just before `then`
  /// runs, and Completion::request is empty. The captures of `then` have 40 bytes.
  template <class F>
  requires std::invocable<F&, Completion&> && Small<detail::WithShared<F>> Result<CallId> enqueue_request(
      Session session, uint16_t type, const SharedBuf& request, MsgBuf&& response, F then, CallOptions options = {}) {
    if (detail::is_null(then)) [[unlikely]]
      return detail::kNullFunction;
    const Started started = start_call(session, type, request.buffer(), response.buffer(), options.deadline);
    if (started.continuation == nullptr) [[unlikely]] {
      if (!options.refusal_runs_then) return refusal();
      run_refused(then, {refusal(), 0, MsgBuf(), std::move(response)});
      return CallId{};
    }
    (void)response.take();
    new (started.continuation) Continuation(detail::WithShared<F>{request, std::move(then)});
    return CallId{started.id};
  }
  /// For the library: a call without a deadline and without cancel(), of a program that keeps its buffers elsewhere.
  /// The request is the first `len_bytes` of `request`, at most its capacity. The library owns both buffers until
  /// `then` runs. Then the Completion owns them; if the program keeps them elsewhere, `then` must take() them. Returns
  /// false if the call is refused, like enqueue_request(); refusal() returns the reason.
  template <Small F>
  requires std::invocable<F&, Completion&>
  [[nodiscard]] bool enqueue_plain_request(Session session, uint8_t type, detail::Buffer* request,
                                           detail::Buffer* response, uint32_t len_bytes, F then) {
    Continuation* const continuation = start_plain_call(session, type, request, response, len_bytes);
    if (continuation == nullptr) [[unlikely]]
      return false;
    new (continuation) Continuation(std::move(then));
    return true;
  }
  /// For the library: why the last call was refused.
  TERN_API Status refusal() const;
  /// enqueue_request() for coroutines: `Completion done = co_await endpoint.call(...)`. Defined in <tern/coroutine.h>.
  /// A refused call does not suspend: its status and both buffers are in the Completion at once.
  inline CallAwaitable call(Session session, uint16_t type, MsgBuf&& request, MsgBuf&& response,
                            CallOptions options = {});
  /// The same with a request that other calls may use at the same time. Completion::request is empty.
  inline CallAwaitable call(Session session, uint16_t type, const SharedBuf& request, MsgBuf&& response,
                            CallOptions options = {});
  /// `Status status = co_await endpoint.opened(session)`: waits until a session of create_session() is open (kOk), or
  /// has ended, with the reason of its SessionEvent. kCancelled: this endpoint was closed. Does not wait if the session
  /// is open, has ended already (kSessionReset), or was made by a client (kMisuse); kWrongThread. For a session that
  /// reconnects it waits through all attempts. Defined in <tern/coroutine.h>.
  inline OpenAwaitable opened(Session session);
  /// `Status status = co_await endpoint.sleep(delay)`: as a timer of after(). kCancelled: the endpoint was closed
  /// before. Errors as of after(), without a wait. Defined in <tern/coroutine.h>.
  inline SleepAwaitable sleep(Duration delay);
  /// Ends a call early. Its continuation runs as soon as its buffers are free, with kCancelled, or with the outcome if
  /// the call had ended already. kMisuse: no such call, or it has ended. kNoMemory: the call goes on.
  TERN_API Status cancel(CallId call);

  /// The time of this loop iteration.
  TERN_API Duration now() const;
  /// Runs `then()` in the loop, at now() + `delay` or later. If close() comes first, `then` is destroyed without a run.
  /// kNoMemory: the system has no memory, or 2^24 timers wait. kSessionReset: the endpoint is closed.
  template <Small F>
  requires std::invocable<F&> Result<TimerId> after(Duration delay, F then) {
    if (detail::is_null(then)) [[unlikely]]
      return detail::kNullFunction;
    return add_timer(delay, detail::InlineFunction<>(std::move(then)));
  }
  /// Ends a timer early: destroys its function within this call, without a run. The timer may be due in this iteration,
  /// or be of a closed endpoint. Does not allocate. kMisuse, without effect: the timer has run, runs now, or was
  /// cancelled, or no timer has this id. An endpoint never uses an id for another timer.
  TERN_API Status cancel_timer(TimerId timer);
  /// Runs `then()` in the owner's loop soon. Any thread. If the endpoint ends first, `then` is destroyed without a run.
  /// kQueueFull: 65536 functions wait. kNoMemory. kSessionReset: the endpoint is closed.
  template <Small F>
  requires std::invocable<F&> Status post(F then) {
    if (detail::is_null(then)) [[unlikely]]
      return detail::kNullFunction;
    return add_post(detail::InlineFunction<>(std::move(then)));
  }
  /// Makes run_event_loop() return after its present iteration. If the loop does not run, its next call returns after
  /// its first iteration. Any thread, and signal handlers.
  TERN_API void stop();

  /// The present values. The reference is valid as long as the endpoint. The counters of the transport, the
  /// controllers, the management and the simulated network (EndpointCounters::transport and so on) are as of the last
  /// call; the management's may be as old as the last turn of its thread.
  TERN_API const EndpointCounters& counters() const;
  /// Writes the records of RpcOptions::trace_records to a file of mode 0600, which scripts/trace reads. An older file
  /// is replaced. Any thread, as long as the endpoint exists; the endpoint may run meanwhile. kMisuse: the endpoint has
  /// no trace. kUnavailable: the file cannot be written, or is not a regular one; the message has the reason.
  /// kNoMemory.
  TERN_API Status dump_trace(std::string_view file) const;
  /// The speed of the link below, as the transport knows or assumes it. Any thread.
  TERN_API uint64_t link_bytes_per_sec() const;
  /// Any thread. RpcOptions::endpoint_id.
  TERN_API uint16_t id() const;

 protected:
  explicit Endpoint(rpc::EndpointCore* core) : core_(core) {}  ///< for Rpc, which owns `core`
  ~Endpoint() = default;

 private:
  friend struct rpc::EndpointInternals;
  using Continuation = detail::InlineFunction<Completion&>;
  template <class F>
  static void run_refused(F& then, Completion done) noexcept {  // an exception ends the process
    then(done);
  }
  struct Handler {
    virtual ~Handler() = default;
    virtual void operator()(detail::RequestFront* front) noexcept = 0;  // an exception ends the process
  };
  template <class F>
  struct OwnedHandler final : Handler {
    explicit OwnedHandler(F f) : function(std::move(f)) {}
    void operator()(detail::RequestFront* front) noexcept override { function(Request(front)); }
    F function;
  };
  template <class F>
  struct FrontHandler final : Handler {
    explicit FrontHandler(F f) : function(std::move(f)) {}
    void operator()(detail::RequestFront* front) noexcept override { function(front); }
    F function;
  };

  struct Listener {
    virtual ~Listener() = default;
    virtual void operator()(const SessionEvent& event) noexcept = 0;  // an exception ends the process
  };
  template <class F>
  struct OwnedListener final : Listener {
    explicit OwnedListener(F f) : function(std::move(f)) {}
    void operator()(const SessionEvent& event) noexcept override { function(event); }
    F function;
  };

  TERN_API Status add_handler(uint16_t type, std::unique_ptr<Handler> handler, HandlerOptions options);
  TERN_API Status add_listener(std::unique_ptr<Listener> listener);
  /// The memory in which the caller constructs the continuation of an accepted call. Null: refused; refusal() returns
  /// the reason.
  struct Started {
    Continuation* continuation;
    uint64_t id;
  };
  [[gnu::always_inline]] Started start_call(Session session, uint16_t type, detail::Buffer* request,
                                            detail::Buffer* response, Duration deadline) {
    if (deadline == Duration::max()) return start_call(session, type, request, response);
    return start_deadline_call(session, type, request, response, deadline);
  }
  TERN_API Started start_call(Session session, uint32_t type, detail::Buffer* request, detail::Buffer* response);
  TERN_API Started start_deadline_call(Session session, uint32_t type, detail::Buffer* request,
                                       detail::Buffer* response, Duration deadline);
  TERN_API Continuation* start_plain_call(Session session, uint8_t type, detail::Buffer* request,
                                          detail::Buffer* response, uint32_t len_bytes);
  TERN_API Result<TimerId> add_timer(Duration delay, detail::InlineFunction<> then);
  TERN_API Status add_post(detail::InlineFunction<> then);
  friend OpenAwaitable;
  /// Returns true if `waiter` will run, false if the session is open already, or the reason why it will not open.
  TERN_API Result<bool> wait_for_open(Session session, detail::SessionWaiter* waiter);
  TERN_API void stop_waiting(Session session, detail::SessionWaiter* waiter);

  rpc::EndpointCore* core_;
};

}  // namespace tern
