// Frames with which the hosts of a link ask for and announce the Ethernet addresses of IP addresses: ARP for IPv4 (RFC
// 826, RFC 5227), and neighbour solicitations and advertisements for IPv6 (RFC 4861), which have the same content.
// Frames layer: pure. Received bytes are untrusted: no function reads beyond the given length, or allocates.
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

/// The content of one frame. All IP addresses are of one family; their ports and scopes are 0.
struct NeighbourFrame {
  enum class Kind : uint8_t {
    kSolicitation,   ///< asks which Ethernet address `target` has
    kAdvertisement,  ///< `target` has the Ethernet address `mac`
  };
  Kind kind = Kind::kSolicitation;
  MacAddress source_mac;       ///< of the Ethernet header
  MacAddress destination_mac;  ///< of the Ethernet header
  base::SocketAddress source;  ///< wildcard: the sender has none yet, and probes whether `target` is free
  /// In an advertisement: the address that is answered. A group, or `target` itself in ARP: the advertisement is
  /// unsolicited. In an IPv6 solicitation: `target` or its group. ARP requests have no destination; it is 0.0.0.0 here.
  base::SocketAddress destination;
  base::SocketAddress target;
  /// The Ethernet address of `source` in a solicitation, of `target` in an advertisement. ARP always has it; an IPv6
  /// probe does not have it, and an IPv6 answer may lack it.
  std::optional<MacAddress> mac;
  bool is_solicited = false;  ///< of an advertisement: it answers a solicitation of `destination`
  bool is_override = false;   ///< of an advertisement: it replaces a known address. Always true in ARP

  // The frames that a host with the addresses `ip` and `mac` sends.

  /// Asks all hosts whether another host has `ip` (RFC 5227 2.1.1, RFC 4862 5.4.2).
  static NeighbourFrame probe(const base::SocketAddress& ip, const MacAddress& mac);
  /// Tells all hosts, without having been asked, that `ip` has `mac` (RFC 5227 2.3, RFC 4861 7.2.6).
  static NeighbourFrame announcement(const base::SocketAddress& ip, const MacAddress& mac);
  /// Asks for the Ethernet address of `target`. Without `target_mac` it asks all hosts. Otherwise it asks `target_mac`,
  /// to confirm that this is still the address (RFC 1122 2.3.2.1).
  static NeighbourFrame question(const base::SocketAddress& target, const std::optional<MacAddress>& target_mac,
                                 const base::SocketAddress& ip, const MacAddress& mac);
  /// Answers the solicitation of an address that `mac` has.
  static NeighbourFrame answer_to(const NeighbourFrame& solicitation, const MacAddress& mac);

  friend bool operator==(const NeighbourFrame&, const NeighbourFrame&) = default;
};

/// A frame with at most one VLAN tag, without a checksum at its end.
class NeighbourFrameBytes {
 public:
  static constexpr size_t kBytesMax = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + kNdpBytes + kNdpOptionBytes;

  /// 60 to 90 bytes. `vlan`: 1 to kVlanMax; 0: the frame has no tag. With IPv4 this is an ARP message, with IPv6 a
  /// neighbour discovery message.
  NeighbourFrameBytes(const NeighbourFrame& message, uint16_t vlan);
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kBytesMax> bytes_{};
  size_t size_;
};

/// Returns whether the frame is ARP, or a neighbour solicitation or advertisement, of `vlan` (0: without a tag). Checks
/// the types only, so that the rest of the frame may be bad.
bool is_neighbour_frame(std::span<const std::byte> frame, uint16_t vlan);
/// Returns nothing if the frame is none of these, is of another VLAN, or is bad. Ignores bytes after the message. Does
/// not check the Ethernet destination.
std::optional<NeighbourFrame> parse_neighbour_frame(std::span<const std::byte> frame, uint16_t vlan);

/// ff02::1, the destination of unsolicited advertisements.
base::SocketAddress all_nodes();
/// The group to which solicitations for the IPv6 address `ip` go (RFC 4291 2.7.1).
base::SocketAddress solicited_node(const base::SocketAddress& ip);
/// The Ethernet address of an IPv6 group (RFC 2464 7).
MacAddress group_mac(const base::SocketAddress& group);

}  // namespace tern::frames
