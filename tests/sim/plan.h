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

  tern::sim::Faults faults;          ///< on all cables throughout; kGentle, kCorrupt
  tern::Duration fault_gap{};        ///< kRough: between scheduled faults, on average
  bool has_limited_memory = false;   ///< of an endpoint: calls may end with kNoMemory
  bool has_limited_workers = false;  ///< or with kQueueFull
  bool has_limited_sessions = false;
  bool looks_often = false;  ///< all invariants after every step; else after some of them
  bool runs_twice = false;   ///< and has to leave the same trace

  bool is_strict() const { return kind == Class::kClean || kind == Class::kGentle; }
  bool is_corrupt() const { return kind == Class::kCorrupt; }
  bool has_drift() const { return kind == Class::kRough; }
  std::string text() const;
};

/// The same seed, the same plan.
Plan draw_plan(uint64_t seed);

tern::CongestionControl draw_congestion_control(Random& random, const Plan& plan);
const char* name_of(Class kind);

}  // namespace sim_test
