// The clock of an iteration with long handlers, which round trips and hold times depend on, in virtual time.
#include <gtest/gtest.h>

#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kSlow = 1, kQuick = 2;
constexpr uint64_t kHandlerNs = 2'000'000;

class Clock : public VirtualWorld {
 protected:
  /// Sets up two clients of one server, and notes the hold times in the server's responses.
  void SetUp() override {
    add("1.0.0.1:1", {}, [this](const wire::Header& header, size_t) {
      if (header.kind() == wire::Kind::kResponse) hold_codes_.push_back(header.hold_code());
      return true;
    });
    ASSERT_TRUE(server().rpc->on_request(kQuick, [](Request request) { request.respond(); }).ok());
    const auto slow = [this](Request request) {
      during_handler_();
      network_.now_ns += kHandlerNs;
      request.respond();
    };
    ASSERT_TRUE(server().rpc->on_request(kSlow, slow).ok());
    for (const char* address : {"1.0.0.2:1", "1.0.0.3:1"}) sessions_.push_back(open(add(address)));
  }
  VirtualHost& client(size_t index) { return *hosts_[1 + index]; }
  void call(size_t index, uint16_t type, std::function<void()> then = {}) {
    auto& rpc = *client(index).rpc;
    const auto started = rpc.enqueue_request(sessions_[index], type, rpc.alloc_msgbuf(8), rpc.alloc_msgbuf(8),
                                             [then = std::move(then)](Completion& done) {
                                               EXPECT_TRUE(done.status.ok()) << done.status.message();
                                               if (then) then();
                                             });
    ASSERT_TRUE(started.ok());
  }
  void iterate(VirtualHost& host) { ASSERT_TRUE(host.rpc->run_event_loop_once().ok()); }
  uint64_t latest_rtt_ns(size_t index) {
    uint64_t rtt_ns = 0;
    client(index).core().for_each_client_session([&](const auto& session) { rtt_ns = session.rtt().latest_ns(); });
    return rtt_ns;
  }

  std::vector<Session> sessions_;
  std::vector<uint8_t> hold_codes_;
  std::function<void()> during_handler_ = [] {};
};

TEST_F(Clock, request_that_arrives_during_a_handler_is_not_charged_the_handlers_whole_time) {
  call(0, kSlow);
  iterate(client(0));
  // The other client's request arrives in the middle of the handler.
  during_handler_ = [this] {
    network_.now_ns += kHandlerNs;
    call(1, kQuick);
    iterate(client(1));
  };
  hold_codes_.clear();
  const uint64_t before_ns = network_.now_ns;
  iterate(server());
  ASSERT_EQ(hold_codes_.size(), 2u);
  EXPECT_EQ(network_.now_ns - before_ns, 2 * kHandlerNs);
  EXPECT_GT(wire::decode_hold(hold_codes_[0]), kHandlerNs);
  EXPECT_LE(wire::decode_hold(hold_codes_[1]), kHandlerNs) << "it came in the middle of the handler";
  network_.now_ns += 1000;
  iterate(client(1));
  EXPECT_GE(latest_rtt_ns(1), 1000u) << "the way back takes that";
  iterate(client(0));
}

TEST_F(Clock, a_response_that_came_during_a_continuation_took_that_long) {
  // The first response's continuation takes 2 ms. The second request is sent and answered meanwhile.
  auto& rpc = *client(0).rpc;
  const Session second = begin_session(client(0));
  run_until([&] { return rpc.is_open(second); });
  bool is_answered = false;
  const uint64_t sent_ns = network_.now_ns;
  const auto start = [&](Session session, std::function<void()> then) {
    const auto started = rpc.enqueue_request(session, kQuick, rpc.alloc_msgbuf(8), rpc.alloc_msgbuf(8),
                                             [then = std::move(then)](Completion& done) {
                                               EXPECT_TRUE(done.status.ok());
                                               then();
                                             });
    ASSERT_TRUE(started.ok());
  };
  uint64_t rtt_ns = 0;
  start(sessions_[0], [&] { network_.now_ns += kHandlerNs; });
  start(second, [&] { is_answered = true; });
  iterate(client(0));
  network_.now_ns += 1000;
  iterate(server());
  network_.now_ns += 1000;
  iterate(client(0));
  ASSERT_TRUE(is_answered);
  client(0).core().for_each_client_session(
      [&](const auto& session) { rtt_ns = std::max(rtt_ns, session.rtt().latest_ns()); });
  EXPECT_EQ(network_.now_ns - sent_ns, kHandlerNs + 2000);
  EXPECT_GE(rtt_ns, kHandlerNs + 1000) << "it was looked at after the continuation";
}

}  // namespace
}  // namespace tern::rpc_test
