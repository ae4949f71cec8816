// The reasons why a received frame is not for its endpoint. Frames layer: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tern::frames {

/// A frame has the first reason that applies, in this order. The exception is a frame that ends before the field of a
/// reason: it is kTruncated. Some reasons are ordinary on a shared interface (kOtherMac to kOtherPort, except those
/// about headers); the others are not.
enum class Drop : uint8_t {
  kNone,           ///< the frame is good
  kTruncated,      ///< shorter than its headers
  kOtherMac,       ///< to another Ethernet address, or to a group
  kVlan,           ///< another VLAN, an unexpected tag (also VLAN 0), a missing tag, or two tags
  kOtherType,      ///< neither IPv4 nor IPv6, or not of the IP version of the endpoint's address
  kIpHeader,       ///< another IP version than the EtherType says, or an IPv4 header shorter than 20 bytes
  kIpOptions,      ///< IPv4 options or IPv6 extension headers
  kIpLength,       ///< the IP length is beyond the frame, or has no space for a UDP header
  kIpChecksum,     ///< of the IPv4 header
  kFragment,       ///< a fragment of a datagram
  kOtherProtocol,  ///< not UDP
  kOtherIp,        ///< to another IP address
  kSource,         ///< from an address that no sender has: multicast, broadcast, loopback, unspecified, IPv4-mapped
  kOtherPort,      ///< to another UDP port
  kUdpLength,      ///< the UDP length is shorter than its header, or beyond the IP length
  kNoUdpChecksum,  ///< the UDP checksum is 0: the sender has computed none
  kUdpChecksum,    ///< the UDP checksum is wrong
};
/// The number of values of Drop. Counters by reason are arrays of this size, indexed by Drop.
inline constexpr size_t kDropReasons = static_cast<size_t>(Drop::kUdpChecksum) + 1;

/// A name for counters: "other_mac".
constexpr std::string_view name_of(Drop drop) {
  constexpr std::array<std::string_view, kDropReasons> kNames = {
      "none",       "truncated",       "other_mac",   "vlan",           "other_type", "ip_header", "ip_options",
      "ip_length",  "ip_checksum",     "fragment",    "other_protocol", "other_ip",   "source",    "other_port",
      "udp_length", "no_udp_checksum", "udp_checksum"};
  return kNames[static_cast<size_t>(drop)];
}

}  // namespace tern::frames
