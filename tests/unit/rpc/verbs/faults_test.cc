// The effects of a failing verbs device on sessions and calls. Over the software verbs provider.
#include <gtest/gtest.h>

#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <infiniband/verbs.h>

#include <tern/transport/verbs.h>

#include "rpc/rpc_core.h"
#include "software_verbs/provider_fixture.h"
#include "transport/verbs/verbs.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

using software_verbs::provider;

class VerbsFaults : public software_verbs::ProviderTest {
 protected:
  void SetUp() override {
    ProviderTest::SetUp();
    if (IsSkipped()) return;
    Verbs::Options server, client;
    server.device = "soft0";  // with two devices, a device's fault affects one endpoint only
    client.device = "soft1";
    NexusOptions nexus;
    nexus.liveness_timeout = seconds(20);
    ASSERT_NO_FATAL_FAILURE(world.make(nexus, {}, {}, server, client));
    uint32_t pairs[2];
    ASSERT_EQ(provider().list_queue_pairs(pairs, 2), 2u);
    const bool is_server_first = (pairs[0] >> 16) == 1;  // the number begins with the device's number
    server_pair = pairs[is_server_first ? 0 : 1];
    client_pair = pairs[is_server_first ? 1 : 0];
    session = world.open({.window = 8});
  }
  void TearDown() override {
    world.client.reset();
    world.server.reset();
    ProviderTest::TearDown();
  }
  /// Starts calls of 20 000 bytes in each direction.
  void start_calls(size_t count) {
    for (size_t i = 0; i < count; i++) {
      outcomes.push_back(std::make_unique<Outcome>());
      ASSERT_TRUE(world.call(session, kEcho, text, *outcomes.back(), text.size()).ok());
    }
  }
  bool have_ended() const {
    return std::all_of(outcomes.begin(), outcomes.end(), [](const auto& outcome) { return outcome->runs == 1; });
  }
  /// Runs the client's loop until it fails, and returns the reason.
  Status run_until_failed() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      auto packets = world.client->run_event_loop_once();
      if (!packets.ok()) return packets.status();
    }
    return {};
  }
  /// Checks that the client's endpoint ended with this reason, and that its calls and sessions ended with it.
  void expect_ended(const char* reason) {
    const Status why = run_until_failed();
    EXPECT_NE(std::string(why.message()).find(reason), std::string::npos) << why.message();
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!have_ended() && std::chrono::steady_clock::now() < until) (void)world.client->run_event_loop_once();
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome->runs, 1);
      if (outcome->status.ok()) continue;
      EXPECT_NE(std::string(outcome->status.message()).find(reason), std::string::npos) << outcome->status.message();
      EXPECT_TRUE(outcome->has_buffers);
    }
    EXPECT_FALSE(outcomes.back()->status.ok());
    EXPECT_EQ(world.client->run_event_loop(seconds(1)).message(), why.message()) << "at once";
    const auto refused = world.client->create_session(world.server_nexus->uri());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(std::string(refused.status().message()), std::string(why.message()));
  }

  World<Verbs> world;
  Session session;
  uint32_t server_pair = 0, client_pair = 0;
  const std::string text = std::string(20'000, 'x');
  std::vector<std::unique_ptr<Outcome>> outcomes;
};

TEST_F(VerbsFaults, queue_pair_in_error__in_the_middle_of_traffic__the_session_goes_on) {
  for (const bool is_server : {false, true}) {
    const auto& counters = (is_server ? *world.server : *world.client).core().transport().counters();
    for (unsigned round = 0; round < 10; round++) {
      start_calls(20);
      world.turns(round);
      provider().fail_queue_pair(is_server ? server_pair : client_pair, round % 2 == 0);
      ASSERT_TRUE(world.run_until([&] { return have_ended(); }));
      for (const auto& outcome : outcomes) {
        ASSERT_TRUE(outcome->status.ok()) << outcome->status.message();
        ASSERT_EQ(outcome->response, text);
      }
      outcomes.clear();
      // The calls may end before the endpoint notices its queue pair's error.
      ASSERT_TRUE(world.run_until([&] { return counters.device_resets > round; }));
    }
    EXPECT_EQ(counters.device_resets, 10u);
  }
}

TEST_F(VerbsFaults, queue_pair_that_fails_repeatedly__ends_the_endpoint_with_the_reason) {
  start_calls(20);
  world.turns(2);
  std::atomic<bool> is_over{false};
  provider().drop_packets(1);  // no packet passes between the faults
  std::thread device([&] {
    while (!is_over) {
      provider().fail_queue_pair(client_pair, true);
      std::this_thread::sleep_for(microseconds(100));
    }
  });
  expect_ended("queue pair fails again after each reset");
  is_over = true;
  device.join();
}

TEST_F(VerbsFaults, device_that_is_gone__ends_the_endpoint_with_the_reason) {
  start_calls(20);
  world.turns(3);
  provider().raise_event(1, IBV_EVENT_DEVICE_FATAL);
  expect_ended("device has failed or was removed");
}

TEST_F(VerbsFaults, port_with_another_address__ends_the_endpoint_and_its_sessions__and_a_new_one_works) {
  start_calls(20);
  world.turns(3);
  set("soft1.address=127.0.0.9");
  provider().raise_event(1, IBV_EVENT_GID_CHANGE);
  expect_ended("the port has another address now");
  EXPECT_TRUE(world.server->core().transport().failure().ok()) << "it has the same address";
  Verbs::Options options;
  options.device = "soft1";
  RpcOptions rpc = small_memory();
  rpc.endpoint_id = 1;
  auto anew = Rpc<Verbs>::create(*world.client_nexus, options, rpc);
  ASSERT_TRUE(anew.ok()) << anew.status().message();
  world.client = std::move(*anew);
  session = world.open();
  EXPECT_EQ(world.ask(session, kEcho, text, text.size()).response, text);
}

TEST_F(VerbsFaults, port_of_the_server_with_another_address__ends_the_clients_calls) {
  set("soft0.address=127.0.0.9");
  provider().raise_event(0, IBV_EVENT_GID_CHANGE);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::string why;
  while (why.empty() && std::chrono::steady_clock::now() < until) {
    if (const auto packets = world.server->run_event_loop_once(); !packets.ok()) why = packets.status().message();
  }
  EXPECT_NE(why.find("the port has another address now"), std::string::npos) << why;
  start_calls(5);
  while (!have_ended() && std::chrono::steady_clock::now() < until) {
    (void)world.server->run_event_loop_once();
    (void)world.client->run_event_loop_once();
  }
  ASSERT_TRUE(have_ended());
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome->status.ok());
    EXPECT_TRUE(outcome->has_buffers);
  }
}

TEST_F(VerbsFaults, completion_queue_that_overflows__ends_the_endpoint_with_the_reason) {
  start_calls(20);
  world.turns(3);
  provider().overflow_completions(client_pair);
  expect_ended("lost a completion queue");
}

TEST_F(VerbsFaults, lost_device_of_the_server__ends_the_clients_calls) {
  start_calls(5);
  world.turns(2);
  provider().raise_event(0, IBV_EVENT_DEVICE_FATAL);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool has_server_failed = false;
  while (!have_ended() && std::chrono::steady_clock::now() < until) {
    has_server_failed |= !world.server->run_event_loop_once().ok();
    (void)world.client->run_event_loop_once();
  }
  EXPECT_TRUE(has_server_failed);
  EXPECT_TRUE(have_ended());
}

TEST_F(VerbsFaults, blocked_endpoint__wakes_up_when_its_device_is_gone) {
  RpcOptions options;
  options.wait = Wait::kBlock;
  options.endpoint_id = 1;
  Verbs::Options transport;
  transport.device = "soft1";
  auto made = Rpc<Verbs>::create(*world.client_nexus, transport, small_memory(options));
  ASSERT_TRUE(made.ok());
  std::thread device([] {
    std::this_thread::sleep_for(milliseconds(5));
    provider().raise_event(1, IBV_EVENT_DEVICE_FATAL);
  });
  const Status why = (*made)->run_event_loop();  // would run for ever without the device's failure
  device.join();
  EXPECT_NE(std::string(why.message()).find("device has failed"), std::string::npos) << why.message();
}

TEST_F(VerbsFaults, blocking_and_adaptive_loops__sleep_and_wake_among_events) {
  for (const Wait wait : {Wait::kBlock, Wait::kAdaptive}) {
    RpcOptions options;
    options.wait = wait;
    World<Verbs> pair;
    ASSERT_NO_FATAL_FAILURE(pair.make({}, options, options));
    const auto waiting = pair.client->create_session(pair.server_nexus->uri());
    ASSERT_TRUE(waiting.ok());
    std::atomic<bool> is_over{false};
    std::thread server([&] {
      while (!is_over) EXPECT_TRUE(pair.server->run_event_loop(milliseconds(50)).ok());
      EXPECT_TRUE(pair.server->close(seconds(0)).ok());
    });
    std::thread device([&] {
      for (int i = 0; !is_over; i++) {
        provider().raise_event(-1, i % 2 == 0 ? IBV_EVENT_CLIENT_REREGISTER : IBV_EVENT_GID_CHANGE);
        std::this_thread::sleep_for(microseconds(300));
      }
    });
    for (int i = 0; i < 200; i++) {
      Outcome outcome;
      ASSERT_TRUE(pair.call(*waiting, kEcho, "hello", outcome).ok());
      while (outcome.runs == 0) ASSERT_TRUE(pair.client->run_event_loop(milliseconds(5)).ok());
      EXPECT_EQ(outcome.response, "hello");
    }
    // The calls may end before the device's thread has started.
    const auto until = std::chrono::steady_clock::now() + kPatience;
    const auto& counters = pair.client->core().transport().counters();
    while (counters.device_events == 0 && std::chrono::steady_clock::now() < until) {
      EXPECT_TRUE(pair.client->run_event_loop(milliseconds(5)).ok());
    }
    EXPECT_GT(counters.device_events, 0u);
    is_over = true;
    server.join();
    device.join();
  }
}

/// A program's own loop sleeps on the descriptor, and runs an iteration when it is readable.
TEST_F(VerbsFaults, own_loop__does_not_spin_after_events) {
  auto descriptor = world.client->descriptor();
  ASSERT_TRUE(descriptor.ok()) << descriptor.status().message();
  const auto idle_iterations = [&] {  // runs until the descriptor stays silent for 20 ms
    for (int iterations = 0; iterations < 10'000; iterations++) {
      pollfd polled{*descriptor, POLLIN, 0};
      if (poll(&polled, 1, 20) == 0) return iterations;
      EXPECT_TRUE(world.client->run_event_loop_once().ok());
    }
    return 10'000;
  };
  EXPECT_LT(idle_iterations(), 1000);
  for (const ibv_event_type type : {IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE}) {
    provider().raise_event(1, type);
    EXPECT_LT(idle_iterations(), 1000);
  }
  provider().fail_queue_pair(client_pair, true);
  EXPECT_LT(idle_iterations(), 1000);
  EXPECT_EQ(world.client->core().transport().counters().device_events, 4u);
  EXPECT_EQ(world.client->core().transport().counters().device_resets, 1u);
}

TEST_F(VerbsFaults, message_memory_that_cannot_be_registered__fails_the_allocation__and_nothing_else) {
  ASSERT_TRUE(provider().fail_calls("ibv_reg_mr", 0, UINT64_MAX, ENOMEM));
  std::vector<MsgBuf> large;
  for (int i = 0; i < 100; i++) {
    MsgBuf buffer = world.client->alloc_msgbuf(8u << 20);
    if (!buffer) break;
    large.push_back(std::move(buffer));
  }
  EXPECT_LT(large.size(), 100u);
  EXPECT_FALSE(world.client->alloc_msgbuf(8u << 20));
  EXPECT_EQ(world.ask(session, kEcho, "small ones go on").response, "small ones go on");
  provider().reset();
  EXPECT_TRUE(world.client->alloc_msgbuf(8u << 20));
  EXPECT_EQ(world.ask(session, kEcho, text, text.size()).response, text);
}

TEST_F(VerbsFaults, server_without_memory_for_a_large_request__answers_when_it_has_it) {
  const std::string large(8u << 20, 'y');
  // The client's message may need the first registration.
  ASSERT_TRUE(provider().fail_calls("ibv_reg_mr", 1, 5, ENOMEM));
  Outcome outcome;
  ASSERT_TRUE(world.call(session, kEcho, large, outcome, large.size()).ok());
  ASSERT_TRUE(world.run_until([&] { return outcome.runs == 1; }));
  EXPECT_EQ(outcome.response, large) << outcome.status.message();
  EXPECT_EQ(world.ask(session, kEcho, text, text.size()).response, text);
}

}  // namespace
}  // namespace tern::rpc_test
