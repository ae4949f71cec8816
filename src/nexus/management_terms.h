// SessionTerms to and from what travels.
#pragma once

#include "nexus/control.h"
#include "wire/management.h"

namespace tern::nexus {

SessionTerms from_wire(const wire::ManagementTerms& from);
/// False: a field is out of the range that the wire allows; `to` is unspecified then.
[[nodiscard]] bool to_wire(const SessionTerms& from, wire::ManagementTerms& to);

}  // namespace tern::nexus
