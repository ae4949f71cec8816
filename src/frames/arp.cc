#include "frames/arp.h"

#include <algorithm>

namespace tern::frames {

namespace {

using base::SocketAddress;
using Kind = NeighbourFrame::Kind;

constexpr size_t kIpBytes = 4;

}  // namespace

bool parse_arp(std::span<const std::byte> packet, NeighbourFrame* message) {
  if (packet.size() < kArpBytes || load16(&packet[arp::kHardware]) != arp::kEthernet ||
      load16(&packet[arp::kProtocol]) != kEtherTypeIpv4 ||
      packet[arp::kHardwareBytes] != std::byte{MacAddress::kBytes} ||
      packet[arp::kProtocolBytes] != std::byte{kIpBytes}) {
    return false;
  }
  const uint16_t operation = load16(&packet[arp::kOperation]);
  if (operation != arp::kRequest && operation != arp::kReply) return false;
  const auto mac = MacAddress::from_bytes(packet.subspan(arp::kSenderMac));
  const auto sender = SocketAddress::from_ip(packet.subspan(arp::kSenderIp, kIpBytes));
  const auto target = SocketAddress::from_ip(packet.subspan(arp::kTargetIp, kIpBytes));
  if (mac.is_group() || mac.is_zero()) return false;
  if (sender.is_group() || sender.is_loopback() || target.is_group() || target.is_loopback()) return false;
  message->mac = mac;
  message->source = sender;
  message->destination = {};
  if (operation == arp::kRequest && sender != target) {
    if (target.is_wildcard()) return false;
    message->kind = Kind::kSolicitation;
    message->target = target;
    return true;
  }
  if (sender.is_wildcard()) return false;
  message->kind = Kind::kAdvertisement;
  message->target = sender;
  message->destination = target;
  message->is_solicited = sender != target && !message->destination_mac.is_group();
  message->is_override = true;
  return true;
}

size_t write_arp(const NeighbourFrame& message, std::span<std::byte, kArpBytes> packet) {
  const bool is_answer = message.kind == Kind::kAdvertisement && message.is_solicited;
  const SocketAddress& sender = message.kind == Kind::kAdvertisement ? message.target : message.source;
  const SocketAddress& target = is_answer ? message.destination : message.target;
  store16(&packet[arp::kHardware], arp::kEthernet);
  store16(&packet[arp::kProtocol], kEtherTypeIpv4);
  packet[arp::kHardwareBytes] = std::byte{MacAddress::kBytes};
  packet[arp::kProtocolBytes] = std::byte{kIpBytes};
  store16(&packet[arp::kOperation], is_answer ? arp::kReply : arp::kRequest);
  std::ranges::copy(message.mac.value_or(message.source_mac).bytes(), &packet[arp::kSenderMac]);
  std::ranges::copy(sender.ip(), &packet[arp::kSenderIp]);
  std::ranges::copy((is_answer ? message.destination_mac : MacAddress()).bytes(), &packet[arp::kTargetMac]);
  std::ranges::copy(target.ip(), &packet[arp::kTargetIp]);
  return kArpBytes;
}

}  // namespace tern::frames
