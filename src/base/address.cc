#include "base/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>

namespace tern::base {

namespace {

/// A zero-terminated copy of a text, for system calls. It does not allocate.
template <size_t kBytes>
class ZeroTerminated {
 public:
  explicit ZeroTerminated(std::string_view text) : fits_(text.size() < kBytes) {
    if (fits_) std::copy(text.begin(), text.end(), bytes_.begin());
  }
  bool fits() const { return fits_; }
  const char* get() const { return bytes_.data(); }

 private:
  std::array<char, kBytes> bytes_{};
  bool fits_;
};

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || end != last) return std::nullopt;
  return number;
}

/// The index of a network interface, from its number or its name. Returns 0 if no interface has that name.
uint32_t parse_scope(std::string_view text) {
  if (const auto number = parse_number<uint32_t>(text)) return *number;
  const ZeroTerminated<IF_NAMESIZE> name(text);
  return name.fits() ? if_nametoindex(name.get()) : 0;
}

}  // namespace

std::optional<HostAndPort> split_host_and_port(std::string_view text) {
  HostAndPort parts{text, {}};
  std::string_view rest;  // after the host
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    parts.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else if (const size_t colon = text.find(':'); colon == text.rfind(':')) {  // more colons: a bare IPv6 address
    parts.host = text.substr(0, colon);
    rest = text.substr(parts.host.size());
  }
  if (parts.host.empty()) return std::nullopt;
  if (rest.empty()) return parts;
  if (rest.front() != ':' || rest.size() == 1) return std::nullopt;
  parts.port = rest.substr(1);
  return parts;
}

std::string_view host_of(std::string_view text) {
  const auto parts = split_host_and_port(text);
  return parts ? parts->host : std::string_view();
}

std::optional<uint16_t> parse_u16(std::string_view text) { return parse_number<uint16_t>(text); }

SocketAddress SocketAddress::loopback(sa_family_t family) {
  SocketAddress address;
  if (family == AF_INET6) {
    address.v6_ = {};
    address.v6_.sin6_family = AF_INET6;
    address.v6_.sin6_addr = in6addr_loopback;
  } else {
    address.v4_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

SocketAddress SocketAddress::from_ip(std::span<const std::byte> ip) {
  SocketAddress address;
  if (ip.size() == sizeof(in6_addr)) {
    address.v6_ = {};
    address.v6_.sin6_family = AF_INET6;
    std::memcpy(&address.v6_.sin6_addr, ip.data(), sizeof(in6_addr));
    address.unmap();
  } else {
    std::memcpy(&address.v4_.sin_addr, ip.data(), sizeof(in_addr));
  }
  return address;
}

SocketAddress SocketAddress::from_sockaddr(const sockaddr_storage& storage) {
  SocketAddress address;
  if (storage.ss_family == AF_INET6) {
    std::memcpy(&address.v6_, &storage, sizeof(address.v6_));
    address.unmap();
  } else if (storage.ss_family == AF_INET) {
    std::memcpy(&address.v4_, &storage, sizeof(address.v4_));
  }
  return address;
}

std::optional<SocketAddress> SocketAddress::parse_ip(std::string_view ip) {
  std::array<std::byte, sizeof(in6_addr)> bytes;
  const ZeroTerminated<INET_ADDRSTRLEN> v4(ip);
  if (v4.fits() && inet_pton(AF_INET, v4.get(), bytes.data()) == 1)
    return from_ip(std::span(bytes).first(sizeof(in_addr)));
  const size_t percent = ip.find('%');
  const ZeroTerminated<INET6_ADDRSTRLEN> v6(ip.substr(0, percent));
  if (!v6.fits() || inet_pton(AF_INET6, v6.get(), bytes.data()) != 1) return std::nullopt;
  SocketAddress address = from_ip(bytes);
  if (percent != std::string_view::npos) {
    const uint32_t scope = parse_scope(ip.substr(percent + 1));
    if (scope == 0) return std::nullopt;
    address.set_scope(scope);
  }
  return address;
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view ip_and_port) {
  const auto parts = split_host_and_port(ip_and_port);
  if (!parts) return std::nullopt;
  const auto port = parse_u16(parts->port);
  auto address = parse_ip(parts->host);
  if (!port || !address) return std::nullopt;
  address->set_port(*port);
  return address;
}

std::string SocketAddress::to_text() const {
  const std::string host = family() == AF_INET ? ip_text() : std::string("[").append(ip_text()) + "]";
  return host + ":" + std::to_string(port());
}

std::string SocketAddress::ip_text() const {
  char host[INET6_ADDRSTRLEN] = "";
  inet_ntop(family(), ip().data(), host, sizeof(host));
  std::string text = host;
  if (scope() != 0) text.append("%").append(std::to_string(scope()));
  return text;
}

std::span<const std::byte> SocketAddress::ip() const {
  if (family() == AF_INET6) return std::as_bytes(std::span(&v6_.sin6_addr, 1));
  return std::as_bytes(std::span(&v4_.sin_addr, 1));
}

bool SocketAddress::is_wildcard() const {
  return family() == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6_.sin6_addr) != 0 : v4_.sin_addr.s_addr == htonl(INADDR_ANY);
}

bool SocketAddress::is_loopback() const {
  return family() == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6_.sin6_addr) != 0
                              : ntohl(v4_.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool SocketAddress::is_group() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_MULTICAST(&v6_.sin6_addr) != 0;
  const uint32_t ip = ntohl(v4_.sin_addr.s_addr);
  return IN_MULTICAST(ip) || ip == INADDR_BROADCAST;
}

SocketAddress SocketAddress::mapped() const {
  if (family() != AF_INET) return *this;
  SocketAddress address;
  address.v6_ = {};
  address.v6_.sin6_family = AF_INET6;
  address.v6_.sin6_port = v4_.sin_port;
  address.v6_.sin6_addr.s6_addr[10] = address.v6_.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(&address.v6_.sin6_addr.s6_addr[12], &v4_.sin_addr, sizeof(in_addr));
  return address;
}

void SocketAddress::unmap() {
  if (!IN6_IS_ADDR_V4MAPPED(&v6_.sin6_addr)) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6_.sin6_port;
  std::memcpy(&v4.sin_addr, &v6_.sin6_addr.s6_addr[12], sizeof(in_addr));
  v4_ = v4;
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return a.family() == b.family() && a.port() == b.port() && a.scope() == b.scope() &&
         std::ranges::equal(a.ip(), b.ip());
}

size_t look_up(std::string_view host, std::span<SocketAddress> addresses, int* error) {
  *error = EAI_NONAME;
  const ZeroTerminated<NI_MAXHOST> name(host);
  if (!name.fits()) return 0;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  *error = getaddrinfo(name.get(), nullptr, &hints, &first);
  if (*error != 0) return 0;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(first, &freeaddrinfo);
  size_t count = 0;
  for (const addrinfo* at = first; at != nullptr && count < addresses.size(); at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, at->ai_addr, std::min<size_t>(at->ai_addrlen, sizeof(storage)));
    const SocketAddress address = SocketAddress::from_sockaddr(storage);
    const auto known = addresses.first(count);
    if (std::ranges::find(known, address) == known.end()) addresses[count++] = address;
  }
  return count;
}

}  // namespace tern::base
