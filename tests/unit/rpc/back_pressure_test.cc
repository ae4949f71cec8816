// A transport that accepts no packets for a while: the endpoint sleeps meanwhile, and nothing is lost.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/rpc/rpc_world.h"
#include "unit/transport/failing_sends.h"

namespace tern::rpc_test {
namespace {

using failing_sends::Scope;

constexpr size_t kBytes = 900;

template <class T>
struct Busy : World<T> {
  /// Opens enough sessions that their windows overflow the smallest ring of shm.
  void make_busy(Wait wait) {
    typename T::Options transport;
    if constexpr (requires { transport.ring_cells; }) transport.ring_cells = 256;
    ASSERT_NO_FATAL_FAILURE(this->make({}, {}, {.wait = wait}, transport, transport));
    for (int i = 0; i < 6; i++) sessions.push_back(this->open());
  }
  void call_all() {
    for (const Session session : sessions) {
      for (int i = 0; i < 8; i++) {
        const auto call =
            this->client->enqueue_request(session, kEcho, message(*this->client, std::string(kBytes, 'x')),
                                          this->client->alloc_msgbuf(kBytes), [this](Completion& done) {
                                            EXPECT_TRUE(done.status.ok()) << done.status.message();
                                            ended++;
                                          });
        EXPECT_TRUE(call.ok());
        started++;
      }
    }
  }
  std::vector<Session> sessions;
  int started = 0, ended = 0;
};

// The peer does not run. The client probes it every RTO (1 ms), and each session tries to send only then.
TEST(BackPressure, a_full_ring_lets_its_sender_sleep) {
  Busy<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make_busy(Wait::kBlock));
  world.call_all();
  ASSERT_TRUE(world.client->run_event_loop(milliseconds(200)).ok());
  const EndpointCounters counters = world.client->counters();
  EXPECT_GT(counters.transport_full, 0u) << "the ring was never full";
  EXPECT_LT(counters.transport_full, 6 * 400u) << "it tried again and again";
  EXPECT_EQ(world.ended, 0);
  world.run_until([&] { return world.ended == world.started; });
}

// A sleeping endpoint retries every 1 ms to send packets for which the kernel has no memory.
TEST(BackPressure, a_kernel_without_memory_lets_an_endpoint_sleep_and_loses_nothing) {
  Busy<Udp> world;
  ASSERT_NO_FATAL_FAILURE(world.make_busy(Wait::kBlock));
  world.call_all();
  {
    const Scope fail(ENOBUFS);
    ASSERT_TRUE(world.client->run_event_loop(milliseconds(100)).ok());
    EXPECT_GT(failing_sends::failed, 0u);
    EXPECT_LT(failing_sends::failed, 400u) << "it tried again and again";
  }
  world.run_until([&] { return world.ended == world.started; });
  EXPECT_EQ(world.client->counters().retransmissions, 0u);
}

}  // namespace
}  // namespace tern::rpc_test
