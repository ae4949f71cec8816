// The kernel as the host of an interface. A driver may take the interface's ARP and neighbour discovery frames away
// from the kernel. Neighbours layer; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "base/thread_safety.h"
#include "frames/mac_address.h"
#include "frames/neighbour_frame.h"
#include "neighbours/budget.h"
#include "neighbours/host.h"
#include "neighbours/interface.h"
#include "neighbours/netlink.h"

namespace tern::neighbours {

/// Answers solicitations of the interface's addresses. Writes the addresses that neighbours announce into the kernel's
/// table of neighbours, if the kernel asks for the neighbour or knows another MAC address. Makes no entry, so that
/// strangers cannot fill the table. Writing needs the capability CAP_NET_ADMIN; without it nothing is written. If the
/// kernel has seen the frames as well, neither the answers nor the writes change anything.
class KernelHost : public Host {
 public:
  static constexpr uint32_t kAnswersPerSecondMax = 10'000;  ///< to other hosts
  static constexpr uint32_t kWritesPerSecondMax = 1'000;    ///< look-ups of entries, about 5 us each
  static constexpr uint32_t kNewsPerSecondMax = 100;        ///< look-ups for unsolicited announcements
  /// The time between two looks at the interface's addresses.
  static constexpr uint64_t kLookNs = 100'000'000;

  /// In the calling thread's network namespace. `interface_index`: the interface that has the addresses. For a VLAN
  /// device, `vlan` is its VLAN: the tag of the frames that the host sends and takes (0: no tag). kUnavailable: there
  /// is no such interface, or the kernel refuses a netlink socket; the text says which. kNoMemory.
  static Result<std::unique_ptr<KernelHost>> create(uint32_t interface_index, uint16_t vlan, Send send);

  Result<std::unique_ptr<Resolver>> resolver(const base::SocketAddress& source) override;
  bool wants(std::span<const std::byte> frame) const override;
  void on_frame(std::span<const std::byte> frame, uint64_t now_ns) override;
  void tick(uint64_t now_ns) override;
  uint64_t next_tick_ns() const override;
  /// Does nothing, because the kernel sees the link by itself.
  void on_link(bool, uint64_t) override {}
  /// Empty, because the kernel has joined the groups.
  std::vector<frames::MacAddress> groups() const override { return {}; }

 private:
  using Frame = frames::NeighbourFrame;

  KernelHost(Interface interface, uint16_t vlan, Send send);

  Status open();
  std::optional<Frame> handle(const Frame& frame, uint64_t now_ns) REQUIRES(mutex_);
  void teach(const Frame& frame, uint64_t now_ns) REQUIRES(mutex_);

  const uint32_t index_;
  const uint16_t vlan_;
  const Send send_;
  mutable base::Mutex mutex_;
  Interface interface_ GUARDED_BY(mutex_);
  Netlink events_ GUARDED_BY(mutex_);
  Netlink requests_ GUARDED_BY(mutex_);
  Budget answers_ GUARDED_BY(mutex_){kAnswersPerSecondMax};
  Budget writes_ GUARDED_BY(mutex_){kWritesPerSecondMax};
  Budget news_ GUARDED_BY(mutex_){kNewsPerSecondMax};
  bool may_write_ GUARDED_BY(mutex_) = true;
  bool is_interface_due_ GUARDED_BY(mutex_) = true;  ///< the interface may have changed before events_ was open
  uint64_t next_look_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace tern::neighbours
