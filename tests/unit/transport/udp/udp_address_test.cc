// UDP addresses: the option bind, and the encoding in the handshake.
#include "transport/udp/udp_address.h"

#include <gtest/gtest.h>

#include <vector>

namespace tern::transport {
namespace {

SocketAddress parsed(std::string_view text) {
  const Result<SocketAddress> address = parse_bind_option(text);
  EXPECT_TRUE(address.ok()) << text;
  return address.ok() ? *address : SocketAddress();
}

TEST(UdpAddress, parse__forms) {
  EXPECT_EQ(parsed("").family(), AF_INET);
  EXPECT_TRUE(parsed("").is_wildcard());
  EXPECT_EQ(parsed("").port(), 0);
  EXPECT_EQ(parsed("127.0.0.1:4000").port(), 4000);
  EXPECT_EQ(parsed("127.0.0.1"), SocketAddress::loopback(AF_INET));
  for (const char* text : {"::1", "[::1]"}) EXPECT_EQ(parsed(text), SocketAddress::loopback(AF_INET6)) << text;
  EXPECT_EQ(parsed("[::1]:65535").port(), 65535);
  EXPECT_TRUE(parsed("[::]:5").is_wildcard());
  EXPECT_EQ(parsed("::ffff:127.0.0.1"), SocketAddress::loopback(AF_INET));
  EXPECT_EQ(parsed("fe80::1%lo").scope(), parsed("[fe80::1%lo]:9").scope());
  EXPECT_NE(parsed("fe80::1%lo").scope(), 0u);
}

TEST(UdpAddress, encode__comes_back) {
  for (const char* text : {"127.0.0.1:1", "10.1.2.3:65535", "[::1]:256", "[2001:db8::ff]:31850"}) {
    const SocketAddress address = parsed(text);
    SocketAddress back;
    ASSERT_TRUE(decode_address(encode_address(address).span(), &back)) << text;
    EXPECT_EQ(address, back);
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
      SocketAddress address;
      EXPECT_EQ(decode_address(bytes, &address), (size == 7 && family == 4) || (size == 19 && family == 6));
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
  SocketAddress address;
  ASSERT_TRUE(decode_address(bytes, &address));
  EXPECT_EQ(address, parsed("127.0.0.1:7"));
}

TEST(UdpAddress, parse__other_texts_are_refused) {
  for (const char* text : {":5", "[::1", "[::1]5", "[::1]:", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", "[]:5"}) {
    EXPECT_EQ(parse_bind_option(text).status().code(), Code::kMisuse) << text;
  }
  EXPECT_EQ(parse_bind_option("no-such-host.invalid").status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tern::transport
