#include "transport/dpdk/dpdk_sends.h"

#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/copy.h"
#include "base/thread_safety.h"
#include "base/try.h"
#include "ethernet/open_frames.h"
#include "frames/layout.h"
#include "transport/dpdk/lane_internals.h"

namespace tern::transport {

static_assert(ethernet::GatheringQueue<DpdkSends>);

namespace {

constexpr Status kNoMemory(Code::kNoMemory,
                           "dpdk: EAL has no memory for the endpoint's frames: give it more (-m in Dpdk::Options::eal, "
                           "hugepages), or use fewer endpoints");
/// Data up to this length is copied even if the device gathers.
constexpr size_t kCopyBytesMax = 512;
/// How long the end of an endpoint waits for the driver.
constexpr uint64_t kStopNs = 20'000'000;
/// The most frames of one sender that wait at endpoints of the same port.
constexpr uint32_t kLocalFrames = 128;

/// In the private area of a frame's mbuf.
struct Private {
  uint64_t index;  ///< of the slot
};

/// The mbufs that refer to message memory must not free it.
void free_nothing(void*, void*) {}
rte_mbuf_ext_shared_info nothing_to_free = {.free_cb = free_nothing, .fcb_opaque = nullptr, .refcnt = 1};

uint32_t index_in(rte_mbuf& head) {
  return static_cast<uint32_t>(static_cast<const Private*>(rte_mbuf_to_priv(&head))->index);
}
std::byte* data_of(const rte_mbuf& head) { return static_cast<std::byte*>(head.buf_addr) + RTE_PKTMBUF_HEADROOM; }
bool is_own(const rte_mbuf* mbuf) { return rte_mbuf_refcnt_read(mbuf) == 1; }
void set_bytes(rte_mbuf& head, size_t head_bytes, size_t frame_bytes) {
  head.data_len = static_cast<uint16_t>(head_bytes);
  head.pkt_len = static_cast<uint32_t>(frame_bytes);
}

/// Pools of ended queues, with mbufs that drivers or endpoints of the same port still have.
class EndedPools {
 public:
  /// Frees the pool now, or in a later call.
  void take(rte_mempool* pool) {
    const base::MutexLock lock(mutex_);
    if (!base::try_reserve(pools_, pools_.size() + 1)) return;  // kept for ever
    pools_.push_back(pool);
    std::erase_if(pools_, [](rte_mempool* one) {
      if (rte_mempool_full(one) == 0) return false;
      rte_mempool_free(one);
      return true;
    });
  }

 private:
  base::Mutex mutex_;
  std::vector<rte_mempool*> pools_ GUARDED_BY(mutex_);
};
EndedPools& ended_pools() {
  static EndedPools& pools = *new EndedPools;  // longer than any static object
  return pools;
}

/// Makes a pool of `count` mbufs, and takes all of them into `all`. Null: no memory. The pool has no caches, because
/// few mbufs are given back.
template <size_t kCount>
rte_mempool* make_mbufs(size_t count, size_t data_bytes, std::array<rte_mbuf*, kCount>& all) {
  static std::atomic<uint32_t> number{0};
  const std::string name = "tern_sends" + std::to_string(number.fetch_add(1, std::memory_order_relaxed));
  rte_mempool* const pool = rte_pktmbuf_pool_create(name.c_str(), static_cast<unsigned>(count), 0, sizeof(Private),
                                                    static_cast<uint16_t>(data_bytes), SOCKET_ID_ANY);
  if (pool == nullptr) return nullptr;
  if (rte_pktmbuf_alloc_bulk(pool, all.data(), kCount) == 0) return pool;
  rte_mempool_free(pool);
  return nullptr;
}

/// Releases the endpoint's references; mbufs that others still have then belong to them.
template <size_t kCount>
void give_back(rte_mempool* pool, std::array<rte_mbuf*, kCount>& all) {
  if (pool == nullptr) return;
  for (rte_mbuf* const mbuf : all) {
    if (is_own(mbuf)) mbuf->ol_flags = 0;  // refers to no message memory
    rte_pktmbuf_free_seg(mbuf);
  }
  ended_pools().take(pool);
}

}  // namespace

// ---- Beginning and end ----

Status DpdkSends::create(DpdkLane& lane, memory::Arena& arena, const DpdkMemory& memory, const Form& form) {
  arena_ = &arena;
  memory_ = &memory;
  form_ = form;
  head_pool_ = make_mbufs(kSlots + kLocalFrames, RTE_PKTMBUF_HEADROOM + frame_bytes_max(), heads_);
  if (head_pool_ == nullptr) return kNoMemory;
  const size_t ip_bytes = frames::ip_header_bytes(form.is_ipv4 ? AF_INET : AF_INET6);
  for (uint32_t i = 0; i < kSlots; ++i) {
    rte_mbuf& head = *heads_[i];
    static_cast<Private*>(rte_mbuf_to_priv(&head))->index = i;
    if (!form.makes_checksums) continue;
    head.ol_flags =
        RTE_MBUF_F_TX_UDP_CKSUM | (form.is_ipv4 ? RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM : RTE_MBUF_F_TX_IPV6);
    head.tx_offload =
        rte_mbuf_tx_offload(form.header_bytes - ip_bytes - frames::kUdpBytes, ip_bytes, frames::kUdpBytes, 0, 0, 0, 0);
  }
  lane_ = &lane;
  if (!form.gathers) return {};
  view_pool_ = make_mbufs(kSlots, 0, views_);
  if (view_pool_ == nullptr) return kNoMemory;
  for (rte_mbuf* const view : views_) {
    view->ol_flags = RTE_MBUF_F_EXTERNAL;
    view->shinfo = &nothing_to_free;
    view->data_off = 0;
  }
  copied_bytes_max_ = kCopyBytesMax;
  return {};
}

void DpdkSends::stop() {
  if (lane_ == nullptr) return;
  (void)drop_queued();
  for (const uint64_t until_ns = base::monotonic_ns() + kStopNs; is_read() && base::monotonic_ns() < until_ns;) {
    take_done();
  }
  if (!is_read()) return;
  lane_->take_back();
  find_done();
}

DpdkSends::~DpdkSends() {
  give_back(head_pool_, heads_);
  give_back(view_pool_, views_);
}

// ---- Queueing ----

DpdkSends::Slot* DpdkSends::next() {
  if (is_full() && !make_space()) [[unlikely]]
    return nullptr;
  return heads_[index_of(queued_)];
}

bool DpdkSends::make_space() {
  take_done();
  is_refused_ = is_full();
  return !is_refused_;
}

inline void DpdkSends::queue(rte_mbuf& head) {
  rte_mbuf_refcnt_set(&head, 2);
  head.nb_segs = 1;
  head.next = nullptr;
  ++queued_;
}

std::byte* DpdkSends::open(Slot& head) {
  queue(head);
  return data_of(head);
}

void DpdkSends::close(Slot& head, const frames::FrameTemplate& headers, size_t bytes) {
  std::byte* const frame = data_of(head);
  headers.write(frame, bytes);
  const size_t frame_bytes = form_.header_bytes + bytes;
  set_bytes(head, frame_bytes, frame_bytes);
  if (headers.destination_mac() == form_.own_mac) [[unlikely]] {
    is_local_.set(index_in(head));
    ++local_count_;
  } else if (!form_.makes_checksums) {
    headers.complete_udp_checksum(frame, {frame + form_.header_bytes, bytes});
  }
}

void DpdkSends::add(Slot& head, const frames::FrameTemplate& headers, const wire::Header& header, const std::byte* data,
                    size_t len, const detail::Buffer* buffer) {
  std::byte* const packet = data_of(head) + form_.header_bytes;
  const size_t packet_bytes = wire::kHeaderBytes + len;
  ethernet::put_header(packet, header, packet_bytes);
  queue(head);
  if (headers.destination_mac() == form_.own_mac || !memory_->is_mapped(arena_->chunk_of(buffer).id)) [[unlikely]] {
    base::copy_bytes(packet + wire::kHeaderBytes, data, len);
    return close(head, headers, packet_bytes);
  }
  std::byte* const frame = data_of(head);
  headers.write(frame, packet_bytes);
  if (!form_.makes_checksums) {
    headers.complete_udp_checksum(frame, {packet, wire::kHeaderBytes}, {data, len});
  }
  set_bytes(head, form_.header_bytes + wire::kHeaderBytes, form_.header_bytes + packet_bytes);
  show(head, data, len);
}

/// Appends message memory to a frame.
inline void DpdkSends::show(rte_mbuf& head, const std::byte* data, size_t len) {
  rte_mbuf& view = *views_[index_in(head)];
  view.buf_addr = const_cast<std::byte*>(data);  // drivers do not write there
  rte_mbuf_iova_set(&view, reinterpret_cast<uintptr_t>(data));
  view.buf_len = view.data_len = static_cast<uint16_t>(len);
  view.pkt_len = static_cast<uint32_t>(len);
  rte_mbuf_refcnt_set(&view, 2);
  head.nb_segs = 2;
  head.next = &view;
  if (last_read_ <= done_) first_read_ = queued_ - 1;
  last_read_ = queued_;
}

// ---- Transmission ----

bool DpdkSends::transmit() {
  const uint64_t before = sent_;
  while (sent_ != queued_) {
    const uint32_t first = index_of(sent_);
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(queued_ - sent_, kSlots - first));
    const uint32_t taken = local_count_ == 0 ? lane_->transmit(&heads_[first], count) : transmit_some(first, count);
    if (taken == 0) break;
    sent_ += taken;
  }
  find_done();
  return sent_ != before;
}

/// Transmits a part of frames of which some are looped back: the first one, or those in front of the next such frame.
[[gnu::noinline]] uint32_t DpdkSends::transmit_some(uint32_t first, uint32_t count) {
  if (is_local_.test(first)) {
    forget(first);
    rte_mbuf* const copy = rte_pktmbuf_copy(heads_[first], head_pool_, 0, UINT32_MAX);
    if (copy != nullptr) lane_->loop_back(copy);
    return 1;
  }
  uint32_t of_device = 1;
  while (of_device < count && !is_local_.test(first + of_device)) ++of_device;
  return lane_->transmit(&heads_[first], of_device);
}

/// True if only this queue has a reference to the frame.
void DpdkSends::forget(uint32_t index) {
  rte_mbuf_refcnt_set(heads_[index], 1);
  if (heads_[index]->nb_segs != 1) rte_mbuf_refcnt_set(views_[index], 1);
  if (!is_local_.test(index)) return;
  is_local_.reset(index);
  --local_count_;
}

uint64_t DpdkSends::drop_queued() {
  const uint64_t count = queued_ - sent_;
  for (; sent_ != queued_; ++sent_) forget(index_of(sent_));
  return count;
}

inline bool DpdkSends::is_done(uint32_t index) const {
  return is_own(heads_[index]) && (heads_[index]->nb_segs == 1 || is_own(views_[index]));
}

inline void DpdkSends::find_done() {
  while (done_ != sent_ && is_done(index_of(done_))) ++done_;
  if (done_ == queued_) base_ = queued_;
  std::atomic_thread_fence(std::memory_order_acquire);  // the drivers' reads come before later writes
}

void DpdkSends::take_done() {
  find_done();
  if (done_ == sent_) return;
  lane_->clean_up();
  find_done();
}

}  // namespace tern::transport
