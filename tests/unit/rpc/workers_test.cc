// Handlers on worker threads: how often the pool is woken, and the memory of answers that another thread writes.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tern/environment.h>

#include "rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kWorker = 2;
constexpr size_t kWindow = 16;

/// The real environment, with workers that run when the test says so.
class WithoutThreads final : public Environment {
 public:
  Duration now() override { return real_environment().now(); }
  uint64_t random() override { return real_environment().random(); }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override {
    return real_environment().listen(address, sink);
  }
  Result<std::string> resolve(std::string_view text) override { return real_environment().resolve(text); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t, size_t) override {
    return std::unique_ptr<WorkerPool>(std::make_unique<Pool>(*this));
  }

  std::vector<std::function<void()>> tasks;
  std::vector<size_t> flushed;  ///< for each flush(): the number of tasks then

 private:
  class Pool final : public WorkerPool {
   public:
    explicit Pool(WithoutThreads& environment) : environment_(environment) {}
    bool submit(std::function<void()>) override { return false; }  // an endpoint calls the next one
    bool submit_later(std::function<void()> task) override {
      environment_.tasks.push_back(std::move(task));
      return true;
    }
    void flush() override { environment_.flushed.push_back(environment_.tasks.size()); }

   private:
    WithoutThreads& environment_;
  };
};

TEST(Workers, are_woken_once_for_all_requests_of_a_burst) {
  WithoutThreads environment;
  std::vector<Outcome> outcomes(kWindow);
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({.environment = &environment}));
  ASSERT_TRUE(world.server->on_request(kWorker, echo, {.worker = true}).ok());
  const Session session = world.open({.window = kWindow});
  for (const bool has_deadline : {false, true}) {
    SCOPED_TRACE(has_deadline);
    CallOptions options;
    if (has_deadline) options.deadline = kPatience;
    for (Outcome& outcome : outcomes) ASSERT_TRUE(world.call(session, kWorker, "x", outcome, 256, options).ok());
    ASSERT_TRUE(world.run_until([&] { return environment.tasks.size() == kWindow; }));
    EXPECT_EQ(environment.flushed, std::vector<size_t>{kWindow});
    for (auto& task : std::exchange(environment.tasks, {})) task();
    environment.flushed.clear();
    for (Outcome& outcome : outcomes) {
      ASSERT_TRUE(world.run_until([&] { return outcome.runs != 0; }));
      EXPECT_EQ(outcome.response, "x");
      outcome = Outcome();
    }
  }
  world.turns(10);
  EXPECT_TRUE(environment.flushed.empty()) << "there is nothing to wake them for";
}

/// Their clients give them up before.
TEST(Workers, requests_that_no_worker_runs_are_not_counted_as_handled) {
  WithoutThreads environment;
  std::vector<Outcome> outcomes(kWindow);
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({.environment = &environment}));
  ASSERT_TRUE(world.server->on_request(kWorker, echo, {.worker = true}).ok());
  const Session session = world.open({.window = kWindow});
  const auto& counters = world.server->counters();
  for (const bool has_deadline : {false, true}) {
    SCOPED_TRACE(has_deadline);
    CallOptions options;
    if (has_deadline) options.deadline = kPatience;
    const uint64_t handled_before = counters.requests_handled;
    for (Outcome& outcome : outcomes) {
      const auto call = world.call(session, kWorker, "x", outcome, 256, options);
      ASSERT_TRUE(call.ok());
      ASSERT_TRUE(world.run_until([&] { return counters.requests_handled > handled_before; }));
      EXPECT_TRUE(world.client->cancel(*call).ok());
      world.turns(10);
      EXPECT_EQ(outcome.runs, 1);
      for (auto& task : std::exchange(environment.tasks, {})) task();
      ASSERT_TRUE(world.run_until([&] { return counters.requests_handled == handled_before; }));
      outcome = Outcome();
    }
  }
}

/// They end with their cancels (clause 6.2.4), so that their slots are free for others.
TEST(Workers, requests_that_wait_for_a_worker_end_with_their_cancels) {
  constexpr uint16_t kInLoop = 3;
  WithoutThreads environment;
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({.environment = &environment}));
  ASSERT_TRUE(world.server->on_request(kWorker, echo, {.worker = true}).ok());
  ASSERT_TRUE(world.server->on_request(kInLoop, echo).ok());
  const Session session = world.open({.window = 4});
  for (const bool has_deadline : {false, true}) {
    SCOPED_TRACE(has_deadline);
    CallOptions options;
    if (has_deadline) options.deadline = kPatience;
    for (int i = 0; i < 100; i++) {
      Outcome outcome;
      const auto call = world.call(session, kWorker, "x", outcome, 256, options);
      ASSERT_TRUE(call.ok());
      world.turns(10);
      EXPECT_TRUE(world.client->cancel(*call).ok());
      world.turns(10);
      ASSERT_EQ(outcome.runs, 1);
    }
    std::vector<Outcome> outcomes(4);
    for (Outcome& outcome : outcomes) ASSERT_TRUE(world.call(session, kInLoop, "x", outcome).ok());
    for (Outcome& outcome : outcomes) ASSERT_TRUE(world.run_until([&] { return outcome.response == "x"; }));
    for (auto& task : std::exchange(environment.tasks, {})) task();
    world.turns(10);
  }
}

/// Otherwise a client that cancels its calls could fill the queue of the workers, and hold its messages in memory.
TEST(Workers, requests_that_have_ended_hold_no_place_and_no_memory) {
  constexpr size_t kBytes = 100'000, kCancels = 50;
  WithoutThreads environment;
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({.environment = &environment}, {.memory_limit_bytes = 16 * kBytes}));
  ASSERT_TRUE(world.server->on_request(kWorker, echo, {.worker = true}).ok());
  const Session session = world.open({.window = 1});
  for (const bool has_deadline : {false, true}) {
    SCOPED_TRACE(has_deadline);
    CallOptions options;
    if (has_deadline) options.deadline = kPatience;
    const uint64_t handled = world.server->counters().requests_handled;
    for (size_t i = 0; i < kCancels; i++) {
      Outcome outcome;
      const auto call = world.call(session, kWorker, std::string(kBytes, 'x'), outcome, 256, options);
      ASSERT_TRUE(call.ok());
      ASSERT_TRUE(world.run_until([&] { return world.server->counters().requests_handled > handled; }));
      EXPECT_TRUE(world.client->cancel(*call).ok());
      ASSERT_TRUE(world.run_until([&] { return world.server->counters().requests_handled == handled; }));
      EXPECT_EQ(outcome.code(), Code::kCancelled);
    }
    EXPECT_EQ(environment.tasks.size(), 1u);
    for (auto& task : std::exchange(environment.tasks, {})) task();
  }
}

/// A worker takes the memory of each answer, and the endpoint's thread gives it back.
TEST(Workers, answers_need_no_more_memory_the_more_there_are) {
  constexpr size_t kLimit = 1 << 20;
  constexpr size_t kRounds = 3 * kLimit / 128 / kWindow;
  std::vector<Outcome> outcomes(kWindow);
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {.memory_limit_bytes = kLimit}));
  ASSERT_TRUE(world.server->on_request(kWorker, echo, {.worker = true}).ok());
  const Session session = world.open({.window = kWindow});
  for (size_t round = 0; round < kRounds; round++) {
    for (Outcome& outcome : outcomes) {
      outcome = Outcome();
      ASSERT_TRUE(world.call(session, kWorker, "x", outcome, 16).ok());
    }
    for (Outcome& outcome : outcomes) {
      ASSERT_TRUE(world.run_until([&] { return outcome.runs != 0; }));
      ASSERT_EQ(outcome.response, "x") << outcome.status.message() << " in round " << round;
    }
  }
}

/// The owner has all free memory, and waits for packets that do not come.
TEST(Workers, threads_that_find_no_memory_get_that_of_an_endpoint_that_sleeps) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {.wait = Wait::kBlock, .memory_limit_bytes = 1 << 20}));
  Endpoint& endpoint = *world.server;
  std::vector<MsgBuf> all;
  for (MsgBuf buffer = endpoint.alloc_msgbuf(10); buffer; buffer = endpoint.alloc_msgbuf(10)) {
    all.push_back(std::move(buffer));
  }
  all.clear();
  bool has_memory = false;
  std::thread thread([&] {
    std::this_thread::sleep_for(milliseconds(50));  // so that the loop sleeps
    const auto until = std::chrono::steady_clock::now() + kPatience / 2;
    while (!has_memory && std::chrono::steady_clock::now() < until) {
      has_memory = static_cast<bool>(endpoint.alloc_msgbuf(10));
      if (!has_memory) std::this_thread::sleep_for(milliseconds(1));
    }
    endpoint.stop();
  });
  EXPECT_TRUE(world.server->run_event_loop(kPatience).ok());
  thread.join();
  EXPECT_TRUE(has_memory);
}

}  // namespace
}  // namespace tern::rpc_test
