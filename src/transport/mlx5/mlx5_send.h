// The send queue of the mlx5 transport at the device: slots of frames, which leave with one doorbell. Transport layer;
// owner thread only.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tern/detail/buffer.h>
#include <tern/status.h>

#include "ethernet/open_frames.h"
#include "frames/frame_template.h"
#include "frames/layout.h"
#include "memory/arena.h"
#include "rdma/completions.h"
#include "rdma/handles.h"
#include "rdma/registration.h"
#include "rdma/send_queue.h"
#include "transport/mlx5/mlx5_device.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern::transport {

/// A GatheringQueue of ethernet::OpenFrames. The NIC gathers a frame with one long packet from its slot (headers) and
/// from message memory.
class Mlx5Send {
 public:
  /// 64 suffice to hide the latency of PCIe (eRPC, appendix A); twice that for bursts to many peers.
  static constexpr uint32_t kSlots = 128;
  /// Bytes of a slot, for a frame's headers and copied packets. A slot holds a frame of the usual MTU, 1500, with a
  /// VLAN tag, because each packet costs less if a frame has more packets.
  static constexpr uint32_t kHeadBytes = 1536;
  static_assert(frames::kHeaderBytesMax + wire::kHeaderBytes + kCopiedBytesMax <= kHeadBytes);
  using Queue = rdma::SendQueue<kSlots, kHeadBytes>;
  using Slot = Queue::Slot;

  /// The registration of message memory, with its keys at the device.
  struct Messages {
    memory::Arena* arena;
    const rdma::ChunkRegistration* chunks;
  };
  /// Makes the queue. `memory` has Queue::kMemoryBytes that are registered under `key`. All objects in the arguments
  /// must outlive this object. kUnavailable: the device refuses, no permission, no descriptors; the text names the
  /// case.
  Status open(const Mlx5Device& device, std::byte* memory, uint32_t key, const Messages& messages);
  /// Makes a failed queue ready again. The queue drops all frames, and no longer reads memory for them. False: the
  /// device refuses.
  [[nodiscard]] bool restart();
  /// Stops the queue for good: after it the NIC reads no memory.
  void stop();
  /// In a forked child: closes the descriptors, and does not change the parent's objects.
  void abandon() { events_.abandon(); }

  // ---- Frames

  Slot* next() {
    if (queue_.is_full() && !has_space()) [[unlikely]]
      return nullptr;
    return &queue_.next();
  }
  size_t copied_bytes_max() const { return kCopiedBytesMax; }
  uint32_t frame_bytes_max() const { return kHeadBytes; }
  std::byte* open(Slot& slot) {
    queue_.add(slot, rdma::Reading::kCopied);
    return slot.head;
  }
  void close(Slot& slot, const frames::FrameTemplate& headers, size_t bytes);
  void add(Slot& slot, const frames::FrameTemplate& headers, const wire::Header& header, const std::byte* data,
           size_t len, const detail::Buffer* buffer);

  bool has_queued() const { return queue_.has_queued(); }
  /// Passes all queued frames to the NIC. False: the queue has failed.
  [[nodiscard]] bool post() { return queue_.post(pair_.get()) == 0; }
  uint64_t ticket() const { return queue_.ticket(); }
  uint64_t released() const { return queue_.released(); }

  // ---- Completions, events, waiting

  bool wants_completions() const { return queue_.wants_completions(); }
  void poll();
  /// The results of the completions since the last call.
  Queue::Polled take_report() { return std::exchange(report_, {}); }
  bool is_of(const ibv_qp* pair) const { return pair == pair_.get(); }
  bool is_of(const ibv_cq* completions) const { return completions == completions_.get(); }

  /// True if a frame was refused, because the queue was full.
  bool has_refused() const { return is_refused_; }
  /// Polls for completions. True: the queue accepts frames.
  bool has_space() {
    poll();
    is_refused_ = queue_.is_full();
    return !is_refused_;
  }
  /// After this the next completion makes the descriptor readable. False: it may have come already.
  [[nodiscard]] bool arm() { return rdma::CompletionEvents::arm(completions_.get()); }
  int descriptor() const { return events_.descriptor(); }
  void drain() { (void)events_.drain(); }

 private:
  Status make_pair(const Mlx5Device& device);
  bool start();

  Queue queue_;
  Messages messages_{};
  Queue::Polled report_;
  uint32_t inline_bytes_max_ = 0;
  bool makes_checksums_ = false;
  bool is_refused_ = false;
  uint8_t port_ = 0;
  // Destroyed in reverse order.
  rdma::CompletionEvents events_;
  rdma::CompletionQueue completions_;
  rdma::QueuePair pair_;
};

}  // namespace tern::transport
