// The visible state of an endpoint: its counters and those of its parts, its sessions, and its page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tern/page.h>
#include <tern/transport/faulty.h>

#include "rpc_world.h"

namespace tern::rpc_test {
namespace {

using ::testing::Ge;
using ::testing::HasSubstr;

std::string text_of_size(size_t bytes) { return std::string(bytes, 'x'); }

// ---- Counters ----

TEST(Counters, include_those_of_the_transport_and_the_management) {
  World<Udp> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const Session session = world.open();
  for (int i = 0; i < 10; i++) EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
  const EndpointCounters& counters = world.client->counters();
  EXPECT_GE(counters.transport.packets_sent, 10u);
  EXPECT_GE(counters.transport.packets_received, 10u);
  EXPECT_GT(counters.transport.system_calls, 0u);
  EXPECT_EQ(counters.network.packets_sent, 0u) << "the network is real";
  EXPECT_EQ(counters.page_missing, 0u);
  // The first request of an unknown peer is answered with a cookie, and so is its retransmission.
  EXPECT_TRUE(world.run_until([&] { return world.server->counters().management.cookies >= 1; }));
}

TEST(Counters, of_a_closed_endpoint_stay) {
  World<Udp> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  EXPECT_TRUE(world.ask(world.open(), kEcho, "hello").status.ok());
  const uint64_t sent = world.client->counters().transport.packets_sent;
  ASSERT_TRUE(world.client->close(Duration(0)).ok());
  EXPECT_GE(world.client->counters().transport.packets_sent, sent);
  EXPECT_GT(sent, 0u);
}

TEST(Counters, include_losses_that_controllers_were_told_of) {
  World<Faulty<Udp>> world;
  Faulty<Udp>::Options lossy;
  lossy.drop = 0.2;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, lossy, lossy));
  const Session session = world.open();
  world.run_until([&] {
    EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
    return world.client->counters().controller.losses != 0;
  });
  EXPECT_GT(world.client->counters().retransmissions, 0u);
  EXPECT_GT(world.client->counters().faults.dropped + world.server->counters().faults.dropped, 0u);
}

TEST(Counters, include_the_faults_that_the_fault_layer_makes) {
  World<Faulty<Udp>> world;
  Faulty<Udp>::Options bad;
  bad.drop = bad.duplicate = bad.reorder = bad.delay = bad.corrupt = 0.1;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, bad, bad));
  const Session session = world.open();
  const FaultCounters& faults = world.client->counters().faults;
  world.run_until([&] {
    (void)world.ask(session, kEcho, text_of_size(20'000));
    (void)world.client->counters();
    return faults.dropped * faults.duplicated * faults.reordered * faults.delayed * faults.corrupted != 0;
  });
  const uint64_t dropped = faults.dropped;
  ASSERT_TRUE(world.client->close(Duration(0)).ok());
  EXPECT_GE(world.client->counters().faults.dropped, dropped) << "those of a closed endpoint stay";
}

// ---- Sessions ----

template <class T>
class Sessions : public ::testing::Test {
 protected:
  World<T> world_;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(Sessions, ShmAndUdp, TransportNames);

TYPED_TEST(Sessions, info_of_a_client_tells_round_trips_and_packets) {
  auto& world = this->world_;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const Session session = world.open({.window = 5});
  const SessionInfo before = world.client->session_info(session);
  EXPECT_EQ(before.state, SessionState::kOpen);
  EXPECT_EQ(before.window, 5u);
  for (int i = 0; i < 20; i++) EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
  const SessionInfo info = world.client->session_info(session);
  EXPECT_TRUE(info.is_client);
  EXPECT_TRUE(info.status.ok());
  EXPECT_GE(info.packets_sent, before.packets_sent + 20);
  EXPECT_GE(info.packets_received, before.packets_received + 20);
  EXPECT_EQ(info.long_bytes_sent, 0u);
  EXPECT_EQ(info.long_bytes_received, 0u);
  EXPECT_EQ(info.packets_in_flight, 0u);
  EXPECT_GE(info.credits, 1u);
  EXPECT_GE(info.congestion_window, info.credits);
  EXPECT_GT(info.round_trip_min.count(), 0);
  EXPECT_GE(info.round_trip, info.round_trip_min);
  EXPECT_GE(info.round_trip_last, info.round_trip_min);
}

TYPED_TEST(Sessions, info_counts_the_bytes_of_long_messages) {
  auto& world = this->world_;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const Session session = world.open();
  constexpr size_t kBytes = 1'000'000;
  EXPECT_TRUE(world.ask(session, kEcho, text_of_size(kBytes), kBytes).status.ok());
  const SessionInfo info = world.client->session_info(session);
  EXPECT_THAT(info.long_bytes_sent, Ge(kBytes));
  EXPECT_EQ(info.long_bytes_received, kBytes);
}

TYPED_TEST(Sessions, info_of_a_served_session_counts_its_packets) {
  auto& world = this->world_;
  ASSERT_NO_FATAL_FAILURE(world.make());
  std::optional<Session> served;
  ASSERT_TRUE(world.server
                  ->on_request(2,
                               [&](Request request) {
                                 served = request.session();
                                 echo(std::move(request));
                               })
                  .ok());
  const Session session = world.open();
  constexpr size_t kBytes = 100'000;
  EXPECT_TRUE(world.ask(session, 2, text_of_size(kBytes), kBytes).status.ok());
  ASSERT_TRUE(served.has_value());
  const SessionInfo info = world.server->session_info(*served);
  const SessionInfo client = world.client->session_info(session);
  EXPECT_FALSE(info.is_client);
  EXPECT_EQ(info.window, 8u);
  EXPECT_EQ(info.long_bytes_received, kBytes);
  EXPECT_THAT(info.long_bytes_sent, Ge(kBytes));
  // All arrived packets were sent by the client, and the reverse.
  EXPECT_LE(info.packets_received, client.packets_sent);
  EXPECT_LE(client.packets_received, info.packets_sent);
  EXPECT_GT(info.packets_received, 1u);
}

TYPED_TEST(Sessions, info_of_an_ended_session_has_the_reason) {
  auto& world = this->world_;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const Session destroyed = world.open();
  ASSERT_TRUE(world.client->destroy_session(destroyed).ok());
  world.run_until([&] { return world.client->session_info(destroyed).state == SessionState::kEnded; });
  EXPECT_EQ(world.client->session_info(destroyed).status.code(), Code::kCancelled);

  const Session closed = world.open();
  ASSERT_TRUE(world.server->close(Duration(0)).ok());
  world.run_until([&] { return world.client->session_info(closed).state == SessionState::kEnded; });
  EXPECT_EQ(world.client->session_info(closed).status.code(), Code::kSessionReset);
  EXPECT_THAT(std::string(world.client->session_info(closed).status.message()), HasSubstr("server closed"));

  EXPECT_EQ(world.client->session_info(Session{}).status.code(), Code::kMisuse);
  std::thread([&] { EXPECT_EQ(world.client->session_info(closed).status.code(), Code::kWrongThread); }).join();
}

// ---- Pages ----

class Visible : public ::testing::Test {
 protected:
  void make() {
    ASSERT_NO_FATAL_FAILURE(world.make({.page = "shm"}));
    ASSERT_TRUE(world.client_nexus->page().ok()) << world.client_nexus->page().status().message();
  }
  PageEndpoint shown(Nexus& nexus) {
    auto page = read_page(*nexus.page());
    EXPECT_TRUE(page.ok()) << page.status().message();
    if (!page.ok() || page->endpoints.empty()) return {};
    names = page->counter_names;
    return std::move(page->endpoints[0]);
  }
  uint64_t counter(const PageEndpoint& endpoint, std::string_view name) const {
    for (size_t i = 0; i < endpoint.counters.size(); i++) {
      if (names[i] == name) return endpoint.counters[i];
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  World<Udp> world;
  std::vector<std::string> names;
};

TEST_F(Visible, page_shows_counters_and_sessions_of_both_ends) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world.open();
  for (int i = 0; i < 10; i++) EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
  PageEndpoint client, server;
  ASSERT_TRUE(world.run_until([&] {
    client = shown(*world.client_nexus);
    server = shown(*world.server_nexus);
    return counter(client, "endpoint.calls_completed") == 10 && counter(server, "endpoint.requests_handled") == 10 &&
           client.sessions.size() == 1 && server.sessions.size() == 1 && client.sessions[0].info.packets_sent >= 10;
  }));
  EXPECT_EQ(client.transport, "udp");
  EXPECT_EQ(client.client_sessions, 1u);
  EXPECT_EQ(client.server_sessions, 0u);
  EXPECT_EQ(server.server_sessions, 1u);
  EXPECT_GT(counter(client, "transport.system_calls"), 0u);
  EXPECT_EQ(client.sessions[0].name, session.name);
  EXPECT_EQ("tern://" + client.sessions[0].peer, world.server_nexus->uri());
  EXPECT_EQ("tern://" + server.sessions[0].peer, world.client_nexus->uri());
  EXPECT_TRUE(client.sessions[0].info.is_client);
  EXPECT_FALSE(server.sessions[0].info.is_client);
  EXPECT_GT(client.sessions[0].info.round_trip.count(), 0);
}

TEST_F(Visible, page_shows_why_sessions_have_ended) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world.open();
  ASSERT_TRUE(world.client->destroy_session(session).ok());
  PageEndpoint client;
  ASSERT_TRUE(world.run_until([&] {
    client = shown(*world.client_nexus);
    return client.ends.size() == 1 && client.sessions.empty();
  }));
  EXPECT_EQ(client.ends[0].name, session.name);
  EXPECT_EQ(client.ends[0].code, Code::kCancelled);
  EXPECT_EQ(client.ends[0].reason, "the session was destroyed");
}

/// Nothing else happens at the endpoint.
TEST_F(Visible, page_shows_the_end_of_a_session_at_rest) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world.open();
  const auto until = std::chrono::steady_clock::now() + milliseconds(400);  // four periods of the page
  ASSERT_TRUE(world.run_until([&] { return std::chrono::steady_clock::now() > until; }));
  ASSERT_EQ(shown(*world.client_nexus).sessions.size(), 1u);
  ASSERT_TRUE(world.client->destroy_session(session).ok());
  EXPECT_TRUE(world.run_until([&] { return shown(*world.client_nexus).ends.size() == 1; }));
  EXPECT_TRUE(world.run_until([&] { return shown(*world.client_nexus).sessions.empty(); }));
}

/// A session that reconnects has two names in the endpoint. The page shows it once, under the name that the program
/// knows.
TEST_F(Visible, page_shows_a_session_that_connects_again_once) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world.client->create_session(world.server_nexus->uri(), {.reconnect = true}).value();
  ASSERT_TRUE(world.run_until([&] { return world.client->is_open(session); }));
  EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
  PageEndpoint client;
  ASSERT_TRUE(world.run_until([&] {
    client = shown(*world.client_nexus);
    return client.client_sessions == 1 && !client.sessions.empty() && client.sessions[0].info.packets_sent > 0;
  }));
  ASSERT_EQ(client.sessions.size(), 1u);
  EXPECT_EQ(client.sessions[0].name, session.name);
  ASSERT_TRUE(world.client->destroy_session(session).ok());
  ASSERT_TRUE(world.run_until([&] { return shown(*world.client_nexus).ends.size() == 1; }));
  EXPECT_EQ(shown(*world.client_nexus).ends[0].name, session.name);
  EXPECT_EQ(world.client->session_info(session).status.code(), Code::kCancelled);
}

/// The page shows all events before the endpoint sleeps for long, even if the activity was short.
TEST_F(Visible, idle_endpoint_sleeps_on_and_its_page_shows_all) {
  ASSERT_NO_FATAL_FAILURE(make());
  for (uint64_t calls = 1; calls <= 5; calls++) {
    const Session session = world.open();
    EXPECT_TRUE(world.ask(session, kEcho, "hello").status.ok());
    ASSERT_TRUE(world.client->destroy_session(session).ok());
    EXPECT_TRUE(world.run_until([&] { return world.client->next_due() == Duration::max(); }));
    EXPECT_EQ(counter(shown(*world.client_nexus), "endpoint.calls_completed"), calls);
  }
}

TEST_F(Visible, page_shows_the_thousand_busiest_sessions) {
  ASSERT_NO_FATAL_FAILURE(make());
  constexpr size_t kSessions = 1100;
  std::vector<Session> sessions;
  for (size_t i = 0; i < kSessions; i++) {
    auto session = world.client->create_session(world.server_nexus->uri(), {.connect_timeout = kPatience});
    ASSERT_TRUE(session.ok()) << session.status().message();
    sessions.push_back(*session);
  }
  ASSERT_TRUE(world.run_until([&] {
    return std::all_of(sessions.begin(), sessions.end(), [&](Session s) { return world.client->is_open(s); });
  }));
  // The last session is the busiest one only after all others are quiet.
  const Session busy = sessions.back();
  PageEndpoint client;
  ASSERT_TRUE(world.run_until([&] {
    for (int i = 0; i < 100; i++) EXPECT_TRUE(world.ask(busy, kEcho, "hello").status.ok());
    client = shown(*world.client_nexus);
    return !client.sessions.empty() && client.sessions[0].name == busy.name;
  }));
  EXPECT_EQ(client.client_sessions, kSessions);
  EXPECT_EQ(client.sessions.size(), 1000u);
}

TEST_F(Visible, named_page_keeps_the_last_values) {
  const std::string path = ::testing::TempDir() + "tern-visible-test." + std::to_string(getpid());
  {
    auto nexus = Nexus::create("tern://127.0.0.1:0", {.page = path});
    ASSERT_TRUE(nexus.ok()) << nexus.status().message();
    ASSERT_EQ(*(*nexus)->page(), path);
    auto rpc = Rpc<Udp>::create(**nexus, {}, small_memory());
    ASSERT_TRUE(rpc.ok()) << rpc.status().message();
    // No session opens here. The page has the reason, although less than 100 ms pass.
    auto session = (*rpc)->create_session("tern://127.0.0.1:1", {});
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE((*rpc)->close(Duration(0)).ok());
  }
  auto page = read_page(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_TRUE(page->is_closed);
  ASSERT_EQ(page->endpoints.size(), 1u);
  EXPECT_TRUE(page->endpoints[0].is_closed);
  ASSERT_EQ(page->endpoints[0].ends.size(), 1u);
  EXPECT_EQ(page->endpoints[0].ends[0].reason, "the endpoint was closed");
}

TEST_F(Visible, endpoint_works_without_the_page_that_it_should_have) {
  ASSERT_NO_FATAL_FAILURE(world.make({.page = "/no-such-directory/page"}));
  EXPECT_EQ(world.client_nexus->page().status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(world.client_nexus->page().status().message()), HasSubstr("/no-such-directory/page"));
  EXPECT_EQ(world.client->counters().page_missing, 1u);
  EXPECT_TRUE(world.ask(world.open(), kEcho, "hello").status.ok());
}

TEST_F(Visible, wrong_option_is_misuse) {
  const auto nexus = Nexus::create("tern://127.0.0.1:0", {.page = "page"});
  ASSERT_FALSE(nexus.ok());
  EXPECT_EQ(nexus.status().code(), Code::kMisuse);
  const auto plain = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->page().status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tern::rpc_test
