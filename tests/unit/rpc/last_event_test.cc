// The last event of a session that reconnects comes after all its calls have ended.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKept = 2;

/// A NIC may still send a request of a session that is lost. Its call then ends later than the session's next attempt.
class LastEvent : public VirtualWorld {};

TEST_F(LastEvent, follows_the_calls_of_earlier_attempts) {
  std::vector<Request> kept;
  VirtualHost& host = add("10.0.0.1:1");
  ASSERT_TRUE(host.rpc->on_request(kKept, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  bool is_cut_off = false;
  VirtualHost& other = add("10.0.0.2:1", {}, [&](const wire::Header&, size_t) { return !is_cut_off; });
  Endpoint& client = *other.rpc;
  std::vector<SessionState> heard;
  ASSERT_TRUE(client.on_session_event([&](const SessionEvent& event) { heard.push_back(event.state); }).ok());
  const Session session = open(other, {.reconnect = true});
  other.rpc->core().transport().fake().hold_tickets = true;
  bool has_call_ended = false;
  const auto then = [&](Completion& done) {
    EXPECT_EQ(done.status.code(), Code::kPeerUnreachable);
    EXPECT_NE(heard.back(), SessionState::kEnded);
    has_call_ended = true;
  };
  ASSERT_TRUE(client.enqueue_request(session, kKept, client.alloc_msgbuf(8), client.alloc_msgbuf(8), then).ok());
  ASSERT_TRUE(run_until([&] { return kept.size() == 1; }));
  is_cut_off = true;
  environment_.cut_off("10.0.0.1:1");
  ASSERT_TRUE(run_until([&] { return heard.back() == SessionState::kConnecting; }));
  ASSERT_FALSE(has_call_ended);
  ASSERT_TRUE(client.destroy_session(session).ok());
  run_for(10'000'000);
  EXPECT_FALSE(has_call_ended);
  EXPECT_EQ(heard.back(), SessionState::kConnecting);
  other.rpc->core().transport().fake().hold_tickets = false;
  EXPECT_TRUE(run_until([&] { return heard.back() == SessionState::kEnded; }));
  EXPECT_TRUE(has_call_ended);
  kept.clear();
}

}  // namespace
}  // namespace tern::rpc_test
