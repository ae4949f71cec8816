// The life of a Request: answered at once, later, from another place, twice, never, or after the end of its endpoint.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;
constexpr uint16_t kOther = 3;

/// A server that keeps every request of type kKept.
template <class T>
class RequestLife : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.server->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }
  /// Sends a request of type kKept, and returns when the server has it.
  void send(Session session, std::string_view text, Outcome& outcome, CallOptions options = {}) {
    const size_t before = kept.size();
    ASSERT_TRUE(world.call(session, kKept, text, outcome, 256, options).ok());
    world.run_until([&] { return kept.size() > before; });
  }
  void finish(Outcome& outcome) {
    world.run_until([&] { return outcome.runs > 0; });
    world.turns(5);
    EXPECT_EQ(outcome.runs, 1);
    EXPECT_TRUE(outcome.has_buffers);
  }

  std::vector<Request> kept;  // outlives the endpoints
  World<T> world;
};
TYPED_TEST_SUITE(RequestLife, Transports, TransportNames);

TYPED_TEST(RequestLife, kept__bytes_live_as_long_as_it) {
  const Session session = this->world.open();
  for (const size_t bytes : {0u, 1u, 32u, 500u, 1376u, 5000u, 100'000u}) {
    const std::string text(bytes, static_cast<char>('a' + bytes % 26));
    Outcome outcome;
    ASSERT_NO_FATAL_FAILURE(this->send(session, text, outcome));
    for (int i = 0; i < 5; i++)
      EXPECT_EQ(this->world.ask(session, kEcho, std::string(bytes, '!'), bytes).code(), Code::kOk);
    EXPECT_TRUE(text_of(this->kept.back().bytes()) == text) << bytes;
    reply(std::move(this->kept.back()), "late");
    this->finish(outcome);
    EXPECT_EQ(outcome.response, "late");
  }
}

/// A handler copies or takes its message and answers at once: nothing of its request is left for the next one.
TYPED_TEST(RequestLife, message__taken_by_a_handler_that_answers_in_place) {
  auto& server = *this->world.server;
  bool takes = false;
  std::vector<MsgBuf> taken;
  ASSERT_TRUE(server
                  .on_request(kOther,
                              [&](Request request) {
                                if (takes) {
                                  taken.push_back(request.take_message().value());
                                } else {
                                  EXPECT_FALSE(request.stable_bytes().empty());
                                }
                                auto room = request.response(4);
                                ASSERT_TRUE(room.ok());
                                std::memcpy(room->data(), "done", 4);
                                request.respond();
                              })
                  .ok());
  const Session session = this->world.open();
  for (const bool is_kept_next : {true, false}) {
    for (const bool is_taken : {true, false}) {
      takes = is_taken;
      for (int i = 0; i < 3; i++) {  // from the second one on the slot has a response buffer
        EXPECT_EQ(this->world.ask(session, kOther, "first").response, "done");
      }
      const std::string text(300, 'n');
      Outcome next;
      if (is_kept_next) {
        ASSERT_NO_FATAL_FAILURE(this->send(session, text, next));
        for (int i = 0; i < 200; i++) EXPECT_EQ(this->world.ask(session, kEcho, std::string(300, '!'), 300).runs, 1);
        EXPECT_EQ(text_of(this->kept.back().bytes()), text);
        reply(std::move(this->kept.back()), "late");
        this->finish(next);
      } else {
        takes = true;
        EXPECT_EQ(this->world.ask(session, kOther, text).response, "done");
        EXPECT_EQ(text_of(taken.back().bytes()), text);
      }
    }
  }
}

TYPED_TEST(RequestLife, response__given_out_in_the_handler_and_sent_from_elsewhere) {
  ASSERT_TRUE(this->world.server
                  ->on_request(kOther,
                               [this](Request request) {
                                 auto room = request.response(6);
                                 ASSERT_TRUE(room.ok());
                                 std::memcpy(room->data(), "answer", 6);
                                 this->kept.push_back(std::move(request));
                               })
                  .ok());
  const Session session = this->world.open();
  // Each twice, so that the slot has a response buffer.
  for (const bool is_elsewhere : {true, true, false, false}) {
    Outcome outcome;
    ASSERT_TRUE(this->world.call(session, kOther, "?", outcome, 256).ok());
    this->world.run_until([&] { return !this->kept.empty(); });
    auto answer = [this] { this->kept.back().respond(); };
    if (is_elsewhere) {
      std::thread(answer).join();
    } else {
      ASSERT_TRUE(this->world.server->after(milliseconds(0), answer).ok());
    }
    this->finish(outcome);
    EXPECT_EQ(outcome.response, "answer");
    this->kept.clear();
  }
}

TYPED_TEST(RequestLife, kept__answered_by_a_timer_in_another_order) {
  const Session session = this->world.open();
  Outcome first, second, third;
  this->send(session, "1", first);
  this->send(session, "2", second);
  this->send(session, "3", third);
  auto& server = *this->world.server;
  ASSERT_TRUE(server.after(milliseconds(3), [this] { reply(std::move(this->kept[0]), "one"); }).ok());
  ASSERT_TRUE(server.after(milliseconds(2), [this] { this->kept[1].fail(2); }).ok());
  ASSERT_TRUE(server.after(milliseconds(1), [this] { Request dropped = std::move(this->kept[2]); }).ok());
  this->finish(third);
  this->finish(second);
  this->finish(first);
  EXPECT_EQ(first.response, "one");
  EXPECT_EQ(second.code(), Code::kRefused);
  EXPECT_EQ(second.app_code, 2);
  EXPECT_EQ(third.code(), Code::kNoResponse);
}

TYPED_TEST(RequestLife, app_code__of_one_request_does_not_reach_another) {
  const Session session = this->world.open();
  auto& server = *this->world.server;
  for (int i = 0; i < 8; i++) {  // the next request may get any record
    Outcome failed, dropped;
    this->send(session, "1", failed);
    ASSERT_TRUE(server.after(milliseconds(1), [this] { this->kept.back().fail(4711); }).ok());
    this->finish(failed);
    EXPECT_EQ(failed.app_code, 4711);
    this->send(session, "2", dropped);
    ASSERT_TRUE(server.after(milliseconds(1), [this] { Request gone = std::move(this->kept.back()); }).ok());
    this->finish(dropped);
    EXPECT_EQ(dropped.code(), Code::kNoResponse);
    EXPECT_EQ(dropped.app_code, 0);
  }
}

TYPED_TEST(RequestLife, assignment__drops_the_one_that_was_there) {
  const Session session = this->world.open();
  Outcome first, second;
  this->send(session, "1", first);
  this->send(session, "2", second);
  this->kept[0] = std::move(this->kept[1]);
  this->finish(first);
  EXPECT_EQ(first.code(), Code::kNoResponse);
  reply(std::move(this->kept[0]), "two");
  this->finish(second);
  EXPECT_EQ(second.response, "two");
}

TYPED_TEST(RequestLife, response__a_second_call_replaces_the_first) {
  const Session session = this->world.open();
  for (const auto& [before, after] :
       {std::pair<size_t, size_t>{10, 20}, {20, 10}, {0, 5000}, {5000, 0}, {100'000, 3}, {3, 100'000}}) {
    Outcome outcome;
    this->send(session, "x", outcome);
    Request request = std::move(this->kept.back());
    outcome.room = MsgBuf();
    auto room = request.response(before);
    ASSERT_TRUE(room.ok());
    std::fill(room->begin(), room->end(), std::byte{'a'});
    room = request.response(after);
    ASSERT_TRUE(room.ok());
    EXPECT_EQ(room->size(), after);
    std::fill(room->begin(), room->end(), std::byte{'b'});
    EXPECT_EQ(request.response((size_t{1} << 30) + 1).status().code(), Code::kTooLarge);
    EXPECT_EQ(request.response(SIZE_MAX).status().code(), Code::kTooLarge);
    request.respond();
    this->finish(outcome);
    if (after <= 256) {
      EXPECT_EQ(outcome.response, std::string(after, 'b'));
    } else {
      EXPECT_EQ(outcome.code(), Code::kTooLarge);
    }
  }
}

/// Calls response() with each of these lengths in turn, in a handler or later, and answers.
template <class T>
void expect_last_answer_that_there_was_memory_for(bool is_kept, const std::vector<size_t>& lengths) {
  constexpr size_t kLimit = 4u << 20;
  SCOPED_TRACE(testing::Message() << (is_kept ? "kept, " : "") << testing::PrintToString(lengths));
  World<T> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {.memory_limit_bytes = kLimit}));
  std::optional<Request> kept;
  std::string last;
  const auto answer = [&](Request& request) {
    for (size_t i = 0; i < lengths.size(); i++) {
      auto room = request.response(lengths[i]);
      ASSERT_EQ(room.ok(), lengths[i] < kLimit);
      if (!room.ok()) continue;
      last = std::string(lengths[i], static_cast<char>('a' + i));
      std::memcpy(room->data(), last.data(), last.size());
    }
    request.respond();
  };
  ASSERT_TRUE(world.server
                  ->on_request(kKept,
                               [&](Request request) {
                                 if (!is_kept) return answer(request);
                                 kept = std::move(request);
                               })
                  .ok());
  const Session session = world.open();
  for (int again = 0; again < 3; again++) {
    Outcome outcome;
    ASSERT_TRUE(world.call(session, kKept, "x", outcome, 200'000).ok());
    if (is_kept) {
      world.run_until([&] { return kept.has_value(); });
      answer(*kept);
      kept.reset();
    }
    world.run_until([&] { return outcome.runs > 0; });
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_TRUE(outcome.response == last) << outcome.response.size() << " bytes in place of " << last.size();
  }
}

TEST(Request, response__a_call_that_fails_leaves_the_earlier_answer) {
  constexpr size_t kNoMemory = 64u << 20, kTooLarge = (size_t{1} << 30) + 1;
  for (const bool is_kept : {false, true}) {
    for (const std::vector<size_t>& lengths : {std::vector<size_t>{5, kNoMemory},
                                               {5, kTooLarge},
                                               {100'000, kNoMemory},
                                               {100'000, kTooLarge},
                                               {5, 100'000, kNoMemory},
                                               {5, 100'000, 7, kTooLarge},
                                               {kNoMemory, 5},
                                               {5, kNoMemory, 100'000, kTooLarge, 3}}) {
      expect_last_answer_that_there_was_memory_for<Shm>(is_kept, lengths);
      expect_last_answer_that_there_was_memory_for<Udp>(is_kept, lengths);
    }
  }
}

TYPED_TEST(RequestLife, respond__without_response_is_an_empty_answer) {
  const Session session = this->world.open();
  Outcome here, there;
  this->send(session, "x", here);
  this->kept.back().respond();
  this->finish(here);
  EXPECT_TRUE(here.status.ok()) << here.status.message();
  EXPECT_EQ(here.response, "");
  this->send(session, "x", there);
  std::thread([this] { this->kept.back().respond(); }).join();
  this->finish(there);
  EXPECT_TRUE(there.status.ok());
}

TYPED_TEST(RequestLife, respond__with_a_msgbuf_sends_its_bytes) {
  const Session session = this->world.open();
  auto& server = *this->world.server;
  for (const bool elsewhere : {false, true}) {
    auto run = [&](auto f) {
      if (elsewhere) {
        std::thread(f).join();
      } else {
        f();
      }
    };
    Outcome own, foreign, empty, staged;
    MsgBuf reply_own = message(server, "own"), reply_foreign = message(*this->world.client, "foreign"), nothing;
    this->send(session, "x", own);
    run([&] { this->kept.back().respond(std::move(reply_own)); });
    EXPECT_FALSE(reply_own);
    this->finish(own);
    EXPECT_EQ(own.response, "own");
    this->send(session, "x", foreign);
    run([&] { this->kept.back().respond(std::move(reply_foreign)); });
    this->finish(foreign);
    EXPECT_EQ(foreign.response, "foreign");
    this->send(session, "x", empty);
    run([&] { this->kept.back().respond(std::move(nothing)); });
    this->finish(empty);
    EXPECT_EQ(empty.code(), Code::kNoResponse);
    // The buffer of an earlier response() is returned.
    this->send(session, "x", staged);
    ASSERT_TRUE(this->kept.back().response(50).ok());
    MsgBuf last = message(server, "last word");
    run([&] { this->kept.back().respond(std::move(last)); });
    this->finish(staged);
    EXPECT_EQ(staged.response, "last word");
  }
}

TYPED_TEST(RequestLife, nested__a_handler_asks_another_server_and_answers_in_the_continuation) {
  auto& server = *this->world.server;
  auto backend = Rpc<TypeParam>::create(*this->world.client_nexus, at_end<typename TypeParam::Options>(1),
                                        small_memory({.endpoint_id = 5}));
  ASSERT_TRUE(backend.ok());
  ASSERT_TRUE((*backend)->on_request(kEcho, echo).ok());
  std::optional<Session> session_there;
  ASSERT_TRUE(server
                  .on_request(kOther,
                              [&](Request request) {
                                // A handler may create a session. Its calls wait until it is open.
                                if (!session_there) {
                                  auto made = server.create_session(this->world.client_nexus->uri() + "/5");
                                  ASSERT_TRUE(made.ok());
                                  session_there = *made;
                                }
                                MsgBuf query = message(server, std::string(text_of(request.bytes())) + "?");
                                auto id = server.enqueue_request(
                                    *session_there, kEcho, std::move(query), server.alloc_msgbuf(100),
                                    [request = std::move(request)](Completion& done) mutable {
                                      if (!done.status.ok()) return request.fail(1);
                                      request.respond(std::move(done.response));
                                    });
                                ASSERT_TRUE(id.ok());
                              })
                  .ok());
  const Session session = this->world.open();
  for (int i = 0; i < 20; i++) {
    Outcome outcome;
    ASSERT_TRUE(this->world.call(session, kOther, std::to_string(i), outcome).ok());
    this->world.run_until([&] {
      EXPECT_TRUE((*backend)->run_event_loop_once().ok());
      return outcome.runs == 1;
    });
    EXPECT_EQ(outcome.response, std::to_string(i) + "?");
  }
}

TYPED_TEST(RequestLife, nested__a_refused_call_drops_its_request) {
  auto& server = *this->world.server;
  ASSERT_TRUE(server
                  .on_request(kOther,
                              [&](Request request) {
                                auto id = server.enqueue_request(
                                    Session{}, kEcho, server.alloc_msgbuf(1), server.alloc_msgbuf(1),
                                    [request = std::move(request)](Completion&) { FAIL(); });
                                EXPECT_EQ(id.status().code(), Code::kSessionReset);
                              })
                  .ok());
  const Session session = this->world.open();
  EXPECT_EQ(this->world.ask(session, kOther, "x").code(), Code::kNoResponse);
}

// ---- Other threads ----

TYPED_TEST(RequestLife, bytes__from_another_thread_while_the_handler_runs) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  ASSERT_TRUE(this->world.server
                  ->on_request(kOther,
                               [&](Request request) {
                                 std::promise<void> seen;
                                 auto is_seen = seen.get_future();
                                 const size_t size = request.bytes().size();
                                 threads.emplace_back(
                                     [&wrong, size, request = std::move(request), seen = std::move(seen)]() mutable {
                                       const std::string expected(size, static_cast<char>('a' + size % 26));
                                       const auto bytes = request.bytes();  // the copy stays valid
                                       if (text_of(bytes) != expected) wrong++;
                                       seen.set_value();
                                       for (int i = 0; i < 100; i++) {
                                         if (text_of(bytes) != expected || request.bytes().data() != bytes.data())
                                           wrong++;
                                       }
                                       reply(std::move(request), "ok");
                                     });
                                 is_seen.wait();
                               })
                  .ok());
  const Session session = this->world.open();
  for (const size_t size : {0u, 1u, 32u, 33u, 700u, 20'000u}) {
    EXPECT_EQ(this->world.ask(session, kOther, std::string(size, static_cast<char>('a' + size % 26))).response, "ok")
        << size;
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TYPED_TEST(RequestLife, answered__from_another_thread_before_the_handler_returns) {
  ASSERT_TRUE(this->world.server
                  ->on_request(kOther,
                               [&](Request request) {
                                 std::thread([request = std::move(request)]() mutable {
                                   if (request.bytes().size() % 2 == 0) return;
                                   reply(std::move(request), "odd");
                                 }).join();
                               })
                  .ok());
  const Session session = this->world.open();
  for (int i = 0; i < 50; i++) {
    EXPECT_EQ(this->world.ask(session, kOther, "o").response, "odd");
    EXPECT_EQ(this->world.ask(session, kOther, "ev").code(), Code::kNoResponse);
  }
}

TYPED_TEST(RequestLife, answered__by_many_threads_while_the_loops_run) {
  constexpr int kCalls = 400;
  std::mutex mutex;
  std::vector<Request> requests;
  std::atomic<bool> is_over{false};
  std::vector<std::jthread> threads;
  ASSERT_TRUE(this->world.server
                  ->on_request(kOther,
                               [&](Request request) {
                                 std::lock_guard lock(mutex);
                                 requests.push_back(std::move(request));
                               })
                  .ok());
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      while (!is_over) {
        std::optional<Request> mine;
        {
          std::lock_guard lock(mutex);
          if (requests.empty()) continue;
          mine.emplace(std::move(requests.back()));
          requests.pop_back();
        }
        const std::string text(text_of(mine->bytes()));
        if (text.back() == '7') {
          mine->fail(7);
        } else if (text.back() != '8') {
          reply(std::move(*mine), text);
        }
      }
    });
  }
  const Session session = this->world.open({.window = 16});
  std::vector<std::unique_ptr<Outcome>> outcomes;
  for (int i = 0; i < kCalls; i++) {
    outcomes.push_back(std::make_unique<Outcome>());
    ASSERT_TRUE(this->world.call(session, kOther, std::to_string(i), *outcomes.back()).ok());
  }
  for (int i = 0; i < kCalls; i++) {
    Outcome& outcome = *outcomes[i];
    this->world.run_until([&] { return outcome.runs == 1; });
    const Code expected = i % 10 == 7 ? Code::kRefused : i % 10 == 8 ? Code::kNoResponse : Code::kOk;
    EXPECT_EQ(outcome.code(), expected) << i;
    if (expected == Code::kOk) {
      EXPECT_EQ(outcome.response, std::to_string(i));
    }
  }
  is_over = true;
}

// ---- Ends ----

TYPED_TEST(RequestLife, is_cancelled__after_cancel) {
  const Session session = this->world.open();
  Outcome outcome;
  auto id = this->world.call(session, kKept, "x", outcome);
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return !this->kept.empty(); });
  EXPECT_FALSE(this->kept[0].is_cancelled());
  EXPECT_EQ(this->kept[0].time_left(), Duration::max());
  ASSERT_TRUE(this->world.client->cancel(*id).ok());
  EXPECT_EQ(this->world.client->cancel(*id).code(), Code::kMisuse);
  this->finish(outcome);
  EXPECT_EQ(outcome.code(), Code::kCancelled);
  this->world.run_until([&] { return this->kept[0].is_cancelled(); });
  EXPECT_EQ(this->kept[0].time_left(), Duration(0));
  EXPECT_EQ(text_of(this->kept[0].bytes()), "x");
  reply(std::move(this->kept[0]), "for nobody");
  EXPECT_EQ(this->kept[0].time_left(), Duration(0));
  // The late answer does not affect the next request.
  Outcome next;
  this->kept.clear();
  this->send(session, "z", next);
  EXPECT_FALSE(this->kept[0].is_cancelled());
  EXPECT_EQ(text_of(this->kept[0].bytes()), "z");
  reply(std::move(this->kept[0]), "answer");
  this->finish(next);
  EXPECT_EQ(next.response, "answer");
}

TYPED_TEST(RequestLife, is_cancelled__after_the_deadline) {
  const Session session = this->world.open();
  Outcome outcome;
  ASSERT_NO_FATAL_FAILURE(this->send(session, "x", outcome, {.deadline = milliseconds(300)}));
  EXPECT_LE(this->kept[0].time_left(), milliseconds(303));
  this->finish(outcome);
  EXPECT_EQ(outcome.code(), Code::kDeadline);
  this->world.run_until([&] { return this->kept[0].is_cancelled(); });
  this->world.run_until([&] { return this->kept[0].time_left() <= seconds(0); });
  this->kept[0].fail(3);
  EXPECT_EQ(this->world.ask(session, kEcho, "y").response, "y");
}

TYPED_TEST(RequestLife, is_cancelled__after_the_end_of_the_session) {
  const Session session = this->world.open();
  Outcome outcome;
  this->send(session, "x", outcome);
  ASSERT_TRUE(this->world.client->destroy_session(session).ok());
  this->finish(outcome);
  EXPECT_EQ(outcome.code(), Code::kCancelled);
  this->world.run_until([&] { return this->kept[0].is_cancelled(); });
  std::thread([this] { reply(std::move(this->kept[0]), "for nobody"); }).join();
  this->world.turns(3);
}

TYPED_TEST(RequestLife, outlives_its_endpoint__answered_here_and_elsewhere) {
  const Session session = this->world.open();
  Outcome outcomes[5];
  for (int i = 0; i < 5; i++) this->send(session, std::to_string(i), outcomes[i]);
  ASSERT_TRUE(this->kept[1].response(10).ok());  // staged before the end
  this->world.server.reset();
  for (int i = 0; i < 5; i++) {
    EXPECT_EQ(text_of(this->kept[i].bytes()), std::to_string(i));
    EXPECT_TRUE(this->kept[i].is_cancelled());
    EXPECT_EQ(this->kept[i].time_left(), Duration(0));
  }
  (void)this->kept[0].response(10);
  this->kept[0].respond();
  this->kept[1].respond();
  this->kept[2].fail(1);
  std::thread([this] { this->kept[3].respond(message(*this->world.client, "no")); }).join();  // an empty MsgBuf
  std::thread([last = std::move(this->kept[4])] {}).join();
  for (auto& outcome : outcomes) {
    this->world.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.code(), Code::kSessionReset) << outcome.status.message();
  }
}

TYPED_TEST(RequestLife, outlives_its_endpoint__between_close_and_destruction) {
  const Session session = this->world.open();
  Outcome outcomes[3];
  for (int i = 0; i < 3; i++) this->send(session, std::to_string(i), outcomes[i]);
  ASSERT_TRUE(this->world.server->close(seconds(0)).ok());
  EXPECT_TRUE(this->kept[0].is_cancelled());
  reply(std::move(this->kept[0]), "owner");
  std::thread([this] { reply(std::move(this->kept[1]), "elsewhere"); }).join();
  this->world.server.reset();
  this->kept.clear();
  for (auto& outcome : outcomes) this->finish(outcome);
}

TYPED_TEST(RequestLife, outlives_its_endpoint__in_captures_destroyed_with_it) {
  auto& server = *this->world.server;
  ASSERT_TRUE(server
                  .on_request(kOther, [held = std::make_shared<std::vector<Request>>()](
                                          Request request) { held->push_back(std::move(request)); })
                  .ok());
  const Session session = this->world.open();
  Outcome in_handler, in_timer, in_post, in_continuation;
  ASSERT_TRUE(this->world.call(session, kOther, "x", in_handler).ok());
  this->send(session, "1", in_timer);
  this->send(session, "2", in_post);
  this->send(session, "3", in_continuation);
  this->world.run_until([&] { return server.counters().requests_handled == 4; });
  ASSERT_TRUE(server.after(seconds(100), [request = std::move(this->kept[0])] { FAIL(); }).ok());
  ASSERT_TRUE(server.post([request = std::move(this->kept[1])] { FAIL(); }).ok());
  auto self = server.create_session("tern://127.0.0.1:9");
  ASSERT_TRUE(self.ok());
  bool has_run = false;
  ASSERT_TRUE(server
                  .enqueue_request(*self, kEcho, server.alloc_msgbuf(1), server.alloc_msgbuf(1),
                                   [&has_run, request = std::move(this->kept[2])](Completion& done) mutable {
                                     has_run = true;
                                     EXPECT_EQ(done.status.code(), Code::kCancelled);
                                     request.respond(std::move(done.response));
                                   })
                  .ok());
  this->world.server.reset();
  EXPECT_TRUE(has_run);
  for (auto* outcome : {&in_handler, &in_timer, &in_post, &in_continuation}) {
    this->world.run_until([&] { return outcome->runs == 1; });
    EXPECT_FALSE(outcome->status.ok());
  }
}

}  // namespace
}  // namespace tern::rpc_test
