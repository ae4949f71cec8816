// rte_dev_dma_map() is no part of the stable ABI yet.
#define ALLOW_EXPERIMENTAL_API

#include "transport/dpdk/dpdk_memory.h"

#include <rte_dev.h>
#include <rte_ethdev.h>
#include <rte_memory.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/try.h"

namespace tern::transport {

namespace {

rte_device* device_of(const DpdkPort& port) {
  rte_eth_dev_info info{};
  return rte_eth_dev_info_get(port.id(), &info) == 0 ? info.device : nullptr;
}

/// Makes the chunk known to EAL, at IOVAs that are its addresses.
bool add(const memory::Chunk& chunk) {
  const size_t huge = memory::kHugePageBytes;
  const bool is_huge = reinterpret_cast<uintptr_t>(chunk.base) % huge == 0 && chunk.bytes % huge == 0;
  const size_t page_bytes = is_huge ? huge : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<rte_iova_t> pages;
  if (!base::try_grow([&] { pages.resize(chunk.bytes / page_bytes); })) return false;
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = reinterpret_cast<uintptr_t>(chunk.base) + i * page_bytes;
  return rte_extmem_register(chunk.base, chunk.bytes, pages.data(), static_cast<unsigned>(pages.size()), page_bytes) ==
         0;
}

}  // namespace

DpdkMemory::DpdkMemory(std::shared_ptr<DpdkPort> port) : port_(std::move(port)) {}

Status DpdkMemory::on_chunk_made(const memory::Chunk& chunk) {
  const DpdkFacts& facts = port_->facts();
  if (!facts.gathers || chunk.id >= kChunksMax) return {};
  if (facts.uses_dma) {
    if (!add(chunk)) return {};
    rte_device* const device = device_of(*port_);
    const auto iova = reinterpret_cast<uintptr_t>(chunk.base);
    if (device == nullptr || rte_dev_dma_map(device, chunk.base, iova, chunk.bytes) != 0) {
      (void)rte_extmem_unregister(chunk.base, chunk.bytes);
      return {};
    }
  }
  is_mapped_[chunk.id].store(true, std::memory_order_relaxed);
  return {};
}

void DpdkMemory::on_chunk_gone(const memory::Chunk& chunk) {
  if (chunk.id >= kChunksMax || !is_mapped_[chunk.id].exchange(false, std::memory_order_relaxed)) return;
  if (!port_->facts().uses_dma) return;
  rte_device* const device = device_of(*port_);
  const auto iova = reinterpret_cast<uintptr_t>(chunk.base);
  if (device != nullptr) (void)rte_dev_dma_unmap(device, chunk.base, iova, chunk.bytes);
  (void)rte_extmem_unregister(chunk.base, chunk.bytes);
}

}  // namespace tern::transport
