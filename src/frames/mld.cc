#include "frames/mld.h"

#include <algorithm>

#include "frames/ethernet_header.h"
#include "frames/ndp.h"
#include "frames/neighbour_frame.h"

namespace tern::frames {

namespace {

using base::SocketAddress;
using Bytes = std::span<const std::byte>;

constexpr size_t kIpBytes = 16;
constexpr uint8_t kHopByHop = 0;
constexpr uint8_t kQuery = 130, kReport1 = 131, kReport2 = 143;
/// Sizes of queries. A query of version 1 ends after the group; a query of version 2 is at least four bytes longer.
constexpr size_t kBytes1 = 24, kQueryBytes2 = 28;
constexpr size_t kDelay = 4, kGroup = 8;                 ///< offsets in the message
constexpr uint8_t kIsExclude = 2, kChangeToExclude = 4;  ///< RFC 3810 5.2.12: all sources of a group
/// The router alert of RFC 2711, and padding.
constexpr std::array<uint8_t, 8> kAlert = {kProtocolIcmpv6, 0, 5, 2, 0, 0, 1, 0};

uint8_t byte_at(Bytes bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

/// Returns the IPv6 packet; empty if there is none, or if the frame is of another VLAN.
Bytes packet_of(Bytes frame, uint16_t vlan) {
  const auto ethernet = read_ethernet(frame, vlan);
  return ethernet && ethernet->type == kEtherTypeIpv6 ? ethernet->payload : Bytes();
}

/// Returns the ICMPv6 message after a header of hop-by-hop options if it is a query; otherwise nothing.
Bytes query_of(Bytes packet) {
  if (packet.size() < kIpv6Bytes + kAlert.size() || byte_at(packet, ipv6::kVersion) >> 4 != 6) return {};
  if (byte_at(packet, ipv6::kNextHeader) != kHopByHop || byte_at(packet, kIpv6Bytes) != kProtocolIcmpv6) return {};
  const size_t options_bytes = 8 * (size_t{byte_at(packet, kIpv6Bytes + 1)} + 1);
  const size_t payload_bytes = load16(&packet[ipv6::kPayloadLength]);
  if (payload_bytes > packet.size() - kIpv6Bytes || payload_bytes < options_bytes + kBytes1) return {};
  const Bytes message = packet.subspan(kIpv6Bytes + options_bytes, payload_bytes - options_bytes);
  return byte_at(message, 0) == kQuery ? message : Bytes();
}

/// RFC 3810 5.1.3: the code is a number of milliseconds; from 32768 on, it is a floating-point number of them.
uint64_t delay_of(uint16_t code) {
  if (code < 0x8000) return code;
  return uint64_t{(code & 0xfffu) | 0x1000u} << ((code >> 12 & 7) + 3);
}

SocketAddress all_mld2_routers() {
  std::array<std::byte, kIpBytes> ip{std::byte{0xff}, std::byte{2}};
  ip.back() = std::byte{0x16};
  return SocketAddress::from_ip(ip);
}

}  // namespace

bool is_mld_query(Bytes frame, uint16_t vlan) { return !query_of(packet_of(frame, vlan)).empty(); }

std::optional<MldQuery> parse_mld_query(Bytes frame, uint16_t vlan) {
  const Bytes packet = packet_of(frame, vlan);
  const Bytes message = query_of(packet);
  if (message.empty()) return std::nullopt;
  if (byte_at(packet, ipv6::kHopLimit) != 1 || byte_at(message, 1) != 0) return std::nullopt;
  if (!SocketAddress::from_ip(packet.subspan(ipv6::kSource, kIpBytes)).is_link_local()) return std::nullopt;
  if (icmpv6_sum(packet.subspan(ipv6::kSource, 2 * kIpBytes), message) != 0xffff) return std::nullopt;
  const bool is_version_2 = message.size() >= kQueryBytes2;
  if (!is_version_2 && message.size() != kBytes1) return std::nullopt;
  const uint16_t code = load16(&message[kDelay]);
  constexpr uint64_t kMs = 1'000'000;
  return MldQuery{is_version_2 ? MldVersion::k2 : MldVersion::k1,
                  SocketAddress::from_ip(message.subspan(kGroup, kIpBytes)),
                  kMs * (is_version_2 ? delay_of(code) : code)};
}

MldReportBytes::MldReportBytes(MldVersion version, const SocketAddress& group, bool is_change, const MacAddress& mac,
                               uint16_t vlan) {
  const bool is_version_2 = version == MldVersion::k2;
  const SocketAddress to = is_version_2 ? all_mld2_routers() : group;
  const size_t message_bytes = is_version_2 ? 28 : kBytes1;
  size_t at = write_ethernet(bytes_, group_mac(to), mac, vlan, kEtherTypeIpv6);
  std::byte* const packet = &bytes_[at];
  packet[ipv6::kVersion] = std::byte{6 << 4};
  store16(packet + ipv6::kPayloadLength, static_cast<uint16_t>(kAlert.size() + message_bytes));
  packet[ipv6::kNextHeader] = std::byte{kHopByHop};
  packet[ipv6::kHopLimit] = std::byte{1};
  std::ranges::copy(to.ip(), packet + ipv6::kDestination);
  std::ranges::copy(std::as_bytes(std::span(kAlert)), packet + kIpv6Bytes);
  const std::span<std::byte> message(packet + kIpv6Bytes + kAlert.size(), message_bytes);
  message[0] = std::byte{is_version_2 ? kReport2 : kReport1};
  if (is_version_2) {
    constexpr size_t kRecords = 7, kRecord = 8, kRecordGroup = 12;
    message[kRecords] = std::byte{1};
    message[kRecord] = std::byte{is_change ? kChangeToExclude : kIsExclude};
    std::ranges::copy(group.ip(), &message[kRecordGroup]);
  } else {
    std::ranges::copy(group.ip(), &message[kGroup]);
  }
  const uint16_t sum = icmpv6_sum({packet + ipv6::kSource, 2 * kIpBytes}, message);
  store_raw16(&message[2], static_cast<uint16_t>(~sum));
  size_ = at + kIpv6Bytes + kAlert.size() + message_bytes;
}

}  // namespace tern::frames
