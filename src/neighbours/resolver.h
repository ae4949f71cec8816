// A resolver finds the MAC addresses of IP destinations for an endpoint that makes its own frames: from the
// kernel (Neighbours) or by itself (OwnNeighbours). Neighbours layer; one thread owns a resolver, and no call waits.
#pragma once

#include <cstdint>
#include <span>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"
#include "neighbours/interface.h"
#include "neighbours/table.h"

namespace tern::neighbours {

/// The MAC addresses with which one interface reaches destinations. For control events only, because calls are virtual.
///
/// Routes, neighbours and the interface may change. A known destination keeps its MAC address until the resolver has
/// found no other one for about three seconds. The resolver looks a failed destination up again when a route changes,
/// and asks for its neighbour every few seconds.
class Resolver {
 public:
  virtual ~Resolver() = default;

  /// Begins a look-up of the destination's MAC address, or shares one; the port does not matter. If the kernel or the
  /// host knows the address already, it is known when the call returns, unless many look-ups are waiting. Each find()
  /// needs one release() of the same id. `now_ns` is of any monotonic clock, which must be the same for all calls.
  /// kNoMemory.
  virtual Result<Id> find(const base::SocketAddress& destination, uint64_t now_ns) = 0;
  virtual void release(Id id) = 0;

  virtual State state(Id id) const = 0;
  /// Must be called only when kKnown. A destination that is an address of this interface has the interface's own MAC
  /// address. Valid until the next call of find(), release() or update().
  virtual const frames::MacAddress& mac(Id id) const = 0;
  /// Must be called only when kFailed. Says which destination failed, why, and what to do. Makes a text; for control
  /// events.
  virtual Status failure(Id id) const = 0;

  struct Changes {
    std::span<const Id> ids;    ///< destinations whose state or MAC address has changed; valid until the next call
    bool is_interface = false;  ///< interface() or own_failure() has changed
  };
  /// Reads the reports, repeats requests that are due, and returns the changes since the last call. The work is
  /// bounded: the next call continues with the rest, and next_update_ns() is 0 until then.
  virtual Changes update(uint64_t now_ns) = 0;
  /// Readable when a report has arrived, so that update() has work. Constant.
  virtual int descriptor() const = 0;
  /// The time at which update() has work even if the descriptor is not readable; 0: now; UINT64_MAX: never.
  virtual uint64_t next_update_ns() const = 0;

  /// The interface as of the last update(). `index` is 0 once the interface is gone.
  virtual const Interface& interface() const = 0;
  /// The failure as of the last update(). Not ok: from now on no packet may leave from the endpoint's own address,
  /// because the interface or the address is gone, or because another host has the address; the text says which. An
  /// address that the kernel's interface has lost is gone after about three seconds.
  virtual Status own_failure() const = 0;
};

}  // namespace tern::neighbours
