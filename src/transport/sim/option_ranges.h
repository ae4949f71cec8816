// What the options of switches and links may be: for topologies by code and by text. Transport room.
#pragma once

#include <tern/sim/network.h>

namespace tern::sim {

Status check_range(const SwitchOptions& options);
Status check_range(const LinkOptions& options);

}  // namespace tern::sim
