// Ethernet frames as a NIC sees them: it finds headers, and computes and checks checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace software_verbs {

inline constexpr size_t kEthernetBytes = 14;
inline constexpr size_t kVlanTagBytes = 4;
inline constexpr size_t kFrameBytesMin = 60;  ///< IEEE 802.3, without the check sequence; shorter frames are padded
inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr uint16_t kEtherTypeVlan = 0x8100;
inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;

using Frame = std::span<std::byte>;
using FrameView = std::span<const std::byte>;

/// The positions of a frame's headers; all numbers in the host's byte order.
struct Headers {
  uint16_t ether_type = 0;           ///< after the VLAN tag, if there is one
  std::optional<uint16_t> vlan_tag;  ///< priority, indicator and VLAN
  bool is_ip = false;                ///< IPv4 or IPv6 with lengths that fit the frame
  size_t ip = 0;                     ///< offset of the IP header
  size_t ip_header_bytes = 0;
  uint8_t protocol = 0;
  bool is_fragment = false;
  size_t transport = 0;        ///< offset of the UDP or TCP header; 0: no header, as in a later fragment
  size_t transport_bytes = 0;  ///< up to the end of the IP packet
  bool is_ipv4() const { return is_ip && ether_type == kEtherTypeIpv4; }
};
Headers find_headers(FrameView frame);

/// Returns MLX5_CQE_L2_OK, MLX5_CQE_L3_OK and MLX5_CQE_L4_OK. A UDP checksum of 0 over IPv4, which means no checksum,
/// counts as right.
uint8_t check_frame(FrameView frame, const Headers& headers);
void write_ip_checksum(Frame frame, const Headers& headers);
void write_transport_checksum(Frame frame, const Headers& headers);

}  // namespace software_verbs
