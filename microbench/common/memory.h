// The memory that a process occupies, for benchmarks of memory. Any thread.
#pragma once

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace programs {

/// The memory that this process occupies: its proportional set size, in which a page that is mapped n times counts 1/n
/// for each mapping. So the sum over the processes of both sides counts each page of shared memory once. It includes
/// all pages: message memory, rings, tables of the transport and of the Nexus, and page-size rounding. The function
/// first returns free memory of malloc to the system, because no object uses it. Returns 0 if the system does not
/// report the size.
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
