// Endpoint: what application code holds. Touches no packet, so it is no template.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tern/congestion_control.h>
#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>
#include <tern/duration.h>
#include <tern/msgbuf.h>
#include <tern/request.h>
#include <tern/status.h>

namespace tern {

namespace rpc {
class EndpointCore;
}
class CallAwaitable;

/// What a continuation gets. Both buffers come home: move them out to keep them; what is left is released.
struct Completion {
  Status status;          ///< kOk, or why there is no response
  uint16_t app_code = 0;  ///< with kRefused: what the handler gave to Request::fail; 0 if the library refused
  MsgBuf request;         ///< as it was sent
  MsgBuf response;        ///< with kOk, its length is that of the response
};

/// Of one call: Endpoint::enqueue_request().
struct CallOptions {
  /// The call ends with kDeadline this long from now(), if it has not ended before; the server sees it too.
  Duration deadline = Duration::max();
};

/// Of one request type: Endpoint::on_request().
///
/// A request with a deadline that has less time left than the handler took lately is refused (kDeadline); while some
/// are, the newest goes first. A handler that keeps a Request looks at is_cancelled() now and then: of those that a
/// session's client has given up and the application still has, there are at most four for each slot of its window.
/// Then the slots of further ones stay taken until they are answered.
struct HandlerOptions {
  /// Run on a worker thread of the Nexus instead of in the event loop. For handlers above a microsecond or so.
  bool worker = false;
  /// Larger requests are refused (kTooLarge) before anything is allocated for them.
  size_t max_request_bytes = 8u << 20;
};

/// How run_event_loop() waits when there is nothing to do.
enum class Wait : uint8_t {
  kPoll,      ///< never blocks: lowest latency, a whole CPU
  kAdaptive,  ///< spins for RpcOptions::spin, then blocks
  kBlock,     ///< blocks at once
};

/// Of an endpoint: Rpc::create(). Every limit is refused with a status that names it.
struct RpcOptions {
  /// Names the endpoint at its Nexus: the last part of a session URI. One endpoint per id.
  uint16_t endpoint_id = 0;
  /// Memory for requests of more than one packet while they arrive. Beyond it they are refused (kNoMemory), unless the
  /// clients of another address (IPv4 address, or IPv6 /64), or another Nexus of the same address, would still have
  /// more than theirs: then that one's request which has made no progress for longest gives way and fails (kNoMemory).
  /// So does one without progress for 1 s.
  size_t receive_budget_bytes = 256u << 20;
  /// Memory for responses of more than 1 KiB that clients have not reported as received. Beyond it the response for
  /// which its client has not asked for longest gives way, of the address and Nexus that have most; who asks for the
  /// rest of it gets kNoMemory. A single response may be larger. Raise it where large responses are fetched by many
  /// clients at a time.
  size_t response_budget_bytes = 256u << 20;
  /// Calls of one session that may wait for a free slot; beyond it enqueue_request() says kQueueFull.
  uint32_t queue_limit = 4096;
  /// Server sessions that this endpoint accepts; beyond it clients get kQueueFull.
  uint32_t server_sessions_max = 1u << 20;
  /// Of these, those with clients of one IPv4 address, or of one IPv6 /64; beyond it clients get kQueueFull. 0: half of
  /// server_sessions_max, and at most 65536. Raise it where more clients share an address.
  uint32_t server_sessions_per_peer_max = 0;
  /// Packets that one client may have on their way to this endpoint; more wait at the client. 0: as many as the receive
  /// queue takes, and the link by which packets arrive where the transport knows it, divided by the active clients. 1
  /// to 128: always so many, for experiments and where round trips without load are longer than 25 us.
  uint32_t credit_limit = 0;
  /// What the loop does between packets. Set kPoll where a CPU may be spent on it, kBlock where it must not.
  Wait wait = Wait::kAdaptive;
  /// kAdaptive: how long to spin after the last work. 50 us covers a round trip on most networks.
  Duration spin = std::chrono::microseconds(50);
  /// Of its client sessions that do not say otherwise.
  CongestionControl congestion_control = CongestionControl::kDefault;
  /// A client reports finished requests after this long without new ones, so that the server can free responses. A
  /// server that hears nothing of a response frees it after 25 s.
  Duration report_delay = std::chrono::milliseconds(100);
  /// Message memory is of 2 MB pages where they are present, else of normal ones.
  bool huge_pages = true;
  /// Of 1 GB pages where they are present. For message memory of many gigabytes.
  bool giant_pages = false;
  /// All message memory of this endpoint.
  size_t memory_limit_bytes = SIZE_MAX;
};

/// Of a session, at its client: Endpoint::create_session().
struct SessionOptions {
  /// Requests in flight; more wait. 1 to 64.
  uint8_t window = 8;
  /// How long the server may be silent before pending calls end with kPeerUnreachable: to the request, which among
  /// thousands may first have to wait for its turn, and then on the data path. The status names the reason as far as
  /// it is known; of a dead host on the same network the kernel says so after 3 s only.
  Duration connect_timeout = std::chrono::seconds(2);
  /// Packets leave no faster than this, headers included (a fixed-rate congestion controller). What a loop that comes
  /// late, or a pause, has left unused is made up for in bursts of at most 100 us' worth, or of 4 packets after a late
  /// turn. 0: no limit.
  uint64_t rate_bytes_per_sec = 0;
  /// How it finds its rate. Of no effect with rate_bytes_per_sec.
  CongestionControl congestion_control = CongestionControl::kDefault;
};

/// A session: a value; one that is gone is an error, never another session.
struct Session {
  uint64_t name = UINT64_MAX;                                        ///< index, and which of the sessions that had it
  friend bool operator==(const Session&, const Session&) = default;  ///< the same session of the same endpoint
};

/// An accepted call, for cancel().
struct CallId {
  uint64_t value = 0;  ///< no call has 0
};

/// Counters of an endpoint; read in its thread. docs/counters.md says what each means and what to do about it.
struct EndpointCounters {
#define TERN_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
#undef TERN_COUNTER
};

/// What application code holds of an endpoint, whatever its transport.
///
/// Owner thread only, unless a member says "any thread": the thread that first runs the event loop, until then the
/// one that made the endpoint. From another thread: kWrongThread (an empty MsgBuf from alloc_msgbuf).
/// Handlers, continuations, timers and posted functions run in the owner's event loop; they may call everything here,
/// but not run the loop. An exception that leaves one of them ends the process.
class Endpoint {
 public:
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Registers what runs for requests of `type` (0..4095). Only before the first loop iteration, once per type.
  /// kMisuse otherwise. kNoMemory. `handler` may capture anything and is destroyed with the endpoint.
  template <class F>
  requires std::invocable<F&, Request> Status on_request(uint16_t type, F handler, HandlerOptions options = {}) {
    auto owned = std::unique_ptr<Handler>(new (std::nothrow) OwnedHandler<F>(std::move(handler)));
    return add_handler(type, std::move(owned), options);
  }

  /// Begins a session with endpoint E of the Nexus at "udp://HOST:PORT/E" ("/E" may be left out: 0). Never waits for
  /// the network (it may for the name service, if HOST is a name, of which all addresses are tried); calls wait until
  /// the session is open, or end with the reason why it is not.
  /// kMisuse: not such a URI, port 0, or options out of range. kNoMemory. kUnavailable: the name is unknown, the Nexus
  /// does not reach the host's address family (IPv4, IPv6), or the system gives no random numbers.
  TERN_API Result<Session> create_session(std::string_view uri, SessionOptions options = {});
  /// Ends it; pending calls get kCancelled in the next iteration. kSessionReset: it is gone already.
  TERN_API Status destroy_session(Session session);
  /// True once calls on it travel. False: still connecting, or gone.
  TERN_API bool is_open(Session session) const;

  /// A buffer of this endpoint's arena: length `len_bytes` (up to 1 GiB), capacity as much or more, aligned to 64
  /// bytes, with any content. Empty: no memory, too large, or the wrong thread.
  TERN_API MsgBuf alloc_msgbuf(size_t len_bytes);

  /// Sends `request` to the handler of `type`; `response` is room for the answer: its capacity, whatever its length (so
  /// a buffer that has come back serves again as it is). A longer answer is kTooLarge. `then(Completion&)` runs exactly
  /// once, in the event loop, close() or ~Rpc, and gets both buffers back. If the call is refused, the buffers stay
  /// with the caller and `then` never runs: kSessionReset (stale session), kMisuse (empty MsgBuf, or of another
  /// endpoint), kNoMemory, kQueueFull, kWrongThread.
  template <Small F>
  requires std::invocable<F&, Completion&> Result<CallId> enqueue_request(Session session, uint16_t type,
                                                                          MsgBuf&& request, MsgBuf&& response, F then,
                                                                          CallOptions options = {}) {
    const Started started = start_call(session, type, request, response, options.deadline);
    if (started.continuation == nullptr) [[unlikely]]
      return refusal();
    new (started.continuation) Continuation(std::move(then));  // it is empty so far
    return CallId{started.id};
  }
  /// The same for coroutines: `Completion done = co_await endpoint.call(...)`. Defined in <tern/coroutine.h>. A refused
  /// call does not wait: its status and both buffers are in the Completion at once.
  inline CallAwaitable call(Session session, uint16_t type, MsgBuf&& request, MsgBuf&& response,
                            CallOptions options = {});
  /// Ends a call early: its continuation runs with kCancelled (or what came first), not before its buffers are free.
  /// kMisuse: no such call, or it has ended. kNoMemory: the call goes on.
  TERN_API Status cancel(CallId call);

  /// The time of this loop iteration.
  TERN_API Duration now() const;
  /// Runs `then()` in the loop, `delay` from now() at the earliest. kNoMemory. kSessionReset: the endpoint is closed.
  template <Small F>
  requires std::invocable<F&> Status after(Duration delay, F then) {
    return add_timer(delay, detail::InlineFunction<>(std::move(then)));
  }
  /// Any thread: runs `then()` in the owner's loop soon. kQueueFull: 65536 wait. kNoMemory. kSessionReset: the
  /// endpoint is closed.
  template <Small F>
  requires std::invocable<F&> Status post(F then) { return add_post(detail::InlineFunction<>(std::move(then))); }
  /// Any thread, and signal handlers: run_event_loop() returns after this iteration. Stays in force until it has.
  TERN_API void stop();

  /// Live; the reference lasts as long as the endpoint.
  TERN_API const EndpointCounters& counters() const;
  /// Any thread. RpcOptions::endpoint_id.
  TERN_API uint16_t id() const;

 protected:
  explicit Endpoint(rpc::EndpointCore* core) : core_(core) {}  ///< for Rpc, which owns `core`
  ~Endpoint() = default;

 private:
  friend class rpc::EndpointCore;
  using Continuation = detail::InlineFunction<Completion&>;
  struct Handler {
    virtual ~Handler() = default;
    virtual void operator()(detail::RequestFront* front) noexcept = 0;  // what is thrown ends the process
  };
  template <class F>
  struct OwnedHandler final : Handler {
    explicit OwnedHandler(F f) : function(std::move(f)) {}
    void operator()(detail::RequestFront* front) noexcept override { function(Request(front)); }
    F function;
  };

  TERN_API Status add_handler(uint16_t type, std::unique_ptr<Handler> handler, HandlerOptions options);
  /// An accepted call wants its continuation put into its place; null: refused, refusal() says why.
  struct Started {
    Continuation* continuation;
    uint64_t id;
  };
  TERN_API Started start_call(Session session, uint16_t type, MsgBuf& request, MsgBuf& response, Duration deadline);
  TERN_API Status refusal() const;
  TERN_API Status add_timer(Duration delay, detail::InlineFunction<> then);
  TERN_API Status add_post(detail::InlineFunction<> then);

  rpc::EndpointCore* core_;
};

}  // namespace tern
