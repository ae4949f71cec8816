// Received messages that are sent on (the way through a proxy), and messages that answer several requests at once
// (Request::respond with a SharedBuf).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rpc/endpoint_core.h"
#include "unit/rpc/rpc_world.h"
#include "unit/transport/held.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kProxy = 2, kShared = 3, kText = 4;

std::string text_of_size(size_t bytes) {
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

size_t buffers_out(Endpoint& endpoint) { return rpc::EndpointCore::of(endpoint).census().buffers_out; }

// ---- A proxy ----

/// The server is a proxy, whose backend is the client's own endpoint.
template <class T>
class Proxy : public ::testing::Test {
 protected:
  /// Runs one message through the proxy. `before`, `after`: addresses of the message and of its response as they
  /// arrived at the proxy and as they left.
  struct Way {
    const void* request_arrived = nullptr;
    const void* request_left = nullptr;
    const void* response_arrived = nullptr;
    const void* response_left = nullptr;
  };

  void make(RpcOptions options) {
    ASSERT_NO_FATAL_FAILURE(world_.make({}, options, options));
    ASSERT_TRUE(world_.client->on_request(kEcho, echo).ok());
    ASSERT_TRUE(world_.server->on_request(kProxy, [this](Request request) { forward(std::move(request)); }).ok());
    session = world_.open();
    auto made = world_.server->create_session(world_.client_nexus->uri(), {.connect_timeout = kPatience});
    ASSERT_TRUE(made.ok()) << made.status().message();
    backend = *made;
    world_.run_until([&] { return world_.server->is_open(backend); });
  }
  void forward(Request request) {
    way.request_arrived = request.bytes().data();
    auto message = request.take_message();
    ASSERT_TRUE(message.ok()) << message.status().message();
    MsgBuf room = world_.server->alloc_msgbuf(message->bytes().size());
    ASSERT_TRUE(room);
    way.response_arrived = room.bytes().data();
    auto then = [this, request = std::move(request)](Completion& done) mutable {
      if (!done.status.ok()) return request.fail(1);
      way.request_left = done.request.bytes().data();
      done.request = MsgBuf();
      request.respond(std::move(done.response));
      // The server sends responses from the buffers of its slots.
      rpc::EndpointCore::of(*world_.server).server_sessions().for_each_buffer([this](const detail::Buffer* buffer) {
        if (buffer != nullptr && buffer->data() == way.response_arrived) way.response_left = buffer->data();
      });
    };
    auto id = world_.server->enqueue_request(backend, kEcho, std::move(*message), std::move(room), std::move(then));
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  void expect_no_copy(size_t bytes) {
    way = {};
    const std::string text = text_of_size(bytes);
    const Outcome outcome = world_.ask(session, kProxy, text, bytes);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.response, text);
    EXPECT_NE(way.request_arrived, nullptr);
    EXPECT_EQ(way.request_left, way.request_arrived) << bytes;
    EXPECT_EQ(way.response_left, way.response_arrived) << bytes;
  }

  World<T> world_;
  Session session, backend;
  Way way;
};
TYPED_TEST_SUITE(Proxy, Transports, TransportNames);

/// Of several packets, which are of up to 64 kB where the path carries them; over shm also of one that is not copied.
template <class T>
std::vector<size_t> long_sizes() {
  std::vector<size_t> sizes = {66'000, 150'000, 2'000'000};
  if (std::is_same_v<T, Shm>) sizes.insert(sizes.begin(), {8'193, 20'000});
  return sizes;
}

TYPED_TEST(Proxy, messages_of_several_packets_pass_without_a_copy) {
  ASSERT_NO_FATAL_FAILURE(this->make({}));
  // Over shm, the first message of a type arrives in memory that peers cannot read.
  if (std::is_same_v<TypeParam, Shm>) {
    EXPECT_EQ(this->world_.ask(this->session, kProxy, text_of_size(9000), 9000).code(), Code::kOk);
  }
  for (const size_t bytes : long_sizes<TypeParam>()) this->expect_no_copy(bytes);
  rpc::EndpointCore::of(*this->world_.server).check_invariants();
}

TYPED_TEST(Proxy, messages_of_several_packets_pass_without_a_copy_within_a_memory_limit) {
  ASSERT_NO_FATAL_FAILURE(this->make({.memory_limit_bytes = 64u << 20}));
  for (const size_t bytes : long_sizes<TypeParam>()) this->expect_no_copy(bytes);
  rpc::EndpointCore::of(*this->world_.server).check_invariants();
}

/// A message that is text can be read as text wherever it is.
TYPED_TEST(Proxy, text_is_the_bytes_of_a_message) {
  ASSERT_NO_FATAL_FAILURE(this->world_.make());
  std::string in_request, in_copy;
  ASSERT_TRUE(this->world_.server
                  ->on_request(kText,
                               [&](Request request) {
                                 in_request = request.text();
                                 SharedBuf shared(request.take_message().value());
                                 in_copy = shared.text();
                                 request.respond(shared);
                               })
                  .ok());
  Outcome outcome;
  ASSERT_TRUE(this->world_.call(this->world_.open(), kText, "hello", outcome).ok());
  this->world_.run_until([&] { return outcome.runs == 1; });
  EXPECT_EQ(in_request, "hello");
  EXPECT_EQ(in_copy, "hello");
  EXPECT_EQ(outcome.room.text(), "hello");
  EXPECT_EQ(MsgBuf().text(), "");
  EXPECT_EQ(SharedBuf().text(), "");
}

// ---- Shared responses ----

template <class T>
class SharedResponse : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.make({}, {}, {.report_delay = milliseconds(1)}));
    ASSERT_TRUE(world_.server->on_request(kShared, [this](Request request) { request.respond(shared); }).ok());
  }
  SharedBuf shared_message(std::string_view text) { return SharedBuf(message(*world_.server, text)); }

  World<T> world_;
  SharedBuf shared;
};
TYPED_TEST_SUITE(SharedResponse, Transports, TransportNames);

TYPED_TEST(SharedResponse, answers_requests_of_several_sessions) {
  auto& world = this->world_;
  std::vector<Session> sessions;
  for (int i = 0; i < 3; i++) sessions.push_back(world.open());
  for (const size_t bytes : {0, 32, 5'000, 150'000}) {
    const std::string text = text_of_size(bytes);
    this->shared = this->shared_message(text);
    const size_t out = buffers_out(*world.server);
    std::vector<Outcome> outcomes(12);
    for (size_t i = 0; i < outcomes.size(); i++) {
      ASSERT_TRUE(world.call(sessions[i % sessions.size()], kShared, "get", outcomes[i], 200'000).ok());
    }
    world.run_until([&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& o) { return o.runs == 1; }); });
    rpc::EndpointCore::of(*world.server).check_invariants();
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
      EXPECT_EQ(outcome.response, text);
    }
    EXPECT_LE(buffers_out(*world.server), out) << "no response has memory of its own";
    EXPECT_EQ(rpc::EndpointCore::of(*world.server).census().response_bytes, 0u);
    MsgBuf home;  // the clients report the responses soon
    world.run_until([&] { return static_cast<bool>(home = this->shared.take()); });
    EXPECT_EQ(text_of(home.bytes()), text);
  }
}

TYPED_TEST(SharedResponse, is_not_written_by_the_next_answer_on_the_slot) {
  auto& world = this->world_;
  ASSERT_TRUE(world.server
                  ->on_request(4,
                               [](Request request) {
                                 auto room = request.response(3);
                                 ASSERT_TRUE(room.ok());
                                 std::memcpy(room->data(), "new", 3);
                                 request.respond();
                               })
                  .ok());
  ASSERT_TRUE(world.server->on_request(5, [](Request request) { request.respond(); }).ok());
  const Session session = world.open({.window = 1});
  const std::string text = text_of_size(500);
  this->shared = this->shared_message(text);
  for (const uint16_t next : {uint16_t{4}, uint16_t{5}, kEcho}) {
    EXPECT_EQ(world.ask(session, kShared, "get").status.code(), Code::kTooLarge);
    EXPECT_EQ(world.ask(session, kShared, "get", 500).response, text);
    EXPECT_TRUE(world.ask(session, next, "").status.ok());
    EXPECT_EQ(text_of(this->shared.bytes()), text);
  }
  MsgBuf home;  // the slot has another response
  world.run_until([&] { return static_cast<bool>(home = this->shared.take()); });
}

TYPED_TEST(SharedResponse, is_free_when_the_next_request_on_its_slot_waits) {
  auto& world = this->world_;
  std::vector<Request> kept;
  ASSERT_TRUE(world.server->on_request(4, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  const Session session = world.open({.window = 1});
  const std::string text = text_of_size(500);
  for (const size_t bytes : {10, 5000, 10}) {
    this->shared = this->shared_message(text);
    EXPECT_EQ(world.ask(session, kShared, "get", 500).response, text);
    Outcome outcome;
    ASSERT_TRUE(world.call(session, 4, text_of_size(bytes), outcome, 500).ok());
    world.run_until([&] { return kept.size() == 1; });
    MsgBuf home;
    world.run_until([&] { return static_cast<bool>(home = this->shared.take()); });
    ASSERT_TRUE(kept[0].response(3).ok());
    kept[0].respond();
    kept.clear();
    world.run_until([&] { return outcome.runs == 1; });
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_EQ(text_of(home.bytes()), text);
  }
}

TYPED_TEST(SharedResponse, answers_from_another_thread) {
  auto& world = this->world_;
  std::vector<Request> kept;
  ASSERT_TRUE(world.server->on_request(4, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  const Session session = world.open();
  const std::string text = text_of_size(5000);
  this->shared = this->shared_message(text);
  std::vector<Outcome> outcomes(4);
  for (Outcome& outcome : outcomes) ASSERT_TRUE(world.call(session, 4, "get", outcome, 5000).ok());
  world.run_until([&] { return kept.size() == outcomes.size(); });
  std::thread([kept = std::move(kept), copy = this->shared]() mutable {
    for (Request& request : kept) {
      EXPECT_TRUE(request.response(10).ok());  // is given up for the shared one
      request.respond(copy);
      request.respond(copy);  // does nothing: it was answered
    }
  }).join();
  world.run_until([&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& o) { return o.runs == 1; }); });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.response, text);
}

TYPED_TEST(SharedResponse, of_another_endpoint_is_copied) {
  auto& world = this->world_;
  const Session session = world.open();
  const std::string text = text_of_size(5000);
  this->shared = SharedBuf(message(*world.client, text));
  EXPECT_EQ(world.ask(session, kShared, "get", 5000).response, text);
  EXPECT_TRUE(this->shared.take());
}

TYPED_TEST(SharedResponse, that_is_empty_drops_the_request) {
  const Session session = this->world_.open();
  EXPECT_EQ(this->world_.ask(session, kShared, "get").status.code(), Code::kNoResponse);
}

TYPED_TEST(SharedResponse, outlives_sessions_and_endpoint) {
  auto& world = this->world_;
  std::vector<Request> kept;
  ASSERT_TRUE(world.server->on_request(4, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  const Session session = world.open(), other = world.open();
  const std::string text = text_of_size(5000);
  this->shared = this->shared_message(text);
  Outcome waits;
  ASSERT_TRUE(world.call(other, 4, "get", waits, 5000).ok());
  EXPECT_EQ(world.ask(session, kShared, "get", 5000).response, text);
  world.run_until([&] { return kept.size() == 1; });
  ASSERT_TRUE(world.client->destroy_session(other).ok());
  world.run_until([&] { return kept[0].is_cancelled(); });
  kept[0].respond(this->shared);  // nobody waits
  kept.clear();
  ASSERT_TRUE(world.client->destroy_session(session).ok());
  MsgBuf home;
  world.run_until([&] { return static_cast<bool>(home = this->shared.take()); });
  this->shared = SharedBuf(std::move(home));
  const Session third = world.open();
  EXPECT_EQ(world.ask(third, kShared, "get", 5000).response, text);
  world.server.reset();
  EXPECT_EQ(text_of(this->shared.bytes()), text);
  EXPECT_TRUE(this->shared.take()) << "the endpoint has given it back";
}

// The clients cancel their calls while the server's transport still has packets of the response.
TEST(SharedResponseHeld, returns_after_the_transport_has_released_it_for_every_slot) {
  World<Held<Udp>> world;
  Held<Udp>::Options held;
  held.hold_flushes = 20;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, held, {}));
  const std::string text = text_of_size(20'000);
  SharedBuf shared(message(*world.server, text));
  size_t handled = 0, released_early = 0;
  ASSERT_TRUE(world.server
                  ->on_request(kShared,
                               [&](Request request) {
                                 handled++;
                                 request.respond(shared);
                               })
                  .ok());
  std::vector<Session> sessions;
  for (int i = 0; i < 4; i++) sessions.push_back(world.open());
  const size_t out = buffers_out(*world.server);
  for (size_t round = 1; round <= 10; round++) {
    std::vector<Outcome> outcomes(sessions.size());
    std::vector<CallId> calls;
    for (size_t i = 0; i < sessions.size(); i++) {
      auto id = world.call(sessions[i], kShared, "get", outcomes[i], text.size());
      ASSERT_TRUE(id.ok());
      calls.push_back(*id);
    }
    world.run_until([&] { return handled == round * sessions.size(); });
    world.turns(2);  // the responses are with the transport
    for (const CallId call : calls) released_early += world.client->cancel(call).ok();
    world.run_until([&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& o) { return o.runs == 1; }); });
    rpc::EndpointCore::of(*world.server).check_invariants();
  }
  EXPECT_GT(released_early, 0u);
  MsgBuf home;
  world.run_until([&] { return static_cast<bool>(home = shared.take()); });
  EXPECT_EQ(text_of(home.bytes()), text);
  EXPECT_EQ(buffers_out(*world.server), out);
}

}  // namespace
}  // namespace tern::rpc_test
