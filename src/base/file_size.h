// Grows files without the signal that a file size limit causes. Any thread; allocates nothing.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace tern::base {

/// False with EFBIG: a file of this size would exceed the limit of file sizes (ulimit -f), which also applies to
/// memfds.
inline bool may_have_size(uint64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return true;
  errno = EFBIG;
  return false;
}

/// Like ftruncate, except above the limit of file sizes. There it returns false with EFBIG, whereas ftruncate first
/// sends SIGXFSZ, which ends the process.
inline bool set_file_size(int fd, size_t bytes) {
  return may_have_size(bytes) && ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

/// Writes all bytes to a regular file, at its offset. False with errno: EFBIG, without SIGXFSZ, above the limit of file
/// sizes.
inline bool write_to_file(int fd, const void* bytes, size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const off_t offset = lseek(fd, 0, SEEK_CUR);
    if (offset < 0 || !may_have_size(static_cast<uint64_t>(offset) + size)) return false;
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace tern::base
