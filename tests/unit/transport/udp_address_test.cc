// UDP addresses: what is written, what travels, what strangers send.
#include "transport/udp_address.h"

#include <gtest/gtest.h>

#include <vector>

namespace tern::transport {
namespace {

UdpAddress parsed(std::string_view text) {
  const Result<UdpAddress> address = UdpAddress::parse(text);
  EXPECT_TRUE(address.ok()) << text;
  return address.ok() ? *address : UdpAddress();
}

TEST(UdpAddress, parse__forms) {
  EXPECT_EQ(parsed("").family(), AF_INET);
  EXPECT_TRUE(parsed("").is_wildcard());
  EXPECT_EQ(parsed("").port(), 0);
  EXPECT_EQ(parsed("127.0.0.1:4000").port(), 4000);
  EXPECT_EQ(parsed("127.0.0.1"), UdpAddress::loopback(AF_INET));
  for (const char* text : {"::1", "[::1]"}) EXPECT_EQ(parsed(text), UdpAddress::loopback(AF_INET6)) << text;
  EXPECT_EQ(parsed("[::1]:65535").port(), 65535);
  EXPECT_TRUE(parsed("[::]:5").is_wildcard());
  EXPECT_EQ(parsed("::ffff:127.0.0.1"), UdpAddress::loopback(AF_INET));
  EXPECT_EQ(parsed("fe80::1%lo").scope(), parsed("[fe80::1%lo]:9").scope());
  EXPECT_NE(parsed("fe80::1%lo").scope(), 0u);
}

TEST(UdpAddress, encode__comes_back) {
  for (const char* text : {"127.0.0.1:1", "10.1.2.3:65535", "[::1]:256", "[2001:db8::ff]:31850"}) {
    const UdpAddress address = parsed(text);
    UdpAddress back;
    ASSERT_TRUE(UdpAddress::decode(address.encode().span(), &back)) << text;
    EXPECT_EQ(address, back);
    EXPECT_EQ(UdpAddress::Hash()(address), UdpAddress::Hash()(back));
  }
  EXPECT_NE(parsed("127.0.0.1:1"), parsed("127.0.0.1:2"));
  EXPECT_NE(parsed("127.0.0.1:1"), parsed("127.0.0.2:1"));
  EXPECT_NE(parsed("[::1]:1"), parsed("[::2]:1"));
}

TEST(UdpAddress, decode__other_lengths_and_families_are_refused) {
  for (size_t size = 0; size <= 64; ++size) {
    for (int family = 0; family < 256; ++family) {
      std::vector<std::byte> bytes(size, std::byte{1});
      if (size > 0) bytes[0] = static_cast<std::byte>(family);
      UdpAddress address;
      EXPECT_EQ(UdpAddress::decode(bytes, &address), (size == 7 && family == 4) || (size == 19 && family == 6));
    }
  }
}

TEST(UdpAddress, decode__mapped_is_the_plain_one) {
  std::vector<std::byte> bytes(19);
  bytes[0] = std::byte{6};
  bytes[1] = std::byte{7};
  bytes[13] = bytes[14] = std::byte{0xff};
  bytes[15] = std::byte{127};
  bytes[18] = std::byte{1};
  UdpAddress address;
  ASSERT_TRUE(UdpAddress::decode(bytes, &address));
  EXPECT_EQ(address, parsed("127.0.0.1:7"));
}

TEST(UdpAddress, is_group__multicast_and_broadcast) {
  for (const char* text : {"224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"}) {
    EXPECT_TRUE(parsed(text).is_group()) << text;
  }
  for (const char* text : {"10.0.0.255", "223.255.255.255", "240.0.0.1", "fe80::1", "0.0.0.0"}) {
    EXPECT_FALSE(parsed(text).is_group()) << text;
  }
}

}  // namespace
}  // namespace tern::transport
