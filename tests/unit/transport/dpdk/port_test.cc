// DPDK ports and lanes: over memif with both ends in this process, over net_null, and refusals.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/wait.h"
#include "memory/arena.h"
#include "neighbours/host.h"
#include "transport/dpdk/dpdk_device.h"
#include "transport/dpdk/dpdk_memory.h"
#include "transport/dpdk/dpdk_steering.h"
#include "unit/transport/dpdk/port_fixture.h"

// This function belongs to DPDK's interface for drivers, whose header is not installed.
extern "C" {
struct rte_eth_dev;
rte_eth_dev* rte_eth_dev_get_by_name(const char* name);
int rte_eth_dev_callback_process(rte_eth_dev* device, enum rte_eth_event_type event, void* detail);
}

namespace tern::transport::dpdk_test {
namespace {

struct Cable {
  Cable() : ports{open_port(memif_choice(0)), open_port(memif_choice(1))} {
    for (const auto& port : ports) wait_for_link(*port);
  }
  std::array<std::shared_ptr<DpdkPort>, 2> ports;
};

TEST(DpdkPort, lanes_of_a_port__share_its_queue__and_get_their_own_frames) {
  Cable cable;
  const DpdkFacts& facts = cable.ports[1]->facts();
  EXPECT_EQ(facts.name, "net_memif1");
  EXPECT_EQ(facts.mtu_bytes, 1500);
  EXPECT_TRUE(facts.gathers);
  EXPECT_FALSE(facts.is_steered || facts.uses_dma || facts.makes_checksums || facts.has_interrupts);
  TestLane sender(*cable.ports[0], 5000), one(*cable.ports[1]), other(*cable.ports[1]);
  ASSERT_NE(one.own.port(), 0);
  ASSERT_NE(one.own.port(), other.own.port());
  EXPECT_TRUE(one->is_local(other.own));
  EXPECT_FALSE(one->is_local(sender.own));

  // Only one lane reads the queue. The other one gets its frames from its inbox.
  for (uint32_t i = 0; i < 40; ++i) send(*sender.lane, frame_to((i % 2 == 0 ? one : other).own, i));
  std::vector<uint32_t> ones, others;
  wait_until([&] {
    for (const uint32_t number : receive(one)) ones.push_back(number);
    return ones.size() == 20;
  });
  rte_mbuf* frames[DpdkLane::kBurstMax];
  const uint32_t count = other->receive(frames, DpdkLane::kBurstMax);
  for (uint32_t i = 0; i < count; ++i) others.push_back(number_of(frames[i]));
  rte_pktmbuf_free_bulk(frames, count);
  wait_until([&] {
    for (const uint32_t number : receive(other)) others.push_back(number);
    return others.size() == 20;
  });
  // The order may differ, because the port's thread may have read some frames.
  std::sort(ones.begin(), ones.end());
  std::sort(others.begin(), others.end());
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(std::pair(ones[i], others[i]), std::pair(2 * i, 2 * i + 1));

  // A frame to another port or to a lane that has ended is dropped. A lane does not get its own frame back.
  const base::SocketAddress gone = other.own;
  other.lane.reset();
  base::SocketAddress strange = one.own;
  strange.set_port(1);
  for (const base::SocketAddress& to : {gone, strange, one.own}) {
    rte_mbuf* const frame = frame_to(to, 1);
    EXPECT_FALSE(one->pass_on(frame));
    rte_pktmbuf_free(frame);
  }
  EXPECT_EQ(rte_mempool_avail_count(send_pool()), 8191u);
}

TEST(DpdkPort, frames_to_the_own_address__are_looped_back__with_good_checksums) {
  auto port = open_port(memif_choice(0));
  TestLane one(*port), other(*port);
  one->loop_back(frame_to(other.own, 7));
  one->loop_back(frame_to(one.own, 8));
  base::SocketAddress strange = one.own;
  strange.set_port(1);
  one->loop_back(frame_to(strange, 9));
  for (const auto& [lane, number] : {std::pair(&other, 7u), std::pair(&one, 8u)}) {
    rte_mbuf* frame = nullptr;
    ASSERT_EQ((*lane)->receive(&frame, 1), 1u);
    EXPECT_EQ(number_of(frame), number);
    constexpr uint64_t kGood = RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
    EXPECT_EQ(frame->ol_flags & kGood, kGood);
    rte_pktmbuf_free(frame);
  }
  for (uint32_t i = 0; i < 5000; ++i) one->loop_back(frame_to(other.own, i));  // an inbox has 1023 frames
  uint32_t waiting = 0;
  rte_mbuf* frames[DpdkLane::kBurstMax];
  while (const uint32_t count = other->receive(frames, DpdkLane::kBurstMax)) {
    waiting += count;
    rte_pktmbuf_free_bulk(frames, count);
  }
  EXPECT_EQ(waiting, 1023u);
  EXPECT_EQ(rte_mempool_avail_count(send_pool()), 8191u);
  const DpdkDrops drops = port->take_drops();
  EXPECT_EQ(drops.no_space, 5000u - 1023u);
  EXPECT_EQ(drops.frames[static_cast<size_t>(frames::Drop::kOtherPort)], 1u);
  EXPECT_EQ(port->take_drops().no_space, 0u);
}

TEST(DpdkPort, endpoints_that_do_not_run__leave_frames_to_the_others) {
  Cable cable;
  TestLane sender(*cable.ports[0]), awake(*cable.ports[1]);
  std::vector<std::unique_ptr<TestLane>> stuck;
  for (uint32_t i = 0; i < 5; ++i) stuck.push_back(std::make_unique<TestLane>(*cable.ports[1]));
  // More frames than the queue's pool has. The port's thread reads them.
  constexpr uint32_t kFrames = 1100, kShare = 4096 / 16;
  for (uint32_t i = 0; i < kFrames; ++i) {
    for (const auto& lane : stuck) {
      send(*sender.lane, frame_to(lane->own, i));
      if (HasFailure()) return;
    }
  }
  uint64_t dropped = 0;
  wait_until([&] {
    dropped += cable.ports[1]->take_drops().no_space;
    return dropped == stuck.size() * (kFrames - kShare);
  });
  send(*sender.lane, frame_to(awake.own, 7));
  std::vector<uint32_t> got;
  wait_until([&] { return !(got = receive(awake)).empty(); });
  EXPECT_EQ(got, std::vector{7u});
}

/// Sends frames that the lane's endpoint would drop, while it does not read its queue and so the port's thread does.
/// The interface at the lane's end has the address `mac`.
void expect_drops_by_reason(Cable& cable, TestLane& sender, const TestLane& lane, const frames::MacAddress& mac) {
  const auto frame_of = [&](const base::SocketAddress& to) {
    rte_mbuf* const frame = frame_to(to, 1);
    std::copy(mac.bytes().begin(), mac.bytes().end(), rte_pktmbuf_mtod(frame, std::byte*));
    return frame;
  };
  base::SocketAddress strange = lane.own;
  strange.set_port(1);
  rte_mbuf* const to_other_mac = frame_to(strange, 1);
  rte_mbuf* const of_no_checksum = frame_of(strange);
  rte_mbuf* const of_other_type = frame_of(strange);
  rte_pktmbuf_mtod(of_other_type, uint8_t*)[12] = 0x99;
  for (rte_mbuf* const frame : {to_other_mac, of_no_checksum, of_other_type}) send(*sender.lane, frame);
  DpdkDrops drops;
  const auto count = [&](frames::Drop why) { return drops.frames[static_cast<size_t>(why)]; };
  wait_until([&] {
    const DpdkDrops more = cable.ports[1]->take_drops();
    for (size_t i = 0; i < drops.frames.size(); ++i) drops.frames[i] += more.frames[i];
    return std::accumulate(drops.frames.begin(), drops.frames.end(), uint64_t{0}) == 3;
  });
  EXPECT_EQ(count(frames::Drop::kOtherMac), 1u);
  EXPECT_EQ(count(frames::Drop::kIpChecksum), 1u);
  EXPECT_EQ(count(frames::Drop::kOtherType), 1u);
}

TEST(DpdkPort, unwanted_frames__are_counted_by_reason__once) {
  Cable cable;
  TestLane sender(*cable.ports[0]), lane(*cable.ports[1]);
  expect_drops_by_reason(cable, sender, lane, cable.ports[1]->facts().mac);
  const frames::MacAddress changed({2, 0, 0, 0, 0, 0x77});
  ASSERT_TRUE(lane->follow_mac(changed).ok());
  expect_drops_by_reason(cable, sender, lane, changed);
}

TEST(DpdkPort, hosts_answer_each_other__while_no_lane_is_polled) {
  Cable cable;
  TestLane lane(*cable.ports[1]);
  auto resolver = cable.ports[0]->host().resolver(cable.ports[0]->own_address());
  ASSERT_TRUE(resolver.ok()) << resolver.status().message();
  auto id = (*resolver)->find(lane.own, base::monotonic_ns());
  ASSERT_TRUE(id.ok());
  wait_until([&] {
    (*resolver)->update(base::monotonic_ns());
    return (*resolver)->state(*id) == neighbours::State::kKnown;
  });
  EXPECT_EQ((*resolver)->mac(*id), cable.ports[1]->facts().mac);
}

TEST(DpdkPort, many_threads_at_one_queue__get_all_their_frames) {
  Cable cable;
  constexpr uint32_t kPairs = 4, kRounds = 2000;
  std::vector<std::unique_ptr<TestLane>> clients, servers;
  for (uint32_t i = 0; i < kPairs; ++i) {
    clients.push_back(std::make_unique<TestLane>(*cable.ports[0]));
    servers.push_back(std::make_unique<TestLane>(*cable.ports[1]));
  }
  std::atomic<uint32_t> rounds{0}, wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kPairs; ++i) {
    for (const bool is_client : {true, false}) {
      threads.emplace_back([&, i, is_client] {
        register_eal_thread();
        TestLane& lane = is_client ? *clients[i] : *servers[i];
        const base::SocketAddress& to = is_client ? servers[i]->own : clients[i]->own;
        for (uint32_t round = 0; round < kRounds; ++round) {
          if (is_client) send(*lane.lane, frame_to(to, round));
          std::vector<uint32_t> got;
          wait_until([&] { return !(got = receive(lane)).empty(); });
          if (got != std::vector{round}) ++wrong;
          if (!is_client) send(*lane.lane, frame_to(to, round));
          ++rounds;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rounds.load(), 2 * kPairs * kRounds);
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(DpdkPort, sleeping_lane__wakes_for_frames__that_any_lane_finds) {
  Cable cable;
  TestLane sender(*cable.ports[0]), awake(*cable.ports[1]), asleep(*cable.ports[1]);
  base::WaitSet waits;
  ASSERT_TRUE(waits.open());
  ASSERT_TRUE(asleep->add_to(waits, 3).ok());
  epoll_event event{};

  // No lane polls, so the port's thread finds the frame.
  ASSERT_TRUE(asleep->arm());
  EXPECT_EQ(waits.wait({&event, 1}, 0), 0u);
  send(*sender.lane, frame_to(asleep.own, 1));
  ASSERT_EQ(waits.wait({&event, 1}, UINT64_MAX), 1u);
  EXPECT_EQ(uint64_t{event.data.u64}, 3u);  // the field in the event is unaligned
  asleep->disarm();
  EXPECT_EQ(waits.wait({&event, 1}, 0), 0u);
  EXPECT_EQ(receive(asleep), std::vector{1u});

  // Another endpoint of the process sends a frame.
  ASSERT_TRUE(asleep->arm());
  awake->loop_back(frame_to(asleep.own, 2));
  ASSERT_EQ(waits.wait({&event, 1}, UINT64_MAX), 1u);
  asleep->disarm();
  EXPECT_EQ(receive(asleep), std::vector{2u});

  // A waiting frame keeps the lane from sleeping.
  awake->loop_back(frame_to(asleep.own, 3));
  EXPECT_FALSE(asleep->arm());
  EXPECT_EQ(waits.wait({&event, 1}, 0), 0u);
  EXPECT_EQ(receive(asleep), std::vector{3u});

  // Another endpoint ends, which may have taken the interrupt.
  ASSERT_TRUE(asleep->arm());
  EXPECT_EQ(waits.wait({&event, 1}, 0), 0u);
  awake.lane.reset();
  EXPECT_EQ(waits.wait({&event, 1}, 0), 1u);
}

TEST(DpdkPort, frame_behind_a_full_burst__keeps_its_lane_from_sleeping) {
  Cable cable;
  TestLane sender(*cable.ports[0]), busy(*cable.ports[1]), tired(*cable.ports[1]), polled(*cable.ports[1]);
  // The port's thread does not read the queue after a poll, and this one takes a frame of the inbox.
  const auto poll = [&] {
    polled->loop_back(frame_to(polled.own, 1));
    EXPECT_EQ(receive(polled).size(), 1u);
  };
  constexpr uint32_t kRounds = 32;
  uint32_t refusals = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    poll();
    for (uint32_t i = 0; i < DpdkLane::kBurstMax; ++i) send(*sender.lane, frame_to(busy.own, i));
    send(*sender.lane, frame_to(tired.own, round));
    poll();
    if (tired->arm()) {
      tired->disarm();
    } else {
      ++refusals;
    }
    std::vector<uint32_t> got;
    wait_until([&] { return !(got = receive(tired)).empty(); });
    EXPECT_EQ(got, std::vector{round});
    wait_until([&] { return receive(busy).empty(); });
  }
  EXPECT_GT(refusals, kRounds / 2) << "the port's thread may read the queue within arm()";
}

TEST(DpdkPort, last_endpoint__closes_the_device__which_opens_again) {
  for (uint32_t i = 0; i < 3; ++i) {
    auto port = open_port(memif_choice(0));
    ASSERT_NE(port, nullptr);
    const auto again = open_port(memif_choice(0));
    EXPECT_EQ(again, port);
    TestLane lane(*port, 4000);
    auto taken = port->attach(&lane.own);
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.status().message(),
              "dpdk: another endpoint of this process has the UDP port 4000 at net_memif0: leave it out of "
              "Dpdk::Options::bind, or choose another one");
    port.reset();
    // A port with an owner does not count as available.
    EXPECT_EQ(rte_eth_dev_count_avail() + (rte_eth_dev_is_valid_port(again->id()) != 0 ? 1 : 0), 1);
    DpdkChoice other = memif_choice(0);
    other.queues = 1;
    const auto refused = DpdkPort::open(other);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kMisuse);
    EXPECT_NE(refused.status().message().find("with another queues:"), std::string_view::npos);
  }
  // The last port was a server. Other arguments make another device.
  DpdkChoice other = memif_choice(0);
  other.device += "x";
  EXPECT_NE(open_port(other), nullptr);
  DpdkChoice null = memif_choice(0);
  null.device = "net_null0";
  for (uint32_t i = 0; i < 2; ++i) EXPECT_NE(open_port(null), nullptr);
  uint16_t id = 0;
  EXPECT_NE(rte_eth_dev_get_port_by_name("net_null0", &id), 0);
}

TEST(DpdkPort, closed_port__leaves_the_threads_at_its_other_end_alone) {
  for (uint32_t round = 0; round < 8; ++round) {
    auto server = open_port(memif_choice(0));
    const auto client = open_port(memif_choice(1));
    ASSERT_TRUE(server != nullptr && client != nullptr);
    wait_for_link(*client);
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 4; ++i) {  // more threads than CPUs, so that some are descheduled inside a burst
      threads.emplace_back([&] {
        TestLane lane(*client);
        while (!is_over.load(std::memory_order_relaxed)) (void)receive(lane);
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server.reset();
    EXPECT_TRUE(client->failure().ok());
    is_over.store(true, std::memory_order_relaxed);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(DpdkPort, removed_device__fails__and_is_called_no_more) {
  Cable cable;
  TestLane lane(*cable.ports[0]);
  EXPECT_TRUE(cable.ports[0]->failure().ok());
  const uint64_t before = cable.ports[0]->events();
  std::atomic<bool> is_done{false};
  std::thread user([&] {
    while (!is_done) {
      receive(lane);
      rte_mbuf* frame = frame_to(lane.own, 1);
      if (frame != nullptr && lane->transmit(&frame, 1) == 0) rte_pktmbuf_free(frame);
    }
  });
  rte_eth_dev_callback_process(rte_eth_dev_get_by_name("net_memif0"), RTE_ETH_EVENT_INTR_RMV, nullptr);
  EXPECT_EQ(cable.ports[0]->failure().message(),
            "dpdk: the device net_memif0 was removed: plug it in, and create a new endpoint");
  EXPECT_GT(cable.ports[0]->events(), before);
  wait_until([&] { return !cable.ports[0]->is_link_up(); });
  is_done = true;
  user.join();
  wait_until([&] {
    rte_mbuf* frame = frame_to(lane.own, 1);
    const uint32_t taken = lane->transmit(&frame, 1);
    if (taken == 0) rte_pktmbuf_free(frame);
    return taken == 0;
  });
  EXPECT_FALSE(cable.ports[0]->attach(&lane.own).ok());
  lane->clean_up();
  if (lane->arm()) lane->disarm();

  // The last endpoint closes the device. Opened again, the device is like a new one.
  lane.lane.reset();
  cable.ports[0].reset();
  auto again = open_port(memif_choice(0));
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(again->failure().ok());
}

TEST(DpdkPort, forked_child__leaves_port_and_lane_alone) {
  auto port = open_port(memif_choice(0));
  auto lane = std::make_unique<TestLane>(*port);
  const pid_t child = fork();
  if (child == 0) {
    lane.reset();
    port.reset();
    const auto refused = DpdkPort::open(memif_choice(0));
    _exit(refused.ok() || refused.status().message().find("forked") == std::string_view::npos ? 1 : 0);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  (*lane)->loop_back(frame_to(lane->own, 5));
  EXPECT_EQ(receive(*lane), std::vector{5u});
}

/// net_null has an RSS table and accepts any key, and its queues never run empty.
TEST(DpdkPort, device_with_hashes__has_a_queue_for_each_endpoint) {
  DpdkChoice choice;
  choice.device = "net_null0";
  choice.address = "10.0.0.1/24";
  choice.queues = 3;
  choice.receive_buffers = 512;
  auto port = open_port(choice);
  ASSERT_NE(port, nullptr);
  EXPECT_TRUE(port->facts().is_steered);
  std::vector<std::unique_ptr<TestLane>> lanes;
  for (uint32_t i = 0; i < 3; ++i) lanes.push_back(std::make_unique<TestLane>(*port));
  std::set<uint16_t> queues;
  rte_eth_rss_reta_entry64 table[2]{};
  table[0].mask = table[1].mask = UINT64_MAX;
  ASSERT_EQ(rte_eth_dev_rss_reta_query(port->id(), table, 128), 0);
  for (const auto& lane : lanes) {
    const uint32_t entry = hash_entry_of(lane->own.port(), 7);
    queues.insert(table[entry / 64].reta[entry % 64]);
  }
  EXPECT_EQ(queues, (std::set<uint16_t>{1, 2, 3}));
  base::SocketAddress own = port->own_address();
  const auto refused = port->attach(&own);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "dpdk: all 3 queues of net_null0 are in use by an endpoint each: raise Dpdk::Options::queues, or use fewer "
            "endpoints");
  lanes.pop_back();
  EXPECT_TRUE(port->attach(&own).ok());

  rte_mbuf* frames[DpdkLane::kBurstMax];
  uint32_t count = 0;
  while (count == 0) count = (*lanes[0])->receive(frames, DpdkLane::kBurstMax);  // the port's thread may have the queue
  EXPECT_EQ(count, DpdkLane::kBurstMax);
  rte_pktmbuf_free_bulk(frames, count);
}

TEST(DpdkPort, refusals__say_what_to_do) {
  const auto why = [](const DpdkChoice& choice) {
    auto port = DpdkPort::open(choice);
    return port.ok() ? std::string("opened") : std::string(port.status().message());
  };
  DpdkChoice choice = memif_choice(0);
  choice.address.clear();
  EXPECT_EQ(why(choice),
            "dpdk: the device net_memif0 has no interface in the kernel that would give it an address: set "
            "Dpdk::Options::address, such as 10.0.0.1/24");
  choice = memif_choice(0);
  choice.mtu_bytes = 9000;
  EXPECT_EQ(why(choice),
            "dpdk: the device net_memif0 takes an MTU of 68 to 1500 bytes, and not 9000: change Dpdk::Options::mtu");
  choice = memif_choice(0);
  choice.queues = 4;
  EXPECT_EQ(why(choice),
            "dpdk: the device net_memif0 cannot steer frames to queues of endpoints (neither rte_flow nor RSS with "
            "tern's key works), so that its endpoints share one queue: set Dpdk::Options::queues to 0 or 1");
  choice = memif_choice(0);
  choice.device = "net_memif9;role=nobody";
  EXPECT_NE(why(choice).find("there is no device net_memif9, or its driver refuses it ("), std::string::npos);
  choice.device = "net_nothing0";
  EXPECT_NE(why(choice).find("there is no device net_nothing0"), std::string::npos);
  choice.device = "lo";
  EXPECT_NE(why(choice).find("lo is a network interface of the kernel"), std::string::npos);
  choice.device = "ff:1f.7";
  EXPECT_EQ(why(choice),
            "dpdk: there is no PCI device 0000:ff:1f.7: dpdk-devbind.py --status lists those of this machine");
  choice.device = "";
  EXPECT_NE(why(choice).find("EAL has found no free port"), std::string::npos);
  choice = memif_choice(0);
  choice.eal = "--no-huge -m 99";
  EXPECT_NE(why(choice).find("EAL runs with the arguments"), std::string::npos);
  choice = memif_choice(0);
  choice.address.clear();
  choice.gateway = "10.0.0.9";
  EXPECT_NE(why(choice).find("Dpdk::Options::gateway needs"), std::string::npos);

  EXPECT_EQ(why(memif_choice(0)), "opened");  // after all of these refusals
}

TEST(DpdkPort, device_of_the_program__is_left_alone) {
  ASSERT_TRUE(start_eal({}).ok());
  ASSERT_EQ(rte_dev_probe("net_null5"), 0);
  uint16_t id = 0;
  ASSERT_EQ(rte_eth_dev_get_port_by_name("net_null5", &id), 0);
  rte_eth_dev_owner owner{};
  ASSERT_EQ(rte_eth_dev_owner_new(&owner.id), 0);
  std::strcpy(owner.name, "theirs");
  ASSERT_EQ(rte_eth_dev_owner_set(id, &owner), 0);
  DpdkChoice choice;
  choice.device = "net_null5";
  choice.address = "10.0.0.1/24";
  const auto refused = DpdkPort::open(choice);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "dpdk: another part of the program (theirs) owns the port: use another device");
  ASSERT_EQ(rte_eth_dev_owner_unset(id, owner.id), 0);
  choice.device = "";  // the name of the only device
  { const auto port = open_port(choice); }
  EXPECT_EQ(rte_eth_dev_is_valid_port(id), 1);
}

TEST(DpdkPort, message_memory__is_known_where_the_device_gathers) {
  auto port = open_port(memif_choice(0));
  DpdkMemory memory(port);
  auto arena = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
  ASSERT_TRUE(arena.ok());
  EXPECT_FALSE(memory.is_mapped(0));
  ASSERT_TRUE((*arena)->observe(memory).ok());
  EXPECT_TRUE(memory.is_mapped(0));
  EXPECT_FALSE(memory.is_mapped(1));
  EXPECT_FALSE(memory.is_mapped(DpdkMemory::kChunksMax));
  (*arena)->unobserve();
  EXPECT_FALSE(memory.is_mapped(0));
  (*arena)->orphan();
}

}  // namespace
}  // namespace tern::transport::dpdk_test
