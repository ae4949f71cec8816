// The layout of a message buffer in its arena: one cache line of control, then the data.
// Memory layer. In shared memory peers can read this line but never write it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <tern/detail/export.h>

namespace tern::memory {
class Arena;
}

namespace tern::detail {

/// A block of an arena. `data()` is 64-byte aligned.
struct alignas(64) Buffer {
  static constexpr uint32_t kCapacityBytesMin = 64;  ///< of every block
  static constexpr uint8_t kOwned = 1;               ///< of in_use: one owner
  static constexpr uint8_t kShared = 2;              ///< of in_use: `sharers` owners, who only read

  std::atomic<uint32_t> lease;  ///< generation; peers that read the data by reference compare it after their copy
  uint8_t size_class;           ///< of the arena
  bool exposed;                 ///< a descriptor of the current lease has been given to a peer
  uint8_t in_use;               ///< 0: the block has no owner; Arena detects a second release by it
  uint8_t page_in_run;          ///< of the arena
  uint32_t length_bytes;
  uint32_t capacity_bytes;
  memory::Arena* arena;
  Buffer* next;                   ///< in a free list; for the owner's use otherwise
  std::atomic<uint32_t> sharers;  ///< with kShared: the number of owners
  uint32_t writable_end;          ///< smaller messages may be written here: capacity_bytes + 1; with kShared 0
  bool is_held;         ///< with kShared: one of the owners waits until the transport has released `held_until`
  uint64_t held_until;  ///< a ticket; like `is_held`, used by the endpoint's thread only

  std::byte* data() { return reinterpret_cast<std::byte*>(this) + sizeof(Buffer); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(this) + sizeof(Buffer); }

  /// Ends the current lease. A peer that has copied the data under this lease will see the new value, and drop its
  /// copy. Must be called before the data is written again. Takes one store and a release fence, and does not wait for
  /// peers. Does nothing for a shared buffer, because its owners do not write it, and pending calls need its lease.
  void revoke_lease() {
    if (!exposed || in_use == kShared) return;
    exposed = false;
    lease.store(lease.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }

  /// Makes an owned buffer a shared one, with one owner.
  void begin_sharing() {
    sharers.store(1, std::memory_order_relaxed);
    writable_end = 0;
    in_use = kShared;
  }
  /// Makes a shared buffer with one owner an owned buffer.
  void end_sharing() {
    writable_end = capacity_bytes + 1;
    in_use = kOwned;
  }
};
static_assert(sizeof(Buffer) == 64);

/// Gives up one owner's part of a block, which returns to its arena with the last owner. Any thread.
TERN_API void release_buffer(Buffer* buffer);

}  // namespace tern::detail
