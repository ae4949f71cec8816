#include "neighbours/own_address.h"

#include <gmock/gmock.h>
#include <linux/rtnetlink.h>

#include <string>
#include <string_view>

namespace tern::neighbours {
namespace {

using testing::HasSubstr;

constexpr uint32_t kInterface = 7;

base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }

std::string refusal(std::string_view address, std::string_view gateway = "") {
  const auto own = OwnAddress::parse(address, gateway);
  if (own.ok()) return "";
  EXPECT_EQ(own.status().code(), Code::kMisuse);
  return std::string(own.status().message());
}

/// Returns the next hop: the destination, its gateway, or the type of the route.
std::string way(std::string_view address, std::string_view gateway, std::string_view destination) {
  auto own = OwnAddress::parse(address, gateway);
  EXPECT_TRUE(own.ok()) << own.status().message();
  const auto route = (*own).route_to(ip(destination), kInterface);
  if (!route) return "no route";
  EXPECT_EQ(route->interface, kInterface);
  if (route->type == RTN_LOCAL) return "local";
  if (route->type == RTN_BROADCAST) return "broadcast";
  EXPECT_EQ(route->type, RTN_UNICAST);
  return std::string(base::host_of(route->gateway.value_or(ip(destination)).to_text()));
}

TEST(OwnAddressTest, address_has_its_prefix) {
  auto own = OwnAddress::parse("10.1.2.3/24", "10.1.2.254");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ((*own).ip, ip("10.1.2.3"));
  EXPECT_EQ((*own).prefix_bits, 24);
  EXPECT_EQ((*own).gateway, ip("10.1.2.254"));
  EXPECT_FALSE((*OwnAddress::parse("2001:db8::1/64", "")).gateway.has_value());
}

TEST(OwnAddressTest, bad_address_is_refused_with_the_option) {
  for (const char* text : {"", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/0", "10.0.0.1/x", "10.0.0.1/24/1",
                           "fd00::1/129", "host/24", "/24", "fe80::1%1/64", "10.0.0.1:5/24"}) {
    EXPECT_THAT(refusal(text), HasSubstr("option address: ")) << text;
  }
  for (const char* text : {"10.0.0.0/24", "10.0.0.255/24", "127.0.0.1/8", "0.0.0.0/24", "224.0.0.1/24", "ff02::1/64",
                           "::1/128", "::/64", "255.255.255.255/32"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not the address of one host")) << text;
  }
}

/// connect() refuses such an address of a peer, because it may be of another link.
TEST(OwnAddressTest, link_local_address_is_refused_of_ipv6_only) {
  EXPECT_EQ(refusal("fe80::1/64"),
            "option address: fe80::1/64 is a link-local address, which peers cannot tell from their own: choose a "
            "global one");
  EXPECT_EQ(refusal("169.254.3.1/16"), "");
}

TEST(OwnAddressTest, bad_gateway_is_refused_with_the_option) {
  for (const char* text : {"x", "fd00::1", "10.0.0.254/24", "10.0.1.1", "10.0.0.1", "10.0.0.0", "10.0.0.255"}) {
    EXPECT_THAT(refusal("10.0.0.1/24", text), HasSubstr("option gateway: ")) << text;
  }
  EXPECT_THAT(refusal("fd00::1/64", "fe80::1%1"), HasSubstr("option gateway: "));
  EXPECT_EQ(refusal("fd00::1/64", "fe80::1"), "");
  EXPECT_EQ(refusal("10.0.0.1/32", "10.9.0.1"), "");  // some clouds assign addresses in this way
}

TEST(OwnAddressTest, destinations_off_the_prefix_go_to_the_gateway) {
  EXPECT_EQ(way("10.0.0.1/24", "10.0.0.254", "10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(way("10.0.0.1/24", "10.0.0.254", "10.0.1.7"), "10.0.0.254");
  EXPECT_EQ(way("10.0.0.1/24", "10.0.0.254", "10.0.0.254"), "10.0.0.254");
  EXPECT_EQ(way("10.0.0.1/24", "", "10.0.1.7"), "no route");
  EXPECT_EQ(way("fd00::1/64", "fe80::1", "fd00::7"), "fd00::7");
  EXPECT_EQ(way("fd00::1/64", "fe80::1", "fd01::7"), "fe80::1");
  EXPECT_EQ(way("fd00::1/64", "", "fe80::7"), "fe80::7");
  EXPECT_EQ(way("10.0.0.1/32", "10.9.0.1", "10.0.0.2"), "10.9.0.1");
  EXPECT_EQ(way("10.0.0.1/32", "10.9.0.1", "10.9.0.1"), "10.9.0.1");
  EXPECT_EQ(way("10.0.0.1/24", "10.0.0.254", "fd00::7"), "no route");
}

TEST(OwnAddressTest, own_address_is_local_and_ends_of_the_prefix_are_no_hosts) {
  EXPECT_EQ(way("10.0.0.1/24", "", "10.0.0.1"), "local");
  EXPECT_EQ(way("10.0.0.1/24", "", "10.0.0.0"), "broadcast");
  EXPECT_EQ(way("10.0.0.1/24", "", "10.0.0.255"), "broadcast");
  EXPECT_EQ(way("10.0.0.1/31", "", "10.0.0.0"), "10.0.0.0");  // RFC 3021
  EXPECT_EQ(way("10.0.0.2/30", "", "10.0.0.3"), "broadcast");
}

}  // namespace
}  // namespace tern::neighbours
