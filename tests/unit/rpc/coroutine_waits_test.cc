// The other waits of coroutines: for time, for sessions, and for each other. All waits end with the endpoint.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tern/coroutine.h>

#include "unit/rpc/owned_coroutine.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;

Detached begin_sleep(Endpoint& endpoint, Duration delay, std::optional<Status>& out) {
  out = co_await endpoint.sleep(delay);
}
Detached begin_open(Endpoint& endpoint, Session session, std::optional<Status>& out) {
  out = co_await endpoint.opened(session);
}
Task<Completion> ask(Endpoint& endpoint, Session session, uint16_t type, std::string text) {
  co_return co_await endpoint.call(session, type, message(endpoint, text), endpoint.alloc_msgbuf(64));
}

template <class T>
class CoroutineWaits : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.server->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }
  Session begin(std::string_view path = "") {
    return world.client->create_session(world.server_nexus->uri() + std::string(path), {.connect_timeout = kPatience})
        .value();
  }

  std::vector<Request> kept;
  World<T> world;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(CoroutineWaits, ShmAndUdp, TransportNames);

TYPED_TEST(CoroutineWaits, sleep__ends_when_due) {
  auto& client = *this->world.client;
  std::optional<Status> slept;
  const Duration due = client.now() + milliseconds(2);
  begin_sleep(client, milliseconds(2), slept);
  EXPECT_FALSE(slept.has_value());
  this->world.run_until([&] { return slept.has_value(); });
  EXPECT_TRUE(slept->ok());
  EXPECT_GE(client.now(), due);
}

TYPED_TEST(CoroutineWaits, sleep__ends_with_its_endpoint) {
  std::optional<Status> slept, in_vain;
  auto& client = *this->world.client;
  begin_sleep(client, seconds(1000), slept);
  EXPECT_TRUE(client.close(milliseconds(0)).ok());
  ASSERT_TRUE(slept.has_value());
  EXPECT_EQ(slept->code(), Code::kCancelled);
  begin_sleep(client, seconds(0), in_vain);
  ASSERT_TRUE(in_vain.has_value()) << "a refused one does not suspend";
  EXPECT_EQ(in_vain->code(), Code::kSessionReset);
}

TYPED_TEST(CoroutineWaits, sleep__many_end_with_the_destruction_of_the_endpoint_and_may_try_again) {
  int ended = 0;
  for (int i = 0; i < 50; i++) {
    [](Endpoint& endpoint, int seconds_long, int& count) -> Detached {
      const Status first = co_await endpoint.sleep(seconds(seconds_long));
      EXPECT_EQ(first.code(), Code::kCancelled);
      const Status second = co_await endpoint.sleep(seconds(seconds_long));
      EXPECT_EQ(second.code(), Code::kSessionReset);
      count++;
    }(*this->world.client, 100 + i % 7, ended);
  }
  this->world.client.reset();
  EXPECT_EQ(ended, 50);
}

TYPED_TEST(CoroutineWaits, sleep__of_another_thread_is_refused) {
  std::optional<Status> slept;
  std::thread([&] { begin_sleep(*this->world.client, seconds(0), slept); }).join();
  EXPECT_EQ(slept->code(), Code::kWrongThread);
}

TYPED_TEST(CoroutineWaits, frame_may_be_destroyed_while_it_sleeps_or_waits_for_a_session) {
  auto& client = *this->world.client;
  const Session session = this->begin();
  bool has_gone_on = false;
  auto sleeps = [](Endpoint& endpoint, bool& gone_on) -> Owned {
    (void)co_await endpoint.sleep(milliseconds(1));
    gone_on = true;
  }(client, has_gone_on);
  std::vector<Owned> waits;
  for (int i = 0; i < 3; i++) {
    waits.push_back([](Endpoint& endpoint, Session to, bool& gone_on) -> Owned {
      (void)co_await endpoint.opened(to);
      gone_on = true;
    }(client, session, has_gone_on));
  }
  std::optional<Status> open, slept;
  begin_open(client, session, open);
  begin_sleep(client, milliseconds(2), slept);
  sleeps.frame.destroy();
  for (const size_t i : {1u, 2u, 0u}) waits[i].frame.destroy();
  this->world.run_until([&] { return open.has_value() && slept.has_value(); });
  EXPECT_TRUE(open->ok());
  EXPECT_FALSE(has_gone_on);
}

// The endpoint refuses to cancel the timer, which must not resume the coroutine later.
TYPED_TEST(CoroutineWaits, frame_may_be_destroyed_in_another_thread_while_the_loop_does_not_run) {
  auto& client = *this->world.client;
  bool has_gone_on = false;
  const auto begin = [&] {
    return [](Endpoint& endpoint, bool& gone_on) -> Owned {
      (void)co_await endpoint.sleep(milliseconds(1));
      gone_on = true;
    }(client, has_gone_on);
  };
  Owned first = begin(), second = begin();
  std::thread([&] { first.frame.destroy(); }).join();
  std::optional<Status> slept;
  begin_sleep(client, milliseconds(2), slept);
  this->world.run_until([&] { return slept.has_value(); });
  EXPECT_TRUE(std::exchange(has_gone_on, false)) << "the second one";
  second.frame.destroy();
  Owned third = begin();
  std::thread([&] { third.frame.destroy(); }).join();
  this->world.client.reset();
  EXPECT_FALSE(has_gone_on);
}

TYPED_TEST(CoroutineWaits, opened__goes_on_when_the_session_is_open) {
  auto& client = *this->world.client;
  const Session session = this->begin();
  std::optional<Status> first, second, third;
  begin_open(client, session, first);
  begin_open(client, session, second);
  EXPECT_FALSE(first.has_value());
  this->world.run_until([&] { return first.has_value() && second.has_value(); });
  EXPECT_TRUE(first->ok() && second->ok());
  EXPECT_TRUE(client.is_open(session));
  begin_open(client, session, third);
  EXPECT_TRUE(third.has_value() && third->ok()) << "it is open already";
}

TYPED_TEST(CoroutineWaits, opened__of_a_failed_session_has_the_reason) {
  auto& client = *this->world.client;
  std::optional<Status> refused, destroyed, never, closed;
  begin_open(client, this->begin("/77"), refused);
  const Session given_up = this->begin();
  begin_open(client, given_up, destroyed);
  EXPECT_TRUE(client.destroy_session(given_up).ok());
  begin_open(client, Session(), never);
  ASSERT_TRUE(never.has_value());
  EXPECT_EQ(never->code(), Code::kSessionReset);
  this->world.run_until([&] { return refused.has_value() && destroyed.has_value(); });
  EXPECT_EQ(refused->code(), Code::kRefused);
  EXPECT_EQ(destroyed->code(), Code::kCancelled);
  begin_open(client, this->begin(), closed);
  EXPECT_TRUE(client.close(milliseconds(0)).ok());
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->code(), Code::kCancelled);
}

TYPED_TEST(CoroutineWaits, when_all__of_calls_and_a_sleep_gives_all_results) {
  auto& client = *this->world.client;
  std::string answers;
  [](Endpoint& endpoint, Session session, std::string& out) -> Detached {
    const auto pause = [](Endpoint& on) -> Task<Status> { co_return co_await on.sleep(milliseconds(1)); };
    auto a = ask(endpoint, session, kEcho, "a");
    auto b = ask(endpoint, session, kEcho, "b");
    auto time = pause(endpoint);
    auto [first, second, slept] = co_await when_all(a, b, time);
    EXPECT_TRUE(slept.ok());
    out = std::string(text_of(first->response.bytes())) + std::string(text_of(second->response.bytes()));
  }(client, this->world.open(), answers);
  EXPECT_EQ(answers, "");
  this->world.run_until([&] { return !answers.empty(); });
  EXPECT_EQ(answers, "ab");
}

TYPED_TEST(CoroutineWaits, quorum__of_calls_leaves_the_slow_one_behind) {
  auto& client = *this->world.client;
  int has_majority = -1;
  [](Endpoint& endpoint, Session session, int& out) -> Detached {
    std::vector<Task<Completion>> replicas;
    for (const uint16_t type : {kEcho, kKept, kEcho}) replicas.push_back(ask(endpoint, session, type, "x"));
    out = co_await quorum(replicas, 2);
  }(client, this->world.open(), has_majority);
  this->world.run_until([&] { return has_majority != -1; });
  EXPECT_EQ(has_majority, 1);
  this->world.run_until([&] { return !this->kept.empty(); });
  EXPECT_EQ(client.counters().calls_completed, 2u);
  reply(std::move(this->kept.back()), "late");
  this->world.run_until([&] { return client.counters().calls_completed == 3u; });
}

TYPED_TEST(CoroutineWaits, quorum__ends_with_its_endpoint) {
  auto& client = *this->world.client;
  int has_majority = -1;
  [](Endpoint& endpoint, Session session, int& out) -> Detached {
    std::vector<Task<Completion>> replicas;
    for (int i = 0; i < 3; i++) replicas.push_back(ask(endpoint, session, kKept, "x"));
    out = co_await quorum(replicas, 2);
  }(client, this->world.open(), has_majority);
  this->world.run_until([&] { return this->kept.size() == 3; });
  EXPECT_TRUE(client.close(milliseconds(0)).ok());
  EXPECT_EQ(has_majority, 0);
}

}  // namespace
}  // namespace tern::rpc_test
