// What an endpoint over raw Ethernet settles when it is made: its address, its VLAN, its UDP port, the size of its
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
/// form, or the address is a group's or link-local.
Result<base::SocketAddress> parse_bind(const Names& names, std::string_view text);

/// The network interface of this index, which `device` has. kUnavailable: the calling thread's network namespace has no
/// such interface. kNoMemory.
Result<neighbours::Interface> find_interface(const Names& names, std::string_view device, uint32_t index);
/// The VLAN device `vlan` over an interface. kUnavailable: there is none.
Result<neighbours::Interface> find_vlan(const Names& names, const neighbours::Interface& below, uint16_t vlan);
/// kUnavailable: the interface, or the link of `device`, is down.
Status check_is_up(const Names& names, std::string_view device, const neighbours::Interface& interface, bool has_link);

struct OwnAddress {
  base::SocketAddress address;  ///< with the port of `bind`
  bool is_wished = false;       ///< it is that of `bind`, or the listen host
};
/// The address of an endpoint at this interface: that of `bind`; if `bind` is a wildcard, the listen host (a numeric
/// address, or empty) if the interface has it, else the first global one. kUnavailable: there is none.
Result<OwnAddress> choose_address(const Names& names, std::string_view device, const neighbours::Interface& interface,
                                  const base::SocketAddress& bind, std::string_view listen_host);

/// A UDP socket that has the port of `own` at the kernel, so that nobody else takes the port, and the kernel answers no
/// datagram that it gets by ICMP. With port 0 the kernel chooses one, and `own` gets it. kUnavailable: the port is
/// taken, the address is not of this machine, no descriptors.
Result<base::Descriptor> bind_port(const Names& names, base::SocketAddress* own);
/// The same, but the socket receives nothing.
Result<base::Descriptor> reserve_port(const Names& names, base::SocketAddress* own);

/// Limits of Options::datagram_bytes.
struct DatagramLimits {
  uint32_t min;
  uint32_t max;
};
/// The longest UDP payload of an endpoint's datagrams: `wished` (Options::datagram_bytes), or if that is 0, as many as
/// the MTU and `limits.max` allow. kUnavailable: they do not fit the MTU of `interface`, or the MTU is too small.
Result<uint32_t> choose_datagram_bytes(const Names& names, std::string_view interface, uint32_t mtu_bytes,
                                       sa_family_t family, uint32_t wished, const DatagramLimits& limits);

}  // namespace tern::ethernet
