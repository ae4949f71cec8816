#include "transport/udp/udp_address.h"

#include <algorithm>
#include <cstdint>

namespace tern::transport {

namespace {

constexpr auto kFamily4 = std::byte{4};
constexpr auto kFamily6 = std::byte{6};
constexpr size_t kIpBytes4 = 4, kIpBytes6 = 16;

constexpr Status kBadBind(Code::kMisuse,
                          "udp: Udp::Options::bind is not HOST or HOST:PORT: write 10.0.0.1, 10.0.0.1:4000, [::1] or "
                          "[::1]:4000, or leave it empty");
constexpr Status kUnknownHost(Code::kUnavailable,
                              "udp: the host name in Udp::Options::bind has no address: give an IP address of this "
                              "machine (`ip addr` lists them)");

}  // namespace

UdpAddressBytes encode_address(const SocketAddress& address) {
  UdpAddressBytes encoded;
  const uint16_t port = address.port();
  const std::span<const std::byte> ip = address.ip();
  encoded.bytes[0] = ip.size() == kIpBytes6 ? kFamily6 : kFamily4;
  encoded.bytes[1] = static_cast<std::byte>(port & 0xff);
  encoded.bytes[2] = static_cast<std::byte>(port >> 8);
  std::copy(ip.begin(), ip.end(), encoded.bytes.begin() + 3);
  encoded.size = 3 + ip.size();
  return encoded;
}

bool decode_address(std::span<const std::byte> bytes, SocketAddress* address) {
  const bool is_v4 = bytes.size() == 3 + kIpBytes4 && bytes[0] == kFamily4;
  const bool is_v6 = bytes.size() == 3 + kIpBytes6 && bytes[0] == kFamily6;
  if (!is_v4 && !is_v6) return false;
  *address = SocketAddress::from_ip(bytes.subspan(3));
  const auto port = std::to_integer<unsigned>(bytes[1]) | std::to_integer<unsigned>(bytes[2]) << 8;
  address->set_port(static_cast<uint16_t>(port));
  return port != 0;
}

Result<SocketAddress> parse_bind_option(std::string_view text) {
  if (text.empty()) return SocketAddress();
  const auto parts = base::split_host_and_port(text);
  if (!parts) return kBadBind;
  uint16_t port = 0;
  if (!parts->port.empty()) {
    const auto parsed = base::parse_u16(parts->port);
    if (!parsed) return kBadBind;
    port = *parsed;
  }
  SocketAddress address;
  if (const auto numeric = base::SocketAddress::parse_ip(parts->host)) {
    address = *numeric;
  } else if (int error = 0; base::look_up(parts->host, {&address, 1}, &error) == 0) {
    return kUnknownHost;
  }
  address.set_port(port);
  return address;
}

}  // namespace tern::transport
