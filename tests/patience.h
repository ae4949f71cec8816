// How much longer than usual a test waits for what must happen. Test code.
#pragma once

#include <cstdlib>

namespace tern {

/// The value of TERN_TEST_PATIENCE, which is set where a machine is emulated; else 1.
inline unsigned patience() {
  const char* factor = std::getenv("TERN_TEST_PATIENCE");
  return factor != nullptr ? static_cast<unsigned>(std::strtoul(factor, nullptr, 10)) : 1;
}

}  // namespace tern
