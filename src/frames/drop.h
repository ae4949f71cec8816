// Why a received frame is none for its endpoint. Frames layer: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tern::frames {

/// The first that applies, in this order, except that a frame may end before what a reason is about: it is kTruncated
/// then. Some are ordinary on a shared interface (kOtherMac to kOtherPort but for the headers); the others are not.
enum class Drop : uint8_t {
  kNone,           ///< the frame is good
  kTruncated,      ///< shorter than its headers
  kOtherMac,       ///< to another Ethernet address, or to a group
  kVlan,           ///< another VLAN, a tag where none is expected (VLAN 0 also), none where one is, or two tags
  kOtherType,      ///< neither IPv4 nor IPv6, or the one that the endpoint has no address of
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
  kNoUdpChecksum,  ///< the UDP checksum is 0: the sender made none
  kUdpChecksum,    ///< the UDP checksum is wrong
};
/// How many values Drop has. Counters by reason are arrays of this size, indexed by Drop.
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
