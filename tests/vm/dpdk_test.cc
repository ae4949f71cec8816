// Steering by rte_flow on DPDK's net_tap, whose rules become tc filters in the VM's kernel. The kernel is at the other
// end of the tap's wire (tests/vm/run).
#include <rte_ethdev.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cable/far.h"
#include "e2e/namespaces.h"
#include "unit/transport/dpdk/dpdk_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

using e2e::run;

Dpdk::Options at_tap(uint16_t udp_port) {
  Dpdk::Options options;
  options.device = "net_tap0;iface=dtap0";
  options.address = "10.79.0.2/24";
  options.bind = ":" + std::to_string(udp_port);
  options.queues = 2;
  return options;
}

std::array<uint64_t, 4> packets_of_queues(End& end) {
  rte_eth_stats stats{};
  EXPECT_EQ(rte_eth_stats_get(end->port().id(), &stats), 0);
  return {stats.q_ipackets[0], stats.q_ipackets[1], stats.q_ipackets[2], stats.q_ipackets[3]};
}

}  // namespace

TEST(DpdkTap, datagrams_of_each_endpoint_arrive_in_its_own_queue) {
  if (std::getenv("TERN_IN_VM") == nullptr) GTEST_SKIP() << "this test runs in the VM: tests/vm/run";
  End one(at_tap(5001)), two(at_tap(5002));
  ASSERT_TRUE(one.status.ok()) << one.status.message();
  ASSERT_TRUE(two.status.ok()) << two.status.message();
  EXPECT_TRUE(one->port().facts().is_steered);
  // The kernel would have the MAC address of the port.
  ASSERT_TRUE(run("ip link set dtap0 address 02:00:00:00:79:01"));
  ASSERT_TRUE(run("ip address add 10.79.0.1/24 dev dtap0 && ip link set dtap0 up"));
  const test::KernelSocket socket("10.79.0.1:4001");

  std::vector<std::array<uint64_t, 4>> grown;
  for (End* end : {&one, &two}) {
    End& other = end == &one ? two : one;
    const auto before = packets_of_queues(one);
    constexpr uint32_t kPackets = 100;
    for (uint32_t i = 0; i < kPackets; i++) {
      socket.send(end->where(), packet_of(i, 40, std::byte{0xa5}));
      ASSERT_TRUE(run_until({end, &other}, [&] { return end->got.size() == i + 1; }));
    }
    EXPECT_EQ(end->got.back().number, kPackets - 1);
    grown.push_back(packets_of_queues(one));
    for (size_t queue = 0; queue < before.size(); queue++) grown.back()[queue] -= before[queue];
    EXPECT_EQ(*std::max_element(grown.back().begin() + 1, grown.back().end()), kPackets);
  }
  // The queues differ, and the first one is that of frames without a rule.
  for (size_t queue = 1; queue < 4; queue++) EXPECT_TRUE(grown[0][queue] == 0 || grown[1][queue] == 0) << queue;

  // The way back.
  const PeerId peer = connect(one, *base::SocketAddress::parse("10.79.0.1:4001"));
  ASSERT_TRUE(one.send(peer, 7, one.filled(1000, std::byte{0xa5}), 1000));
  one->flush();
  EXPECT_EQ(socket.receive(), packet_of(7, 1000, std::byte{0xa5}));
}

TEST(DpdkTap, more_endpoints_than_queues_are_refused) {
  if (std::getenv("TERN_IN_VM") == nullptr) GTEST_SKIP() << "this test runs in the VM: tests/vm/run";
  End one(at_tap(5001));
  {
    End two(at_tap(5002)), three(at_tap(5003));
    ASSERT_TRUE(two.status.ok()) << two.status.message();
    EXPECT_EQ(three.status.code(), Code::kUnavailable);
    EXPECT_NE(three.status.message().find("Dpdk::Options::queues"), std::string_view::npos) << three.status.message();
  }
  const End again(at_tap(5003));  // takes the queue that was freed
  EXPECT_TRUE(again.status.ok()) << again.status.message();
}

}  // namespace tern::transport::dpdk_test
