// The creation of an endpoint over raw Ethernet: results, and the texts of refusals.
#include "ethernet/setup.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <string_view>

namespace tern::ethernet {
namespace {

constexpr Names kNames{"wire", "Wire"};

base::SocketAddress ip(const char* text) { return *base::SocketAddress::parse_ip(text); }
void expect_refused(const Status& status, Code code, std::string_view part) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message().substr(0, 6), "wire: ") << status.message();
  EXPECT_NE(status.message().find(part), std::string_view::npos) << status.message();
}

TEST(Bind, good_texts__give_an_address) {
  const auto text = [](const char* bind) {
    auto parsed = parse_bind(kNames, bind);
    return parsed.ok() ? parsed->to_text() : std::string(parsed.status().message());
  };
  EXPECT_EQ(text(""), "0.0.0.0:0");
  EXPECT_EQ(text("10.0.0.1"), "10.0.0.1:0");
  EXPECT_EQ(text("10.0.0.1:4000"), "10.0.0.1:4000");
  EXPECT_EQ(text("0.0.0.0:4000"), "0.0.0.0:4000");
  EXPECT_EQ(text("2001:db8::1"), "[2001:db8::1]:0");
  EXPECT_EQ(text("[2001:db8::1]:4000"), "[2001:db8::1]:4000");
}

TEST(Bind, malformed_texts__are_misuse) {
  for (const char* text : {"host", "host:1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:65536", ":", "[::1", "224.0.0.1",
                           "ff02::1", "255.255.255.255"}) {
    expect_refused(parse_bind(kNames, text).status(), Code::kMisuse, "Wire::Options::bind is not HOST");
  }
  expect_refused(parse_bind(kNames, "fe80::1").status(), Code::kMisuse, "Wire::Options::bind is a link-local address");
}

class ChooseAddress : public ::testing::Test {
 protected:
  ChooseAddress() {
    interface.name = "eth7";
    interface.addresses = {ip("10.0.0.1"), ip("10.0.0.2"), ip("2001:db8::1"), ip("fe80::1")};
  }
  Result<OwnAddress> choose(const char* bind, const char* listen_host) {
    return choose_address(kNames, "nic0", interface, *base::SocketAddress::parse(bind), listen_host);
  }

  neighbours::Interface interface;
};

TEST_F(ChooseAddress, bind__comes_first) {
  auto own = choose("10.0.0.2:4000", "10.0.0.1");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->address.to_text(), "10.0.0.2:4000");
  EXPECT_TRUE(own->is_wished);
  expect_refused(choose("10.0.0.3:0", "10.0.0.1").status(), Code::kUnavailable,
                 "eth7 of nic0 does not have the address 10.0.0.3 of Wire::Options::bind");
}

TEST_F(ChooseAddress, listen_host__comes_next_if_the_interface_has_it) {
  auto own = choose("0.0.0.0:4000", "2001:db8::1");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->address.to_text(), "[2001:db8::1]:4000");
  EXPECT_TRUE(own->is_wished);
  for (const char* other : {"10.0.0.9", "0.0.0.0", "fe80::1", "", "host"}) {
    own = choose("0.0.0.0:0", other);
    ASSERT_TRUE(own.ok()) << other;
    EXPECT_EQ(own->address.to_text(), "10.0.0.1:0") << other;
    EXPECT_FALSE(own->is_wished) << other;
  }
}

TEST_F(ChooseAddress, link_local_addresses_only__are_none) {
  interface.addresses = {ip("fe80::1")};
  expect_refused(choose("0.0.0.0:0", "").status(), Code::kUnavailable, "eth7 of nic0 has no global address");
}

TEST(Interface, down_or_without_link__is_refused) {
  neighbours::Interface interface;
  interface.name = "eth7";
  interface.is_up = interface.is_running = true;
  EXPECT_TRUE(check_is_up(kNames, "nic0", interface, true).ok());
  expect_refused(check_is_up(kNames, "nic0", interface, false), Code::kUnavailable, "eth7 of nic0 is down");
  interface.is_running = false;
  EXPECT_FALSE(check_is_up(kNames, "nic0", interface, true).ok());
  interface.is_running = true;
  interface.is_up = false;
  EXPECT_FALSE(check_is_up(kNames, "nic0", interface, true).ok());
}

TEST(Interface, missing_interface__is_named) {
  expect_refused(find_interface(kNames, "port 2 of nic0", 0).status(), Code::kUnavailable,
                 "port 2 of nic0 has no network interface here");
  neighbours::Interface interface;
  interface.name = "eth7";
  interface.index = 1u << 30;
  expect_refused(find_vlan(kNames, interface, 9).status(), Code::kUnavailable,
                 "ip link add link eth7 name eth7.9 type vlan id 9");
}

TEST(ReservedPort, is_taken_until_the_descriptor_is_closed__and_receives_nothing) {
  base::SocketAddress own = base::SocketAddress::loopback(AF_INET);
  auto port = reserve_port(kNames, &own);
  ASSERT_TRUE(port.ok()) << port.status().message();
  EXPECT_NE(own.port(), 0);
  base::SocketAddress again = own;
  expect_refused(reserve_port(kNames, &again).status(), Code::kUnavailable, own.to_text() + " is taken");

  const base::Descriptor sender(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (int i = 0; i < 3; i++) {  // the kernel would report an ICMP error in the next call
    ASSERT_EQ(sendto(sender.get(), "x", 1, 0, own.sockaddr_data(), own.sockaddr_bytes()), 1);
  }
  char byte = 0;
  EXPECT_EQ(recv(port->get(), &byte, 1, MSG_DONTWAIT), -1);
  port->reset();
  EXPECT_TRUE(reserve_port(kNames, &again).ok());
  base::SocketAddress other = ip("192.0.2.1");
  expect_refused(reserve_port(kNames, &other).status(), Code::kUnavailable, "192.0.2.1:0");
}

TEST(DatagramBytes, follow_the_mtu_within_the_limits) {
  constexpr DatagramLimits kLimits{536, 8142};
  const auto choose = [&](uint32_t mtu, sa_family_t family, uint32_t wished) {
    auto chosen = choose_datagram_bytes(kNames, "eth7", mtu, family, wished, kLimits);
    return chosen.ok() ? *chosen : 0;
  };
  EXPECT_EQ(choose(1500, AF_INET, 0), 1472u);
  EXPECT_EQ(choose(1500, AF_INET6, 0), 1452u);
  EXPECT_EQ(choose(9000, AF_INET, 0), 8142u);
  EXPECT_EQ(choose(1500, AF_INET, 1472), 1472u);
  EXPECT_EQ(choose(1500, AF_INET, 1473), 0u);
  EXPECT_EQ(choose(564, AF_INET, 0), 536u);
  EXPECT_EQ(choose(563, AF_INET, 0), 0u);
  EXPECT_EQ(choose(10, AF_INET, 0), 0u);
  expect_refused(choose_datagram_bytes(kNames, "eth7", 1500, AF_INET, 1473, kLimits).status(), Code::kUnavailable,
                 "1473 bytes do not fit eth7, whose MTU is 1500: it takes 536 to 1472; change Wire::Options::");
}

}  // namespace
}  // namespace tern::ethernet
