// Over shm an answer leaves when its handler returns (RpcCore::try_answer()). This is before the next request is
// handled, and in order with the other answers of its session.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kNoted = 2;
constexpr int kWindow = 8;

/// Answers in place, because a Request that is moved takes the general path.
void answer(Request& request, std::string_view text) {
  auto room = request.response(text.size());
  ASSERT_TRUE(room.ok()) << room.status().message();
  std::memcpy(room->data(), text.data(), text.size());
  request.respond();
}
void answer_alike(Request& request) { answer(request, text_of(request.bytes())); }

class AnswersAtOnce : public ::testing::Test {
 protected:
  void make(RpcOptions client_options = {}, const Shm::Options& transport = {}) {
    ASSERT_NO_FATAL_FAILURE(world.make({}, {}, client_options, transport, transport));
    const auto handler = [this](Request request) { handle(request); };
    ASSERT_TRUE(world.server->on_request(kNoted, handler).ok());
    session = world.open();
    // The first request of each slot takes the general path. The second one finds the slot and the buffer for the
    // answer.
    for (int i = 0; i < 2; i++) ask_window();
  }
  /// Makes the client send a window of calls.
  void send_window(size_t bytes = 16) {
    outcomes = std::vector<Outcome>(kWindow);
    for (Outcome& outcome : outcomes) {
      const std::string text(bytes, static_cast<char>('a' + (&outcome - outcomes.data())));
      ASSERT_TRUE(world.call(session, kNoted, text, outcome, bytes).ok());
    }
    ASSERT_TRUE(world.client->run_event_loop_once().ok());
  }
  void finish_window(size_t bytes = 16) {
    for (Outcome& outcome : outcomes) {
      ASSERT_TRUE(world.run_until([&] { return outcome.runs > 0; }));
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.response, std::string(bytes, static_cast<char>('a' + (&outcome - outcomes.data()))));
    }
    world.turns(10);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.runs, 1);
  }
  void ask_window(size_t bytes = 16) {
    send_window(bytes);
    finish_window(bytes);
  }
  uint64_t packets_sent() const { return world.server->counters().packets_sent; }

  World<Shm> world;
  Session session;
  std::vector<Outcome> outcomes;
  std::function<void(Request&)> handle = answer_alike;
};

TEST_F(AnswersAtOnce, an_answer_leaves_before_the_next_request_is_handled) {
  ASSERT_NO_FATAL_FAILURE(make());
  std::vector<uint64_t> sent;
  handle = [&](Request& request) {
    sent.push_back(packets_sent());
    answer_alike(request);
  };
  for (const size_t bytes : {16, 900}) {  // one cell, several cells
    SCOPED_TRACE(bytes);
    for (int i = 0; i < 3; i++) {  // each slot has a buffer for the answer in the third round
      sent.clear();
      ask_window(bytes);
    }
    ASSERT_EQ(sent.size(), size_t{kWindow});
    for (size_t i = 0; i < sent.size(); i++) EXPECT_EQ(sent[i], sent[0] + i);
  }
}

TEST_F(AnswersAtOnce, answers_that_come_later_and_failures_are_not_overtaken_or_lost) {
  ASSERT_NO_FATAL_FAILURE(make());
  std::vector<Request> kept;
  int handled = 0;
  handle = [&](Request& request) {
    const int number = handled++ % kWindow;
    if (number % 3 == 0) return kept.push_back(std::move(request));  // the third handler from here answers it
    answer_alike(request);
    if (number % 3 == 2) {
      answer_alike(kept.back());
      kept.pop_back();
    }
  };
  for (int i = 0; i < 3; i++) {
    send_window();
    world.run_until([&] { return handled == (i + 1) * kWindow; });
    for (Request& request : kept) answer_alike(request);
    kept.clear();
    finish_window();
  }
  handled = 0;
  handle = [&](Request& request) { handled++ % 2 == 0 ? request.fail(7) : answer_alike(request); };
  send_window();
  world.run_until([&] { return handled == kWindow; });
  for (Outcome& outcome : outcomes) world.run_until([&] { return outcome.runs > 0; });
  for (int i = 0; i < kWindow; i++) EXPECT_EQ(outcomes[i].code(), i % 2 == 0 ? Code::kRefused : Code::kOk) << i;
}

/// Answers in one cell, in several cells, by reference and in several packets, and back again, so that the slots'
/// buffers grow and shrink.
TEST_F(AnswersAtOnce, answers_of_any_size_arrive_whole) {
  ASSERT_NO_FATAL_FAILURE(make());
  for (const size_t bytes : {1, 32, 33, 900, 1000, 8000, 60'000, 200'000, 31, 65'536, 5}) {
    SCOPED_TRACE(bytes);
    for (int i = 0; i < 3; i++) ask_window(bytes);
  }
}

/// An answer that does not fit into the ring leaves later, whole and once.
TEST_F(AnswersAtOnce, answers_beyond_a_full_ring_leave_later) {
  Shm::Options transport;
  transport.ring_cells = 256;
  ASSERT_NO_FATAL_FAILURE(make({}, transport));
  std::vector<Session> sessions;
  for (int i = 0; i < 6; i++) sessions.push_back(world.open());
  handle = [](Request& request) { answer(request, std::string(900, 'r')); };
  for (int round = 0; round < 4; round++) {
    std::vector<Outcome> more(sessions.size() * kWindow);
    for (size_t i = 0; i < more.size(); i++) {
      ASSERT_TRUE(world.call(sessions[i % sessions.size()], kNoted, "?", more[i], 1024).ok());
    }
    ASSERT_TRUE(world.client->run_event_loop_once().ok());
    for (int i = 0; i < 20; i++) ASSERT_TRUE(world.server->run_event_loop_once().ok());
    EXPECT_GT(world.server->counters().transport_full, 0u) << "the ring was never full";
    world.run_until([&] { return std::all_of(more.begin(), more.end(), [](auto& done) { return done.runs > 0; }); });
    for (const Outcome& outcome : more) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.response, std::string(900, 'r'));
    }
  }
}

/// The client sleeps when the answer leaves, and no other packet follows it.
TEST_F(AnswersAtOnce, a_sleeping_client_is_woken) {
  ASSERT_NO_FATAL_FAILURE(make({.wait = Wait::kBlock}));
  auto descriptor = world.client->descriptor();  // from now on the client sleeps after an iteration without work
  ASSERT_TRUE(descriptor.ok());
  const auto is_awake = [&] {
    pollfd waits = {*descriptor, POLLIN, 0};
    return poll(&waits, 1, 0) == 1;
  };
  bool is_handled = false;
  handle = [&](Request& request) {
    is_handled = true;
    answer_alike(request);
  };
  Outcome outcome;
  ASSERT_TRUE(world.call(session, kNoted, "?", outcome).ok());
  do {
    ASSERT_TRUE(world.client->run_event_loop_once().ok());
  } while (is_awake());
  while (!is_handled) ASSERT_TRUE(world.server->run_event_loop_once().ok());
  EXPECT_TRUE(is_awake()) << "nobody has woken the client";
  world.run_until([&] { return outcome.runs > 0; });
}

/// The handler destroys a session to the peer of its request before it answers.
TEST_F(AnswersAtOnce, handler_may_end_the_session_of_its_request) {
  ASSERT_NO_FATAL_FAILURE(make());
  for (int i = 0; i < 20; i++) {
    auto back = world.server->create_session(world.client_nexus->uri());
    ASSERT_TRUE(back.ok()) << back.status().message();
    world.run_until([&] { return world.server->is_open(*back); });
    handle = [&](Request& request) {
      EXPECT_TRUE(world.server->destroy_session(*back).ok());
      handle = answer_alike;
      answer_alike(request);
    };
    ask_window();
  }
}

}  // namespace
}  // namespace tern::rpc_test
