#include "memory/chunk.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/file_size.h"
#include "base/transparent_pages.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace tern::memory {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kGiantPageBytes = 1u << 30;
constexpr unsigned kHugeShift = 26;  // position of the page size's logarithm in the flags of mmap(2), memfd_create(2)

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Memory that programs could still get without swapping; SIZE_MAX if the system does not say.
size_t available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return SIZE_MAX;
  size_t kilobytes = SIZE_MAX / 1024;
  std::array<char, 128> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), file) != nullptr) {
    if (std::sscanf(line.data(), "MemAvailable: %zu kB", &kilobytes) == 1) break;
  }
  std::fclose(file);
  return kilobytes * 1024;
}

int create_memfd(unsigned huge_log2) {
  const unsigned huge = huge_log2 != 0 ? MFD_HUGETLB | huge_log2 << kHugeShift : 0;
  int fd = memfd_create("tern-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | huge);
  // vm.memfd_noexec = 2 refuses a memfd that could be executed.
  if (fd >= 0 || errno != EACCES) return fd;
  fd = memfd_create("tern-arena", MFD_CLOEXEC | MFD_NOEXEC_SEAL | huge);
  if (fd < 0 && errno == EINVAL) errno = EACCES;  // a kernel before 6.3 has no such flag, and something else refuses
  return fd;
}

/// Reserves an address range of `bytes` at a multiple of kHugePageBytes. Null: there is no such range left.
std::byte* reserve_aligned(size_t bytes) {
  const size_t padded = bytes + kHugePageBytes;
  void* raw = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const size_t skip = round_up(reinterpret_cast<uintptr_t>(raw), kHugePageBytes) - reinterpret_cast<uintptr_t>(raw);
  if (skip != 0) munmap(begin, skip);
  if (skip != kHugePageBytes) munmap(begin + skip + bytes, kHugePageBytes - skip);
  return begin + skip;
}

/// A chunk under construction. The destructor unmaps it unless finish() was called.
struct Draft {
  std::byte* base = nullptr;
  size_t bytes = 0;
  int fd = -1;

  Draft() = default;
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft() {
    if (base != nullptr) munmap(base, bytes);
    if (fd >= 0) close(fd);
  }
  Chunk finish(uint32_t id, const char* pages) {
    return {std::exchange(base, nullptr), bytes, std::exchange(fd, -1), id, pages};
  }
};

/// `page_log2` 0: normal pages. Huge pages are reserved by mmap, which fails when there are not enough of them.
bool map_pages(Draft& draft, bool shared, unsigned page_log2, size_t bytes) {
  if (shared) {
    draft.fd = create_memfd(page_log2);
    if (draft.fd < 0 || !base::set_file_size(draft.fd, bytes)) return false;
  }
  int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* place = nullptr;
  if (page_log2 == 0) {
    place = reserve_aligned(bytes);
    if (place == nullptr) return false;
    draft.base = static_cast<std::byte*>(place);
    draft.bytes = bytes;
    flags |= MAP_FIXED;
  } else if (!shared) {
    flags |= MAP_HUGETLB | static_cast<int>(page_log2 << kHugeShift);
  }
  void* mapped = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, draft.fd, 0);
  if (mapped == MAP_FAILED) return false;
  draft.base = static_cast<std::byte*>(mapped);
  draft.bytes = bytes;
  return madvise(mapped, bytes, MADV_DONTFORK) == 0;
}

/// Prefers the node, and does not bind to it: if bound memory runs short, the kernel sends SIGBUS or kills the process.
void prefer_node(const Draft& draft, int node) {
  constexpr size_t kNodesMax = 1024;  // the kernel's maximum (CONFIG_NODES_SHIFT)
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  if (node < 0 || static_cast<size_t>(node) >= kNodesMax) return;
  // Does not use a mask of libnuma, because libnuma ends the process if it has no memory for a mask.
  std::array<unsigned long, kNodesMax / kBits> nodes{};
  nodes[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
  mbind(draft.base, draft.bytes, MPOL_PREFERRED, nodes.data(), kNodesMax + 1, 0);
}

/// Takes the pages now, so that a lack of them is an error here and not a SIGBUS when they are touched.
bool populate(const Draft& draft, bool is_huge) {
  if (madvise(draft.base, draft.bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // Before Linux 5.14: private huge pages were reserved by mmap; a memfd can be filled through its descriptor. For a
  // peer its pages are holes until they are written.
  if (is_huge && draft.fd < 0) return true;
  if (fallocate(draft.fd, 0, 0, static_cast<off_t>(draft.bytes)) != 0) return false;
  for (size_t at = 0; at < draft.bytes; at += kPageBytes) draft.base[at] = std::byte{0};
  return true;
}

/// Must follow the owner's writable mapping, because FUTURE_WRITE keeps that mapping and forbids all later ones.
bool seal(int fd) {
  return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

constexpr Status kNoChunk(
    Code::kNoMemory,
    "no memory for messages: the system, the limit of this process (ulimit -v) or the endpoint's "
    "memory limit is exhausted; free memory, or raise RpcOptions::memory_limit_bytes or ulimit -v");

/// Whether a system call failed because a sandbox (seccomp) or a security module does not allow it.
bool is_forbidden(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

/// The status of a failed memfd_create().
Status no_memfd(int error) {
  if (error == ENOMEM) return kNoChunk;
  if (is_forbidden(error)) {
    return {Code::kUnavailable,
            "a sandbox or a kernel before Linux 3.17 refuses memfd_create, which shared memory needs: allow it, or use "
            "udp"};
  }
  if (error == ENFILE) {
    return {Code::kUnavailable,
            "memfd_create failed: the system has no free descriptors for shared memory; raise fs.file-max (sysctl)"};
  }
  return {Code::kUnavailable,
          "memfd_create failed: shared memory needs free descriptors; raise the limit of open files (ulimit -n)"};
}

/// The status of a failed call that gives a memfd its size, or maps or populates memory.
Status no_pages(int error) {
  if (error == EFBIG) {
    return {Code::kUnavailable, "shared memory would exceed the limit on file sizes: raise it (ulimit -f)"};
  }
  if (!is_forbidden(error)) return kNoChunk;
  return {Code::kUnavailable,
          "a sandbox refuses memory for messages: allow mmap, madvise, and over shm ftruncate, for this process"};
}

Result<Chunk> map_huge(bool shared, int numa_node, uint32_t id, unsigned page_log2, size_t bytes) {
  Draft draft;
  if (!map_pages(draft, shared, page_log2, bytes)) return kNoChunk;
  prefer_node(draft, numa_node);
  if (!populate(draft, true) || (shared && !seal(draft.fd))) return kNoChunk;
  return draft.finish(id, page_log2 == 30 ? "1GB" : "2MB");
}

Result<Chunk> map_normal(bool shared, bool transparent, int numa_node, uint32_t id, size_t bytes) {
  // Populating more memory than is available would start the OOM killer. (The OOM killer of a control group may still
  // start.)
  if (shared && bytes > available_bytes()) return kNoChunk;
  Draft draft;
  if (!map_pages(draft, shared, 0, bytes)) return shared && draft.fd < 0 ? no_memfd(errno) : no_pages(errno);
  prefer_node(draft, numa_node);
  transparent = madvise(draft.base, draft.bytes, transparent ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0 && transparent &&
                base::may_become_transparent(shared);
  if (shared) {
    if (!populate(draft, false)) return no_pages(errno);
    if (!seal(draft.fd)) {
      return Status(Code::kUnavailable,
                    "cannot seal a memfd against writing: shared memory needs Linux 5.1 or newer, and a sandbox that "
                    "allows fcntl(F_ADD_SEALS); or use udp");
    }
  }
  return draft.finish(id, transparent ? "transparent" : "normal");
}

}  // namespace

Result<int> choose_numa_node(int wanted) {
  const bool has_numa = numa_available() >= 0;
  if (wanted > (has_numa ? numa_max_node() : 0)) {
    return Status(Code::kMisuse, "numa_node is not a node of this machine: see numactl --hardware");
  }
  if (!has_numa) return -1;
  if (wanted >= 0) return wanted;
  // Does not use numa_node_of_cpu(), because it fills its cache without a lock, and a second thread's copy leaks.
  unsigned cpu, node;
  return getcpu(&cpu, &node) == 0 ? static_cast<int>(node) : 0;
}

Result<Chunk> map_chunk(const ArenaOptions& options, int numa_node, uint32_t id, size_t wanted_bytes,
                        size_t needed_bytes, size_t limit_bytes) {
  wanted_bytes = std::max(wanted_bytes, needed_bytes);
  if (options.giant_pages) {
    const size_t bytes = round_up(wanted_bytes, kGiantPageBytes);
    if (bytes <= limit_bytes) {
      if (auto chunk = map_huge(options.shared, numa_node, id, 30, bytes); chunk.ok()) return chunk;
    }
  }
  const size_t in_huge_pages = round_up(wanted_bytes, kHugePageBytes);
  if (options.huge_pages && in_huge_pages <= limit_bytes) {
    if (auto chunk = map_huge(options.shared, numa_node, id, 21, in_huge_pages); chunk.ok()) return chunk;
  }
  const size_t bytes = std::min(in_huge_pages, limit_bytes / kPageBytes * kPageBytes);
  if (bytes < needed_bytes) return kNoChunk;
  return map_normal(options.shared, options.huge_pages, numa_node, id, bytes);
}

void unmap_chunk(const Chunk& chunk) {
  munmap(chunk.base, chunk.bytes);
  if (chunk.fd >= 0) close(chunk.fd);
}

}  // namespace tern::memory
