// The host of an interface whose frames the library sees before the kernel does. It answers neighbours that ask for the
// interface's addresses, and takes their answers. Neighbours layer; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"
#include "neighbours/resolver.h"

namespace tern::neighbours {

/// A port has one per process: KernelHost if the kernel has the interface's addresses, OwnHost if the process has an
/// address that the kernel does not know. It processes ARP (RFC 826) and neighbour discovery (RFC 4861). Any thread may
/// call all functions, because there is a mutex inside. No function is for the data path. `now_ns` is of one monotonic
/// clock.
class Host {
 public:
  /// Sends one frame of at most kFrameBytesMax bytes, without padding and without a checksum at its end, or loses it.
  /// It is called in each thread that calls a function of the host or of one of its resolvers, with no lock of the host
  /// held. It must not call the host.
  using Send = std::function<void(std::span<const std::byte> frame)>;
  static constexpr size_t kFrameBytesMax = 94;  ///< a group's report with a tag

  virtual ~Host() = default;

  /// Makes a resolver, with which endpoints of this port find MAC addresses. `source`: see Neighbours::create(). The
  /// host must outlive the resolver. kUnavailable, kNoMemory.
  virtual Result<std::unique_ptr<Resolver>> resolver(const base::SocketAddress& source) = 0;

  /// Returns whether on_frame() may need the frame: it is ARP, a neighbour solicitation or advertisement, or a query
  /// about groups, of this VLAN. Reads the types only. The frame may be of any length.
  virtual bool wants(std::span<const std::byte> frame) const = 0;
  /// Processes a received frame. Its bytes may be anything, and stay the caller's. Work, answers and memory are
  /// bounded, whatever frames arrive.
  virtual void on_frame(std::span<const std::byte> frame, uint64_t now_ns) = 0;
  /// Does the work that is due.
  virtual void tick(uint64_t now_ns) = 0;
  /// The time at which tick() has work; 0: now; UINT64_MAX: never, until another call.
  virtual uint64_t next_tick_ns() const = 0;
  /// The link has come up or gone down. The first call has the link's state at the start. An own host probes when the
  /// link comes up.
  virtual void on_link(bool is_up, uint64_t now_ns) = 0;

  /// The Ethernet groups that the device must receive besides its own address and broadcast. Constant.
  virtual std::vector<frames::MacAddress> groups() const = 0;
};

}  // namespace tern::neighbours
