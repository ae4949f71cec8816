#include "neighbours/interface.h"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/status_text.h"
#include "base/try.h"
#include "neighbours/messages.h"
#include "neighbours/netlink.h"

namespace tern::neighbours {

namespace {

constexpr int kAttempts = 10;  ///< at reading a list that changes meanwhile

bool has(const std::vector<base::SocketAddress>& list, const base::SocketAddress& address) {
  return std::ranges::any_of(list, [&](const auto& own) { return std::ranges::equal(own.ip(), address.ip()); });
}

/// Calls `on_address(const AddressMessage&)` for each address of the namespace, and `restart()` before each attempt.
template <class R, class F>
int ask_for_addresses(Netlink& netlink, R&& restart, F&& on_address) {
  int error = EINTR;
  for (int i = 0; i < kAttempts && error == EINTR; i++) {
    restart();
    error = netlink.ask(Request::addresses(), [&](const nlmsghdr& message) {
      if (const auto address = read_address(message)) on_address(*address);
    });
  }
  return error;
}

int ask_for_interface(Netlink& netlink, const Request& request, Interface* interface) {
  std::optional<Interface> found;
  const int error = netlink.ask(request, [&](const nlmsghdr& message) { found = read_link(message); });
  if (error != 0) return error;
  if (!found) return EPROTO;
  std::vector<base::SocketAddress> global;
  std::vector<base::SocketAddress> passing;
  std::vector<base::SocketAddress> link_local;
  std::vector<base::SocketAddress> tentative;
  const auto restart = [&] {
    for (auto* list : {&global, &passing, &link_local, &tentative}) list->clear();
  };
  const int address_error = ask_for_addresses(netlink, restart, [&](AddressMessage address) {
    if (address.interface != found->index) return;
    if (address.ip.is_link_local()) address.ip.set_scope(found->index);
    if (address.is_tentative) tentative.push_back(address.ip);
    if (!address.is_usable) return;
    (address.is_link_local ? link_local : address.is_passing ? passing : global).push_back(address.ip);
  });
  if (address_error != 0) return address_error;
  global.insert(global.end(), passing.begin(), passing.end());
  global.insert(global.end(), link_local.begin(), link_local.end());
  found->addresses = std::move(global);
  found->tentative = std::move(tentative);
  *interface = std::move(*found);
  return 0;
}

Status refuse(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return base::status_of(Code::kUnavailable, otherwise, parts);
}

Status no_answer(int error) {
  if (error == ENOMEM || error == ENOBUFS) return {Code::kNoMemory, "no memory for a list of network interfaces"};
  return refuse("the kernel does not list its network interfaces",
                {"the kernel does not list its network interfaces (", std::strerror(error),
                 "): netlink sockets may be forbidden here, as by a container's seccomp profile"});
}

/// `missing()` returns the status for an interface that does not exist.
template <class F>
Result<Interface> read(const Request& request, F&& missing) {
  Netlink netlink;
  Interface interface;
  int error = netlink.open();
  if (error == 0) error = read_interface(netlink, request, &interface);
  if (error == ENODEV) return missing();
  if (error != 0) return no_answer(error);
  return interface;
}

}  // namespace

std::string Interface::present_name() const {
  char present[IF_NAMESIZE];
  return if_indextoname(index, present) != nullptr ? present : name;
}

bool Interface::has_address(const base::SocketAddress& address) const { return has(addresses, address); }

bool Interface::is_tentative(const base::SocketAddress& address) const { return has(tentative, address); }

int read_interface(Netlink& netlink, const Request& request, Interface* interface) {
  int error = ENOMEM;
  if (!base::try_grow([&] { error = ask_for_interface(netlink, request, interface); })) return ENOMEM;
  return error;
}

Result<Interface> interface_by_name(std::string_view name) {
  const auto missing = [&] {
    return refuse("there is no such network interface",
                  {"there is no network interface ", name, ": ip link lists those of this machine"});
  };
  if (name.empty() || name.size() >= IFNAMSIZ) return missing();
  return read(Request::link(name), missing);
}

Result<Interface> interface_by_index(uint32_t index) {
  const auto missing = [&] {
    return refuse(
        "there is no network interface with this index",
        {"there is no network interface with index ", std::to_string(index), ": ip link lists those of this machine"});
  };
  if (index == 0 || index > INT32_MAX) return missing();
  return read(Request::link(index), missing);
}

Result<Interface> interface_by_address(const base::SocketAddress& address) {
  const auto missing = [&] {
    return refuse("no network interface has this address", {"no network interface has the address ", address.ip_text(),
                                                            ": ip address lists those of this machine"});
  };
  Netlink netlink;
  uint32_t index = 0;
  int error = netlink.open();
  if (error == 0) {
    error = ask_for_addresses(
        netlink, [&] { index = 0; },
        [&](const AddressMessage& own) {
          const bool is_in_scope = address.scope() == 0 || address.scope() == own.interface;
          if (index == 0 && own.is_usable && is_in_scope && std::ranges::equal(own.ip.ip(), address.ip()))
            index = own.interface;
        });
  }
  if (error != 0) return no_answer(error);
  if (index == 0) return missing();
  return read(Request::link(index), missing);
}

}  // namespace tern::neighbours
