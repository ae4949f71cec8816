// Sessions that reconnect by themselves. Their name stays the same, but their calls end.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tern/coroutine.h>

#include "rpc/endpoint_core.h"
#include "unit/rpc/owned_coroutine.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;

template <class T>
class Reconnect : public ::testing::Test {
 protected:
  void make(SessionOptions options = {}) {
    ASSERT_NO_FATAL_FAILURE(world_.make());
    ASSERT_TRUE(world_.client->on_session_event([this](const SessionEvent& event) { heard.push_back(event); }).ok());
    keep(*world_.server);
    uri = world_.server_nexus->uri();
    options.reconnect = true;
    options.reconnect_pause = milliseconds(1);
    options.reconnect_pause_max = milliseconds(20);
    options.connect_timeout = kPatience;
    session_ = world_.client->create_session(uri, options).value();
  }
  void keep(Endpoint& server) {
    ASSERT_TRUE(server.on_request(kKept, [this](Request request) { kept.push_back(std::move(request)); }).ok());
  }
  void open() {
    world_.run_until([this] { return world_.client->is_open(session_); });
  }
  /// Stops the server. Only its management sends a goodbye.
  void stop_server() {
    kept.clear();
    world_.server.reset();
    world_.server_nexus.reset();
  }
  void start_server() {
    world_.server_nexus = Nexus::create(uri).value();
    world_.server =
        Rpc<T>::create(*world_.server_nexus, at_end(0, patient<typename T::Options>()), small_memory()).value();
    ASSERT_TRUE(world_.server->on_request(kEcho, echo).ok());
    keep(*world_.server);
  }
  size_t count(SessionState state) const {
    size_t found = 0;
    for (const SessionEvent& event : heard) found += event.state == state;
    return found;
  }
  void check() { rpc::EndpointCore::of(*world_.client).check_invariants(); }

  std::vector<SessionEvent> heard;  // outlives world_, whose end it records
  std::vector<Request> kept;
  World<T> world_;
  std::string uri;
  Session session_;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(Reconnect, ShmAndUdp, TransportNames);

TYPED_TEST(Reconnect, session_keeps_its_name_across_restarts_of_the_server) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  for (int run = 0; run < 3; run++) {
    this->open();
    this->check();
    EXPECT_EQ(world.ask(this->session_, kEcho, "hello").response, "hello");
    this->stop_server();
    world.run_until([&] { return this->count(SessionState::kConnecting) > 0; });
    EXPECT_EQ(world.client->session_info(this->session_).state, SessionState::kConnecting);
    const Status& reason = this->heard.back().status;
    EXPECT_NE(reason.message().find("SessionOptions::reconnect"), std::string_view::npos) << reason;
    this->check();
    ASSERT_NO_FATAL_FAILURE(this->start_server());
    this->open();
    EXPECT_EQ(this->count(SessionState::kEnded), 0u);
    for (const SessionEvent& event : this->heard) {
      EXPECT_EQ(event.session, this->session_);
      EXPECT_EQ(event.status.ok(), event.state == SessionState::kOpen) << event.status;
    }
    EXPECT_EQ(this->heard.back().state, SessionState::kOpen);
    this->heard.clear();
  }
}

TYPED_TEST(Reconnect, frame_of_a_waiting_coroutine_may_be_destroyed_after_its_session) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& client = *this->world_.client;
  auto has_gone_on = std::make_unique<bool>(false);
  auto waits = [](Endpoint& endpoint, Session to, bool& gone_on) -> Owned {
    (void)co_await endpoint.opened(to);
    gone_on = true;
  }(client, this->session_, *has_gone_on);
  EXPECT_TRUE(client.destroy_session(this->session_).ok());
  waits.frame.destroy();
  this->world_.turns(100);
  EXPECT_FALSE(*has_gone_on);
  EXPECT_EQ(this->count(SessionState::kEnded), 1u);
}

/// The id contains the name of the session, which is not the key of the present attempt.
TYPED_TEST(Reconnect, calls_after_a_restart_are_cancelled_by_their_ids) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  this->open();
  this->stop_server();
  world.run_until([&] { return this->count(SessionState::kConnecting) > 0; });
  ASSERT_NO_FATAL_FAILURE(this->start_server());
  this->open();
  for (int i = 0; i < 3; i++) {  // a slot's first call takes the general path
    Outcome outcome;
    const auto call = world.call(this->session_, kKept, "x", outcome);
    ASSERT_TRUE(call.ok());
    world.run_until([&] { return !this->kept.empty(); });
    EXPECT_TRUE(world.client->cancel(*call).ok());
    world.run_until([&] { return outcome.runs > 0; });
    EXPECT_EQ(outcome.code(), Code::kCancelled);
    this->kept.clear();
    EXPECT_EQ(world.client->cancel(*call).code(), Code::kMisuse) << "it has ended";
  }
}

TYPED_TEST(Reconnect, call_in_flight_ends_and_later_calls_wait_for_the_next_server) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  this->open();
  Outcome in_flight, waits;
  ASSERT_TRUE(world.call(this->session_, kKept, "once", in_flight).ok());
  world.run_until([&] { return !this->kept.empty(); });
  this->stop_server();
  world.run_until([&] { return in_flight.runs > 0; });
  EXPECT_TRUE(in_flight.code() == Code::kPeerUnreachable || in_flight.code() == Code::kSessionReset)
      << in_flight.status;
  // The new server starts before or after an attempt fails. In either case the library repeats no call.
  ASSERT_NO_FATAL_FAILURE(this->start_server());
  this->open();
  ASSERT_TRUE(world.call(this->session_, kEcho, "new", waits).ok());
  world.run_until([&] { return waits.runs > 0; });
  EXPECT_EQ(waits.response, "new");
  world.turns(20);
  EXPECT_EQ(in_flight.runs, 1);
  EXPECT_TRUE(this->kept.empty()) << "the library repeats no call";
}

TYPED_TEST(Reconnect, calls_of_a_pausing_session_end_with_the_failed_attempt) {
  ASSERT_NO_FATAL_FAILURE(this->make({}));
  auto& world = this->world_;
  this->open();
  this->world_.server.reset();  // its Nexus stays, and refuses sessions
  world.run_until([&] { return this->count(SessionState::kConnecting) == 1; });
  Outcome outcome;
  ASSERT_TRUE(world.call(this->session_, kEcho, "x", outcome).ok()) << "it waits";
  EXPECT_EQ(outcome.runs, 0);
  world.run_until([&] { return this->count(SessionState::kConnecting) == 4; });
  EXPECT_EQ(outcome.runs, 1);
  EXPECT_EQ(outcome.code(), Code::kRefused) << outcome.status;
  EXPECT_TRUE(outcome.has_buffers);
  this->check();
}

TYPED_TEST(Reconnect, first_attempt_may_fail_too) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  const Session other =
      world.client->create_session(this->uri + "/9", {.reconnect = true, .reconnect_pause = milliseconds(1)}).value();
  world.run_until([&] { return this->count(SessionState::kConnecting) > 2; });
  auto late = Rpc<TypeParam>::create(*world.server_nexus, at_end(0, patient<typename TypeParam::Options>()),
                                     small_memory({.endpoint_id = 9}));
  ASSERT_TRUE(late.ok()) << late.status();
  world.run_until([&] {
    EXPECT_TRUE((*late)->run_event_loop_once().ok());
    return world.client->is_open(other);
  });
  this->open();
}

TYPED_TEST(Reconnect, destroy_session_ends_an_open_and_a_pausing_session) {
  for (const bool is_open : {true, false}) {
    this->heard.clear();
    ASSERT_NO_FATAL_FAILURE(this->make());
    auto& world = this->world_;
    this->open();
    if (!is_open) {
      this->stop_server();
      world.run_until([&] { return this->count(SessionState::kConnecting) == 1; });
    }
    EXPECT_TRUE(world.client->destroy_session(this->session_).ok());
    EXPECT_EQ(world.client->destroy_session(this->session_).code(), Code::kSessionReset);
    Outcome refused;
    EXPECT_EQ(world.call(this->session_, kEcho, "x", refused).code(), Code::kSessionReset);
    world.run_until([&] { return this->count(SessionState::kEnded) == 1; });
    EXPECT_EQ(this->heard.back().status.code(), Code::kCancelled);
    EXPECT_TRUE(world.client->session_info(this->session_).is_client);
    world.turns(20);
    this->check();
    const auto census = rpc::EndpointCore::of(*world.client).census();
    EXPECT_EQ(census.client_sessions, 0u);
    EXPECT_EQ(this->count(SessionState::kEnded), 1u);
    world.client.reset();
    this->stop_server();
    world.client_nexus.reset();
  }
}

/// The session and its calls end in the iteration after destroy_session().
TYPED_TEST(Reconnect, destroyed_session_has_its_state_and_its_calls_until_it_ends) {
  for (const bool is_open : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(this->make());
    auto& world = this->world_;
    this->open();
    if (!is_open) {
      this->stop_server();
      world.run_until([&] { return this->count(SessionState::kConnecting) > 0; });
    }
    Outcome cancelled, left;
    const auto call = world.call(this->session_, kKept, "x", cancelled);
    ASSERT_TRUE(call.ok() && world.call(this->session_, kKept, "y", left).ok());
    EXPECT_TRUE(world.client->destroy_session(this->session_).ok());
    const SessionInfo info = world.client->session_info(this->session_);
    EXPECT_EQ(info.state, is_open ? SessionState::kOpen : SessionState::kConnecting);
    EXPECT_TRUE(info.status.ok()) << info.status;
    EXPECT_TRUE(world.client->cancel(*call).ok());
    EXPECT_EQ(world.client->cancel(*call).code(), Code::kMisuse) << "it has ended";
    world.run_until([&] { return cancelled.runs > 0 && left.runs > 0; });
    EXPECT_EQ(cancelled.code(), Code::kCancelled);
    EXPECT_EQ(left.code(), Code::kCancelled);
    EXPECT_EQ(world.client->session_info(this->session_).state, SessionState::kEnded);
    EXPECT_EQ(world.client->session_info(this->session_).status.code(), Code::kCancelled);
    EXPECT_EQ(world.client->cancel(*call).code(), Code::kMisuse);
    world.turns(20);
    this->check();
    EXPECT_EQ(cancelled.runs + left.runs, 2);
    world.client.reset();
    this->stop_server();
    world.client_nexus.reset();
    this->heard.clear();
  }
}

TYPED_TEST(Reconnect, close_ends_a_pausing_session_once) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  this->open();
  this->stop_server();
  world.run_until([&] { return this->count(SessionState::kConnecting) == 1; });
  Outcome waits;
  ASSERT_TRUE(world.call(this->session_, kEcho, "x", waits).ok());
  EXPECT_TRUE(world.client->close(milliseconds(0)).ok());
  EXPECT_EQ(waits.runs, 1);
  EXPECT_FALSE(waits.status.ok());
  EXPECT_EQ(this->count(SessionState::kEnded), 1u);
  EXPECT_EQ(this->heard.back().state, SessionState::kEnded);
}

TYPED_TEST(Reconnect, opened_waits_through_failed_attempts) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  this->open();
  this->stop_server();
  world.run_until([&] { return this->count(SessionState::kConnecting) == 1; });
  std::optional<Status> seen;
  [](Endpoint& endpoint, Session session, std::optional<Status>& out) -> Detached {
    out = co_await endpoint.opened(session);
  }(*world.client, this->session_, seen);
  EXPECT_FALSE(seen.has_value());
  ASSERT_NO_FATAL_FAILURE(this->start_server());
  world.run_until([&] { return seen.has_value(); });
  EXPECT_TRUE(seen->ok()) << *seen;
  EXPECT_TRUE(world.client->is_open(this->session_));
}

TYPED_TEST(Reconnect, many_sessions_find_the_next_server) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& world = this->world_;
  std::vector<Session> sessions = {this->session_};
  for (int i = 0; i < 100; i++) {
    sessions.push_back(
        world.client
            ->create_session(this->uri,
                             {.connect_timeout = kPatience, .reconnect = true, .reconnect_pause = milliseconds(1)})
            .value());
  }
  const auto all_open = [&] {
    for (const Session& one : sessions) {
      if (!world.client->is_open(one)) return false;
    }
    return true;
  };
  world.run_until(all_open);
  this->check();
  this->stop_server();
  world.run_until([&] { return this->count(SessionState::kConnecting) >= sessions.size(); });
  this->check();
  ASSERT_NO_FATAL_FAILURE(this->start_server());
  world.run_until(all_open);
  this->check();
  EXPECT_EQ(rpc::EndpointCore::of(*world.client).census().client_sessions, sessions.size());
  for (const Session& one : sessions) EXPECT_EQ(world.ask(one, kEcho, "x").response, "x");
}

}  // namespace
}  // namespace tern::rpc_test
