#include "rdma/registration.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status_text.h"

namespace tern::rdma {

namespace {

constexpr std::string_view kRaiseLimit =
    " (RLIMIT_MEMLOCK); raise the limit: ulimit -l unlimited, memlock in /etc/security/limits.conf, or "
    "LimitMEMLOCK=infinity in a systemd unit";

std::string megabytes(uint64_t bytes) { return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MB"; }

Status why_not_registered(std::string_view transport, size_t bytes, int error) {
  const std::string wanted = megabytes(bytes);
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (error == ENOMEM && is_limited) {
    const std::string most = std::to_string(limit.rlim_cur >> 10) + " KB";
    return base::status_of(
        Code::kUnavailable, "the NIC's memory would exceed the limit of locked memory: raise it (ulimit -l unlimited)",
        {transport, ": ", wanted, " cannot be registered with the NIC: this process may lock ", most, kRaiseLimit});
  }
  return base::status_of(Code::kUnavailable, "the NIC registers no more memory",
                         {transport, ": ", wanted, " cannot be registered with the NIC (", std::strerror(error),
                          "): the device's limit is reached, or memory is short; use fewer endpoints, or free some"});
}

}  // namespace

Result<MemoryRegion> register_memory(std::string_view transport, ibv_pd* domain, std::byte* base, size_t bytes) {
  MemoryRegion region(ibv_reg_mr(domain, base, bytes, int{IBV_ACCESS_LOCAL_WRITE}));
  if (region == nullptr) return why_not_registered(transport, bytes, errno);
  return region;
}

Status ChunkRegistration::on_chunk_made(const memory::Chunk& chunk) {
  if (chunk.id >= kChunksMax) {
    return base::status_of(
        Code::kNoMemory, "message memory has too many chunks",
        {transport_, ": message memory is in 256 chunks already, and no more can be registered: free large messages"});
  }
  auto region = register_memory(transport_, domain_, chunk.base, chunk.bytes);
  if (!region.ok()) return region.status();
  keys_[chunk.id].store((*region)->lkey, std::memory_order_relaxed);
  regions_[chunk.id] = std::move(*region);
  return {};
}

void ChunkRegistration::on_chunk_gone(const memory::Chunk& chunk) {
  CHECK(chunk.id, <, kChunksMax);
  regions_[chunk.id].reset();
}

Result<std::unique_ptr<RegisteredMemory>> RegisteredMemory::create(std::string_view transport, ibv_pd* domain,
                                                                   size_t bytes) {
  const Result<int> node = memory::choose_numa_node(-1);
  if (!node.ok()) return node.status();
  auto chunk = memory::map_chunk({}, *node, 0, bytes, bytes, SIZE_MAX);
  if (!chunk.ok()) return chunk.status();
  std::unique_ptr<RegisteredMemory> made(new (std::nothrow) RegisteredMemory(*chunk));
  if (made == nullptr) {
    memory::unmap_chunk(*chunk);
    return Status(Code::kNoMemory, "no memory for a NIC's queues: free some");
  }
  auto region = register_memory(transport, domain, chunk->base, chunk->bytes);
  if (!region.ok()) return region.status();
  made->region_ = std::move(*region);
  return made;
}

RegisteredMemory::~RegisteredMemory() {
  region_.reset();
  memory::unmap_chunk(chunk_);
}

}  // namespace tern::rdma
