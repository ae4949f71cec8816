// The time at which a thread becomes the owner of an endpoint, because it is the first to run the loop, while other
// threads use what any thread may use.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <set>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr int kRounds = 100;

TEST(FirstOwner, threads_may_allocate_while_another_one_becomes_the_owner) {
  auto nexus = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok()) << nexus.status().message();
  for (int round = 0; round < kRounds; round++) {
    auto rpc = Rpc<Udp>::create(**nexus, {}, small_memory());
    ASSERT_TRUE(rpc.ok()) << rpc.status().message();
    Endpoint& endpoint = **rpc;
    std::atomic<bool> is_done{false};
    std::vector<MsgBuf> buffers(1000);
    std::thread owner([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 + 7 * round));
      EXPECT_TRUE((*rpc)->run_event_loop_once().ok());
      for (MsgBuf& buffer : buffers) buffer = endpoint.alloc_msgbuf(40);
      is_done = true;
    });
    MsgBuf one, two;
    do {
      one = MsgBuf();
      two = MsgBuf();
      one = endpoint.alloc_msgbuf(40);
      two = endpoint.alloc_msgbuf(40);
    } while (!is_done);
    owner.join();
    buffers.push_back(std::move(one));
    buffers.push_back(std::move(two));
    std::set<const std::byte*> places;
    for (const MsgBuf& buffer : buffers) places.insert(buffer.bytes().data());
    ASSERT_EQ(places.size(), buffers.size()) << "in round " << round << " two buffers have the same memory";
  }
}

TEST(FirstOwner, of_two_threads_one_becomes_the_owner) {
  auto nexus = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok()) << nexus.status().message();
  for (int round = 0; round < 3 * kRounds; round++) {
    auto rpc = Rpc<Udp>::create(**nexus, {}, small_memory());
    ASSERT_TRUE(rpc.ok()) << rpc.status().message();
    std::atomic<int> ready{0}, ok{0}, refused{0};
    const auto run = [&] {
      ready++;
      while (ready != 2) {
      }
      const Status status = (*rpc)->run_event_loop(std::chrono::microseconds(100));
      EXPECT_TRUE(status.ok() || status.code() == Code::kWrongThread) << status.message();
      (status.ok() ? ok : refused)++;
    };
    std::thread one(run);
    if (round % 2 == 0) {
      run();
    } else {
      std::thread(run).join();
    }
    one.join();
    EXPECT_EQ(ok, 1) << "round " << round;
    EXPECT_EQ(refused, 1);
  }
}

}  // namespace
}  // namespace tern::rpc_test
