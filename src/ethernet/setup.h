// The choices of an endpoint over raw Ethernet when it is made: its address, its VLAN, its UDP port, the size of its
// datagrams. Ethernet layer; any thread, no state. All refusals name the option that would help.
#pragma once

#include <cstdint>
#include <string_view>

#include <tern/status.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "ethernet/names.h"
#include "neighbours/interface.h"

namespace tern::ethernet {

/// Reads Options::bind: "HOST" or "HOST:PORT" with a numeric address; empty: 0.0.0.0:0. kMisuse: the text has another
/// form, or the address is a group address or link-local.
Result<base::SocketAddress> parse_bind(const Names& names, std::string_view text);

/// Finds the network interface of this index, which belongs to `device`. kUnavailable: the calling thread's network
/// namespace has no such interface. kNoMemory.
Result<neighbours::Interface> find_interface(const Names& names, std::string_view device, uint32_t index);
/// Finds the VLAN device `vlan` over an interface. kUnavailable: there is no such device.
Result<neighbours::Interface> find_vlan(const Names& names, const neighbours::Interface& below, uint16_t vlan);
/// kUnavailable: the interface, or the link of `device`, is down.
Status check_is_up(const Names& names, std::string_view device, const neighbours::Interface& interface, bool has_link);

struct OwnAddress {
  base::SocketAddress address;  ///< with the port of `bind`
  bool is_wished = false;       ///< the address is that of `bind`, or the listen host
};
/// Chooses the address of an endpoint at this interface: that of `bind`. If `bind` is a wildcard, it is the listen host
/// (a numeric address, or empty) if the interface has that address; otherwise it is the interface's first global
/// address. kUnavailable: the interface has no such address.
Result<OwnAddress> choose_address(const Names& names, std::string_view device, const neighbours::Interface& interface,
                                  const base::SocketAddress& bind, std::string_view listen_host);

/// Returns a UDP socket that holds the port of `own` at the kernel. Therefore no other program can take the port, and
/// the kernel does not answer datagrams to the port by ICMP. If the port is 0, the kernel chooses one, and `own` gets
/// it. kUnavailable: the port is taken, the address is not of this machine, or there are no descriptors.
Result<base::Descriptor> bind_port(const Names& names, base::SocketAddress* own);
/// Like bind_port(), but the socket receives nothing.
Result<base::Descriptor> reserve_port(const Names& names, base::SocketAddress* own);

/// Limits of Options::datagram_bytes.
struct DatagramLimits {
  uint32_t min;
  uint32_t max;
};
/// Chooses the longest UDP payload of an endpoint's datagrams: `wished` (Options::datagram_bytes), or if that is 0, as
/// many bytes as the MTU and `limits.max` allow. kUnavailable: the datagrams do not fit the MTU of `interface`, or the
/// MTU is too small.
Result<uint32_t> choose_datagram_bytes(const Names& names, std::string_view interface, uint32_t mtu_bytes,
                                       sa_family_t family, uint32_t wished, const DatagramLimits& limits);

}  // namespace tern::ethernet
