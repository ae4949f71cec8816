// A path without loss, where every retransmission is spurious. One thread runs the loops of two endpoints in turn, with
// several long requests at once.
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kTake = 2;
constexpr size_t kBytes = 100'000;
constexpr uint32_t kAtOnce = 4;
/// On a busy machine the thread may lose its CPU between two turns. It then reads its packets late, and the endpoint
/// takes some of them for lost. The best of several rounds counts, because retransmissions that the protocol causes are
/// in all rounds.
constexpr int kRounds = 5;
/// Limit of retransmissions.
#ifdef TERN_IS_SANITIZED
constexpr uint32_t kCalls = 200;
constexpr uint64_t kMillionthsMax = 1000;
#else
constexpr uint32_t kCalls = 3000;
constexpr uint64_t kMillionthsMax = 20;
#endif

template <class T>
class LossFreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.make());
    ASSERT_TRUE(world_.server->on_request(kTake, [](Request request) { reply(std::move(request), "taken"); }).ok());
  }

  /// Makes kCalls calls of `type`, kAtOnce of them at a time, over the sessions in turn.
  void call(uint16_t type, uint32_t session_count, size_t bytes = kBytes) {
    std::vector<Session> sessions;
    for (uint32_t i = 0; i < session_count; i++) sessions.push_back(world_.open());
    ASSERT_FALSE(this->HasFatalFailure());
    uint64_t again = 0, packets = 1;
    for (int i = 0; i < kRounds && (i == 0 || !are_few(again, packets)); i++) {
      const EndpointCounters before = world_.client->counters();
      call_round(type, sessions, bytes);
      ASSERT_FALSE(this->HasFatalFailure());
      again = world_.client->counters().retransmissions - before.retransmissions;
      packets = world_.client->counters().packets_sent - before.packets_sent;
    }
    EXPECT_TRUE(are_few(again, packets)) << again << " of " << packets << " packets were sent again";
  }

 private:
  static bool are_few(uint64_t again, uint64_t packets) { return again * 1'000'000 <= kMillionthsMax * packets; }
  void call_round(uint16_t type, const std::vector<Session>& sessions, size_t bytes) {
    uint32_t begun = 0, answered = 0;
    std::function<void()> begin_one = [&] {
      if (begun == kCalls) return;
      const Session session = sessions[begun++ % sessions.size()];
      auto id = world_.client->enqueue_request(session, type, world_.client->alloc_msgbuf(bytes),
                                               world_.client->alloc_msgbuf(bytes), [&](Completion& done) {
                                                 EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                 answered++;
                                                 begin_one();
                                               });
      ASSERT_TRUE(id.ok()) << id.status().message();
    };
    for (uint32_t i = 0; i < kAtOnce; i++) begin_one();
    ASSERT_TRUE(world_.run_until([&] { return answered == kCalls; }));
  }

  World<T> world_;
};
TYPED_TEST_SUITE(LossFreeTest, Transports, TransportNames);

TYPED_TEST(LossFreeTest, long_requests_at_once_are_sent_once) { this->call(kTake, 1); }
TYPED_TEST(LossFreeTest, long_requests_of_several_sessions_are_sent_once) { this->call(kTake, 4); }
TYPED_TEST(LossFreeTest, long_requests_and_responses_are_sent_once) { this->call(kEcho, 1); }
TYPED_TEST(LossFreeTest, long_requests_and_responses_of_several_sessions_are_sent_once) { this->call(kEcho, 4); }

/// Before a slow handler the server reads what has come, here more packets of a session than a credit return tells of.
/// They fit into the smallest usual buffer of a socket.
TEST(LossFreeUdp, packets_that_were_read_before_a_slow_handler_are_sent_once) {
  constexpr uint16_t kSlow = 3;
  World<Udp> world;
  Udp::Options short_packets;
  short_packets.datagram_bytes = short_packets.probed_datagram_bytes = 576;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {.credit_limit = 1000}, {.congestion_control = CongestionControl::kNone},
                                     short_packets, short_packets));
  ASSERT_TRUE(world.server
                  ->on_request(kSlow,
                               [](Request request) {
                                 std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                 reply(std::move(request), "slow");
                               })
                  .ok());
  ASSERT_TRUE(world.server->on_request(kTake, [](Request request) { reply(std::move(request), "taken"); }).ok());
  const Session session = world.open();
  const CallOptions timed{.deadline = std::chrono::seconds(10)};       // the time of such calls is measured
  ASSERT_TRUE(world.ask(session, kSlow, "", 256, timed).status.ok());  // from now on its time is known
  uint64_t again = 1;
  for (int i = 0; i < kRounds && again != 0; i++) {
    const uint64_t before = world.client->counters().retransmissions;
    Outcome slow, taken;
    ASSERT_TRUE(world.call(session, kSlow, "", slow, 256, timed).ok());
    ASSERT_TRUE(world.call(session, kTake, std::string(160'000, 'x'), taken).ok());
    for (int turn = 0; turn < 20; turn++) ASSERT_TRUE(world.client->run_event_loop_once().ok());
    EXPECT_GT(world.client->session_info(session).packets_in_flight, 256u);
    ASSERT_TRUE(world.run_until([&] { return slow.runs + taken.runs == 2; }));
    again = world.client->counters().retransmissions - before;
  }
  EXPECT_EQ(again, 0u);
}

}  // namespace
}  // namespace tern::rpc_test
