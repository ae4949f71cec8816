#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tern::base {

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s (%s)\n", file, line, expression, values.c_str());
  std::abort();
}

}  // namespace tern::base
