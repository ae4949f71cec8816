// A path that stops carrying packets of full length while a session is open, because of a route with a smaller MTU or a
// policer. Calls end with that reason after few packets (docs/protocol.md, 4.3.3 and 6.4.2). Virtual time.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kTake = 1;
constexpr uint16_t kGive = 2;
constexpr uint16_t kLater = 3;
constexpr size_t kLong = 2000;
constexpr uint64_t kMs = 1'000'000;

class NarrowPath : public VirtualWorld {
 protected:
  NarrowPath() {
    const auto drop_full = [](const bool& is_narrow, uint64_t& packets) {
      return [&](const wire::Header&, size_t payload_bytes) {
        packets++;
        return !is_narrow || payload_bytes < kPayloadBytes;
      };
    };
    VirtualHost& host = add("10.0.0.1:1", {}, drop_full(is_narrow_to_client_, from_server_));
    EXPECT_TRUE(host.rpc->on_request(kTake, [](Request request) { answer(request, 1); }).ok());
    EXPECT_TRUE(host.rpc->on_request(kGive, [](Request request) { answer(request, kLong); }).ok());
    EXPECT_TRUE(host.rpc->on_request(kLater, [this](Request request) { kept_.emplace(std::move(request)); }).ok());
    add("10.0.0.2:1", {}, drop_full(is_narrow_to_server_, from_client_));
    session_ = open(client());
    call(kTake, 1);
    run_until([&] { return answered_ == 1; });
  }
  ~NarrowPath() override {
    kept_.reset();
    hosts_.clear();  // ends calls
  }
  static void answer(Request& request, size_t bytes) {
    auto out = request.response(bytes);
    ASSERT_TRUE(out.ok()) << out.status().message();
    std::memset(out->data(), 0x5a, bytes);
    request.respond();
  }
  VirtualHost& client() { return *hosts_[1]; }
  void call(uint16_t type, size_t bytes) {
    begun_++;
    const auto id = client().rpc->enqueue_request(session_, type, client().rpc->alloc_msgbuf(bytes),
                                                  client().rpc->alloc_msgbuf(kLong), [this](Completion& done) {
                                                    if (done.status.ok()) {
                                                      answered_++;
                                                    } else {
                                                      failed_++;
                                                      status_ = done.status;
                                                    }
                                                  });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }
  void expect_the_reason() {
    run_until([&] { return failed_ + answered_ == begun_; });
    EXPECT_EQ(status_.code(), Code::kPeerUnreachable);
    EXPECT_NE(status_.message().find("536 bytes do not pass"), std::string_view::npos) << status_.message();
    EXPECT_FALSE(client().rpc->is_open(session_));
  }

  bool is_narrow_to_server_ = false, is_narrow_to_client_ = false;
  uint64_t from_client_ = 0, from_server_ = 0;
  Session session_;
  std::optional<Request> kept_;
  uint32_t begun_ = 0, answered_ = 0, failed_ = 0;
  Status status_;
};

// All short probes of the first handshake are lost for an eighth of the connect timeout. Then the network works.
TEST_F(NarrowPath, a_short_silence_does_not_cost_a_session_that_opens) {
  const Duration timeout = std::chrono::milliseconds(40);
  bool is_silent = true;
  VirtualHost& host = add("10.0.0.3:1", {}, [&](const wire::Header&, size_t) { return !is_silent; });
  const Session session = begin_session(host, {.connect_timeout = timeout});
  run_for(5 * kMs);
  is_silent = false;
  run_for(35 * kMs);
  EXPECT_TRUE(host.rpc->is_open(session));
}

// Full packets are lost while the session opens. The path is the reason only if short packets were answered much faster
// than the connect timeout. Otherwise the machines are slow, and one more answer would have taken too long.
TEST_F(NarrowPath, a_slow_machine_is_not_called_a_narrow_path) {
  std::vector<LogKind> told;
  log_ = log_to([&](const LogEvent& event) {
    if (severity_of(event.kind) == LogSeverity::kInfo) return;
    told.push_back(event.kind);
    EXPECT_EQ(event.packet_bytes, event.kind == LogKind::kPathTooSmall ? kPayloadBytes + wire::kHeaderBytes : 0);
  });
  VirtualHost& host =
      add("10.0.0.3:1", {}, [](const wire::Header&, size_t payload_bytes) { return payload_bytes == 0; });
  for (const auto& [turn_ns, reason] : {std::pair(kTurnNs, "536 bytes do not: its MTU"),
                                        std::pair(400 * kMs, "raise SessionOptions::connect_timeout")}) {
    const Session session = begin_session(host, {.connect_timeout = std::chrono::seconds(2)});
    Status why;
    auto call = host.rpc->enqueue_request(session, kTake, host.rpc->alloc_msgbuf(1), host.rpc->alloc_msgbuf(1),
                                          [&](Completion& done) { why = done.status; });
    ASSERT_TRUE(call.ok());
    run_until([&] { return !why.ok(); }, 10'000 * kMs, turn_ns);
    EXPECT_EQ(why.code(), Code::kPeerUnreachable);
    EXPECT_NE(why.message().find(reason), std::string_view::npos) << why.message();
  }
  EXPECT_EQ(told, std::vector({LogKind::kPathTooSmall, LogKind::kSessionFailed, LogKind::kSessionFailed}));
  hosts_.pop_back();  // logs its end
}

TEST_F(NarrowPath, a_long_request_ends_with_the_reason_and_few_packets) {
  is_narrow_to_server_ = true;
  from_client_ = 0;
  call(kTake, kLong);
  run_for(1000 * kMs);
  EXPECT_LT(from_client_, 100u);
  expect_the_reason();
  EXPECT_LT(from_client_, 200u);
}

TEST_F(NarrowPath, twenty_long_requests_end_with_the_reason_and_few_packets) {
  is_narrow_to_server_ = true;
  from_client_ = 0;
  for (int i = 0; i < 20; i++) call(kTake, kLong);
  run_for(1000 * kMs);
  EXPECT_LT(from_client_, 300u);
  from_client_ = 0;
  expect_the_reason();
  EXPECT_LT(from_client_, 60u);
  EXPECT_EQ(failed_, 20u);
}

TEST_F(NarrowPath, long_responses_end_with_the_reason_and_few_packets) {
  is_narrow_to_client_ = true;
  from_client_ = from_server_ = 0;
  for (int i = 0; i < 8; i++) call(kGive, 1);
  expect_the_reason();
  EXPECT_LT(from_client_, 600u);
  EXPECT_LT(from_server_, 600u);
}

TEST_F(NarrowPath, calls_go_on_when_full_packets_pass_again) {
  is_narrow_to_client_ = is_narrow_to_server_ = true;
  call(kTake, kLong);
  call(kGive, kLong);
  run_for(700 * kMs);
  is_narrow_to_client_ = is_narrow_to_server_ = false;
  run_until([&] { return answered_ == begun_; });
  EXPECT_EQ(failed_, 0u);
}

TEST_F(NarrowPath, a_handler_that_takes_long_is_waited_for) {
  call(kLater, 1);
  from_client_ = 0;
  run_for(5000 * kMs);
  EXPECT_LT(from_client_, 200u);
  answer(*kept_, kLong);
  run_until([&] { return answered_ == begun_; });
}

}  // namespace
}  // namespace tern::rpc_test
