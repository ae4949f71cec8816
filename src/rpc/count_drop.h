// Counts received packets without effect, by their reasons.
#pragma once

#include <tern/endpoint.h>

#include "session/drop.h"

namespace tern::rpc {

inline void count_drop(EndpointCounters& counters, session::Drop drop) {
  using session::Drop;
  if (drop == Drop::kMalformed) counters.dropped_malformed++;
  if (drop == Drop::kStale) counters.dropped_stale++;
  if (drop == Drop::kUnproven) counters.dropped_unproven++;
  if (drop == Drop::kLease) counters.dropped_lease++;
  if (drop == Drop::kNoMemory) counters.refused_no_memory++;
}

}  // namespace tern::rpc
