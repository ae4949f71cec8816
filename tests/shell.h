// Runs shell commands. Test code.
#pragma once

#include <cstdlib>
#include <string>

namespace tern::test {

/// Runs a command and drops its output. True: the command succeeded.
inline bool run(const std::string& command) {
  return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace tern::test
