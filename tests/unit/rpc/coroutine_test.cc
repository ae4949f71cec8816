// Calls from coroutines: their results and allocations, and the resumption of every waiting coroutine.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tern/coroutine.h>

#include "unit/rpc/owned_coroutine.h"
#include "unit/rpc/rpc_world.h"

namespace {
thread_local size_t allocations = 0;  // counts this thread's allocations by any operator new
}  // namespace

// All forms but the aligned ones are replaced, because AddressSanitizer has its own version of each form. It provides
// both sides of the aligned ones. The functions are not inline, because g++ would warn that malloc() and operator
// delete do not match.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations++;
  return std::malloc(bytes != 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;
constexpr uint16_t kForward = 3;
constexpr uint16_t kForwardFromWorker = 4;

/// The results of a coroutine. Must outlive it.
struct Seen {
  int steps = 0;
  bool has_ended = false;
  std::vector<Code> codes;
  std::string text;
};

/// Counts its living copies. is_whole() is true only during its lifetime.
class Probe {
 public:
  explicit Probe(int& living) : living_(&living), self_(this) { ++*living_; }
  Probe(Probe&& other) noexcept : living_(other.living_), self_(this) { ++*living_; }
  Probe(const Probe& other) : living_(other.living_), self_(this) { ++*living_; }
  Probe& operator=(const Probe&) = delete;
  ~Probe() {
    --*living_;
    self_ = nullptr;
  }
  bool is_whole() const { return self_ == this; }

 private:
  int* living_;
  Probe* self_;
};

template <class T>
class Coroutine : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.server->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }

  /// Makes `calls` calls one after the other with the same two buffers.
  static Detached ask(Endpoint& endpoint, Session session, uint16_t type, std::string text, int calls, Seen& seen,
                      CallOptions options = {}) {
    MsgBuf request = message(endpoint, text);
    MsgBuf room = endpoint.alloc_msgbuf(64);
    for (int i = 0; i < calls; i++) {
      Completion done = co_await endpoint.call(session, type, std::move(request), std::move(room), options);
      seen.steps++;
      EXPECT_TRUE(done.request && done.response) << "both buffers come home";
      EXPECT_EQ(text_of(done.request.bytes()), text);
      if (!done.status.ok()) {
        seen.codes.push_back(done.status.code());
        break;
      }
      seen.text = text_of(done.response.bytes());
      request = std::move(done.request);
      room = std::move(done.response);
    }
    seen.has_ended = true;
  }

  std::vector<Request> kept;
  World<T> world;
};
TYPED_TEST_SUITE(Coroutine, Transports, TransportNames);

TYPED_TEST(Coroutine, call__gives_the_answer_and_both_buffers) {
  Seen seen;
  this->ask(*this->world.client, this->world.open(), kEcho, "hello", 3, seen);
  EXPECT_EQ(seen.steps, 0) << "nothing is answered before the loop runs";
  this->world.run_until([&] { return seen.has_ended; });
  EXPECT_EQ(seen.steps, 3);
  EXPECT_EQ(seen.text, "hello");
}

TYPED_TEST(Coroutine, call__made_before_its_session_is_open_is_answered) {
  auto session = this->world.client->create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(session.ok());
  Seen seen;
  this->ask(*this->world.client, *session, kEcho, "early", 1, seen);
  this->world.run_until([&] { return seen.has_ended; });
  EXPECT_EQ(seen.text, "early");
}

TYPED_TEST(Coroutine, call__allocates_nothing_beyond_the_frame) {
  Seen seen, warm;
  const Session session = this->world.open();
  auto& client = *this->world.client;
  this->ask(client, session, kEcho, "warm", 200, warm);  // records, lists and rings reach their final size
  this->world.run_until([&] { return warm.has_ended; });

  const size_t before = allocations;
  this->ask(client, session, kEcho, "short", 300, seen);
  EXPECT_EQ(allocations - before, 1u) << "the frame";
  this->world.run_until([&] { return seen.steps >= 100; });
  const size_t in_between = allocations;
  this->world.run_until([&] { return seen.steps >= 200; });
  EXPECT_EQ(allocations, in_between) << "a call of a coroutine that runs already";
  this->world.run_until([&] { return seen.has_ended; });
  EXPECT_EQ(seen.steps, 300);
}

TYPED_TEST(Coroutine, call__that_is_refused_does_not_wait) {
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  const Session session = this->world.open();
  Seen seen;
  this->ask(client, Session(), kEcho, "x", 1, seen, {.refusal_runs_then = true});
  this->ask(client, session, 4096, "x", 1, seen);
  std::thread([&] {
    [](Endpoint& endpoint, Session to, Seen& what) -> Detached {
      Completion done = co_await endpoint.call(to, kEcho, MsgBuf(), MsgBuf());
      what.codes.push_back(done.status.code());
      what.steps++;
    }(client, session, seen);
  }).join();
  [](Endpoint& endpoint, Endpoint& other, Session to, Seen& what) -> Detached {
    Completion done = co_await endpoint.call(to, kEcho, message(other, "of another"), endpoint.alloc_msgbuf(8));
    EXPECT_EQ(text_of(done.request.bytes()), "of another");
    EXPECT_TRUE(done.response);
    what.codes.push_back(done.status.code());
    // Buffers that were valid can be used again at once.
    done = co_await endpoint.call(to, kEcho, MsgBuf(), std::move(done.response));
    EXPECT_TRUE(done.response);
    what.codes.push_back(done.status.code());
    what.steps += 2;
  }(client, server, session, seen);
  EXPECT_EQ(seen.steps, 5);
  EXPECT_EQ(seen.codes,
            (std::vector{Code::kSessionReset, Code::kMisuse, Code::kWrongThread, Code::kMisuse, Code::kMisuse}));
  EXPECT_EQ(client.counters().calls_completed + client.counters().calls_failed, 0u);
}

TYPED_TEST(Coroutine, call__ends_at_its_deadline) {
  Seen seen;
  this->ask(*this->world.client, this->world.open(), kKept, "x", 1, seen, {.deadline = milliseconds(5)});
  this->world.run_until([&] { return seen.has_ended; });
  EXPECT_EQ(seen.codes, std::vector{Code::kDeadline});
}

TYPED_TEST(Coroutine, call__can_be_cancelled_by_its_id) {
  auto& client = *this->world.client;
  const CallAwaitable* waiting = nullptr;
  Seen seen;
  [](Endpoint& endpoint, Session session, const CallAwaitable*& out, Seen& what) -> Detached {
    auto call = endpoint.call(session, kKept, message(endpoint, "x"), endpoint.alloc_msgbuf(8));
    out = &call;
    Completion done = co_await call;
    what.codes.push_back(done.status.code());
    done = co_await call;  // its buffers are gone, so it is refused like any call with empty buffers
    what.codes.push_back(done.status.code());
  }(client, this->world.open(), waiting, seen);
  this->world.run_until([&] { return !this->kept.empty(); });
  const CallId id = waiting->id();
  EXPECT_TRUE(client.cancel(id).ok());
  EXPECT_TRUE(seen.codes.empty()) << "continuations run in the loop only";
  this->world.run_until([&] { return !seen.codes.empty(); });
  EXPECT_EQ(seen.codes, (std::vector{Code::kCancelled, Code::kMisuse}));
  EXPECT_EQ(client.cancel(id).code(), Code::kMisuse);
}

TYPED_TEST(Coroutine, call__many_at_once_are_answered) {
  constexpr int kCoroutines = 300;
  const Session session = this->world.open({.window = 8});
  std::deque<Seen> seen(kCoroutines);
  for (int i = 0; i < kCoroutines; i++) {
    this->ask(*this->world.client, session, kEcho, std::to_string(i), 10, seen[static_cast<size_t>(i)]);
  }
  this->world.run_until([&] {
    for (const Seen& one : seen) {
      if (!one.has_ended) return false;
    }
    return true;
  });
  for (int i = 0; i < kCoroutines; i++) {
    EXPECT_EQ(seen[static_cast<size_t>(i)].steps, 10);
    EXPECT_EQ(seen[static_cast<size_t>(i)].text, std::to_string(i));
  }
}

// ---- The end of an endpoint ----

/// Uses all functions of an endpoint that was closed during the call.
Detached go_on_after_the_end(Endpoint& endpoint, Session session, std::shared_ptr<int> guard, Seen& seen) {
  Completion done = co_await endpoint.call(session, kKept, message(endpoint, "x"), endpoint.alloc_msgbuf(8));
  seen.codes.push_back(done.status.code());
  seen.steps += *guard;
  done = co_await endpoint.call(session, kKept, std::move(done.request), std::move(done.response));
  seen.codes.push_back(done.status.code());
  seen.codes.push_back(endpoint.after(milliseconds(0), [] {}).code());
  seen.codes.push_back(endpoint.post([] {}).code());
  seen.codes.push_back(endpoint.create_session("tern://127.0.0.1:1").status().code());
  seen.has_ended = true;
}

TYPED_TEST(Coroutine, close__resumes_all_waiting_coroutines) {
  auto& client = *this->world.client;
  const Session session = this->world.open({.window = 1});
  auto guard = std::make_shared<int>(1);
  Seen in_flight, queued;
  go_on_after_the_end(client, session, guard, in_flight);
  go_on_after_the_end(client, session, guard, queued);
  this->world.run_until([&] { return this->kept.size() == 1; });
  EXPECT_EQ(guard.use_count(), 3);
  const bool by_destructor = std::is_same_v<TypeParam, Shm>;
  if (by_destructor) {
    this->world.client.reset();
  } else {
    EXPECT_TRUE(client.close(milliseconds(0)).ok());
  }
  for (const Seen* seen : {&in_flight, &queued}) {
    EXPECT_TRUE(seen->has_ended);
    EXPECT_EQ(seen->codes, (std::vector{Code::kCancelled, Code::kSessionReset, Code::kSessionReset, Code::kSessionReset,
                                        Code::kSessionReset}));
  }
  EXPECT_EQ(guard.use_count(), 1) << "their frames are gone";
}

TYPED_TEST(Coroutine, destroy_session__resumes_all_waiting_coroutines) {
  auto& client = *this->world.client;
  const Session session = this->world.open();
  Seen seen;
  this->ask(client, session, kKept, "x", 1, seen);
  this->world.run_until([&] { return this->kept.size() == 1; });
  EXPECT_TRUE(client.destroy_session(session).ok());
  this->world.run_until([&] { return seen.has_ended; });
  EXPECT_EQ(seen.codes, std::vector{Code::kCancelled});
}

// ---- Handlers ----

/// The server's handlers call the client, which has its own handlers, and answer with the results.
template <class T>
class CoroutineHandler : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.client->on_request(kEcho, echo).ok());
    ASSERT_TRUE(world.client->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
    auto session = world.server->create_session(world.client_nexus->uri());
    ASSERT_TRUE(session.ok());
    auto forward = [this, backend = *session, probe = Probe(living)](Request request) -> Detached {
      EXPECT_TRUE(probe.is_whole());
      Endpoint& endpoint = *server;
      // A span from before the first wait becomes invalid with it, as it does when any handler returns.
      const std::string text(text_of(request.bytes()));
      const uint16_t type = text.starts_with("keep") ? kKept : kEcho;
      for (int i = 0; i < 2; i++) {
        Completion done = co_await endpoint.call(backend, type, message(endpoint, text), endpoint.alloc_msgbuf(64),
                                                 {.deadline = request.time_left()});
        EXPECT_TRUE(probe.is_whole()) << "the endpoint keeps its handlers until nobody waits any more";
        EXPECT_EQ(text_of(request.bytes()), text) << "a request that waits is a copy";
        codes.push_back(done.status.code());
        if (!done.status.ok()) co_return request.fail(static_cast<uint16_t>(done.status.code()));
        if (i == 1) request.respond(std::move(done.response));
      }
    };
    ASSERT_TRUE(world.server->on_request(kForward, forward).ok());
    ASSERT_TRUE(world.server->on_request(kForwardFromWorker, forward, {.worker = true}).ok());
    server = world.server.get();
    client_session = world.open();
  }

  Endpoint* server = nullptr;
  Session client_session;
  int living = 0;
  std::vector<Code> codes;
  std::vector<Request> kept;
  World<T> world;
};
TYPED_TEST_SUITE(CoroutineHandler, Transports, TransportNames);

TYPED_TEST(CoroutineHandler, asks_twice_and_answers) {
  std::deque<Outcome> outcomes(200);
  for (size_t i = 0; i < outcomes.size(); i++) {
    ASSERT_TRUE(this->world.call(this->client_session, kForward, "number " + std::to_string(i), outcomes[i]).ok());
  }
  this->world.run_until([&] { return this->world.client->counters().calls_completed == outcomes.size(); });
  for (size_t i = 0; i < outcomes.size(); i++) EXPECT_EQ(outcomes[i].response, "number " + std::to_string(i));
  EXPECT_EQ(this->codes.size(), 2 * outcomes.size());
}

TYPED_TEST(CoroutineHandler, on_a_worker_thread_is_refused_its_calls) {
  const Outcome outcome = this->world.ask(this->client_session, kForwardFromWorker, "x");
  EXPECT_EQ(outcome.code(), Code::kRefused);
  EXPECT_EQ(outcome.app_code, static_cast<uint16_t>(Code::kWrongThread));
}

TYPED_TEST(CoroutineHandler, deadline_ends_both_calls) {
  const Outcome outcome = this->world.ask(this->client_session, kForward, "keep", 64, {.deadline = milliseconds(300)});
  // Both calls end now. The clock decides whether the handler's failure arrives before the client's deadline.
  EXPECT_TRUE(outcome.code() == Code::kDeadline || outcome.app_code == static_cast<uint16_t>(Code::kDeadline));
  this->world.run_until([&] { return !this->codes.empty(); });
  EXPECT_EQ(this->codes, std::vector{Code::kDeadline});
}

TYPED_TEST(CoroutineHandler, goes_on_when_its_endpoint_is_destroyed) {
  Outcome outcome;
  ASSERT_TRUE(this->world.call(this->client_session, kForward, "keep", outcome).ok());
  this->world.run_until([&] { return !this->kept.empty(); });
  this->world.server.reset();
  EXPECT_EQ(this->codes, std::vector{Code::kCancelled});
  EXPECT_EQ(this->living, 0);
  this->world.run_until([&] { return outcome.runs == 1; });
  EXPECT_FALSE(outcome.status.ok());
}

// ---- Compilers, and rules ----

// Not a typed test, because g++ 12 does not parse (co_await ...).member in a template.
TEST(CoroutineCompiler, destroys_parameters_and_temporaries_once) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  int living = 0;
  bool has_ended = false;
  {
    const auto lambda = [captured = Probe(living)](Endpoint& client, Session session, Probe by_value,
                                                   Probe& by_reference, bool& ended) -> Detached {
      const auto type_of = [](const Probe& probe) { return probe.is_whole() ? kEcho : kKept; };
      Completion done = co_await client.call(session, type_of(Probe(by_value)), message(client, "x"),
                                             client.alloc_msgbuf(8), CallOptions{.deadline = kPatience});
      EXPECT_TRUE(done.status.ok() && by_value.is_whole() && by_reference.is_whole() && captured.is_whole());
      // Temporaries that live across the wait, and a wait inside a condition.
      if ((co_await client.call(session, type_of(by_value), std::move(done.request), std::move(done.response)))
              .status.ok() &&
          Probe(by_value).is_whole()) {
        const auto both = std::pair(Probe(by_value),
                                    co_await client.call(session, kEcho, message(client, "y"), client.alloc_msgbuf(8)));
        EXPECT_TRUE(both.first.is_whole());
        EXPECT_EQ(text_of(both.second.response.bytes()), "y");
        ended = true;
      }
    };
    Probe by_reference(living);
    lambda(*world.client, world.open(), Probe(living), by_reference, has_ended);
    EXPECT_EQ(living, 4) << "the captured one, the parameter and the temporary in the frame, and ours";
    world.run_until([&] { return has_ended; });
    EXPECT_EQ(living, 2);
  }
  EXPECT_EQ(living, 0);
}

class CoroutineDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CoroutineDeathTest, destruction_while_a_call_is_in_flight) {
  EXPECT_DEATH(
      {
        World<Shm> world;
        world.make();
        auto owned = [](Endpoint& endpoint, Session session) -> Owned {
          (void)co_await endpoint.call(session, kEcho, message(endpoint, "x"), endpoint.alloc_msgbuf(8));
        }(*world.client, world.open());
        owned.frame.destroy();
      },
      "a coroutine was destroyed while it waited for a call");
}

TEST_F(CoroutineDeathTest, exception_in_a_coroutine_ends_the_process) {
  EXPECT_DEATH(
      []() -> Detached {
        throw 1;
        co_return;
      }(),
      "terminate called");
}

/// A coroutine whose exceptions leave resume().
struct Thrower {
  struct promise_type {
    Thrower get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() { throw; }
  };
};

TEST_F(CoroutineDeathTest, exception_of_a_coroutine_that_waited_for_a_session_ends_the_process) {
  EXPECT_DEATH(
      {
        World<Shm> world;
        world.make();
        const Session session = world.client->create_session(world.server_nexus->uri()).value();
        [](Endpoint& endpoint, Session to) -> Thrower {
          (void)co_await endpoint.opened(to);
          throw 1;
        }(*world.client, session);
        try {
          world.run_until([&] { return world.client->is_open(session); });
        } catch (int) {
        }
      },
      "terminate called");
}

TEST(CoroutineOwner, may_destroy_a_coroutine_that_has_ended_or_never_called) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  bool has_ended = false;
  auto ended = [](Endpoint& endpoint, Session session, bool& end) -> Owned {
    { auto never_awaited = endpoint.call(session, kEcho, message(endpoint, "x"), endpoint.alloc_msgbuf(8)); }
    (void)co_await endpoint.call(session, kEcho, message(endpoint, "x"), endpoint.alloc_msgbuf(8));
    end = true;
  }(*world.client, world.open(), has_ended);
  world.run_until([&] { return has_ended; });
  ended.frame.destroy();
}

}  // namespace
}  // namespace tern::rpc_test
