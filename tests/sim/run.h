// One run: a plan carried out in the simulator under the oracle. Test code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan.h"

namespace sim_test {

struct Outcome {
  uint64_t hash = 0;  ///< of everything that has happened
  uint64_t steps = 0;
  uint64_t calls = 0;
  uint64_t packets = 0;
  tern::Duration time{};           ///< virtual
  std::vector<uint64_t> statuses;  ///< calls that ended with each
};

/// Ends the process if a promise is broken; `repeat` is printed then.
Outcome run(const Plan& plan, const std::string& repeat);

}  // namespace sim_test
