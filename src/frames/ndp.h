// Neighbour solicitations and advertisements of IPv6 (RFC 4861 4.3, 4.4, 7.1). Frames layer: pure. Used through
// frames/neighbour_frame.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "frames/layout.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

/// The sum of an ICMPv6 message with its pseudo header (RFC 8200 8.1). `addresses` are source and destination as they
/// lie in the IPv6 header. The sum is 0xffff if the message has its checksum and the checksum is right.
uint16_t icmpv6_sum(std::span<const std::byte> addresses, std::span<const std::byte> message);

/// The longest IPv6 packet that write_ndp() writes.
inline constexpr size_t kNdpPacketBytesMax = kIpv6Bytes + kNdpBytes + kNdpOptionBytes;

/// Returns whether the IPv6 packet is a neighbour solicitation or advertisement by its types.
bool is_ndp(std::span<const std::byte> packet);
/// Reads the IPv6 packet after the Ethernet header. `message` must have its Ethernet addresses already. Returns false
/// if the packet is another one, or is not valid in the sense of RFC 4861 7.1.
bool parse_ndp(std::span<const std::byte> packet, NeighbourFrame* message);
/// Fills the front of `packet`, and returns the packet's size. Writes the option for `mac` if the message has a `mac`.
size_t write_ndp(const NeighbourFrame& message, std::span<std::byte, kNdpPacketBytesMax> packet);

}  // namespace tern::frames
