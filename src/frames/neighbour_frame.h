// Frames by which the hosts of a link ask for and tell the Ethernet addresses of IP addresses: ARP for IPv4 (RFC 826,
// RFC 5227) and neighbour solicitations and advertisements for IPv6 (RFC 4861), which say the same. Frames layer: pure.
// Received bytes are a stranger's: none beyond the length given is read, and nothing is allocated.
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

/// What one frame says. All IP addresses are of one family, their ports and scopes are 0.
struct NeighbourFrame {
  enum class Kind : uint8_t {
    kSolicitation,   ///< which Ethernet address has `target`?
    kAdvertisement,  ///< `target` has the Ethernet address `mac`
  };
  Kind kind = Kind::kSolicitation;
  MacAddress source_mac;       ///< of the Ethernet header
  MacAddress destination_mac;  ///< of the Ethernet header
  base::SocketAddress source;  ///< the sender's; a wildcard: it has none yet, and probes whether `target` is free
  /// Of an advertisement: who is answered. A group, or `target` itself in ARP: nobody has asked. IPv6 solicitations:
  /// `target` or its group. ARP requests have none, and 0.0.0.0 here.
  base::SocketAddress destination;
  base::SocketAddress target;
  /// Of `source` in a solicitation, of `target` in an advertisement. Always there in ARP; an IPv6 probe has none, and
  /// an IPv6 answer may have none.
  std::optional<MacAddress> mac;
  bool is_solicited = false;  ///< of an advertisement: the answer to a solicitation of `destination`
  bool is_override = false;   ///< of an advertisement: takes the place of what was known. Always in ARP

  // What a host with the addresses `ip` and `mac` sends.

  /// To all hosts: has another one `ip`? (RFC 5227 2.1.1, RFC 4862 5.4.2)
  static NeighbourFrame probe(const base::SocketAddress& ip, const MacAddress& mac);
  /// To all hosts that nobody has asked: `ip` has `mac` (RFC 5227 2.3, RFC 4861 7.2.6).
  static NeighbourFrame announcement(const base::SocketAddress& ip, const MacAddress& mac);
  /// For the Ethernet address of `target`, to all hosts, or to confirm that it still is `target_mac` (RFC
  /// 1122 2.3.2.1).
  static NeighbourFrame question(const base::SocketAddress& target, const std::optional<MacAddress>& target_mac,
                                 const base::SocketAddress& ip, const MacAddress& mac);
  /// To the solicitation of an address that `mac` has.
  static NeighbourFrame answer_to(const NeighbourFrame& solicitation, const MacAddress& mac);

  friend bool operator==(const NeighbourFrame&, const NeighbourFrame&) = default;
};

/// A frame with at most one VLAN tag, without a checksum at its end.
class NeighbourFrameBytes {
 public:
  static constexpr size_t kBytesMax = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + kNdpBytes + kNdpOptionBytes;

  /// 60 to 90 bytes. `vlan`: 1 to kVlanMax; 0: the frame has no tag. IPv4 makes an ARP message, IPv6 one of neighbour
  /// discovery.
  NeighbourFrameBytes(const NeighbourFrame& message, uint16_t vlan);
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kBytesMax> bytes_{};
  size_t size_;
};

/// The frame is ARP, or a neighbour solicitation or advertisement, of `vlan` (0: without a tag). Looks at the types
/// only, so that the frame may be bad in all else.
bool is_neighbour_frame(std::span<const std::byte> frame, uint16_t vlan);
/// Nothing: the frame is none of these, of another VLAN, or bad. Bytes behind the message are ignored. The Ethernet
/// destination is not looked at.
std::optional<NeighbourFrame> parse_neighbour_frame(std::span<const std::byte> frame, uint16_t vlan);

/// ff02::1, which an advertisement goes to that nobody has asked for.
base::SocketAddress all_nodes();
/// The group that asks for `ip` of IPv6 go to (RFC 4291 2.7.1).
base::SocketAddress solicited_node(const base::SocketAddress& ip);
/// The Ethernet address of a group of IPv6 (RFC 2464 7).
MacAddress group_mac(const base::SocketAddress& group);

}  // namespace tern::frames
