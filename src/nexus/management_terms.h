// Conversion of SessionTerms to and from their form in messages.
#pragma once

#include "nexus/control.h"
#include "wire/management.h"

namespace tern::nexus {

SessionTerms from_wire(const wire::ManagementTerms& from);
/// Returns false if a field is out of the range that messages allow; `to` is then unspecified.
[[nodiscard]] bool to_wire(const SessionTerms& from, wire::ManagementTerms& to);

}  // namespace tern::nexus
