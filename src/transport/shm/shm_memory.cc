#include "transport/shm/shm_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/file_size.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace tern::transport::shm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, Linux 6.3; older C libraries do not name it

Descriptor make_memfd(const char* name) {
  int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return Descriptor(fd);
}

constinit std::atomic<size_t> peer_mappings{0};
constinit std::atomic<size_t> peer_mapped_bytes{0};

void give_back(size_t bytes) {
  peer_mappings.fetch_sub(1, std::memory_order_relaxed);
  peer_mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

/// Counts a mapping of a peer's memory. False: the mappings are at a limit.
bool take(size_t bytes) {
  const size_t before = peer_mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  const size_t count_before = peer_mappings.fetch_add(1, std::memory_order_relaxed);
  if (count_before < kPeerMappingsMax && before < kPeerMappedBytesMax && bytes <= kPeerMappedBytesMax - before) {
    return true;
  }
  give_back(bytes);
  return false;
}

std::byte* map_shared(int fd, size_t bytes, int protection, int extra_flags) {
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | extra_flags, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

/// False: reading all of it would be SIGBUS. Before Linux 5.14 this is not known.
bool populate(const Mapping& mapping) {
  return ::madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_READ) == 0 || errno == EINVAL;
}

}  // namespace

void Mapping::reset() {
  if (data_ == nullptr) return;
  if (is_peers_) give_back(bytes_);
  if (::getpid() == maker_) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Status shortage_or(int error, Status otherwise) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return {Code::kUnavailable, "shm: out of file descriptors: raise the limit (ulimit -n) or use fewer peers"};
    case EFBIG:
      return {Code::kUnavailable, "shm: a ring would exceed the limit on file sizes: raise it (ulimit -f)"};
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
  memory.mapping = Mapping(map_shared(memory.fd.get(), bytes, PROT_READ | PROT_WRITE, MAP_POPULATE), bytes, false);
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
  struct statfs system;
  const bool is_ordinary = ::fstatfs(fd.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  if (kind == PeerMemoryKind::kRing && !is_ordinary) {
    return Status(Code::kRefused, "shm: a ring must lie in ordinary pages");
  }
  // Reading a hole would allocate its page for this process, and is SIGBUS where the process may have no more huge
  // pages. An honest peer fills its memory before it hands it over, and the seals forbid new holes. (st_blocks also
  // counts pages behind the end, which the seals do not keep. For huge pages there is no SEEK_HOLE; populate() finds
  // such holes.)
  const bool has_holes = is_ordinary ? ::lseek(fd.get(), 0, SEEK_HOLE) != static_cast<off_t>(bytes)
                                     : static_cast<size_t>(file.st_blocks) < bytes / 512;
  if (has_holes) return Status(Code::kRefused, "shm: the peer's memory has holes");
  if (!take(bytes)) return Status(Code::kNoMemory, "shm: peers' memory takes half of this process's address space");
  std::byte* const data = map_shared(fd.get(), bytes, PROT_READ, kind == PeerMemoryKind::kRing ? MAP_POPULATE : 0);
  if (data == nullptr) {
    const int error = errno;
    give_back(bytes);
    return shortage_or(error, {Code::kRefused, "shm: the peer's memory cannot be mapped"});
  }
  Mapping mapping(data, bytes, true);
  if (!is_ordinary && !populate(mapping)) return Status(Code::kRefused, "shm: the peer's memory cannot be read");
  return mapping;
}

}  // namespace tern::transport::shm
