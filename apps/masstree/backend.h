// The index that the programs use. docs/masstree.md compares the candidates.
#pragma once

#include "tbb_index.h"

namespace ordered {

using Index = TbbIndex;

}  // namespace ordered
