// Violations of API rules (promise 4), over each transport: the error names the rule, and nothing is lost.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "own_loopback.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

template <class T>
class Api : public ::testing::Test {
 protected:
  World<T> world;
};
TYPED_TEST_SUITE(Api, Transports, TransportNames);

template <class F>
void in_another_thread(F f) {
  std::thread(f).join();
}

// ---- Creation ----

TYPED_TEST(Api, nexus_create__malformed_uri_is_misuse) {
  for (const char* uri : {"", "tcp://127.0.0.1:1", "tern://127.0.0.1", "tern://:1", "tern://127.0.0.1:x",
                          "tern://127.0.0.1:70000", "tern://127.0.0.1:0/3", "127.0.0.1:0"}) {
    auto nexus = Nexus::create(uri);
    EXPECT_FALSE(nexus.ok()) << uri;
    EXPECT_EQ(nexus.status().code(), Code::kMisuse) << uri;
  }
}

TYPED_TEST(Api, nexus_create__taken_port_is_refused) {
  auto first = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  auto second = Nexus::create((*first)->uri());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
}

TYPED_TEST(Api, create__second_endpoint_with_an_id_is_misuse) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto again =
      Rpc<TypeParam>::create(*this->world.server_nexus, at_end<typename TypeParam::Options>(0), small_memory());
  EXPECT_EQ(again.status().code(), Code::kMisuse);
  auto other = Rpc<TypeParam>::create(*this->world.server_nexus, at_end<typename TypeParam::Options>(0),
                                      small_memory({.endpoint_id = 1}));
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ((*other)->id(), 1);
  // The failed attempt does not harm the endpoint that has the id. The end of that endpoint releases the id.
  const Session session = this->world.open();
  EXPECT_EQ(this->world.ask(session, kEcho, "x").response, "x");
  this->world.server.reset();
  auto heir = Rpc<TypeParam>::create(*this->world.server_nexus, at_end<typename TypeParam::Options>(0), small_memory());
  EXPECT_TRUE(heir.ok()) << heir.status().message();
}

TYPED_TEST(Api, create__options_out_of_range_are_misuse) {
  auto nexus = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok());
  auto no_memory = Rpc<TypeParam>::create(**nexus, at_end<typename TypeParam::Options>(0),
                                          small_memory({.memory_limit_bytes = 1000}));
  EXPECT_EQ(no_memory.status().code(), Code::kMisuse);
  using Options = typename TypeParam::Options;
  // The ranges of the named options are those that create() checks.
  const auto expect_misuse = [&]<class Value>(const OptionField<Options, Value>& field) {
    if constexpr (std::is_integral_v<Value>) {
      std::vector<uint64_t> outside;
      if (field.min > 0) outside.push_back(field.min - 1);
      if (field.max < std::numeric_limits<Value>::max()) outside.push_back(field.max + 1);
      for (const uint64_t value : outside) {
        auto bad = at_end<Options>(0);
        bad.*field.member = static_cast<Value>(value);
        EXPECT_EQ(Rpc<TypeParam>::create(**nexus, bad, small_memory()).status().code(), Code::kMisuse)
            << field.name << " = " << value;
      }
    }
  };
  std::apply([&](const auto&... field) { (expect_misuse(field), ...); }, Options::fields());
  if constexpr (requires { Options::ring_cells; }) {
    auto bad = at_end<Options>(0);
    bad.ring_cells = 1000;  // not a power of two
    EXPECT_EQ(Rpc<TypeParam>::create(**nexus, bad, small_memory()).status().code(), Code::kMisuse);
  }
  if constexpr (requires { Options::bind; }) {
    auto bad = at_end<Options>(0);
    bad.bind = "127.0.0.1:99999";
    EXPECT_EQ(Rpc<TypeParam>::create(**nexus, bad, small_memory()).status().code(), Code::kMisuse);
    bad.bind = "192.0.2.1:0";  // an address of no host (RFC 5737)
    const Code code = Rpc<TypeParam>::create(**nexus, bad, small_memory()).status().code();
    EXPECT_EQ(code, TypeParam::kName == "dpdk" ? Code::kMisuse : Code::kUnavailable);  // DPDK's option sets the address
  }
  // The id is still free.
  EXPECT_TRUE(Rpc<TypeParam>::create(**nexus, at_end<typename TypeParam::Options>(0), small_memory()).ok());
}

TYPED_TEST(Api, create__options_of_the_endpoint_out_of_range_are_misuse) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  for (const RpcOptions& bad :
       {RpcOptions{.endpoint_id = 7, .queue_limit = 0},
        RpcOptions{.endpoint_id = 7, .credit_limit = RpcOptions::kCreditLimitMax + 1},
        RpcOptions{.endpoint_id = 7, .wait = static_cast<Wait>(77)}, RpcOptions{.endpoint_id = 7, .spin = Duration(-1)},
        RpcOptions{.endpoint_id = 7, .congestion_control = static_cast<CongestionControl>(77)},
        RpcOptions{.endpoint_id = 7, .report_delay = seconds(-1)}}) {
    const Status status =
        Rpc<TypeParam>::create(*this->world.server_nexus, at_end<typename TypeParam::Options>(0), small_memory(bad))
            .status();
    EXPECT_EQ(status.code(), Code::kMisuse);
    EXPECT_NE(status.message().find("RpcOptions::"), std::string_view::npos) << status.message();
  }
}

// ---- Registration ----

TYPED_TEST(Api, null_functions_are_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  void (*const handler)(Request) = nullptr;
  EXPECT_EQ(server.on_request(7, handler).code(), Code::kMisuse);
  EXPECT_EQ(server.on_request(7, std::function<void(Request)>()).code(), Code::kMisuse);
  EXPECT_EQ(server.on_session_event(std::function<void(const SessionEvent&)>()).code(), Code::kMisuse);
  EXPECT_EQ(server.post(std::function<void()>()).code(), Code::kMisuse);
  EXPECT_EQ(server.after(Duration(0), std::function<void()>()).status().code(), Code::kMisuse);
  EXPECT_TRUE(server.on_request(7, std::function<void(Request)>(echo)).ok());
  const Session session = this->world.open();
  auto& client = *this->world.client;
  MsgBuf request = client.alloc_msgbuf(8);
  MsgBuf response = client.alloc_msgbuf(8);
  for (const bool runs : {false, true}) {
    EXPECT_EQ(client
                  .enqueue_request(session, 7, std::move(request), std::move(response),
                                   std::function<void(Completion&)>(), {.refusal_runs_then = runs})
                  .status()
                  .code(),
              Code::kMisuse);
    EXPECT_TRUE(request);
    EXPECT_TRUE(response);
  }
  EXPECT_EQ(this->world.ask(session, 7, "x").response, "x");
}

/// A function object that a null pointer can make, and that is equal to one made so.
struct Counting {
  int* runs;
  Counting(int* counter) : runs(counter) {}  // NOLINT(google-explicit-constructor): on purpose
  bool operator==(const Counting&) const = default;
  void operator()() const {
    if (runs != nullptr) ++*runs;
  }
};

TYPED_TEST(Api, functions_that_equal_null_by_a_conversion_are_taken) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  EXPECT_TRUE(this->world.server->post(Counting(nullptr)).ok());
}

TYPED_TEST(Api, on_request__wrong_arguments_are_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  EXPECT_EQ(server.on_request(kEcho, echo).code(), Code::kMisuse) << "twice";
  EXPECT_EQ(server.on_request(4096, echo).code(), Code::kMisuse) << "out of range";
  EXPECT_EQ(server.on_request(UINT16_MAX, echo).code(), Code::kMisuse) << "out of range";
  EXPECT_TRUE(server.on_request(4095, echo).ok());
  in_another_thread([&] { EXPECT_EQ(server.on_request(2, echo).code(), Code::kWrongThread); });
  this->world.turn();
  EXPECT_EQ(server.on_request(2, echo).code(), Code::kMisuse) << "late";
  const Session session = this->world.open();
  EXPECT_EQ(this->world.ask(session, 4095, "last type").response, "last type");
}

// ---- Threads and re-entrance ----

TYPED_TEST(Api, owner__every_call_from_another_thread_is_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const Session session = this->world.open();
  auto& client = *this->world.client;
  Outcome outcome;
  MsgBuf request = message(client, "x"), room = client.alloc_msgbuf(8);
  in_another_thread([&] {
    EXPECT_TRUE(client.alloc_msgbuf(8));
    EXPECT_EQ(client.create_session("tern://127.0.0.1:1").status().code(), Code::kWrongThread);
    EXPECT_EQ(client.destroy_session(session).code(), Code::kWrongThread);
    EXPECT_FALSE(client.is_open(session));
    client.prefetch(session);
    auto id = client.enqueue_request(session, kEcho, std::move(request), std::move(room), outcome.then());
    EXPECT_EQ(id.status().code(), Code::kWrongThread);
    EXPECT_EQ(client.cancel(CallId{1}).code(), Code::kWrongThread);
    EXPECT_EQ(client.after(seconds(0), [] {}).code(), Code::kWrongThread);
    EXPECT_EQ(client.run_event_loop(seconds(0)).code(), Code::kWrongThread);
    EXPECT_EQ(client.run_event_loop_once().status().code(), Code::kWrongThread);
    EXPECT_EQ(client.descriptor().status().code(), Code::kWrongThread);
    EXPECT_EQ(client.close(seconds(0)).code(), Code::kWrongThread);
  });
  EXPECT_TRUE(request && room) << "a refused call leaves the buffers with the caller";
  EXPECT_EQ(text_of(request.bytes()), "x");
  EXPECT_EQ(outcome.runs, 0);
  EXPECT_EQ(this->world.ask(session, kEcho, "y").response, "y");
}

TYPED_TEST(Api, owner__is_the_thread_that_runs_the_loop) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  EXPECT_TRUE(client.alloc_msgbuf(8)) << "until then the one that made the endpoint";
  in_another_thread([&] {
    ASSERT_TRUE(client.run_event_loop_once().ok());
    EXPECT_TRUE(client.alloc_msgbuf(8));
  });
  EXPECT_TRUE(client.alloc_msgbuf(8)) << "any thread";
  EXPECT_EQ(client.run_event_loop_once().status().code(), Code::kWrongThread);
}

TYPED_TEST(Api, run_event_loop__from_a_callback_is_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  auto& client = *this->world.client;
  std::vector<Code> codes;
  auto misuse = [&codes](auto& rpc) {
    codes.push_back(rpc.run_event_loop(seconds(0)).code());
    codes.push_back(rpc.run_event_loop_once().status().code());
    codes.push_back(rpc.descriptor().status().code());
    codes.push_back(rpc.close(seconds(0)).code());
  };
  ASSERT_TRUE(server
                  .on_request(2,
                              [&](Request request) {
                                misuse(server);
                                echo(std::move(request));
                              })
                  .ok());
  ASSERT_TRUE(client.after(seconds(0), [&] { misuse(client); }).ok());
  ASSERT_TRUE(client.post([&] { misuse(client); }).ok());
  const Session session = this->world.open();
  int runs = 0;
  auto id = client.enqueue_request(session, 2, client.alloc_msgbuf(1), client.alloc_msgbuf(8), [&](Completion& done) {
    EXPECT_TRUE(done.status.ok());
    misuse(client);
    runs++;
  });
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return runs == 1; });
  EXPECT_EQ(codes, std::vector<Code>(16, Code::kMisuse));
}

// ---- Sessions ----

TYPED_TEST(Api, create_session__wrong_arguments_are_refused_at_once) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  for (const char* uri :
       {"", "tern://", "shm://127.0.0.1:1", "tern://127.0.0.1:1/65536", "tern://127.0.0.1:1/x", "tern://127.0.0.1"}) {
    EXPECT_EQ(client.create_session(uri).status().code(), Code::kMisuse) << uri;
  }
  for (const int window : {0, 65, 255}) {
    auto session = client.create_session(this->world.server_nexus->uri(), {.window = static_cast<uint8_t>(window)});
    EXPECT_EQ(session.status().code(), Code::kMisuse) << window;
  }
}

TYPED_TEST(Api, create_session__options_out_of_range_are_misuse) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const std::string uri = this->world.server_nexus->uri();
  for (const SessionOptions& bad :
       {SessionOptions{.connect_timeout = Duration(0)}, SessionOptions{.connect_timeout = seconds(-1)},
        SessionOptions{.congestion_control = static_cast<CongestionControl>(77)},
        SessionOptions{.reconnect = true, .reconnect_pause = seconds(-1)},
        SessionOptions{.reconnect = true, .reconnect_pause_max = Duration(0)}}) {
    const Status status = this->world.client->create_session(uri, bad).status();
    EXPECT_EQ(status.code(), Code::kMisuse);
    EXPECT_NE(status.message().find("SessionOptions::"), std::string_view::npos) << status.message();
  }
}

TYPED_TEST(Api, create_session__takes_the_old_scheme_of_uris) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const std::string uri = this->world.server_nexus->uri();
  ASSERT_TRUE(uri.starts_with("tern://"));
  auto session = this->world.client->create_session("udp" + uri.substr(uri.find(':')));
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_TRUE(this->world.run_until([&] { return this->world.client->is_open(*session); }));
}

TYPED_TEST(Api, create_session__address_without_a_server_is_unreachable) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  struct Case {
    std::string uri;
    Code code;
  };
  const std::string free_port = [] {
    auto nexus = Nexus::create("tern://" + test::own_loopback() + ":0");
    return (*nexus)->uri();
  }();
  for (const Case& expected :
       {Case{this->world.server_nexus->uri() + "/77", Code::kRefused}, Case{free_port, Code::kPeerUnreachable}}) {
    auto session = client.create_session(expected.uri, {.connect_timeout = milliseconds(300)});
    ASSERT_TRUE(session.ok());
    EXPECT_FALSE(client.is_open(*session));
    const Outcome outcome = this->world.ask(*session, kEcho, "hello");
    EXPECT_EQ(outcome.code(), expected.code) << expected.uri << ": " << outcome.status.message();
    EXPECT_TRUE(outcome.has_buffers);
    EXPECT_EQ(text_of(outcome.request.bytes()), "hello");
    this->world.turns(3);
    EXPECT_EQ(client.destroy_session(*session).code(), Code::kSessionReset);
  }
}

TYPED_TEST(Api, create_session__endpoint_of_another_transport_refuses) {
  using Other = OtherTransport<TypeParam>;
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto other = Rpc<Other>::create(*this->world.server_nexus, {}, small_memory({.endpoint_id = 9}));
  ASSERT_TRUE(other.ok());
  auto session = this->world.client->create_session(this->world.server_nexus->uri() + "/9");
  ASSERT_TRUE(session.ok());
  Outcome outcome;
  ASSERT_TRUE(this->world.call(*session, kEcho, "x", outcome).ok());
  this->world.run_until([&] {
    EXPECT_TRUE((*other)->run_event_loop_once().ok());
    return outcome.runs == 1;
  });
  EXPECT_EQ(outcome.code(), Code::kRefused);
}

TYPED_TEST(Api, create_session__beyond_the_servers_limit_is_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {.server_sessions_max = 1}));
  const Session first = this->world.open();
  auto second = this->world.client->create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(second.ok());
  const Outcome outcome = this->world.ask(*second, kEcho, "x");
  EXPECT_FALSE(outcome.status.ok());
  EXPECT_EQ(this->world.server->counters().sessions_refused, 1u);
  EXPECT_EQ(this->world.ask(first, kEcho, "x").response, "x");
  // The end of the session releases its place.
  ASSERT_TRUE(this->world.client->destroy_session(first).ok());
  for (int i = 0; i < 100; i++) {
    auto third = this->world.client->create_session(this->world.server_nexus->uri());
    ASSERT_TRUE(third.ok());
    if (this->world.ask(*third, kEcho, "x").status.ok()) return;
  }
  FAIL() << "the server never forgot the first session";
}

TYPED_TEST(Api, create_session__to_the_own_endpoint_answers_calls) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& server = *this->world.server;
  auto session = server.create_session(this->world.server_nexus->uri());
  ASSERT_TRUE(session.ok());
  Outcome outcome;
  auto id = server.enqueue_request(*session, kEcho, message(server, "me"), server.alloc_msgbuf(8), outcome.then());
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return outcome.runs == 1; });
  EXPECT_EQ(outcome.response, "me") << outcome.status.message();
}

TYPED_TEST(Api, session__is_stale_after_its_end) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  const Session session = this->world.open();
  ASSERT_TRUE(client.destroy_session(session).ok());
  EXPECT_EQ(client.destroy_session(session).code(), Code::kSessionReset) << "twice";
  this->world.turns(3);
  EXPECT_FALSE(client.is_open(session));
  MsgBuf request = message(client, "x"), room = client.alloc_msgbuf(8);
  Outcome outcome;
  for (const Session& stale :
       {session, Session{}, Session{session.name ^ 1}, Session{session.name + (uint64_t{1} << 32)}, Session{0},
        Session{session.name + (1u << 22)}}) {
    auto id = client.enqueue_request(stale, kEcho, std::move(request), std::move(room), outcome.then());
    EXPECT_EQ(id.status().code(), Code::kSessionReset);
    EXPECT_EQ(client.destroy_session(stale).code(), Code::kSessionReset);
    EXPECT_FALSE(client.is_open(stale));
    client.prefetch(stale);
  }
  EXPECT_TRUE(request && room);
  EXPECT_EQ(outcome.runs, 0);
}

// A key is reused some seconds after its session has ended, so the handle must distinguish more sessions than the wire
// does.
TYPED_TEST(Api, session__name_of_an_ended_session_is_not_used_again) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  auto first = client.create_session("tern://127.0.0.1:9");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(client.destroy_session(*first).ok());
  ASSERT_TRUE(client.run_event_loop_once().ok());
  for (int i = 0; i < 3000; i++) {
    auto next = client.create_session("tern://127.0.0.1:9");
    ASSERT_TRUE(next.ok());
    ASSERT_FALSE(*next == *first) << i;
    ASSERT_EQ(client.destroy_session(*first).code(), Code::kSessionReset) << i;
    ASSERT_TRUE(client.destroy_session(*next).ok());
    ASSERT_TRUE(client.run_event_loop_once().ok());
  }
}

// ---- Messages ----

TYPED_TEST(Api, alloc_msgbuf__length_above_a_limit_gives_no_buffer) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {}, {.memory_limit_bytes = 64u << 20}));
  auto& client = *this->world.client;
  EXPECT_FALSE(client.alloc_msgbuf(size_t{2} << 30)) << "2 GiB";
  EXPECT_FALSE(client.alloc_msgbuf((size_t{1} << 30) + 1));
  EXPECT_FALSE(client.alloc_msgbuf(SIZE_MAX));
  EXPECT_FALSE(client.alloc_msgbuf(64u << 20)) << "beyond memory_limit_bytes";
  MsgBuf buffer = client.alloc_msgbuf(100);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer.bytes().size(), 100u);
  EXPECT_GE(buffer.capacity(), 100u);
  EXPECT_FALSE(buffer.resize(buffer.capacity() + 1));
  EXPECT_EQ(buffer.bytes().size(), 100u);
  EXPECT_TRUE(buffer.resize(buffer.capacity()));
}

TYPED_TEST(Api, enqueue_request__wrong_arguments_are_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  auto& server = *this->world.server;
  const Session session = this->world.open();
  Outcome outcome;
  MsgBuf request = message(client, "x"), room = client.alloc_msgbuf(8), empty, foreign = server.alloc_msgbuf(8);
  auto code_of = [&](uint16_t type, MsgBuf& a, MsgBuf& b) {
    auto id = client.enqueue_request(session, type, std::move(a), std::move(b), outcome.then());
    return id.status().code();
  };
  EXPECT_EQ(code_of(kEcho, empty, room), Code::kMisuse);
  EXPECT_EQ(code_of(kEcho, request, empty), Code::kMisuse);
  EXPECT_EQ(code_of(kEcho, foreign, room), Code::kMisuse);
  EXPECT_EQ(code_of(kEcho, request, foreign), Code::kMisuse);
  EXPECT_EQ(code_of(4096, request, room), Code::kMisuse);
  EXPECT_EQ(code_of(UINT16_MAX, request, room), Code::kMisuse);
  EXPECT_EQ(code_of(kEcho, request, request), Code::kMisuse) << "one buffer cannot be both";
  EXPECT_TRUE(request && room && foreign);
  EXPECT_EQ(outcome.runs, 0);
  EXPECT_EQ(code_of(kEcho, request, room), Code::kOk);
  EXPECT_FALSE(request || room);
  this->world.run_until([&] { return outcome.runs == 1; });
  EXPECT_EQ(outcome.response, "x");
}

TYPED_TEST(Api, enqueue_request__full_queue_is_refused) {
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {}, {.queue_limit = 3}));
  const Session session = this->world.open({.window = 2});
  std::vector<std::unique_ptr<Outcome>> outcomes;
  for (int i = 0; i < 5; i++) {
    outcomes.push_back(std::make_unique<Outcome>());
    ASSERT_TRUE(this->world.call(session, kEcho, std::to_string(i), *outcomes.back()).ok()) << i;
  }
  Outcome refused;
  MsgBuf request = message(*this->world.client, "x"), room = this->world.client->alloc_msgbuf(8);
  auto id = this->world.client->enqueue_request(session, kEcho, std::move(request), std::move(room), refused.then());
  EXPECT_EQ(id.status().code(), Code::kQueueFull);
  EXPECT_TRUE(request && room);
  for (int i = 0; i < 5; i++) {
    this->world.run_until([&] { return outcomes[i]->runs == 1; });
    EXPECT_EQ(outcomes[i]->response, std::to_string(i));
  }
  EXPECT_EQ(refused.runs, 0);
  EXPECT_EQ(this->world.ask(session, kEcho, "again").response, "again");
}

TYPED_TEST(Api, cancel__unknown_call_is_misuse) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const Session session = this->world.open();
  Outcome outcome;
  auto id = this->world.call(session, kEcho, "x", outcome);
  ASSERT_TRUE(id.ok());
  this->world.run_until([&] { return outcome.runs == 1; });
  auto& client = *this->world.client;
  EXPECT_EQ(client.cancel(*id).code(), Code::kMisuse) << "it has ended";
  EXPECT_EQ(client.cancel(CallId{}).code(), Code::kMisuse);
  EXPECT_EQ(client.cancel(CallId{UINT64_MAX}).code(), Code::kMisuse);
}

// ---- Completion statuses that come from the other side ----

TYPED_TEST(Api, call__refused_for_its_size_takes_no_memory) {
  constexpr uint16_t kSmall = 2;
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {.memory_limit_bytes = 8u << 20}));
  auto& server = *this->world.server;
  ASSERT_TRUE(server.on_request(kSmall, echo, {.max_request_bytes = 10}).ok());
  const Session session = this->world.open();
  std::vector<MsgBuf> all;
  for (const size_t len_bytes : {60'000, 4'000}) {
    for (MsgBuf one; (one = server.alloc_msgbuf(len_bytes));) all.push_back(std::move(one));
  }
  EXPECT_EQ(this->world.ask(session, kEcho, std::string(50'000, 'e')).code(), Code::kNoMemory);
  EXPECT_EQ(this->world.ask(session, kSmall, std::string(50'000, 's')).code(), Code::kTooLarge);
}

TYPED_TEST(Api, call__refused_by_the_server) {
  constexpr uint16_t kSmall = 2, kDropping = 3, kFailing = 4, kTwice = 5;
  ASSERT_NO_FATAL_FAILURE(this->world.make({}, {.receive_budget_bytes = 100'000}));
  auto& server = *this->world.server;
  ASSERT_TRUE(server.on_request(kSmall, echo, {.max_request_bytes = 10}).ok());
  ASSERT_TRUE(server.on_request(kDropping, [](Request) {}).ok());
  ASSERT_TRUE(server.on_request(kFailing, [](Request request) { request.fail(4711); }).ok());
  ASSERT_TRUE(server
                  .on_request(kTwice,
                              [](Request request) {
                                reply(std::move(request), "once");
                                request.respond();  // an empty Request: has no effect
                                request.fail(1);
                                EXPECT_EQ(request.response(3).status().code(), Code::kMisuse);
                                EXPECT_TRUE(request.bytes().empty());
                                EXPECT_TRUE(request.is_cancelled());
                              })
                  .ok());
  const Session session = this->world.open();
  const std::string large(200'000, 'l');
  EXPECT_EQ(this->world.ask(session, 99, "no handler").code(), Code::kRefused);
  EXPECT_EQ(this->world.ask(session, 99, large).code(), Code::kRefused);
  EXPECT_EQ(this->world.ask(session, kSmall, "0123456789").response, "0123456789");
  EXPECT_EQ(this->world.ask(session, kSmall, "01234567890").code(), Code::kTooLarge);
  EXPECT_EQ(this->world.ask(session, kSmall, large).code(), Code::kTooLarge);
  EXPECT_EQ(this->world.ask(session, kEcho, large, 200'000).code(), Code::kNoMemory);
  EXPECT_EQ(this->world.ask(session, kDropping, "x").code(), Code::kNoResponse);
  const Outcome failed = this->world.ask(session, kFailing, "x");
  EXPECT_EQ(failed.code(), Code::kRefused);
  EXPECT_EQ(failed.app_code, 4711);
  EXPECT_TRUE(failed.has_buffers);
  EXPECT_EQ(this->world.ask(session, kTwice, "x").response, "once");
  EXPECT_EQ(this->world.ask(session, kEcho, "0123456789", 3).code(), Code::kOk) << "capacity counts, not length";
  EXPECT_EQ(this->world.ask(session, kEcho, std::string(90'000, 'r'), 3).code(), Code::kTooLarge);
  EXPECT_EQ(this->world.ask(session, kEcho, "", 0).response, "");
  const auto& counters = server.counters();
  EXPECT_EQ(counters.refused_no_handler, 2u);
  EXPECT_EQ(counters.refused_too_large, 2u);
  EXPECT_EQ(counters.refused_no_memory, 1u);
  // The session has survived all of these errors.
  EXPECT_EQ(this->world.ask(session, kEcho, std::string(90'000, 'r'), 90'000).response, std::string(90'000, 'r'));
}

TYPED_TEST(Api, call__every_size_arrives_whole) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  const Session session = this->world.open();
  for (const size_t bytes : {0u, 1u, 31u, 32u, 33u, 511u, 512u, 513u, 1375u, 1376u, 1377u, 2752u, 2753u, 65'535u,
                             65'536u, 65'537u, 131'072u, 1'000'000u}) {
    std::string text(bytes, 0);
    for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>(i * 131 + bytes);
    const Outcome outcome = this->world.ask(session, kEcho, text, bytes);
    EXPECT_TRUE(outcome.status.ok()) << bytes << ": " << outcome.status.message();
    EXPECT_TRUE(outcome.response == text) << bytes;
    EXPECT_TRUE(text_of(outcome.request.bytes()) == text) << bytes;
  }
}

// ---- Closed endpoints ----

TYPED_TEST(Api, close__leaves_only_errors) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  const Session session = this->world.open();
  MsgBuf request = message(client, "x"), room = client.alloc_msgbuf(8);
  ASSERT_TRUE(client.close(seconds(0)).ok());
  Outcome outcome;
  EXPECT_EQ(client.close(seconds(0)).code(), Code::kSessionReset);
  EXPECT_EQ(client.run_event_loop(seconds(0)).code(), Code::kSessionReset);
  EXPECT_EQ(client.run_event_loop_once().status().code(), Code::kSessionReset);
  EXPECT_EQ(client.descriptor().status().code(), Code::kSessionReset);
  EXPECT_EQ(client.create_session(this->world.server_nexus->uri()).status().code(), Code::kSessionReset);
  EXPECT_EQ(client.destroy_session(session).code(), Code::kSessionReset);
  client.prefetch(session);
  auto id = client.enqueue_request(session, kEcho, std::move(request), std::move(room), outcome.then());
  EXPECT_EQ(id.status().code(), Code::kSessionReset);
  EXPECT_TRUE(request && room);
  EXPECT_EQ(client.after(seconds(0), [] {}).code(), Code::kSessionReset);
  EXPECT_EQ(client.post([] {}).code(), Code::kSessionReset);
  EXPECT_GT(client.now().count(), 0);
  client.stop();
  EXPECT_FALSE(client.is_open(session));
  EXPECT_EQ(outcome.runs, 0);
}

TYPED_TEST(Api, close__continuations_run_in_it_and_can_ask_for_nothing_more) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  auto& client = *this->world.client;
  const Session session = this->world.open({.window = 2});
  std::vector<Code> codes;
  int runs = 0;
  for (int i = 0; i < 5; i++) {
    auto id =
        client.enqueue_request(session, kEcho, message(client, "x"), client.alloc_msgbuf(8), [&](Completion& done) {
          runs++;
          EXPECT_EQ(done.status.code(), Code::kCancelled);
          EXPECT_TRUE(done.request && done.response);
          MsgBuf request = std::move(done.request), room = std::move(done.response);
          auto again =
              client.enqueue_request(session, kEcho, std::move(request), std::move(room), [](Completion&) { FAIL(); });
          codes.push_back(again.status().code());
          EXPECT_TRUE(request && room);
          codes.push_back(client.create_session(this->world.server_nexus->uri()).status().code());
          codes.push_back(client.after(seconds(0), [] {}).code());
          const Status closed = client.close(seconds(0));
          EXPECT_EQ(closed.code(), Code::kMisuse);
          EXPECT_NE(closed.message().find("close the endpoint: call stop()"), std::string_view::npos) << closed;
          EXPECT_GT(client.now().count(), 0);
          client.stop();
        });
    ASSERT_TRUE(id.ok());
  }
  ASSERT_TRUE(client.close(seconds(0)).ok());
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(codes, std::vector<Code>(15, Code::kSessionReset));
}

TYPED_TEST(Api, msgbuf__outlives_its_endpoint) {
  ASSERT_NO_FATAL_FAILURE(this->world.make());
  MsgBuf here = message(*this->world.client, "still here");
  MsgBuf there = message(*this->world.client, "still there");
  MsgBuf large = this->world.client->alloc_msgbuf(3u << 20);
  this->world.client.reset();
  EXPECT_EQ(text_of(here.bytes()), "still here");
  std::memset(large.bytes().data(), 1, large.bytes().size());
  std::thread([buffer = std::move(there)] { EXPECT_EQ(text_of(buffer.bytes()), "still there"); }).join();
}

}  // namespace
}  // namespace tern::rpc_test
