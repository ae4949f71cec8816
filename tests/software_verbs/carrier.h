// The carrier of one end of a veth pair, for the tests' own networks.
#pragma once

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace software_verbs {

/// Waits until the kernel has noticed that the cable is plugged in. A kernel thread does that; until then the
/// interface, which is in this thread's namespace, drops all frames. Returns false if it took too long.
inline bool wait_for_carrier(const char* interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  bool is_running = false;
  for (int i = 0; i < 20'000 && fd >= 0 && !is_running; i++) {
    if (i != 0) usleep(1000);
    is_running = ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
  }
  // The kernel sets the flag before the queue is ready. Setting flags takes the lock under which the kernel thread does
  // both.
  is_running = is_running && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  if (fd >= 0) close(fd);
  return is_running;
}

}  // namespace software_verbs
