// Calls with deadlines in the common case (rpc/fast_path.h): one packet each way, a handler that answers at once.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kNoted = 2, kSlow = 3;
constexpr int kWindow = 8;
constexpr Duration kDeadline = seconds(50);
constexpr Duration kDeadlineMax = kDeadline + kDeadline / 32768;  ///< as it arrives, rounded up (clause 2.8)

template <class T>
class DeadlineCalls : public ::testing::Test {
 protected:
  /// The server's handler notes what it sees, and answers in place unless `keeps` is set.
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    const auto handler = [this](Request request) {
      sent.push_back(world.server->counters().packets_sent);
      left.push_back(request.time_left());
      if (keeps) {
        kept = std::move(request);
        return;
      }
      if (std::exchange(sleeps_once, false)) std::this_thread::sleep_for(milliseconds(200));
      auto room = request.response(4);
      ASSERT_TRUE(room.ok());
      std::memcpy(room->data(), "done", 4);
      request.respond();
    };
    ASSERT_TRUE(world.server->on_request(kNoted, handler).ok());
    const auto slow = [this](Request request) {
      slow_runs++;
      std::this_thread::sleep_for(milliseconds(20));
      reply(std::move(request), "done");
    };
    ASSERT_TRUE(world.server->on_request(kSlow, slow).ok());
    session = world.open();
    // The first request of each slot takes the general path. The second one finds the slot and the buffer for the
    // answer.
    for (int i = 0; i < 2; i++) ask_window({});
  }
  void ask_window(CallOptions options) {
    sent.clear();
    left.clear();
    std::vector<Outcome> outcomes(kWindow);
    for (Outcome& outcome : outcomes) ASSERT_TRUE(world.call(session, kNoted, "call", outcome, 16, options).ok());
    ASSERT_TRUE(world.client->run_event_loop_once().ok());
    for (Outcome& outcome : outcomes) {
      ASSERT_TRUE(world.run_until([&] { return outcome.runs > 0; }));
      EXPECT_EQ(outcome.response, "done") << outcome.status.message();
    }
    EXPECT_EQ(left.size(), static_cast<size_t>(kWindow));
  }

  World<T> world;
  Session session;
  int slow_runs = 0;
  bool keeps = false;
  bool sleeps_once = false;
  std::optional<Request> kept;
  std::vector<uint64_t> sent;  ///< packets that the server had sent when the handler of each request began
  std::vector<Duration> left;  ///< time left then
};

using DeadlineCallsOverShm = DeadlineCalls<Shm>;
using OverTwo = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(DeadlineCalls, OverTwo, TransportNames);

TEST_F(DeadlineCallsOverShm, an_answer_leaves_before_the_next_request_is_handled) {
  ask_window({.deadline = kDeadline});
  for (size_t i = 0; i < sent.size(); i++) EXPECT_EQ(sent[i], sent[0] + i);
}

TYPED_TEST(DeadlineCalls, handler_sees_the_time_left_of_its_own_request) {
  for (int i = 0; i < 3; i++) {
    this->ask_window({.deadline = kDeadline});
    for (const Duration time_left : this->left) {
      EXPECT_LE(time_left, kDeadlineMax);
      EXPECT_GT(time_left, kDeadline - kPatience / 2);
    }
    this->ask_window({});
    for (const Duration time_left : this->left) EXPECT_EQ(time_left, Duration::max());
  }
}

TYPED_TEST(DeadlineCalls, a_request_that_is_kept_keeps_its_deadline) {
  this->ask_window({.deadline = kDeadline});
  this->keeps = true;
  Outcome outcome, next;
  ASSERT_TRUE(this->world.call(this->session, kNoted, "kept", outcome, 16, {.deadline = kDeadline}).ok());
  ASSERT_TRUE(this->world.run_until([&] { return this->kept.has_value(); }));
  EXPECT_LE(this->kept->time_left(), kDeadlineMax);
  EXPECT_EQ(this->kept->text(), "kept");
  this->keeps = false;
  next = this->world.ask(this->session, kNoted, "next", 16);
  EXPECT_EQ(next.response, "done");
  EXPECT_EQ(this->left.back(), Duration::max());
  reply(*std::exchange(this->kept, std::nullopt), "late");
  ASSERT_TRUE(this->world.run_until([&] { return outcome.runs > 0; }));
  EXPECT_EQ(outcome.response, "late") << outcome.status.message();
}

TYPED_TEST(DeadlineCalls, requests_that_an_earlier_one_has_made_late_are_refused) {
  this->ask_window({.deadline = kDeadline});
  const EndpointCounters& counters = this->world.server->counters();
  const uint64_t refused_before = counters.refused_deadline;
  this->left.clear();
  this->sleeps_once = true;
  std::vector<Outcome> outcomes(kWindow);
  for (Outcome& outcome : outcomes) {
    ASSERT_TRUE(this->world.call(this->session, kNoted, "late", outcome, 16, {.deadline = milliseconds(100)}).ok());
  }
  ASSERT_TRUE(this->world.client->run_event_loop_once().ok());
  for (Outcome& outcome : outcomes) ASSERT_TRUE(this->world.run_until([&] { return outcome.runs > 0; }));
  ASSERT_TRUE(this->world.run_until(
      [&] { return this->left.size() + counters.refused_deadline - refused_before == static_cast<size_t>(kWindow); }));
  EXPECT_LT(this->left.size(), static_cast<size_t>(kWindow)) << "the handler ran for all of them";
}

TYPED_TEST(DeadlineCalls, a_request_with_less_time_left_than_its_handler_takes_is_refused) {
  const CallOptions enough{.deadline = kDeadline}, too_little{.deadline = milliseconds(2)};
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(this->world.ask(this->session, kSlow, "x", 16, enough).response, "done");
  }
  EXPECT_EQ(this->world.ask(this->session, kSlow, "x", 16, too_little).code(), Code::kDeadline);
  this->world.turns(100);
  EXPECT_EQ(this->slow_runs, 3);
  EXPECT_EQ(this->world.ask(this->session, kSlow, "x", 16).response, "done");
}

}  // namespace
}  // namespace tern::rpc_test
