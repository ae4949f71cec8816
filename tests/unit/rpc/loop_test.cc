// The event loop and its input from other threads: stop, post, workers, the descriptor, close.
#include <gtest/gtest.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kWorker = 2;
constexpr uint16_t kKept = 3;

template <class T>
class Loop : public ::testing::Test {
 protected:
  World<T> world;
};
TYPED_TEST_SUITE(Loop, Transports, TransportNames);

/// An endpoint accepts a new peer during the handshake of a session, however long its turns take.
TYPED_TEST(Loop, slow_turns__do_not_keep_a_newcomer_out) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  int turns = 0;
  std::function<void()> be_slow = [&] {
    turns++;
    std::this_thread::sleep_for(milliseconds(2));
    EXPECT_TRUE(server.after({}, [&] { be_slow(); }).ok());
  };
  ASSERT_TRUE(server.after({}, [&] { be_slow(); }).ok());
  this->world.open();
  EXPECT_LT(turns, 900);  // a transport that is only polled looks for new peers in every 1024th call
}

// ---- stop ----

TYPED_TEST(Loop, run_event_loop__ends_with_its_duration_or_stop) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  const Duration begin = client.now();
  EXPECT_TRUE(client.run_event_loop(milliseconds(20)).ok());
  EXPECT_GE(client.now() - begin, milliseconds(20));
  EXPECT_TRUE(client.run_event_loop(milliseconds(-20)).ok());
  bool has_run = false;
  ASSERT_TRUE(client.post([&] { has_run = true; }).ok());
  client.stop();
  EXPECT_TRUE(client.run_event_loop().ok()) << "a stop before it counts";
  EXPECT_TRUE(has_run) << "after the first iteration";
  ASSERT_TRUE(client.after(milliseconds(1), [&] { client.stop(); }).ok());
  EXPECT_TRUE(client.run_event_loop().ok());
}

TYPED_TEST(Loop, stop__from_another_thread_in_each_way_of_waiting) {
  for (const Wait wait : {Wait::kPoll, Wait::kAdaptive, Wait::kBlock}) {
    World<TypeParam> ends;
    ASSERT_NO_FATAL_FAILURE(ends.make({}, {}, {.wait = wait, .spin = microseconds(10)}));
    for (int i = 0; i < 20; i++) {
      std::thread stopper([&] {
        std::this_thread::sleep_for(microseconds(100 * i));
        ends.client->stop();
      });
      EXPECT_TRUE(ends.client->run_event_loop().ok());
      stopper.join();
    }
  }
}

std::atomic<Endpoint*> endpoint_to_stop{nullptr};
void stop_on_signal(int) { endpoint_to_stop.load()->stop(); }

TYPED_TEST(Loop, stop__from_a_signal_handler) {
  for (const Wait wait : {Wait::kPoll, Wait::kBlock}) {
    World<TypeParam> ends;
    ASSERT_NO_FATAL_FAILURE(ends.make({}, {}, {.wait = wait}));
    endpoint_to_stop = ends.client.get();
    struct sigaction action = {}, before = {};
    action.sa_handler = stop_on_signal;
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    const pthread_t self = pthread_self();
    for (int i = 0; i < 10; i++) {
      std::thread sender([&] {
        std::this_thread::sleep_for(microseconds(200 * i));
        pthread_kill(self, SIGUSR1);
      });
      EXPECT_TRUE(ends.client->run_event_loop().ok());
      sender.join();
    }
    ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
  }
}

TYPED_TEST(Loop, stop__while_the_endpoint_closes) {
  for (int i = 0; i < 20; i++) {
    World<TypeParam> ends;
    ASSERT_NO_FATAL_FAILURE(ends.make());
    std::atomic<bool> is_over{false};
    std::thread stopper([&] {
      while (!is_over) ends.client->stop();
    });
    ASSERT_TRUE(ends.client->run_event_loop_once().ok());
    ASSERT_TRUE(ends.client->close(milliseconds(0)).ok());
    is_over = true;
    stopper.join();
  }
}

// ---- post ----

TYPED_TEST(Loop, post__from_many_threads_runs_each_once_in_the_owner) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {}, {.wait = Wait::kBlock}));
  constexpr int kThreads = 4, kPosts = 2000;
  auto& client = *this->world.client;
  const auto owner = std::this_thread::get_id();
  int runs = 0;
  std::vector<int> last(kThreads, -1);
  auto count = [&](int t, int i) {
    EXPECT_EQ(std::this_thread::get_id(), owner);
    EXPECT_EQ(last[t], i - 1) << "in the order of each thread";
    last[t] = i;
    if (++runs == kThreads * kPosts) client.stop();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; i++) {
        while (!client.post([&count, t, i] { count(t, i); }).ok()) {
        }
      }
    });
  }
  EXPECT_TRUE(client.run_event_loop().ok());
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, kThreads * kPosts);
}

TYPED_TEST(Loop, post__wakes_a_loop_that_blocks) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {}, {.wait = Wait::kBlock}));
  auto& client = *this->world.client;
  for (int i = 0; i < 50; i++) {
    std::thread poster([&] {
      std::this_thread::sleep_for(microseconds(20 * i));
      ASSERT_TRUE(client.post([&] { client.stop(); }).ok());
    });
    EXPECT_TRUE(client.run_event_loop().ok());
    poster.join();
  }
}

TYPED_TEST(Loop, post__has_a_limit) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  int runs = 0;
  for (int i = 0; i < 65536; i++) ASSERT_TRUE(client.post([&] { runs++; }).ok());
  EXPECT_EQ(client.post([&] { runs++; }).code(), Code::kQueueFull);
  ASSERT_TRUE(client.run_event_loop_once().ok());
  EXPECT_EQ(runs, 65536);
  EXPECT_TRUE(client.post([&] { runs++; }).ok());
}

TYPED_TEST(Loop, post__that_posts_itself_does_not_hold_the_loop) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  struct Again {
    Endpoint* endpoint;
    int* runs;
    void operator()() const {
      ++*runs;
      EXPECT_TRUE(endpoint->post(*this).ok());
    }
  };
  int runs = 0;
  ASSERT_TRUE(this->world.client->post(Again{this->world.client.get(), &runs}).ok());
  this->world.turns(10);
  EXPECT_EQ(runs, 10);
}

TYPED_TEST(Loop, post__racing_with_the_end_of_the_endpoint_destroys_each_function) {
  for (int i = 0; i < 10; i++) {
    World<TypeParam> ends;
    ASSERT_NO_FATAL_FAILURE(ends.make());
    std::atomic<int> made{0}, destroyed{0};
    struct Counted {
      std::atomic<int>* destroyed;
      explicit Counted(std::atomic<int>* d) : destroyed(d) {}
      ~Counted() { ++*destroyed; }
    };
    std::atomic<bool> is_closed{false};
    std::thread poster([&] {
      for (;;) {
        auto counted = std::make_unique<Counted>(&destroyed);
        made++;
        const Status status = ends.client->post([c = std::move(counted)] {});
        if (status.ok() || status.code() == Code::kQueueFull) continue;  // the queue is full while the loop gets no CPU
        EXPECT_EQ(status.code(), Code::kSessionReset);
        break;
      }
      is_closed = true;
    });
    for (int t = 0; t < 20; t++) ASSERT_TRUE(ends.client->run_event_loop_once().ok());
    ASSERT_TRUE(ends.client->close(seconds(0)).ok());
    poster.join();
    ends.client.reset();
    EXPECT_TRUE(is_closed);
    EXPECT_EQ(destroyed, made) << "run or not, what was captured is destroyed";
  }
}

// ---- Workers ----

TYPED_TEST(Loop, worker__handlers_run_elsewhere_and_may_answer_there) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({.worker_threads = 3}));
  auto& server = *this->world.server;
  const auto owner = std::this_thread::get_id();
  std::atomic<int> wrong{0};
  ASSERT_TRUE(server
                  .on_request(kWorker,
                              [&](Request request) {
                                if (std::this_thread::get_id() == owner) wrong++;
                                if (!server.alloc_msgbuf(8)) wrong++;
                                if (server.after(seconds(0), [] {}).code() != Code::kWrongThread) wrong++;
                                if (server.create_session("tern://127.0.0.1:1").status().code() != Code::kWrongThread)
                                  wrong++;
                                const std::string text(text_of(request.bytes()));
                                if (text == "drop") return;
                                if (text == "fail") return request.fail(9);
                                reply(std::move(request), text + text);
                              },
                              {.worker = true})
                  .ok());
  const Session session = this->world.open({.window = 16});
  for (int i = 0; i < 50; i++) {
    EXPECT_EQ(this->world.ask(session, kWorker, std::to_string(i)).response, std::to_string(i) + std::to_string(i));
  }
  EXPECT_EQ(this->world.ask(session, kWorker, "drop").code(), Code::kNoResponse);
  EXPECT_EQ(this->world.ask(session, kWorker, "fail").app_code, 9);
  const std::string large(200'000, 'w');
  EXPECT_TRUE(this->world.ask(session, kWorker, large, 400'000).response == large + large);
  EXPECT_EQ(this->world.ask(session, kWorker, "").response, "");
  EXPECT_EQ(wrong, 0);
}

TYPED_TEST(Loop, worker__full_queue_refuses_requests) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({.worker_threads = 1, .worker_queue_limit = 1}));
  std::atomic<bool> may_end{false};
  std::atomic<int> running{0};
  ASSERT_TRUE(this->world.server
                  ->on_request(kWorker,
                               [&](Request request) {
                                 running++;
                                 while (!may_end) std::this_thread::yield();
                                 reply(std::move(request), "done");
                               },
                               {.worker = true})
                  .ok());
  const Session session = this->world.open();
  Outcome first, second, third;
  ASSERT_TRUE(this->world.call(session, kWorker, "1", first).ok());
  this->world.run_until([&] { return running == 1; });
  ASSERT_TRUE(this->world.call(session, kWorker, "2", second).ok());
  this->world.run_until([&] { return this->world.server->counters().requests_handled == 2; });
  ASSERT_TRUE(this->world.call(session, kWorker, "3", third).ok());
  this->world.run_until([&] { return third.runs == 1; });
  EXPECT_EQ(third.code(), Code::kQueueFull);
  EXPECT_EQ(this->world.server->counters().refused_worker_queue, 1u);
  EXPECT_EQ(this->world.ask(session, kEcho, "the loop is free").response, "the loop is free");
  may_end = true;
  this->world.run_until([&] { return first.runs + second.runs == 2; });
  EXPECT_EQ(first.response, "done");
  EXPECT_EQ(second.response, "done");
}

TYPED_TEST(Loop, worker__runs_while_its_endpoint_closes) {
  for (int i = 0; i < 5; i++) {
    World<TypeParam> ends;
    ASSERT_NO_FATAL_FAILURE(ends.make({.worker_threads = 2}));
    std::atomic<int> begun{0}, ended{0};
    auto state = std::make_shared<std::atomic<int>>(0);  // destroyed with the handler
    ASSERT_TRUE(ends.server
                    ->on_request(kWorker,
                                 [&, state, endpoint = ends.server.get()](Request request) {
                                   begun++;
                                   std::this_thread::sleep_for(milliseconds(5));
                                   ++*state;
                                   (void)endpoint->post([] {});
                                   endpoint->stop();
                                   EXPECT_EQ(text_of(request.bytes()), "work");
                                   (void)request.response(100);
                                   request.respond();
                                   ended++;
                                 },
                                 {.worker = true})
                    .ok());
    const Session session = ends.open();
    std::vector<std::unique_ptr<Outcome>> outcomes;
    for (int c = 0; c < 6; c++) {
      outcomes.push_back(std::make_unique<Outcome>());
      ASSERT_TRUE(ends.call(session, kWorker, "work", *outcomes.back()).ok());
    }
    ends.run_until([&] { return begun >= 1; });
    if (i % 2 == 0) {
      ASSERT_TRUE(ends.server->close(seconds(0)).ok());
    }
    ends.server.reset();
    EXPECT_EQ(begun, ended) << "no handler of a dead endpoint runs";
    EXPECT_EQ(*state, ended);
    for (auto& outcome : outcomes) {
      ends.run_until([&] { return outcome->runs == 1; });
    }
  }
}

TYPED_TEST(Loop, worker__cancelled_requests_still_run_and_harm_nothing) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({.worker_threads = 2}));
  std::atomic<int> runs{0};
  ASSERT_TRUE(this->world.server
                  ->on_request(kWorker,
                               [&](Request request) {
                                 EXPECT_EQ(text_of(request.bytes()).substr(0, 4), "work");
                                 reply(std::move(request), "done");
                                 runs++;
                               },
                               {.worker = true})
                  .ok());
  const Session session = this->world.open({.window = 4});
  for (int i = 0; i < 200; i++) {
    Outcome outcome;
    auto id = this->world.call(session, kWorker, "work" + std::to_string(i), outcome);
    ASSERT_TRUE(id.ok());
    this->world.turns(i % 5);
    (void)this->world.client->cancel(*id);
    this->world.run_until([&] { return outcome.runs == 1; });
    EXPECT_TRUE(outcome.code() == Code::kCancelled || outcome.response == "done");
  }
  EXPECT_EQ(this->world.ask(session, kWorker, "work").response, "done");
  this->world.server.reset();  // waits for the handlers, which use `runs`
}

// ---- Threads ----

TYPED_TEST(Loop, threads__server_and_clients_in_threads_of_their_own) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {.wait = Wait::kAdaptive}));
  auto& server = *this->world.server;
  std::thread server_thread([&] { EXPECT_TRUE(server.run_event_loop().ok()); });
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; c++) {
    clients.emplace_back([&, c] {
      const Wait wait = c == 0 ? Wait::kBlock : c == 1 ? Wait::kAdaptive : Wait::kPoll;
      auto rpc = Rpc<TypeParam>::create(*this->world.client_nexus, at_end<typename TypeParam::Options>(1),
                                        small_memory({.endpoint_id = static_cast<uint16_t>(10 + c), .wait = wait}));
      ASSERT_TRUE(rpc.ok());
      auto session = (*rpc)->create_session(this->world.server_nexus->uri());
      ASSERT_TRUE(session.ok());
      int completed = 0;
      std::function<void(MsgBuf, MsgBuf)> next = [&](MsgBuf request, MsgBuf room) {
        auto id = (*rpc)->enqueue_request(*session, kEcho, std::move(request), std::move(room), [&](Completion& done) {
          EXPECT_TRUE(done.status.ok()) << done.status.message();
          EXPECT_EQ(text_of(done.response.bytes()), "ping");
          if (!done.status.ok() || ++completed == 300) return (*rpc)->stop();
          next(std::move(done.request), std::move(done.response));
        });
        if (id.ok()) return;
        ADD_FAILURE() << id.status().message();
        (*rpc)->stop();
      };
      next(message(**rpc, "ping"), (*rpc)->alloc_msgbuf(16));
      EXPECT_TRUE((*rpc)->run_event_loop().ok());
      EXPECT_EQ(completed, 300);
    });
  }
  for (auto& client : clients) client.join();
  server.stop();
  server_thread.join();
}

TYPED_TEST(Loop, threads__destroyed_by_another_thread_than_the_owner) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  std::vector<Request> kept;
  ASSERT_TRUE(this->world.server->on_request(kKept, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  const Session session = this->world.open();
  Outcome outcome;
  ASSERT_TRUE(this->world.call(session, kKept, "x", outcome).ok());
  this->world.run_until([&] { return kept.size() == 1; });
  std::thread([&] {
    this->world.client.reset();
    this->world.server.reset();
  }).join();
  EXPECT_EQ(outcome.runs, 1);
  EXPECT_EQ(outcome.code(), Code::kCancelled);
  EXPECT_EQ(text_of(kept[0].bytes()), "x");
}

// ---- descriptor ----

/// The loop of a program with its own epoll: runs an iteration only when the descriptor is readable.
template <class T>
class PollLoop {
 public:
  explicit PollLoop(Rpc<T>& rpc) : rpc_(rpc) {
    auto descriptor = rpc.descriptor();
    EXPECT_TRUE(descriptor.ok()) << descriptor.status().message();
    fd_ = *descriptor;
  }
  /// False: the descriptor was not readable within `timeout_ms`.
  bool turn(int timeout_ms) {
    pollfd poll_fd = {fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, timeout_ms) == 0) return false;
    EXPECT_TRUE(rpc_.run_event_loop_once().ok());
    iterations++;
    return true;
  }
  template <class F>
  bool run_until(F&& is_true) {
    while (!is_true()) {
      if (!turn(20'000)) {
        ADD_FAILURE() << "the descriptor never became readable";
        return false;
      }
    }
    return true;
  }
  /// Opens a session with a server whose loop another thread runs.
  Session open(const Nexus& server) {
    auto session = rpc_.create_session(server.uri());
    EXPECT_TRUE(session.ok()) << session.status().message();
    if (!session.ok()) return {};
    run_until([&] { return rpc_.is_open(*session); });
    return *session;
  }
  int iterations = 0;

 private:
  Rpc<T>& rpc_;
  int fd_ = -1;
};

TYPED_TEST(Loop, descriptor__is_readable_when_there_is_work) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  std::thread server_thread([&] { EXPECT_TRUE(server.run_event_loop().ok()); });
  PollLoop<TypeParam> loop(client);
  const Session session = loop.open(*this->world.server_nexus);
  for (int i = 0; i < 20; i++) {  // made outside of the loop, like all calls below
    Outcome outcome;
    ASSERT_TRUE(this->world.call(session, kEcho, "hello", outcome).ok());
    loop.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.response, "hello");
  }
  bool has_run = false;
  ASSERT_TRUE(client.after(milliseconds(10), [&] { has_run = true; }).ok());
  loop.run_until([&] { return has_run; });
  has_run = false;
  std::thread poster([&] { EXPECT_TRUE(client.post([&] { has_run = true; }).ok()); });
  loop.run_until([&] { return has_run; });
  poster.join();
  Outcome cancelled;
  auto id = this->world.call(session, kEcho, "x", cancelled);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(client.cancel(*id).ok());
  loop.run_until([&] { return cancelled.runs == 1; });
  Outcome late;
  auto other = client.create_session("tern://127.0.0.1:9", {.connect_timeout = seconds(100)});
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(this->world.call(*other, kEcho, "x", late, 8, {.deadline = milliseconds(5)}).ok());
  loop.run_until([&] { return late.runs == 1; });
  Outcome destroyed;
  ASSERT_TRUE(this->world.call(*other, kEcho, "x", destroyed).ok());
  ASSERT_TRUE(client.destroy_session(*other).ok());
  loop.run_until([&] { return destroyed.runs == 1; });
  server.stop();
  server_thread.join();
}

/// The loop's other functions do not take away that the descriptor becomes readable for calls made outside of it.
TYPED_TEST(Loop, descriptor__is_readable_after_it_was_asked_for_again_and_after_a_run) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  std::thread server_thread([&] { EXPECT_TRUE(server.run_event_loop().ok()); });
  PollLoop<TypeParam> loop(client);
  const Session session = loop.open(*this->world.server_nexus);
  for (const bool is_run : {false, true}) {
    while (loop.turn(150)) {
    }
    if (is_run) {
      EXPECT_TRUE(client.run_event_loop(milliseconds(20)).ok());
    } else {
      EXPECT_TRUE(client.descriptor().ok());
    }
    Outcome outcome;
    ASSERT_TRUE(this->world.call(session, kEcho, "hello", outcome).ok());
    EXPECT_TRUE(loop.run_until([&] { return outcome.runs == 1; })) << is_run;
    EXPECT_EQ(outcome.response, "hello");
  }
  server.stop();
  server_thread.join();
}

/// The program may sleep until there is an answer, so a credit return leaves in the iteration of its request (clause
/// 4.2.6).
TEST(Descriptor, lets_no_credit_return_wait) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  std::vector<Request> kept;
  ASSERT_TRUE(world.server->on_request(kKept, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  const Session session = world.open();
  uint64_t at_once = 0;  // packets that were sent in the iterations of the requests
  const auto ask = [&] {
    const uint64_t sent = world.server->counters().packets_sent;
    Outcome outcome;
    ASSERT_TRUE(world.call(session, kKept, "x", outcome).ok());
    ASSERT_TRUE(world.run_until([&] { return !kept.empty(); }));
    at_once += world.server->counters().packets_sent - sent;
    reply(std::move(kept[0]), "y");
    kept.clear();
    ASSERT_TRUE(world.run_until([&] { return outcome.runs == 1; }));
    world.turns(1000);  // the server's loop runs often
  };
  constexpr uint64_t kCalls = 20;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  do {  // on a busy machine hardly one waits
    at_once = 0;
    for (uint64_t i = 0; i < kCalls; i++) ask();
  } while (at_once >= kCalls && std::chrono::steady_clock::now() < until);
  EXPECT_LT(at_once, kCalls) << "before, they wait";
  ASSERT_TRUE(world.server->descriptor().ok());
  world.turns(10);
  at_once = 0;
  for (uint64_t i = 0; i < kCalls; i++) ask();
  EXPECT_GE(at_once, kCalls);  // a pause of the machine may add a report, and its answer
}

TYPED_TEST(Loop, descriptor__of_a_server_is_readable_for_requests) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  std::vector<Request> kept;
  ASSERT_TRUE(server.on_request(kKept, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  std::atomic<bool> is_over{false};
  PollLoop<TypeParam> loop(server);
  std::thread client_thread([&] {
    ASSERT_TRUE(client.run_event_loop_once().ok());  // this thread owns the endpoint from now on
    auto session = client.create_session(this->world.server_nexus->uri());
    ASSERT_TRUE(session.ok());
    for (const uint16_t type : {kEcho, kKept, kEcho, kKept}) {
      Outcome outcome;
      auto id = client.enqueue_request(*session, type, message(client, "x"), client.alloc_msgbuf(8), outcome.then());
      ASSERT_TRUE(id.ok());
      while (outcome.runs == 0) ASSERT_TRUE(client.run_event_loop(milliseconds(1)).ok());
      EXPECT_EQ(outcome.response, "x");
    }
    is_over = true;
    EXPECT_TRUE(server.post([] {}).ok());
  });
  while (!is_over) {
    ASSERT_TRUE(loop.turn(20'000));
    for (Request& request : kept) echo(std::move(request));  // answered outside of the loop
    kept.clear();
  }
  client_thread.join();
}

TYPED_TEST(Loop, descriptor__of_an_idle_endpoint_is_quiet) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  PollLoop<TypeParam> loop(*this->world.client);
  const Session session = this->world.open();
  EXPECT_EQ(this->world.ask(session, kEcho, "x").response, "x");
  // The report of finished requests is the last work of the endpoint.
  int quiet = 0;
  for (int i = 0; i < 10'000 && quiet < 3; i++) {
    if (loop.turn(150)) {
      quiet = 0;
    } else {
      quiet++;
    }
    ASSERT_TRUE(this->world.server->run_event_loop_once().ok());
  }
  EXPECT_EQ(quiet, 3) << "the descriptor is readable for ever";
}

// ---- close ----

TYPED_TEST(Loop, close__waits_for_calls_in_flight) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  std::atomic<bool> is_over{false};
  std::thread server_thread([&, server = std::move(this->world.server)] {
    while (!is_over) ASSERT_TRUE(server->run_event_loop(milliseconds(1)).ok());
  });
  const Session session = this->world.open({.window = 2});
  Outcome in_flight[4];
  for (auto& outcome : in_flight) ASSERT_TRUE(this->world.call(session, kEcho, "x", outcome).ok());
  ASSERT_TRUE(client.close(kPatience).ok());
  for (auto& outcome : in_flight) {
    EXPECT_EQ(outcome.runs, 1);
    EXPECT_EQ(outcome.response, "x");
  }
  is_over = true;
  server_thread.join();
}

TYPED_TEST(Loop, close__of_a_server_answers_its_requests_and_refuses_new_ones) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  std::vector<Request> kept;
  ASSERT_TRUE(server.on_request(kKept, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  std::atomic<bool> is_open{false}, is_closing{false}, is_closed{false};
  Outcome in_flight, late;
  std::thread client_thread([&, client = std::move(this->world.client)]() mutable {
    ASSERT_TRUE(client->run_event_loop_once().ok());  // this thread owns the endpoint from now on
    auto session = client->create_session(this->world.server_nexus->uri());
    ASSERT_TRUE(session.ok());
    while (!client->is_open(*session)) ASSERT_TRUE(client->run_event_loop_once().ok());
    auto call = [&](uint16_t type, Outcome& outcome) {
      auto id = client->enqueue_request(*session, type, message(*client, "x"), client->alloc_msgbuf(8), outcome.then());
      ASSERT_TRUE(id.ok());
    };
    call(kKept, in_flight);
    is_open = true;
    while (!is_closing) ASSERT_TRUE(client->run_event_loop_once().ok());
    call(kEcho, late);
    while (late.runs == 0) ASSERT_TRUE(client->run_event_loop_once().ok());
    ASSERT_TRUE(server.post([&] { reply(std::move(kept[0]), "late"); }).ok());
    while (!is_closed) ASSERT_TRUE(client->run_event_loop_once().ok());
    for (MsgBuf* buffer : {&in_flight.request, &in_flight.room, &late.request, &late.room}) *buffer = MsgBuf();
  });
  this->world.run_until([&] { return is_open && kept.size() == 1; });
  ASSERT_TRUE(server.after(seconds(0), [&] { is_closing = true; }).ok());
  const Duration begin = server.now();
  ASSERT_TRUE(server.close(kPatience).ok());
  EXPECT_LT(server.now() - begin, kPatience / 2) << "it need not wait for the whole drain";
  is_closed = true;
  client_thread.join();
  EXPECT_EQ(late.code(), Code::kSessionReset) << late.status.message();
  EXPECT_EQ(in_flight.response, "late") << in_flight.status.message();
}

TYPED_TEST(Loop, close__gives_up_after_the_drain) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const Session session = this->world.open();
  Outcome outcome;
  ASSERT_TRUE(this->world.call(session, kEcho, "x", outcome).ok());
  ASSERT_TRUE(this->world.client->close(milliseconds(10)).ok());  // the server does not run
  EXPECT_EQ(outcome.runs, 1);
  EXPECT_EQ(outcome.code(), Code::kCancelled);
}

// ---- Exceptions ----

TYPED_TEST(Loop, exceptions__end_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  EXPECT_DEATH(
      {
        try {
          (void)client.after(seconds(0), [] { throw 1; });
          (void)client.run_event_loop(milliseconds(50));
        } catch (...) {
        }
      },
      "");
}

}  // namespace
}  // namespace tern::rpc_test
