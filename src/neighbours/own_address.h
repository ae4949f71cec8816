// An IP address that a process gives itself, with its prefix and gateway, from options. Neighbours layer: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <tern/status.h>

#include "base/address.h"
#include "neighbours/messages.h"

namespace tern::neighbours {

struct OwnAddress {
  base::SocketAddress ip;  ///< the address of one host; port and scope 0
  uint8_t prefix_bits = 0;
  std::optional<base::SocketAddress> gateway;  ///< on the link, of the same family; port and scope 0

  /// Parses "10.0.0.1/24" or "2001:db8::1/64"; `gateway` is an IP, or empty. kMisuse: the text names the option,
  /// `address` or `gateway`, and the values that it takes.
  static Result<OwnAddress> parse(std::string_view address, std::string_view gateway);

  /// The prefix that all addresses of the link share.
  Prefix prefix() const { return {ip, prefix_bits}; }
  /// Returns a route as the kernel would: local, by the gateway, on the link, or not to one host (RTN_BROADCAST).
  /// Returns nothing if the destination is not on the link and there is no gateway. `interface` is the interface of the
  /// result.
  std::optional<RouteMessage> route_to(const base::SocketAddress& destination, uint32_t interface) const;
};

}  // namespace tern::neighbours
