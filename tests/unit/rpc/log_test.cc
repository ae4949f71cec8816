// The sink of NexusOptions::log: its events, their threads, and the calls that it may make.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tern/log.h>

#include "rpc/endpoint_core.h"
#include "unit/rpc/rpc_world.h"
#include "unit/transport/failing_sends.h"

namespace tern::rpc_test {
namespace {

/// An event with copies of its texts.
struct Heard {
  explicit Heard(const LogEvent& its)
      : event(its), nexus(its.nexus), transport(its.transport), peer(its.peer), text(to_string(its)) {}
  LogEvent event;
  std::string nexus, transport, peer, text;
  std::thread::id thread = std::this_thread::get_id();
};

class Sink final : public LogSink {
 public:
  void on_event(const LogEvent& event) override {
    std::lock_guard lock(mutex_);
    heard_.emplace_back(event);
  }
  std::vector<Heard> heard() const {
    std::lock_guard lock(mutex_);
    return heard_;
  }
  std::vector<Heard> heard(LogKind kind) const {
    auto all = heard();
    std::erase_if(all, [kind](const Heard& one) { return one.event.kind != kind; });
    return all;
  }
  bool has(LogKind kind) const { return !heard(kind).empty(); }

 private:
  mutable std::mutex mutex_;
  std::vector<Heard> heard_;
};

/// A server and a client, each with a sink.
class Log : public ::testing::Test {
 protected:
  void make(RpcOptions server_options = {}, NexusOptions nexus = {}) {
    at_server_ = std::make_shared<Sink>();
    at_client_ = std::make_shared<Sink>();
    nexus.log = at_server_;
    world_.server_nexus = Nexus::create("tern://127.0.0.1:0", nexus).value();
    nexus.log = at_client_;
    world_.client_nexus = Nexus::create("tern://127.0.0.1:0", nexus).value();
    world_.server =
        Rpc<Udp>::create(*world_.server_nexus, patient<Udp::Options>(), small_memory(server_options)).value();
    RpcOptions client_options;
    client_options.endpoint_id = 3;
    world_.client =
        Rpc<Udp>::create(*world_.client_nexus, patient<Udp::Options>(), small_memory(client_options)).value();
    uri_ = world_.server_nexus->uri();
    ASSERT_TRUE(world_.server->on_request(kEcho, echo).ok());
  }
  void wait_for(const Sink& sink, LogKind kind) {
    ASSERT_TRUE(world_.run_until([&] { return sink.has(kind); })) << to_string(kind);
  }
  /// Returns the "HOST:PORT" of a Nexus.
  static std::string address_of(const Nexus& nexus) { return nexus.uri().substr(7); }

  std::shared_ptr<Sink> at_server_, at_client_;
  World<Udp> world_;
  std::string uri_;
};

TEST_F(Log, session_opens_and_closes_at_both_ends) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world_.open();
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_server_, LogKind::kSessionOpened));
  ASSERT_TRUE(world_.client->destroy_session(session).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_server_, LogKind::kSessionClosed));

  const Heard opened = at_client_->heard(LogKind::kSessionOpened).at(0);
  EXPECT_EQ(opened.event.session, session);
  EXPECT_TRUE(opened.event.is_client);
  EXPECT_EQ(opened.event.endpoint, 3);
  EXPECT_EQ(opened.transport, "udp");
  EXPECT_EQ(opened.peer, address_of(*world_.server_nexus));
  EXPECT_EQ(opened.nexus, address_of(*world_.client_nexus));
  EXPECT_EQ(opened.event.severity, LogSeverity::kInfo);
  EXPECT_GT(opened.event.time.count(), 0);
  EXPECT_EQ(opened.thread, std::this_thread::get_id());
  const Heard closed = at_client_->heard(LogKind::kSessionClosed).at(0);
  EXPECT_EQ(closed.event.session, session);
  EXPECT_EQ(closed.event.status.code(), Code::kCancelled);
  const Heard left = at_server_->heard(LogKind::kSessionClosed).at(0);
  EXPECT_FALSE(left.event.is_client);
  EXPECT_EQ(left.event.endpoint, 0);
  EXPECT_EQ(left.peer, address_of(*world_.client_nexus));
  EXPECT_EQ(left.event.session, at_server_->heard(LogKind::kSessionOpened).at(0).event.session);
}

TEST_F(Log, nexus_and_endpoint_begin_and_end_in_order) {
  ASSERT_NO_FATAL_FAILURE(make());
  (void)world_.open();
  world_.client.reset();
  world_.client_nexus.reset();
  std::vector<LogKind> kinds;
  for (const Heard& heard : at_client_->heard()) kinds.push_back(heard.event.kind);
  const std::vector<LogKind> wanted = {LogKind::kNexusCreated,  LogKind::kEndpointCreated, LogKind::kSessionOpened,
                                       LogKind::kSessionClosed, LogKind::kEndpointClosed,  LogKind::kNexusClosed};
  EXPECT_EQ(kinds, wanted);
}

TEST_F(Log, endpoint_that_could_not_be_created_has_not_ended) {
  ASSERT_NO_FATAL_FAILURE(make());
  RpcOptions options;
  options.endpoint_id = 3;
  EXPECT_FALSE(Rpc<Udp>::create(*world_.client_nexus, patient<Udp::Options>(), small_memory(options)).ok());
  EXPECT_EQ(at_client_->heard(LogKind::kEndpointCreated).size(), 1u);
  EXPECT_FALSE(at_client_->has(LogKind::kEndpointClosed));
}

TEST_F(Log, server_and_client_tell_of_a_refusal_by_the_endpoint) {
  ASSERT_NO_FATAL_FAILURE(make({.server_sessions_max = 1}));
  (void)world_.open();
  ASSERT_TRUE(world_.client->create_session(uri_, {.connect_timeout = kPatience}).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kSessionRefused));
  const Heard client = at_client_->heard(LogKind::kSessionRefused).at(0);
  EXPECT_EQ(client.event.status.code(), Code::kQueueFull);
  EXPECT_EQ(client.peer, address_of(*world_.server_nexus));
  EXPECT_EQ(client.event.severity, LogSeverity::kWarning);
  const Heard server = at_server_->heard(LogKind::kSessionRefused).at(0);
  EXPECT_EQ(server.event.status.code(), Code::kQueueFull);
  EXPECT_EQ(server.event.session, Session{});
  EXPECT_EQ(server.peer, address_of(*world_.client_nexus));
}

TEST_F(Log, management_thread_tells_of_a_refusal_by_the_nexus) {
  ASSERT_NO_FATAL_FAILURE(make());
  ASSERT_TRUE(world_.client->create_session(uri_ + "/77", {.connect_timeout = kPatience}).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kSessionRefused));
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_server_, LogKind::kSessionRefused));
  const Heard server = at_server_->heard(LogKind::kSessionRefused).at(0);
  EXPECT_EQ(server.event.endpoint, 77);
  EXPECT_EQ(server.transport, "");
  EXPECT_EQ(server.event.status.code(), Code::kRefused);
  EXPECT_EQ(server.peer, address_of(*world_.client_nexus));
  EXPECT_NE(server.thread, std::this_thread::get_id());
}

/// A client asks again and again for a session that the server refuses.
TEST_F(Log, refusals_beyond_100_a_second_are_counted) {
  ASSERT_NO_FATAL_FAILURE(make({.server_sessions_max = 1}));
  (void)world_.open();
  size_t told = 0, left_out = 0, refused = 0;
  do {
    for (int i = 0; i < 300; i++) {
      ASSERT_TRUE(world_.client->create_session(uri_, {.connect_timeout = kPatience}).ok());
    }
    refused += 300;
    ASSERT_TRUE(world_.run_until([&] { return world_.server->counters().sessions_refused == refused; }));
    // A fast machine would come to the Nexus's own limit of sessions of one address before the second ends.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    told = left_out = 0;
    for (const Heard& heard : at_server_->heard(LogKind::kSessionRefused)) {
      told++;
      left_out += heard.event.left_out;
    }
  } while (left_out == 0);
  EXPECT_LE(told + left_out, refused);
  EXPECT_LT(told, refused);
}

TEST_F(Log, failed_session_has_the_reason) {
  ASSERT_NO_FATAL_FAILURE(make());
  auto nobody = Nexus::create("tern://127.0.0.1:0").value();  // has no endpoint, and therefore does not answer
  ASSERT_TRUE(world_.client->create_session(nobody->uri(), {.connect_timeout = milliseconds(20)}).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kSessionFailed));
  const Heard failed = at_client_->heard(LogKind::kSessionFailed).at(0);
  EXPECT_EQ(failed.event.status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(failed.peer, address_of(*nobody));
}

TEST_F(Log, session_that_reconnects_tells_each_attempt) {
  ASSERT_NO_FATAL_FAILURE(make());
  SessionOptions options;
  options.reconnect = true;
  options.reconnect_pause = milliseconds(1);
  options.connect_timeout = kPatience;
  const Session session = world_.client->create_session(uri_, options).value();
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kSessionOpened));
  world_.server.reset();
  world_.server_nexus.reset();
  ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kSessionReconnecting));
  const Heard lost = at_client_->heard(LogKind::kSessionReconnecting).at(0);
  EXPECT_EQ(lost.event.session, session);
  EXPECT_FALSE(lost.event.status.ok());
  EXPECT_GT(lost.event.pause.count(), 0);
  EXPECT_FALSE(at_client_->has(LogKind::kSessionLost));
  world_.server_nexus = Nexus::create(uri_).value();
  world_.server = Rpc<Udp>::create(*world_.server_nexus, patient<Udp::Options>(), small_memory()).value();
  ASSERT_TRUE(world_.run_until([&] { return at_client_->heard(LogKind::kSessionOpened).size() == 2; }));
  EXPECT_EQ(at_client_->heard(LogKind::kSessionOpened).at(1).event.session, session);
}

/// The sink makes the owner's calls, in the owner's thread, in the middle of the library's work.
TEST_F(Log, sink_may_post_and_owner_calls_are_refused_to_it) {
  Endpoint* endpoint = nullptr;
  std::vector<Code> codes;
  int posted = 0;
  auto sink = log_to([&](const LogEvent& event) {
    if (endpoint == nullptr || !event.endpoint) return;
    codes.push_back(endpoint->create_session(uri_).code());
    codes.push_back(endpoint->destroy_session(event.session).code());
    codes.push_back(static_cast<Rpc<Udp>*>(endpoint)->run_event_loop_once().code());
    codes.push_back(endpoint->session_info(event.session).status.code());
    EXPECT_TRUE(endpoint->alloc_msgbuf(100));
    EXPECT_TRUE(endpoint->post([&] { posted++; }).ok());
  });
  ASSERT_NO_FATAL_FAILURE(make());
  world_.client.reset();
  world_.client_nexus = Nexus::create("tern://127.0.0.1:0", {.log = sink}).value();
  world_.client = Rpc<Udp>::create(*world_.client_nexus, patient<Udp::Options>(), small_memory()).value();
  endpoint = world_.client.get();
  const Session session = world_.open();
  ASSERT_TRUE(world_.client->destroy_session(session).ok());
  ASSERT_TRUE(world_.run_until([&] { return posted == 2; }));
  ASSERT_EQ(codes.size(), 8u);
  for (const Code code : codes) EXPECT_EQ(code, Code::kWrongThread);
  // Afterwards the owner's calls work again.
  EXPECT_EQ(world_.ask(world_.open(), kEcho, "hello").response, "hello");
  rpc::EndpointCore::of(*world_.client).check_invariants();
  endpoint = nullptr;
  world_.client.reset();  // reports its end to the sink
  world_.client_nexus.reset();
}

TEST_F(Log, exception_of_the_sink_ends_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)Nexus::create("tern://127.0.0.1:0", {.log = log_to([](const LogEvent&) { throw 1; })}), "");
}

TEST_F(Log, missing_page_is_logged_with_the_reason) {
  auto sink = std::make_shared<Sink>();
  auto nexus = Nexus::create("tern://127.0.0.1:0", {.page = "/nowhere/at/all", .log = sink});
  ASSERT_TRUE(nexus.ok()) << nexus.status().message();
  ASSERT_TRUE(sink->has(LogKind::kPageMissing));
  EXPECT_EQ(sink->heard(LogKind::kPageMissing)[0].event.status.message(), (*nexus)->page().status().message());
}

/// The system refuses packets, as a firewall can make it do. At most one event a second reports them, with their
/// number.
TEST_F(Log, packets_that_the_system_refuses_are_told_with_their_number) {
  ASSERT_NO_FATAL_FAILURE(make());
  const Session session = world_.open();
  EXPECT_FALSE(at_client_->has(LogKind::kTransportFault));
  bool has_ended = false;
  {
    const failing_sends::Scope fail(EPERM);
    const auto call =
        world_.client->enqueue_request(session, kEcho, message(*world_.client, "hello"), world_.client->alloc_msgbuf(5),
                                       [&](Completion&) { has_ended = true; });
    ASSERT_TRUE(call.ok());
    ASSERT_NO_FATAL_FAILURE(wait_for(*at_client_, LogKind::kTransportFault));
  }
  const Heard fault = at_client_->heard(LogKind::kTransportFault).at(0);
  EXPECT_EQ(fault.event.severity, LogSeverity::kWarning);
  EXPECT_EQ(fault.event.endpoint, 3);
  EXPECT_EQ(fault.transport, "udp");
  EXPECT_EQ(fault.event.status.code(), Code::kUnavailable);
  EXPECT_NE(fault.event.status.message().find("firewall"), std::string_view::npos);
  EXPECT_GT(fault.event.count, 0u);
  EXPECT_LE(fault.event.count, world_.client->counters().transport.send_errors);
  EXPECT_TRUE(world_.run_until([&] { return has_ended; })) << "the endpoint goes on";
  EXPECT_FALSE(at_server_->has(LogKind::kTransportFault));
  EXPECT_FALSE(at_client_->has(LogKind::kTransportFailed));
}

TEST(LogText, kinds_are_words_and_events_one_line) {
  std::vector<std::string_view> words;
  for (int kind = 0; kind <= static_cast<int>(LogKind::kTransportFailed); kind++) {
    words.push_back(to_string(static_cast<LogKind>(kind)));
    EXPECT_NE(words.back(), "unknown");
  }
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end());
  LogEvent event;
  event.kind = LogKind::kSessionReconnecting;
  event.severity = severity_of(event.kind);
  event.nexus = "127.0.0.1:1";
  event.endpoint = 4;
  event.transport = "udp";
  event.session = Session{0x12};
  event.is_client = true;
  event.peer = "10.0.0.1:2";
  event.status = {Code::kPeerUnreachable, "it is gone"};
  event.pause = milliseconds(7);
  EXPECT_EQ(to_string(event),
            "warning: endpoint 4 (udp) of 127.0.0.1:1: session 12: session_reconnecting, peer 10.0.0.1:2, next attempt "
            "in 7 ms: it is gone");
}

}  // namespace
}  // namespace tern::rpc_test
