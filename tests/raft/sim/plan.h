// The seed's decisions about a run of replicas before it starts. Test code.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tern/sim.h>

#include "sim/random.h"

namespace raft_test {

using sim_test::Random;

enum class Class : uint8_t {
  kCalm,      ///< no faults
  kFailover,  ///< only crashes of leaders
  kRough,     ///< all faults
  kLease,     ///< reads by lease at a leader that is cut off, with the largest permitted errors of clocks
};
inline constexpr size_t kClasses = 4;
const char* name_of(Class kind);

struct Plan {
  uint64_t seed = 0;
  Class kind = Class::kRough;

  uint32_t replicas = 3;  ///< replicas that found the cluster, each on a host of its own
  bool has_disk = false;  ///< storage is a disk that loses unsynced data in a crash; false: memory that survives
  uint64_t log_bytes_max = 0;
  uint32_t snapshot_entries = 0, trailing_entries = 0, batch_max = 0;
  uint64_t append_bytes_max = 0;  ///< 0: the replicas' default
  tern::Duration election_timeout{}, heartbeat{};
  double clock_drift_max = 0.01;

  uint32_t client_hosts = 1, clients_a_host = 1;  ///< on hosts after those of the replicas
  uint32_t keys = 1;
  uint32_t lease_readers_permille = 0;                               ///< clients that read by lease
  tern::Duration think{};                                            ///< longest time between two commands of a client
  tern::Duration attempt{}, pause = std::chrono::microseconds(100);  ///< ClientOptions

  tern::Duration fault_time{};  ///< length of the phase with faults; all is healed afterwards
  tern::Duration fault_gap{};   ///< average time between two faults
  tern::Duration lasting{};     ///< longest duration of a fault
  tern::sim::Faults faults;     ///< on all cables throughout
  bool has_crashes = false, has_power_losses = false, has_lost_disks = false, has_full_disks = false;
  bool has_partitions = false, has_pauses = false, has_drift = false, has_loss = false, has_client_crashes = false;
  bool runs_twice = false;  ///< runs twice and must leave the same trace

  uint32_t hosts() const { return replicas + client_hosts; }
  std::string text() const;
};

/// Equal seeds give equal plans.
Plan draw_plan(uint64_t seed);
/// The plan of this seed in the given class.
Plan draw_plan(uint64_t seed, Class kind);

}  // namespace raft_test
