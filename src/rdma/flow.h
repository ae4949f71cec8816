// A steering rule for the frames to one UDP endpoint, in the form that ibv_create_flow(3) takes: attributes and
// specifications in one block. RDMA layer; plain values.
#pragma once

#include <endian.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/address.h"

namespace tern::rdma {

class UdpFlow {
 public:
  /// Matches frames to `mac` (6 bytes), on `vlan` (0: with any tag, or without a tag), and to the IP and port of
  /// `address`, that come in by the device's port of number `port`.
  UdpFlow(uint8_t port, std::span<const std::byte, 6> mac, uint16_t vlan, const base::SocketAddress& address) {
    ibv_flow_attr attributes{};
    attributes.type = IBV_FLOW_ATTR_NORMAL;
    attributes.num_of_specs = 3;
    attributes.port = port;
    bytes_ = sizeof(attributes);

    ibv_flow_spec_eth link{};
    link.type = IBV_FLOW_SPEC_ETH;
    link.size = sizeof(link);
    std::memcpy(link.val.dst_mac, mac.data(), mac.size());
    std::memset(link.mask.dst_mac, 0xff, mac.size());
    if (vlan != 0) {
      link.val.vlan_tag = htobe16(vlan);
      link.mask.vlan_tag = htobe16(0x0fff);  // without the priority
    }
    add(link);

    const std::span<const std::byte> ip = address.ip();
    if (address.family() == AF_INET) {
      ibv_flow_spec_ipv4_ext network{};
      network.type = IBV_FLOW_SPEC_IPV4_EXT;
      network.size = sizeof(network);
      std::memcpy(&network.val.dst_ip, ip.data(), ip.size());
      network.mask.dst_ip = UINT32_MAX;
      add(network);
    } else {
      ibv_flow_spec_ipv6 network{};
      network.type = IBV_FLOW_SPEC_IPV6;
      network.size = sizeof(network);
      std::memcpy(network.val.dst_ip, ip.data(), ip.size());
      std::memset(network.mask.dst_ip, 0xff, sizeof(network.mask.dst_ip));
      add(network);
    }

    ibv_flow_spec_tcp_udp ports{};
    ports.type = IBV_FLOW_SPEC_UDP;
    ports.size = sizeof(ports);
    ports.val.dst_port = htobe16(address.port());
    ports.mask.dst_port = UINT16_MAX;
    add(ports);

    attributes.size = static_cast<uint16_t>(bytes_);
    std::memcpy(block_.data(), &attributes, sizeof(attributes));
  }

  /// Valid as long as this object lives.
  ibv_flow_attr* attributes() { return reinterpret_cast<ibv_flow_attr*>(block_.data()); }
  std::span<const std::byte> bytes() const { return std::span(block_).first(bytes_); }

 private:
  template <class Spec>
  void add(const Spec& spec) {
    std::memcpy(block_.data() + bytes_, &spec, sizeof(spec));
    bytes_ += sizeof(spec);
  }

  alignas(8) std::array<std::byte, sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv6) +
                                       sizeof(ibv_flow_spec_tcp_udp)> block_;
  size_t bytes_ = 0;
};

}  // namespace tern::rdma
