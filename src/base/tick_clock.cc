#include "base/tick_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <string_view>

#include "base/descriptor.h"

namespace tern::base {

bool CpuTicks::are_steady() {
#if defined(__x86_64__)
  static const bool steady = [] {
    const Descriptor file(
        open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC));
    char name[16];
    const ssize_t bytes = file ? read(file.get(), name, sizeof(name)) : 0;
    return bytes > 0 && std::string_view(name, static_cast<size_t>(bytes)) == "tsc\n";
  }();
  return steady;
#else
  return false;
#endif
}

}  // namespace tern::base
