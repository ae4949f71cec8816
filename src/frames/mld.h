// Multicast listener discovery of a host that listens to one group (RFC 3810, and RFC 2710 for those who ask by it):
// switches that snoop pass a group's frames to those hosts only that report it. Frames layer: pure. Received bytes are
// a stranger's: none beyond the length given is read, and nothing is allocated.
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

/// Which groups does a host listen to?
struct MldQuery {
  MldVersion version = MldVersion::k2;
  base::SocketAddress group;  ///< a wildcard: all groups
  uint64_t delay_ns_max = 0;  ///< hosts answer after a random time up to this
};

/// The frame is a query of `vlan` (0: without a tag). Looks at the types only, so that the frame may be bad in all
/// else.
bool is_mld_query(std::span<const std::byte> frame, uint16_t vlan);
/// Nothing: the frame is none, of another VLAN, or not valid in the sense of RFC 3810 5.1.14.
std::optional<MldQuery> parse_mld_query(std::span<const std::byte> frame, uint16_t vlan);

/// The frame by which a host says that it listens to a group. Its source is the unspecified address, as of a host
/// without an address of the link (RFC 3590 4): switches take it, routers do not.
class MldReportBytes {
 public:
  static constexpr size_t kBytesMax = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + 8 + 28;

  /// `is_change`: nobody has asked. `vlan`: 1 to kVlanMax; 0: the frame has no tag.
  MldReportBytes(MldVersion version, const base::SocketAddress& group, bool is_change, const MacAddress& mac,
                 uint16_t vlan);
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kBytesMax> bytes_{};
  size_t size_ = 0;
};

}  // namespace tern::frames
