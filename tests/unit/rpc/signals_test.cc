// stop_on_signals(). Signals go to the own process, so no test may leave one pending.
#include <tern/signals.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

int others = 0;
void count_other(int) { others++; }

TEST(Signals, either_signal_stops_the_loop) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  for (const int signal : {SIGINT, SIGTERM}) {
    const SignalStop stop = stop_on_signals(*world.client).value();
    ASSERT_TRUE(world.client->after(milliseconds(1), [signal] { EXPECT_EQ(raise(signal), 0); }).ok());
    EXPECT_TRUE(world.client->run_event_loop().ok());
  }
}

TEST(Signals, one_signal_stops_all_endpoints_in_their_threads) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const SignalStop stop_client = stop_on_signals(*world.client).value();
  const SignalStop stop_server = stop_on_signals(*world.server).value();
  std::thread server([&] { EXPECT_TRUE(world.server->run_event_loop().ok()); });
  ASSERT_TRUE(world.client->after(milliseconds(1), [] { EXPECT_EQ(raise(SIGTERM), 0); }).ok());
  EXPECT_TRUE(world.client->run_event_loop().ok());
  server.join();
}

TEST(Signals, former_handler_is_back_after_the_last) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const auto before = std::signal(SIGTERM, count_other);
  {
    auto first = stop_on_signals(*world.client).value();
    const auto moved = std::move(first);
    { const auto second = stop_on_signals(*world.server).value(); }
    ASSERT_TRUE(world.client->after(milliseconds(1), [] { EXPECT_EQ(raise(SIGTERM), 0); }).ok());
    EXPECT_TRUE(world.client->run_event_loop().ok());
    EXPECT_EQ(others, 0);
  }
  EXPECT_EQ(raise(SIGTERM), 0);
  EXPECT_EQ(others, 1);
  std::signal(SIGTERM, before);
}

TEST(Signals, more_endpoints_than_there_are_places_are_refused) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  std::vector<SignalStop> stops;
  for (int i = 0; i < 64; i++) stops.push_back(stop_on_signals(*world.client).value());
  EXPECT_EQ(stop_on_signals(*world.server).code(), Code::kQueueFull);
  stops.pop_back();
  EXPECT_TRUE(stop_on_signals(*world.server).ok());
}

TEST(SignalsDeathTest, second_signal_ends_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        World<Shm> world;
        world.make();
        const auto stop = stop_on_signals(*world.client);
        raise(SIGINT);
        raise(SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(1100));
        raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

/// timeout(1) sends each signal to the process and to its group.
TEST(Signals, the_same_signal_twice_at_a_time_only_stops) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const SignalStop stop = stop_on_signals(*world.client).value();
  for (int i = 0; i < 2; i++) EXPECT_EQ(raise(SIGTERM), 0);
  EXPECT_TRUE(world.client->run_event_loop().ok());
}

/// Each signal either stops the endpoint or reaches the program's own handler. It never takes its default action.
TEST(Signals, none_ends_a_program_that_has_a_handler_before_and_after) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const auto before = std::signal(SIGTERM, count_other);
  std::atomic<bool> is_over{false};
  std::thread sender([&, receiver = pthread_self()] {
    while (!is_over) pthread_kill(receiver, SIGTERM);
  });
  for (int i = 0; i < 5000; i++) {
    const auto stop = stop_on_signals(*world.client).value();
  }
  is_over = true;
  sender.join();
  std::signal(SIGTERM, before);
}

}  // namespace
}  // namespace tern::rpc_test
