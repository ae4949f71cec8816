// An endpoint's outgoing frames: slots of the queue's memory, which the endpoint fills and from which the kernel sends.
// Transport layer; the endpoint's thread.
//
//   position   done_ .......... sent_ .......... queued_
//              the kernel may    the endpoint     next()
//              read them         writes them
//
// Long packets, too, are copied into slots: see docs/decisions.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tern/detail/export.h>

#include "frames/frame_template.h"
#include "frames/mac_address.h"
#include "transport/xdp/kernel_socket.h"
#include "transport/xdp/queue.h"

namespace tern::transport::xdp {

/// An ethernet::FrameQueue.
class TERN_API Sends {
 public:
  static constexpr uint32_t kSlots = Queue::kSlots;
  struct Slot {
    uint32_t bytes = 0;     ///< of the frame
    bool is_local = false;  ///< to this host
  };

  /// `place` is the endpoint's place at the queue. Both objects must outlive this one.
  void start(Queue& queue, uint32_t place, KernelSocket& kernel, uint32_t frame_bytes_max);
  void set_own_mac(const frames::MacAddress& mac) { own_mac_ = mac; }

  // ---- Queueing: see ethernet::FrameQueue

  Slot* next() {
    if (queued_ - done_ >= kSlots && !make_space()) [[unlikely]]
      return nullptr;
    return &slots_[queued_ % kSlots];
  }
  uint32_t frame_bytes_max() const { return frame_bytes_max_; }
  std::byte* open(Slot& slot) {
    ++queued_;
    return frame_of(slot);
  }
  void close(Slot& slot, const frames::FrameTemplate& headers, size_t bytes);

  // ---- Transmission

  bool has_queued() const { return queued_ != sent_; }
  /// Passes the complete frames to the kernel. Returns the number of lost frames.
  uint32_t submit();
  /// True after next() has refused a slot, until make_space() has found one.
  bool has_refused() const { return is_refused_; }
  /// False: the kernel still has all slots.
  bool make_space();
  /// Drops the frames that the kernel has not taken. Returns their number.
  uint64_t drop_queued();
  Queue::Kicked kick(uint64_t& system_calls) { return queue_->kick(system_calls); }
  /// Ends sending: waits, in bounded time, until the kernel no longer reads this endpoint's slots. False: the kernel
  /// still may, and the place must stay unused.
  bool stop();

 private:
  uint32_t index_of(uint64_t position) const { return first_ + static_cast<uint32_t>(position % kSlots); }
  std::byte* frame_of(const Slot& slot) const {
    return queue_->send_frame(first_ + static_cast<uint32_t>(&slot - slots_.data()));
  }
  void find_done();

  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  uint64_t done_ = 0;
  bool is_refused_ = false;
  uint32_t first_ = 0;  ///< of the queue's frames for sending
  uint32_t frame_bytes_max_ = 0;
  uint32_t header_bytes_ = 0;
  frames::MacAddress own_mac_;
  Queue* queue_ = nullptr;
  KernelSocket* kernel_ = nullptr;
  std::array<Slot, kSlots> slots_{};
};

}  // namespace tern::transport::xdp
