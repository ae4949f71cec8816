#include "transport/shm_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_size.h"

namespace tern::transport::shm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, Linux 6.3; older C libraries do not name it

Descriptor make_memfd(const char* name) {
  int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return Descriptor(fd);
}

Mapping map_shared(int fd, size_t bytes, int protection, int extra_flags) {
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | extra_flags, fd, 0);
  if (data == MAP_FAILED) return {};
  ::madvise(data, bytes, MADV_DONTFORK);
  return {static_cast<std::byte*>(data), bytes};
}

}  // namespace

void Descriptor::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Mapping::reset() {
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
}

Status shortage_or(int error, Status otherwise) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return {Code::kUnavailable, "shm: out of file descriptors: raise the limit (ulimit -n) or use fewer peers"};
    case EFBIG:
      return {Code::kUnavailable, "shm: a ring is above the limit of a file's size: raise that (ulimit -f)"};
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
      return {Code::kNoMemory, "shm: the system has no memory left for a ring or a socket"};
    default:
      return otherwise;
  }
}

Result<OwnMemory> make_own_memory(const char* name, size_t bytes) {
  OwnMemory memory;
  memory.fd = make_memfd(name);
  if (!memory.fd) {
    return shortage_or(errno,
                       {Code::kUnavailable,
                        "shm: memfd_create is refused here: it needs Linux 5.1 and a sandbox that allows it; use udp"});
  }
  if (!base::set_file_size(memory.fd.get(), bytes)) {
    return shortage_or(errno, {Code::kNoMemory, "shm: a memfd cannot be given its size"});
  }
  memory.mapping = map_shared(memory.fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_POPULATE);
  if (!memory.mapping) return shortage_or(errno, {Code::kUnavailable, "shm: a memfd cannot be mapped"});
  if (::fcntl(memory.fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status(Code::kUnavailable, "shm: memfds cannot be sealed (F_SEAL_FUTURE_WRITE needs Linux 5.1); use udp");
  }
  return memory;
}

Result<Mapping> map_peer_memory(const Descriptor& fd, size_t bytes, PeerMemoryKind kind) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kRefused, "shm: the peer's memory is not a memfd sealed SHRINK, GROW and FUTURE_WRITE");
  }
  struct stat file;
  if (::fstat(fd.get(), &file) != 0 || file.st_size < 0 || static_cast<size_t>(file.st_size) != bytes) {
    return Status(Code::kRefused, "shm: the peer's memory does not have the size that it announced");
  }
  // Reading a huge page that the system cannot back is SIGBUS at the first touch of a hole. Arenas may have them: there
  // mmap() reserves all pages or fails.
  struct statfs system;
  const bool is_ordinary = ::fstatfs(fd.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  if (kind == PeerMemoryKind::kRing && !is_ordinary) {
    return Status(Code::kRefused, "shm: a ring must lie in ordinary pages");
  }
  // Reading a hole would make its page, at our expense. Honest peers fill theirs before they hand them over, and the
  // seals forbid new holes.
  constexpr size_t kStatBlockBytes = 512;  // stat(2)
  if (is_ordinary && static_cast<size_t>(file.st_blocks) * kStatBlockBytes < bytes) {
    return Status(Code::kRefused, "shm: the peer's memory has holes");
  }
  Mapping mapping = map_shared(fd.get(), bytes, PROT_READ, kind == PeerMemoryKind::kRing ? MAP_POPULATE : 0);
  if (!mapping) return shortage_or(errno, {Code::kRefused, "shm: the peer's memory cannot be mapped"});
  return mapping;
}

}  // namespace tern::transport::shm
