// Sets the size of a memfd without the signal that a file size limit causes. Any thread.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace tern::base {

/// Like ftruncate, except above the limit of file sizes (ulimit -f), which also applies to memfds. There it returns
/// false with EFBIG, whereas ftruncate first sends SIGXFSZ, which ends the process.
inline bool set_file_size(int fd, size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

}  // namespace tern::base
