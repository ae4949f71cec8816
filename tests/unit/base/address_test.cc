// Socket addresses and their text.
#include "base/address.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace tern::base {
namespace {

SocketAddress parsed(std::string_view text) {
  const auto address = SocketAddress::parse(text);
  EXPECT_TRUE(address) << text;
  return address.value_or(SocketAddress());
}

TEST(SplitHostAndPort, takes_each_form) {
  struct Case {
    const char *text, *host, *port;
  };
  for (const Case& each : {Case{"server", "server", ""},
                           {"server:80", "server", "80"},
                           {"10.0.0.1:0", "10.0.0.1", "0"},
                           {"[::1]", "::1", ""},
                           {"[::1]:80", "::1", "80"},
                           {"::1", "::1", ""},
                           {"fe80::1%eth0", "fe80::1%eth0", ""},
                           {"[fe80::1%2]:7", "fe80::1%2", "7"},
                           {"h:x", "h", "x"}}) {
    const auto parts = split_host_and_port(each.text);
    ASSERT_TRUE(parts) << each.text;
    EXPECT_EQ(parts->host, each.host) << each.text;
    EXPECT_EQ(parts->port, each.port) << each.text;
    EXPECT_EQ(host_of(each.text), each.host);
  }
}

TEST(SplitHostAndPort, refuses_other_texts) {
  for (const char* text : {"", ":80", "h:", "[]:80", "[::1", "[::1]80", "[::1]:", "[::1]x:80"}) {
    EXPECT_FALSE(split_host_and_port(text)) << text;
    EXPECT_EQ(host_of(text), "");
  }
}

TEST(ParsePort, takes_16_bits_in_decimal_only) {
  EXPECT_EQ(parse_u16("0"), 0);
  EXPECT_EQ(parse_u16("65535"), 65535);
  for (const char* text : {"", "65536", "-1", "+1", " 1", "1 ", "0x1"}) EXPECT_FALSE(parse_u16(text)) << text;
}

TEST(SocketAddress, text_comes_back) {
  for (const char* text : {"127.0.0.1:1", "0.0.0.0:0", "10.1.2.3:65535", "[::1]:256", "[2001:db8::ff]:31850"}) {
    EXPECT_EQ(parsed(text).to_text(), text);
    EXPECT_EQ(parsed(parsed(text).to_text()), parsed(text));
  }
}

TEST(SocketAddress, texts_without_an_ip_or_a_port_are_refused) {
  for (const char* text : {"", "10.0.0.1", "10.0.0:1", "10.0.0.256:1", "10.0.0.01:1", "localhost:1", "[::1]", "::1",
                           "[10.0.0.1%lo]:1", "[::g]:1", "10.0.0.1:65536", "[fe80::1%no-such-interface]:1",
                           "[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc]:1"}) {
    EXPECT_FALSE(SocketAddress::parse(text)) << text;
  }
}

TEST(SocketAddress, a_scope_is_a_number_or_the_name_of_an_interface) {
  EXPECT_EQ(parsed("[fe80::1%7]:9").scope(), 7u);
  EXPECT_EQ(parsed("[fe80::1%7]:9").to_text(), "[fe80::1%7]:9");
  EXPECT_EQ(parsed("[fe80::1%7]:9").ip_text(), "fe80::1%7");
  EXPECT_EQ(parsed("10.0.0.1:9").ip_text(), "10.0.0.1");
  EXPECT_EQ(parsed("[fe80::1%lo]:9").scope(), SocketAddress::parse_ip("fe80::1%lo")->scope());
  EXPECT_NE(parsed("[fe80::1%lo]:9").scope(), 0u);
  EXPECT_NE(parsed("[fe80::1%7]:9"), parsed("[fe80::1%8]:9"));
}

TEST(SocketAddress, an_ipv4_mapped_address_is_the_ipv4_address) {
  EXPECT_EQ(parsed("[::ffff:10.1.2.3]:9"), parsed("10.1.2.3:9"));
  const SocketAddress mapped = parsed("10.1.2.3:9").mapped();
  EXPECT_EQ(mapped.family(), AF_INET6);
  EXPECT_EQ(mapped.port(), 9);
  sockaddr_storage storage{};
  std::memcpy(&storage, mapped.sockaddr_data(), mapped.sockaddr_bytes());
  EXPECT_EQ(SocketAddress::from_sockaddr(storage), parsed("10.1.2.3:9"));
  EXPECT_EQ(parsed("[::1]:9").mapped(), parsed("[::1]:9"));
}

TEST(SocketAddress, addresses_differ_by_ip_port_and_family) {
  EXPECT_NE(parsed("127.0.0.1:1"), parsed("127.0.0.1:2"));
  EXPECT_NE(parsed("127.0.0.1:1"), parsed("127.0.0.2:1"));
  EXPECT_NE(parsed("[::1]:1"), parsed("[::2]:1"));
  EXPECT_NE(parsed("[::]:1"), parsed("0.0.0.0:1"));
}

TEST(SocketAddress, ip_comes_back) {
  for (const char* text : {"10.1.2.3:0", "[2001:db8::ff]:0"}) {
    EXPECT_EQ(SocketAddress::from_ip(parsed(text).ip()), parsed(text));
  }
  EXPECT_EQ(parsed("10.1.2.3:0").ip().size(), 4u);
  EXPECT_EQ(parsed("10.1.2.3:0").ip()[0], std::byte{10});
  EXPECT_EQ(parsed("[::1]:0").ip().size(), 16u);
}

TEST(SocketAddress, wildcards_loopback_and_link_local) {
  EXPECT_TRUE(parsed("0.0.0.0:5").is_wildcard());
  EXPECT_TRUE(parsed("[::]:5").is_wildcard());
  EXPECT_FALSE(parsed("[::1]:5").is_wildcard());
  for (const char* ip : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(SocketAddress::parse_ip(ip)->is_loopback()) << ip;
  }
  for (const char* ip : {"0.0.0.0", "126.255.255.255", "128.0.0.1", "::", "::2"}) {
    EXPECT_FALSE(SocketAddress::parse_ip(ip)->is_loopback()) << ip;
  }
  EXPECT_EQ(SocketAddress::loopback(AF_INET), parsed("127.0.0.1:0"));
  EXPECT_EQ(SocketAddress::loopback(AF_INET6), parsed("[::1]:0"));
  EXPECT_TRUE(parsed("[fe80::1]:5").is_link_local());
  EXPECT_FALSE(parsed("169.254.0.1:5").is_link_local());
}

TEST(SocketAddress, groups_are_multicast_and_broadcast) {
  for (const char* ip : {"224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"}) {
    EXPECT_TRUE(SocketAddress::parse_ip(ip)->is_group()) << ip;
  }
  for (const char* ip : {"10.0.0.255", "223.255.255.255", "240.0.0.1", "fe80::1", "0.0.0.0"}) {
    EXPECT_FALSE(SocketAddress::parse_ip(ip)->is_group()) << ip;
  }
}

TEST(LookUp, gives_each_address_of_a_host_once) {
  std::array<SocketAddress, 8> addresses;
  int error = -1;
  ASSERT_EQ(look_up("127.0.0.1", addresses, &error), 1u);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(addresses[0], SocketAddress::loopback(AF_INET));
  EXPECT_EQ(look_up("::1", std::span(addresses).first(1), &error), 1u);
  EXPECT_EQ(addresses[0], SocketAddress::loopback(AF_INET6));
}

TEST(LookUp, unknown_host_is_refused_with_the_reason) {
  std::array<SocketAddress, 8> addresses;
  int error = 0;
  EXPECT_EQ(look_up("no-such-host.invalid", addresses, &error), 0u);
  EXPECT_NE(error, 0);
  error = 0;
  EXPECT_EQ(look_up(std::string(5000, 'a'), addresses, &error), 0u);
  EXPECT_NE(error, 0);
}

}  // namespace
}  // namespace tern::base
