#include "frame.h"

#include <infiniband/mlx5dv.h>

namespace software_verbs {
namespace {

constexpr size_t kIpv4Bytes = 20;
constexpr size_t kIpv6Bytes = 40;
constexpr size_t kUdpBytes = 8;
constexpr size_t kTcpBytes = 20;
constexpr uint8_t kIpv6FragmentHeader = 44;
constexpr uint16_t kMoreFragments = 0x2000;
constexpr uint16_t kFragmentOffset = 0x1fff;

uint8_t byte_at(FrameView bytes, size_t at) { return std::to_integer<uint8_t>(bytes[at]); }
uint16_t word_at(FrameView bytes, size_t at) {
  return static_cast<uint16_t>(byte_at(bytes, at) << 8 | byte_at(bytes, at + 1));
}
void put_word(Frame bytes, size_t at, uint16_t word) {
  bytes[at] = static_cast<std::byte>(word >> 8);
  bytes[at + 1] = static_cast<std::byte>(word);
}

/// RFC 1071: the sum of 16-bit words, not yet folded.
uint64_t add_words(FrameView bytes, uint64_t sum) {
  size_t at = 0;
  for (; at + 1 < bytes.size(); at += 2) sum += word_at(bytes, at);
  if (at < bytes.size()) sum += static_cast<uint64_t>(byte_at(bytes, at)) << 8;
  return sum;
}
uint16_t fold(uint64_t sum) {
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

/// The length of the UDP datagram or TCP segment, from its own length field.
size_t transport_length(FrameView frame, const Headers& headers) {
  return headers.protocol == kProtocolUdp ? word_at(frame, headers.transport + 4) : headers.transport_bytes;
}

/// The sum over pseudo header and datagram, including the checksum field: 0xffff if the checksum is right.
uint16_t transport_sum(FrameView frame, const Headers& headers) {
  const size_t bytes = transport_length(frame, headers);
  const FrameView addresses = headers.is_ipv4() ? frame.subspan(headers.ip + 12, 8) : frame.subspan(headers.ip + 8, 32);
  uint64_t sum = add_words(addresses, headers.protocol + static_cast<uint64_t>(bytes));
  return fold(add_words(frame.subspan(headers.transport, bytes), sum));
}

bool has_transport(FrameView frame, const Headers& headers) {
  if (headers.transport == 0 || headers.is_fragment) return false;
  const size_t bytes = transport_length(frame, headers);
  return bytes >= kUdpBytes && bytes <= headers.transport_bytes;
}
size_t checksum_offset(const Headers& headers) {
  return headers.transport + (headers.protocol == kProtocolUdp ? 6 : 16);
}

void find_ipv4(FrameView frame, Headers& headers) {
  const FrameView packet = frame.subspan(headers.ip);
  if (packet.size() < kIpv4Bytes || byte_at(packet, 0) >> 4 != 4) return;
  headers.ip_header_bytes = static_cast<size_t>(byte_at(packet, 0) & 0xf) * 4;
  const size_t bytes = word_at(packet, 2);
  if (headers.ip_header_bytes < kIpv4Bytes || bytes < headers.ip_header_bytes || bytes > packet.size()) return;
  headers.is_ip = true;
  headers.protocol = byte_at(packet, 9);
  const uint16_t fragment = word_at(packet, 6);
  headers.is_fragment = (fragment & (kMoreFragments | kFragmentOffset)) != 0;
  headers.transport_bytes = bytes - headers.ip_header_bytes;
  if ((fragment & kFragmentOffset) == 0) headers.transport = headers.ip + headers.ip_header_bytes;
}

void find_ipv6(FrameView frame, Headers& headers) {
  const FrameView packet = frame.subspan(headers.ip);
  if (packet.size() < kIpv6Bytes || byte_at(packet, 0) >> 4 != 6) return;
  headers.transport_bytes = word_at(packet, 4);
  if (headers.transport_bytes > packet.size() - kIpv6Bytes) return;
  headers.is_ip = true;
  headers.ip_header_bytes = kIpv6Bytes;
  headers.protocol = byte_at(packet, 6);
  headers.is_fragment = headers.protocol == kIpv6FragmentHeader;
  headers.transport = headers.ip + kIpv6Bytes;
}

}  // namespace

Headers find_headers(FrameView frame) {
  Headers headers;
  if (frame.size() < kEthernetBytes) return headers;
  headers.ether_type = word_at(frame, 12);
  headers.ip = kEthernetBytes;
  if (headers.ether_type == kEtherTypeVlan && frame.size() >= kEthernetBytes + kVlanTagBytes) {
    headers.vlan_tag = word_at(frame, 14);
    headers.ether_type = word_at(frame, 16);
    headers.ip += kVlanTagBytes;
  }
  if (headers.ether_type == kEtherTypeIpv4) find_ipv4(frame, headers);
  if (headers.ether_type == kEtherTypeIpv6) find_ipv6(frame, headers);
  const size_t shortest = headers.protocol == kProtocolTcp ? kTcpBytes : kUdpBytes;
  if ((headers.protocol != kProtocolUdp && headers.protocol != kProtocolTcp) || headers.transport_bytes < shortest)
    headers.transport = 0;
  return headers;
}

uint8_t check_frame(FrameView frame, const Headers& headers) {
  uint8_t checks = MLX5_CQE_L2_OK;
  if (!headers.is_ip) return checks;
  if (!headers.is_ipv4() || fold(add_words(frame.subspan(headers.ip, headers.ip_header_bytes), 0)) == 0xffff)
    checks |= MLX5_CQE_L3_OK;
  if (!has_transport(frame, headers)) return checks;
  const bool has_none =
      headers.protocol == kProtocolUdp && headers.is_ipv4() && word_at(frame, checksum_offset(headers)) == 0;
  if (has_none || transport_sum(frame, headers) == 0xffff) checks |= MLX5_CQE_L4_OK;
  return checks;
}

void write_ip_checksum(Frame frame, const Headers& headers) {
  if (!headers.is_ipv4()) return;
  put_word(frame, headers.ip + 10, 0);
  const uint16_t sum = fold(add_words(frame.subspan(headers.ip, headers.ip_header_bytes), 0));
  put_word(frame, headers.ip + 10, static_cast<uint16_t>(~sum));
}

void write_transport_checksum(Frame frame, const Headers& headers) {
  if (!has_transport(frame, headers)) return;
  const size_t at = checksum_offset(headers);
  put_word(frame, at, 0);
  const auto checksum = static_cast<uint16_t>(~transport_sum(frame, headers));
  put_word(frame, at, checksum == 0 && headers.protocol == kProtocolUdp ? 0xffff : checksum);  // RFC 768
}

}  // namespace software_verbs
