#include "neighbours/messages.h"

#include <linux/rtnetlink.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tern::neighbours {

namespace {

using Bytes = std::span<const std::byte>;

constexpr uint16_t kNeighbourIsValid =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;  // NUD_VALID of net/neighbour.h

bool is_ip(sa_family_t family) { return family == AF_INET || family == AF_INET6; }
size_t ip_bytes(sa_family_t family) { return family == AF_INET6 ? 16 : 4; }

/// The body of a message, and the attributes after it.
template <class Body>
struct Parts {
  Body body;
  Bytes attributes;
};
/// Returns nothing if the message is shorter than a Body. mnl_attr_for_each() would round the message's end up.
template <class Body>
std::optional<Parts<Body>> split(const nlmsghdr& message) {
  const Bytes payload(static_cast<const std::byte*>(mnl_nlmsg_get_payload(&message)),
                      message.nlmsg_len - MNL_NLMSG_HDRLEN);
  if (payload.size() < sizeof(Body)) return std::nullopt;
  Parts<Body> parts;
  std::memcpy(&parts.body, payload.data(), sizeof(Body));
  parts.attributes = payload.subspan(std::min<size_t>(payload.size(), MNL_ALIGN(sizeof(Body))));
  return parts;
}

/// Calls `on_attribute(type, payload)` for each complete attribute.
template <class F>
void for_each_attribute(Bytes bytes, F&& on_attribute) {
  while (mnl_attr_ok(reinterpret_cast<const nlattr*>(bytes.data()), static_cast<int>(bytes.size()))) {
    const auto* attribute = reinterpret_cast<const nlattr*>(bytes.data());
    on_attribute(mnl_attr_get_type(attribute), Bytes(static_cast<const std::byte*>(mnl_attr_get_payload(attribute)),
                                                     mnl_attr_get_payload_len(attribute)));
    bytes = bytes.subspan(std::min<size_t>(bytes.size(), MNL_ALIGN(attribute->nla_len)));
  }
}

/// Returns false if the payload is not a T; `value` then stays as it is.
template <class T>
bool read(Bytes payload, T* value) {
  if (payload.size() != sizeof(T)) return false;
  std::memcpy(value, payload.data(), sizeof(T));
  return true;
}

std::optional<base::SocketAddress> read_ip(sa_family_t family, Bytes payload) {
  if (!is_ip(family) || payload.size() != ip_bytes(family)) return std::nullopt;
  return base::SocketAddress::from_ip(payload);
}

std::optional<frames::MacAddress> read_mac(Bytes payload) {
  if (payload.size() != frames::MacAddress::kBytes) return std::nullopt;
  const auto mac = frames::MacAddress::from_bytes(payload);
  if (mac.is_zero()) return std::nullopt;
  return mac;
}

/// The text may be zero-terminated or not.
std::string_view read_text(Bytes payload) {
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  return text.substr(0, text.find('\0'));
}

/// RTA_VIA: a gateway of any family.
std::optional<base::SocketAddress> read_via(Bytes payload) {
  sa_family_t family = AF_UNSPEC;
  if (payload.size() < sizeof(family)) return std::nullopt;
  std::memcpy(&family, payload.data(), sizeof(family));
  return read_ip(family, payload.subspan(sizeof(family)));
}

/// Returns the VLAN in the IFLA_LINKINFO of a VLAN device; 0 for another device.
uint16_t read_vlan(Bytes payload) {
  bool is_vlan = false;
  uint16_t vlan = 0;
  for_each_attribute(payload, [&](uint16_t type, Bytes info) {
    if (type == IFLA_INFO_KIND) is_vlan = read_text(info) == "vlan";
    if (type != IFLA_INFO_DATA) return;
    for_each_attribute(info, [&](uint16_t data_type, Bytes data) {
      if (data_type == IFLA_VLAN_ID) read(data, &vlan);
    });
  });
  return is_vlan ? vlan : 0;
}

}  // namespace

Request::Request(uint16_t type, uint16_t flags) {
  mnl_nlmsg_put_header(bytes_.data());
  header()->nlmsg_type = type;
  header()->nlmsg_flags = NLM_F_REQUEST | flags;
}

void Request::add_ip(uint16_t type, const base::SocketAddress& ip) {
  mnl_attr_put(header(), type, ip.ip().size(), ip.ip().data());
}

std::span<const std::byte> Request::bytes() const {
  return Bytes(bytes_).first(reinterpret_cast<const nlmsghdr*>(bytes_.data())->nlmsg_len);
}

Request Request::route(uint32_t interface, const base::SocketAddress& destination, const base::SocketAddress& source) {
  Request request(RTM_GETROUTE, 0);
  auto* body = static_cast<rtmsg*>(mnl_nlmsg_put_extra_header(request.header(), sizeof(rtmsg)));
  const auto bits = static_cast<uint8_t>(8 * destination.ip().size());
  body->rtm_family = static_cast<uint8_t>(destination.family());
  body->rtm_dst_len = bits;
  // If the request names an interface, Linux assumes that an IPv4 destination without a route is on the link. The table
  // of the answer is then RT_TABLE_UNSPEC.
  if (destination.family() == AF_INET) body->rtm_flags = RTM_F_LOOKUP_TABLE;
  request.add_ip(RTA_DST, destination);
  mnl_attr_put_u32(request.header(), RTA_OIF, interface);
  if (source.family() == destination.family() && !source.is_wildcard()) {
    body->rtm_src_len = bits;
    request.add_ip(RTA_SRC, source);
  }
  return request;
}

Request Request::neighbour(uint32_t interface, const base::SocketAddress& ip) {
  Request request(RTM_GETNEIGH, 0);
  auto* body = static_cast<ndmsg*>(mnl_nlmsg_put_extra_header(request.header(), sizeof(ndmsg)));
  body->ndm_family = static_cast<uint8_t>(ip.family());
  body->ndm_ifindex = static_cast<int>(interface);
  request.add_ip(NDA_DST, ip);
  return request;
}

Request Request::change_neighbour(uint32_t interface, const base::SocketAddress& ip, const frames::MacAddress& mac,
                                  uint16_t state) {
  Request request(RTM_NEWNEIGH, NLM_F_REPLACE | NLM_F_ACK);
  auto* body = static_cast<ndmsg*>(mnl_nlmsg_put_extra_header(request.header(), sizeof(ndmsg)));
  body->ndm_family = static_cast<uint8_t>(ip.family());
  body->ndm_ifindex = static_cast<int>(interface);
  body->ndm_state = state;
  request.add_ip(NDA_DST, ip);
  mnl_attr_put(request.header(), NDA_LLADDR, frames::MacAddress::kBytes, mac.bytes().data());
  return request;
}

Request Request::link(uint32_t interface) {
  Request request(RTM_GETLINK, 0);
  auto* body = static_cast<ifinfomsg*>(mnl_nlmsg_put_extra_header(request.header(), sizeof(ifinfomsg)));
  body->ifi_index = static_cast<int>(interface);
  return request;
}

Request Request::link(std::string_view name) {
  Request request = link(0u);
  std::array<char, IFNAMSIZ> text{};
  name.copy(text.data(), text.size() - 1);
  mnl_attr_put_strz(request.header(), IFLA_IFNAME, text.data());
  return request;
}

Request Request::addresses() {
  Request request(RTM_GETADDR, NLM_F_DUMP);
  mnl_nlmsg_put_extra_header(request.header(), sizeof(ifaddrmsg));
  return request;
}

bool Prefix::covers(const base::SocketAddress& address) const {
  if (address.family() != ip.family()) return false;
  const Bytes a = address.ip();
  const Bytes b = ip.ip();
  const size_t whole = std::min<size_t>(length / 8, a.size());
  if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
  if (whole == a.size() || length % 8 == 0) return true;
  return ((a[whole] ^ b[whole]) >> (8 - length % 8)) == std::byte{0};
}

bool NeighbourMessage::is_valid() const { return (state & kNeighbourIsValid) != 0 && mac.has_value(); }

bool NeighbourMessage::is_watched() const { return is_valid() && (state & NUD_STALE) == 0; }

std::optional<RouteMessage> read_route(const nlmsghdr& message) {
  if (message.nlmsg_type != RTM_NEWROUTE && message.nlmsg_type != RTM_DELROUTE) return std::nullopt;
  const auto parts = split<rtmsg>(message);
  if (!parts || !is_ip(parts->body.rtm_family)) return std::nullopt;
  const sa_family_t family = parts->body.rtm_family;
  if (parts->body.rtm_dst_len > 8 * ip_bytes(family)) return std::nullopt;
  constexpr std::array<std::byte, 16> kAny{};
  RouteMessage route;
  route.type = parts->body.rtm_type;
  route.table = parts->body.rtm_table;
  route.destination = {base::SocketAddress::from_ip(Bytes(kAny).first(ip_bytes(family))), parts->body.rtm_dst_len};
  bool is_whole = true;
  for_each_attribute(parts->attributes, [&](uint16_t type, Bytes payload) {
    if (type == RTA_DST) {
      const auto ip = read_ip(family, payload);
      is_whole = is_whole && ip && ip->family() == family;
      if (is_whole) route.destination.ip = *ip;
    } else if (type == RTA_OIF) {
      is_whole = read(payload, &route.interface) && is_whole;
    } else if (type == RTA_TABLE) {
      is_whole = read(payload, &route.table) && is_whole;
    } else if (type == RTA_GATEWAY || type == RTA_VIA) {
      route.gateway = type == RTA_VIA ? read_via(payload) : read_ip(family, payload);
      is_whole = is_whole && route.gateway;
    }
  });
  if (!is_whole) return std::nullopt;
  return route;
}

std::optional<NeighbourMessage> read_neighbour(const nlmsghdr& message) {
  if (message.nlmsg_type != RTM_NEWNEIGH && message.nlmsg_type != RTM_DELNEIGH) return std::nullopt;
  const auto parts = split<ndmsg>(message);
  if (!parts) return std::nullopt;
  NeighbourMessage neighbour;
  neighbour.interface = static_cast<uint32_t>(parts->body.ndm_ifindex);
  neighbour.state = parts->body.ndm_state;
  std::optional<base::SocketAddress> ip;
  for_each_attribute(parts->attributes, [&](uint16_t type, Bytes payload) {
    if (type == NDA_DST) ip = read_ip(parts->body.ndm_family, payload);
    if (type == NDA_LLADDR) neighbour.mac = read_mac(payload);
  });
  if (!ip) return std::nullopt;
  neighbour.ip = *ip;
  return neighbour;
}

std::optional<Interface> read_link(const nlmsghdr& message) {
  if (message.nlmsg_type != RTM_NEWLINK && message.nlmsg_type != RTM_DELLINK) return std::nullopt;
  const auto parts = split<ifinfomsg>(message);
  if (!parts || parts->body.ifi_index <= 0) return std::nullopt;
  Interface interface;
  interface.index = static_cast<uint32_t>(parts->body.ifi_index);
  interface.is_up = (parts->body.ifi_flags & IFF_UP) != 0;
  interface.is_running = (parts->body.ifi_flags & IFF_RUNNING) != 0;
  interface.is_loopback = (parts->body.ifi_flags & IFF_LOOPBACK) != 0;
  uint32_t parent = 0;
  bool is_parent_here = true;
  for_each_attribute(parts->attributes, [&](uint16_t type, Bytes payload) {
    if (type == IFLA_IFNAME) interface.name = read_text(payload).substr(0, IFNAMSIZ - 1);
    if (type == IFLA_ADDRESS) interface.mac = read_mac(payload).value_or(frames::MacAddress());
    if (type == IFLA_MTU) read(payload, &interface.mtu_bytes);
    if (type == IFLA_NUM_TX_QUEUES) read(payload, &interface.send_queues);
    if (type == IFLA_LINK) read(payload, &parent);
    if (type == IFLA_LINK_NETNSID) is_parent_here = false;
    if (type == IFLA_LINKINFO) interface.vlan = read_vlan(payload);
  });
  if (interface.vlan != 0 && is_parent_here) interface.parent = parent;
  return interface;
}

std::optional<AddressMessage> read_address(const nlmsghdr& message) {
  if (message.nlmsg_type != RTM_NEWADDR && message.nlmsg_type != RTM_DELADDR) return std::nullopt;
  const auto parts = split<ifaddrmsg>(message);
  if (!parts) return std::nullopt;
  AddressMessage address;
  address.interface = parts->body.ifa_index;
  address.is_link_local = parts->body.ifa_scope == RT_SCOPE_LINK;
  uint32_t flags = parts->body.ifa_flags;
  std::optional<base::SocketAddress> local;
  std::optional<base::SocketAddress> other;  // the peer's on a point-to-point link, otherwise the interface's own, too
  for_each_attribute(parts->attributes, [&](uint16_t type, Bytes payload) {
    if (type == IFA_LOCAL) local = read_ip(parts->body.ifa_family, payload);
    if (type == IFA_ADDRESS) other = read_ip(parts->body.ifa_family, payload);
    if (type == IFA_FLAGS) read(payload, &flags);
  });
  if (!local) local = other;
  if (!local) return std::nullopt;
  address.ip = *local;
  const bool is_duplicate = (flags & IFA_F_DADFAILED) != 0;
  const bool is_tested = (flags & IFA_F_TENTATIVE) != 0 && (flags & IFA_F_OPTIMISTIC) == 0;
  address.is_usable = !is_duplicate && !is_tested;
  address.is_tentative = !is_duplicate && is_tested;
  address.is_passing = parts->body.ifa_family == AF_INET6 && (flags & (IFA_F_TEMPORARY | IFA_F_DEPRECATED)) != 0;
  return address;
}

std::optional<int> read_end(const nlmsghdr& message) {
  if (message.nlmsg_type != NLMSG_ERROR && message.nlmsg_type != NLMSG_DONE) return std::nullopt;
  const auto parts = split<int>(message);
  if (!parts || parts->body > 0 || parts->body < -4095) return EPROTO;  // MAX_ERRNO of the kernel
  return -parts->body;
}

}  // namespace tern::neighbours
