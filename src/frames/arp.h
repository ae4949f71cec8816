// ARP messages of Ethernet and IPv4 (RFC 826). Frames layer: pure. Used through frames/neighbour_frame.h.
#pragma once

#include <cstddef>
#include <span>

#include "frames/layout.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

/// Reads what is behind the Ethernet header. A message of an address about itself (RFC 5227 1.1: an announcement) is an
/// advertisement, whether it is a request or a reply. `message` has its Ethernet addresses already. False: it is not
/// whole, of another hardware or protocol, from no host's Ethernet or IP address, or about one.
bool parse_arp(std::span<const std::byte> packet, NeighbourFrame* message);
/// Fills `packet`, and returns its size. An announcement is a request (RFC 5227 3).
size_t write_arp(const NeighbourFrame& message, std::span<std::byte, kArpBytes> packet);

}  // namespace tern::frames
