// The ranges of options of switches and links, for topologies built by code and by text. Sim layer, network part.
#pragma once

#include <tern/sim/network.h>

namespace tern::sim {

Status check_range(const SwitchOptions& options);
Status check_range(const LinkOptions& options);

}  // namespace tern::sim
