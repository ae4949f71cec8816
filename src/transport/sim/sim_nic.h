// The part of a simulated host that its endpoints' transports use: its clock, its CPU costs, its place in the network.
// Transport layer. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/network/event_target.h"
#include "sim/network/network.h"

namespace tern::transport {

using sim::kPicosecondsPerNs;
using sim::Picoseconds;
using sim::SimPacket;

class SimImpl;

/// A host's clock, which may run faster or slower than virtual time. Hosts' clocks begin at different times, as those
/// of real machines do.
class SimClock {
 public:
  explicit SimClock(uint64_t begin_ns) : base_ns_(begin_ns) {}

  uint64_t ns(Picoseconds at) const {
    if (rate_ == kTrue) [[likely]]
      return base_ns_ + (at - base_) / kPicosecondsPerNs;
    return base_ns_ + static_cast<uint64_t>(static_cast<unsigned __int128>(at - base_) * rate_ / kUnit);
  }
  /// The first moment at which ns() is at least `ns`.
  Picoseconds when(uint64_t ns) const {
    if (ns <= base_ns_) return base_;
    if (rate_ == kTrue) [[likely]]
      return ns - base_ns_ > (UINT64_MAX - base_) / kPicosecondsPerNs ? UINT64_MAX
                                                                      : base_ + (ns - base_ns_) * kPicosecondsPerNs;
    const auto elapsed = (static_cast<unsigned __int128>(ns - base_ns_) * kUnit + rate_ - 1) / rate_;
    return elapsed > UINT64_MAX - base_ ? UINT64_MAX : base_ + static_cast<Picoseconds>(elapsed);
  }
  /// Returns false if the drift is `ppm` already. Otherwise results of when() are no longer valid.
  bool set_drift(Picoseconds now, int32_t ppm) {
    const auto rate = static_cast<uint64_t>(static_cast<int64_t>(kTrue) + ppm);
    if (rate == rate_) return false;
    base_ns_ = ns(now);
    base_ = now;
    rate_ = rate;
    return true;
  }

 private:
  static constexpr uint64_t kTrue = 1'000'000;
  static constexpr uint64_t kUnit = kTrue * kPicosecondsPerNs;
  Picoseconds base_ = 0;
  uint64_t base_ns_;
  uint64_t rate_ = kTrue;  ///< nanoseconds of this clock per kUnit picoseconds of virtual time
};

/// CPU time in picoseconds (sim::HostCost).
struct SimCost {
  Picoseconds iteration = 0;
  Picoseconds packet_received = 0;
  Picoseconds packet_sent = 0;
};

/// The part of a host below its endpoints. The driver owns it, and it outlives the endpoints.
class SimNic {
 public:
  SimNic(sim::Network& its_network, sim::EventTargets& its_targets, uint32_t index, uint64_t clock_begin_ns)
      : network(its_network), targets(its_targets), host(index), clock(clock_begin_ns) {}

  sim::Network& network;
  sim::EventTargets& targets;
  const uint32_t host;
  SimClock clock;
  SimCost cost;
  uint64_t slowness = kHealthy;  ///< factor of all CPU time, in units of 1/kHealthy
  SimImpl* running = nullptr;    ///< endpoint whose loop the driver runs now
  SimImpl* polling = nullptr;  ///< endpoint whose loop the program itself runs now; null while the loop lets time pass
  uint32_t own_loops = 0;      ///< loops that the program itself runs now, one within the other
  uint32_t users = 0;          ///< endpoints and management channels that refer to this object
  static constexpr uint64_t kHealthy = 1024;
  static constexpr Picoseconds kLongest = Picoseconds{1} << 62;

  /// `time` multiplied by the slowness, at most kLongest. A second on a host that is a million times slower is 12 days.
  Picoseconds slowed(Picoseconds time) const {
    const auto slow = static_cast<unsigned __int128>(time) * slowness / kHealthy;
    return slow < kLongest ? static_cast<Picoseconds>(slow) : kLongest;
  }
};

}  // namespace tern::transport
