// All objects that programs have handles of.
// C layer. Any thread.
#pragma once

#include "c/handles.h"

namespace tern::c {

extern constinit Objects<tern_nexus> nexuses;
extern constinit Objects<tern_endpoint> endpoints;
extern constinit Objects<tern_request> requests;

}  // namespace tern::c
