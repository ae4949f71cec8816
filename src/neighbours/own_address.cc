#include "neighbours/own_address.h"

#include <linux/rtnetlink.h>

#include <algorithm>
#include <bit>
#include <string>

#include "base/status_text.h"

namespace tern::neighbours {

namespace {

Status refuse(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return base::status_of(Code::kMisuse, otherwise, parts);
}

/// Multicast, broadcast, loopback and wildcard addresses do not belong to one host.
bool is_of_one_host(const base::SocketAddress& ip) {
  if (ip.is_group() || ip.is_wildcard() || ip.is_loopback()) return false;
  return ip.family() != AF_INET || ip.ip()[0] != std::byte{0};
}

/// The first or the last address of an IPv4 prefix, which stands for the network or for all its hosts. Prefixes of two
/// addresses have no such addresses (RFC 3021).
bool is_end_of(const Prefix& prefix, const base::SocketAddress& ip) {
  if (ip.family() != AF_INET || prefix.length > 30 || !prefix.covers(ip)) return false;
  const uint32_t host_mask = UINT32_MAX >> prefix.length;
  const uint32_t host =
      ntohl(std::bit_cast<uint32_t>(std::array<std::byte, 4>{ip.ip()[0], ip.ip()[1], ip.ip()[2], ip.ip()[3]})) &
      host_mask;
  return host == 0 || host == host_mask;
}

}  // namespace

Result<OwnAddress> OwnAddress::parse(std::string_view address, std::string_view gateway) {
  const size_t slash = address.find('/');
  const auto ip = base::SocketAddress::parse_ip(address.substr(0, slash));
  const auto prefix = slash == std::string_view::npos ? std::string_view() : address.substr(slash + 1);
  const uint16_t bits = base::parse_u16(prefix).value_or(0);
  if (!ip || ip->scope() != 0 || bits == 0 || bits > 8 * ip->ip().size()) {
    return refuse("option address: not an IP address with a prefix length",
                  {"option address: ", address, " is not an IP address with a prefix length, as in 10.0.0.1/24 or ",
                   "2001:db8::1/64"});
  }
  OwnAddress own{*ip, static_cast<uint8_t>(bits), std::nullopt};
  if (!is_of_one_host(*ip) || is_end_of(own.prefix(), *ip)) {
    return refuse("option address: not the address of one host",
                  {"option address: ", address, " is not the address of one host: choose another one"});
  }
  if (ip->is_link_local()) {
    return refuse("option address: a link-local address",
                  {"option address: ", address,
                   " is a link-local address, which peers cannot tell from their own: choose a global one"});
  }
  if (gateway.empty()) return own;
  own.gateway = base::SocketAddress::parse_ip(gateway);
  if (!own.gateway || own.gateway->scope() != 0 || own.gateway->family() != ip->family()) {
    return refuse("option gateway: not an IP address of the same family as the option address",
                  {"option gateway: ", gateway, " is not an IP address of the same family as the option address"});
  }
  const bool is_alone = own.prefix_bits == 8 * ip->ip().size();  // as in clouds, with a gateway outside of the prefix
  const bool is_on_link = is_alone || own.gateway->is_link_local() || own.prefix().covers(*own.gateway);
  if (!is_of_one_host(*own.gateway) || is_end_of(own.prefix(), *own.gateway) || *own.gateway == *ip || !is_on_link) {
    return refuse("option gateway: not another host of the option address's prefix",
                  {"option gateway: ", gateway, " is not another host of ", address, ", the option address"});
  }
  return own;
}

std::optional<RouteMessage> OwnAddress::route_to(const base::SocketAddress& destination, uint32_t interface) const {
  RouteMessage route;
  route.type = RTN_UNICAST;
  route.table = RT_TABLE_MAIN;
  route.interface = interface;
  route.destination = prefix();
  if (destination.family() != ip.family()) return std::nullopt;
  if (std::ranges::equal(destination.ip(), ip.ip())) {
    route.type = RTN_LOCAL;
  } else if (is_end_of(prefix(), destination)) {
    route.type = RTN_BROADCAST;
  } else if (!prefix().covers(destination) && !destination.is_link_local() && destination != gateway) {
    if (!gateway) return std::nullopt;
    route.destination.length = 0;
    route.gateway = gateway;
  }
  return route;
}

}  // namespace tern::neighbours
