#include "frames/frame_template.h"

#include <algorithm>

#include "base/check.h"

namespace tern::frames {

namespace {

/// Returns 1 to 0xfffff, spread over the ports, so that switches that look at the label only use several paths (RFC
/// 6438).
uint32_t flow_label(uint16_t source_port, uint16_t destination_port) {
  constexpr uint32_t kGoldenRatio = 0x9e3779b1;  // of 2^32: neighbouring ports get distant labels
  const uint32_t ports = uint32_t{source_port} << 16 | destination_port;
  return std::max<uint32_t>((ports * kGoldenRatio) >> 12, 1);
}

void put(std::byte* to, std::span<const std::byte> bytes) { std::ranges::copy(bytes, to); }

uint16_t sum_of(std::span<const std::byte> bytes) {
  ChecksumSum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace

FrameTemplate::FrameTemplate(const Ends& ends)
    : header_bytes_(static_cast<uint8_t>(frames::header_bytes(ends.source.family(), ends.vlan != 0))),
      is_ipv4_(ends.source.family() == AF_INET) {
  CHECK(ends.source.family(), ==, ends.destination.family());
  CHECK(ends.vlan, <=, kVlanMax);
  CHECK(ends.vlan_priority, <, 8);
  put(&headers_[ethernet::kDestination], ends.destination_mac.bytes());
  put(&headers_[ethernet::kSource], ends.source_mac.bytes());
  size_t at = ethernet::kType;
  if (ends.vlan != 0) {
    store16(&headers_[at], kEtherTypeVlan);
    store16(&headers_[at + 2], static_cast<uint16_t>(ends.vlan_priority << 13 | ends.vlan));
    at += kVlanTagBytes;
  }
  store16(&headers_[at], is_ipv4_ ? kEtherTypeIpv4 : kEtherTypeIpv6);

  std::byte* const ip = &headers_[at + 2];
  std::byte* const udp_header = ip + ip_header_bytes(ends.source.family());
  size_t ip_length = 0;  // offset of the length in the IP header
  if (is_ipv4_) {
    ip_length = ipv4::kTotalLength;
    ip_length_base_ = kIpv4Bytes + kUdpBytes;
    ip[ipv4::kVersion] = std::byte{0x45};
    ip[ipv4::kTrafficClass] = std::byte{ends.traffic_class};
    store16(ip + ipv4::kFragment, kDontFragment);
    ip[ipv4::kTimeToLive] = std::byte{kHopLimit};
    ip[ipv4::kProtocol] = std::byte{kProtocolUdp};
    put(ip + ipv4::kSource, ends.source.ip());
    put(ip + ipv4::kDestination, ends.destination.ip());
    ip_sum_ = sum_of({ip, kIpv4Bytes});
  } else {
    ip_length = ipv6::kPayloadLength;
    ip_length_base_ = kUdpBytes;
    const uint32_t label = flow_label(ends.source.port(), ends.destination.port());
    store16(ip + ipv6::kVersion, static_cast<uint16_t>(6 << 12 | ends.traffic_class << 4 | label >> 16));
    store16(ip + ipv6::kVersion + 2, static_cast<uint16_t>(label));
    ip[ipv6::kNextHeader] = std::byte{kProtocolUdp};
    ip[ipv6::kHopLimit] = std::byte{kHopLimit};
    put(ip + ipv6::kSource, ends.source.ip());
    put(ip + ipv6::kDestination, ends.destination.ip());
  }
  ip_length_at_ = static_cast<uint8_t>(at + 2 + ip_length);
  store16(udp_header + udp::kSourcePort, ends.source.port());
  store16(udp_header + udp::kDestinationPort, ends.destination.port());

  ChecksumSum sum;
  const size_t addresses_bytes = 2 * ends.source.ip().size();
  add_pseudo_header(sum, {udp_header - addresses_bytes, addresses_bytes}, 0);
  pseudo_sum_ = sum.value();
}

void FrameTemplate::set_destination_mac(const MacAddress& mac) { put(headers_.data(), mac.bytes()); }

void FrameTemplate::complete_udp_checksum(std::byte* headers, std::span<const std::byte> first,
                                          std::span<const std::byte> second) const {
  std::byte* const udp_header = headers + header_bytes_ - kUdpBytes;
  ChecksumSum sum;
  // The sum includes that of the pseudo header, which is in the place of the checksum. Usually the payload follows in
  // memory.
  const bool follows = first.data() == udp_header + kUdpBytes;
  sum.add({udp_header, kUdpBytes + (follows ? first.size() : 0)});
  if (!follows) sum.add(first);
  if (!second.empty()) sum.add(second);
  store_raw16(udp_header + udp::kChecksum, udp_checksum(sum.value()));
}

}  // namespace tern::frames
