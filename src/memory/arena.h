// Message memory of one endpoint: chunks of huge or normal pages on its NUMA node, cut into Buffers.
// Memory layer: independent of transports and protocols.
//
// One owner thread allocates and frees without a lock. Every other thread takes a mutex, as every thread does while
// there is no owner. The arena outlives its endpoint until the last Buffer has been released (docs/threads.md).
//
// Messages up to 65472 B lie in blocks of a power of two (128 B to 64 KiB, control line included). Blocks are cut from
// runs of 64 KiB. A block belongs to the owner or to the other threads, and goes back to its side whoever releases it.
// So blocks do not pile up on one side where one side allocates and the other one releases. A block changes its side
// only when memory is short. Larger messages are runs of 4 KiB pages.
//
// A peer with an outdated descriptor compares the word at the place of the lease with the descriptor's lease. A lease
// only grows, also when its block is used again. It grows even if its block has been dissolved and another block begins
// at the same place (`next_lease_`). Therefore an outdated lease never matches a later one.
// The word may also have become message data. This is common with large messages; blocks of 64 KiB runs are dissolved
// only when memory runs out. Arbitrary data matches with probability 2^-32, because leases start at a random value.
// An attack remains. A peer that can read the arena, and can choose data that the application stores there, could make
// the word match. The victim is another peer that has not yet read a descriptor of a call that ended early: it would
// take wrong bytes for the message. A transport that must exclude this attack has to take unread descriptors back when
// their call ends.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/thread_id.h"
#include "base/thread_safety.h"
#include "memory/chunk.h"
#include "memory/extents.h"
#include "memory/poison.h"

namespace tern::memory {

/// Receives an arena's chunks before a packet leaves from them. A transport registers them with its NIC here.
class ChunkObserver {
 public:
  /// Called for a new chunk, before the first Buffer is cut from it. On an error the arena unmaps the chunk, and the
  /// allocation that made it fails. Called by any thread that allocates, with the arena's mutex held: calls do not
  /// overlap, and the observer must not call the arena.
  virtual Status on_chunk_made(const Chunk& chunk) = 0;
  /// Called once for each chunk for which on_chunk_made() succeeded, before the arena unmaps it or the observation
  /// ends. No packet may leave from the chunk any more.
  virtual void on_chunk_gone(const Chunk& chunk) = 0;

 protected:
  ~ChunkObserver() = default;
};

class TERN_API Arena {
 public:
  static constexpr size_t kMessageBytesMax = 1u << 30;

  /// The calling thread becomes the owner. Makes the first chunk, so that a lack of memory is an error of create().
  static Result<Arena*> create(const ArenaOptions& options);

  /// A block with a capacity of at least `len_bytes`. Its length is `len_bytes`, and its lease is not exposed.
  /// Null: there is no memory, the limit is reached, len_bytes > kMessageBytesMax, or the arena is an orphan.
  /// Any thread, as long as the arena lives.
  detail::Buffer* alloc(size_t len_bytes);
  /// Gives up one owner's part of the block. The last one frees it: if a peer may be reading it, this revokes the lease
  /// first. CHECKs against a double release. Any thread.
  static void release(detail::Buffer* buffer);

  /// Gives free memory of the owner to the other threads if these have found none. Owner only; called when the mailbox
  /// has mail, which Mailbox::alloc() makes.
  void share_if_short() {
    if (is_short_.load(std::memory_order_relaxed)) [[unlikely]]
      share();
  }

  /// Makes the calling thread the owner. If there is another one, all its calls must happen before.
  void bind_owner();
  /// Leaves the arena without an owner: until bind_owner() every thread takes the mutex, and any thread may call
  /// orphan(). The owner, or the thread that destroys the endpoint, while the owner releases no Buffer.
  void disown();
  /// Ends the endpoint's use of the arena. The release of the last Buffer deletes the arena; if no Buffer is out, this
  /// call deletes it. Owner only, or any thread after disown(). In a forked child it only closes descriptors, because
  /// the child has no copy of the Buffers.
  void orphan();

  /// Calls `observer` for all present chunks, and from now on for each new one. There may be one observer. The first
  /// error is returned; the observation then ends as by unobserve(). Any thread.
  Status observe(ChunkObserver& observer);
  /// Ends the observation with on_chunk_gone() for each chunk. Must be called before the observer is destroyed. Does
  /// nothing in a forked child, because that has no chunks. Any thread.
  void unobserve();

  bool owns(const detail::Buffer* buffer) const { return buffer->arena == this; }
  /// All chunks; each stays at its index. Owner only. References are valid until the next call of chunks() or
  /// chunk_of().
  const std::vector<Chunk>& chunks() const;
  /// The chunk that `buffer` lies in, for a payload that is sent by reference. Owner only. O(log chunks); the last
  /// result is cached.
  const Chunk& chunk_of(const detail::Buffer* buffer);

  size_t bytes_mapped() const { return bytes_mapped_.load(std::memory_order_relaxed); }
  /// Buffers that have not been released. Exact when no other thread is in a call.
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
  static constexpr size_t kClasses = 10;  ///< their sizes are 128 B << class
  // Buffer::size_class is below kLarge for the owner's blocks only.
  static constexpr uint8_t kLarge = kClasses;    ///< a run of pages
  static constexpr uint8_t kForeign = 128;       ///< a block of the other threads; added to the class
  static constexpr size_t kMovedBlocks = 64;     ///< that a side without memory takes from the other one
  static constexpr size_t kSharedBlocks = 1024;  ///< most blocks of a class that share() moves
  static_assert(kBlockBytesMin << (kClasses - 1) == kRunBytes);

  static unsigned class_of(size_t len_bytes) {
    const uint64_t last_byte = (len_bytes + sizeof(Buffer) - 1) | (kBlockBytesMin - 1);
    return static_cast<unsigned>(std::bit_width(last_byte) - std::bit_width(kBlockBytesMin - 1));
  }
  static constexpr size_t block_bytes(size_t size_class) { return kBlockBytesMin << size_class; }

  /// The capacity of a block. At most 1 GiB, although a run of pages may have a little more.
  static constexpr size_t capacity_of(size_t block_bytes) {
    const size_t capacity = block_bytes - sizeof(Buffer);
    return capacity < kMessageBytesMax ? capacity : kMessageBytesMax;
  }

  struct FreeList {
    Buffer* first = nullptr;

    bool is_empty() const { return first == nullptr; }
    void push(Buffer* buffer) {
      buffer->next = first;
      first = buffer;
    }
    Buffer* pop() {
      Buffer* buffer = first;
      first = buffer->next;
      return buffer;
    }
  };
  using FreeLists = std::array<FreeList, kClasses>;

  Arena(const ArenaOptions& options, int numa_node, uint32_t first_lease);
  ~Arena();

  bool is_owner() const { return base::is_this_thread(owner_.load(std::memory_order_relaxed)); }
  /// True for the owner, and for every thread while there is no owner.
  bool may_use_owner_lists() const REQUIRES(mutex_) {
    return is_owner() || owner_.load(std::memory_order_relaxed) == base::kNoThreadId;
  }
  void count_owner_out(int64_t change) {
    owner_out_.store(owner_out_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void hide_data(const Buffer* buffer) const {
    if (!options_.shared) poison(buffer->data(), buffer->capacity_bytes);
  }
  Buffer* alloc_slow(size_t len_bytes);
  static void release_slow(Buffer* buffer);
  void share();
  void note_shortage(size_t size_class) REQUIRES(mutex_);
  Buffer* take_small(size_t size_class, bool from_owner_lists) REQUIRES(mutex_);
  void give_small(Buffer* buffer) REQUIRES(mutex_);
  void init_block(std::byte* at, uint8_t size_class, uint8_t page_in_run, size_t block_bytes) REQUIRES(mutex_);
  bool carve(size_t size_class, uint8_t home, FreeList& list) REQUIRES(mutex_);
  static void move_blocks(FreeList& from, FreeList& to, size_t count);
  Buffer* take_large(size_t len_bytes) REQUIRES(mutex_);
  void give_large(Buffer* buffer) REQUIRES(mutex_);
  std::byte* take_pages(size_t pages) REQUIRES(mutex_);
  void give_to_system(const Chunk& chunk) REQUIRES(mutex_);
  Status grow(size_t needed_bytes) REQUIRES(mutex_);
  bool dissolve_free_runs() REQUIRES(mutex_);
  void see_lease(const Buffer* buffer) REQUIRES(mutex_);
  void abandon();

  // Written by the owner, or with the mutex while there is none. Others may read the atomics.
  alignas(64) std::atomic<uint64_t> owner_;  ///< base::thread_id(); base::kNoThreadId: there is none, or an orphan
  std::atomic<int64_t> owner_out_{0};        ///< allocations minus releases of the owner; may be negative
  FreeLists owner_free_;
  mutable std::vector<Chunk> owner_chunks_;  ///< the owner's copy of chunks_
  mutable std::vector<std::pair<const std::byte*, size_t>> owner_chunks_by_base_;
  size_t last_chunk_ = 0;  ///< index of the last result of chunk_of()

  // Any thread may use these fields.
  alignas(64) mutable base::Mutex mutex_;
  std::atomic<size_t> chunk_count_{0};  ///< chunks_.size()
  std::atomic<size_t> bytes_mapped_{0};
  const ArenaOptions options_;
  const int numa_node_;  ///< -1: the system knows no nodes
  const pid_t pid_;      ///< a forked child has no chunks

  ChunkObserver* observer_ GUARDED_BY(mutex_) = nullptr;
  FreeLists returned_ GUARDED_BY(mutex_);  ///< the owner's blocks that other threads have released
  FreeLists foreign_free_ GUARDED_BY(mutex_);
  uint32_t short_classes_ GUARDED_BY(mutex_) = 0;  ///< bits of classes of which other threads have found no block
  std::atomic<bool> is_short_{false};              ///< short_classes_ is not 0
  size_t share_rest_ GUARDED_BY(mutex_) = 0;       ///< calls of share() until it may look for pages again
  int64_t foreign_out_ GUARDED_BY(mutex_) = 0;     ///< allocations minus releases of other threads; may be negative
  bool orphaned_ GUARDED_BY(mutex_) = false;
  uint32_t next_lease_ GUARDED_BY(mutex_);       ///< not below the last lease of any dissolved block
  size_t dissolve_rest_ GUARDED_BY(mutex_) = 0;  ///< failing allocations until the next dissolve_free_runs()
  Extents extents_ GUARDED_BY(mutex_);
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);  ///< by chunk id
  /// The owner's next copies of chunks_. They are made with the chunk, because chunks() must not need memory.
  mutable std::vector<Chunk> news_ GUARDED_BY(mutex_);
  mutable std::vector<std::pair<const std::byte*, size_t>> news_by_base_ GUARDED_BY(mutex_);
  size_t large_out_ GUARDED_BY(mutex_) = 0;
};

inline detail::Buffer* Arena::alloc(size_t len_bytes) {
  if (!is_owner() || len_bytes > kSmallBytesMax) [[unlikely]]
    return alloc_slow(len_bytes);
  FreeList& list = owner_free_[class_of(len_bytes)];
  if (list.is_empty()) [[unlikely]]
    return alloc_slow(len_bytes);
  Buffer* buffer = list.pop();
  buffer->in_use = Buffer::kOwned;
  buffer->length_bytes = static_cast<uint32_t>(len_bytes);
  unpoison(buffer->data(), buffer->capacity_bytes);
  count_owner_out(+1);
  return buffer;
}

inline void Arena::release(detail::Buffer* buffer) {
  Arena* arena = buffer->arena;
  if (!arena->is_owner() || buffer->size_class >= kLarge || buffer->in_use != Buffer::kOwned) [[unlikely]] {
    return release_slow(buffer);
  }
  buffer->revoke_lease();
  buffer->in_use = 0;
  arena->owner_free_[buffer->size_class].push(buffer);
  arena->hide_data(buffer);
  arena->count_owner_out(-1);
}

}  // namespace tern::memory
