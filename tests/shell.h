// Commands of the shell. Test code.
#pragma once

#include <cstdlib>
#include <string>

namespace tern::test {

/// Runs a command without its output. True: it has worked.
inline bool run(const std::string& command) {
  return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace tern::test
