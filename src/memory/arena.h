// Message memory of one endpoint: chunks of huge or normal pages on its NUMA node, cut into Buffers.
// Memory room: does not know who sends or what a protocol is.
//
// One owner thread allocates and frees without a lock; every other thread goes through a mutex.
// The arena outlives its endpoint until the last Buffer has come home (docs/threads.md).
//
// Messages up to 65472 B lie in blocks of a power of two (128 B to 64 KiB, control line included), which are cut
// from runs of 64 KiB and wait in one free list per size and side: the owner's own, and the foreign threads', which
// the owner takes over when its own is empty. Larger messages are runs of 4 KiB pages.
//
// What a peer with an outdated descriptor can see: it compares the word where the lease was. Such a word only ever
// grows while it is a lease, across reuse too, even if its block has been dissolved and another one begins at the same
// place (`next_lease_`), so it never matches again. Blocks of 64 KiB runs are dissolved only when memory runs out;
// elsewhere, above all with large messages, the word may have become message data. Data that was not made for it
// matches with probability 2^-32, since leases start at a random value. A peer that can read the arena and choose what
// the application stores there could make it match, for another peer that has not yet read a descriptor of a call
// that ended early; that peer would take wrong bytes for our message. A transport that cannot live with this must
// take unread descriptors back when their call ends.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "memory/chunk.h"
#include "memory/extents.h"
#include "memory/poison.h"

namespace tern::memory {

/// Its address names the calling thread while that lives; a later one may get the same, and then takes its place as
/// an owner. Initial-exec: one add to the thread pointer, no call.
TERN_API inline constinit thread_local char thread_name_storage __attribute__((tls_model("initial-exec"))) = 0;
inline const void* thread_name() { return &thread_name_storage; }

class TERN_API Arena {
 public:
  static constexpr size_t kMessageBytesMax = 1u << 30;

  /// The calling thread is the owner. The first chunk is made at once, so that "no memory" is known at birth.
  static Result<Arena*> create(const ArenaOptions& options);

  /// A block with at least `len_bytes` of capacity, its length set to `len_bytes`, lease unexposed.
  /// Null when the limit or the system's memory is reached, len_bytes > kMessageBytesMax, or the arena is an orphan.
  /// Any thread, as long as the arena lives.
  detail::Buffer* alloc(size_t len_bytes);
  /// Any thread. Revokes the lease if a peer may be reading, then gives the block back. CHECKs a double release.
  static void release(detail::Buffer* buffer);

  /// From now on the calling thread is the owner. What the previous one did must happen before.
  void bind_owner();
  /// By the owner: there is none any more, everything goes through the mutex from now on. orphan() may then be called
  /// by any thread.
  void disown();
  /// The endpoint is gone: from now on every release is foreign, and the last one deletes the arena.
  /// Deletes it at once if nothing is out. By the owner, or after disown(). In a forked child, which has no copy of the
  /// Buffers and must not touch one, it only closes descriptors.
  void orphan();

  bool owns(const detail::Buffer* buffer) const { return buffer->arena == this; }
  /// Owner only; a chunk stays at its index. The transport looks up the chunk of a Buffer to send by reference.
  /// References last until the next call of chunks() or chunk_of().
  const std::vector<Chunk>& chunks() const;
  /// The chunk that `buffer` lies in. Owner only, O(log chunks), last hit cached.
  const Chunk& chunk_of(const detail::Buffer* buffer);

  size_t bytes_mapped() const { return bytes_mapped_.load(std::memory_order_relaxed); }
  /// Buffers that are out. Exact when no other thread is in a call.
  size_t buffers_out() const;
  /// Walks all free lists and extents; CHECKs that nothing overlaps and that the sums agree. For tests.
  /// Owner only, while no other thread is in a call.
  void check_invariants();

 private:
  using Buffer = detail::Buffer;
  static constexpr size_t kBlockBytesMin = 128;
  static constexpr size_t kRunBytes = 64u << 10;  ///< blocks are cut from runs of this size; also the largest block
  static constexpr size_t kRunPages = kRunBytes / Extents::kPageBytes;
  static constexpr size_t kSmallBytesMax = kRunBytes - sizeof(Buffer);
  static constexpr size_t kClasses = 10;       ///< of 128 B << class
  static constexpr uint8_t kLarge = kClasses;  ///< Buffer::size_class of a run of pages
  static_assert(kBlockBytesMin << (kClasses - 1) == kRunBytes);

  static unsigned class_of(size_t len_bytes) {
    const uint64_t last_byte = (len_bytes + sizeof(Buffer) - 1) | (kBlockBytesMin - 1);
    return static_cast<unsigned>(std::bit_width(last_byte) - std::bit_width(kBlockBytesMin - 1));
  }
  static constexpr size_t block_bytes(size_t size_class) { return kBlockBytesMin << size_class; }

  /// What a block offers; 1 GiB at most, although a run of pages may have a little more.
  static constexpr size_t capacity_of(size_t block_bytes) {
    const size_t capacity = block_bytes - sizeof(Buffer);
    return capacity < kMessageBytesMax ? capacity : kMessageBytesMax;
  }

  struct FreeList {
    Buffer* first = nullptr;

    void push(Buffer* buffer) {
      buffer->next = first;
      first = buffer;
    }
  };
  using FreeLists = std::array<FreeList, kClasses>;

  Arena(const ArenaOptions& options, int numa_node, uint32_t first_lease);
  ~Arena();

  bool is_owner() const { return owner_.load(std::memory_order_relaxed) == thread_name(); }
  void count_owner_out(int64_t change) {
    owner_out_.store(owner_out_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void hide_data(const Buffer* buffer) const {
    if (!options_.shared) poison(buffer->data(), buffer->capacity_bytes);
  }
  Buffer* alloc_slow(size_t len_bytes);
  static void release_slow(Buffer* buffer);
  // With mutex_ held:
  void init_block(std::byte* at, uint8_t size_class, uint8_t page_in_run, size_t block_bytes);
  bool carve(size_t size_class, FreeList& list);
  Buffer* take_large(size_t len_bytes);
  void give_large(Buffer* buffer);
  std::byte* take_pages(size_t pages);
  Status grow(size_t needed_bytes);
  bool dissolve_free_runs();
  void see_lease(const Buffer* buffer);
  void abandon();

  // Written by the owner only; others may read the atomics.
  alignas(64) std::atomic<const void*> owner_;  ///< thread_name() of the owner; null: an orphan
  std::atomic<int64_t> owner_out_{0};           ///< allocations minus releases of the owner; may be negative
  FreeLists owner_free_;
  mutable std::vector<Chunk> owner_chunks_;  ///< the owner's copy of chunks_
  mutable std::vector<std::pair<const std::byte*, size_t>> owner_chunks_by_base_;
  size_t last_chunk_ = 0;  ///< index of the chunk_of() answer before

  // Any thread.
  alignas(64) mutable std::mutex mutex_;
  std::atomic<size_t> chunk_count_{0};  ///< chunks_.size()
  std::atomic<size_t> bytes_mapped_{0};
  const ArenaOptions options_;
  const int numa_node_;  ///< -1: the system knows no nodes
  const pid_t pid_;      ///< a forked child has no chunks

  // Guarded by mutex_.
  FreeLists foreign_free_;
  int64_t foreign_out_ = 0;  ///< allocations minus releases of other threads; may be negative
  bool orphaned_ = false;
  uint32_t next_lease_;       ///< above the last lease of every block that was dissolved
  size_t dissolve_rest_ = 0;  ///< failing allocations until the next dissolve_free_runs()
  Extents extents_;
  std::vector<Chunk> chunks_;  ///< by id
  /// What the owner's copies become at its next look; made when a chunk is, as the look must not need memory.
  mutable std::vector<Chunk> news_;
  mutable std::vector<std::pair<const std::byte*, size_t>> news_by_base_;
  size_t large_out_ = 0;
};

inline detail::Buffer* Arena::alloc(size_t len_bytes) {
  if (!is_owner() || len_bytes > kSmallBytesMax) [[unlikely]]
    return alloc_slow(len_bytes);
  FreeList& list = owner_free_[class_of(len_bytes)];
  Buffer* buffer = list.first;
  if (buffer == nullptr) [[unlikely]]
    return alloc_slow(len_bytes);
  list.first = buffer->next;
  buffer->in_use = 1;
  buffer->length_bytes = static_cast<uint32_t>(len_bytes);
  unpoison(buffer->data(), buffer->capacity_bytes);
  count_owner_out(+1);
  return buffer;
}

inline void Arena::release(detail::Buffer* buffer) {
  Arena* arena = buffer->arena;
  if (!arena->is_owner() || buffer->size_class >= kLarge || buffer->in_use != 1) [[unlikely]] {
    return release_slow(buffer);
  }
  buffer->revoke_lease();
  buffer->in_use = 0;
  arena->owner_free_[buffer->size_class].push(buffer);
  arena->hide_data(buffer);
  arena->count_owner_out(-1);
}

}  // namespace tern::memory
