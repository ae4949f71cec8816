// A network without loss, reordering and delay: no packet is retransmitted, and a busy server is not probed.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;
constexpr uint16_t kTake = 2;

/// Echoes requests or answers them without data, after `handler_time`.
struct Party : SimProgram {
  explicit Party(Host& host) : SimProgram(host) {
    const auto answer = [&host, this](Request& request, size_t bytes) {
      host.spend(handler_time);
      echo(request, bytes);
    };
    EXPECT_TRUE(rpc->on_request(kEcho, [answer](Request request) { answer(request, request.bytes().size()); }).ok());
    EXPECT_TRUE(rpc->on_request(kTake, [answer](Request request) { answer(request, 0); }).ok());
  }
  /// Makes `left` calls, each of them after the answer to the previous one.
  void call_on(Session session, uint16_t type, size_t bytes, uint32_t& left) {
    if (left == 0) return;
    left--;
    const auto id = rpc->enqueue_request(session, type, rpc->alloc_msgbuf(bytes), rpc->alloc_msgbuf(bytes),
                                         [this, session, type, bytes, &left](Completion& done) {
                                           EXPECT_TRUE(done.status.ok()) << done.status.message();
                                           answered++;
                                           call_on(session, type, bytes, left);
                                         });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }

  Duration handler_time{0};
  uint32_t answered = 0;
};

class LossFreeNetwork : public ::testing::Test {
 protected:
  Party& party(uint32_t host) { return program_of<Party>(*simulation_, host); }
  /// Makes calls from host 1 to host 0 over `session_count` sessions, with `at_once` calls at a time in each session.
  void call(uint32_t calls, uint32_t session_count, uint32_t at_once, uint16_t type, size_t bytes) {
    Party& client = party(1);
    std::vector<Session> sessions;
    for (uint32_t i = 0; i < session_count; i++) {
      sessions.push_back(*client.rpc->create_session(simulation_->host(0).uri(), {.window = 16}));
    }
    uint32_t left = calls;
    for (const Session session : sessions) {
      for (uint32_t i = 0; i < at_once; i++) client.call_on(session, type, bytes, left);
    }
    ASSERT_TRUE(simulation_->run_until([&] { return client.answered == calls; }, 60s)) << client.answered;
    EXPECT_EQ(client.rpc->counters().retransmissions, 0u);
  }

  std::unique_ptr<Simulation> simulation_ = simulate<Party>(Topology::star(2), {.seed = 1});
};

TEST_F(LossFreeNetwork, long_requests_are_sent_once) { call(1000, 1, 4, kTake, 100'000); }
TEST_F(LossFreeNetwork, long_requests_and_responses_are_sent_once) { call(1000, 1, 4, kEcho, 100'000); }
TEST_F(LossFreeNetwork, long_and_short_of_many_sessions_are_sent_once) { call(2000, 16, 4, kEcho, 10'000); }

TEST_F(LossFreeNetwork, a_server_that_works_for_a_millisecond_on_a_burst_is_not_probed) {
  party(0).handler_time = 10us;
  const auto probes = [&] { return party(1).rpc->counters().probes; };
  call(1000, 8, 12, kEcho, 32);  // the first calls do not yet know the server's time for a burst
  const uint64_t before = probes();
  party(1).answered = 0;
  call(20'000, 8, 12, kEcho, 32);
  EXPECT_LE(probes() - before, 20u);
}

}  // namespace
}  // namespace tern::sim
