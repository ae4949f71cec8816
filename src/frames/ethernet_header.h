// The Ethernet header of frames that hosts of a link exchange, with at most one VLAN tag. Frames layer: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "frames/mac_address.h"

namespace tern::frames {

struct EthernetPayload {
  uint16_t type = 0;
  std::span<const std::byte> payload;
};
/// Returns nothing if the frame is shorter than its headers, or of another VLAN than `vlan` (0: without a tag).
std::optional<EthernetPayload> read_ethernet(std::span<const std::byte> frame, uint16_t vlan);

/// Fills the front of `frame`, and returns the header's size. `vlan`: 1 to kVlanMax; 0: no tag.
size_t write_ethernet(std::span<std::byte> frame, const MacAddress& destination, const MacAddress& source,
                      uint16_t vlan, uint16_t type);

}  // namespace tern::frames
