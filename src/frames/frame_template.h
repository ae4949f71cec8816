// The headers of frames from one UDP endpoint to another, prebuilt. Frames layer: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/address.h"
#include "frames/checksum.h"
#include "frames/layout.h"
#include "frames/mac_address.h"

namespace tern::frames {

/// Ethernet II, an 802.1Q tag if there is a VLAN, IPv4 or IPv6, and UDP. IPv4 datagrams must not be fragmented, and
/// have identification 0 (RFC 6864 4.1). IPv6 datagrams have a flow label that depends on their ports. The hop limit
/// is 64.
class FrameTemplate {
 public:
  struct Ends {
    MacAddress source_mac;
    MacAddress destination_mac;       ///< of the next hop
    base::SocketAddress source;       ///< of the destination's family
    base::SocketAddress destination;  ///< of the source's family
    uint16_t vlan = 0;                ///< 1 to kVlanMax; 0: no tag
    uint8_t vlan_priority = 0;        ///< 0 to 7
    uint8_t traffic_class = 0;        ///< DSCP and ECN
  };

  FrameTemplate() : FrameTemplate(Ends{}) {}
  explicit FrameTemplate(const Ends& ends);

  /// 42, 46, 62 or 66.
  size_t header_bytes() const { return header_bytes_; }
  void set_destination_mac(const MacAddress& mac);
  MacAddress destination_mac() const { return MacAddress::from_bytes(headers_); }

  /// Writes the header_bytes() bytes in front of a UDP payload of `payload_bytes`. Payload, UDP header and IPv4 header
  /// together must be below 65536 bytes. Does not touch the bytes after the headers. The IPv4 header checksum is
  /// complete. The UDP checksum field has the sum of the pseudo header, not inverted: a device that computes the
  /// checksum starts from it, or ignores it.
  void write(std::byte* to, size_t payload_bytes) const;
  /// Completes the UDP checksum in software. Must follow write(). `headers` are the written bytes. The payload is in
  /// one range or two; the second follows the first.
  void complete_udp_checksum(std::byte* headers, std::span<const std::byte> first,
                             std::span<const std::byte> second = {}) const;

 private:
  std::array<std::byte, kHeaderBytesMax> headers_{};  ///< lengths and checksums are 0
  uint8_t header_bytes_;
  uint8_t ip_length_at_;  ///< offset of the IP header's length
  bool is_ipv4_;
  uint16_t ip_length_base_;  ///< the IP header's length for an empty payload
  uint16_t ip_sum_ = 0;      ///< sum of the IPv4 header, without its length
  uint16_t pseudo_sum_ = 0;  ///< sum of the pseudo header, without the UDP length
};

inline void FrameTemplate::write(std::byte* to, size_t payload_bytes) const {
  // Copies two halves that overlap or touch, so that no loop and no call is needed.
  constexpr size_t kFirst = 34, kLast = 32;
  static_assert(kFirst + kLast == kHeaderBytesMax && kFirst <= frames::header_bytes(AF_INET, false));
  std::memcpy(to, headers_.data(), kFirst);
  std::memcpy(to + header_bytes_ - kLast, headers_.data() + header_bytes_ - kLast, kLast);

  const uint16_t ip_length = network_order(static_cast<uint16_t>(ip_length_base_ + payload_bytes));
  const uint16_t udp_length = network_order(static_cast<uint16_t>(kUdpBytes + payload_bytes));
  std::byte* const udp_header = to + header_bytes_ - kUdpBytes;
  store_raw16(to + ip_length_at_, ip_length);
  store_raw16(udp_header + udp::kLength, udp_length);
  store_raw16(udp_header + udp::kChecksum, add_sums(pseudo_sum_, udp_length));
  if (is_ipv4_) {
    store_raw16(udp_header - kIpv4Bytes + ipv4::kChecksum, static_cast<uint16_t>(~add_sums(ip_sum_, ip_length)));
  }
}

}  // namespace tern::frames
