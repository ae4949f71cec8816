// The library's unit of time. Standard library only.
#pragma once

#include <chrono>

namespace tern {

/// Signed nanoseconds: a length of time, or a point in time since the epoch of a clock. Duration::max() is for ever.
using Duration = std::chrono::nanoseconds;

}  // namespace tern
