// Netlink messages about routes, neighbours, links and addresses: makes requests, and reads answers and reports.
// Neighbours layer: pure. Reads a message only within the bytes that arrived, whatever the lengths in it are.
#pragma once

#include <libmnl/libmnl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/address.h"
#include "frames/mac_address.h"
#include "neighbours/interface.h"

namespace tern::neighbours {

/// One request to the kernel.
class Request {
 public:
  static constexpr size_t kBytesMax = 128;

  /// RTM_GETROUTE: the route to `destination` by the interface, from the address `source`. `source` is ignored if it is
  /// a wildcard or of another family.
  static Request route(uint32_t interface, const base::SocketAddress& destination, const base::SocketAddress& source);
  /// RTM_GETNEIGH: the entry of `ip` on the interface.
  static Request neighbour(uint32_t interface, const base::SocketAddress& ip);
  /// RTM_NEWNEIGH: changes the entry of `ip` on the interface, which must exist. `state`: NUD_*.
  static Request change_neighbour(uint32_t interface, const base::SocketAddress& ip, const frames::MacAddress& mac,
                                  uint16_t state);
  /// RTM_GETLINK.
  static Request link(uint32_t interface);
  /// RTM_GETLINK. `name` has less than IFNAMSIZ bytes.
  static Request link(std::string_view name);
  /// RTM_GETADDR: a dump of all addresses of the network namespace.
  static Request addresses();

  void set_sequence(uint32_t sequence) { header()->nlmsg_seq = sequence; }
  std::span<const std::byte> bytes() const;

 private:
  Request(uint16_t type, uint16_t flags);
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(bytes_.data()); }
  void add_ip(uint16_t type, const base::SocketAddress& ip);

  alignas(nlmsghdr) std::array<std::byte, kBytesMax> bytes_{};
};

/// The addresses whose first `length` bits are those of `ip`.
struct Prefix {
  base::SocketAddress ip;
  uint8_t length = 0;  ///< in bits; 0 covers the whole family

  bool covers(const base::SocketAddress& address) const;
};

/// The fields of RTM_NEWROUTE and RTM_DELROUTE.
struct RouteMessage {
  uint8_t type = 0;        ///< RTN_*
  uint32_t table = 0;      ///< RT_TABLE_*
  uint32_t interface = 0;  ///< 0: the message names none
  std::optional<base::SocketAddress> gateway;
  Prefix destination;
};

/// The fields of RTM_NEWNEIGH and RTM_DELNEIGH.
struct NeighbourMessage {
  uint32_t interface = 0;
  base::SocketAddress ip;
  uint16_t state = 0;                     ///< NUD_*
  std::optional<frames::MacAddress> mac;  ///< nothing: no address of six bytes, or 00:00:00:00:00:00

  /// Packets can be sent to `mac`.
  bool is_valid() const;
  /// The kernel regards the neighbour as reachable, and asks for it by itself when in doubt.
  bool is_watched() const;
};

/// The fields of RTM_NEWADDR and RTM_DELADDR.
struct AddressMessage {
  uint32_t interface = 0;
  base::SocketAddress ip;
  bool is_usable = false;      ///< found to be unique, or need not be unique
  bool is_tentative = false;   ///< not usable yet, because the kernel is still testing whether it is unique
  bool is_link_local = false;  ///< IPv4, too
  bool is_passing = false;     ///< IPv6: a temporary address (RFC 8981), or a deprecated one
};

/// Calls `on_message(const nlmsghdr&)` for each complete message of `bytes`, which must be aligned as nlmsghdr.
template <class F>
void for_each_message(std::span<const std::byte> bytes, F&& on_message) {
  while (bytes.size() >= sizeof(nlmsghdr)) {
    // Does not use mnl_nlmsg_ok(), because libmnl 1.0.4 takes a length of 2^31 or more as negative, and as good.
    const auto& message = *reinterpret_cast<const nlmsghdr*>(bytes.data());
    if (message.nlmsg_len < sizeof(nlmsghdr) || message.nlmsg_len > bytes.size()) return;
    on_message(message);
    bytes = bytes.subspan(std::min<size_t>(bytes.size(), MNL_ALIGN(message.nlmsg_len)));
  }
}

/// Each function returns nothing if the message is of another type or family, or is malformed.
std::optional<RouteMessage> read_route(const nlmsghdr& message);
std::optional<NeighbourMessage> read_neighbour(const nlmsghdr& message);
/// Reads all fields except the addresses.
std::optional<Interface> read_link(const nlmsghdr& message);
std::optional<AddressMessage> read_address(const nlmsghdr& message);
/// The result with which NLMSG_ERROR or NLMSG_DONE ended an answer: 0 or an error number.
std::optional<int> read_end(const nlmsghdr& message);

}  // namespace tern::neighbours
