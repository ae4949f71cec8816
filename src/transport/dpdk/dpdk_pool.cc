#include "transport/dpdk/dpdk_pool.h"

#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memzone.h>

#include "transport/dpdk/dpdk_plan.h"

namespace tern::transport {

namespace {

constexpr size_t kPageBytes = 4096;

void free_memory(rte_mempool_memhdr* /*memory*/, void* zone) {
  (void)rte_memzone_free(static_cast<const rte_memzone*>(zone));
}

/// Objects of a page each. The pools that EAL makes spread objects over memory channels.
bool fill_by_pages(rte_mempool* pool, const std::string& name, const DpdkPlan& plan, int socket) {
  rte_pktmbuf_pool_private kind{};
  kind.mbuf_data_room_size = plan.mbuf_bytes;
  if (rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), nullptr) != 0) return false;
  rte_pktmbuf_pool_init(pool, &kind);
  const size_t object_bytes = pool->header_size + pool->elt_size + pool->trailer_size;
  const size_t bytes = object_bytes * plan.mbufs;
  const rte_memzone* const zone = rte_memzone_reserve_aligned(name.c_str(), bytes, socket, 0, kPageBytes);
  if (zone == nullptr) return false;
  const int objects = rte_mempool_populate_iova(pool, static_cast<char*>(zone->addr), zone->iova, bytes, free_memory,
                                                const_cast<rte_memzone*>(zone));
  if (objects != static_cast<int>(plan.mbufs)) return false;
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  return true;
}

}  // namespace

rte_mempool* make_receive_pool(const std::string& name, const DpdkPlan& plan, uint32_t cache, int socket) {
  if (!plan.fits_pages) return rte_pktmbuf_pool_create(name.c_str(), plan.mbufs, cache, 0, plan.mbuf_bytes, socket);
  rte_mempool* const pool =
      rte_mempool_create_empty(name.c_str(), plan.mbufs, static_cast<uint32_t>(sizeof(rte_mbuf)) + plan.mbuf_bytes,
                               cache, sizeof(rte_pktmbuf_pool_private), socket, RTE_MEMPOOL_F_NO_SPREAD);
  if (pool == nullptr || fill_by_pages(pool, name, plan, socket)) return pool;
  rte_mempool_free(pool);
  return nullptr;
}

}  // namespace tern::transport
