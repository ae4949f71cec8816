// The ends of calls: their continuations, and the memory that the transport may still read. Owner thread only.
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

/// Promise 2: a call ends only when nothing can read its buffers any more. A call whose buffers the transport may still
/// read waits here until its ticket is released. Responses that a server gives up also wait here.
class TERN_API Completions {
 public:
  explicit Completions(EndpointContext& context) : context_(context) {}

  /// Runs a continuation with both buffers, and counts the call. The slot of `continuation` may be taken again while it
  /// runs, which by then runs from a copy.
  static void run(EndpointCounters& counters, session::Continuation& continuation, detail::Buffer* request,
                  detail::Buffer* response, Status status, uint16_t app_code);

  // -- Calls --

  /// Reserves memory for the calls of another client session with `slots` slots. False: there is no memory, and nothing
  /// has changed.
  [[nodiscard]] bool add_slots(size_t slots);
  void remove_slots(size_t slots) { slots_max_ -= slots; }
  /// Reserves memory for one more call, besides one call of each slot. False: there is no memory.
  [[nodiscard]] bool reserve_one() { return base::try_reserve(waiting_, waiting_.size() + slots_max_ + 1); }
  /// Ends a call in a later iteration, once the transport has released `ticket`. Memory must be reserved: the call was
  /// in a slot, or reserve_one() has succeeded.
  void wait(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status, uint16_t app_code,
            session::Continuation continuation);
  /// Called after wait(): reserves memory again, so that the slot may take another call while its last call waits.
  /// False: there is no memory, and the caller must block the slot and call block_slot().
  [[nodiscard]] bool reserve_for_slots() { return base::try_reserve(waiting_, waiting_.size() + slots_max_); }
  /// The call of the last wait() blocks this slot until it ends.
  void block_slot(uint64_t session_name, uint32_t slot);
  bool has_waiting() const { return !waiting_.empty(); }
  /// Number of calls that have waited here so far. An ended session stores it, to know when its own calls have run.
  uint64_t waits() const { return waits_; }
  /// True if one of the first `count` calls still waits. `count` is an earlier value of waits().
  bool has_waiting_of(uint64_t count) const { return !waiting_.empty() && waiting_.front().number < count; }
  /// Ends the calls whose tickets are released. `unblock(session_name, slot)` runs before the continuation of a call
  /// that blocks a slot. Calls that continuations add wait for the next call of this function.
  template <class Unblock>
  void run_waiting(Unblock&& unblock);

  // -- Memory of responses --

  /// Frees the buffer once the transport has released `ticket`.
  void release_after(uint64_t ticket, detail::Buffer* buffer);
  void run_releases();
  bool has_releases() const { return releases_.first != nullptr; }

  // -- For tests --

  /// CHECKs lists and memory. `slots`: the slots of all client sessions. `blocked`: those of them that take no call.
  void check_invariants(size_t slots, size_t blocked) const;
  template <class F>
  void for_each_buffer(F&& f) const;

 private:
  /// A function of its own, because the inlined destructor would take registers in every call.
  [[gnu::noinline, gnu::cold]] static void destroy(Completion& done) { done.~Completion(); }

  /// A call that has ended, but whose continuation has not run.
  struct Finished {
    uint64_t ticket;
    detail::Buffer* request;
    detail::Buffer* response;
    Status status;
    uint16_t app_code;
    session::Continuation continuation;
    uint64_t number;               ///< waits() before this call
    uint64_t blocked_session = 0;  ///< name of the session whose slot this call blocks; 0: it blocks no slot
    uint32_t blocked_slot = 0;
  };
  /// Buffers, linked by `next`. The transport has released all of them when it has released `ticket`.
  struct Releases {
    detail::Buffer* first = nullptr;
    uint64_t ticket = 0;
  };

  EndpointContext& context_;
  /// Has memory for one call of each slot that is not blocked.
  std::vector<Finished> waiting_;  ///< in the order of their numbers
  uint64_t waits_ = 0;
  size_t slots_max_ = 0;  ///< slots of all client sessions
  Releases releases_;
  Releases later_releases_;  ///< buffers that came after releases_ was begun; empty if releases_ is empty
};

// ---- Inline, for the common case ----

[[gnu::always_inline]] inline void Completions::run(EndpointCounters& counters, session::Continuation& continuation,
                                                    detail::Buffer* request, detail::Buffer* response, Status status,
                                                    uint16_t app_code) {
  request->revoke_lease();
  // `done` is destroyed by hand, because the continuation has mostly moved both buffers out, and one comparison shows
  // that.
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
