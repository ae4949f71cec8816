// Message memory that a DPDK device may read. Transport layer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <tern/status.h>

#include "memory/arena.h"
#include "transport/dpdk/dpdk_port.h"

namespace tern::transport {

/// Registers every chunk of an arena with DPDK and maps it for the port's device, from observe() until unobserve(). A
/// device without DMA needs neither. A chunk that cannot be mapped is not an error, because packets can be copied out
/// of it. Any thread that allocates may make chunks, under the arena's mutex; only the thread that owns the arena may
/// call is_mapped(). The object cannot be moved, because the arena has its address.
class DpdkMemory final : public memory::ChunkObserver {
 public:
  /// The most chunks; further ones are not mapped. An arena doubles its size with each chunk, so it has few.
  static constexpr uint32_t kChunksMax = 64;

  explicit DpdkMemory(std::shared_ptr<DpdkPort> port);
  DpdkMemory(const DpdkMemory&) = delete;
  DpdkMemory& operator=(const DpdkMemory&) = delete;

  Status on_chunk_made(const memory::Chunk& chunk) override;
  void on_chunk_gone(const memory::Chunk& chunk) override;

  /// True if mbufs may refer to the chunk. The IOVA of each byte is then its address. Always false if the device does
  /// not gather.
  bool is_mapped(uint32_t chunk_id) const {
    return chunk_id < kChunksMax && is_mapped_[chunk_id].load(std::memory_order_relaxed);
  }

 private:
  const std::shared_ptr<DpdkPort> port_;
  std::array<std::atomic<bool>, kChunksMax> is_mapped_{};
};

}  // namespace tern::transport
