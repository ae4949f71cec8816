// The memory of this process, for tests of memory that is not used or was given back.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace tern::base {

/// Returns the resident memory of the process, or 0 if it is unknown.
inline size_t resident_bytes() {
  size_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace tern::base
