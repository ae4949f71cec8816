// The receive queue of an endpoint at its device: strided buffers, a completion queue that overflows on purpose, and
// the steering rule for its frames. Transport layer; owned by the endpoint's thread.
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"
#include "rdma/completions.h"
#include "rdma/handles.h"
#include "rdma/overflowed_queue.h"
#include "rdma/strided_ring.h"

namespace tern::transport {

class Mlx5Receive {
 public:
  /// Number of completion entries. With fewer, the NIC and the CPU contend for their cache lines (eRPC, appendix A).
  static constexpr uint32_t kEntries = 8;

  struct Frames {
    uint8_t port;
    frames::MacAddress mac;
    uint16_t vlan;
    base::SocketAddress address;
  };
  using Seen = rdma::OverflowedQueue::Seen;
  using Completion = rdma::OverflowedQueue::Completion;

  /// `memory` is for all strides, and is registered under `key`. Context and domain must outlive the object. False:
  /// errno has the reason.
  [[nodiscard]] bool open(ibv_context* context, ibv_pd* domain, uint32_t strides, uint32_t stride_bytes,
                          std::byte* memory, uint32_t key);
  /// Makes the queue and its steering rule, and replaces existing ones; packets that have arrived are lost.
  /// kUnavailable: the device refuses, and there is no queue; the text names the refused step.
  Status start(const Frames& frames);
  /// Stops the queue: after it the NIC writes no more.
  void stop();
  /// In a forked child: closes the descriptors, and does not change the parent's objects.
  void abandon() { events_.abandon(); }

  uint32_t strides() const { return ring_.strides(); }
  /// Returns the state of the next frame. After kCompleted and kOverwritten the frame may be read. Only kCompleted
  /// fills in `completion`.
  [[gnu::always_inline]] Seen look(Completion* completion) const { return entries_.look(ring_.position(), completion); }
  /// The whole stride of that frame, which takes up the front part. Valid until post().
  std::span<const std::byte> stride() const { return {ring_.stride(), ring_.stride_bytes()}; }
  /// Call it after the frame was visited.
  void advance() { ring_.advance(); }
  bool wants_post() const { return ring_.wants_post(); }
  void post() { ring_.post(); }

  /// Readable after a frame came to the armed queue, until drain().
  int descriptor() const { return events_.descriptor(); }
  /// After this the next frame makes the descriptor readable. The caller must then poll once more.
  void arm();
  void drain() { arm_number_ += events_.drain(); }

 private:
  struct Destroyer {
    void operator()(ibv_wq* queue) const { (void)ibv_destroy_wq(queue); }
    void operator()(ibv_rwq_ind_table* table) const { (void)ibv_destroy_rwq_ind_table(table); }
    void operator()(ibv_flow* flow) const { (void)ibv_destroy_flow(flow); }
  };

  Status make(const Frames& frames);
  Status make_completions();
  Status make_queue();
  Status make_pair();
  Status refusal(const char* what) const;

  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  rdma::StridedRing ring_;
  rdma::OverflowedQueue entries_;
  uint32_t arm_number_ = 0;  ///< events of the completion queue so far
  mlx5dv_cq raw_{};
  // Destroyed in reverse order.
  rdma::CompletionEvents events_;
  rdma::CompletionQueue completions_;
  std::unique_ptr<ibv_wq, Destroyer> queue_;
  std::unique_ptr<ibv_rwq_ind_table, Destroyer> table_;  ///< of this one queue
  rdma::QueuePair pair_;                                 ///< the target of steering rules
  std::unique_ptr<ibv_flow, Destroyer> flow_;
};

}  // namespace tern::transport
