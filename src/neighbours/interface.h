// The properties of a network interface, read from the kernel by netlink. Neighbours layer; used when endpoints are
// made, in any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"

namespace tern::neighbours {

class Netlink;
class Request;

/// The state of an interface that the kernel reported at one time.
struct Interface {
  uint32_t index = 0;  ///< from 1
  std::string name;
  frames::MacAddress mac;    ///< 00:00:00:00:00:00: the interface has no address of six bytes
  uint32_t mtu_bytes = 0;    ///< of IP packets
  uint32_t send_queues = 0;  ///< those that the driver has made, of which it may use fewer
  bool is_up = false;        ///< an administrator has switched it on
  bool is_running = false;   ///< the interface is up, and its link is ready
  bool is_loopback = false;
  uint16_t vlan = 0;    ///< VLAN id, 1 to 4094, of a VLAN device; else 0
  uint32_t parent = 0;  ///< index of the interface below a VLAN device; 0: none, or in another network namespace
  /// The addresses have port 0. Global addresses come before link-local ones, which have the interface as their scope.
  /// Of the global ones, those that the kernel will remove come last: temporary and deprecated IPv6 addresses.
  /// IPv6 addresses that the kernel has not yet found to be unique are left out.
  std::vector<base::SocketAddress> addresses;
  /// IPv6 addresses that the kernel is still testing for uniqueness, as it does again after the interface was down.
  std::vector<base::SocketAddress> tentative;

  /// The name that the interface has now in the calling thread's network namespace; `name` if it is gone.
  std::string present_name() const;
  /// These calls do not compare port and scope.
  bool has_address(const base::SocketAddress& address) const;
  bool is_tentative(const base::SocketAddress& address) const;
  friend bool operator==(const Interface&, const Interface&) = default;
};

/// Reads an interface of the calling thread's network namespace. kUnavailable: there is no such interface, or the
/// kernel does not answer; the text says which, and what to do. kNoMemory. These calls read a list of all addresses of
/// the namespace.
Result<Interface> interface_by_name(std::string_view name);
Result<Interface> interface_by_index(uint32_t index);
/// Reads the interface that has `address`. If the address has a scope, it must be the interface. Its port does not
/// matter.
Result<Interface> interface_by_address(const base::SocketAddress& address);

/// Reads the interface of a Request::link(). Returns 0 or an error number; ENODEV: there is no such interface.
int read_interface(Netlink& netlink, const Request& request, Interface* interface);

}  // namespace tern::neighbours
