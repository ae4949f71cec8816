// The encoding of an endpoint's address in the handshake.
#include "ethernet/endpoint_address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tern::ethernet {
namespace {

base::SocketAddress end_of(const char* text) { return *base::SocketAddress::parse(text); }

TEST(EndpointAddress, bytes__are_those_of_version_1) {
  const auto bytes = encode_address({end_of("10.1.2.3:4660"), 1472});
  const std::vector<uint8_t> expected = {1, 4, 0x34, 0x12, 0xc0, 0x05, 10, 1, 2, 3};
  for (size_t i = 0; i < bytes.size(); i++) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), i < expected.size() ? expected[i] : 0) << i;
  }
}

TEST(EndpointAddress, decode__returns_the_encoded_address) {
  for (const char* text : {"10.1.2.3:1", "[2001:db8::1]:65535", "0.0.0.1:7"}) {
    EndpointAddress read;
    ASSERT_TRUE(decode_address(encode_address({end_of(text), 65535}), &read)) << text;
    EXPECT_EQ(read.end.to_text(), text);
    EXPECT_EQ(read.datagram_bytes, 65535);
  }
}

TEST(EndpointAddress, decode__refuses_addresses_that_no_endpoint_has) {
  EndpointAddress read;
  for (const char* text : {"0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1", "10.0.0.1:0", "[::]:1", "[ff02::1]:1"}) {
    EXPECT_FALSE(decode_address(encode_address({end_of(text), 1472}), &read)) << text;
  }
}

TEST(EndpointAddress, decode__refuses_other_forms) {
  const auto good = encode_address({end_of("10.0.0.1:4000"), 1472});
  EndpointAddress read;
  ASSERT_TRUE(decode_address(good, &read));
  const auto expect_refused = [&](size_t index, uint8_t value) {
    auto bytes = good;
    bytes[index] = std::byte{value};
    EXPECT_FALSE(decode_address(bytes, &read)) << index << " " << int{value};
  };
  expect_refused(0, 0);
  expect_refused(0, 2);
  expect_refused(1, 5);
  for (size_t length = 0; length < good.size(); length++) {
    EXPECT_FALSE(decode_address(std::span(good).first(length), &read)) << length;
  }
  std::vector<std::byte> longer(good.begin(), good.end());
  longer.push_back({});
  EXPECT_FALSE(decode_address(longer, &read));
  // An IPv4-mapped IPv6 address would be a second name of the same endpoint.
  auto mapped = encode_address({end_of("[2001:db8::1]:4000"), 1472});
  std::fill(mapped.begin() + 6, mapped.begin() + 16, std::byte{0});
  mapped[16] = mapped[17] = std::byte{0xff};
  EXPECT_FALSE(decode_address(mapped, &read));
}

}  // namespace
}  // namespace tern::ethernet
