// The effects of calls, timers and sessions on each other from inside callbacks, and early ends of calls.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "rpc/endpoint_core.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;

template <class T>
class Calls : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.server->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }
  void expect_alive(Session session) { EXPECT_EQ(world.ask(session, kEcho, "alive").response, "alive"); }

  std::vector<Request> kept;

  /// Drops cancelled requests, because a server that keeps too many of them takes no new requests of the session.
  void drop_cancelled() {
    std::erase_if(kept, [](const Request& request) { return request.is_cancelled(); });
  }
  World<T> world;
};
TYPED_TEST_SUITE(Calls, Transports, TransportNames);

// ---- Timers ----

TYPED_TEST(Calls, after__runs_in_order_of_time_and_then_of_registration) {
  auto& client = *this->world.client;
  std::vector<int> order;
  for (const auto& [number, delay] : {std::pair{4, milliseconds(5)},
                                      {2, milliseconds(2)},
                                      {0, milliseconds(0)},
                                      {3, milliseconds(2)},
                                      {1, milliseconds(-5)},
                                      {5, milliseconds(5)}}) {
    ASSERT_TRUE(client.after(delay, [&order, n = number] { order.push_back(n); }).ok());
  }
  const Duration begin = client.now();
  this->world.run_until([&] { return order.size() == 6; });
  EXPECT_GE(client.now() - begin, milliseconds(4));
  // Outside of the loop each registration reads the clock, so 2 and 3, and 4 and 5, keep their order by either rule.
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TYPED_TEST(Calls, after__from_a_timer_with_no_delay_does_not_hold_the_loop) {
  auto& client = *this->world.client;
  struct Again {
    Endpoint* endpoint;
    int* runs;
    void operator()() const {
      (*runs)++;
      if (*runs < 1000) {
        EXPECT_TRUE(endpoint->after(seconds(0), *this).ok());
      }
    }
  };
  int runs = 0;
  ASSERT_TRUE(client.after(seconds(0), Again{&client, &runs}).ok());
  this->world.run_until([&] { return runs > 0; });
  EXPECT_LT(runs, 1000) << "one at a time: packets have their turn in between";
  this->world.run_until([&] { return runs == 1000; });
}

TYPED_TEST(Calls, after__never_runs_early) {
  auto& client = *this->world.client;
  int runs = 0;
  for (int i = 0; i < 20; i++) {
    const Duration due = client.now() + microseconds(100 * i);
    ASSERT_TRUE(client
                    .after(microseconds(100 * i),
                           [&, due] {
                             EXPECT_GE(client.now(), due);
                             runs++;
                           })
                    .ok());
  }
  this->world.run_until([&] { return runs == 20; });
}

TYPED_TEST(Calls, cancel_timer__is_misuse_after_the_timer_ran) {
  auto& client = *this->world.client;
  int runs = 0;
  auto guard = std::make_shared<int>(0);
  const TimerId far = client.after(seconds(1000), [&runs, guard] { runs += 100; }).value();
  const TimerId near = client.after(milliseconds(1), [&] { runs++; }).value();
  EXPECT_EQ(guard.use_count(), 2);
  EXPECT_TRUE(client.cancel_timer(far).ok());
  EXPECT_EQ(guard.use_count(), 1) << "its function is destroyed at once";
  EXPECT_EQ(client.cancel_timer(far).code(), Code::kMisuse);
  this->world.run_until([&] { return runs == 1; });
  EXPECT_EQ(client.cancel_timer(near).code(), Code::kMisuse);
  EXPECT_EQ(client.cancel_timer({}).code(), Code::kMisuse);
  const TimerId last = client.after(seconds(1000), [guard] {}).value();
  std::thread([&] { EXPECT_EQ(client.cancel_timer(last).code(), Code::kWrongThread); }).join();
  EXPECT_TRUE(client.close(milliseconds(0)).ok());
  EXPECT_EQ(guard.use_count(), 1);
  EXPECT_EQ(client.cancel_timer(last).code(), Code::kMisuse);
  EXPECT_EQ(runs, 1);
}

// ---- One path for errors ----

TYPED_TEST(Calls, refusal_runs_then__gives_the_reason_and_both_buffers_at_once) {
  auto& client = *this->world.client;
  const Session session = this->world.open();
  const CallOptions options = {.refusal_runs_then = true};
  const auto refused = [&](Session to, uint16_t type, MsgBuf request, MsgBuf room) {
    Outcome outcome;
    auto call = client.enqueue_request(to, type, std::move(request), std::move(room), outcome.then(), options);
    EXPECT_TRUE(call.ok());
    EXPECT_EQ(call->value, 0u);
    EXPECT_FALSE(client.cancel(*call).ok());
    EXPECT_EQ(outcome.runs, 1) << "before enqueue_request() returns";
    EXPECT_FALSE(request || room) << "they went with the call";
    EXPECT_EQ(outcome.app_code, 0u);
    return outcome;
  };
  const Outcome ended = refused(Session(), kEcho, message(client, "kept"), client.alloc_msgbuf(8));
  EXPECT_EQ(ended.code(), Code::kSessionReset);
  EXPECT_TRUE(ended.has_buffers);
  EXPECT_EQ(text_of(ended.request.bytes()), "kept");
  EXPECT_EQ(refused(session, 4096, message(client, "x"), client.alloc_msgbuf(8)).code(), Code::kMisuse);
  EXPECT_EQ(refused(session, kEcho, MsgBuf(), MsgBuf()).code(), Code::kMisuse);
  std::thread([&] {
    EXPECT_EQ(refused(session, kEcho, message(client, "x"), client.alloc_msgbuf(8)).code(), Code::kWrongThread);
  }).join();
  EXPECT_EQ(client.counters().calls_completed + client.counters().calls_failed, 0u);
}

/// A call of another thread is refused, and leaves the reason for which the owner's call was refused.
TYPED_TEST(Calls, refusal__is_that_of_the_calling_thread) {
  auto& client = *this->world.client;
  const Session session = this->world.open();
  std::atomic<bool> is_over{false};
  const auto refused = [&](Session to) {
    return client.enqueue_request(to, kEcho, MsgBuf(), MsgBuf(), [](Completion&) {}).status().code();
  };
  std::thread other([&] {
    while (!is_over) EXPECT_EQ(refused(session), Code::kWrongThread);
  });
  for (int i = 0; i < 20'000; i++) {
    EXPECT_EQ(refused(session), Code::kMisuse);
    EXPECT_EQ(refused(Session()), Code::kSessionReset);
  }
  is_over = true;
  other.join();
}

TYPED_TEST(Calls, refusal_runs_then__changes_nothing_for_accepted_calls) {
  const Session session = this->world.open();
  const Outcome outcome = this->world.ask(session, kEcho, "x", 64, {.refusal_runs_then = true});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.runs, 1);
  // This call is in flight when its session is destroyed. It was accepted, so it ends once, in the loop.
  Outcome pending;
  ASSERT_TRUE(this->world.call(session, kEcho, "y", pending, 64, {.refusal_runs_then = true}).ok());
  EXPECT_TRUE(this->world.client->destroy_session(session).ok());
  EXPECT_EQ(pending.runs, 0);
  this->world.run_until([&] { return pending.runs > 0; });
  this->world.turns(10);
  EXPECT_EQ(pending.runs, 1);
}

// ---- Calls from callbacks ----

TYPED_TEST(Calls, enqueue_request__inside_continuations_is_accepted) {
  const Session session = this->world.open({.window = 2});
  auto& client = *this->world.client;
  int completed = 0, chains = 0;
  std::function<void(MsgBuf, MsgBuf)> next = [&](MsgBuf request, MsgBuf room) {
    auto id = client.enqueue_request(session, kEcho, std::move(request), std::move(room), [&](Completion& done) {
      ASSERT_TRUE(done.status.ok());
      if (++completed < 500) {
        next(std::move(done.request), std::move(done.response));
      } else {
        chains++;
      }
    });
    ASSERT_TRUE(id.ok());
  };
  for (int i = 0; i < 5; i++) next(message(client, "x"), client.alloc_msgbuf(8));
  this->world.run_until([&] { return chains == 5; });
  EXPECT_EQ(completed, 504);
  EXPECT_EQ(client.counters().calls_completed, 504u);
}

TYPED_TEST(Calls, enqueue_request__inside_the_slots_own_continuation_keeps_its_captures) {
  const Session session = this->world.open({.window = 1});
  auto& client = *this->world.client;
  auto guard = std::make_shared<int>(1);
  int runs = 0;
  auto id = client.enqueue_request(
      session, kEcho, message(client, "a"), client.alloc_msgbuf(8), [&, guard](Completion& done) {
        auto again =
            client.enqueue_request(session, kEcho, std::move(done.request), std::move(done.response),
                                   [&, guard](Completion& second) { runs += *guard + (second.status.ok() ? 1 : 0); });
        EXPECT_TRUE(again.ok());
        EXPECT_EQ(*guard, 1);  // the captures of this continuation still exist
      });
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return runs == 2; });
  EXPECT_EQ(guard.use_count(), 1) << "captures are destroyed after the run";
}

TYPED_TEST(Calls, destroy_session__inside_its_own_continuation_cancels_the_other_calls) {
  auto& client = *this->world.client;
  const Session session = this->world.open({.window = 4});
  std::vector<Code> codes;
  int runs = 0;
  auto first =
      client.enqueue_request(session, kEcho, message(client, "x"), client.alloc_msgbuf(8), [&](Completion& done) {
        runs++;
        EXPECT_TRUE(done.status.ok());
        EXPECT_TRUE(client.destroy_session(session).ok());
        EXPECT_EQ(client.destroy_session(session).code(), Code::kSessionReset);
      });
  ASSERT_TRUE(first.ok());
  for (int i = 0; i < 10; i++) {
    auto id =
        client.enqueue_request(session, kKept, message(client, "x"), client.alloc_msgbuf(8), [&](Completion& done) {
          codes.push_back(done.status.code());
          EXPECT_TRUE(done.request && done.response);
          EXPECT_EQ(client.destroy_session(session).code(), Code::kSessionReset);
        });
    ASSERT_TRUE(id.ok());
  }
  this->world.run_until([&] { return codes.size() == 10; });
  this->world.turns(5);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(codes, std::vector<Code>(10, Code::kCancelled));
  this->world.run_until([&] {
    for (const Request& request : this->kept) {
      if (!request.is_cancelled()) return false;
    }
    return true;
  });
  this->expect_alive(this->world.open());
}

TYPED_TEST(Calls, destroy_session__before_it_is_open_cancels_its_calls) {
  auto& client = *this->world.client;
  auto session = client.create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(session.ok());
  Outcome outcome;
  ASSERT_TRUE(this->world.call(*session, kEcho, "x", outcome).ok());
  ASSERT_TRUE(client.destroy_session(*session).ok());
  this->world.run_until([&] { return outcome.runs == 1; });
  EXPECT_EQ(outcome.code(), Code::kCancelled);
  for (int i = 0; i < 30; i++) {  // at every stage of the handshake
    auto next = client.create_session(this->world.server_nexus->uri());
    ASSERT_TRUE(next.ok());
    this->world.turns(i * 3);
    ASSERT_TRUE(client.destroy_session(*next).ok());
    this->world.turn();
    ASSERT_FALSE(client.is_open(*next));
  }
  this->expect_alive(this->world.open());
}

TYPED_TEST(Calls, destroy_session__of_a_session_that_fails_meanwhile_ends_it_once) {
  // A timer destroys a session in the iteration that would find the session dead.
  NexusOptions nexus;
  nexus.liveness_timeout = milliseconds(20);
  World<TypeParam> impatient;
  ASSERT_NO_FATAL_FAILURE(impatient.make(nexus));
  auto& client = *impatient.client;
  for (int i = 0; i < 10; i++) {
    const Session session = impatient.open();
    Outcome outcome;
    ASSERT_TRUE(impatient.call(session, kEcho, "x", outcome).ok());
    // Only the client runs, so the server is silent.
    struct Destroy {
      Endpoint* endpoint;
      Session session;
      int* runs;
      void operator()() const {
        if (*runs == 0) {
          EXPECT_TRUE(endpoint->after(microseconds(1), *this).ok());
        }
        if (endpoint->now().count() % 3 == 0) (void)endpoint->destroy_session(session);
      }
    };
    ASSERT_TRUE(client.after(milliseconds(15), Destroy{&client, session, &outcome.runs}).ok());
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (outcome.runs == 0 && std::chrono::steady_clock::now() < until)
      ASSERT_TRUE(client.run_event_loop_once().ok());
    EXPECT_EQ(outcome.runs, 1);
    EXPECT_TRUE(outcome.has_buffers);
    for (int t = 0; t < 20; t++) ASSERT_TRUE(client.run_event_loop_once().ok());
    impatient.turns(20);
  }
}

// ---- cancel ----

TYPED_TEST(Calls, cancel__before_the_session_is_open_ends_that_call_only) {
  auto& client = *this->world.client;
  auto session = client.create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(session.ok());
  Outcome cancelled, left;
  auto id = this->world.call(*session, kEcho, "x", cancelled);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(this->world.call(*session, kEcho, "y", left).ok());
  ASSERT_TRUE(client.cancel(*id).ok());
  EXPECT_EQ(client.cancel(*id).code(), Code::kMisuse);
  EXPECT_EQ(cancelled.runs, 0) << "never inside cancel()";
  this->world.run_until([&] { return cancelled.runs == 1 && left.runs == 1; });
  EXPECT_EQ(cancelled.code(), Code::kCancelled);
  EXPECT_EQ(left.response, "y");
}

/// Both calls end within cancel(), and each has a place among those whose continuations will run.
TYPED_TEST(Calls, cancel__of_a_call_before_one_that_is_late) {
  auto& client = *this->world.client;
  const Session session = this->world.open({.window = 1});
  Outcome cancelled, late;
  const auto id = this->world.call(session, kEcho, "x", cancelled);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(this->world.call(session, kEcho, "y", late, 8, {.deadline = seconds(0)}).ok());
  ASSERT_TRUE(client.cancel(*id).ok());
  rpc::EndpointCore::of(client).check_invariants();
  this->world.run_until([&] { return cancelled.runs == 1 && late.runs == 1; });
  EXPECT_EQ(cancelled.code(), Code::kCancelled);
  EXPECT_EQ(late.code(), Code::kDeadline);
}

TYPED_TEST(Calls, cancel__queued_started_or_sent_call_ends_once) {
  const Session session = this->world.open({.window = 2});
  auto& client = *this->world.client;
  for (const int turns : {0, 1, 2, 10, 100}) {
    Outcome outcomes[6];
    std::vector<CallId> ids;
    for (int i = 0; i < 6; i++) {
      auto id = this->world.call(session, kKept, std::to_string(i), outcomes[i]);
      ASSERT_TRUE(id.ok());
      ids.push_back(*id);
    }
    this->world.turns(turns);
    for (int i : {5, 0, 3, 1, 2, 4}) {
      ASSERT_TRUE(client.cancel(ids[i]).ok()) << i;
      this->world.turns(turns);
    }
    for (auto& outcome : outcomes) {
      this->world.run_until([&] { return outcome.runs == 1; });
      EXPECT_EQ(outcome.code(), Code::kCancelled);
      EXPECT_TRUE(outcome.has_buffers);
    }
    this->expect_alive(session);
    for (auto& outcome : outcomes) EXPECT_EQ(outcome.runs, 1);
    this->world.run_until([&] {
      this->drop_cancelled();
      return this->kept.empty();
    });
  }
}

TYPED_TEST(Calls, cancel__long_message_at_any_stage_ends_once) {
  const Session session = this->world.open({.window = 2});
  auto& client = *this->world.client;
  const std::string text(600'000, 'm');
  for (int turns = 0; turns < 40; turns++) {
    Outcome outcome;
    auto id = this->world.call(session, kEcho, text, outcome, text.size());
    ASSERT_TRUE(id.ok());
    this->world.turns(turns);
    const bool has_ended = outcome.runs == 1;
    ASSERT_EQ(client.cancel(*id).code(), has_ended ? Code::kMisuse : Code::kOk);
    this->world.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.code(), has_ended ? Code::kOk : Code::kCancelled);
    if (outcome.status.ok()) {
      EXPECT_TRUE(outcome.response == text);
    }
  }
  this->expect_alive(session);
}

TYPED_TEST(Calls, cancel__inside_callbacks_ends_other_calls) {
  const Session session = this->world.open({.window = 3});
  auto& client = *this->world.client;
  Outcome victim, later;
  auto id = this->world.call(session, kKept, "victim", victim);
  ASSERT_TRUE(id.ok());
  auto other = this->world.call(session, kKept, "later", later);
  ASSERT_TRUE(other.ok());
  int runs = 0;
  auto own = std::make_shared<CallId>();
  auto third = client.enqueue_request(
      session, kEcho, message(client, "x"), client.alloc_msgbuf(8), [&, own, first = *id](Completion&) {
        runs++;
        EXPECT_EQ(client.cancel(*own).code(), Code::kMisuse) << "its own call has ended";
        EXPECT_TRUE(client.cancel(first).ok());
        EXPECT_EQ(victim.runs, 0) << "never inside cancel()";
      });
  ASSERT_TRUE(third.ok());
  *own = *third;
  ASSERT_TRUE(client.after(milliseconds(50), [&, second = *other] { EXPECT_TRUE(client.cancel(second).ok()); }).ok());
  this->world.run_until([&] { return victim.runs == 1 && later.runs == 1 && runs == 1; });
  EXPECT_EQ(victim.code(), Code::kCancelled);
  EXPECT_EQ(later.code(), Code::kCancelled);
  this->expect_alive(session);
}

TYPED_TEST(Calls, cancel__slots_come_back_many_times) {
  const Session session = this->world.open({.window = 1});
  for (int i = 0; i < 300; i++) {
    Outcome outcome;
    auto id = this->world.call(session, i % 2 == 0 ? kEcho : kKept, "x", outcome);
    ASSERT_TRUE(id.ok());
    this->world.turns(i % 4);
    const Status status = this->world.client->cancel(*id);
    ASSERT_TRUE(status.ok() || outcome.runs == 1);
    this->world.run_until([&] { return outcome.runs == 1; });
    this->drop_cancelled();
  }
  this->expect_alive(session);
}

// ---- Deadlines ----

TYPED_TEST(Calls, deadline__ends_queued_and_sent_calls) {
  const Session session = this->world.open({.window = 1});
  Outcome sent, queued, patient;
  ASSERT_TRUE(this->world.call(session, kKept, "sent", sent, 64, {.deadline = milliseconds(300)}).ok());
  ASSERT_TRUE(this->world.call(session, kKept, "queued", queued, 64, {.deadline = milliseconds(10)}).ok());
  ASSERT_TRUE(this->world.call(session, kEcho, "patient", patient).ok());
  this->world.run_until([&] { return sent.runs + queued.runs + patient.runs == 3; });
  EXPECT_EQ(sent.code(), Code::kDeadline);
  EXPECT_EQ(queued.code(), Code::kDeadline);
  EXPECT_EQ(patient.response, "patient");
  EXPECT_TRUE(sent.has_buffers && queued.has_buffers);
  EXPECT_EQ(text_of(queued.request.bytes()), "queued");
  EXPECT_EQ(this->kept.size(), 1u) << "the queued one never reached the server";
}

TYPED_TEST(Calls, deadline__ends_a_call_before_the_session_is_open) {
  auto& client = *this->world.client;
  auto session = client.create_session("tern://127.0.0.1:9", {.connect_timeout = seconds(100)});
  ASSERT_TRUE(session.ok());
  const Outcome outcome = this->world.ask(*session, kEcho, "x", 8, {.deadline = milliseconds(5)});
  EXPECT_EQ(outcome.code(), Code::kDeadline);
}

TYPED_TEST(Calls, deadline__already_passed_ends_the_call) {
  const Session session = this->world.open();
  for (const Duration deadline : {Duration(0), Duration(-5), Duration(1), Duration::min()}) {
    const Outcome outcome = this->world.ask(session, kEcho, "x", 8, {.deadline = deadline});
    EXPECT_EQ(outcome.code(), Code::kDeadline) << deadline.count();
  }
  EXPECT_EQ(this->world.ask(session, kEcho, "x", 8, {.deadline = std::chrono::hours(100'000)}).response, "x");
  EXPECT_EQ(this->world.ask(session, kEcho, "x", 8, {.deadline = Duration::max() - Duration(1)}).response, "x");
}

TYPED_TEST(Calls, deadline__of_a_call_made_in_a_continuation_ends_it) {
  const Session session = this->world.open();
  auto& client = *this->world.client;
  Outcome late;
  auto id = client.enqueue_request(session, kEcho, message(client, "x"), client.alloc_msgbuf(8), [&](Completion& done) {
    auto again = client.enqueue_request(session, kKept, std::move(done.request), std::move(done.response), late.then(),
                                        {.deadline = milliseconds(1)});
    EXPECT_TRUE(again.ok());
  });
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return late.runs == 1; });
  EXPECT_EQ(late.code(), Code::kDeadline);
}

TYPED_TEST(Calls, deadline__that_passes_while_a_long_request_arrives) {
  // More bytes than the client sends at once, and less than twice as many.
  const size_t packet_bytes = TypeParam::kName == "verbs" ? 4'072 : 1'448;
  const size_t bytes = std::is_same_v<TypeParam, Shm> ? 12 * 65'536 : 150 * packet_bytes;
  const Session session = this->world.open();
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  Outcome outcome;
  const Duration deadline = client.now() + seconds(1);
  ASSERT_TRUE(this->world.call(session, kEcho, std::string(bytes, 'd'), outcome, bytes, {.deadline = seconds(1)}).ok());
  ASSERT_TRUE(client.run_event_loop_once().ok());
  ASSERT_TRUE(server.run_event_loop(milliseconds(1)).ok());
  // The server counts from the arrival of the packet that has the remaining time.
  const Duration late = server.now() - (deadline - seconds(1));
  ASSERT_TRUE(client.run_event_loop(milliseconds(50)).ok());  // sends the rest
  if (client.now() >= deadline) GTEST_SKIP() << "a second was not enough for three turns";
  while (client.now() < deadline + late + milliseconds(10)) std::this_thread::yield();
  for (int i = 0; i < 100 && server.counters().refused_deadline + server.counters().requests_handled == 0; i++) {
    ASSERT_TRUE(server.run_event_loop(milliseconds(10)).ok());
  }
  EXPECT_EQ(server.counters().refused_deadline, 1u);
  EXPECT_EQ(server.counters().requests_handled, 0u);
  this->world.run_until([&] { return outcome.runs == 1; });
  EXPECT_EQ(outcome.code(), Code::kDeadline);
  this->expect_alive(session);
}

// ---- Ends of peers ----

TYPED_TEST(Calls, peer__closed_endpoint_resets_the_session) {
  const Session session = this->world.open({.window = 2});
  Outcome outcomes[5];
  for (auto& outcome : outcomes) ASSERT_TRUE(this->world.call(session, kKept, "x", outcome).ok());
  this->world.run_until([&] { return this->kept.size() == 2; });
  ASSERT_TRUE(this->world.server->close(seconds(0)).ok());
  for (auto& outcome : outcomes) {
    this->world.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.code(), Code::kSessionReset) << outcome.status.message();
    EXPECT_TRUE(outcome.has_buffers);
  }
  EXPECT_EQ(this->world.client->destroy_session(session).code(), Code::kSessionReset);
}

TYPED_TEST(Calls, peer__silence_ends_all_calls_as_unreachable) {
  NexusOptions nexus;
  nexus.liveness_timeout = milliseconds(100);
  World<TypeParam> impatient;
  ASSERT_NO_FATAL_FAILURE(impatient.make(nexus));
  const Session session = impatient.open({.window = 2});
  Outcome outcomes[4];
  for (auto& outcome : outcomes) ASSERT_TRUE(impatient.call(session, kEcho, "x", outcome).ok());
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (outcomes[3].runs == 0 && std::chrono::steady_clock::now() < until) {
    ASSERT_TRUE(impatient.client->run_event_loop_once().ok());
  }
  for (auto& outcome : outcomes) {
    EXPECT_EQ(outcome.runs, 1);
    EXPECT_EQ(outcome.code(), Code::kPeerUnreachable);
    EXPECT_TRUE(outcome.has_buffers);
  }
  EXPECT_FALSE(impatient.client->is_open(session));
}

TYPED_TEST(Calls, peer__is_dead_with_its_nexus) {
  NexusOptions nexus;
  nexus.liveness_timeout = milliseconds(200);
  World<TypeParam> impatient;
  ASSERT_NO_FATAL_FAILURE(impatient.make(nexus));
  const Session session = impatient.open();
  impatient.server.reset();
  impatient.server_nexus.reset();
  Outcome outcome;
  auto id = impatient.call(session, kEcho, "x", outcome);
  if (id.ok()) {
    impatient.run_until([&] { return outcome.runs == 1; });
    EXPECT_TRUE(outcome.code() == Code::kSessionReset || outcome.code() == Code::kPeerUnreachable);
  }
  EXPECT_FALSE(impatient.client->is_open(session));
}

TYPED_TEST(Calls, continuation__of_a_dead_session_makes_the_next_one) {
  const Session session = this->world.open({.window = 1});
  auto& client = *this->world.client;
  int runs = 0;
  Outcome last;
  for (int i = 0; i < 5; i++) {
    auto id =
        client.enqueue_request(session, kKept, message(client, "x"), client.alloc_msgbuf(8), [&](Completion& done) {
          EXPECT_EQ(done.status.code(), Code::kCancelled);
          auto next = client.create_session(this->world.server_nexus->uri());
          ASSERT_TRUE(next.ok());
          if (++runs == 5) {
            EXPECT_TRUE(
                client.enqueue_request(*next, kEcho, std::move(done.request), std::move(done.response), last.then())
                    .ok());
          } else {
            EXPECT_TRUE(client.destroy_session(*next).ok());
          }
        });
    ASSERT_TRUE(id.ok());
  }
  this->world.turns(20);
  ASSERT_TRUE(client.destroy_session(session).ok());
  this->world.run_until([&] { return last.runs == 1; });
  EXPECT_EQ(last.response, "x");
}

TYPED_TEST(Calls, rate__limit_slows_a_paced_session) {
  const Session session = this->world.open({.window = 8, .rate_bytes_per_sec = 1'000'000});
  auto& client = *this->world.client;
  const Duration begin = client.now();
  Outcome outcomes[20];
  const std::string text(1000, 'p');
  for (auto& outcome : outcomes) ASSERT_TRUE(this->world.call(session, kEcho, text, outcome, 1000).ok());
  for (auto& outcome : outcomes) {
    this->world.run_until([&] { return outcome.runs == 1; });
    EXPECT_TRUE(outcome.status.ok());
  }
  EXPECT_GE(client.now() - begin, milliseconds(18)) << "20 kB at 1 MB/s";
  // A call may end while it waits for its departure.
  for (auto& outcome : outcomes) {
    outcome = {};
    ASSERT_TRUE(this->world.call(session, kEcho, text, outcome, 1000).ok());
  }
  this->world.turns(2);
  ASSERT_TRUE(client.destroy_session(session).ok());
  for (auto& outcome : outcomes) this->world.run_until([&] { return outcome.runs == 1; });
  this->expect_alive(this->world.open());
}

}  // namespace
}  // namespace tern::rpc_test
