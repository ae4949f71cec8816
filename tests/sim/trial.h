// Scenes after the random part of a run, in a healthy network without load: what random runs rarely bring about, with
// bounds that only such a scene has. Test code.
#pragma once

#include "sim/machine.h"
#include "sim/random.h"

namespace sim_test {

/// The plan's trial, if the run's hosts and options allow it.
void run_trial(World& world, Random& random);

}  // namespace sim_test
