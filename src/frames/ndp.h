// Neighbour solicitations and advertisements of IPv6 (RFC 4861 4.3, 4.4, 7.1). Frames layer: pure. Used through
// frames/neighbour_frame.h.
#pragma once

#include <cstddef>
#include <span>

#include "frames/layout.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

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
