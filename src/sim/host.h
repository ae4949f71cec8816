// The state of a simulated host (sim::Host).
// Sim layer. All hosts run in one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <tern/duration.h>

#include "sim/environment.h"
#include "sim/loop.h"
#include "sim/network/event_target.h"
#include "sim/slices.h"
#include "transport/sim/sim_nic.h"

namespace tern::sim {

class HostCore {
 public:
  HostCore(Network& network, EventTargets& targets, uint32_t index, uint64_t seed)
      // Hosts' clocks begin at different times, far from 0, so that a comparison of two hosts' clocks fails in tests.
      : nic(network, targets, index, 1'000'000'000'000 + seed % 1'000'000'000'000), environment(*this), random(seed) {}

  Picoseconds now() const { return nic.network.events().now(); }
  /// Returns a time, not before `at`, before which no endpoint and no worker of the host runs. The caller must call it
  /// again at that time, because a pause may end early, and another one may have begun.
  [[gnu::always_inline]] Picoseconds awake_at(Picoseconds at) {
    if (at >= paused_until && slices.is_always()) [[likely]]
      return std::max(at, now());
    return are_slices_of_management ? unpaused_at(at) : awake_at(at, slices);
  }
  /// As awake_at(), for the management thread of the host.
  Picoseconds management_awake_at(Picoseconds at) { return awake_at(at, slices); }

  // Each turn of an endpoint reads these fields, so they are together.
  transport::SimNic nic;
  Picoseconds paused_until = 0;
  Slices slices;
  bool are_slices_of_management = false;  ///< the slices hold for the management thread only

  HostEnvironment environment;
  std::mt19937_64 random;
  uint32_t callbacks = 0;  ///< running callbacks of the program outside of its endpoints' loops
  std::function<Duration()> worker_time;
  std::vector<std::unique_ptr<Loop>> loops;
  std::vector<ManagementChannel*> channels;  ///< those that are open
  std::shared_ptr<void> program;
  bool is_up = false;

 private:
  static constexpr Picoseconds kPauseCheck = 1'000'000 * kPicosecondsPerNs;

  Picoseconds unpaused_at(Picoseconds at) const {
    if (at >= paused_until) return at;
    return std::max(at, std::min(paused_until, now() + kPauseCheck));
  }
  Picoseconds awake_at(Picoseconds at, Slices& its_slices) const {
    at = unpaused_at(at);
    if (at > now()) return at;
    return std::max(at, std::min(its_slices.awake_at(now()), now() + kPauseCheck));
  }
};

}  // namespace tern::sim
