// The closed set of congestion controllers.
#pragma once

#include <variant>

#include "cc/controller.h"
#include "cc/dctcp.h"
#include "cc/swift.h"
#include "cc/timely.h"

namespace tern::cc {

using AnyController = std::variant<None, FixedRate, Timely, Swift, Dctcp>;

}  // namespace tern::cc
