#include "neighbours/neighbours.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "neighbours/texts.h"

namespace tern::neighbours {

namespace {

// The most work of one update(): about 300 us.
constexpr int kReportsMax = 64;
constexpr int kRequestsMax = 32;
constexpr uint16_t kDiscardPort = 9;  ///< RFC 863

/// Makes a socket whose datagrams leave by the interface. None: the host does not have the family, and so has no route
/// to it either.
base::Descriptor open_solicitor(sa_family_t family, uint32_t interface, base::SocketAddress source) {
  base::Descriptor socket(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const uint32_t index = htonl(interface);
  const bool is_v6 = family == AF_INET6;
  if (setsockopt(socket.get(), is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_UNICAST_IF : IP_UNICAST_IF, &index,
                 sizeof(index)) != 0) {
    return {};
  }
  if (source.family() != family || source.is_wildcard()) return socket;
  source.set_port(0);
  if (source.is_link_local()) source.set_scope(interface);
  if (bind(socket.get(), source.sockaddr_data(), source.sockaddr_bytes()) != 0) return {};
  return socket;
}

/// The reason for an error in the answer to Request::route().
Reason reason_of(int error) {
  switch (error) {
    case EINVAL:
      return Reason::kBlackhole;
    case EHOSTUNREACH:
      return Reason::kUnreachable;
    case EACCES:
      return Reason::kProhibited;
    case ENOMEM:
    case ENOBUFS:
    case EAGAIN:
    case EPROTO:
      return Reason::kNoMemory;
    default:
      return Reason::kNoRoute;
  }
}

}  // namespace

Neighbours::Neighbours(Interface interface, const base::SocketAddress& source, uint64_t salt)
    : index_(interface.index),
      source_(source),
      interface_(std::move(interface)),
      table_(interface_.index, interface_.mac, salt) {}

Result<std::unique_ptr<Neighbours>> Neighbours::create(uint32_t interface_index, const base::SocketAddress& source) {
  auto interface = interface_by_index(interface_index);
  if (!interface.ok()) return interface.status();
  if (interface->mac.is_zero()) {
    return unavailable("the network interface has no Ethernet address",
                       {"the network interface ", interface->name, " has no Ethernet address: choose another one"});
  }
  if (!source.is_wildcard() && !interface->has_address(source)) {
    return unavailable("the network interface does not have this address",
                       {"the network interface ", interface->name, " does not have the address ", source.ip_text(),
                        ": add it (ip address add ", source.ip_text(), " dev ", interface->name, ")"});
  }
  uint64_t salt = 0;
  if (!base::fill_random(&salt, sizeof(salt))) return base::kNoRandom;
  std::unique_ptr<Neighbours> made(new (std::nothrow) Neighbours(std::move(*interface), source, salt));
  if (made == nullptr) return Status(Code::kNoMemory, "no memory for the neighbours of a network interface");
  if (const Status status = made->open(); !status.ok()) return status;
  return made;
}

Status Neighbours::open() {
  int error = events_.open({RTNLGRP_NEIGH, RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_ROUTE,
                            RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE, RTNLGRP_NEXTHOP});
  if (error == 0) error = requests_.open();
  if (error != 0) return no_netlink(error);
  solicitors_[0] = open_solicitor(AF_INET, index_, source_);
  solicitors_[1] = open_solicitor(AF_INET6, index_, source_);
  error = requests_.ask(Request::neighbour(index_, base::SocketAddress()), [](const nlmsghdr&) {});
  if (error == EOPNOTSUPP) {
    return {Code::kUnavailable, "this kernel cannot look up a single neighbour: use Linux 5.0 or later"};
  }
  is_interface_due_ = true;  // it may have changed before events_ was open
  return {};
}

Result<Id> Neighbours::find(const base::SocketAddress& destination, uint64_t now_ns) {
  const auto id = table_.find(destination);
  if (!id) return Status(Code::kNoMemory, "no memory for another destination");
  ask(now_ns);
  return *id;
}

Status Neighbours::failure(Id id) const {
  const std::string destination = table_.address(id).ip_text();
  const std::string& name = interface_.name;
  switch (table_.reason(id)) {
    case Reason::kNone:
      return {};
    case Reason::kNotOneHost:
    case Reason::kNoMemory:
    case Reason::kSilent:
      return failure_on_link(table_, id, name);
    case Reason::kOtherInterface:
      return unavailable("the route to the destination goes through another interface",
                         {"the route to ", destination, " does not go through ", name,
                          ": add a route that does, or choose another interface"});
    case Reason::kBlackhole:
    case Reason::kUnreachable:
    case Reason::kProhibited:
      if (has_lost_source()) break;  // Linux refuses a lost source with the same error as a blackhole
      return unavailable("a route forbids the destination", {"a route or rule of this host forbids ", destination,
                                                             ": see ip route get ", destination, " oif ", name});
    case Reason::kNoRoute:
      break;
  }
  if (interface_.index == 0) return gone();
  if (!interface_.is_up) {
    return unavailable("the network interface is down",
                       {"the network interface ", name, " is down: ip link set ", name, " up"});
  }
  if (has_lost_source()) return lost_source();
  return unavailable("no route to the destination through this interface",
                     {"no route to ", destination, " through ", name, ": add one, or choose another interface"});
}

Status Neighbours::own_failure() const {
  if (interface_.index == 0) return gone();
  return is_source_gone_ ? lost_source() : Status();
}

Status Neighbours::gone() const {
  return unavailable("the network interface is gone", {"the network interface ", interface_.name, " is gone"});
}

Status Neighbours::lost_source() const {
  return unavailable(
      "the network interface has lost its address",
      {"the network interface ", interface_.name, " has lost the address ", source_.ip_text(), ": add it again"});
}

bool Neighbours::has_lost_source() const {
  return !source_.is_wildcard() && !interface_.has_address(source_) && !interface_.is_tentative(source_);
}

/// Linux removes IPv6 addresses from an interface that goes down, and a network manager adds them again a moment after
/// it is up. An address is gone for good only if it stays away while the interface is up.
void Neighbours::watch_source(uint64_t now_ns) {
  if (!interface_.is_up || !interface_.is_running || !has_lost_source()) {
    source_due_ns_ = UINT64_MAX;
    is_source_gone_ = false;
    return;
  }
  if (is_source_gone_) return;
  if (source_due_ns_ == UINT64_MAX) source_due_ns_ = now_ns + Table::kGiveUpNs;
  if (now_ns < source_due_ns_) return;
  source_due_ns_ = UINT64_MAX;
  is_source_gone_ = true;
  is_interface_changed_ = true;
}

Neighbours::Changes Neighbours::update(uint64_t now_ns) {
  read_events();
  if (is_interface_due_) refresh_interface();
  watch_source(now_ns);
  ask(now_ns);
  return {table_.take_changes(), std::exchange(is_interface_changed_, false)};
}

uint64_t Neighbours::next_update_ns() const {
  return is_interface_due_ || are_reports_lost_ ? 0 : std::min(table_.next_action_ns(), source_due_ns_);
}

void Neighbours::read_events() {
  for (int i = 0; i < kReportsMax; i++) {
    const Netlink::Received received = events_.receive();
    if (received.error == ENOBUFS) are_reports_lost_ = true;
    if (received.error == EAGAIN) {
      if (!std::exchange(are_reports_lost_, false)) return;
      is_interface_due_ = true;
      return table_.on_overrun();
    }
    for_each_message(received.bytes, [&](const nlmsghdr& message) { on_event(message); });
  }
}

void Neighbours::on_event(const nlmsghdr& message) {
  switch (message.nlmsg_type) {
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
      if (const auto neighbour = read_neighbour(message); neighbour && neighbour->interface == index_) {
        table_.on_neighbour_change(neighbour->ip);
      }
      return;
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
      if (const auto route = read_route(message)) table_.on_route_change(route->destination);
      return;
    case RTM_NEWRULE:
    case RTM_DELRULE:
    case RTM_NEWNEXTHOP:
    case RTM_DELNEXTHOP:
      return table_.on_routes_change();
    case RTM_NEWADDR:
    case RTM_DELADDR:
      if (const auto address = read_address(message); address && address->interface == index_) is_interface_due_ = true;
      return;
    case RTM_NEWLINK:
    case RTM_DELLINK:
      // Linux does not report the IPv4 routes that an interface loses when it goes down.
      if (const auto link = read_link(message); link && link->index == index_) {
        is_interface_due_ = true;
        if (link->is_up != interface_.is_up || link->is_running != interface_.is_running) table_.on_routes_change();
      }
      return;
    default:
      return;
  }
}

void Neighbours::refresh_interface() {
  Interface now;
  const int error = read_interface(requests_, Request::link(index_), &now);
  is_interface_due_ = error != 0 && error != ENODEV;
  if (is_interface_due_) return;
  if (error == ENODEV) now.name = interface_.name;
  if (now == interface_) return;
  is_interface_changed_ = true;
  if (error == 0) table_.set_own_mac(now.mac);
  table_.on_routes_change();
  interface_ = std::move(now);
}

void Neighbours::ask(uint64_t now_ns) {
  table_.for_each_action(
      kRequestsMax, now_ns, [&](const Table::Action& action) { ask_for_route(action, now_ns); },
      [&](const Table::Action& action) { ask_for_neighbour(action, now_ns); });
}

void Neighbours::ask_for_route(const Table::Action& action, uint64_t now_ns) {
  std::optional<RouteMessage> route;
  const int error = requests_.ask(Request::route(index_, action.ip, source_),
                                  [&](const nlmsghdr& message) { route = read_route(message); });
  if (route) return table_.on_route(action.destination, *route, now_ns);
  table_.on_no_route(action.destination, reason_of(error), now_ns);
}

void Neighbours::ask_for_neighbour(const Table::Action& action, uint64_t now_ns) {
  std::optional<NeighbourMessage> entry;
  const int error = requests_.ask(Request::neighbour(index_, action.ip),
                                  [&](const nlmsghdr& message) { entry = read_neighbour(message); });
  const bool has_entry = error == 0 && entry;
  const auto destination = table_.on_neighbour(action.hop, has_entry ? &*entry : nullptr, now_ns);
  if (destination && !solicit(*destination)) table_.on_postponed(action.hop);
}

/// Returns false if there is no memory for the datagram now.
bool Neighbours::solicit(base::SocketAddress destination) {
  const base::Descriptor& socket = solicitors_[destination.family() == AF_INET6 ? 1 : 0];
  destination.set_port(kDiscardPort);
  if (destination.is_link_local()) destination.set_scope(index_);
  const ssize_t sent = sendto(socket.get(), nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL, destination.sockaddr_data(),
                              destination.sockaddr_bytes());
  return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM);
}

}  // namespace tern::neighbours
