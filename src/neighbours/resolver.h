// How an endpoint that makes its own frames learns the MAC addresses of IP destinations: from the kernel (Neighbours)
// or by itself (OwnNeighbours). Neighbours layer; one thread owns a resolver, and no call waits.
#pragma once

#include <cstdint>
#include <span>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"
#include "neighbours/interface.h"
#include "neighbours/table.h"

namespace tern::neighbours {

/// The MAC addresses by which one interface reaches destinations. For control events only: calls are virtual.
///
/// Routes, neighbours and the interface may change. A known destination keeps its MAC address until no other was found
/// for about three seconds. A failed one is looked up again when a route changes, and its neighbour is asked for every
/// few seconds.
class Resolver {
 public:
  virtual ~Resolver() = default;

  /// Begins a look-up of the destination's MAC address, or shares one; the port does not matter. What is known already
  /// is known when the call returns, unless many look-ups are waiting. Each find() needs one release() of the same id.
  /// `now_ns` is of any monotonic clock, the same for all calls. kNoMemory.
  virtual Result<Id> find(const base::SocketAddress& destination, uint64_t now_ns) = 0;
  virtual void release(Id id) = 0;

  virtual State state(Id id) const = 0;
  /// Only when kKnown. A destination that is an address of this interface has the interface's own. Valid until the next
  /// call of find(), release() or update().
  virtual const frames::MacAddress& mac(Id id) const = 0;
  /// Only when kFailed: which destination, why, and what to do. Makes a text; for control events.
  virtual Status failure(Id id) const = 0;

  struct Changes {
    std::span<const Id> ids;    ///< whose state or MAC address has changed; valid until the next call
    bool is_interface = false;  ///< interface() or own_failure() has changed
  };
  /// Reads what was reported, asks again where time is up, and says what has changed since the last call. Work is
  /// bounded: the next call goes on with what is left over, and next_update_ns() is 0 until then.
  virtual Changes update(uint64_t now_ns) = 0;
  /// Readable when something was reported, so that update() has work. Constant.
  virtual int descriptor() const = 0;
  /// When update() has work even if the descriptor is not readable; 0: now; UINT64_MAX: never.
  virtual uint64_t next_update_ns() const = 0;

  /// As of the last update(). `index` is 0 once the interface is gone.
  virtual const Interface& interface() const = 0;
  /// As of the last update(). Not ok: no packet may leave from the own address from now on, because the interface or
  /// the address is gone, or because another host has the address; the text says which.
  virtual Status own_failure() const = 0;
};

}  // namespace tern::neighbours
