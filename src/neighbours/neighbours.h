// The way by which an endpoint that bypasses the kernel reaches IP addresses: the kernel's routes and neighbours, read
// and kept current by netlink. Neighbours layer; one thread, and no call waits.
#pragma once

#include <cstdint>
#include <memory>

#include <tern/status.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "frames/mac_address.h"
#include "neighbours/interface.h"
#include "neighbours/netlink.h"
#include "neighbours/resolver.h"
#include "neighbours/table.h"

namespace tern::neighbours {

/// The kernel's tables decide. The kernel's route to a destination names the next hop, and its neighbour entry has the
/// next hop's MAC address. If the kernel does not know a neighbour, this class sends an empty datagram to the discard
/// port (RFC 863) of the destination, so that the kernel asks for the neighbour. This needs no privilege.
class Neighbours : public Resolver {
 public:
  /// In the calling thread's network namespace. `source`, unless it is a wildcard, is the interface's address from
  /// which packets leave, because routing rules may depend on it. kUnavailable: there is no such interface, it has no
  /// Ethernet address or does not have `source`, or the kernel gives no socket or is older than Linux 5.0; the text
  /// says which. kNoMemory.
  static Result<std::unique_ptr<Neighbours>> create(uint32_t interface_index, const base::SocketAddress& source = {});

  Result<Id> find(const base::SocketAddress& destination, uint64_t now_ns) override;
  void release(Id id) override { table_.release(id); }
  State state(Id id) const override { return table_.state(id); }
  const frames::MacAddress& mac(Id id) const override { return table_.mac(id); }
  Status failure(Id id) const override;
  Changes update(uint64_t now_ns) override;
  int descriptor() const override { return events_.descriptor(); }
  uint64_t next_update_ns() const override;
  const Interface& interface() const override { return interface_; }
  Status own_failure() const override;

 private:
  Neighbours(Interface interface, const base::SocketAddress& source, uint64_t salt);

  Status open();
  void read_events();
  void on_event(const nlmsghdr& message);
  void refresh_interface();
  bool has_lost_source() const;
  void watch_source(uint64_t now_ns);
  Status gone() const;
  Status lost_source() const;
  void ask(uint64_t now_ns);
  void ask_for_route(const Table::Action& action, uint64_t now_ns);
  void ask_for_neighbour(const Table::Action& action, uint64_t now_ns);
  bool solicit(base::SocketAddress destination);

  const uint32_t index_;
  const base::SocketAddress source_;
  Interface interface_;
  Table table_;
  Netlink events_;  ///< receives from the multicast groups
  Netlink requests_;
  base::Descriptor solicitors_[2];       ///< UDP sockets of IPv4 and IPv6 that send by the interface
  bool are_reports_lost_ = false;        ///< the lost reports are newer than those that are still to be read
  bool is_interface_due_ = false;        ///< interface_ must be read again
  bool is_interface_changed_ = false;    ///< the change is not yet reported
  uint64_t source_due_ns_ = UINT64_MAX;  ///< while source_ is away: the time at which it is gone; else never
  bool is_source_gone_ = false;
};

}  // namespace tern::neighbours
