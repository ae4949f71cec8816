#include "ethernet/endpoint_address.h"

#include "wire/fields.h"

namespace tern::ethernet {

namespace {
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFamily4 = 4, kFamily6 = 6;
constexpr size_t kIpBytes4 = 4, kIpBytes6 = 16;
}  // namespace

EndpointAddress::Bytes encode_address(const EndpointAddress& address) {
  EndpointAddress::Bytes bytes{};
  const auto ip = address.end.ip();
  wire::FieldWriter to(bytes);
  to.number(kVersion);
  to.number(ip.size() == kIpBytes6 ? kFamily6 : kFamily4);
  to.number(address.end.port());
  to.number(address.datagram_bytes);
  to.raw(ip.data(), ip.size());
  return bytes;
}

bool decode_address(std::span<const std::byte> bytes, EndpointAddress* address) {
  wire::FieldReader from(bytes);
  const auto version = from.number<uint8_t>();
  const auto family = from.number<uint8_t>();
  const auto port = from.number<uint16_t>();
  address->datagram_bytes = from.number<uint16_t>();
  std::array<std::byte, kIpBytes6> ip{};
  from.raw(ip.data(), ip.size());
  if (!from.is_exact() || version != kVersion || port == 0 || (family != kFamily4 && family != kFamily6)) return false;
  address->end = base::SocketAddress::from_ip(std::span(ip).first(family == kFamily4 ? kIpBytes4 : kIpBytes6));
  address->end.set_port(port);
  // An IPv4-mapped IPv6 address is refused, because one endpoint has one address, and IPv4 has a form of its own.
  return !address->end.is_wildcard() && !address->end.is_group() &&
         (address->end.family() == AF_INET6) == (family == kFamily6);
}

}  // namespace tern::ethernet
