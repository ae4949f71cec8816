// An endpoint's handlers, and their requests, from the arrival of a complete request to its answer.
// Owner thread only; worker threads touch a request through its Mailbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/endpoint.h>

#include "rpc/endpoint_context.h"
#include "rpc/endpoint_internals.h"
#include "rpc/mailbox.h"
#include "rpc/server.h"
#include "rpc/waiting_requests.h"

namespace tern::rpc {

class ServerSessions;

/// A handler, and its measured time.
struct HandlerEntry {
  std::unique_ptr<RequestHandler> handler;  ///< null: the request type has none
  HandlerOptions options;
  HandlerTime time = {};
};

/// The reason of a refusal, and its counter. No counter: the request is not refused.
struct RequestRefusal {
  uint64_t* counter = nullptr;
  wire::FailureCode code = {};
};

class TERN_API Handlers {
 public:
  Handlers(EndpointContext& context, ServerSessions& sessions) : context_(context), sessions_(sessions) {}

  /// Registers a handler; before the first loop iteration. kMisuse, kNoMemory.
  Status add(uint16_t type, std::unique_ptr<RequestHandler> handler, const HandlerOptions& options);
  /// Ends the fast path: run() gets all later requests and refuses them.
  void start_closing() { dispatch_types_ = 0; }
  /// Gives back the endpoint's record. The mailbox closes next.
  void close();

  // -- The fast path (rpc/fast_path.h): a request of one packet, whose handler runs in the loop --

  /// The data of a handler that the fast path needs.
  struct Dispatch {
    RequestHandler* handler = nullptr;
    size_t limit_bytes = 0;  ///< smaller requests run in the loop; 0: no request does
  };
  /// Null: a request of this type and size may not take the fast path.
  const Dispatch* find_dispatch(uint64_t type, uint32_t bytes) const {
    if (type >= dispatch_types_ || bytes >= dispatch_[type].limit_bytes) [[unlikely]]
      return nullptr;
    return &dispatch_[type];
  }
  /// The record of the request that is handled now, or next. Not null if find_dispatch() has found something.
  Incoming* record() const { return spare_; }
  void dispatch(const Dispatch& entry) { (*entry.handler)(spare_); }
  /// Called after the handler has returned without an answer in the slot's buffer.
  [[gnu::noinline]] void keep_if_open(Incoming* incoming);

  /// The times of a request whose handler runs now, ns.
  struct Timed {
    HandlerEntry* entry = nullptr;  ///< null: no deadline, or time() returns none
    uint64_t begin_ns = 0;
    uint64_t deadline_ns = 0;
    uint64_t expected_ns = 0;  ///< HandlerTime::expected_ns() at begin_ns
  };
  /// For a request with a deadline for which find_dispatch() has found something. None if it would be late, or its
  /// handler takes long: the general path must then get the packet, so the session must not have noted it yet.
  Timed time(uint32_t type, uint32_t deadline_code);
  /// Called after its handler.
  void end_time(const Timed& timed);

  // -- The general path --

  /// The reason to refuse a request of this type and size, if any.
  RequestRefusal refusal_of(uint32_t type, size_t bytes);
  /// Takes a complete request: runs its handler, submits it to a worker, lets it wait, or refuses it. `data` lies in
  /// `owned`, which this takes over. If `owned` is null, `data` is memory of the transport until this returns.
  void run(Server* server, session::ServerSlot* slot, const std::byte* data, uint32_t bytes, detail::Buffer* owned);
  /// Wakes the workers if requests were submitted to them. One wake-up for a whole burst is several times cheaper than
  /// one for each request. The loop calls this when the mailbox has mail, and run_in_worker() makes it have some.
  void flush_work() {
    if (std::exchange(has_submitted_, false)) context_.nexus.flush_work();
  }
  bool has_waiting() const { return !waiting_.empty(); }
  /// Runs one of the requests with deadlines that wait for a handler that takes long.
  void run_waiting();

  // -- Answers (Request calls these) --

  /// The request is answered or dropped.
  void on_answered(Incoming* incoming);
  /// Moves the slot's response buffer to the request. Null: the slot has none for `len_bytes` that the transport has
  /// released.
  detail::Buffer* take_response_buffer(Incoming* incoming, size_t len_bytes);

  // -- Requests that their client has given up --

  /// True if no handler has had the request yet.
  bool has_not_begun(const Incoming* incoming) const {
    return incoming->waits_in_loop || context_.mailbox->is_waiting(incoming);
  }
  /// Separates the request from its slot.
  void abandon(Incoming* incoming, Server* server);
  /// True if the slot's request is in a handler of this thread, which may write to the slot's response.
  bool is_in_handler(const session::ServerSlot* slot) const;

  // -- When packets have come --

  /// Notes a poll before or after a handler that takes long. Packets of the next iteration have arrived after `ns`.
  void note_poll(uint64_t ns);
  bool has_polled() const { return polled_ns_ != 0; }
  /// Notes that the loop returns to a program that may wait.
  void note_rest(uint64_t ns) { rested_ns_ = ns; }

  /// CHECKs the tables. `waiting`: requests of the sessions' slots that wait in the loop.
  void check_invariants(size_t waiting) const;

 private:
  /// Handlers that take longer run one at a time if their requests have deadlines. In a burst of 16 packets the first
  /// answer would otherwise wait for 15 further handlers, and so for about one round trip of a slow local network.
  static constexpr uint64_t kLongHandlerNs = 50'000;
  /// A program that leaves the loop for less than this counts as not having waited.
  static constexpr uint64_t kNapNs = 20'000;

  Incoming* find_record();
  void bind(Incoming* incoming);
  void unbind(Incoming* incoming);
  void keep(Incoming* incoming, bool may_wait);
  void count_if_late(const Incoming* incoming);
  void fail(Server* server, session::ServerSlot* slot, wire::FailureCode code);
  static void call(RequestHandler& handler, Incoming* incoming);
  void trace_answer(const Server* server, const session::ServerSlot* slot, uint32_t bytes) const {
    if (context_.tracer != nullptr) [[unlikely]]
      context_.tracer->request(trace::Kind::kAnswered, TracedRequest::of(server, *slot), bytes);
  }
  void run_here(HandlerEntry& entry, Incoming* incoming, const Timed& timed, bool may_wait);
  void run_in_worker(Incoming* incoming, bool may_wait);
  Incoming* submit(Incoming* incoming);
  static void run_taken(Incoming* incoming);
  void let_wait(Incoming* incoming);
  uint64_t arrived_ns() const;
  Timed begin_time(HandlerEntry& entry, uint32_t deadline_code) const;
  static bool is_late(const Timed& timed) { return timed.deadline_ns <= timed.begin_ns + timed.expected_ns; }
  static bool takes_long(const Timed& timed) { return timed.expected_ns >= kLongHandlerNs; }

  EndpointContext& context_;
  ServerSessions& sessions_;
  Incoming* spare_ = nullptr;  ///< see find_record(); null: there was no memory for it
  // Both tables have the same size, and are indexed by the request type.
  std::vector<HandlerEntry> entries_;
  std::unique_ptr<Dispatch[]> dispatch_;
  uint32_t dispatch_types_ = 0;    ///< size of dispatch_; 0: no request takes the fast path
  bool has_submitted_ = false;     ///< requests were submitted since the last flush_work()
  WaitingRequests waiting_;        ///< requests that wait for handlers in the loop
  uint64_t polled_ns_ = 0;         ///< time of the last poll before a handler that took long; 0: never
  uint64_t polled_iteration_ = 0;  ///< EndpointPort::iteration at polled_ns_
  uint64_t rested_ns_ = 0;         ///< time of the last note_rest()
};

}  // namespace tern::rpc
