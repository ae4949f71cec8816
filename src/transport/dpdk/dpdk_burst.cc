#include "transport/dpdk/dpdk_burst.h"

#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "transport/dpdk/eal.h"
#include "transport/dpdk/lane_internals.h"

namespace tern::transport {

namespace {

/// Initial-exec, so that its access needs no call.
constinit thread_local bool is_registered __attribute__((tls_model("initial-exec"))) = false;

}  // namespace

uint32_t DpdkBurst::receive() {
  if (!is_registered) [[unlikely]] {
    is_registered = true;
    register_eal_thread();  // drivers use its cache of mbufs
  }
  count_ = lane_->receive(mbufs_.data(), DpdkLane::kBurstMax);
  for (uint32_t i = 0; i < count_; ++i) {
    rte_mbuf* const mbuf = mbufs_[i];
    Frame& frame = frames_[i];
    // This bit is set in the flags for "good" and for "no checksum, but the bytes are right", as between virtual
    // machines.
    frame.checks = {(mbuf->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_GOOD) != 0,
                    (mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_GOOD) != 0};
    frame.data = rte_pktmbuf_mtod(mbuf, const std::byte*);
    frame.bytes = mbuf->data_len;
    if (mbuf->nb_segs == 1) [[likely]]
      continue;
    const bool is_whole = rte_pktmbuf_linearize(mbuf) == 0;
    frame.data = is_whole ? rte_pktmbuf_mtod(mbuf, const std::byte*) : nullptr;
    frame.bytes = is_whole ? mbuf->data_len : 0;
  }
  return count_;
}

bool DpdkBurst::pass_on(uint32_t i) {
  if (!lane_->pass_on(mbufs_[i])) return false;
  mbufs_[i] = nullptr;
  return true;
}

/// Like rte_pktmbuf_free_bulk(), which takes three times as many instructions for frames of one mbuf and one pool.
void DpdkBurst::free() {
  rte_mempool* pool = nullptr;
  uint32_t count = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    rte_mbuf* const mbuf = mbufs_[i];
    if (mbuf == nullptr) [[unlikely]]
      continue;
    if (count == 0) pool = mbuf->pool;
    if (mbuf->pool != pool || mbuf->next != nullptr) [[unlikely]] {
      rte_pktmbuf_free(mbuf);
    } else if (rte_pktmbuf_prefree_seg(mbuf) != nullptr) [[likely]] {
      mbufs_[count++] = mbuf;
    }
  }
  if (count == 0) return;
  void* const* const objects = reinterpret_cast<void* const*>(mbufs_.data());
  rte_mempool_generic_put(pool, objects, count, rte_mempool_default_cache(pool, rte_lcore_id()));
}

}  // namespace tern::transport
