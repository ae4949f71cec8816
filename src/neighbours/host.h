// The host of an interface whose frames the library sees before the kernel does: it answers neighbours that ask for the
// interface's addresses, and hears their answers. Neighbours layer; any thread.
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

/// One for each port and process: KernelHost where the kernel has the interface's addresses, OwnHost where the process
/// has one that the kernel does not know. It takes ARP (RFC 826) and neighbour discovery (RFC 4861). All functions may
/// be called by any thread, a mutex inside; none is for the way of data. `now_ns` is of one monotonic clock.
class Host {
 public:
  /// Sends one frame of at most kFrameBytesMax bytes, without padding and without checksum at its end, or loses it.
  /// Called in each thread that calls a function of the host or of one of its resolvers, with no lock of the host held.
  /// Must not call the host.
  using Send = std::function<void(std::span<const std::byte> frame)>;
  static constexpr size_t kFrameBytesMax = 94;  ///< a tagged report of a group

  virtual ~Host() = default;

  /// How endpoints of this port find MAC addresses. `source`: as Neighbours::create() takes it. The host must outlive
  /// the resolver. kUnavailable, kNoMemory.
  virtual Result<std::unique_ptr<Resolver>> resolver(const base::SocketAddress& source) = 0;

  /// The frame is ARP, a neighbour solicitation or advertisement, or a question about groups, of this VLAN, so that
  /// on_frame() may need it. Reads the types only. The frame may be of any length.
  virtual bool wants(std::span<const std::byte> frame) const = 0;
  /// A received frame, of any bytes, which stay the caller's. Work, answers and memory are bounded whatever comes.
  virtual void on_frame(std::span<const std::byte> frame, uint64_t now_ns) = 0;
  /// Does what is due.
  virtual void tick(uint64_t now_ns) = 0;
  /// When tick() has work; 0: now; UINT64_MAX: never, until another call.
  virtual uint64_t next_tick_ns() const = 0;
  /// The link has come up or gone down, or is found to be so at the start. One that comes up makes an own host probe.
  virtual void on_link(bool is_up, uint64_t now_ns) = 0;

  /// The Ethernet groups that the device has to receive besides its own address and broadcast. Constant.
  virtual std::vector<frames::MacAddress> groups() const = 0;
};

}  // namespace tern::neighbours
