// Coroutines for an Endpoint: co_await endpoint.call(...), opened() and sleep(). <tern/task.h>, which comes with it,
// has coroutines that wait for each other. It is a separate header, so that programs without coroutines need not
// compile it. Owner thread only, as all of Endpoint. Standard library only.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

#include <tern/detail/export.h>
#include <tern/endpoint.h>
#include <tern/task.h>

namespace tern {

/// The result of Endpoint::call(): a call that begins with co_await. It is part of the coroutine's frame, without an
/// allocation of its own. Works in any coroutine type.
class [[nodiscard]] CallAwaitable {
 public:
  /// For Endpoint::call().
  CallAwaitable(Endpoint& endpoint, Session session, uint16_t type, MsgBuf&& request, MsgBuf&& response,
                CallOptions options)
      : endpoint_(endpoint),
        session_(session),
        options_(options),
        request_(std::move(request)),
        response_(std::move(response)),
        type_(type) {
    options_.refusal_runs_then = false;  // a refusal does not suspend, so that there is nothing to resume
  }
  /// For Endpoint::call().
  CallAwaitable(Endpoint& endpoint, Session session, uint16_t type, const SharedBuf& request, MsgBuf&& response,
                CallOptions options)
      : CallAwaitable(endpoint, session, type, MsgBuf(), std::move(response), options) {
    shared_ = request;
  }
  CallAwaitable(const CallAwaitable&) = delete;
  CallAwaitable& operator=(const CallAwaitable&) = delete;
  /// The frame of a coroutine must not be destroyed while it waits here, because the answer will be written to it. End
  /// the call first, for example with cancel(). Breaking this rule ends the process.
  ~CallAwaitable() {
    if (waiting_) [[unlikely]]
      destroyed_in_flight();
  }

  /// For cancel() while the coroutine waits: keep the awaitable in a variable, and co_await that.
  CallId id() const { return id_; }

  bool await_ready() const noexcept { return false; }
  /// False: the call was refused, and the coroutine continues at once.
  bool await_suspend(std::coroutine_handle<> coroutine) {
    const auto then = [this](Completion& done) {
      done_ = &done;
      std::exchange(waiting_, nullptr).resume();
    };
    auto call =
        shared_ ? endpoint_.enqueue_request(session_, type_, shared_, std::move(response_), then, options_)
                : endpoint_.enqueue_request(session_, type_, std::move(request_), std::move(response_), then, options_);
    shared_ = SharedBuf();
    if (!call.ok()) {
      refusal_ = call.status();
      return false;
    }
    id_ = *call;
    waiting_ = coroutine;
    return true;
  }
  Completion await_resume() noexcept {
    Completion* done = std::exchange(done_, nullptr);
    if (done == nullptr) [[unlikely]]
      return {refusal_, 0, std::move(request_), std::move(response_)};
    return std::move(*done);
  }

 private:
  /// Names the rule on standard error and aborts.
  [[noreturn]] TERN_API static void destroyed_in_flight();

  Endpoint& endpoint_;
  Session session_;
  CallOptions options_;
  MsgBuf request_, response_;   ///< the buffers, until the endpoint has accepted the call
  SharedBuf shared_;            ///< in place of request_
  Completion* done_ = nullptr;  ///< the continuation's argument, while it resumes the coroutine. Null: refused
  Status refusal_;
  CallId id_;
  std::coroutine_handle<> waiting_;  ///< null: no coroutine waits
  uint16_t type_;
};

inline CallAwaitable Endpoint::call(Session session, uint16_t type, MsgBuf&& request, MsgBuf&& response,
                                    CallOptions options) {
  return CallAwaitable(*this, session, type, std::move(request), std::move(response), options);
}
inline CallAwaitable Endpoint::call(Session session, uint16_t type, const SharedBuf& request, MsgBuf&& response,
                                    CallOptions options) {
  return CallAwaitable(*this, session, type, request, std::move(response), options);
}

/// The result of Endpoint::sleep(). Part of the coroutine's frame. A frame may be destroyed while it sleeps.
class [[nodiscard]] SleepAwaitable {
 public:
  SleepAwaitable(Endpoint& endpoint, Duration delay) : endpoint_(endpoint), delay_(delay) {}  ///< for Endpoint::sleep()
  SleepAwaitable(const SleepAwaitable&) = delete;
  SleepAwaitable& operator=(const SleepAwaitable&) = delete;
  ~SleepAwaitable() {
    if (!waiting_) return;
    alarm_->forget();  // the endpoint may refuse to cancel the timer, for example in another thread
    (void)endpoint_.cancel_timer(timer_);
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> coroutine) {
    auto timer = endpoint_.after(delay_, Alarm(this));
    if (!timer) {
      status_ = timer.status();
      return false;
    }
    timer_ = *timer;
    waiting_ = coroutine;
    return true;
  }
  Status await_resume() const noexcept { return status_; }

 private:
  /// The function of a timer. It is destroyed without a run when the endpoint closes.
  class Alarm {
   public:
    explicit Alarm(SleepAwaitable* sleeper) : sleeper_(sleeper) { sleeper_->alarm_ = this; }
    Alarm(Alarm&& other) noexcept : sleeper_(std::exchange(other.sleeper_, nullptr)) {
      if (sleeper_ != nullptr) sleeper_->alarm_ = this;
    }
    Alarm& operator=(Alarm&&) = delete;
    ~Alarm() {
      if (sleeper_ != nullptr) sleeper_->wake(Status(Code::kCancelled, "the endpoint was closed"));
    }
    void operator()() {
      if (sleeper_ != nullptr) std::exchange(sleeper_, nullptr)->wake(Status());
    }
    void forget() { sleeper_ = nullptr; }

   private:
    SleepAwaitable* sleeper_;  ///< null: it was destroyed, or this object was moved from
  };
  void wake(Status status) {
    if (!waiting_) return;
    status_ = status;
    std::exchange(waiting_, nullptr).resume();
  }

  Endpoint& endpoint_;
  Duration delay_;
  TimerId timer_;
  Alarm* alarm_ = nullptr;  ///< the timer's function, while a coroutine waits
  Status status_;
  std::coroutine_handle<> waiting_;  ///< null: no coroutine waits
};

inline SleepAwaitable Endpoint::sleep(Duration delay) { return SleepAwaitable(*this, delay); }

/// The result of Endpoint::opened(). Part of the coroutine's frame. A frame may be destroyed while it waits.
class [[nodiscard]] OpenAwaitable : detail::SessionWaiter {
 public:
  /// Endpoint::opened() makes it.
  OpenAwaitable(Endpoint& endpoint, Session session) : endpoint_(endpoint), session_(session) {
    run = [](SessionWaiter* waiter, const Status& status) {
      auto* self = static_cast<OpenAwaitable*>(waiter);
      self->status_ = status;
      std::exchange(self->waiting_, nullptr).resume();
    };
  }
  OpenAwaitable(const OpenAwaitable&) = delete;
  OpenAwaitable& operator=(const OpenAwaitable&) = delete;
  ~OpenAwaitable() {
    if (waiting_) endpoint_.stop_waiting(session_, this);
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> coroutine) {
    const auto waits = endpoint_.wait_for_open(session_, this);
    status_ = waits.status();
    if (!waits || !*waits) return false;
    waiting_ = coroutine;
    return true;
  }
  Status await_resume() const noexcept { return status_; }

 private:
  Endpoint& endpoint_;
  Session session_;
  Status status_;
  std::coroutine_handle<> waiting_;  ///< null: no coroutine waits
};

inline OpenAwaitable Endpoint::opened(Session session) { return OpenAwaitable(*this, session); }

/// The simplest return type of a coroutine. The coroutine runs at once up to its first co_await that suspends it. It is
/// resumed in the endpoint's loop, and frees its frame at its end. No code can wait for it. A handler may be such a
/// coroutine, and code outside of the loop may start one. If there is no memory for its frame it does not begin, and
/// its parameters are destroyed (a Request among them is dropped: kNoResponse). An exception that leaves it ends the
/// process, as in every callback. Pass its data as parameters by value, which move into the frame. Captures of a lambda
/// are not part of the frame: they are destroyed with the lambda. A handler may use them while it waits for its own
/// endpoint, because a handler lives as long as its endpoint. docs/threads.md has the rules.
struct Detached {
  struct promise_type {  // NOLINT(readability-identifier-naming): the language's name
    Detached get_return_object() noexcept { return {}; }
    static Detached get_return_object_on_allocation_failure() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
  };
};

}  // namespace tern
