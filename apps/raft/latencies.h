// The histogram of all programs, under this program's names.
#pragma once

#include "../common/latencies.h"

namespace replicated {

using programs::Latencies;

}  // namespace replicated
