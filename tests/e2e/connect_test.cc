// Sessions that fail to open, open late, or are closed in order, over every transport.

#include <gmock/gmock.h>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::HasSubstr;

namespace {

/// Connects, makes a call on the new session, and returns how it ended.
Call* call_over_new_session(Caller& caller, const std::string& uri, tern::SessionOptions options = {}) {
  Call* call = caller.send_order(caller.connect(uri, options), kWork, {1, 10, 0});
  EXPECT_NE(call, nullptr);
  EXPECT_TRUE(caller.run_until([&] { return call->ends == 1; }));
  return call;
}

}  // namespace

class Connect : public OverTransports {
 protected:
  /// An address at which no server listens, because the server there has just ended.
  std::string free_uri() const { return Peer(settings()).listen_uri(); }
};
E2E_OVER_TRANSPORTS(Connect);

TEST_P(Connect, unknown_endpoint_id_is_refused) {
  Peer server(settings());
  Caller caller(settings());
  Call* call = call_over_new_session(caller, server.uri(7));
  EXPECT_EQ(call->code(), Code::kRefused);
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("endpoint"));
  EXPECT_EQ(call_over_new_session(caller, server.uri(0))->code(), Code::kOk);
}

TEST_P(Connect, endpoint_of_another_transport_refuses) {
  Peer server({{"transport", other_transport()}});
  Caller caller(settings());
  Call* call = call_over_new_session(caller, server.uri());
  EXPECT_EQ(call->code(), Code::kRefused);
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("transport"));
}

TEST_P(Connect, session_beyond_the_servers_limit_is_refused) {
  Peer server(settings().with("sessions_max", 2).with("sessions_per_peer_max", 2));
  Caller caller(settings());
  const tern::Session first = caller.open(server.uri());
  caller.open(server.uri());
  Call* call = call_over_new_session(caller, server.uri());
  EXPECT_EQ(call->code(), Code::kQueueFull);
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("sessions"));
  // A session that ends makes room for another one.
  EXPECT_TRUE(caller.endpoint().destroy_session(first).ok());
  EXPECT_TRUE(caller.run_until([&] { return call_over_new_session(caller, server.uri())->status.ok(); }));
}

TEST_P(Connect, address_without_a_server_is_unreachable) {
  const std::string uri = free_uri();
  Caller caller(settings());
  const auto begin = std::chrono::steady_clock::now();
  Call* call = call_over_new_session(caller, uri, {.connect_timeout = std::chrono::milliseconds(300)});
  EXPECT_EQ(call->code(), Code::kPeerUnreachable);
  EXPECT_THAT(std::string(call->status.message()),
              HasSubstr("nothing listens at " + uri.substr(std::strlen("tern://"))));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(290));
}

TEST_P(Connect, late_server_answers_waiting_calls) {
  const std::string listen = free_uri();
  Caller caller(settings());
  const tern::Session session = caller.connect(listen + "/0", {.connect_timeout = kBound});
  for (uint64_t id = 0; id < 20; id++) caller.send_order(session, kWork, {id, 3000, 0}, 3000);
  caller.run_for(std::chrono::milliseconds(300));
  EXPECT_EQ(caller.ended(), 0u);
  Peer server(settings().with("listen", listen));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
}

TEST_P(Connect, malformed_uris_and_windows_are_misuse) {
  Caller caller(settings());
  for (const char* uri :
       {"", "tern://", "127.0.0.1:1", "tcp://127.0.0.1:1/0", "tern://127.0.0.1/0", "tern://127.0.0.1:x/0",
        "tern://127.0.0.1:1/65536", "tern://127.0.0.1:70000/0", "tern://:1/0"}) {
    auto session = caller.endpoint().create_session(uri);
    EXPECT_FALSE(session.ok()) << uri;
    EXPECT_EQ(session.status().code(), Code::kMisuse) << uri;
    EXPECT_THAT(std::string(session.status().message()), HasSubstr("tern://HOST:PORT")) << uri;
  }
  for (const char* uri : {"tern://127.0.0.1:0", "tern://127.0.0.1:0/0", "tern://localhost:000/1"}) {
    auto session = caller.endpoint().create_session(uri);
    EXPECT_EQ(session.status().code(), Code::kMisuse) << uri;
    EXPECT_THAT(std::string(session.status().message()), HasSubstr("port 0 names no server")) << uri;
  }
  for (int window : {0, 65, 255}) {
    auto session = caller.endpoint().create_session("tern://127.0.0.1:1", {.window = static_cast<uint8_t>(window)});
    EXPECT_EQ(session.status().code(), Code::kMisuse) << window;
  }
}

TEST_P(Connect, second_nexus_on_a_port_is_refused) {
  Peer server(settings());
  Peer second(settings().with("listen", server.listen_uri()));
  EXPECT_EQ(second.board().state, Board::kRefused);
  EXPECT_EQ(second.board().refused_code, static_cast<uint32_t>(Code::kUnavailable));
  EXPECT_THAT(second.board().refused_text, HasSubstr("port"));
  auto third = tern::Nexus::create(server.listen_uri());
  EXPECT_EQ(third.status().code(), Code::kUnavailable);
  // The first Nexus still works.
  Caller caller(settings());
  EXPECT_EQ(call_over_new_session(caller, server.uri())->code(), Code::kOk);
}

TEST_P(Connect, second_endpoint_with_an_id_is_misuse) {
  auto nexus = create_nexus();
  Caller first(*nexus, settings(), 3);
  auto second = create_rpc(*nexus, settings().with_defaults_of(kCallerDefaults), 3);
  EXPECT_EQ(second.status().code(), Code::kMisuse);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("endpoint"));
}

class ConnectOnOneHost : public Connect {};
INSTANTIATE_TEST_SUITE_P(Over, ConnectOnOneHost, testing::ValuesIn(transports_of_one_host()),
                         [](const auto& with) { return std::string(with.param); });

TEST_P(ConnectOnOneHost, calls_over_ipv6_are_answered) {
  Peer server(settings().with("listen", "tern://[::1]:0"));
  if (server.board().state != Board::kReady) GTEST_SKIP() << "no IPv6 here: " << server.board().refused_text;
  Caller caller(settings().with("listen", "tern://[::1]:0"));
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 50; id++) caller.send_order(session, kWork, {id, 5000, 0}, 5000);
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
}

TEST_P(ConnectOnOneHost, host_names_and_wildcard_addresses_connect) {
  Peer server(settings().with("listen", "tern://0.0.0.0:0"));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  const std::string listen = server.listen_uri();
  const std::string port = listen.substr(listen.rfind(':'));
  for (const char* host : {"127.0.0.1", "localhost"}) {
    Caller caller(settings().with("listen", "tern://0.0.0.0:0"));
    Call* call = call_over_new_session(caller, std::string("tern://") + host + port + "/0");
    EXPECT_EQ(call->code(), Code::kOk) << call->status.message();
  }
}

TEST_P(Connect, session_to_the_own_endpoint_answers_calls) {
  auto nexus = create_nexus();
  Caller caller(*nexus, settings(), 0);
  ASSERT_TRUE(caller.endpoint()
                  .on_request(kEcho,
                              [](tern::Request request) {
                                auto room = request.response(request.bytes().size());
                                ASSERT_TRUE(room.ok());
                                std::memcpy(room->data(), request.bytes().data(), room->size());
                                request.respond();
                              })
                  .ok());
  const tern::Session session = caller.open(nexus->uri() + "/0");
  for (uint64_t id = 0; id < 20; id++) caller.send_pattern(session, kEcho, id * 1000, id);
  ASSERT_TRUE(caller.finish());
  for (uint64_t id = 0; id < 20; id++) EXPECT_TRUE(is_filled(caller.calls()[id]->response.bytes(), id));
}

TEST_P(Connect, draining_server_answers_the_requests_it_has) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 8; id++) caller.send_order(session, kWork, {id, 5000, 300'000}, 5000);
  ASSERT_TRUE(caller.run_until([&] { return server.board().handled == 8; }));
  // The client's loop must run on, because its report of the finished requests ends the draining.
  std::atomic<bool> is_closed{false};
  std::thread closer([&] {
    server.close(5000);
    is_closed = true;
  });
  EXPECT_TRUE(caller.run_until([&] { return is_closed.load(); }));
  closer.join();
  EXPECT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
}

TEST_P(Connect, closing_server_answers_or_resets_each_call) {
  for (uint32_t drain_ms : {0u, 500u}) {
    auto server = std::make_unique<Peer>(settings());
    Caller caller(settings());
    const tern::Session session = caller.open(server->uri());
    for (uint64_t id = 0; id < 2000; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id % 7 * 3000), 0}, 24 + id % 13 * 2000);
    }
    ASSERT_TRUE(caller.run_until([&] { return caller.ended() > 200; }));
    std::thread closer([&] { server->close(drain_ms); });
    EXPECT_TRUE(caller.finish());
    closer.join();
    for (const auto& call : caller.calls()) {
      if (call->status.ok()) {
        EXPECT_TRUE(Caller::is_right(*call));
      } else {
        EXPECT_EQ(call->code(), Code::kSessionReset) << call->status.message();
      }
    }
    for (uint64_t id = 0; id < 2000; id++) {
      const int handled = server->board().handled_by_id[id];
      EXPECT_LE(handled, 1);
      EXPECT_GE(handled, caller.calls()[id]->status.ok() ? 1 : 0);
    }
  }
}

TEST_P(Connect, draining_client_gets_all_answers) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 100; id++) caller.send_order(session, kWork, {id, 3000, 1000}, 3000);
  EXPECT_TRUE(caller.rpc().close(kBound).ok());
  EXPECT_EQ(caller.ended(), 100u);
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  EXPECT_EQ(caller.rpc().run(std::chrono::milliseconds(1)).code(), Code::kSessionReset);
}

TEST_P(Connect, client_that_closes_at_once_cancels_its_calls) {
  Peer server(settings());
  const size_t descriptors = descriptors_of(server.pid());
  const size_t mappings = mappings_of(server.pid(), "memfd:");
  for (int round = 0; round < 5; round++) {
    Caller caller(settings());
    const tern::Session session = caller.open(server.uri());
    for (uint64_t i = 0; i < 30; i++) caller.send_pattern(session, kHold, i * 1000, i);
    ASSERT_TRUE(caller.run_until([&] { return server.board().held == 8; }));
    EXPECT_TRUE(caller.rpc().close(std::chrono::milliseconds(0)).ok());
    EXPECT_EQ(caller.ended(), 30u);
    for (const auto& call : caller.calls()) EXPECT_EQ(call->code(), Code::kCancelled);
    // The server is told, and so are its handlers.
    EXPECT_TRUE(wait_for([&] { return server.board().held == 0; }));
  }
  EXPECT_EQ(server.board().cancels_seen, 40u);
  EXPECT_TRUE(wait_for([&] { return descriptors_of(server.pid()) <= descriptors + 2; }))
      << descriptors_of(server.pid());
  EXPECT_TRUE(wait_for([&] { return mappings_of(server.pid(), "memfd:") <= mappings + 2; }))
      << mappings_of(server.pid(), "memfd:") << " mappings, at first " << mappings;
}

TEST_P(Connect, session_destroyed_while_it_opens_ends_its_calls) {
  Peer server(settings());
  Caller caller(settings());
  for (int round = 0; round < 50; round++) {
    const tern::Session session = caller.connect(server.uri());
    caller.send_order(session, kWork, {static_cast<uint64_t>(round), 10, 0});
    caller.run_for(std::chrono::microseconds(round * 20));
    EXPECT_TRUE(caller.endpoint().destroy_session(session).ok());
    EXPECT_EQ(caller.endpoint().destroy_session(session).code(), Code::kSessionReset);
  }
  EXPECT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(call->status.ok() || call->code() == Code::kCancelled);
  EXPECT_EQ(call_over_new_session(caller, server.uri())->code(), Code::kOk);
}
