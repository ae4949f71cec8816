// Opens regular files, and nothing else. Base layer; any thread, no state.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "base/descriptor.h"

namespace tern::base {

/// Like open(), for regular files only. Does not wait for the other end of a FIFO. Returns no descriptor on failure;
/// errno has the reason: that of open(), or ENXIO if open() has opened another kind of file. open() itself has ENXIO
/// only for other kinds, as for a FIFO without a reader or a socket.
inline Descriptor open_regular(const char* path, int flags, struct stat& about) {
  Descriptor file(open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file || fstat(file.get(), &about) != 0) return Descriptor();
  if (S_ISREG(about.st_mode)) return file;
  errno = ENXIO;
  return Descriptor();
}

/// The reason of open_regular()'s `error`. May throw std::bad_alloc.
inline std::string reason_not_opened(int error) {
  return error == ENXIO ? "it is not a regular file" : std::generic_category().message(error);
}

}  // namespace tern::base
