// One run: replicas, clients and faults, and the verdict on them. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "raft/sim/plan.h"

namespace raft_test {

struct Outcome {
  std::string problem;  ///< empty: all was as it must be
  uint64_t calls = 0;   ///< commands that were asked for
  uint64_t ended = 0;   ///< commands that were answered
  uint64_t packets = 0;
  uint64_t crashes = 0, lost_disks = 0, full_disks = 0, terms = 0;
  tern::Duration time{};
  uint64_t hash = 0;                      ///< of the trace
  std::vector<tern::Duration> failovers;  ///< kFailover: from a leader's crash until another one serves
};

/// `says`: what goes wrong is printed.
Outcome run(const Plan& plan, bool says);

}  // namespace raft_test
