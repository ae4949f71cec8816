// Chunks: the memory of an arena, from the operating system. They have explicit huge pages if there are any, otherwise
// normal pages that may become transparent huge ones. A chunk is private, or a sealed memfd that peers can map.
// Memory layer: independent of the arena's use of a chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern::memory {

struct ArenaOptions {
  bool shared = false;             ///< chunks are sealed memfds that peers can map (read-only for them)
  bool huge_pages = true;          ///< try explicit 2 MB pages first; otherwise transparent huge pages where allowed
  bool giant_pages = false;        ///< try 1 GB pages before 2 MB pages
  int numa_node = -1;              ///< -1: the node of the creating thread
  size_t chunk_bytes = 32u << 20;  ///< size of the first chunk, or of one message if larger
  uint32_t doublings = 3;          ///< a later chunk is as large as all before it, at most chunk_bytes << doublings
  size_t limit_bytes = SIZE_MAX;   ///< limit of the sum of all chunks; allocations beyond it fail
};

/// One mapped piece of an arena. Ids count from 0 and are not reused. A chunk stays mapped until the arena is deleted.
struct Chunk {
  std::byte* base;
  size_t bytes;
  int fd;  ///< sealed memfd (SHRINK, GROW, FUTURE_WRITE), or -1
  uint32_t id;
  const char* pages;  ///< "1GB", "2MB", "transparent" or "normal"
};

/// The alignment of a chunk's base: one huge page. Sizes are multiples of it if the limit allows that.
inline constexpr size_t kHugePageBytes = 2u << 20;

/// Returns `wanted`, or the NUMA node of the calling thread if `wanted` is negative; -1 if the system knows no nodes.
/// kMisuse: this machine has no node `wanted`.
TERN_API Result<int> choose_numa_node(int wanted);

/// Maps a chunk of about `wanted_bytes`, at least `needed_bytes` and at most `limit_bytes`. Tries the page sizes that
/// `options` allow, the largest first. Prefers memory of `numa_node`, but takes memory of other nodes if it must.
/// Pages of memfds and huge pages are populated, so that a lack of them is kNoMemory here and not a SIGBUS later.
/// Children of fork() do not have the chunk. The caller owns the result.
TERN_API Result<Chunk> map_chunk(const ArenaOptions& options, int numa_node, uint32_t id, size_t wanted_bytes,
                                 size_t needed_bytes, size_t limit_bytes);
TERN_API void unmap_chunk(const Chunk& chunk);

}  // namespace tern::memory
