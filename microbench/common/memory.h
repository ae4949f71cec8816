// What a process occupies, for benchmarks of memory. Any thread.
#pragma once

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace programs {

/// What this process occupies: its proportional set size, in which a page that is mapped n times counts 1/n each time.
/// So the sum over the processes of both sides counts each page of shared memory once, as often as it exists, and no
/// page of anybody's is left out: message memory, rings, tables of the transport and of the Nexus, page-size rounding.
/// What malloc has kept of memory that was freed belongs to nobody, and is given back first. 0: the system says
/// nothing.
inline uint64_t memory_bytes() {
  malloc_trim(0);
  const int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  const ssize_t got = read(fd, text, sizeof(text));
  close(fd);
  const std::string_view all(text, got > 0 ? static_cast<size_t>(got) : 0);
  size_t at = all.find("\nPss:");
  if (at == std::string_view::npos) return 0;
  at = all.find_first_of("0123456789", at);
  uint64_t kilobytes = 0;
  if (at != std::string_view::npos) std::from_chars(all.data() + at, all.data() + all.size(), kilobytes);
  return kilobytes * 1024;
}

}  // namespace programs
