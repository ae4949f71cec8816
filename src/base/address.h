// Socket addresses: IPv4 or IPv6 with a port, their text, and the parts of "HOST:PORT". Base layer; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tern/detail/export.h>

namespace tern::base {

/// The parts of "HOST", "HOST:PORT", "[V6]", "[V6]:PORT" or a bare "V6", which has no port. They point into the text.
struct HostAndPort {
  std::string_view host;  ///< without brackets; not empty
  std::string_view port;  ///< empty if the text has no port
};
/// Returns nothing if the text has none of these forms. Does not check the host and the port.
TERN_API std::optional<HostAndPort> split_host_and_port(std::string_view text);
/// Returns the host of a text that has one of these forms; otherwise an empty text.
TERN_API std::string_view host_of(std::string_view text);
/// Parses the number of a port or of an endpoint: decimal digits only, 0 to 65535.
TERN_API std::optional<uint16_t> parse_u16(std::string_view text);

/// An IPv4 or IPv6 address with a port. Every function that makes one turns an IPv4-mapped IPv6 address
/// (::ffff:10.0.0.1) into the IPv4 address, so that one host has one value. Two addresses are equal if family, IP, port
/// and scope are equal.
class TERN_API SocketAddress {
 public:
  SocketAddress() : v4_{} { v4_.sin_family = AF_INET; }  ///< 0.0.0.0:0
  static SocketAddress loopback(sa_family_t family);
  /// `ip` has 4 or 16 bytes, in network order.
  static SocketAddress from_ip(std::span<const std::byte> ip);
  /// Returns 0.0.0.0:0 if the family is neither AF_INET nor AF_INET6.
  static SocketAddress from_sockaddr(const sockaddr_storage& storage);
  /// Parses a numeric IP without brackets; the port is 0. "fe80::1%eth0" and "fe80::1%2" have a scope. An unknown scope
  /// is an error. Allocates nothing.
  static std::optional<SocketAddress> parse_ip(std::string_view ip);
  /// Parses "IP:PORT" or "[IP]:PORT". Allocates nothing.
  static std::optional<SocketAddress> parse(std::string_view ip_and_port);
  /// The text in the form that parse() reads. A scope is written as a number.
  std::string to_text() const;
  /// The IP without port and brackets, in the form that parse_ip() reads. A scope is written as a number.
  std::string ip_text() const;

  sa_family_t family() const { return base_.sa_family; }
  uint16_t port() const { return ntohs(family() == AF_INET6 ? v6_.sin6_port : v4_.sin_port); }
  void set_port(uint16_t port) { (family() == AF_INET6 ? v6_.sin6_port : v4_.sin_port) = htons(port); }
  /// 4 or 16 bytes, in network order.
  std::span<const std::byte> ip() const;
  uint32_t scope() const { return family() == AF_INET6 ? v6_.sin6_scope_id : 0; }
  void set_scope(uint32_t scope) {
    if (family() == AF_INET6) v6_.sin6_scope_id = scope;
  }
  bool is_wildcard() const;
  bool is_loopback() const;
  bool is_link_local() const { return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6_.sin6_addr) != 0; }
  /// Multicast or broadcast, which is not the address of one endpoint.
  bool is_group() const;

  /// The address for a socket of the family AF_INET6: IPv4 becomes IPv4-mapped IPv6. Use the result for system calls
  /// only.
  SocketAddress mapped() const;
  const sockaddr* sockaddr_data() const { return &base_; }
  socklen_t sockaddr_bytes() const { return family() == AF_INET6 ? sizeof(v6_) : sizeof(v4_); }

  TERN_API friend bool operator==(const SocketAddress& a, const SocketAddress& b);

 private:
  void unmap();

  union {
    sockaddr base_;
    sockaddr_in v4_;
    sockaddr_in6 v6_;
  };
};

/// Asks the system for the addresses of a host name or numeric IP. They have port 0, are in the system's order, and
/// have no duplicates. Blocks. Fills the front of `addresses` and returns the number of addresses. If that number is 0,
/// `error` is the error of getaddrinfo(3), or 0.
TERN_API size_t look_up(std::string_view host, std::span<SocketAddress> addresses, int* error);

}  // namespace tern::base
