#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace tern::base {

namespace {
constinit std::atomic<CheckHook> check_hook{nullptr};
}  // namespace

void set_check_hook(CheckHook hook) { check_hook.store(hook, std::memory_order_release); }

/// Prints the message before it calls the hook, because the hook may fail for the same reason.
void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s (%s)\n", file, line, expression, values.c_str());
  if (const CheckHook hook = check_hook.exchange(nullptr, std::memory_order_acq_rel); hook != nullptr) {
    char path[256];
    hook(path, sizeof(path));
    if (path[0] != 0) std::fprintf(stderr, "the traces of this process's endpoints are in %s (scripts/trace)\n", path);
  }
  std::abort();
}

}  // namespace tern::base
