// Packets through a host's NAT.
#include <set>

#include "unit/sim/network/network_fixture.h"

namespace tern::sim {
namespace {

constexpr Picoseconds kNs = kPicosecondsPerNs;

using NatTest = NetworkTest;

TEST_F(NatTest, packets_that_are_lost_behind_it_keep_a_flow) {
  make(Topology::star(2));
  network().set_nat(0, 1'000'000 * kNs);
  std::set<uint32_t> outside;
  network().set_tap([&](const SimPacket& packet, bool has_arrived) {
    if (has_arrived && packet.from_host == 0) outside.insert(packet.from_port);
  });
  const auto send = [&] {
    port(0).send(port(1), 100);
    run_until(now() + 600'000 * kNs);
  };
  send();
  ASSERT_EQ(outside.size(), 1u);
  ASSERT_TRUE(network().set_faults(switch_at(0), host(1), {.drop = 1}));
  for (int i = 0; i < 5; i++) send();
  network().heal();
  port(1).send(0, *outside.begin(), 100);
  run_until(now() + 600'000 * kNs);
  EXPECT_EQ(port(0).arrivals().size(), 1u) << "the packets have passed the NAT";
  send();
  EXPECT_EQ(outside.size(), 1u);
  EXPECT_EQ(counters().dropped_nat, 0u);
  // A packet that does not leave the host does not pass the NAT.
  ASSERT_TRUE(network().set_link_up(host(0), switch_at(0), false));
  for (int i = 0; i < 5; i++) send();
  network().heal();
  port(1).send(0, *outside.begin(), 100);
  run();
  EXPECT_EQ(port(0).arrivals().size(), 1u);
  EXPECT_EQ(counters().dropped_nat, 1u);
}

}  // namespace
}  // namespace tern::sim
