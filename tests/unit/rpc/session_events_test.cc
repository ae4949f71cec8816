// Events about an endpoint's sessions, and queries of their state.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <tern/transport/faulty.h>

#include "rpc/endpoint_core.h"
#include "rpc_world.h"

namespace tern::rpc_test {
namespace {

/// The events of one endpoint.
struct Heard {
  void listen(Endpoint& endpoint) {
    ASSERT_TRUE(endpoint.on_session_event([this](const SessionEvent& event) { events.push_back(event); }).ok());
  }
  size_t count(SessionState state) const {
    return static_cast<size_t>(
        std::count_if(events.begin(), events.end(), [&](const SessionEvent& event) { return event.state == state; }));
  }
  std::vector<SessionEvent> events;
};

template <class T>
class SessionEvents : public ::testing::Test {
 protected:
  void make() {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_NO_FATAL_FAILURE(at_client.listen(*world.client));
    ASSERT_NO_FATAL_FAILURE(at_server.listen(*world.server));
  }
  Heard at_client, at_server;  // outlive world, whose end they record
  World<T> world;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(SessionEvents, ShmAndUdp, TransportNames);

TYPED_TEST(SessionEvents, both_ends_hear_of_the_beginning_and_the_end) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto& client_events = this->at_client.events;
  auto& server_events = this->at_server.events;
  const Session session = this->world.open();
  ASSERT_TRUE(this->world.run_until([&] { return !server_events.empty(); }));
  ASSERT_EQ(client_events.size(), 1u);
  EXPECT_EQ(client_events[0].session, session);
  EXPECT_TRUE(client_events[0].is_client);
  EXPECT_EQ(client_events[0].state, SessionState::kOpen);
  EXPECT_TRUE(client_events[0].status.ok());
  ASSERT_EQ(server_events.size(), 1u);
  EXPECT_FALSE(server_events[0].is_client);
  EXPECT_EQ(server_events[0].state, SessionState::kOpen);

  ASSERT_TRUE(this->world.client->destroy_session(session).ok());
  ASSERT_TRUE(this->world.run_until([&] { return client_events.size() == 2 && server_events.size() == 2; }));
  EXPECT_EQ(client_events[1].session, session);
  EXPECT_EQ(client_events[1].state, SessionState::kEnded);
  EXPECT_EQ(client_events[1].status.code(), Code::kCancelled);
  EXPECT_EQ(server_events[1].session, server_events[0].session);
  EXPECT_EQ(server_events[1].state, SessionState::kEnded);
  EXPECT_EQ(server_events[1].status.code(), Code::kSessionReset);
  this->world.turns(5);
  EXPECT_EQ(client_events.size() + server_events.size(), 4u);
}

TYPED_TEST(SessionEvents, info_tells_state_and_peer_at_both_ends) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto connecting = this->world.client->create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(connecting.ok());
  EXPECT_EQ(this->world.client->session_info(*connecting).state, SessionState::kConnecting);
  EXPECT_EQ(this->world.client->session_info(*connecting).peer, "");
  ASSERT_TRUE(this->world.run_until(
      [&] { return this->world.client->is_open(*connecting) && !this->at_server.events.empty(); }));
  const SessionInfo client = this->world.client->session_info(*connecting);
  EXPECT_EQ(client.state, SessionState::kOpen);
  EXPECT_TRUE(client.is_client);
  EXPECT_EQ("tern://" + std::string(client.peer), this->world.server_nexus->uri());
  const Session served = this->at_server.events[0].session;
  const SessionInfo server = this->world.server->session_info(served);
  EXPECT_EQ(server.state, SessionState::kOpen);
  EXPECT_FALSE(server.is_client);
  EXPECT_EQ("tern://" + std::string(server.peer), this->world.client_nexus->uri());
  // A name is invalid at the other end and in another thread.
  EXPECT_EQ(this->world.client->session_info(served).state, SessionState::kEnded);
  EXPECT_EQ(this->world.server->session_info(*connecting).state, SessionState::kEnded);
  EXPECT_EQ(this->world.server->session_info(Session{}).state, SessionState::kEnded);
  std::thread([&] { EXPECT_EQ(this->world.client->session_info(*connecting).state, SessionState::kEnded); }).join();
  ASSERT_TRUE(this->world.client->destroy_session(*connecting).ok());
  ASSERT_TRUE(this->world.run_until([&] { return this->at_server.count(SessionState::kEnded) == 1; }));
  EXPECT_EQ(this->world.client->session_info(*connecting).state, SessionState::kEnded);
  EXPECT_EQ(this->world.server->session_info(served).state, SessionState::kEnded);
  EXPECT_EQ(this->world.server->session_info(served).peer, "");
}

TYPED_TEST(SessionEvents, session_that_never_opens_ends_once_with_the_reason) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto session = this->world.client->create_session(this->world.server_nexus->uri() + "/77");
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(this->world.run_until([&] { return !this->at_client.events.empty(); }));
  this->world.turns(5);
  ASSERT_EQ(this->at_client.events.size(), 1u);
  EXPECT_EQ(this->at_client.events[0].session, *session);
  EXPECT_EQ(this->at_client.events[0].state, SessionState::kEnded);
  EXPECT_EQ(this->at_client.events[0].status.code(), Code::kRefused);
  EXPECT_TRUE(this->at_server.events.empty());
}

/// A handshake that is repeated has the key of the earlier one, whose end may be told late.
TYPED_TEST(SessionEvents, late_end_of_an_earlier_handshake_does_not_end_the_next_one) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  auto session = this->world.client->create_session(this->world.server_nexus->uri(), {});
  ASSERT_TRUE(session.ok());
  nexus::ControlEvent event{};
  event.kind = nexus::ControlEvent::Kind::kDisconnected;
  event.is_client_side = true;
  event.local_key = static_cast<uint32_t>(session->name);
  ASSERT_TRUE(rpc::EndpointCore::of(*this->world.client).context().port.push(event));
  ASSERT_TRUE(this->world.run_until([&] { return !this->at_client.events.empty(); }));
  EXPECT_EQ(this->at_client.events[0].state, SessionState::kOpen) << this->at_client.events[0].status.message();
}

TYPED_TEST(SessionEvents, end_comes_after_the_continuations_of_all_calls) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world.open({.window = 2});
  size_t ended = 0;
  for (int i = 0; i < 20; i++) {
    auto id = this->world.client->enqueue_request(session, kEcho, message(*this->world.client, std::string(5000, 'x')),
                                                  this->world.client->alloc_msgbuf(8000), [&](Completion&) {
                                                    ended++;
                                                    EXPECT_EQ(this->at_client.count(SessionState::kEnded), 0u);
                                                  });
    ASSERT_TRUE(id.ok());
  }
  ASSERT_TRUE(this->world.client->destroy_session(session).ok());
  ASSERT_TRUE(this->world.run_until([&] { return this->at_client.count(SessionState::kEnded) == 1; }));
  EXPECT_EQ(ended, 20u);
}

TYPED_TEST(SessionEvents, listener_may_create_sessions_and_end_them) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  constexpr size_t kSessions = 40;
  auto& client = *this->world.client;
  std::vector<Session> open;
  size_t opened = 0, ended = 0;
  const auto create = [&] {
    auto session = client.create_session(this->world.server_nexus->uri(), {.connect_timeout = kPatience});
    ASSERT_TRUE(session.ok()) << session.status().message();
  };
  ASSERT_TRUE(client
                  .on_session_event([&](const SessionEvent& event) {
                    if (event.state == SessionState::kOpen) {
                      opened++;
                      EXPECT_TRUE(client.destroy_session(event.session).ok());
                      return;
                    }
                    ended++;
                    EXPECT_EQ(client.destroy_session(event.session).code(), Code::kSessionReset);
                    for (int i = 0; i < 2 && opened + open.size() < kSessions; i++) {
                      create();
                      open.push_back({});  // counts the new session
                    }
                  })
                  .ok());
  create();
  open.push_back({});
  ASSERT_TRUE(this->world.run_until([&] { return ended == open.size() && ended > 20; }));
  EXPECT_EQ(opened, ended);
}

TYPED_TEST(SessionEvents, end_of_the_other_endpoint_is_heard_with_its_reason) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world.open();
  ASSERT_TRUE(this->world.run_until([&] { return this->at_server.events.size() == 1; }));
  this->world.server.reset();
  ASSERT_EQ(this->at_server.events.size(), 2u) << "its own end, in ~Rpc";
  EXPECT_EQ(this->at_server.events[1].status.code(), Code::kCancelled);
  ASSERT_TRUE(this->world.run_until([&] { return this->at_client.events.size() == 2; }));
  EXPECT_EQ(this->at_client.events[1].session, session);
  EXPECT_EQ(this->at_client.events[1].status.code(), Code::kSessionReset);
}

TYPED_TEST(SessionEvents, own_end_of_an_endpoint_ends_its_sessions) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  (void)this->world.open();
  (void)this->world.client->create_session(this->world.server_nexus->uri());
  this->world.client.reset();
  ASSERT_EQ(this->at_client.count(SessionState::kEnded), 2u);
  for (const SessionEvent& event : this->at_client.events) {
    if (event.state != SessionState::kEnded) continue;
    EXPECT_EQ(event.status.code(), Code::kCancelled);
  }
  EXPECT_TRUE(this->world.run_until([&] { return this->at_server.count(SessionState::kEnded) == 1; }));
}

TYPED_TEST(SessionEvents, wrong_calls_are_misuse) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const auto nothing = [](const SessionEvent&) {};
  EXPECT_EQ(this->world.client->on_session_event(nothing).code(), Code::kMisuse) << "a second one";
  (void)this->world.open();
  EXPECT_EQ(this->world.client->on_session_event(nothing).code(), Code::kMisuse) << "the loop has run";
  std::thread([&] { EXPECT_EQ(this->world.client->on_session_event(nothing).code(), Code::kWrongThread); }).join();
  ASSERT_TRUE(this->world.run_until([&] { return this->at_server.events.size() == 1; }));
  const Session served = this->at_server.events[0].session;
  EXPECT_EQ(this->world.server->destroy_session(served).code(), Code::kMisuse);
  auto& server = *this->world.server;
  auto id = server.enqueue_request(served, kEcho, server.alloc_msgbuf(1), server.alloc_msgbuf(1), [](Completion&) {});
  EXPECT_EQ(id.status().code(), Code::kMisuse);
}

TYPED_TEST(SessionEvents, request_names_its_session) {
  constexpr uint16_t kKeep = 2, kWorker = 3;
  ASSERT_NO_FATAL_FAILURE(this->make());
  std::vector<Session> in_handler;
  std::optional<Request> kept;
  std::atomic<uint64_t> in_worker{0};
  auto& server = *this->world.server;
  ASSERT_TRUE(server
                  .on_request(kKeep,
                              [&](Request request) {
                                in_handler.push_back(request.session());
                                kept.emplace(std::move(request));
                                in_handler.push_back(kept->session());
                                EXPECT_EQ(request.session(), Session{}) << "moved from";  // NOLINT
                              })
                  .ok());
  ASSERT_TRUE(server
                  .on_request(kWorker,
                              [&](Request request) {
                                Request moved(std::move(request));
                                in_worker = moved.session().name;
                                moved.respond();
                              },
                              {.worker = true})
                  .ok());
  const Session session = this->world.open();
  Outcome outcome;
  ASSERT_TRUE(this->world.call(session, kKeep, "x", outcome).ok());
  ASSERT_TRUE(this->world.run_until([&] { return kept.has_value(); }));
  EXPECT_TRUE(this->world.ask(session, kWorker, "x").status.ok());
  ASSERT_EQ(this->at_server.events.size(), 1u);
  const Session served = this->at_server.events[0].session;
  EXPECT_EQ(in_handler, (std::vector<Session>{served, served}));
  EXPECT_EQ(in_worker, served.name);
  // session() works in any thread, and after the client has gone.
  ASSERT_TRUE(this->world.client->destroy_session(session).ok());
  ASSERT_TRUE(this->world.run_until([&] { return kept->is_cancelled(); }));
  std::thread([&] { EXPECT_EQ(kept->session(), served); }).join();
  kept->respond();
  EXPECT_EQ(kept->session(), Session{});
}

TEST(SessionInfo, counts_retransmissions_of_a_session) {
  World<Faulty<Udp>> world;
  Faulty<Udp>::Options lossy;
  lossy.drop = 0.2;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, lossy, lossy));
  const Session session = world.open(), other = world.open();
  for (int i = 0; i < 200 && world.client->session_info(session).retransmissions == 0; i++) {
    ASSERT_TRUE(world.ask(session, kEcho, "x").status.ok());
  }
  EXPECT_GT(world.client->session_info(session).retransmissions, 0u);
  EXPECT_EQ(world.client->session_info(session).retransmissions + world.client->session_info(other).retransmissions,
            world.client->counters().retransmissions);
}

}  // namespace
}  // namespace tern::rpc_test
