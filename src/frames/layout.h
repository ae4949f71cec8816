// Sizes of Ethernet, 802.1Q, IPv4, IPv6 and UDP headers and of ARP and neighbour discovery messages, the offsets of
// their fields, and their fixed values. Frames layer.
#pragma once

#include <sys/socket.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tern::frames {

// ---- Sizes, bytes

inline constexpr size_t kEthernetBytes = 14;  ///< without the checksum at the frame's end, which devices add and remove
inline constexpr size_t kVlanTagBytes = 4;
inline constexpr size_t kIpv4Bytes = 20;  ///< without options
inline constexpr size_t kIpv6Bytes = 40;  ///< without extension headers
inline constexpr size_t kUdpBytes = 8;
inline constexpr size_t kHeaderBytesMax = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + kUdpBytes;
inline constexpr size_t kFrameBytesMin = 60;  ///< of Ethernet, without the checksum; devices or senders pad with zeros
inline constexpr size_t kArpBytes = 28;       ///< RFC 826, of Ethernet and IPv4
inline constexpr size_t kNdpBytes = 24;       ///< RFC 4861: a neighbour solicitation or advertisement without options
inline constexpr size_t kNdpOptionBytes = 8;  ///< an Ethernet address; option lengths are multiples of it
inline constexpr uint16_t kVlanMax = 4094;    ///< VLANs are 1 to this one; 0 and 4095 name no VLAN (IEEE 802.1Q)

/// The size of the IP header.
constexpr size_t ip_header_bytes(sa_family_t family) { return family == AF_INET6 ? kIpv6Bytes : kIpv4Bytes; }
/// The size of all headers in front of a UDP payload: 42, 46, 62 or 66.
constexpr size_t header_bytes(sa_family_t family, bool has_vlan_tag) {
  return kEthernetBytes + (has_vlan_tag ? kVlanTagBytes : 0) + ip_header_bytes(family) + kUdpBytes;
}

// ---- Values

inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr uint16_t kEtherTypeArp = 0x0806;
inline constexpr uint16_t kEtherTypeVlan = 0x8100;         ///< 802.1Q
inline constexpr uint16_t kEtherTypeServiceVlan = 0x88a8;  ///< 802.1ad: the outer tag of two
inline constexpr uint8_t kProtocolUdp = 17;
inline constexpr uint8_t kProtocolIcmpv6 = 58;
inline constexpr uint8_t kHopLimit = 64;
inline constexpr uint8_t kNdpHopLimit = 255;  ///< no router has forwarded the message
inline constexpr uint16_t kDontFragment = 0x4000;
inline constexpr uint16_t kFragmentBits = 0x3fff;  ///< more fragments, and the offset

// ---- Offsets

namespace ethernet {
inline constexpr size_t kDestination = 0, kSource = 6, kType = 12;
}  // namespace ethernet
namespace ipv4 {
inline constexpr size_t kVersion = 0, kTrafficClass = 1, kTotalLength = 2, kFragment = 6, kTimeToLive = 8,
                        kProtocol = 9, kChecksum = 10, kSource = 12, kDestination = 16;
}  // namespace ipv4
namespace ipv6 {
inline constexpr size_t kVersion = 0, kPayloadLength = 4, kNextHeader = 6, kHopLimit = 7, kSource = 8,
                        kDestination = 24;
}  // namespace ipv6
namespace udp {
inline constexpr size_t kSourcePort = 0, kDestinationPort = 2, kLength = 4, kChecksum = 6;
}  // namespace udp
namespace arp {
inline constexpr size_t kHardware = 0, kProtocol = 2, kHardwareBytes = 4, kProtocolBytes = 5, kOperation = 6,
                        kSenderMac = 8, kSenderIp = 14, kTargetMac = 18, kTargetIp = 24;
inline constexpr uint16_t kEthernet = 1, kRequest = 1, kReply = 2;
}  // namespace arp
namespace ndp {
inline constexpr size_t kType = 0, kCode = 1, kChecksum = 2, kFlags = 4, kTarget = 8;
inline constexpr uint8_t kSolicitation = 135, kAdvertisement = 136;
inline constexpr uint8_t kSolicited = 0x40, kOverride = 0x20;  ///< flags of an advertisement
inline constexpr uint8_t kSourceMacOption = 1, kTargetMacOption = 2;
}  // namespace ndp

// ---- Numbers in network order

constexpr uint16_t swap_bytes(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }
/// Returns the number whose bytes in memory are those of `value` in network order. The same function converts back.
constexpr uint16_t network_order(uint16_t value) {
  return std::endian::native == std::endian::little ? swap_bytes(value) : value;
}
/// Two bytes, in their order in memory.
inline uint16_t load_raw16(const std::byte* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline uint16_t load16(const std::byte* from) { return network_order(load_raw16(from)); }
inline void store_raw16(std::byte* to, uint16_t value) { std::memcpy(to, &value, sizeof(value)); }
inline void store16(std::byte* to, uint16_t value) { store_raw16(to, network_order(value)); }

}  // namespace tern::frames
