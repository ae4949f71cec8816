#include "frames/ndp.h"

#include <algorithm>
#include <optional>

#include "frames/checksum.h"

namespace tern::frames {

namespace {

using base::SocketAddress;
using Bytes = std::span<const std::byte>;
using Kind = NeighbourFrame::Kind;

constexpr size_t kIpBytes = 16;

uint8_t byte_at(Bytes bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

/// Returns false if an option is incomplete or has length 0. Sets `mac` to that of the last option `type`, if there is
/// one.
bool read_options(Bytes options, uint8_t type, std::optional<MacAddress>* mac) {
  while (!options.empty()) {
    if (options.size() < kNdpOptionBytes) return false;
    const size_t bytes = kNdpOptionBytes * byte_at(options, 1);
    if (bytes == 0 || bytes > options.size()) return false;
    if (byte_at(options, 0) == type && bytes == kNdpOptionBytes) *mac = MacAddress::from_bytes(options.subspan(2));
    options = options.subspan(bytes);
  }
  return true;
}

/// Checks the rules of RFC 4861 7.1.1 and 7.1.2 about addresses, and that the addresses can be those of hosts.
bool has_valid_addresses(const NeighbourFrame& message) {
  for (const SocketAddress* ip : {&message.source, &message.destination, &message.target}) {
    if (ip->family() != AF_INET6 || ip->is_loopback()) return false;  // IPv4-mapped, ::1
  }
  if (message.source.is_group() || message.target.is_group() || message.target.is_wildcard()) return false;
  if (message.mac && (message.mac->is_group() || message.mac->is_zero())) return false;
  if (message.kind == Kind::kAdvertisement) {
    if (message.source.is_wildcard() || message.destination.is_wildcard()) return false;
    return !message.is_solicited || !message.destination.is_group();
  }
  if (message.source.is_wildcard()) return message.destination == solicited_node(message.target) && !message.mac;
  return !message.destination.is_wildcard();
}

}  // namespace

uint16_t icmpv6_sum(Bytes addresses, Bytes message) {
  ChecksumSum sum;
  sum.add(addresses);
  sum.add_number(static_cast<uint16_t>(message.size()));
  sum.add_number(kProtocolIcmpv6);
  sum.add(message);
  return sum.value();
}

bool is_ndp(Bytes packet) {
  if (packet.size() < kIpv6Bytes + kNdpBytes || byte_at(packet, ipv6::kVersion) >> 4 != 6 ||
      byte_at(packet, ipv6::kNextHeader) != kProtocolIcmpv6) {
    return false;
  }
  const uint8_t type = byte_at(packet, kIpv6Bytes + ndp::kType);
  return type == ndp::kSolicitation || type == ndp::kAdvertisement;
}

bool parse_ndp(Bytes packet, NeighbourFrame* message) {
  if (!is_ndp(packet) || byte_at(packet, ipv6::kHopLimit) != kNdpHopLimit) return false;
  const size_t payload_bytes = load16(&packet[ipv6::kPayloadLength]);
  if (payload_bytes < kNdpBytes || payload_bytes > packet.size() - kIpv6Bytes) return false;
  const Bytes body = packet.subspan(kIpv6Bytes, payload_bytes);
  if (byte_at(body, ndp::kCode) != 0) return false;
  if (icmpv6_sum(packet.subspan(ipv6::kSource, 2 * kIpBytes), body) != 0xffff) return false;
  const bool is_solicitation = byte_at(body, ndp::kType) == ndp::kSolicitation;
  message->kind = is_solicitation ? Kind::kSolicitation : Kind::kAdvertisement;
  message->source = SocketAddress::from_ip(packet.subspan(ipv6::kSource, kIpBytes));
  message->destination = SocketAddress::from_ip(packet.subspan(ipv6::kDestination, kIpBytes));
  message->target = SocketAddress::from_ip(body.subspan(ndp::kTarget, kIpBytes));
  if (!is_solicitation) {
    message->is_solicited = (byte_at(body, ndp::kFlags) & ndp::kSolicited) != 0;
    message->is_override = (byte_at(body, ndp::kFlags) & ndp::kOverride) != 0;
  }
  const uint8_t option = is_solicitation ? ndp::kSourceMacOption : ndp::kTargetMacOption;
  return read_options(body.subspan(kNdpBytes), option, &message->mac) && has_valid_addresses(*message);
}

size_t write_ndp(const NeighbourFrame& message, std::span<std::byte, kNdpPacketBytesMax> packet) {
  const bool is_solicitation = message.kind == Kind::kSolicitation;
  const size_t body_bytes = kNdpBytes + (message.mac ? kNdpOptionBytes : 0);
  packet[ipv6::kVersion] = std::byte{6 << 4};
  store16(&packet[ipv6::kPayloadLength], static_cast<uint16_t>(body_bytes));
  packet[ipv6::kNextHeader] = std::byte{kProtocolIcmpv6};
  packet[ipv6::kHopLimit] = std::byte{kNdpHopLimit};
  std::ranges::copy(message.source.ip(), &packet[ipv6::kSource]);
  std::ranges::copy(message.destination.ip(), &packet[ipv6::kDestination]);

  const std::span<std::byte> body = packet.subspan(kIpv6Bytes, body_bytes);
  body[ndp::kType] = std::byte{is_solicitation ? ndp::kSolicitation : ndp::kAdvertisement};
  if (message.is_solicited) body[ndp::kFlags] |= std::byte{ndp::kSolicited};
  if (message.is_override) body[ndp::kFlags] |= std::byte{ndp::kOverride};
  std::ranges::copy(message.target.ip(), &body[ndp::kTarget]);
  if (message.mac) {
    const std::span<std::byte> option = body.subspan(kNdpBytes);
    option[0] = std::byte{is_solicitation ? ndp::kSourceMacOption : ndp::kTargetMacOption};
    option[1] = std::byte{1};  // in units of 8 bytes
    std::ranges::copy(message.mac->bytes(), &option[2]);
  }
  const uint16_t sum = icmpv6_sum(packet.subspan(ipv6::kSource, 2 * kIpBytes), body);
  store_raw16(&body[ndp::kChecksum], static_cast<uint16_t>(~sum));
  return kIpv6Bytes + body_bytes;
}

}  // namespace tern::frames
