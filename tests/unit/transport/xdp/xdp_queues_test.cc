// Endpoints over AF_XDP at an interface with several queues: the owners of queues, and the path of packets that arrive
// at another endpoint's queue. This file has its own cable with four queues at either end.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/xdp/port.h"
#include "unit/transport/xdp/child.h"
#include "unit/transport/xdp/xdp_fixture.h"

namespace tern::transport::xdp_test {
namespace {

using xdp::Lane;

class XdpQueues : public WideTest {
 protected:
  void SetUp() override {
    XdpTest::SetUp();
    if (IsSkipped()) return;
    make_cable("numrxqueues 4 numtxqueues 4", "numrxqueues 4 numtxqueues 4");
  }
};

/// Runs the endpoint until it is ready to sleep.
bool falls_asleep(End& end) {
  return run_until({&end}, [&] {
    const bool sleeps = end->prepare_wait();
    if (!sleeps) end->end_wait();
    return sleeps;
  });
}

/// Lets the endpoint sleep until it has `count` packets.
void expect_wakes_for_packets(End& end, size_t count) {
  uint32_t looks = 0;
  EXPECT_TRUE(run_until({}, [&] {
    if (end->prepare_wait()) end->wait(UINT64_MAX);
    end->end_wait();
    end.turn();
    ++looks;
    return end.got.size() == count;
  }));
  EXPECT_LT(looks, 256u) << "it looks there after every so many looks at its own queue only";
}

TEST_F(XdpQueues, each_endpoint_has_a_queue_until_there_are_no_more) {
  std::vector<std::unique_ptr<End>> ends;
  for (uint32_t i = 0; i < 6; ++i) {
    ends.push_back(std::make_unique<End>(near()));
    ASSERT_TRUE(ends[i]->status.ok()) << ends[i]->status.message();
    EXPECT_EQ((*ends[i])->queue().number(), i % 4);
  }
  EXPECT_EQ((*ends[0])->port().queue_count(), 4u);
}

/// A frame arrives at the queue with the number of the sender's queue.
TEST_F(XdpQueues, packets_at_the_queue_of_another_endpoint__are_passed_on) {
  End a(far()), first(near()), second(near());
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  ASSERT_EQ(a->queue().number(), 0u);
  ASSERT_EQ(second->queue().number(), 1u);
  expect_passes(a, second, {&a, &first, &second});
  EXPECT_EQ(second->counters().packets_by_kernel, 0u);
  // The owner of the queue does not read it, so the others find the packets there.
  expect_passes(a, second, {&a, &second});
  EXPECT_EQ(second->counters().packets_by_kernel, 0u);
  expect_passes(a, first, {&a, &first, &second});
}

TEST_F(XdpQueues, sleeper_wakes_for_packets_at_the_queue_of_an_endpoint_that_does_not_run) {
  End a(far()), busy(near()), sleeper(near());
  const PeerId peer = connect(a, sleeper);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(a.send(peer, i));
    a->flush();
    expect_wakes_for_packets(sleeper, i + 1);
  }
}

TEST_F(XdpQueues, sleeper_wakes_when_another_endpoint_attaches__and_for_packets_at_the_queue_of_that_endpoint) {
  End at_zero(far()), at_one(far()), sleeper(near());
  const PeerId peer = connect(at_one, sleeper);
  ASSERT_TRUE(falls_asleep(sleeper));
  std::unique_ptr<End> later;  // never runs
  std::thread([&] { later = std::make_unique<End>(near()); }).join();
  ASSERT_TRUE(later->status.ok()) << later->status.message();
  ASSERT_EQ((*later)->queue().number(), at_one->queue().number());
  pollfd woken{sleeper->descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&woken, 1, 0), 1);
  sleeper->end_wait();
  ASSERT_TRUE(falls_asleep(sleeper));
  ASSERT_TRUE(at_one.send(peer, 1));
  at_one->flush();
  expect_wakes_for_packets(sleeper, 1);
}

TEST_F(XdpQueues, busy_queue__leaves_turns_to_the_others) {
  End busy(far()), other(far()), one(near(4));
  ASSERT_TRUE(one.status.ok()) << one.status.message();
  const PeerId from_busy = connect(busy, one), from_other = connect(other, one);
  // Sends more than a burst before each receive(), each packet in its own frame.
  const auto send_many = [&] {
    for (uint32_t i = 0; i < 3 * Lane::kBurstMax; ++i) {
      (void)busy.send(from_busy, i);
      busy.turn();
    }
  };
  send_many();
  ASSERT_TRUE(run_until({&one}, [&] { return !one.got.empty(); }));
  ASSERT_TRUE(other.send(from_other, 5000));
  other->flush();
  EXPECT_TRUE(run_until({&one}, [&] {
    send_many();
    return std::ranges::any_of(one.got, [](const auto& packet) { return packet.number == 5000; });
  }));
  EXPECT_GT(one->counters().packets_received, Lane::kBurstMax);
}

TEST_F(XdpQueues, one_endpoint_receives_at_all_queues_of_the_process) {
  End one(near(4));
  ASSERT_TRUE(one.status.ok()) << one.status.message();
  EXPECT_EQ(one->port().queue_count(), 4u);
  std::vector<std::unique_ptr<End>> others;
  for (uint32_t i = 0; i < 4; ++i) {
    others.push_back(std::make_unique<End>(far()));
    EXPECT_EQ((*others[i])->queue().number(), i);
    expect_passes(*others[i], one, {others[i].get(), &one});
  }
  EXPECT_EQ(one->counters().packets_by_kernel, 0u);
  // A packet at each of the queues ends a sleep.
  for (uint32_t i = 0; i < 4; ++i) {
    const PeerId peer = connect(*others[i], one);
    ASSERT_TRUE(falls_asleep(one));
    const size_t before = one.got.size();
    ASSERT_TRUE(others[i]->send(peer, i));
    (*others[i])->flush();
    one->wait(UINT64_MAX);
    one->end_wait();
    ASSERT_TRUE(run_until({&one}, [&] { return one.got.size() == before + 1; }));
  }
}

TEST_F(XdpQueues, packets_at_the_queue_of_another_process__come_by_the_kernel__and_are_counted) {
  auto first = std::make_unique<End>(near());  // queue 0
  End& own = *first;
  test::Child other([] {
    auto end = std::make_unique<End>(near());
    const std::string text =
        end->status.ok() ? "queue " + std::to_string((*end)->queue().number()) : std::string(end->status.message());
    return std::pair(std::move(end), text);
  });
  ASSERT_EQ(other.said(), "queue 1");
  End at_zero(far()), at_one(far());
  expect_passes(at_zero, own, {&at_zero, &at_one, &own});
  EXPECT_EQ(own->counters().packets_by_kernel, 0u);
  expect_passes(at_one, own, {&at_zero, &at_one, &own});
  EXPECT_EQ(own->counters().packets_by_kernel, 100u);
  other.kill();
  // Packets at a queue without an owner also go through the kernel, until another endpoint takes the queue.
  expect_passes(at_one, own, {&at_zero, &at_one, &own});
  EXPECT_EQ(own->counters().packets_by_kernel, 200u);
  first.reset();
  EXPECT_TRUE(run_until({}, [] { return End(near(4)).status.ok(); })) << "the queue stays taken";
}

TEST_F(XdpQueues, too_few_free_queues__are_told) {
  const End end(near(5));
  test::expect_refusal(end.status, "xdp", Code::kUnavailable, "only 4 free pairs of a receive and a send queue");
}

/// The kernel keeps the endpoints' frames until the interface is up.
TEST_F(XdpQueues, endpoints_that_close_while_the_interface_is_down__leave_their_places_to_others) {
  constexpr size_t kEnds = xdp::Queue::kPlaces;
  End server(far());
  for (uint32_t round = 0; round < 2; ++round) {
    End stays(near(1));
    const PeerId peer = connect(stays, server);
    std::vector<std::unique_ptr<End>> ends;
    std::vector<PeerId> peers;
    for (size_t i = 1; i < kEnds; ++i) {
      ends.push_back(std::make_unique<End>(near(1)));
      ASSERT_TRUE(ends.back()->status.ok()) << ends.back()->status.message();
      peers.push_back(connect(*ends.back(), server));
    }
    test::expect_refusal(End(near(1)).status, "xdp", Code::kUnavailable, "16 endpoints share each queue");
    ASSERT_TRUE(run("ip link set wide0 down"));
    for (size_t i = 0; i < ends.size(); ++i) {
      ASSERT_TRUE(ends[i]->send(peers[i], 1));
      (*ends[i])->flush();
    }
    ends.clear();
    ASSERT_TRUE(run("ip link set wide0 up"));
    // Either the remaining endpoint makes the kernel send them, or the next endpoint that needs a place does.
    const auto passes = [&server](End& end, PeerId to, uint32_t number) {
      return run_until({&end, &server}, [&] {
        (void)end.send(to, number);
        end->flush();
        return std::ranges::any_of(server.got, [&](const auto& packet) { return packet.number == number; });
      });
    };
    if (round == 1) {
      ASSERT_TRUE(passes(stays, peer, 5000));
    }
    for (size_t i = 1; i < kEnds; ++i) {
      ends.push_back(std::make_unique<End>(near(1)));
      ASSERT_TRUE(ends.back()->status.ok()) << i << ": " << ends.back()->status.message();
    }
    test::expect_refusal(End(near(1)).status, "xdp", Code::kUnavailable, "16 endpoints share each queue");
    EXPECT_TRUE(passes(*ends.back(), connect(*ends.back(), server), 6000 + round));
  }
}

/// Eight threads, four at either end, share one queue, two or four. Each thread sends to all endpoints at the other end
/// until all packets have arrived, because the cable loses packets of a sender that is too fast.
TEST_F(XdpQueues, endpoints_of_many_threads__share_queues) {
  constexpr uint32_t kThreads = 4, kPackets = 300;
  for (const uint32_t queues : {1u, 2u, 4u}) {
    // The kernel frees queues of closed sockets late, and the ends would otherwise get different queues.
    if (queues != 1) {
      TearDown();
      ASSERT_NO_FATAL_FAILURE(SetUp());
    }
    std::vector<std::unique_ptr<End>> ends;
    for (uint32_t i = 0; i < 2 * kThreads; ++i) {
      ends.push_back(std::make_unique<End>(i % 2 == 0 ? near(queues) : far(queues)));
      ASSERT_TRUE(ends[i]->status.ok()) << ends[i]->status.message();
    }
    std::vector<PeerId> peers;  // for each end, the peers at the other end of the cable
    for (uint32_t i = 0; i < 2 * kThreads; ++i) {
      for (uint32_t k = 0; k < kThreads; ++k) peers.push_back(connect(*ends[i], *ends[2 * k + 1 - i % 2]));
    }
    std::atomic<uint32_t> complete{0};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 2 * kThreads; ++i) {
      threads.emplace_back([&, i] {
        End& end = *ends[i];
        std::set<uint32_t> numbers;  // sender and packet number of each arrived packet
        uint32_t sent = 0;
        const auto until = std::chrono::steady_clock::now() + test::kPatience;
        while (complete != 2 * kThreads && std::chrono::steady_clock::now() < until) {
          for (uint32_t burst = 0; burst < 8; ++burst) {
            const uint32_t packet = sent / kThreads % kPackets;
            if (!end.send(peers[i * kThreads + sent % kThreads], i * kPackets + packet)) break;
            ++sent;
          }
          end.turn();
          const size_t before = numbers.size();
          for (const auto& packet : end.got) numbers.insert(packet.number);
          end.got.clear();
          if (numbers.size() == kThreads * kPackets && before != numbers.size()) ++complete;
          if (end->prepare_wait()) end->wait(end->now() + 1'000'000);
          end->end_wait();
        }
        EXPECT_EQ(numbers.size(), kThreads * kPackets);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(complete, 2 * kThreads) << queues;
    for (const auto& end : ends) EXPECT_EQ((*end)->counters().packets_by_kernel, 0u);
  }
}

}  // namespace
}  // namespace tern::transport::xdp_test
