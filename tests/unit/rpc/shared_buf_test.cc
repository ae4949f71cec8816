// Messages in several calls at once (SharedBuf), and received messages that are forwarded (Request::take_message).
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tern/coroutine.h>

#include "rpc/endpoint_core.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2, kTake = 3;

std::string text_of_size(size_t bytes) {
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

template <class T>
class SharedMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.make());
    ASSERT_TRUE(world_.server->on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }
  void answer_all() {
    for (Request& request : kept) reply(std::move(request), "answer");
    kept.clear();
  }
  Result<CallId> call(Session session, uint16_t type, const SharedBuf& shared, Outcome& outcome,
                      CallOptions options = {}) {
    return world_.client->enqueue_request(session, type, shared, world_.client->alloc_msgbuf(200'000), outcome.then(),
                                          options);
  }

  std::vector<Request> kept;
  World<T> world_;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(SharedMessages, ShmAndUdp, TransportNames);

/// Over shm, 5000 and 50'000 B are one packet by reference. Over UDP they are several packets.
const size_t kSizes[] = {0, 32, 5000, 50'000, 150'000};

TYPED_TEST(SharedMessages, calls_of_several_sessions_send_one_message) {
  auto& world = this->world_;
  std::vector<Session> sessions;
  for (int i = 0; i < 4; i++) sessions.push_back(world.open());
  for (const size_t bytes : kSizes) {
    const std::string text = text_of_size(bytes);
    SharedBuf shared(message(*world.client, text));
    EXPECT_EQ(text_of(shared.bytes()), text);
    std::vector<Outcome> outcomes(12);
    for (size_t i = 0; i < outcomes.size(); i++) {
      ASSERT_TRUE(this->call(sessions[i % sessions.size()], kEcho, shared, outcomes[i]).ok());
    }
    rpc::EndpointCore::of(*world.client).check_invariants();
    EXPECT_FALSE(shared.take()) << "calls have it";
    world.run_until([&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& o) { return o.runs == 1; }); });
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.response, text);
      EXPECT_FALSE(outcome.request) << "the message is not this call's";
    }
    MsgBuf home = shared.take();
    ASSERT_TRUE(home);
    EXPECT_FALSE(shared);
    EXPECT_EQ(text_of(home.bytes()), text);
    EXPECT_TRUE(home.resize(bytes));
  }
}

// Over shm the second server reads the message in the client's memory, under a lease.
TYPED_TEST(SharedMessages, late_server_reads_the_message_after_another_call_has_ended) {
  auto& world = this->world_;
  using Options = typename TypeParam::Options;
  auto late = Rpc<TypeParam>::create(*world.server_nexus, patient<Options>(), small_memory({.endpoint_id = 1})).value();
  ASSERT_TRUE(late->on_request(kEcho, echo).ok());
  const Session first = world.open();
  const Session second =
      world.client->create_session(world.server_nexus->uri() + "/1", {.connect_timeout = kPatience}).value();
  world.run_until([&] {
    EXPECT_TRUE(late->run_event_loop_once().ok());
    return world.client->is_open(second);
  });
  const std::string text = text_of_size(5000);
  const SharedBuf shared(message(*world.client, text));
  Outcome early, last;
  ASSERT_TRUE(this->call(second, kEcho, shared, last).ok());
  ASSERT_TRUE(this->call(first, kEcho, shared, early).ok());
  world.run_until([&] { return early.runs == 1; });
  world.run_until([&] {
    EXPECT_TRUE(late->run_event_loop_once().ok());
    return last.runs == 1;
  });
  EXPECT_EQ(last.response, text);
  EXPECT_EQ(late->counters().dropped_lease, 0u);
}

TYPED_TEST(SharedMessages, message_returns_in_the_last_continuation) {
  auto& world = this->world_;
  const Session session = world.open();
  SharedBuf shared(message(*world.client, text_of_size(5000)));
  int ended = 0;
  std::optional<int> home_after;
  const auto then = [&](Completion& done) {
    EXPECT_TRUE(done.status.ok());
    ended++;
    if (MsgBuf home = shared.take()) {
      std::fill(home.bytes().begin(), home.bytes().end(), std::byte{0xEE});
      home_after = ended;
    }
  };
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(world.client->enqueue_request(session, kEcho, shared, world.client->alloc_msgbuf(5000), then).ok());
  }
  world.run_until([&] { return ended == 3; });
  EXPECT_EQ(home_after, 3);
}

TYPED_TEST(SharedMessages, an_answered_call_leaves_the_message_to_one_that_waits) {
  auto& world = this->world_;
  const Session first = world.open(), second = world.open();
  const std::string text = text_of_size(100'000);
  Outcome answered, waits;
  {
    const SharedBuf shared(message(*world.client, text));
    ASSERT_TRUE(this->call(first, kEcho, shared, answered).ok());
    ASSERT_TRUE(this->call(second, kKept, shared, waits).ok());
  }  // from now on only the calls have copies
  world.run_until([&] { return answered.runs == 1 && this->kept.size() == 1; });
  EXPECT_EQ(text_of(this->kept[0].bytes()), text);
  EXPECT_EQ(waits.runs, 0);
  const size_t out = rpc::EndpointCore::of(*world.client).census().buffers_out;
  this->answer_all();
  world.run_until([&] { return waits.runs == 1; });
  EXPECT_EQ(waits.response, "answer");
  waits.room = MsgBuf();
  answered.room = MsgBuf();
  EXPECT_EQ(rpc::EndpointCore::of(*world.client).census().buffers_out, out - 3)
      << "the message and two rooms went back";
}

TYPED_TEST(SharedMessages, refused_and_cancelled_calls_return_the_message) {
  auto& world = this->world_;
  const Session session = world.open();
  SharedBuf shared(message(*world.client, "x"));
  Outcome refused, told, cancelled;
  EXPECT_EQ(this->call(Session(), kEcho, shared, refused).status().code(), Code::kSessionReset);
  EXPECT_EQ(refused.runs, 0);
  ASSERT_TRUE(this->call(Session(), kEcho, shared, told, {.refusal_runs_then = true}).ok());
  EXPECT_EQ(told.code(), Code::kSessionReset);
  EXPECT_FALSE(told.request);
  EXPECT_EQ(this->call(session, kEcho, SharedBuf(), refused).status().code(), Code::kMisuse);
  auto id = this->call(session, kKept, shared, cancelled);
  ASSERT_TRUE(id.ok());
  EXPECT_FALSE(shared.take());
  ASSERT_TRUE(world.client->cancel(*id).ok());
  world.run_until([&] { return cancelled.runs == 1; });
  EXPECT_EQ(cancelled.code(), Code::kCancelled);
  EXPECT_TRUE(shared.take());
}

TYPED_TEST(SharedMessages, calls_end_with_their_endpoint_and_copies_may_outlive_it) {
  auto& world = this->world_;
  const Session session = world.open();
  SharedBuf shared(message(*world.client, "still here"));
  Outcome outcome;
  ASSERT_TRUE(this->call(session, kKept, shared, outcome).ok());
  outcome.room = MsgBuf();
  world.client.reset();
  EXPECT_EQ(outcome.runs, 1);
  outcome.room = MsgBuf();
  std::thread([copy = std::move(shared)]() mutable {
    EXPECT_EQ(text_of(copy.bytes()), "still here");
    SharedBuf other = copy;
    copy = SharedBuf();
    EXPECT_TRUE(other.take());
  }).join();
}

TYPED_TEST(SharedMessages, coroutines_send_one_message_to_all_servers) {
  auto& world = this->world_;
  const Session session = world.open();
  SharedBuf shared(message(*world.client, text_of_size(3000)));
  int answers = 0;
  const auto ask = [&](Session to) -> Detached {
    Completion done = co_await world.client->call(to, kEcho, shared, world.client->alloc_msgbuf(3000));
    answers += done.status.ok() && !done.request && done.response.bytes().size() == 3000;
  };
  for (int i = 0; i < 5; i++) ask(session);
  world.run_until([&] { return answers == 5; });
  EXPECT_TRUE(shared.take());
  const auto refused = [&]() -> Detached {
    Completion done = co_await world.client->call(Session(), kEcho, shared, world.client->alloc_msgbuf(1));
    answers += done.status.code() == Code::kSessionReset;
  };
  refused();
  EXPECT_EQ(answers, 6);
}

// ---- Request::take_message ----

TYPED_TEST(SharedMessages, taken_request_is_the_answer) {
  auto& world = this->world_;
  ASSERT_TRUE(world.server
                  ->on_request(kTake,
                               [](Request request) {
                                 auto message = request.take_message();
                                 ASSERT_TRUE(message.ok());
                                 EXPECT_TRUE(request.bytes().empty());
                                 EXPECT_TRUE(request.stable_bytes().empty());
                                 request.respond(std::move(*message));
                                 EXPECT_EQ(request.take_message().status().code(), Code::kMisuse);
                               })
                  .ok());
  const Session session = world.open();
  for (const size_t bytes : kSizes) {
    const std::string text = text_of_size(bytes);
    const Outcome outcome = world.ask(session, kTake, text, 200'000);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.response, text);
  }
}

TYPED_TEST(SharedMessages, taken_request_outlives_its_call_and_is_forwarded) {
  auto& world = this->world_;
  ASSERT_TRUE(world.client->on_request(kEcho, echo).ok());
  std::vector<MsgBuf> taken;
  ASSERT_TRUE(world.server
                  ->on_request(kTake,
                               [&](Request request) {
                                 auto message = request.take_message();
                                 ASSERT_TRUE(message.ok());
                                 taken.push_back(std::move(*message));
                                 request.respond();
                               })
                  .ok());
  const Session session = world.open();
  auto back = world.server->create_session(world.client_nexus->uri(), {.connect_timeout = kPatience});
  ASSERT_TRUE(back.ok());
  for (const size_t bytes : kSizes) {
    const std::string text = text_of_size(bytes);
    EXPECT_TRUE(world.ask(session, kTake, text).status.ok());
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(text_of(std::as_const(taken[0]).bytes()), text);
    Outcome outcome;
    ASSERT_TRUE(
        world.server
            ->enqueue_request(*back, kEcho, std::move(taken[0]), world.server->alloc_msgbuf(200'000), outcome.then())
            .ok());
    world.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.response, text);
    taken.clear();
    rpc::EndpointCore::of(*world.server).check_invariants();
  }
}

TYPED_TEST(SharedMessages, kept_request_is_taken_in_another_thread) {
  auto& world = this->world_;
  const Session session = world.open();
  for (const size_t bytes : kSizes) {
    const std::string text = text_of_size(bytes);
    Outcome outcome;
    ASSERT_TRUE(world.call(session, kKept, text, outcome, 200'000).ok());
    world.run_until([&] { return this->kept.size() == 1; });
    std::thread([&] {
      auto message = this->kept[0].take_message();
      ASSERT_TRUE(message.ok());
      EXPECT_EQ(text_of(std::as_const(*message).bytes()), text);
      EXPECT_TRUE(this->kept[0].bytes().empty());
      this->kept[0].respond(std::move(*message));
    }).join();
    this->kept.clear();
    world.run_until([&] { return outcome.runs == 1; });
    EXPECT_EQ(outcome.response, text);
  }
}

TYPED_TEST(SharedMessages, taken_request_of_several_packets_is_not_copied) {
  auto& world = this->world_;
  const bool is_private = std::is_same_v<TypeParam, Shm>;  // peers cannot read the memory of the first one
  bool was_same = false;
  ASSERT_TRUE(world.server
                  ->on_request(kTake,
                               [&](Request request) {
                                 const void* const before = request.bytes().data();
                                 auto message = request.take_message();
                                 ASSERT_TRUE(message.ok());
                                 was_same = message->bytes().data() == before;
                                 request.respond();
                               })
                  .ok());
  const Session session = world.open();
  EXPECT_TRUE(world.ask(session, kTake, text_of_size(150'000)).status.ok());
  EXPECT_EQ(was_same, !is_private);
  for (const size_t bytes : {is_private ? 9'000 : 66'000, 150'000}) {
    EXPECT_TRUE(world.ask(session, kTake, text_of_size(bytes)).status.ok());
    EXPECT_TRUE(was_same) << bytes;
  }
  EXPECT_TRUE(world.ask(session, kTake, "one packet").status.ok());
  EXPECT_FALSE(was_same);
}

}  // namespace
}  // namespace tern::rpc_test
