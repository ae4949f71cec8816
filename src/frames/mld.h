// Multicast listener discovery for a host that listens to one group (RFC 3810, and RFC 2710 for routers that query by
// it). Switches that snoop pass a group's frames only to the hosts that report the group. Frames layer: pure. Received
// bytes are untrusted: no function reads beyond the given length, or allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/address.h"
#include "frames/layout.h"
#include "frames/mac_address.h"

namespace tern::frames {

enum class MldVersion : uint8_t { k1, k2 };

/// A query: asks which groups a host listens to.
struct MldQuery {
  MldVersion version = MldVersion::k2;
  base::SocketAddress group;  ///< a wildcard: all groups
  uint64_t delay_ns_max = 0;  ///< hosts answer after a random time up to this
};

/// Returns whether the frame is an MLD query in VLAN `vlan` (0: without a tag). Checks the types only, so that the rest
/// of the frame may be bad.
bool is_mld_query(std::span<const std::byte> frame, uint16_t vlan);
/// Returns nothing if the frame is not a query, is of another VLAN, or is not valid in the sense of RFC 3810 5.1.14.
std::optional<MldQuery> parse_mld_query(std::span<const std::byte> frame, uint16_t vlan);

/// The frame with which a host reports that it listens to a group. Its source is the unspecified address, as for a host
/// without a link-local address (RFC 3590 4): switches accept it, routers do not.
class MldReportBytes {
 public:
  static constexpr size_t kBytesMax = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + 8 + 28;

  /// `is_change`: the report does not answer a query. `vlan`: 1 to kVlanMax; 0: the frame has no tag.
  MldReportBytes(MldVersion version, const base::SocketAddress& group, bool is_change, const MacAddress& mac,
                 uint16_t vlan);
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kBytesMax> bytes_{};
  size_t size_ = 0;
};

}  // namespace tern::frames
