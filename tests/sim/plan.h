// Everything of a run that is decided beforehand, drawn from its seed: the network, the options of every endpoint, what
// the workload is like and what may go wrong. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tern/sim.h>

#include "sim/random.h"

namespace sim_test {

/// What may go wrong in a run, and so which statuses its calls may end with.
enum class Class : uint8_t {
  kClean,    ///< nothing
  kGentle,   ///< packets are overtaken, doubled, delayed, and a few lost: less than what a session dies of
  kTight,    ///< no faults, but queues, budgets and limits that are too small
  kRough,    ///< everything but damaged packets
  kCorrupt,  ///< damaged packets, and what kGentle has: only promise 3 is checked (DESIGN section 5)
};

/// What is checked beyond the promises: whether the library's traffic and its judgements are in proportion. Each can be
/// switched off (sim_check --without=NAME), and is named by what it finds.
enum class Rule : uint8_t {
  kRetransmissions,  ///< none where nothing is lost, overtaken, delayed, damaged or paused
  kPackets,          ///< no more than a stated multiple of what is needed
  kRoundTrips,       ///< none is shorter than the cable
  kPace,             ///< a paced rate is reached
  kHeld,             ///< nothing is held longer than the protocol says while sessions live
  kDeaths,           ///< no session ends while both processes live and the network passes packets
};
inline constexpr size_t kRules = 6;
const char* name_of(Rule rule);

/// A scene after the random part, in a healthy network without load, for what random runs rarely bring about.
enum class Trial : uint8_t {
  kNone,
  kPace,        ///< a paced session from a host whose turns take up to 100 us
  kFrameLimit,  ///< full packets stop passing on an open session
  kPauses,      ///< a client's host pauses, and right after it the server's
  kStarved,     ///< a host's management gets no CPU, while its endpoints answer
  kLostReport,  ///< the report of a finished call is lost
  kBusySlot,    ///< one slot of a session is never at rest
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
  std::string network;  ///< for people
  tern::sim::Topology topology;
  tern::sim::SimulationOptions simulation;
  std::vector<HostPlan> hosts;

  tern::Duration fault_time{};  ///< of workload and faults; then the network is healed
  tern::Duration step_gap{};    ///< of one endpoint's workload, on average
  uint32_t calls = 0;           ///< about so many are made
  uint32_t sessions = 0;        ///< of an endpoint, as client, at most
  uint8_t window_max = 8;
  uint32_t bulk_permille = 0;           ///< requests and responses above 16 kB
  size_t bulk_bytes_max = 0;            ///< of them
  uint32_t paced_permille = 0;          ///< sessions with a rate limit
  uint32_t controlled_permille = 0;     ///< sessions with a congestion controller of their own
  uint64_t rate_bytes_per_sec_min = 0;  ///< of them
  uint32_t early_permille = 0;          ///< steps that cancel, and calls with a deadline
  tern::Duration handler_time_max{};    ///< until an answer that is given later
  tern::Duration connect_timeout{};
  tern::Duration lateness{};      ///< so long after its deadline a call may end, if nothing is wrong
  tern::Duration liveness_max{};  ///< of all hosts
  uint64_t slowest_link_bits_per_sec = 0;
  bool has_long_paths = false;  ///< milliseconds

  tern::sim::Faults faults;           ///< on all cables throughout; kGentle, kCorrupt
  tern::Duration fault_gap{};         ///< kRough: between scheduled faults, on average
  tern::Duration pause_gap{};         ///< between short pauses, on average; 0: there are none
  tern::Duration pause_max{};         ///< of them: less than any session dies of
  uint32_t sliced_host = UINT32_MAX;  ///< it runs only in time slices
  tern::sim::TimeSlices slices;       ///< likewise shorter than what a session dies of
  bool has_drifting_clocks = false;   ///< clocks may run at other rates than true time
  Trial trial = Trial::kNone;
  bool is_off[kRules] = {};
  bool has_limited_memory = false;   ///< of an endpoint: calls may end with kNoMemory
  bool has_limited_workers = false;  ///< or with kQueueFull
  bool has_limited_sessions = false;
  bool looks_often = false;  ///< all invariants after every step; else after some of them
  bool runs_twice = false;   ///< and has to leave the same trace

  bool is_strict() const { return kind == Class::kClean || kind == Class::kGentle; }
  bool is_corrupt() const { return kind == Class::kCorrupt; }
  bool has_drift() const { return kind == Class::kRough; }
  bool checks(Rule rule) const { return !is_off[static_cast<size_t>(rule)]; }
  /// No packet is lost or late, but by queues that are too short.
  bool is_lossless() const {
    return is_strict() && faults.drop == 0 && faults.reorder == 0 && faults.delay == 0 &&
           pause_gap == pause_gap.zero() && sliced_host == UINT32_MAX;
  }
  std::string text() const;
};

/// The same seed, the same plan.
Plan draw_plan(uint64_t seed);

tern::CongestionControl draw_congestion_control(Random& random, const Plan& plan);
const char* name_of(Class kind);

}  // namespace sim_test
