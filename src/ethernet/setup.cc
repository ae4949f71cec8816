#include "ethernet/setup.h"

#include <linux/filter.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>

#include "frames/layout.h"

namespace tern::ethernet {

namespace {

using base::SocketAddress;
using neighbours::Interface;

struct IndexesDestroyer {
  void operator()(struct if_nameindex* list) const { if_freenameindex(list); }
};

Status refuse(const Names& names, const char* otherwise, std::initializer_list<std::string_view> parts) {
  return status_of(names, Code::kUnavailable, otherwise, parts);
}

Status bad_bind(const Names& names) {
  return status_of(names, Code::kMisuse, "the option bind is not HOST or HOST:PORT with a numeric address",
                   {names.type,
                    "::Options::bind is not HOST or HOST:PORT with a numeric address: write 10.0.0.1, 10.0.0.1:4000, "
                    "[2001:db8::1] or [2001:db8::1]:4000, or leave it empty"});
}

Status no_descriptors(const Names& names) {
  return refuse(names, "no file descriptors are left", {"no file descriptors are left: raise the limit (ulimit -n)"});
}

Result<base::Descriptor> open_port(const Names& names, SocketAddress* own, bool receives) {
  base::Descriptor descriptor(socket(own->family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!descriptor) return no_descriptors(names);
  if (!receives) {
    sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog program{1, &nothing};
    (void)setsockopt(descriptor.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  }
  if (bind(descriptor.get(), own->sockaddr_data(), own->sockaddr_bytes()) != 0) {
    const std::string text = own->to_text();
    if (errno == EADDRINUSE) {
      return refuse(names, "the UDP port is taken",
                    {"the UDP port of ", text, " is taken by another endpoint or program: choose another one in ",
                     names.type, "::Options::bind, or none"});
    }
    return refuse(names, "the kernel refused the UDP port",
                  {"the kernel refused the UDP port of ", text, " (", std::strerror(errno), "): choose another one in ",
                   names.type, "::Options::bind"});
  }
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return no_descriptors(names);
  own->set_port(SocketAddress::from_sockaddr(storage).port());
  return descriptor;
}

}  // namespace

Result<SocketAddress> parse_bind(const Names& names, std::string_view text) {
  if (text.empty()) return SocketAddress();
  const auto parts = base::split_host_and_port(text);
  if (!parts) return bad_bind(names);
  auto address = SocketAddress::parse_ip(parts->host);
  const auto port = parts->port.empty() ? uint16_t{0} : base::parse_u16(parts->port);
  if (!address || !port || address->is_group()) return bad_bind(names);
  if (address->is_link_local()) {
    return status_of(
        names, Code::kMisuse, "the option bind is a link-local address",
        {names.type,
         "::Options::bind is a link-local address, which peers cannot tell from their own: choose a global one"});
  }
  address->set_port(*port);
  return *address;
}

Result<Interface> find_interface(const Names& names, std::string_view device, uint32_t index) {
  auto interface = neighbours::interface_by_index(index);
  if (interface.ok() || interface.status().code() == Code::kNoMemory) return interface;
  return refuse(
      names, "the device has no network interface here",
      {device, " has no network interface here: it may be in another network namespace (see devlink and ip link)"});
}

Result<Interface> find_vlan(const Names& names, const Interface& below, uint16_t vlan) {
  const std::unique_ptr<struct if_nameindex, IndexesDestroyer> all(if_nameindex());
  for (const struct if_nameindex* one = all.get(); one != nullptr && one->if_index != 0; ++one) {
    auto interface = neighbours::interface_by_index(one->if_index);
    if (interface.ok() && interface->parent == below.index && interface->vlan == vlan) return interface;
  }
  const std::string id = std::to_string(vlan);
  return refuse(names, "the network interface has no such VLAN",
                {"the network interface ", below.name, " has no VLAN ", id, ": make it (ip link add link ", below.name,
                 " name ", below.name, ".", id, " type vlan id ", id, ") and give it an address"});
}

Status check_is_up(const Names& names, std::string_view device, const Interface& interface, bool has_link) {
  if (has_link && interface.is_up && interface.is_running) return {};
  return refuse(names, "the network interface is down",
                {"the network interface ", interface.name, " of ", device, " is down: ip link set ", interface.name,
                 " up, and check the cable"});
}

Result<OwnAddress> choose_address(const Names& names, std::string_view device, const Interface& interface,
                                  const SocketAddress& bind, std::string_view listen_host) {
  if (!bind.is_wildcard()) {
    if (interface.has_address(bind)) return OwnAddress{bind, true};
    return refuse(names, "the network interface does not have the address of the option bind",
                  {"the network interface ", interface.name, " of ", device, " does not have the address ",
                   bind.ip_text(), " of ", names.type, "::Options::bind: choose one that `ip addr show dev ",
                   interface.name, "` lists, or leave it empty"});
  }
  const auto with_port = [&](SocketAddress address) {
    address.set_port(bind.port());
    return address;
  };
  const auto listen = SocketAddress::parse_ip(listen_host);
  if (listen && !listen->is_wildcard() && !listen->is_link_local() && interface.has_address(*listen)) {
    return OwnAddress{with_port(*listen), true};
  }
  for (const SocketAddress& address : interface.addresses) {
    if (!address.is_link_local()) return OwnAddress{with_port(address), false};
  }
  return refuse(names, "the network interface has no address",
                {"the network interface ", interface.name, " of ", device,
                 " has no global address: ip addr add ... dev ", interface.name});
}

Result<base::Descriptor> bind_port(const Names& names, SocketAddress* own) { return open_port(names, own, true); }
Result<base::Descriptor> reserve_port(const Names& names, SocketAddress* own) { return open_port(names, own, false); }

Result<uint32_t> choose_datagram_bytes(const Names& names, std::string_view interface, uint32_t mtu_bytes,
                                       sa_family_t family, uint32_t wished, const DatagramLimits& limits) {
  const auto headers = static_cast<uint32_t>(frames::ip_header_bytes(family) + frames::kUdpBytes);
  const uint32_t most = mtu_bytes > headers ? mtu_bytes - headers : 0;
  const uint32_t chosen = wished == 0 ? std::min(most, limits.max) : wished;
  if (chosen >= limits.min && chosen <= most) return chosen;
  return refuse(names, "the network interface's MTU does not allow datagrams of this size",
                {"datagrams of ", std::to_string(chosen), " bytes do not fit ", interface, ", whose MTU is ",
                 std::to_string(mtu_bytes), ": it takes ", std::to_string(limits.min), " to ", std::to_string(most),
                 "; change ", names.type, "::Options::datagram_bytes or the MTU"});
}

}  // namespace tern::ethernet
