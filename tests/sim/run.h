// One run: a plan carried out in the simulator under the oracle. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan.h"

namespace sim_test {

struct Outcome {
  uint64_t hash = 0;  ///< of all events of the run
  uint64_t steps = 0;
  uint64_t calls = 0;
  uint64_t packets = 0;
  tern::Duration time{};           ///< virtual
  std::vector<uint64_t> statuses;  ///< calls that ended with each
};

/// Ends the process if a promise is broken, and prints `repeat`, the command that repeats the run.
Outcome run(const Plan& plan, const std::string& repeat);

}  // namespace sim_test
