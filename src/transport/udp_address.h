// A UDP address: IPv4 or IPv6, with port. A plain value; its bytes travel in the handshake.
// Transport room: knows nothing of packets or sessions.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <tern/status.h>

namespace tern::transport {

class UdpAddress {
 public:
  /// Family (4 or 6), port (little-endian), IP in network order.
  static constexpr size_t kBytesMax = 1 + 2 + 16;
  struct Bytes {
    std::array<std::byte, kBytesMax> bytes{};
    size_t size = 0;
    std::span<const std::byte> span() const { return {bytes.data(), size}; }
  };

  UdpAddress() : v4_{} { v4_.sin_family = AF_INET; }  ///< 0.0.0.0:0
  static UdpAddress loopback(sa_family_t family);

  /// "HOST", "HOST:PORT", "[V6]", "[V6]:PORT"; names are looked up, which may block. Empty: 0.0.0.0, any port.
  static Result<UdpAddress> parse(std::string_view host_and_port);
  /// A numeric IP, without brackets; "fe80::1%eth0" keeps its scope. False: it is none.
  static bool parse_ip(std::string_view ip, UdpAddress* address);
  /// A stranger's bytes. False: not an address. IPv4-mapped IPv6 becomes IPv4.
  static bool decode(std::span<const std::byte> bytes, UdpAddress* address);
  static UdpAddress from_sockaddr(const sockaddr_storage& storage);
  Bytes encode() const;
  /// As a socket of the other family's wildcard names it: IPv4 becomes IPv4-mapped IPv6.
  UdpAddress mapped() const;

  sa_family_t family() const { return base_.sa_family; }
  uint16_t port() const { return ntohs(family() == AF_INET6 ? v6_.sin6_port : v4_.sin_port); }
  void set_port(uint16_t port) { (family() == AF_INET6 ? v6_.sin6_port : v4_.sin_port) = htons(port); }
  uint32_t scope() const { return family() == AF_INET6 ? v6_.sin6_scope_id : 0; }
  void set_scope(uint32_t scope) {
    if (family() == AF_INET6) v6_.sin6_scope_id = scope;
  }
  bool is_wildcard() const;
  bool is_link_local() const { return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6_.sin6_addr) != 0; }
  /// Multicast or broadcast: not the address of one endpoint.
  bool is_group() const;

  const sockaddr* sockaddr_data() const { return &base_; }
  socklen_t sockaddr_bytes() const { return family() == AF_INET6 ? sizeof(v6_) : sizeof(v4_); }

  friend bool operator==(const UdpAddress& a, const UdpAddress& b);
  struct Hash {
    size_t operator()(const UdpAddress& address) const;
  };

 private:
  void unmap();

  union {
    sockaddr base_;
    sockaddr_in v4_;
    sockaddr_in6 v6_;
  };
};

}  // namespace tern::transport
