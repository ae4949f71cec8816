// Giving a memfd its size, without the signal that comes with a limit. Any thread.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace tern::base {

/// As ftruncate. Beyond the limit of a file's size (ulimit -f), which counts for memory, too, false with EFBIG, where
/// ftruncate sends SIGXFSZ first, and that ends the process.
inline bool set_file_size(int fd, size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

}  // namespace tern::base
