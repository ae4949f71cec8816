#include "base/random.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>

#include "base/descriptor.h"

namespace tern::base {

bool fill_random(void* to, size_t bytes) noexcept {
  ssize_t got;
  do got = getrandom(to, bytes, 0);
  while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(bytes)) return true;
  const Descriptor device(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  return device && read(device.get(), to, bytes) == static_cast<ssize_t>(bytes);
}

}  // namespace tern::base
