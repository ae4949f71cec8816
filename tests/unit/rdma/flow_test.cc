// Steering rules against the structures of infiniband/verbs.h and against fixed bytes.
#include "rdma/flow.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace tern::rdma {
namespace {

constexpr std::array<std::byte, 6> kMac = {std::byte{0x02}, std::byte{0x11}, std::byte{0x22},
                                           std::byte{0x33}, std::byte{0x44}, std::byte{0x55}};

template <class Spec>
Spec spec_at(const UdpFlow& flow, size_t offset) {
  Spec spec;
  EXPECT_LE(offset + sizeof(spec), flow.bytes().size());
  std::memcpy(&spec, flow.bytes().data() + offset, sizeof(spec));
  return spec;
}

TEST(UdpFlow, ipv4) {
  UdpFlow flow(1, kMac, 0, *base::SocketAddress::parse("10.1.2.3:4660"));
  const ibv_flow_attr& attributes = *flow.attributes();
  EXPECT_EQ(attributes.type, IBV_FLOW_ATTR_NORMAL);
  EXPECT_EQ(attributes.num_of_specs, 3);
  EXPECT_EQ(attributes.port, 1);
  EXPECT_EQ(attributes.flags, 0u);
  EXPECT_EQ(attributes.comp_mask, 0u);
  EXPECT_EQ(attributes.size, flow.bytes().size());
  EXPECT_EQ(attributes.size, sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv4_ext) +
                                 sizeof(ibv_flow_spec_tcp_udp));

  size_t at = sizeof(ibv_flow_attr);
  const auto link = spec_at<ibv_flow_spec_eth>(flow, at);
  EXPECT_EQ(link.type, IBV_FLOW_SPEC_ETH);
  EXPECT_EQ(link.size, sizeof(link));
  EXPECT_EQ(std::memcmp(link.val.dst_mac, kMac.data(), 6), 0);
  EXPECT_EQ(std::memcmp(link.mask.dst_mac, "\xff\xff\xff\xff\xff\xff", 6), 0);
  EXPECT_EQ(link.mask.vlan_tag, 0);
  EXPECT_EQ(link.mask.ether_type, 0);

  const auto network = spec_at<ibv_flow_spec_ipv4_ext>(flow, at += link.size);
  EXPECT_EQ(network.type, IBV_FLOW_SPEC_IPV4_EXT);
  EXPECT_EQ(network.size, sizeof(network));
  EXPECT_EQ(std::memcmp(&network.val.dst_ip, "\x0a\x01\x02\x03", 4), 0);
  EXPECT_EQ(network.mask.dst_ip, UINT32_MAX);
  EXPECT_EQ(network.mask.src_ip, 0u);

  const auto ports = spec_at<ibv_flow_spec_tcp_udp>(flow, at += network.size);
  EXPECT_EQ(ports.type, IBV_FLOW_SPEC_UDP);
  EXPECT_EQ(ports.size, sizeof(ports));
  EXPECT_EQ(std::memcmp(&ports.val.dst_port, "\x12\x34", 2), 0);
  EXPECT_EQ(ports.mask.dst_port, UINT16_MAX);
  EXPECT_EQ(ports.mask.src_port, 0);
  EXPECT_EQ(at + ports.size, flow.bytes().size());
}

TEST(UdpFlow, ipv6_with_a_vlan) {
  UdpFlow flow(2, kMac, 0x123, *base::SocketAddress::parse("[2001:db8::7]:80"));
  EXPECT_EQ(flow.attributes()->port, 2);
  EXPECT_EQ(flow.attributes()->size, flow.bytes().size());
  size_t at = sizeof(ibv_flow_attr);
  const auto link = spec_at<ibv_flow_spec_eth>(flow, at);
  EXPECT_EQ(std::memcmp(&link.val.vlan_tag, "\x01\x23", 2), 0);
  EXPECT_EQ(std::memcmp(&link.mask.vlan_tag, "\x0f\xff", 2), 0) << "of any priority";
  const auto network = spec_at<ibv_flow_spec_ipv6>(flow, at += link.size);
  EXPECT_EQ(network.type, IBV_FLOW_SPEC_IPV6);
  EXPECT_EQ(network.size, sizeof(network));
  const auto address = base::SocketAddress::parse_ip("2001:db8::7");
  EXPECT_EQ(std::memcmp(network.val.dst_ip, address->ip().data(), 16), 0);
  for (const uint8_t byte : network.mask.dst_ip) EXPECT_EQ(byte, 0xff);
  for (const uint8_t byte : network.mask.src_ip) EXPECT_EQ(byte, 0);
  EXPECT_EQ(network.mask.next_hdr, 0);
  const auto ports = spec_at<ibv_flow_spec_tcp_udp>(flow, at + network.size);
  EXPECT_EQ(std::memcmp(&ports.val.dst_port, "\x00\x50", 2), 0);
}

TEST(UdpFlow, golden_bytes_of_the_specifications) {
  UdpFlow flow(1, kMac, 5, *base::SocketAddress::parse("10.1.2.3:4660"));
  // type 4, size 2, value, mask; each specification is padded to 4 bytes.
  constexpr std::array<uint8_t, 40> kLink = {
      0x20, 0,    0,    0,    40,   0,                                         // IBV_FLOW_SPEC_ETH
      0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x05,  // dst, src, type, tag
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0xff,  // the mask of the same fields
      0,    0};
  static_assert(sizeof(ibv_flow_spec_eth) == kLink.size() && IBV_FLOW_SPEC_ETH == 0x20);
  EXPECT_EQ(std::memcmp(flow.bytes().data() + sizeof(ibv_flow_attr), kLink.data(), kLink.size()), 0);
  constexpr std::array<uint8_t, 16> kPorts = {0x41, 0,    0, 0, 16,   0,  // IBV_FLOW_SPEC_UDP
                                              0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
  static_assert(sizeof(ibv_flow_spec_tcp_udp) == kPorts.size() && IBV_FLOW_SPEC_UDP == 0x41);
  EXPECT_EQ(std::memcmp(flow.bytes().data() + flow.bytes().size() - kPorts.size(), kPorts.data(), kPorts.size()), 0);
}

}  // namespace
}  // namespace tern::rdma
