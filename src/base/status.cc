// Aborts a program that cannot go on without a value.

#include <tern/status.h>

#include <cstdio>
#include <cstdlib>

namespace tern::detail {

void stop_without_value(const Status& status) noexcept {
  // Both texts are zero-terminated.
  std::fprintf(stderr, "tern: cannot go on: %s (%s)\n", status.message().data(), to_string(status.code()).data());
  std::abort();
}

}  // namespace tern::detail
