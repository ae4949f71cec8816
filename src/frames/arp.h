// ARP messages of Ethernet and IPv4 (RFC 826). Frames layer: pure. Used through frames/neighbour_frame.h.
#pragma once

#include <cstddef>
#include <span>

#include "frames/layout.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

/// Reads the bytes after the Ethernet header. A message of an address about itself (RFC 5227 1.1: an announcement) is
/// an advertisement, both as a request and as a reply. `message` must have its Ethernet addresses already. Returns
/// false if the message is incomplete, is of another hardware type or protocol, comes from an Ethernet or IP address
/// that no host has, or is about such an address.
bool parse_arp(std::span<const std::byte> packet, NeighbourFrame* message);
/// Fills `packet`, and returns its size. An announcement is a request (RFC 5227 3).
size_t write_arp(const NeighbourFrame& message, std::span<std::byte, kArpBytes> packet);

}  // namespace tern::frames
