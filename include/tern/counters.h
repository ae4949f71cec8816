// Counters: a structure for each part of the library, generated from one table (detail/counters.inc). docs/counters.md
// has the meaning of each counter and the remedy. Standard library only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tern {

namespace detail {
/// The number of reasons in the table for dropping a frame, and for dropping a datagram of management.
inline constexpr size_t kFrameDrops = 0
#define TERN_FRAME_DROP(reason, what) +1
#include <tern/detail/counters.inc>
    ;
inline constexpr size_t kManagementDrops = 0
#define TERN_MANAGEMENT_DROP(reason, what) +1
#include <tern/detail/counters.inc>
    ;
}  // namespace detail

/// The counters of a transport. The layers above count the packets that they drop.
struct TransportCounters {
#define TERN_TRANSPORT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  /// Received frames that were not datagrams for this endpoint, by reason. The first element is for "no reason", and is
  /// always 0. All are 0 without raw Ethernet. Where endpoints share a device, one of them counts the device's drops.
  std::array<uint64_t, detail::kFrameDrops + 1> dropped_frames{};
};

/// The counters of the fault layer (<tern/transport/faulty.h>): received packets by fault.
struct FaultCounters {
#define TERN_FAULT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// The counters of the congestion controllers of an endpoint's client sessions: their inputs.
struct ControllerCounters {
#define TERN_CONTROLLER_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// The counters of the management of a Nexus.
struct ManagementCounters {
#define TERN_MANAGEMENT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  /// Dropped datagrams, by reason. The first element is for "no reason", and is always 0.
  std::array<uint64_t, detail::kManagementDrops + 1> dropped{};
};

/// The counters of a simulated network since its beginning.
struct NetworkCounters {
#define TERN_NETWORK_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// The counters of an endpoint and of the parts that work for it: Endpoint::counters().
struct EndpointCounters {
#define TERN_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  TransportCounters transport;    ///< of its transport
  FaultCounters faults;           ///< of the fault layer above it; all 0 without one
  ControllerCounters controller;  ///< of its client sessions
  ManagementCounters management;  ///< of the Nexus, all its endpoints together
  NetworkCounters network;        ///< of the simulated network; all 0 in a real one
};

/// The number of counters that for_each_counter() visits.
inline constexpr size_t kCounters = sizeof(EndpointCounters) / sizeof(uint64_t) - 2;

/// Calls `visit(part, name, what, value)` for each counter, in the order of the table. The first three are C strings of
/// static storage duration: "endpoint", "transport", "faults", "controller", "management" or "network"; the counter's
/// name, such as "dropped_frames_other_mac"; and its meaning. `value` is a uint64_t.
template <class Visit>
void for_each_counter(const EndpointCounters& counters, Visit&& visit) {
#define TERN_COUNTER(name, what) visit("endpoint", #name, what, counters.name);
#include <tern/detail/counters.inc>
#define TERN_TRANSPORT_COUNTER(name, what) visit("transport", #name, what, counters.transport.name);
#include <tern/detail/counters.inc>
  size_t reason = 0;
#define TERN_FRAME_DROP(name, what) \
  visit("transport", "dropped_frames_" #name, what, counters.transport.dropped_frames[++reason]);
#include <tern/detail/counters.inc>
#define TERN_FAULT_COUNTER(name, what) visit("faults", #name, what, counters.faults.name);
#include <tern/detail/counters.inc>
#define TERN_CONTROLLER_COUNTER(name, what) visit("controller", #name, what, counters.controller.name);
#include <tern/detail/counters.inc>
#define TERN_MANAGEMENT_COUNTER(name, what) visit("management", #name, what, counters.management.name);
#include <tern/detail/counters.inc>
  reason = 0;
#define TERN_MANAGEMENT_DROP(name, what) \
  visit("management", "dropped_" #name, what, counters.management.dropped[++reason]);
#include <tern/detail/counters.inc>
#define TERN_NETWORK_COUNTER(name, what) visit("network", #name, what, counters.network.name);
#include <tern/detail/counters.inc>
}

}  // namespace tern
