// Everything of a run of replicas that is decided beforehand, drawn from its seed. Test code.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tern/sim.h>

#include "sim/random.h"

namespace raft_test {

using sim_test::Random;

enum class Class : uint8_t {
  kCalm,      ///< nothing goes wrong
  kFailover,  ///< nothing but the crash of a leader, again and again
  kRough,     ///< everything
  kLease,     ///< reads by lease at a leader that is cut off, with clocks that are as wrong as they may be
};
inline constexpr size_t kClasses = 4;
const char* name_of(Class kind);

struct Plan {
  uint64_t seed = 0;
  Class kind = Class::kRough;

  uint32_t replicas = 3;  ///< that found the cluster, each on a host of its own
  bool has_disk = false;  ///< of which a crash may take what was not synced; else memory that survives crashes
  uint64_t log_bytes_max = 0;
  uint32_t snapshot_entries = 0, trailing_entries = 0, batch_max = 0;
  uint64_t append_bytes_max = 0;  ///< 0: as many as replicas have
  tern::Duration election_timeout{}, heartbeat{};
  double clock_drift_max = 0.01;

  uint32_t client_hosts = 1, clients_a_host = 1;  ///< which follow the replicas' hosts
  uint32_t keys = 1;
  uint32_t lease_readers_permille = 0;                               ///< clients that read by lease
  tern::Duration think{};                                            ///< between two commands of a client, at most
  tern::Duration attempt{}, pause = std::chrono::microseconds(100);  ///< ClientOptions

  tern::Duration fault_time{};  ///< then all is healed
  tern::Duration fault_gap{};   ///< between two faults, on average
  tern::Duration lasting{};     ///< of a fault, at most
  tern::sim::Faults faults;     ///< of all cables throughout
  bool has_crashes = false, has_power_losses = false, has_lost_disks = false, has_full_disks = false;
  bool has_partitions = false, has_pauses = false, has_drift = false, has_loss = false, has_client_crashes = false;
  bool runs_twice = false;  ///< and has to leave the same trace

  uint32_t hosts() const { return replicas + client_hosts; }
  std::string text() const;
};

/// The same seed, the same plan.
Plan draw_plan(uint64_t seed);
/// Likewise, of this class.
Plan draw_plan(uint64_t seed, Class kind);

}  // namespace raft_test
