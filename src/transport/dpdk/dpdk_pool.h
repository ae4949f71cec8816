// Pools of mbufs for received frames. Transport layer; control events only.
#pragma once

#include <rte_mempool.h>

#include <cstdint>
#include <string>

namespace tern::transport {

struct DpdkPlan;

/// A pool of plan.mbufs mbufs with plan.mbuf_bytes each, and a cache of `cache` for each lcore. With plan.fits_pages
/// each mbuf is a page. The caller frees it. Null: EAL has no memory.
rte_mempool* make_receive_pool(const std::string& name, const DpdkPlan& plan, uint32_t cache, int socket);

}  // namespace tern::transport
