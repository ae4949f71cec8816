// Neighbour solicitations and advertisements of IPv6 (RFC 4861 4.3, 4.4, 7.1). Frames layer: pure. Used through
// frames/neighbour_frame.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "frames/layout.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

/// Of an ICMPv6 message with its pseudo header (RFC 8200 8.1), whose `addresses` are source and destination as they lie
/// in the IPv6 header; 0xffff if its checksum is in it and right.
uint16_t icmpv6_sum(std::span<const std::byte> addresses, std::span<const std::byte> message);

/// Of an IPv6 packet.
inline constexpr size_t kNdpPacketBytesMax = kIpv6Bytes + kNdpBytes + kNdpOptionBytes;

/// The IPv6 packet is a neighbour solicitation or advertisement by its types.
bool is_ndp(std::span<const std::byte> packet);
/// Reads the IPv6 packet behind the Ethernet header. `message` has its Ethernet addresses already. False: it is
/// another one, or not valid in the sense of RFC 4861 7.1.
bool parse_ndp(std::span<const std::byte> packet, NeighbourFrame* message);
/// Fills the front of `packet`, and returns the size. The option for `mac` is there if there is a MAC address.
size_t write_ndp(const NeighbourFrame& message, std::span<std::byte, kNdpPacketBytesMax> packet);

}  // namespace tern::frames
