// Memory that a NIC may read and write: the chunks of an arena, and a transport's queues. RDMA layer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <tern/status.h>

#include "memory/arena.h"
#include "rdma/handles.h"

namespace tern::rdma {

/// Registers `bytes` at `base` for access by the NIC, for packets in and out. `transport` begins the text of an error.
/// kUnavailable: the limit of locked memory, or of the device, is reached; the text names the limit and how to raise
/// it.
Result<MemoryRegion> register_memory(std::string_view transport, ibv_pd* domain, std::byte* base, size_t bytes);

/// Keeps every chunk of an arena registered, from observe() until unobserve(). Any thread that allocates makes chunks,
/// with the arena's mutex held. Only the thread that owns the arena may call key_of(). The object can be neither moved
/// nor copied, because the arena has its address.
class ChunkRegistration final : public memory::ChunkObserver {
 public:
  /// This many chunks suffice, because each chunk of an arena is twice the one before, up to 8 times the first.
  static constexpr uint32_t kChunksMax = 256;

  ChunkRegistration(std::string_view transport, ibv_pd* domain) : transport_(transport), domain_(domain) {}
  ChunkRegistration(const ChunkRegistration&) = delete;
  ChunkRegistration& operator=(const ChunkRegistration&) = delete;

  Status on_chunk_made(const memory::Chunk& chunk) override;
  void on_chunk_gone(const memory::Chunk& chunk) override;

  /// The local key of a registered chunk.
  uint32_t key_of(uint32_t chunk_id) const { return keys_[chunk_id].load(std::memory_order_relaxed); }

 private:
  const std::string_view transport_;
  ibv_pd* const domain_;
  std::array<std::atomic<uint32_t>, kChunksMax> keys_{};
  std::array<MemoryRegion, kChunksMax> regions_;
};

/// Registered memory for a transport's own queues, on its NUMA node, in huge pages if there are any. A forked child
/// does not have it.
class RegisteredMemory {
 public:
  static Result<std::unique_ptr<RegisteredMemory>> create(std::string_view transport, ibv_pd* domain, size_t bytes);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::byte* base() const { return chunk_.base; }
  uint32_t key() const { return region_->lkey; }

 private:
  explicit RegisteredMemory(const memory::Chunk& chunk) : chunk_(chunk) {}

  memory::Chunk chunk_;
  MemoryRegion region_;
};

}  // namespace tern::rdma
