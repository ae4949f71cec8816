// The receive queue of a queue pair: a ring of buffers that the NIC fills in order, posted again in batches. RDMA
// layer; owner thread only.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/try.h"

namespace tern::rdma {

class ReceiveQueue {
 public:
  /// `count` buffers lie one after the other from `base` on, `buffer_bytes` each, in memory that is registered under
  /// `key`. `count` is a power of two. Returns false if there is no memory.
  [[nodiscard]] bool create(uint32_t count, std::byte* base, uint32_t buffer_bytes, uint32_t key) {
    if (!base::try_grow([&] {
          requests_.resize(count);
          ranges_.resize(count);
        })) {
      return false;
    }
    mask_ = count - 1;
    batch_ = count < kBatch * 4 ? count / 4 : kBatch;
    base_ = base;
    buffer_bytes_ = buffer_bytes;
    for (uint32_t i = 0; i < count; ++i) {
      ranges_[i] = {reinterpret_cast<uint64_t>(base + size_t{i} * buffer_bytes), buffer_bytes, key};
      requests_[i].next = &requests_[(i + 1) & mask_];
      requests_[i].sg_list = &ranges_[i];
      requests_[i].num_sge = 1;
      requests_[i].wr_id = i;
    }
    return true;
  }

  uint32_t count() const { return mask_ + 1; }
  /// Takes the buffer of a completion out of the queue. The caller may read it until it calls post(). Null: the
  /// completion is older than the last reset().
  const std::byte* take(uint64_t id) {
    const uint32_t index = taken_ & mask_;
    if (id != (epoch_ | index)) [[unlikely]]
      return nullptr;
    ++taken_;
    return base_ + size_t{index} * buffer_bytes_;
  }
  /// True if enough buffers have been taken to be worth the doorbell that posts them again.
  bool wants_post() const { return taken_ + mask_ + 1 - posted_ >= batch_; }
  /// Posts all buffers that have been taken; the first call posts all buffers. Returns 0, or the error of
  /// ibv_post_recv(3). After an error the queue pair must be reset.
  int post(ibv_qp* pair) {
    const uint32_t end = taken_ + mask_ + 1;
    if (posted_ == end) return 0;
    ibv_recv_wr& last = requests_[(end - 1) & mask_];
    ibv_recv_wr* const next = last.next;
    last.next = nullptr;
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(pair, &requests_[posted_ & mask_], &bad);
    last.next = next;
    posted_ = end;
    return error;
  }
  /// Must be called when the queue pair has been reset: no buffer is posted any more.
  void reset() {
    taken_ = posted_;
    epoch_ += uint64_t{1} << 32;
    for (uint32_t i = 0; i <= mask_; ++i) requests_[i].wr_id = epoch_ | i;
  }

 private:
  static constexpr uint32_t kBatch = 32;

  uint32_t mask_ = 0;
  uint32_t batch_ = 1;
  std::byte* base_ = nullptr;
  uint32_t buffer_bytes_ = 0;
  // Positions count all buffers since the queue was created, modulo 2^32.
  uint32_t taken_ = 0;  ///< the next buffer that the NIC fills
  uint32_t posted_ = 0;
  uint64_t epoch_ = 0;  ///< the upper half of wr_id; each reset changes it
  std::vector<ibv_recv_wr> requests_;
  std::vector<ibv_sge> ranges_;
};

}  // namespace tern::rdma
