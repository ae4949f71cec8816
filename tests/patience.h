// The factor by which tests wait longer than usual on slow machines. Test code.
#pragma once

#include <cstdlib>

namespace tern {

/// Returns the value of TERN_TEST_PATIENCE, which is set on emulated machines, or 1 without it.
inline unsigned patience() {
  const char* factor = std::getenv("TERN_TEST_PATIENCE");
  return factor != nullptr ? static_cast<unsigned>(std::strtoul(factor, nullptr, 10)) : 1;
}

}  // namespace tern
