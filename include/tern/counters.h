// Counters: a structure for each part of the library that counts, made of one table (detail/counters.inc).
// docs/counters.md says what each counter means and what to do about it. Standard library only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tern {

namespace detail {
/// How many reasons the table has for a frame to be dropped, and for a datagram of management.
inline constexpr size_t kFrameDrops = 0
#define TERN_FRAME_DROP(reason, what) +1
#include <tern/detail/counters.inc>
    ;
inline constexpr size_t kManagementDrops = 0
#define TERN_MANAGEMENT_DROP(reason, what) +1
#include <tern/detail/counters.inc>
    ;
}  // namespace detail

/// What a transport counts. The layers above count the packets that they drop.
struct TransportCounters {
#define TERN_TRANSPORT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  /// Received frames that were no datagrams for this endpoint, by reason; the first reason is "none", and has none. All
  /// are 0 without raw Ethernet. Where endpoints share a device, one of them counts what the device drops.
  std::array<uint64_t, detail::kFrameDrops + 1> dropped_frames{};
};

/// How many received packets met which fault of the fault layer (<tern/transport/faulty.h>).
struct FaultCounters {
#define TERN_FAULT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// What the congestion controllers of an endpoint's client sessions were told.
struct ControllerCounters {
#define TERN_CONTROLLER_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// What the management of a Nexus counts.
struct ManagementCounters {
#define TERN_MANAGEMENT_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  /// Datagrams that were dropped, by reason; the first reason is "none", and has none.
  std::array<uint64_t, detail::kManagementDrops + 1> dropped{};
};

/// What a simulated network counts since its beginning.
struct NetworkCounters {
#define TERN_NETWORK_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
};

/// What an endpoint counts, and the parts that work for it. Endpoint::counters().
struct EndpointCounters {
#define TERN_COUNTER(name, what) uint64_t name = 0;
#include <tern/detail/counters.inc>
  TransportCounters transport;    ///< of its transport
  FaultCounters faults;           ///< of the fault layer above it; all 0 without one
  ControllerCounters controller;  ///< of its client sessions
  ManagementCounters management;  ///< of the Nexus, all its endpoints together
  NetworkCounters network;        ///< of the simulated network; all 0 in a real one
};

/// How many counters for_each_counter() visits.
inline constexpr size_t kCounters = sizeof(EndpointCounters) / sizeof(uint64_t) - 2;

/// Calls `visit(part, name, what, value)` for each counter, in the order of the table. The first three are C strings of
/// static storage duration: "endpoint", "transport", "faults", "controller", "management" or "network"; the counter's
/// name, such as "dropped_frames_other_mac"; what it counts. `value` is a uint64_t.
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
