// Scenes after the random part of a run, in a healthy network without load. They test conditions that random runs
// rarely meet, against bounds that hold only in such scenes. Test code.
#pragma once

#include "sim/machine.h"
#include "sim/random.h"

namespace sim_test {

/// Runs the plan's trial if the run's hosts and options allow it.
void run_trial(World& world, Random& random);

}  // namespace sim_test
