// Range checks of the options of switches and links. They hold for topologies built by code and by text alike.
// Sim layer, network part.
#pragma once

#include <tern/sim/network.h>

namespace tern::sim {

/// kMisuse: an option is out of range.
Status check_range(const SwitchOptions& options);
Status check_range(const LinkOptions& options);

}  // namespace tern::sim
