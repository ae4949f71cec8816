// How calls end: continuations, and the memory that the transport may still read. Owner thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/try.h"
#include "rpc/endpoint_context.h"
#include "session/client_session.h"

namespace tern::rpc {

/// Promise 2: a call ends only when nothing can read its buffers any more. A call that ends before waits here for its
/// ticket. Responses that a server gives up wait here, too.
class TERN_API Completions {
 public:
  explicit Completions(EndpointContext& context) : context_(context) {}

  /// Runs a continuation with both buffers, and counts the call. The slot of `continuation` may be taken again while it
  /// runs, which by then runs from a copy.
  static void run(EndpointCounters& counters, session::Continuation& continuation, detail::Buffer* request,
                  detail::Buffer* response, Status status, uint16_t app_code);

  // -- Calls --

  /// Another client session may have `slots` calls that wait. False: there is no memory, and nothing has changed.
  [[nodiscard]] bool add_slots(size_t slots);
  void remove_slots(size_t slots) { slots_max_ -= slots; }
  /// Memory for one more call, beside those that slots may bring. False: there is none.
  [[nodiscard]] bool reserve_one() { return base::try_reserve(waiting_, waiting_.size() + slots_max_ + 1); }
  /// Ends a call in a later iteration, once the transport has released `ticket`. There is memory for it: the call was
  /// in a slot, or reserve_one() has succeeded.
  void wait(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status, uint16_t app_code,
            session::Continuation continuation);
  /// After wait(), for a slot that takes another call while the last one waits. False: there is no memory for that;
  /// the caller blocks the slot, and says which with block_slot().
  [[nodiscard]] bool reserve_for_slots() { return base::try_reserve(waiting_, waiting_.size() + slots_max_); }
  /// The last call of wait() blocks this slot until it ends.
  void block_slot(uint64_t session_name, uint32_t slot);
  bool has_waiting() const { return !waiting_.empty(); }
  /// Number of calls that have waited here so far. An ended session stores it, to know when its own calls have run.
  uint64_t waits() const { return waits_; }
  /// One of the first `count` calls of waits() waits still.
  bool has_waiting_of(uint64_t count) const { return !waiting_.empty() && waiting_.front().number < count; }
  /// Ends the calls whose tickets are released. `unblock(session_name, slot)` runs before the continuation of a call
  /// that blocks a slot. Calls that continuations add wait for the next time.
  template <class Unblock>
  void run_waiting(Unblock&& unblock);

  // -- Memory of responses --

  /// Frees the buffer once the transport has released `ticket`.
  void release_after(uint64_t ticket, detail::Buffer* buffer);
  void run_releases();
  bool has_releases() const { return releases_.first != nullptr; }

  // -- For tests --

  /// CHECKs lists and memory. `blocked`: slots of client sessions that take no call.
  void check_invariants(size_t slots, size_t blocked) const;
  template <class F>
  void for_each_buffer(F&& f) const;

 private:
  /// A function of its own, because only what it is given would be in registers otherwise, for every call.
  [[gnu::noinline, gnu::cold]] static void destroy(Completion& done) { done.~Completion(); }

  /// A call that has ended, and whose continuation waits.
  struct Finished {
    uint64_t ticket;
    detail::Buffer* request;
    detail::Buffer* response;
    Status status;
    uint16_t app_code;
    session::Continuation continuation;
    uint64_t number;               ///< of waits()
    uint64_t blocked_session = 0;  ///< name of the session whose slot takes no call meanwhile; 0: no slot is blocked
    uint32_t blocked_slot = 0;
  };
  /// Buffers, linked by `next`. The transport has released all of them when it has released `ticket`.
  struct Releases {
    detail::Buffer* first = nullptr;
    uint64_t ticket = 0;
  };

  EndpointContext& context_;
  /// Has memory for a call of each slot. Where there is no more, a slot is blocked while its last call waits.
  std::vector<Finished> waiting_;  ///< in the order of their numbers
  uint64_t waits_ = 0;
  size_t slots_max_ = 0;  ///< of all client sessions
  Releases releases_;
  Releases later_releases_;  ///< those that came after releases_ was begun; empty if releases_ is
};

// ---- Inline, for the common case ----

[[gnu::always_inline]] inline void Completions::run(EndpointCounters& counters, session::Continuation& continuation,
                                                    detail::Buffer* request, detail::Buffer* response, Status status,
                                                    uint16_t app_code) {
  request->revoke_lease();
  // Destroyed by hand: mostly the continuation has moved both buffers out, and one look tells.
  union Handover {
    Completion done;
    explicit Handover(Completion&& completion) : done(std::move(completion)) {}
    ~Handover() {}
  } handover{Completion{status, app_code, MsgBuf(request), MsgBuf(response)}};
  Completion& done = handover.done;
  if (status.ok()) [[likely]] {
    counters.calls_completed++;
  } else {
    counters.calls_failed++;
  }
  continuation.run(done);
  const auto left =
      reinterpret_cast<uintptr_t>(done.request.buffer()) | reinterpret_cast<uintptr_t>(done.response.buffer());
  if (left != 0) [[unlikely]]
    destroy(done);
}

template <class Unblock>
void Completions::run_waiting(Unblock&& unblock) {
  const size_t count = waiting_.size();
  size_t left = 0;
  for (size_t i = 0; i < count; i++) {
    if (waiting_[i].ticket > context_.released) {
      if (left != i) waiting_[left] = std::move(waiting_[i]);
      left++;
      continue;
    }
    Finished call = std::move(waiting_[i]);
    if (call.blocked_session != 0) unblock(call.blocked_session, call.blocked_slot);
    run(context_.counters, call.continuation, call.request, call.response, call.status, call.app_code);
  }
  const auto begin = waiting_.begin();
  waiting_.erase(begin + static_cast<ptrdiff_t>(left), begin + static_cast<ptrdiff_t>(count));
}

template <class F>
void Completions::for_each_buffer(F&& f) const {
  for (const Finished& call : waiting_) {
    f(call.request);
    f(call.response);
  }
  for (const Releases* list : {&releases_, &later_releases_}) {
    for (const detail::Buffer* buffer = list->first; buffer != nullptr; buffer = buffer->next) f(buffer);
  }
}

}  // namespace tern::rpc
