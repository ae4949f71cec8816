// The reference for src/frames: frames made field by field as the standards say, and a parser that reads one byte after
// the other. It is slow and shares no code with src/frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frames/drop.h"
#include "frames/parse.h"

namespace tern::frames::reference {

using Bytes = std::vector<uint8_t>;

inline std::span<const std::byte> as_frame(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

/// RFC 1071 in its simplest form: the sum of the big-endian 16-bit words, with a zero behind an odd end.
inline uint16_t sum_of(const Bytes& bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i++) {
    sum += i % 2 == 0 ? uint32_t{bytes[i]} << 8 : bytes[i];
    if (sum > 0xffff) sum = (sum & 0xffff) + 1;
  }
  return static_cast<uint16_t>(sum);
}

inline void put16(Bytes& to, uint64_t value) {
  to.push_back(static_cast<uint8_t>(value >> 8));
  to.push_back(static_cast<uint8_t>(value));
}
inline void put_all(Bytes& to, const Bytes& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }
inline void set16(Bytes& at, size_t offset, uint64_t value) {
  at[offset] = static_cast<uint8_t>(value >> 8);
  at[offset + 1] = static_cast<uint8_t>(value);
}

/// A field of a header that is computed from the others unless a test sets it.
struct Derived {
  int64_t said = -1;
  void operator=(int64_t value) { said = value; }
  uint16_t or_else(size_t value) const { return static_cast<uint16_t>(said >= 0 ? said : static_cast<int64_t>(value)); }
};

/// Every field of a frame with UDP over IP. The default values make a good frame for own().
struct Fields {
  explicit Fields(bool with_ipv6 = false, uint16_t vlan = 0) : is_ipv6(with_ipv6) {
    if (vlan != 0) tags = {{0x8100, vlan}};
    ether_type = is_ipv6 ? 0x86dd : 0x0800;
    version = is_ipv6 ? 6 : 4;
    source_ip = is_ipv6 ? Bytes{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1} : Bytes{10, 77, 0, 1};
    destination_ip = is_ipv6 ? Bytes{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2} : Bytes{10, 77, 0, 2};
  }

  struct Tag {
    uint16_t type, control;
  };
  bool is_ipv6;
  Bytes destination_mac = {0x02, 0, 0x5e, 0, 0, 2};
  Bytes source_mac = {0x02, 0, 0x5e, 0, 0, 1};
  std::vector<Tag> tags;
  uint16_t ether_type;
  uint8_t version;
  Derived header_words;  ///< IPv4 only
  Bytes options;         ///< options of IPv4, or extension headers of IPv6
  uint8_t traffic_class = 0;
  uint32_t flow_label = 0;
  Derived ip_length;
  uint16_t identification = 0;
  uint16_t fragment = 0x4000;
  uint8_t hop_limit = 64;
  uint8_t protocol = 17;
  Derived ip_checksum;
  Bytes source_ip, destination_ip;
  uint16_t source_port = 40001, destination_port = 40002;
  Derived udp_length;
  Derived udp_checksum;
  Bytes payload = {'t', 'e', 'r', 'n', '!'};
  Bytes padding;

  Bytes udp() const {
    Bytes datagram;
    put16(datagram, source_port);
    put16(datagram, destination_port);
    put16(datagram, udp_length.or_else(8 + payload.size()));
    put16(datagram, 0);
    put_all(datagram, payload);
    Bytes summed = source_ip;
    put_all(summed, destination_ip);
    put16(summed, 17);
    put16(summed, 8 + payload.size());
    put_all(summed, datagram);
    const auto sum = static_cast<uint16_t>(~sum_of(summed));
    set16(datagram, 6, udp_checksum.or_else(sum == 0 ? 0xffff : sum));
    return datagram;
  }
  Bytes ip_header(size_t udp_bytes) const {
    Bytes header;
    if (is_ipv6) {
      put16(header, version << 12 | traffic_class << 4 | flow_label >> 16);
      put16(header, flow_label);
      put16(header, ip_length.or_else(options.size() + udp_bytes));
      put16(header, protocol << 8 | hop_limit);
    } else {
      const size_t words = 5 + options.size() / 4;
      put16(header, version << 12 | header_words.or_else(words) << 8 | traffic_class);
      put16(header, ip_length.or_else(4 * words + udp_bytes));
      put16(header, identification);
      put16(header, fragment);
      put16(header, hop_limit << 8 | protocol);
      put16(header, 0);
    }
    put_all(header, source_ip);
    put_all(header, destination_ip);
    put_all(header, options);
    if (!is_ipv6) set16(header, 10, ip_checksum.or_else(static_cast<uint16_t>(~sum_of(header))));
    return header;
  }
  Bytes frame() const {
    Bytes bytes = destination_mac;
    put_all(bytes, source_mac);
    for (const Tag& tag : tags) {
      put16(bytes, tag.type);
      put16(bytes, tag.control);
    }
    put16(bytes, ether_type);
    const Bytes datagram = udp();
    put_all(bytes, ip_header(datagram.size()));
    put_all(bytes, datagram);
    put_all(bytes, padding);
    return bytes;
  }
};

/// The endpoint that Fields are for.
inline FrameParser::Own own(bool with_ipv6 = false, uint16_t vlan = 0) {
  const Fields fields(with_ipv6, vlan);
  FrameParser::Own own;
  own.mac = MacAddress::from_bytes(as_frame(fields.destination_mac));
  own.address = base::SocketAddress::from_ip(as_frame(fields.destination_ip));
  own.address.set_port(fields.destination_port);
  own.vlan = vlan;
  return own;
}

/// Reads a frame from its front. Each read returns whether the frame had enough bytes.
class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(std::move(bytes)) {}
  bool has(size_t count) const { return left() >= count; }
  size_t left() const { return bytes_.size() - at_; }
  Bytes take(size_t count) {
    Bytes taken;
    while (count-- > 0) taken.push_back(bytes_.at(at_++));
    return taken;
  }
  uint32_t number(size_t bytes) {
    uint32_t value = 0;
    for (const uint8_t byte : take(bytes)) value = value << 8 | byte;
    return value;
  }
  Bytes rest() const { return Bytes(bytes_.begin() + static_cast<ptrdiff_t>(at_), bytes_.end()); }

 private:
  const Bytes bytes_;
  size_t at_ = 0;
};

struct Verdict {
  Drop drop = Drop::kNone;
  Bytes payload = {};
  Bytes source_ip = {};
  uint16_t source_port = 0;
};

inline bool is_no_sender(const Bytes& ip) {
  const auto is_between = [&](const Bytes& first, const Bytes& last) { return first <= ip && ip <= last; };
  if (ip.size() == 4) {
    return is_between({0, 0, 0, 0}, {0, 255, 255, 255}) || is_between({127, 0, 0, 0}, {127, 255, 255, 255}) ||
           is_between({224, 0, 0, 0}, {239, 255, 255, 255}) || ip == Bytes{255, 255, 255, 255};
  }
  Bytes loopback(16, 0);
  loopback[15] = 1;
  Bytes mapped(16, 0);
  mapped[10] = mapped[11] = 0xff;
  Bytes mapped_last = mapped;
  for (size_t i = 12; i < 16; i++) mapped_last[i] = 0xff;
  return ip == Bytes(16, 0) || ip == loopback || ip[0] == 0xff || is_between(mapped, mapped_last);
}

inline Verdict parse_udp(const FrameParser::Own& own, Verdict verdict, const Bytes& destination_ip,
                         const Bytes& datagram, DeviceChecks checks) {
  const auto own_ip = own.address.ip();
  for (size_t i = 0; i < own_ip.size(); i++) {
    if (destination_ip[i] != static_cast<uint8_t>(own_ip[i])) return {Drop::kOtherIp};
  }
  if (is_no_sender(verdict.source_ip)) return {Drop::kSource};
  Reader udp(datagram);
  verdict.source_port = static_cast<uint16_t>(udp.number(2));
  if (udp.number(2) != own.address.port()) return {Drop::kOtherPort};
  const uint32_t length = udp.number(2);
  if (length < 8 || length > datagram.size()) return {Drop::kUdpLength};
  if (udp.number(2) == 0) return {Drop::kNoUdpChecksum};
  verdict.payload = udp.take(length - 8);
  Bytes summed = verdict.source_ip;
  put_all(summed, destination_ip);
  put16(summed, 17);
  put16(summed, length);
  put_all(summed, Reader(datagram).take(length));
  if (!checks.udp_checksum && sum_of(summed) != 0xffff) return {Drop::kUdpChecksum};
  return verdict;
}

inline Verdict parse_ipv4(const FrameParser::Own& own, Reader ip, DeviceChecks checks) {
  if (!ip.has(20)) return {Drop::kTruncated};
  const Bytes packet = ip.rest();
  const Bytes header = Reader(packet).take(20);
  const uint32_t version_and_words = ip.number(1);
  if (version_and_words / 16 != 4 || version_and_words % 16 < 5) return {Drop::kIpHeader};
  if (version_and_words % 16 > 5) return {Drop::kIpOptions};
  ip.take(1);
  const uint32_t total_length = ip.number(2);
  if (total_length > packet.size()) return {Drop::kIpLength};
  if (!checks.ip_header && sum_of(header) != 0xffff) return {Drop::kIpChecksum};
  ip.take(2);
  if (ip.number(2) % 0x4000 != 0) return {Drop::kFragment};
  ip.take(1);
  if (ip.number(1) != 17) return {Drop::kOtherProtocol};
  if (total_length < 28) return {Drop::kIpLength};
  ip.take(2);
  Verdict verdict;
  verdict.source_ip = ip.take(4);
  const Bytes destination = ip.take(4);
  return parse_udp(own, verdict, destination, ip.take(total_length - 20), checks);
}

inline Verdict parse_ipv6(const FrameParser::Own& own, Reader ip, DeviceChecks checks) {
  if (!ip.has(40)) return {Drop::kTruncated};
  if (ip.number(4) >> 28 != 6) return {Drop::kIpHeader};
  const uint32_t payload_length = ip.number(2);
  const uint32_t next_header = ip.number(1);
  ip.take(1);
  Verdict verdict;
  verdict.source_ip = ip.take(16);
  const Bytes destination = ip.take(16);
  if (payload_length > ip.left()) return {Drop::kIpLength};
  switch (next_header) {
    case 17:
      break;
    case 44:
      return {Drop::kFragment};
    case 0:
    case 43:
    case 50:
    case 51:
    case 59:
    case 60:
    case 135:
    case 139:
    case 140:
      return {Drop::kIpOptions};
    default:
      return {Drop::kOtherProtocol};
  }
  if (payload_length < 8) return {Drop::kIpLength};
  return parse_udp(own, verdict, destination, ip.take(payload_length), checks);
}

inline Verdict parse(const FrameParser::Own& own, const Bytes& frame, DeviceChecks checks) {
  Reader link(frame);
  if (!link.has(14)) return {Drop::kTruncated};
  const Bytes destination = link.take(6);
  for (size_t i = 0; i < 6; i++) {
    if (destination[i] != static_cast<uint8_t>(own.mac.bytes()[i])) return {Drop::kOtherMac};
  }
  link.take(6);
  uint32_t type = link.number(2);
  if (own.vlan != 0) {
    if (type != 0x8100) return {Drop::kVlan};
    if (!link.has(4)) return {Drop::kTruncated};
    if (link.number(2) % 4096 != own.vlan) return {Drop::kVlan};
    type = link.number(2);
  }
  if (type == 0x8100 || type == 0x88a8) return {Drop::kVlan};
  const bool is_ipv6 = own.address.family() == AF_INET6;
  if (type != (is_ipv6 ? 0x86dd : 0x0800)) return {Drop::kOtherType};
  return is_ipv6 ? parse_ipv6(own, link, checks) : parse_ipv4(own, link, checks);
}

}  // namespace tern::frames::reference
