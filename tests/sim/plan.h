// The seed's decisions about a run before it starts: the network, the options of every endpoint, the kind of workload,
// and the faults that may happen. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tern/sim.h>

#include "sim/random.h"

namespace sim_test {

/// The faults that may happen in a run. They decide which statuses its calls may end with.
enum class Class : uint8_t {
  kClean,    ///< nothing
  kGentle,   ///< packets are overtaken, doubled and delayed, and too few are lost to end a session
  kTight,    ///< no faults, but queues, budgets and limits that are too small
  kRough,    ///< all faults except damaged packets
  kCorrupt,  ///< damaged packets, and the faults of kGentle: only promise 3 is checked (DESIGN section 5)
};

/// Checks beyond the promises: whether the library's traffic is in proportion, and its decisions about dead peers
/// right. Each rule can be switched off (sim_check --without=NAME). A rule's name says what it finds.
enum class Rule : uint8_t {
  kRetransmissions,  ///< no retransmissions where nothing is lost, overtaken, delayed, damaged or paused
  kPackets,          ///< at most a stated multiple of the packets that are needed
  kRoundTrips,       ///< no round trip is shorter than the cable allows
  kPace,             ///< a paced session reaches its rate
  kHeld,             ///< no response or request memory is kept longer than the protocol says while sessions live
  kDeaths,           ///< no session ends while both processes live and the network passes packets
};
inline constexpr size_t kRules = 6;
const char* name_of(Rule rule);

/// A scene after the random part, in a healthy network without load. It tests a condition that random runs rarely meet.
enum class Trial : uint8_t {
  kNone,
  kPace,        ///< a paced session from a host whose turns take up to 100 us
  kFrameLimit,  ///< full packets stop passing on an open session
  kPauses,      ///< a client's host pauses, and right after it the server's
  kStarved,     ///< a host's management gets no CPU, while its endpoints answer
  kLostReport,  ///< the report of a finished call is lost
  kBusySlot,    ///< one slot of a session always has a call
  kNat,         ///< a client behind a NAT that forgets its flows
};
inline constexpr size_t kTrials = 8;
const char* name_of(Trial trial);

struct EndpointPlan {
  tern::RpcOptions rpc;
  uint32_t receive_queue_packets = 4096;
  uint32_t send_queue_packets = 1024;
};

struct HostPlan {
  tern::Duration liveness_timeout{};
  size_t worker_threads = 1;
  size_t worker_queue_limit = 4096;
  tern::Duration worker_time{};
  tern::sim::HostCost cost;
  std::vector<EndpointPlan> endpoints;
};

struct Plan {
  uint64_t seed = 0;
  Class kind = Class::kClean;
  std::string network;  ///< a description for messages
  tern::sim::Topology topology;
  tern::sim::SimulationOptions simulation;
  std::vector<HostPlan> hosts;

  tern::Duration fault_time{};  ///< length of workload and faults; the network is healed afterwards
  tern::Duration step_gap{};    ///< average time between two steps of an endpoint's workload
  uint32_t calls = 0;           ///< about how many calls are made
  uint32_t sessions = 0;        ///< largest number of client sessions of an endpoint
  uint8_t window_max = 8;
  uint32_t bulk_permille = 0;           ///< requests and responses above 16 kB
  size_t bulk_bytes_max = 0;            ///< length of the largest bulk message
  uint32_t paced_permille = 0;          ///< sessions with a rate limit
  uint32_t controlled_permille = 0;     ///< sessions with a congestion controller of their own
  uint64_t rate_bytes_per_sec_min = 0;  ///< lowest rate of a paced session
  uint32_t early_permille = 0;          ///< steps that cancel, and calls with a deadline
  tern::Duration handler_time_max{};    ///< longest time until a handler answers
  tern::Duration connect_timeout{};
  tern::Duration lateness{};      ///< how long after its deadline a call may end without a fault
  tern::Duration liveness_max{};  ///< longest liveness timeout of all hosts
  uint64_t slowest_link_bits_per_sec = 0;
  bool has_long_paths = false;  ///< links have delays of milliseconds

  tern::sim::Faults faults;           ///< on all cables throughout; kGentle, kCorrupt
  tern::Duration fault_gap{};         ///< kRough: between scheduled faults, on average
  tern::Duration pause_gap{};         ///< between short pauses, on average; 0: there are none
  tern::Duration pause_max{};         ///< longest short pause; too short to end a session
  uint32_t sliced_host = UINT32_MAX;  ///< this host runs only in time slices
  tern::sim::TimeSlices slices;       ///< the host's absences are too short to end a session
  bool has_drifting_clocks = false;   ///< clocks may run at other rates than true time
  Trial trial = Trial::kNone;
  bool is_off[kRules] = {};
  bool has_limited_memory = false;   ///< endpoints have little memory: calls may end with kNoMemory
  bool has_limited_workers = false;  ///< workers' queues are short: calls may end with kQueueFull
  bool has_limited_sessions = false;
  bool looks_often = false;  ///< checks all invariants after every step; false: after some steps
  bool runs_twice = false;   ///< runs twice and must leave the same trace

  bool is_strict() const { return kind == Class::kClean || kind == Class::kGentle; }
  bool is_corrupt() const { return kind == Class::kCorrupt; }
  bool has_drift() const { return kind == Class::kRough; }
  bool checks(Rule rule) const { return !is_off[static_cast<size_t>(rule)]; }
  /// True: packets are lost or late only if a queue is too short.
  bool is_lossless() const {
    return is_strict() && faults.drop == 0 && faults.reorder == 0 && faults.delay == 0 &&
           pause_gap == pause_gap.zero() && sliced_host == UINT32_MAX;
  }
  std::string text() const;
};

/// Equal seeds give equal plans.
Plan draw_plan(uint64_t seed);

tern::CongestionControl draw_congestion_control(Random& random, const Plan& plan);
const char* name_of(Class kind);

}  // namespace sim_test
