// The key of an endpoint among those that share a device. It is made from the endpoint's address, or from a frame's
// destination. Ethernet layer: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/address.h"
#include "frames/layout.h"

namespace tern::ethernet {

/// The key of an IP address and a UDP port. Two IPv6 addresses may have the same key, at odds of 2^-47; the endpoint's
/// parser then drops the frame. 0 is the key of no endpoint.
using LaneKey = uint64_t;

namespace lane_key {
inline constexpr uint64_t kIpv4 = uint64_t{1} << 62, kIpv6 = uint64_t{1} << 63;

inline uint64_t load64(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline LaneKey of_ipv4(const std::byte* ip, uint16_t port) {
  uint32_t value;
  std::memcpy(&value, ip, sizeof(value));
  return kIpv4 | uint64_t{value} << 16 | port;
}
inline LaneKey of_ipv6(const std::byte* ip, uint16_t port) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio (Fibonacci hashing)
  const uint64_t mixed = (load64(ip) * kOdd ^ load64(ip + 8)) * kOdd;
  return kIpv6 | (mixed >> 17) << 16 | port;
}
}  // namespace lane_key

inline LaneKey lane_key_of(const base::SocketAddress& address) {
  const auto ip = address.ip();
  return address.family() == AF_INET6 ? lane_key::of_ipv6(ip.data(), address.port())
                                      : lane_key::of_ipv4(ip.data(), address.port());
}

/// Returns 0 if the frame does not begin as a UDP packet with headers of ordinary length. Skips one VLAN tag.
inline LaneKey lane_key_of_frame(std::span<const std::byte> frame) {
  using frames::kIpv4Bytes, frames::kIpv6Bytes, frames::kUdpBytes, frames::kVlanTagBytes, frames::load16;
  namespace ipv4 = frames::ipv4;
  namespace ipv6 = frames::ipv6;
  size_t at = frames::kEthernetBytes;
  if (frame.size() < at + kVlanTagBytes) return 0;
  uint16_t type = load16(frame.data() + frames::ethernet::kType);
  if (type == frames::kEtherTypeVlan) {
    type = load16(frame.data() + frames::ethernet::kType + kVlanTagBytes);
    at += kVlanTagBytes;
  }
  const std::byte* const ip = frame.data() + at;
  if (type == frames::kEtherTypeIpv4) {
    if (frame.size() < at + kIpv4Bytes + kUdpBytes || ip[ipv4::kProtocol] != std::byte{frames::kProtocolUdp}) return 0;
    if (ip[ipv4::kVersion] != std::byte{0x45} || (load16(ip + ipv4::kFragment) & frames::kFragmentBits) != 0) return 0;
    return lane_key::of_ipv4(ip + ipv4::kDestination, load16(ip + kIpv4Bytes + frames::udp::kDestinationPort));
  }
  if (type == frames::kEtherTypeIpv6) {
    if (frame.size() < at + kIpv6Bytes + kUdpBytes || ip[ipv6::kNextHeader] != std::byte{frames::kProtocolUdp})
      return 0;
    return lane_key::of_ipv6(ip + ipv6::kDestination, load16(ip + kIpv6Bytes + frames::udp::kDestinationPort));
  }
  return 0;
}

}  // namespace tern::ethernet
