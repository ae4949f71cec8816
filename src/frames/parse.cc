#include "frames/parse.h"

#include <algorithm>

#include "base/check.h"
#include "frames/checksum.h"

namespace tern::frames {

namespace {

using Bytes = std::span<const std::byte>;

/// The headers of good frames: their bytes, and a mask of the fixed bits.
struct Image {
  std::array<std::byte, kHeaderBytesMax> bytes{};
  std::array<std::byte, kHeaderBytesMax> mask{};

  void fix(size_t at, uint8_t byte, uint8_t bits = 0xff) {
    bytes[at] = std::byte{byte};
    mask[at] = std::byte{bits};
  }
  void fix16(size_t at, uint16_t value, uint16_t bits = 0xffff) {
    fix(at, static_cast<uint8_t>(value >> 8), static_cast<uint8_t>(bits >> 8));
    fix(at + 1, static_cast<uint8_t>(value), static_cast<uint8_t>(bits));
  }
  void fix_all(size_t at, Bytes range) {
    for (const std::byte byte : range) fix(at++, static_cast<uint8_t>(byte));
  }
};

constexpr uint16_t kVlanBits = 0x0fff;  ///< the VLAN of a tag; the other bits are its priority
constexpr uint8_t kVersion4 = 0x45;     ///< IPv4 with a header of 20 bytes
constexpr uint8_t kVersion6 = 0x60;     ///< in the upper half; the lower half belongs to the traffic class

uint8_t byte_at(Bytes bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }
uint16_t number_at(Bytes bytes, size_t at) { return load16(bytes.data() + at); }

bool is_extension_header(uint8_t next_header) {
  // Hop-by-hop options, routing, ESP, AH, no next header, destination options, mobility, HIP, shim6 (IANA's registry).
  constexpr std::array<uint8_t, 9> kOthers = {0, 43, 50, 51, 59, 60, 135, 139, 140};
  return std::ranges::find(kOthers, next_header) != kOthers.end();
}
constexpr uint8_t kFragmentHeader = 44;

/// Returns whether no host sends from this address. RFC 1122 3.2.1.3; RFC 4291 2.5, 2.7; RFC 4942 2.2 for IPv4-mapped
/// addresses.
bool is_forged_source(Bytes ip) {
  constexpr std::array<std::byte, 10> kZeros{};
  const uint8_t first = byte_at(ip, 0);
  if (ip.size() == 4) {
    return first == 0 || first == 127 || (first >= 224 && first < 240) ||
           std::ranges::all_of(ip, [](std::byte byte) { return byte == std::byte{0xff}; });
  }
  if (first == 0xff) return true;
  if (!std::ranges::equal(ip.first(kZeros.size()), kZeros)) return false;
  const uint16_t next = number_at(ip, 10);
  return next == 0xffff || (next == 0 && number_at(ip, 12) == 0 && number_at(ip, 14) <= 1);
}

FrameParser::Datagram dropped(Drop drop) { return {nullptr, 0, drop}; }

bool is_right_ipv4_checksum(Bytes header) {
  ChecksumSum sum;
  sum.add_few<kIpv4Bytes>(header.data());
  return sum.value() == 0xffff;
}

}  // namespace

FrameParser::FrameParser(const Own& own)
    : header_bytes_(static_cast<uint8_t>(frames::header_bytes(own.address.family(), own.vlan != 0))),
      is_ipv4_(own.address.family() == AF_INET),
      own_(own) {
  CHECK(own.vlan, <=, kVlanMax);
  Image image;
  image.fix_all(ethernet::kDestination, own.mac.bytes());
  const size_t udp_at = header_bytes_ - kUdpBytes;
  const size_t ip_at = udp_at - ip_header_bytes(own.address.family());
  if (own.vlan != 0) {
    image.fix16(ethernet::kType, kEtherTypeVlan);
    image.fix16(ethernet::kType + 2, own.vlan, kVlanBits);
  }
  image.fix16(ip_at - 2, is_ipv4_ ? kEtherTypeIpv4 : kEtherTypeIpv6);
  if (is_ipv4_) {
    image.fix(ip_at + ipv4::kVersion, kVersion4);
    image.fix16(ip_at + ipv4::kFragment, 0, kFragmentBits);
    image.fix(ip_at + ipv4::kProtocol, kProtocolUdp);
    image.fix_all(ip_at + ipv4::kDestination, own.address.ip());
  } else {
    image.fix(ip_at + ipv6::kVersion, kVersion6, 0xf0);
    image.fix(ip_at + ipv6::kNextHeader, kProtocolUdp);
    image.fix_all(ip_at + ipv6::kDestination, own.address.ip());
  }
  image.fix16(udp_at + udp::kDestinationPort, own.address.port());

  const auto offsets = block_offsets();
  for (size_t i = 0; i < offsets.size(); i++) {
    expected_[i] = load_block(&image.bytes[offsets[i]]);
    mask_[i] = load_block(&image.mask[offsets[i]]);
  }
  ip_length_at_ = static_cast<uint8_t>(ip_at + (is_ipv4_ ? ipv4::kTotalLength : ipv6::kPayloadLength));
  ip_extra_ = is_ipv4_ ? kIpv4Bytes : 0;
  source_at_ = static_cast<uint8_t>(ip_at + (is_ipv4_ ? ipv4::kSource : ipv6::kSource));
  source_limit_ = is_ipv4_ ? 223 : 254;
  source_not_ = is_ipv4_ ? 127 : 0;
}

base::SocketAddress FrameParser::source_of(Bytes frame) const {
  auto source = base::SocketAddress::from_ip(frame.subspan(source_at_, own_.address.ip().size()));
  source.set_port(number_at(frame, header_bytes_ - kUdpBytes + udp::kSourcePort));
  return source;
}

FrameParser::Datagram FrameParser::check_sums(Bytes frame, DeviceChecks checks, uint32_t payload_bytes) const {
  if (is_ipv4_ && !checks.ip_header &&
      !is_right_ipv4_checksum(frame.subspan(header_bytes_ - kUdpBytes - kIpv4Bytes, kIpv4Bytes))) {
    return dropped(Drop::kIpChecksum);
  }
  if (!checks.udp_checksum) {
    // The pseudo header's addresses are the last fields of the IP header, so that one range has them and the datagram.
    ChecksumSum sum;
    sum.add(frame.subspan(source_at_, header_bytes_ - source_at_ + payload_bytes));
    sum.add_number(kProtocolUdp);
    sum.add_number(static_cast<uint16_t>(kUdpBytes + payload_bytes));
    if (sum.value() != 0xffff) return dropped(Drop::kUdpChecksum);
  }
  return {frame.data() + header_bytes_, payload_bytes, Drop::kNone};
}

FrameParser::Datagram FrameParser::examine(Bytes frame, DeviceChecks checks) const {
  Drop drop = examine_link(frame);
  if (drop != Drop::kNone) return dropped(drop);
  const size_t udp_at = header_bytes_ - kUdpBytes;
  const Bytes ip = frame.subspan(udp_at - ip_header_bytes(own_.address.family()));
  drop = is_ipv4_ ? examine_ipv4(ip, checks) : examine_ipv6(ip);
  if (drop != Drop::kNone) return dropped(drop);
  const Bytes datagram = frame.subspan(udp_at, number_at(frame, ip_length_at_) - size_t{ip_extra_});
  drop = examine_udp(datagram);
  if (drop != Drop::kNone) return dropped(drop);
  return check_sums(frame, checks, number_at(datagram, udp::kLength) - uint32_t{kUdpBytes});
}

Drop FrameParser::examine_link(Bytes frame) const {
  if (frame.size() < kEthernetBytes) return Drop::kTruncated;
  if (MacAddress::from_bytes(frame) != own_.mac) return Drop::kOtherMac;
  uint16_t type = number_at(frame, ethernet::kType);
  if (own_.vlan != 0) {
    if (type != kEtherTypeVlan) return Drop::kVlan;
    if (frame.size() < kEthernetBytes + kVlanTagBytes) return Drop::kTruncated;
    if ((number_at(frame, ethernet::kType + 2) & kVlanBits) != own_.vlan) return Drop::kVlan;
    type = number_at(frame, ethernet::kType + kVlanTagBytes);
  }
  if (type == kEtherTypeVlan || type == kEtherTypeServiceVlan) return Drop::kVlan;
  return type == (is_ipv4_ ? kEtherTypeIpv4 : kEtherTypeIpv6) ? Drop::kNone : Drop::kOtherType;
}

Drop FrameParser::examine_ipv4(Bytes packet, DeviceChecks checks) const {
  if (packet.size() < kIpv4Bytes) return Drop::kTruncated;
  const uint8_t version = byte_at(packet, ipv4::kVersion);
  if (version != kVersion4) {
    return version >> 4 == 4 && version > kVersion4 ? Drop::kIpOptions : Drop::kIpHeader;
  }
  const size_t total_bytes = number_at(packet, ipv4::kTotalLength);
  if (total_bytes > packet.size()) return Drop::kIpLength;
  if (!checks.ip_header && !is_right_ipv4_checksum(packet.first(kIpv4Bytes))) return Drop::kIpChecksum;
  if ((number_at(packet, ipv4::kFragment) & kFragmentBits) != 0) return Drop::kFragment;
  if (byte_at(packet, ipv4::kProtocol) != kProtocolUdp) return Drop::kOtherProtocol;
  if (total_bytes < kIpv4Bytes + kUdpBytes) return Drop::kIpLength;
  return examine_addresses(packet.subspan(ipv4::kSource, 2 * sizeof(in_addr)));
}

Drop FrameParser::examine_ipv6(Bytes packet) const {
  if (packet.size() < kIpv6Bytes) return Drop::kTruncated;
  if ((byte_at(packet, ipv6::kVersion) & 0xf0) != kVersion6) return Drop::kIpHeader;
  const size_t payload_bytes = number_at(packet, ipv6::kPayloadLength);
  if (payload_bytes > packet.size() - kIpv6Bytes) return Drop::kIpLength;
  const uint8_t next_header = byte_at(packet, ipv6::kNextHeader);
  if (next_header == kFragmentHeader) return Drop::kFragment;
  if (is_extension_header(next_header)) return Drop::kIpOptions;
  if (next_header != kProtocolUdp) return Drop::kOtherProtocol;
  if (payload_bytes < kUdpBytes) return Drop::kIpLength;
  return examine_addresses(packet.subspan(ipv6::kSource, 2 * sizeof(in6_addr)));
}

Drop FrameParser::examine_addresses(Bytes source_and_destination) const {
  const size_t ip_bytes = source_and_destination.size() / 2;
  if (!std::ranges::equal(source_and_destination.last(ip_bytes), own_.address.ip())) return Drop::kOtherIp;
  return is_forged_source(source_and_destination.first(ip_bytes)) ? Drop::kSource : Drop::kNone;
}

Drop FrameParser::examine_udp(Bytes datagram) const {
  if (number_at(datagram, udp::kDestinationPort) != own_.address.port()) return Drop::kOtherPort;
  const size_t udp_bytes = number_at(datagram, udp::kLength);
  if (udp_bytes < kUdpBytes || udp_bytes > datagram.size()) return Drop::kUdpLength;
  return number_at(datagram, udp::kChecksum) == 0 ? Drop::kNoUdpChecksum : Drop::kNone;
}

}  // namespace tern::frames
