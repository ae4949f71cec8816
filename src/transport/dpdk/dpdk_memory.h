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

/// Keeps every chunk of an arena known to DPDK and mapped for the port's device, from observe() until unobserve(). A
/// device without DMA needs neither. A chunk that cannot be mapped is no error, because packets can be copied out of
/// it. Chunks are made by any thread that allocates, with the arena's mutex held; is_mapped() is for the thread that
/// owns the arena. Neither moves nor is copied, as the arena has its address.
class DpdkMemory final : public memory::ChunkObserver {
 public:
  /// An arena doubles from chunk to chunk. Further chunks are not mapped.
  static constexpr uint32_t kChunksMax = 64;

  explicit DpdkMemory(std::shared_ptr<DpdkPort> port);
  DpdkMemory(const DpdkMemory&) = delete;
  DpdkMemory& operator=(const DpdkMemory&) = delete;

  Status on_chunk_made(const memory::Chunk& chunk) override;
  void on_chunk_gone(const memory::Chunk& chunk) override;

  /// Whether mbufs may refer to the chunk. The IOVA of a byte is then its address. Always false if the device does not
  /// gather.
  bool is_mapped(uint32_t chunk_id) const {
    return chunk_id < kChunksMax && is_mapped_[chunk_id].load(std::memory_order_relaxed);
  }

 private:
  const std::shared_ptr<DpdkPort> port_;
  std::array<std::atomic<bool>, kChunksMax> is_mapped_{};
};

}  // namespace tern::transport
