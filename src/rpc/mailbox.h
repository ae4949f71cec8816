// What other threads may touch of an endpoint: posted functions, answers of requests, and the records of those
// requests. Outlives the endpoint until the last Request has come home.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>
#include <tern/detail/request_front.h>
#include <tern/endpoint.h>
#include <tern/environment.h>

#include "base/pool.h"
#include "memory/arena.h"
#include "rpc/waiting_requests.h"
#include "session/server_session.h"
#include "wire/header.h"

namespace tern::rpc {

class EndpointCore;
class Mailbox;
struct Run;
struct Server;

/// What a Request points to; its front is the Request's own business while the handler runs. The endpoint has one
/// record for all requests that are answered in their handlers; that of a request which is kept is its slot's until the
/// answer. When such a request ends before (cancel, the session's end) the record stays with the Request and goes home
/// with it. Made and given back by the owner thread while the endpoint lives, under the mailbox's mutex afterwards. At
/// rest: not open, not stable, not cancelled, no deadline, no application code, no buffers.
struct alignas(64) Incoming : detail::RequestFront {
  enum class Answer : uint8_t { kDropped, kResponse, kFailure };

  // With the front, in one cache line: what an answer in place touches.
  Server* server = nullptr;             ///< owner thread only; null: nobody waits for the answer any more
  session::ServerSlot* slot = nullptr;  ///< owner thread only, with `server`
  Mailbox* mailbox = nullptr;           ///< as long as the record exists
  EndpointCore* core = nullptr;         ///< likewise; owner thread only

  wire::FailureCode failure = wire::FailureCode::kNoResponse;
  Answer answer = Answer::kDropped;
  uint16_t app_code = 0;
  /// False while `data` is the transport's: the handler has not returned. Written under the mutex, or before anybody
  /// else can know the record.
  std::atomic<bool> is_stable{false};
  std::atomic<bool> is_cancelled{false};
  uint64_t deadline_ns = UINT64_MAX;
  Incoming* next_free = nullptr;       ///< of the free ones, or of those that are answered
  detail::Buffer* response = nullptr;  ///< the answer, where it is not in `room`
  detail::Buffer* copy = nullptr;      ///< holds `data` once it is stable
  // Of one that waits for its handler.
  void* handler = nullptr;      ///< EndpointCore's record of it
  HandlerTime* time = nullptr;  ///< of that handler
  base::ListLinks<Incoming> in_waiting;
  bool waits_in_loop = false;     ///< in EndpointCore's list; owner thread only
  bool waits_for_worker = false;  ///< in the mailbox's list; under its mutex
  // Of one that the application still has, and that its client has given up.
  Run* abandoned_by = nullptr;
  uint64_t abandoned_session = 0;  ///< its name

  /// Owner thread only: the request is with the application.
  bool is_open() const { return progress == Progress::kOpen; }
  /// It has a deadline, and less time left than its handler takes. Only with `time`.
  bool is_hopeless(uint64_t now_ns) const {
    return deadline_ns != UINT64_MAX && deadline_ns <= now_ns + time->expected_ns(now_ns);
  }
};

class TERN_API Mailbox {
 public:
  /// Functions that may wait for the owner; beyond it post() is refused.
  static constexpr size_t kPostsMax = 65536;

  /// Takes over both, which may be one.
  Mailbox(memory::Arena& its_arena, memory::Arena& received_arena, Environment& its_environment)
      : arena(its_arena), received(received_arena), environment(its_environment) {
    owner_.store(memory::thread_name(), std::memory_order_relaxed);
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  memory::Arena& arena;      ///< alive as long as the mailbox
  memory::Arena& received;   ///< likewise; for copies of requests
  Environment& environment;  ///< for Request::time_left()

  bool is_owner() const { return owner_.load(std::memory_order_relaxed) == memory::thread_name(); }
  void bind_owner() { owner_.store(memory::thread_name(), std::memory_order_relaxed); }

  /// Owner only. A record without buffers, not cancelled; null: no memory.
  Incoming* take_incoming(EndpointCore* core) {
    Incoming* incoming = free_;
    if (incoming == nullptr) [[unlikely]]
      return make_incoming(core);
    free_ = incoming->next_free;
    return incoming;
  }
  /// Owner only, endpoint open: back to rest, in its slot.
  static void rest(Incoming* incoming) {
    release_buffers(incoming);
    incoming->progress = Incoming::Progress::kNone;
    incoming->is_stable.store(false, std::memory_order_relaxed);
    incoming->is_cancelled.store(false, std::memory_order_relaxed);
    incoming->deadline_ns = UINT64_MAX;
    incoming->app_code = 0;
  }
  /// Owner only, endpoint open: it belongs to no slot any more.
  void give_incoming(Incoming* incoming) {
    rest(incoming);
    incoming->next_free = free_;
    free_ = incoming;
  }

  /// Any thread but the owner: the request is answered. After close(), gives the record back itself.
  void push_answered(Incoming* incoming);
  /// Any thread. kNoMemory, kQueueFull, kSessionReset.
  Status push_post(detail::InlineFunction<> function);
  /// The message of a request, for a thread that is not the owner: makes it stable if the handler still runs. False: no
  /// memory for the copy.
  bool make_stable(Incoming* incoming);
  /// Owner: there is no memory to keep the message; bytes() is empty from now on.
  void make_empty(Incoming* incoming);

  /// Any thread: the Nexus has something for the endpoint.
  void announce_control() {
    std::lock_guard lock(mutex_);
    announce();
  }

  bool has_mail() const { return has_mail_.load(std::memory_order_seq_cst); }
  /// Owner: what has come. `posts` is empty, and keeps its memory. Returns the answered requests, in order, by
  /// next_free.
  Incoming* drain(std::vector<detail::InlineFunction<>>& posts);

  /// `wake` of the owner's transport; null after close(). Called by any thread.
  void set_wake(std::function<void()> wake);
  /// True from before the owner looks into its mailbox for the last time until it is awake again.
  std::atomic<bool> may_sleep{false};

  /// Any thread, on the time base of deadlines.
  uint64_t now_ns() const { return static_cast<uint64_t>(environment.now().count()); }

  // -- Requests with deadlines that wait for a worker. A task of the workers takes whichever is next. --

  /// Owner. True: there are fewer tasks than requests that wait, submit one more.
  bool add_waiting(Incoming* incoming);
  /// Owner: the task for `incoming` was not submitted. Returns the request that has no task now and no longer waits:
  /// `incoming`, or the newest one if another task has taken it meanwhile. Null: there are as many tasks as requests.
  Incoming* take_back_waiting(Incoming* incoming);
  /// Owner: no worker has the request yet.
  bool is_waiting(const Incoming* incoming) {
    std::lock_guard lock(mutex_);
    return incoming->waits_for_worker;
  }
  /// Owner: the request has ended. False: a worker has it.
  bool remove_waiting(Incoming* incoming);
  /// Worker, at the beginning of a task. False: the endpoint is closed, and the mailbox may be gone.
  bool begin_task();
  /// Worker, once a task that has begun. Those that are late it answers itself. Null: none waits.
  Incoming* take_waiting();

  /// A worker is about to run a handler of this endpoint. False: the endpoint is closed, do not.
  bool enter_worker();
  void leave_worker();

  /// No function that is posted from now on would run: push_post() refuses.
  void refuse_posts();
  /// The endpoint goes away: waits for running worker handlers, drops what was posted, and dies with the last record.
  void close();

 private:
  ~Mailbox() = default;
  /// With mutex_ held, for the mailbox may be gone once it is released: there is mail.
  void announce();
  Incoming* make_incoming(EndpointCore* core);
  static void release_buffers(Incoming* incoming);
  /// The last one has come home.
  void end();
  /// With mutex_ held, after close().
  void give_after_close(Incoming* incoming);
  /// With mutex_ held: nobody will come any more.
  bool is_over() const { return is_closed_ && !keep_alive_ && out_ == 0 && tasks_ == 0; }

  Incoming* free_ = nullptr;  ///< owner only
  std::atomic<const void*> owner_{nullptr};
  std::atomic<bool> has_mail_{false};
  std::mutex mutex_;
  std::condition_variable no_workers_;
  bool is_closed_ = false;
  bool refuses_posts_ = false;
  bool keep_alive_ = false;  ///< close() is not through yet
  size_t workers_ = 0;
  std::function<void()> wake_;
  Incoming* answered_ = nullptr;  ///< by next_free, the oldest first
  Incoming* last_answered_ = nullptr;
  std::vector<detail::InlineFunction<>> posts_;
  base::Pool<Incoming> incomings_;
  size_t out_ = 0;  ///< after close(): records that are still to come home
  WaitingRequests waiting_;
  size_t tasks_ = 0;  ///< submitted for them, and yet to take one: as many as wait at least
};

}  // namespace tern::rpc
