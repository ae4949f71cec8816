// The strided receive queue of a NIC. A descriptor has many buffers (strides), each for one packet, which the NIC fills
// in order (eRPC, appendix A). A descriptor is posted again when all of its strides have been visited. RDMA layer;
// owner thread only.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "rdma/overflowed_queue.h"

namespace tern::rdma {

class StridedRing {
 public:
  static constexpr uint32_t kStridesPerDescriptor = OverflowedQueue::kStridesPerDescriptor;

  /// The `strides` buffers lie one after the other from `base` on, `stride_bytes` each, in memory that is registered
  /// under `key`. `strides` is a power of two, and enough for two descriptors or more. attach() must be called before
  /// all other functions.
  void create(uint32_t strides, std::byte* base, uint32_t stride_bytes, uint32_t key) {
    CHECK(std::has_single_bit(strides) && strides >= 2 * kStridesPerDescriptor, ==, true);
    mask_ = strides - 1;
    base_ = base;
    stride_bytes_ = stride_bytes;
    key_ = key;
  }

  uint32_t strides() const { return mask_ + 1; }
  uint32_t stride_bytes() const { return stride_bytes_; }
  uint32_t descriptors() const { return strides() / kStridesPerDescriptor; }
  /// The position of the next packet: counts all packets since attach(), modulo OverflowedQueue::kCycle.
  uint32_t position() const { return position_; }
  /// The stride of the next packet. The caller may read it until it calls post() after advance().
  const std::byte* stride() const { return base_ + size_t{position_ & mask_} * stride_bytes_; }
  /// Must be called when the packet has been visited.
  void advance() { position_ = (position_ + 1) % OverflowedQueue::kCycle; }

  /// True if all strides of a descriptor have been visited since it was posted.
  bool wants_post() const { return (position_ - unposted_) % OverflowedQueue::kCycle >= kStridesPerDescriptor; }
  /// Takes over the memory of a new queue that has descriptors() descriptors, and writes them. Each descriptor has the
  /// same strides in all rounds. Posts none of them; positions begin at 0. ibv_post_wq_recv(3) cannot do this, because
  /// rdma-core's mlx5 writes plain descriptors only, and waits for completions that ibv_poll_cq(3) finds.
  void attach(const mlx5dv_rwq& queue) {
    const uint32_t bytes = kStridesPerDescriptor * stride_bytes_;
    for (uint32_t i = 0; i < descriptors(); ++i) {
      auto& descriptor = *reinterpret_cast<mlx5_mprq_wqe*>(static_cast<std::byte*>(queue.buf) + i * queue.stride);
      descriptor = {};
      descriptor.dseg.byte_count = htobe32(bytes);
      descriptor.dseg.lkey = htobe32(key_);
      descriptor.dseg.addr = htobe64(reinterpret_cast<uintptr_t>(base_) + uint64_t{i} * bytes);
    }
    record_ = &queue.dbrec[MLX5_RCV_DBR];
    position_ = 0;
    unposted_ = 0;
  }
  /// Posts all descriptors whose strides have been visited; the first call posts all descriptors.
  void post() {
    unposted_ = position_ & ~(kStridesPerDescriptor - 1);
    const uint32_t posted = (unposted_ / kStridesPerDescriptor + descriptors()) & 0xffff;
    __atomic_store_n(record_, htobe32(posted), __ATOMIC_RELEASE);
  }

 private:
  uint32_t mask_ = 0;
  uint32_t position_ = 0;  ///< position of the next packet
  uint32_t unposted_ = 0;  ///< position of the first stride whose descriptor has not been posted again
  uint32_t stride_bytes_ = 0;
  std::byte* base_ = nullptr;
  uint32_t key_ = 0;
  __be32* record_ = nullptr;  ///< the queue's doorbell record
};

}  // namespace tern::rdma
