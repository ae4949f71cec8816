#include "transport/udp_address.h"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace tern::transport {

namespace {

constexpr auto kFamily4 = std::byte{4};
constexpr auto kFamily6 = std::byte{6};

constexpr Status kBadBind(Code::kMisuse,
                          "udp: Udp::Options::bind is not HOST or HOST:PORT: write 10.0.0.1, 10.0.0.1:4000, [::1] or "
                          "[::1]:4000, or leave it empty");
constexpr Status kUnknownHost(Code::kUnavailable,
                              "udp: the host name in Udp::Options::bind has no address: give an IP address of this "
                              "machine (`ip addr` lists them)");

bool look_up(std::string_view host, int flags, UdpAddress* address) {
  std::array<char, NI_MAXHOST> name{};  // zero-terminated, without an allocation
  if (host.size() >= name.size()) return false;
  std::copy(host.begin(), host.end(), name.begin());
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.data(), nullptr, &hints, &found) != 0 || found == nullptr) return false;
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  *address = UdpAddress::from_sockaddr(storage);
  return true;
}

}  // namespace

UdpAddress UdpAddress::loopback(sa_family_t family) {
  UdpAddress address;
  if (family == AF_INET6) {
    address.v6_ = {};
    address.v6_.sin6_family = AF_INET6;
    address.v6_.sin6_addr = in6addr_loopback;
  } else {
    address.v4_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

Result<UdpAddress> UdpAddress::parse(std::string_view text) {
  UdpAddress address;
  if (text.empty()) return address;
  std::string_view host = text, port;
  if (text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return kBadBind;
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty()) {
      if (rest.front() != ':' || rest.size() == 1) return kBadBind;
      port = rest.substr(1);
    }
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return kBadBind;
  }
  if (host.empty()) return kBadBind;
  uint16_t port_number = 0;
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), port_number);
    if (error != std::errc() || end != port.data() + port.size()) return kBadBind;
  }
  if (!parse_ip(host, &address) && !look_up(host, 0, &address)) return kUnknownHost;
  address.set_port(port_number);
  return address;
}

bool UdpAddress::parse_ip(std::string_view ip, UdpAddress* address) {
  if (ip.empty()) return false;
  return look_up(ip, AI_NUMERICHOST, address);
}

bool UdpAddress::decode(std::span<const std::byte> bytes, UdpAddress* address) {
  *address = UdpAddress();
  if (bytes.size() == 3 + 4 && bytes[0] == kFamily4) {
    std::memcpy(&address->v4_.sin_addr, &bytes[3], 4);
  } else if (bytes.size() == 3 + 16 && bytes[0] == kFamily6) {
    address->v6_ = {};
    address->v6_.sin6_family = AF_INET6;
    std::memcpy(&address->v6_.sin6_addr, &bytes[3], 16);
    address->unmap();
  } else {
    return false;
  }
  address->set_port(
      static_cast<uint16_t>(std::to_integer<unsigned>(bytes[1]) | std::to_integer<unsigned>(bytes[2]) << 8));
  return address->port() != 0;
}

UdpAddress UdpAddress::from_sockaddr(const sockaddr_storage& storage) {
  UdpAddress address;
  if (storage.ss_family == AF_INET6) {
    std::memcpy(&address.v6_, &storage, sizeof(address.v6_));
    address.unmap();
  } else if (storage.ss_family == AF_INET) {
    std::memcpy(&address.v4_, &storage, sizeof(address.v4_));
  }
  return address;
}

UdpAddress::Bytes UdpAddress::encode() const {
  Bytes encoded;
  const uint16_t number = port();
  encoded.bytes[1] = static_cast<std::byte>(number & 0xff);
  encoded.bytes[2] = static_cast<std::byte>(number >> 8);
  if (family() == AF_INET6) {
    encoded.bytes[0] = kFamily6;
    std::memcpy(&encoded.bytes[3], &v6_.sin6_addr, 16);
    encoded.size = 3 + 16;
  } else {
    encoded.bytes[0] = kFamily4;
    std::memcpy(&encoded.bytes[3], &v4_.sin_addr, 4);
    encoded.size = 3 + 4;
  }
  return encoded;
}

bool UdpAddress::is_wildcard() const {
  return family() == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6_.sin6_addr) != 0 : v4_.sin_addr.s_addr == htonl(INADDR_ANY);
}

bool UdpAddress::is_group() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_MULTICAST(&v6_.sin6_addr) != 0;
  const uint32_t ip = ntohl(v4_.sin_addr.s_addr);
  return IN_MULTICAST(ip) || ip == INADDR_BROADCAST;
}

UdpAddress UdpAddress::mapped() const {
  if (family() != AF_INET) return *this;
  UdpAddress address;
  address.v6_ = {};
  address.v6_.sin6_family = AF_INET6;
  address.v6_.sin6_port = v4_.sin_port;
  address.v6_.sin6_addr.s6_addr[10] = address.v6_.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(&address.v6_.sin6_addr.s6_addr[12], &v4_.sin_addr, 4);
  return address;
}

void UdpAddress::unmap() {
  if (!IN6_IS_ADDR_V4MAPPED(&v6_.sin6_addr)) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6_.sin6_port;
  std::memcpy(&v4.sin_addr, &v6_.sin6_addr.s6_addr[12], 4);
  v4_ = v4;
}

bool operator==(const UdpAddress& a, const UdpAddress& b) {
  if (a.family() != b.family() || a.port() != b.port() || a.scope() != b.scope()) return false;
  return a.family() == AF_INET6 ? std::memcmp(&a.v6_.sin6_addr, &b.v6_.sin6_addr, 16) == 0
                                : a.v4_.sin_addr.s_addr == b.v4_.sin_addr.s_addr;
}

size_t UdpAddress::Hash::operator()(const UdpAddress& address) const {
  const Bytes encoded = address.encode();
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(encoded.bytes.data()), encoded.size});
}

}  // namespace tern::transport
