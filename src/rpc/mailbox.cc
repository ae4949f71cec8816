#include "rpc/mailbox.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "rpc/handlers.h"

namespace tern::rpc {
namespace {
/// The mailbox for which this thread runs a worker handler.
thread_local const Mailbox* served = nullptr;
}  // namespace

bool Incoming::is_hopeless(uint64_t now_ns) const {
  return has_deadline() && deadline_ns <= now_ns + handler->time.expected_ns(now_ns);
}

void Incoming::note_session() {
  if (noted_session == 0) noted_session = server->name();
}

uint64_t Incoming::session_name() const { return noted_session != 0 ? noted_session : server->name(); }

Incoming* Mailbox::make_incoming(Handlers* handlers) {
  Incoming* incoming = incomings_.take();
  if (incoming == nullptr) return nullptr;
  incoming->mailbox = this;
  incoming->handlers = handlers;
  return incoming;
}

void Mailbox::release_buffers(Incoming* incoming) {
  if (incoming->copy != nullptr) detail::release_buffer(std::exchange(incoming->copy, nullptr));
  if (incoming->response != nullptr) detail::release_buffer(std::exchange(incoming->response, nullptr));
}

void Mailbox::give_after_close(Incoming* incoming) {
  release_buffers(incoming);
  out_--;
}

void Mailbox::push_answered(Incoming* incoming) {
  bool is_last = false;
  {
    base::MutexLock lock(mutex_);
    if (!is_closed_) {
      incoming->next_free = nullptr;
      (answered_ == nullptr ? answered_ : last_answered_->next_free) = incoming;
      last_answered_ = incoming;
      announce();
    } else {
      give_after_close(incoming);
      is_last = is_over();
    }
  }
  if (is_last) end();
}

void Mailbox::end() {
  memory::Arena& last_arena = arena;
  memory::Arena& last_received = received;
  delete this;
  last_arena.orphan();
  if (&last_received != &last_arena) last_received.orphan();
}

Status Mailbox::push_post(detail::InlineFunction<> function) {
  base::MutexLock lock(mutex_);
  if (refuses_posts_) return {Code::kSessionReset, "the endpoint is closed: nothing runs in its loop any more"};
  if (posts_.size() >= kPostsMax) {
    return {Code::kQueueFull, "65536 posted functions are waiting: run the endpoint's event loop, or post fewer"};
  }
  if (!base::try_reserve(posts_, posts_.size() + 1)) return {Code::kNoMemory, "no memory for a posted function"};
  posts_.push_back(std::move(function));
  announce();
  return {};
}

/// Returns once no other thread copies the message. False: it is stable. True: the caller must call end_leaving().
bool Mailbox::begin_leaving(Incoming* incoming) {
  using Place = Incoming::Place;
  Place found = Place::kLent;
  while (!incoming->place.compare_exchange_weak(found, Place::kLeaving, std::memory_order_acquire)) {
    if (found == Place::kStable) return false;
    if (found == Place::kLeaving) incoming->place.compare_exchange_strong(found, Place::kAwaited);
    incoming->place.wait(Place::kAwaited);
    found = Place::kLent;
  }
  return true;
}

void Mailbox::end_leaving(Incoming* incoming, Incoming::Place result) {
  if (incoming->place.exchange(result) == Incoming::Place::kAwaited) incoming->place.notify_all();
}

bool Mailbox::make_stable(Incoming* incoming) {
  if (incoming->is_stable() || !begin_leaving(incoming)) return true;
  detail::Buffer* copy = arena.alloc(incoming->bytes);
  if (copy != nullptr) {
    std::memcpy(copy->data(), incoming->data, incoming->bytes);
    incoming->copy = copy;
    incoming->data = copy->data();
  }
  end_leaving(incoming, copy != nullptr ? Incoming::Place::kStable : Incoming::Place::kLent);
  return copy != nullptr;
}

void Mailbox::make_empty(Incoming* incoming) {
  if (!begin_leaving(incoming)) return;
  incoming->data = nullptr;
  incoming->bytes = 0;
  end_leaving(incoming, Incoming::Place::kStable);
}

Incoming* Mailbox::drain(std::vector<detail::InlineFunction<>>& posts) {
  base::MutexLock lock(mutex_);
  has_mail_.store(false, std::memory_order_relaxed);
  posts.swap(posts_);
  return std::exchange(answered_, nullptr);
}

void Mailbox::refuse_posts() {
  base::MutexLock lock(mutex_);
  refuses_posts_ = true;
}

void Mailbox::set_wake(std::function<void()> wake) {
  base::MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void Mailbox::announce() {
  has_mail_.store(true, std::memory_order_seq_cst);
  if (wake_ && may_sleep.load(std::memory_order_seq_cst)) wake_();
}

bool Mailbox::add_waiting(Incoming* incoming) {
  base::MutexLock lock(mutex_);
  WorkerQueue& queue = queue_of(incoming);
  queue.waiting.add(incoming);
  incoming->waits_for_worker = true;
  if (queue.tasks >= queue.waiting.size()) return false;  // tasks of requests that have ended meanwhile
  queue.tasks++;
  return true;
}

Incoming* Mailbox::take_back_waiting(Incoming* incoming) {
  base::MutexLock lock(mutex_);
  WorkerQueue& queue = queue_of(incoming);
  queue.tasks--;
  if (queue.tasks >= queue.waiting.size()) return nullptr;
  Incoming* refused = incoming->waits_for_worker ? incoming : queue.waiting.newest();
  queue.waiting.remove(refused, now_ns());
  refused->waits_for_worker = false;
  return refused;
}

bool Mailbox::remove_waiting(Incoming* incoming) {
  base::MutexLock lock(mutex_);
  if (!incoming->waits_for_worker) return false;
  queue_of(incoming).waiting.remove(incoming, now_ns());
  incoming->waits_for_worker = false;
  return true;
}

bool Mailbox::begin_task(bool has_deadline, Incoming*& next) {
  base::MutexLock lock(mutex_);
  WorkerQueue& queue = queues_[has_deadline ? 1 : 0];
  queue.tasks--;
  if (is_closed_) {
    const bool is_last = is_over();
    lock.unlock();
    if (is_last) end();
    return false;
  }
  workers_++;
  served = this;
  while (true) {
    const auto [request, is_late] = queue.waiting.take(has_deadline ? now_ns() : 0);
    if (request != nullptr) request->waits_for_worker = false;
    if (!is_late) {
      next = request;
      return true;
    }
    lock.unlock();
    request->set_failed(wire::FailureCode::kDeadline);
    push_answered(request);
    lock.lock();
  }
}

void Mailbox::leave_worker() {
  base::MutexLock lock(mutex_);
  served = nullptr;
  if (--workers_ == 0) no_workers_.notify_all();
}

void Mailbox::close() {
  // ~Rpc in a worker handler would wait for itself.
  CHECK(served != this);
  std::vector<detail::InlineFunction<>> dropped;  // destroyed without the lock, because the functions may hold Requests
  {
    base::MutexLock lock(mutex_);
    is_closed_ = true;
    keep_alive_ = true;
    wake_ = nullptr;
    owner_.store(base::kNoThreadId, std::memory_order_relaxed);
    arena.disown();
    if (&received != &arena) received.disown();
    while (answered_ != nullptr) give_incoming(std::exchange(answered_, answered_->next_free));
    // Counted before other threads can give records back, as the workers do that the loop below waits for.
    out_ = incomings_.taken();
    for (; free_ != nullptr; free_ = free_->next_free) out_--;
    while (workers_ != 0) no_workers_.wait(mutex_);
    dropped.swap(posts_);
  }
  dropped.clear();
  bool is_last;
  {
    base::MutexLock lock(mutex_);
    keep_alive_ = false;
    is_last = is_over();
  }
  if (is_last) end();
}

}  // namespace tern::rpc
