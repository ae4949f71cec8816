// Chunks: the memory of an arena as the operating system gives it. Explicit huge pages where they are present,
// else normal pages that may become transparent huge ones; private, or a sealed memfd that peers can map.
// Memory room: knows the operating system; does not know what is cut out of a chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/status.h>

namespace tern::memory {

struct ArenaOptions {
  bool shared = false;       ///< chunks are sealed memfds that peers can map (read-only for them)
  bool huge_pages = true;    ///< try explicit 2 MB pages first; else transparent ones where allowed
  bool giant_pages = false;  ///< try 1 GB pages before that
  int numa_node = -1;        ///< -1: where the creating thread runs
  size_t chunk_bytes =
      32u << 20;  ///< the first step of growth, or one message if that is larger; the next ones double it
  size_t limit_bytes = SIZE_MAX;  ///< of all chunks together; beyond it allocation fails
};

/// One mapped piece of an arena. Ids count from 0 and are never reused; chunks are never unmapped
/// before the arena dies.
struct Chunk {
  std::byte* base;
  size_t bytes;
  int fd;  ///< sealed memfd (SHRINK, GROW, FUTURE_WRITE), or -1
  uint32_t id;
  const char* pages;  ///< "1GB", "2MB", "transparent" or "normal"
};

/// Bases are aligned to this, sizes too where the limit lets them: one transparent or explicit huge page.
inline constexpr size_t kHugePageBytes = 2u << 20;

/// `wanted`, or the NUMA node of the calling thread; -1 if the system knows no nodes. kMisuse: `wanted` is no node of
/// this machine.
Result<int> choose_numa_node(int wanted);

/// Maps a chunk of about `wanted_bytes`, at least `needed_bytes` and at most `limit_bytes`, with the page kinds that
/// `options` allow, the largest first; prefers (but does not insist on) memory of `numa_node`. Touching it cannot
/// raise SIGBUS: memfd and huge pages are populated here, and kNoMemory is returned if there are not enough.
/// Children of fork() do not have it. The caller owns the result.
Result<Chunk> map_chunk(const ArenaOptions& options, int numa_node, uint32_t id, size_t wanted_bytes,
                        size_t needed_bytes, size_t limit_bytes);
void unmap_chunk(const Chunk& chunk);

}  // namespace tern::memory
