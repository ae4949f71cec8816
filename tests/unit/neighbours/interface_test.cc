// Properties of real interfaces in a network namespace.
#include "neighbours/interface.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "network.h"

namespace tern::neighbours {
namespace {

std::vector<uint32_t> vlans_of_kernel() {
  if (access("/proc/net/vlan", F_OK) != 0) return {};
  return {7};
}

using testing::HasSubstr;

using InterfaceTest = NetworkTest;

TEST_F(InterfaceTest, reported_facts_are_the_configured_ones) {
  ASSERT_TRUE(run("ip link set eth0 mtu 1400"));
  const auto found = interface_by_name("eth0");
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Interface& eth0 = *found;
  EXPECT_EQ(eth0.name, "eth0");
  EXPECT_EQ(eth0.mac.to_text(), Network::kOwnMac);
  EXPECT_EQ(eth0.mtu_bytes, 1400u);
  EXPECT_TRUE(eth0.is_up);
  EXPECT_TRUE(eth0.is_running);
  EXPECT_FALSE(eth0.is_loopback);
  EXPECT_EQ(eth0.vlan, 0u);
  EXPECT_EQ(eth0.parent, 0u);  // the other end of a veth pair is no parent
  auto link_local = ip("fe80::1");
  link_local.set_scope(eth0.index);
  EXPECT_EQ(eth0.addresses, (std::vector{ip("10.0.0.1"), ip("fd00::1"), link_local}));
}

TEST_F(InterfaceTest, one_interface_is_found_by_name_index_and_address) {
  const auto by_name = interface_by_name("eth0");
  ASSERT_TRUE(by_name.ok());
  const auto by_index = interface_by_index((*by_name).index);
  ASSERT_TRUE(by_index.ok());
  EXPECT_EQ(*by_index, *by_name);
  for (const char* address : {"10.0.0.1", "fd00::1", "fe80::1", "fe80::1%eth0"}) {
    const auto by_address = interface_by_address(ip(address));
    ASSERT_TRUE(by_address.ok()) << address;
    EXPECT_EQ(*by_address, *by_name);
  }
  const auto loopback = interface_by_address(ip("127.0.0.1"));
  ASSERT_TRUE(loopback.ok());
  EXPECT_TRUE((*loopback).is_loopback);
}

TEST_F(InterfaceTest, missing_interfaces_are_named) {
  EXPECT_THAT(interface_by_name("eth7").status().message(), HasSubstr("no network interface eth7"));
  EXPECT_THAT(interface_by_name("").status().message(), HasSubstr("no network interface"));
  EXPECT_FALSE(interface_by_name("a_name_that_is_too_long").ok());
  EXPECT_THAT(interface_by_index(4242).status().message(), HasSubstr("index 4242"));
  EXPECT_FALSE(interface_by_index(0).ok());
  EXPECT_FALSE(interface_by_index(UINT32_MAX).ok());
  EXPECT_THAT(interface_by_address(ip("10.0.0.2")).status().message(), HasSubstr("has the address 10.0.0.2"));
  EXPECT_FALSE(interface_by_address(ip("fe80::1%lo")).ok());
}

/// Tests of the kernel's VLAN devices. No test is instantiated if the kernel has none (module 8021q).
class VlanTest : public InterfaceTest, public testing::WithParamInterface<uint32_t> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VlanTest);
INSTANTIATE_TEST_SUITE_P(Kernel, VlanTest, testing::ValuesIn(vlans_of_kernel()));

TEST_P(VlanTest, device_names_its_parent) {
  ASSERT_EQ(GetParam(), 7u);
  ASSERT_TRUE(run("ip link add link eth0 name eth0.7 type vlan id 7"));
  const auto vlan = interface_by_name("eth0.7");
  ASSERT_TRUE(vlan.ok());
  EXPECT_EQ((*vlan).vlan, 7u);
  EXPECT_EQ((*vlan).parent, (*interface_by_name("eth0")).index);
  EXPECT_FALSE((*vlan).is_up);
  EXPECT_TRUE((*vlan).addresses.empty());
}

TEST_F(InterfaceTest, cut_cable_is_up_but_not_running) {
  network_->run_at_peer("ip link set eth1 down");
  ASSERT_TRUE(Network::becomes_running(false));
  const auto found = interface_by_name("eth0");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE((*found).is_up);
  EXPECT_FALSE((*found).is_running);
}

TEST_F(InterfaceTest, address_that_is_not_yet_unique_is_left_out) {
  Network::set("ipv6/conf/eth0/accept_dad", 1);
  Network::set("ipv6/conf/eth0/dad_transmits", 100);
  ASSERT_TRUE(run("ip address add fd00::7/64 dev eth0"));
  const auto found = interface_by_name("eth0");
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE((*found).has_address(ip("fd00::7")));
  EXPECT_TRUE((*found).is_tentative(ip("fd00::7")));
  EXPECT_FALSE((*found).is_tentative(ip("fd00::1")));
}

TEST_F(InterfaceTest, addresses_that_the_kernel_will_remove_come_last) {
  ASSERT_TRUE(run("ip address add fd00::8/64 dev eth0 nodad preferred_lft 0"));  // deprecated at once
  ASSERT_TRUE(run("ip address add fd00::9/64 dev eth0 nodad"));
  const auto found = interface_by_name("eth0");
  ASSERT_TRUE(found.ok());
  const auto is_global = [](const auto& address) { return !address.is_link_local(); };
  std::vector<base::SocketAddress> global;
  std::ranges::copy_if((*found).addresses, std::back_inserter(global), is_global);
  ASSERT_FALSE(global.empty());
  EXPECT_EQ(global.back().ip_text(), "fd00::8");
}

TEST_F(InterfaceTest, many_addresses_are_all_listed) {
  std::string commands;
  for (int i = 0; i < 2000; i++) {
    commands += "address add 10.7." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250) + "/32 dev eth0\\n";
  }
  ASSERT_TRUE(run("printf '" + commands + "' | ip -batch -"));
  EXPECT_EQ((*interface_by_name("eth0")).addresses.size(), 2003u);
}

}  // namespace
}  // namespace tern::neighbours
