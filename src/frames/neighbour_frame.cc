#include "frames/neighbour_frame.h"

#include <algorithm>

#include "frames/arp.h"
#include "frames/ethernet_header.h"
#include "frames/ndp.h"

namespace tern::frames {

namespace {

using Bytes = std::span<const std::byte>;

base::SocketAddress wildcard(sa_family_t family) {
  constexpr std::array<std::byte, 16> kZeros{};
  return base::SocketAddress::from_ip(std::span(kZeros).first(family == AF_INET6 ? 16 : 4));
}

}  // namespace

NeighbourFrame NeighbourFrame::probe(const base::SocketAddress& ip, const MacAddress& mac) {
  NeighbourFrame frame = question(ip, std::nullopt, wildcard(ip.family()), mac);
  if (ip.family() == AF_INET6) frame.mac.reset();
  return frame;
}

NeighbourFrame NeighbourFrame::announcement(const base::SocketAddress& ip, const MacAddress& mac) {
  const bool is_ipv6 = ip.family() == AF_INET6;
  NeighbourFrame frame;
  frame.kind = Kind::kAdvertisement;
  frame.source_mac = mac;
  frame.source = ip;
  frame.destination = is_ipv6 ? all_nodes() : ip;
  frame.destination_mac = is_ipv6 ? group_mac(frame.destination) : MacAddress::broadcast();
  frame.target = ip;
  frame.mac = mac;
  frame.is_override = true;
  return frame;
}

NeighbourFrame NeighbourFrame::question(const base::SocketAddress& target, const std::optional<MacAddress>& target_mac,
                                        const base::SocketAddress& ip, const MacAddress& mac) {
  NeighbourFrame frame;
  frame.kind = Kind::kSolicitation;
  frame.source_mac = mac;
  frame.source = ip;
  frame.destination_mac = MacAddress::broadcast();
  if (target.family() == AF_INET6) {
    frame.destination = target_mac ? target : solicited_node(target);
    frame.destination_mac = group_mac(frame.destination);
  }
  if (target_mac) frame.destination_mac = *target_mac;
  frame.target = target;
  frame.mac = mac;
  return frame;
}

NeighbourFrame NeighbourFrame::answer_to(const NeighbourFrame& solicitation, const MacAddress& mac) {
  NeighbourFrame frame = announcement(solicitation.target, mac);
  // A host that probes has no address yet. With IPv6 the answer goes to all hosts (RFC 4861 7.2.4).
  if (solicitation.source.family() == AF_INET6 && solicitation.source.is_wildcard()) return frame;
  frame.destination = solicitation.source;
  frame.destination_mac = solicitation.mac.value_or(solicitation.source_mac);
  frame.is_solicited = true;
  return frame;
}

NeighbourFrameBytes::NeighbourFrameBytes(const NeighbourFrame& message, uint16_t vlan) {
  const bool is_ipv4 = message.target.family() == AF_INET;
  size_t at = write_ethernet(bytes_, message.destination_mac, message.source_mac, vlan,
                             is_ipv4 ? kEtherTypeArp : kEtherTypeIpv6);
  const std::span<std::byte> payload = std::span(bytes_).subspan(at);
  at += is_ipv4 ? write_arp(message, payload.first<kArpBytes>())
                : write_ndp(message, payload.first<kNdpPacketBytesMax>());
  size_ = std::max(at, kFrameBytesMin);
}

bool is_neighbour_frame(Bytes frame, uint16_t vlan) {
  const auto ethernet = read_ethernet(frame, vlan);
  if (!ethernet) return false;
  return ethernet->type == kEtherTypeArp || (ethernet->type == kEtherTypeIpv6 && is_ndp(ethernet->payload));
}

std::optional<NeighbourFrame> parse_neighbour_frame(Bytes frame, uint16_t vlan) {
  const auto ethernet = read_ethernet(frame, vlan);
  if (!ethernet) return std::nullopt;
  NeighbourFrame message;
  message.destination_mac = MacAddress::from_bytes(frame.subspan(ethernet::kDestination));
  message.source_mac = MacAddress::from_bytes(frame.subspan(ethernet::kSource));
  if (message.source_mac.is_group() || message.source_mac.is_zero()) return std::nullopt;
  bool is_good = false;
  if (ethernet->type == kEtherTypeArp) is_good = parse_arp(ethernet->payload, &message);
  if (ethernet->type == kEtherTypeIpv6) is_good = parse_ndp(ethernet->payload, &message);
  if (!is_good) return std::nullopt;
  return message;
}

base::SocketAddress all_nodes() {
  constexpr std::array<std::byte, 16> kAllNodes = {
      std::byte{0xff}, std::byte{2}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, std::byte{1}};
  return base::SocketAddress::from_ip(kAllNodes);
}

base::SocketAddress solicited_node(const base::SocketAddress& ip) {
  std::array<std::byte, 16> group = {std::byte{0xff}, std::byte{2}};
  group[11] = std::byte{1};
  group[12] = std::byte{0xff};
  std::ranges::copy(ip.ip().last(3), &group[13]);
  return base::SocketAddress::from_ip(group);
}

MacAddress group_mac(const base::SocketAddress& group) {
  std::array<std::byte, MacAddress::kBytes> mac = {std::byte{0x33}, std::byte{0x33}};
  std::ranges::copy(group.ip().last(4), &mac[2]);
  return MacAddress::from_bytes(mac);
}

}  // namespace tern::frames
