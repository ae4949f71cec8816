// One run: replicas, clients and faults, and the verdict on them. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "raft/sim/plan.h"

namespace raft_test {

struct Outcome {
  std::string problem;  ///< empty: no rule was broken
  uint64_t calls = 0;   ///< commands made
  uint64_t ended = 0;   ///< commands answered
  uint64_t packets = 0;
  uint64_t crashes = 0, lost_disks = 0, full_disks = 0, terms = 0;
  tern::Duration time{};
  uint64_t hash = 0;                      ///< of the trace
  std::vector<tern::Duration> failovers;  ///< kFailover: times from a leader's crash until another leader serves
};

/// `says`: prints the faults of the run.
Outcome run(const Plan& plan, bool says);

}  // namespace raft_test
