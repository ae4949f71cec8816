// The part of an endpoint that other threads use: posted functions, answers to requests, and the records of these
// requests. It outlives the endpoint until the last Request has ended.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>
#include <tern/detail/request_front.h>
#include <tern/endpoint.h>
#include <tern/environment.h>

#include "base/pool.h"
#include "base/thread_id.h"
#include "base/thread_safety.h"
#include "memory/arena.h"
#include "rpc/tracer.h"
#include "rpc/waiting_requests.h"
#include "session/server_session.h"
#include "wire/header.h"

namespace tern::rpc {

class Handlers;
class Mailbox;
struct HandlerEntry;
struct Run;
struct Server;

/// The record that a Request points to. Only the Request uses its front while the handler runs.
/// The endpoint has one record for all requests that are answered in their handlers. A request that is kept has a
/// record of its own, which belongs to its slot until the answer. If such a request ends before (cancel, end of the
/// session), the record stays with the Request, and is given back with it. The owner thread makes records and gives
/// them back while the endpoint exists; later they are given back under the mailbox's mutex. A record at rest is not
/// open, not stable and not cancelled; it has no deadline, application code or buffers.
struct alignas(64) Incoming : detail::RequestFront {
  enum class Answer : uint8_t {
    kDropped,
    kResponse,
    kFailure,
  };
  /// Where `data` lies.
  enum class Place : uint8_t {
    kLent,     ///< in the transport's memory, until the handler returns
    kLeaving,  ///< as kLent, but a thread copies it to `copy`, or gives it up
    kAwaited,  ///< as kLeaving, and another thread waits for the end of that
    kStable,   ///< in `copy`, or nowhere, because it is empty
  };
  static constexpr uint16_t kNoType = UINT16_MAX;

  // The fields that an answer within the handler touches. They share a cache line with the front.
  Server* server = nullptr;             ///< owner thread only; null: no client waits for the answer any more
  session::ServerSlot* slot = nullptr;  ///< owner thread only, with `server`
  Mailbox* mailbox = nullptr;           ///< valid as long as the record exists
  Handlers* handlers = nullptr;         ///< the endpoint's; valid as long as the endpoint exists; owner thread only

  wire::FailureCode failure = wire::FailureCode::kNoResponse;
  Answer answer = Answer::kDropped;
  uint16_t app_code = 0;
  /// Request type of a message that arrived in `copy`. kNoType: the message was in memory of the transport.
  uint16_t type = kNoType;
  /// While other threads may have the request, only Mailbox::make_stable() and make_empty() change it, and
  /// Request::take_message(), which finds kStable.
  std::atomic<Place> place{Place::kLent};
  std::atomic<bool> is_cancelled{false};
  uint64_t deadline_ns = UINT64_MAX;
  Incoming* next_free = nullptr;       ///< the next free record, or the next answered one
  detail::Buffer* response = nullptr;  ///< the answer, if it is not in `space`
  detail::Buffer* copy = nullptr;      ///< holds `data` once it is stable
  // Fields of a request that waits for its handler.
  HandlerEntry* handler = nullptr;
  base::ListLinks<Incoming> in_waiting;
  bool waits_in_loop = false;     ///< the request is in the list of Handlers; owner thread only
  bool waits_for_worker = false;  ///< the request is in one of the mailbox's queues; under its mutex
  // Field of a request that its client has given up while the application still has it.
  Run* abandoned_by = nullptr;
  /// The session's name, once the request may be in other threads. 0: the request is in its handler, in the owner
  /// thread.
  uint64_t noted_session = 0;
  TracedRequest traced;  ///< set before the handler gets the request, if the endpoint has a trace

  /// True: `data` is valid until the request ends. Any thread that has the request.
  bool is_stable() const { return place.load(std::memory_order_acquire) == Place::kStable; }
  /// True if the application has the request. Owner thread only.
  bool is_open() const { return progress == Progress::kOpen; }
  bool has_deadline() const { return deadline_ns != UINT64_MAX; }
  /// True if the request has a deadline, and less time left than `handler` takes.
  bool is_hopeless(uint64_t now_ns) const;
  /// Opens the record for a request of `its_slot`, before its handler runs. The slot's last response becomes the buffer
  /// for the answer, if the transport has released it.
  void open(Server* its_server, session::ServerSlot* its_slot, const std::byte* its_data, uint32_t its_bytes,
            uint64_t released) {
    server = its_server;
    slot = its_slot;
    data = its_data;
    bytes = its_bytes;
    progress = Progress::kOpen;
    space = its_slot->response_ticket <= released ? its_slot->response : nullptr;
  }
  /// Stores the session's name, if it is not stored yet. Owner thread, at the latest before another thread has the
  /// request.
  void note_session();
  /// Any thread that has the request.
  uint64_t session_name() const;
  /// Makes the answer a failure.
  void set_failed(wire::FailureCode code) {
    answer = Answer::kFailure;
    failure = code;
  }
};

class TERN_API Mailbox {
 public:
  /// Most functions that wait for the owner. post() refuses further functions.
  static constexpr size_t kPostsMax = 65536;

  /// Takes over both arenas, which may be the same one.
  Mailbox(memory::Arena& its_arena, memory::Arena& received_arena, Environment& its_environment)
      : arena(its_arena), received(received_arena), environment(its_environment) {
    owner_.store(base::thread_id(), std::memory_order_relaxed);
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  memory::Arena& arena;      ///< alive as long as the mailbox
  memory::Arena& received;   ///< alive as long as the mailbox; for requests of several packets while they arrive
  Environment& environment;  ///< for Request::time_left()

  /// A buffer of `arena`. Null: no memory. If the caller is not the owner, the owner then shares its free memory soon.
  /// Any thread.
  detail::Buffer* alloc(size_t len_bytes) {
    detail::Buffer* buffer = arena.alloc(len_bytes);
    if (buffer == nullptr && !is_owner()) announce_control();
    return buffer;
  }
  /// The arena in which a request of this type arrives. It is `arena`, from which messages are sent, if an earlier
  /// message of the type was taken to be sent on.
  memory::Arena& arena_for(uint32_t type) const {
    const uint64_t bit = uint64_t{1} << type % 64;
    return (taken_types_[type / 64].load(std::memory_order_relaxed) & bit) != 0 ? arena : received;
  }
  /// Notes that a message of this type was taken, and had to be copied to `arena`. Any thread.
  void note_taken(uint32_t type) {
    taken_types_[type / 64].fetch_or(uint64_t{1} << type % 64, std::memory_order_relaxed);
  }

  bool is_owner() const { return base::is_this_thread(owner_.load(std::memory_order_relaxed)); }
  void bind_owner() { owner_.store(base::thread_id(), std::memory_order_relaxed); }

  /// Returns a record at rest. Null: no memory. Owner only.
  Incoming* take_incoming(Handlers* handlers) {
    Incoming* incoming = free_;
    if (incoming == nullptr) [[unlikely]]
      return make_incoming(handlers);
    free_ = incoming->next_free;
    return incoming;
  }
  /// Puts a record, which stays in its slot, to rest. Owner only, while the endpoint is open.
  static void rest(Incoming* incoming) {
    release_buffers(incoming);
    incoming->progress = Incoming::Progress::kNone;
    incoming->place.store(Incoming::Place::kLent, std::memory_order_relaxed);
    incoming->is_cancelled.store(false, std::memory_order_relaxed);
    incoming->deadline_ns = UINT64_MAX;
    incoming->app_code = 0;
    incoming->type = Incoming::kNoType;
    incoming->noted_session = 0;
  }
  /// Takes back a record that belongs to no slot any more. Owner only, while the endpoint is open.
  void give_incoming(Incoming* incoming) {
    rest(incoming);
    incoming->next_free = free_;
    free_ = incoming;
  }

  /// Passes an answered request to the owner. After close(), gives the record back. Any thread but the owner's.
  void push_answered(Incoming* incoming);
  /// Passes a function to the owner. kNoMemory, kQueueFull, kSessionReset. Any thread.
  Status push_post(detail::InlineFunction<> function);
  /// Copies the request's message unless it is stable, because the transport's memory is valid only until the handler
  /// returns. Waits for another thread that copies it. False: there is no memory for the copy. Any thread that has the
  /// request. Takes no mutex: it runs for each kept request, and workers often hold the mailbox's mutex.
  bool make_stable(Incoming* incoming);
  /// Makes bytes() empty, because there is no memory to keep the message, unless another thread has found memory since
  /// the owner's make_stable(). Owner only.
  void make_empty(Incoming* incoming);

  /// Tells the endpoint that the Nexus has an event for it. Any thread.
  void announce_control() {
    base::MutexLock lock(mutex_);
    announce();
  }

  bool has_mail() const { return has_mail_.load(std::memory_order_seq_cst); }
  /// Makes has_mail() true until the next drain(), so that the loop wakes the workers before it sleeps. Owner only.
  void remind() { has_mail_.store(true, std::memory_order_relaxed); }
  /// Takes the mail. `posts` must be empty. It gets the posted functions, and the mailbox gets its memory. Returns the
  /// answered requests in order, linked by next_free. Owner only.
  Incoming* drain(std::vector<detail::InlineFunction<>>& posts);

  /// `wake` of the owner's transport; null after close(). Called by any thread.
  void set_wake(std::function<void()> wake);
  /// True while the owner sleeps. It is set before the owner's last look into the mailbox.
  std::atomic<bool> may_sleep{false};

  /// The time on the clock of deadlines. Any thread.
  uint64_t now_ns() const { return static_cast<uint64_t>(environment.now().count()); }

  // -- Requests that wait for a worker. Each task of the workers takes the next request: of those with deadlines, or of
  // the others, which keep the order of arrival. --

  /// Adds a request. True: there are fewer tasks than waiting requests, and the caller must submit one more task. Owner
  /// only.
  bool add_waiting(Incoming* incoming);
  /// Called if the task for `incoming` was not submitted. Removes and returns the request that has no task now:
  /// `incoming`, or the newest request if another task has taken `incoming` meanwhile. Null: there are as many tasks as
  /// requests. Owner only.
  Incoming* take_back_waiting(Incoming* incoming);
  /// True if no worker has the request yet. Owner only.
  bool is_waiting(const Incoming* incoming) {
    base::MutexLock lock(mutex_);
    return incoming->waits_for_worker;
  }
  /// Removes a request that has ended. False: a worker has it. Owner only.
  bool remove_waiting(Incoming* incoming);
  /// Called by a worker at the beginning of a task, before leave_worker(). `next` is the task's request; null: no
  /// request waits. Answers late requests itself. False: the endpoint is closed, and the mailbox may be gone.
  bool begin_task(bool has_deadline, Incoming*& next);
  void leave_worker();

  /// Makes push_post() refuse all functions from now on, because they would never run.
  void refuse_posts();
  /// Called at the end of the endpoint: waits for running worker handlers, and drops posted functions. The mailbox
  /// deletes itself with the last record.
  void close();

 private:
  struct WorkerQueue {
    WaitingRequests waiting;
    size_t tasks = 0;  ///< submitted tasks that have yet to take a request; at least waiting.size()
  };

  ~Mailbox() = default;
  WorkerQueue& queue_of(const Incoming* incoming) REQUIRES(mutex_) { return queues_[incoming->has_deadline() ? 1 : 0]; }
  /// Wakes the owner for new mail. The mutex stays held, because the mailbox may be gone after its release.
  void announce() REQUIRES(mutex_);
  Incoming* make_incoming(Handlers* handlers);
  static void release_buffers(Incoming* incoming);
  static bool begin_leaving(Incoming* incoming);
  static void end_leaving(Incoming* incoming, Incoming::Place result);
  /// Deletes the mailbox, whose last record has been given back.
  void end();
  /// Takes back a record after close().
  void give_after_close(Incoming* incoming) REQUIRES(mutex_);
  /// True if no thread will use the mailbox any more.
  bool is_over() const REQUIRES(mutex_) {
    return is_closed_ && !keep_alive_ && out_ == 0 && queues_[0].tasks + queues_[1].tasks == 0;
  }

  Incoming* free_ = nullptr;  ///< owner only
  std::atomic<uint64_t> owner_{base::kNoThreadId};
  std::atomic<bool> has_mail_{false};
  std::array<std::atomic<uint64_t>, wire::kRequestTypes / 64> taken_types_{};  ///< a bit for each type of note_taken()
  base::Mutex mutex_;
  base::Condition no_workers_;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  bool refuses_posts_ GUARDED_BY(mutex_) = false;
  bool keep_alive_ GUARDED_BY(mutex_) = false;  ///< close() has not returned yet
  size_t workers_ GUARDED_BY(mutex_) = 0;
  std::function<void()> wake_ GUARDED_BY(mutex_);
  Incoming* answered_ GUARDED_BY(mutex_) = nullptr;  ///< list by next_free, the oldest request first
  Incoming* last_answered_ GUARDED_BY(mutex_) = nullptr;
  std::vector<detail::InlineFunction<>> posts_ GUARDED_BY(mutex_);
  base::Pool<Incoming> incomings_;                        ///< owner only
  size_t out_ GUARDED_BY(mutex_) = 0;                     ///< after close(): records that have not been given back
  std::array<WorkerQueue, 2> queues_ GUARDED_BY(mutex_);  ///< the second one is for requests with deadlines
};

}  // namespace tern::rpc
