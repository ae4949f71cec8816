#include "frames/ethernet_header.h"

#include <algorithm>

#include "base/check.h"
#include "frames/layout.h"

namespace tern::frames {

namespace {

constexpr uint16_t kVlanBits = 0x0fff;  ///< of a tag; the others are its priority

}  // namespace

std::optional<EthernetPayload> read_ethernet(std::span<const std::byte> frame, uint16_t vlan) {
  const size_t header_bytes = kEthernetBytes + (vlan != 0 ? kVlanTagBytes : 0);
  if (frame.size() < header_bytes) return std::nullopt;
  if (vlan != 0) {
    if (load16(&frame[ethernet::kType]) != kEtherTypeVlan) return std::nullopt;
    if ((load16(&frame[ethernet::kType + 2]) & kVlanBits) != vlan) return std::nullopt;
  }
  return EthernetPayload{load16(&frame[header_bytes - 2]), frame.subspan(header_bytes)};
}

size_t write_ethernet(std::span<std::byte> frame, const MacAddress& destination, const MacAddress& source,
                      uint16_t vlan, uint16_t type) {
  CHECK(vlan, <=, kVlanMax);
  std::ranges::copy(destination.bytes(), &frame[ethernet::kDestination]);
  std::ranges::copy(source.bytes(), &frame[ethernet::kSource]);
  size_t at = ethernet::kType;
  if (vlan != 0) {
    store16(&frame[at], kEtherTypeVlan);
    store16(&frame[at + 2], vlan);
    at += kVlanTagBytes;
  }
  store16(&frame[at], type);
  return at + 2;
}

}  // namespace tern::frames
