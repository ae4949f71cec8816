// The frames that an endpoint sends: mbufs that it keeps, in the order in which they leave. Transport layer; owned by
// the endpoint's thread. A driver may free what it has taken in another thread.
//
// Positions count all frames since the beginning. open() or add() queues a frame, transmit() gives it to the driver,
// and take_done() finds out that the driver no longer uses it. Each slot has an mbuf for a frame, and a second mbuf
// that refers to message memory and follows in a gathered frame. The endpoint always keeps a reference to both. A
// driver that frees them only drops its own reference. Therefore no frame costs an allocation, and the driver no longer
// uses a slot when only the endpoint's references remain.
//
// While the driver has no frame, the next frame takes the first slot, because that slot is in the cache.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "frames/frame_template.h"
#include "frames/mac_address.h"
#include "memory/arena.h"
#include "transport/dpdk/dpdk_memory.h"
#include "transport/dpdk/dpdk_port.h"
#include "wire/header.h"

namespace tern::transport {

/// An ethernet::GatheringQueue.
class TERN_API DpdkSends {
 public:
  static constexpr uint32_t kSlots = 256;
  static_assert(std::has_single_bit(kSlots));
  using Slot = rte_mbuf;

  /// The common properties of all frames.
  struct Form {
    frames::MacAddress own_mac;  ///< frames to it are looped back
    uint32_t header_bytes = 0;   ///< 42, 46, 62 or 66
    bool is_ipv4 = false;
    uint32_t datagram_bytes = 0;   ///< the longest UDP payload
    bool makes_checksums = false;  ///< the device makes them
    bool gathers = false;          ///< the device sends frames of several segments, from message memory
  };

  DpdkSends() = default;
  DpdkSends(const DpdkSends&) = delete;
  DpdkSends& operator=(const DpdkSends&) = delete;
  /// Frames that the driver still has stay with the driver, and so does their memory, except message memory.
  ~DpdkSends();

  /// `lane`, `arena` and its registration `memory` must outlive the object. kNoMemory: EAL has no memory for the
  /// frames.
  Status create(DpdkLane& lane, memory::Arena& arena, const DpdkMemory& memory, const Form& form);
  /// Ends sending: waits, in bounded time, until the driver no longer reads message memory. Frames that the driver has
  /// not taken are lost.
  void stop();
  void set_own_mac(const frames::MacAddress& mac) { form_.own_mac = mac; }

  // ---- Queueing: see ethernet::GatheringQueue

  Slot* next();
  size_t copied_bytes_max() const { return copied_bytes_max_; }
  uint32_t frame_bytes_max() const { return form_.header_bytes + form_.datagram_bytes; }
  std::byte* open(Slot& head);
  void close(Slot& head, const frames::FrameTemplate& headers, size_t bytes);
  void add(Slot& head, const frames::FrameTemplate& headers, const wire::Header& header, const std::byte* data,
           size_t len, const detail::Buffer* buffer);

  // ---- Transmission

  bool has_queued() const { return queued_ != sent_; }
  /// Gives the driver as many complete frames as it takes. False: it takes none.
  bool transmit();
  /// True if take_done() must be called: the driver has frames that hold message memory, or half of the slots.
  bool wants_done() const { return last_read_ > done_ || queued_ - done_ > kSlots / 2; }
  /// Asks the driver to free frames, and finds those that it no longer uses.
  void take_done();
  /// True after next() has refused a slot, until make_space() has found one.
  bool has_refused() const { return is_refused_; }
  /// False: the driver still has all slots.
  bool make_space();
  /// Drops the frames that the driver has not taken. Returns their number.
  uint64_t drop_queued();
  /// Call it when the device is gone: it no longer reads memory, and its frames may never come back.
  void abandon() {
    (void)drop_queued();
    done_ = sent_;
  }
  /// From now on message memory is copied.
  void stop_gathering() { copied_bytes_max_ = SIZE_MAX; }

  /// The ticket of all queued frames.
  uint64_t ticket() const { return queued_; }
  /// Message memory of frames with tickets up to this one is no longer read. Never falls.
  uint64_t released() const {
    if (last_read_ <= done_) return sent_;
    return std::max(done_, std::min(first_read_, sent_));
  }
  /// True if the driver has frames that refer to message memory.
  bool is_read() const { return last_read_ > done_ && first_read_ < sent_; }

 private:
  using Mbufs = std::array<rte_mbuf*, kSlots>;

  bool is_full() const { return queued_ - done_ >= kSlots; }
  uint32_t index_of(uint64_t position) const { return static_cast<uint32_t>(position - base_) % kSlots; }
  bool is_done(uint32_t index) const;
  void find_done();
  void queue(rte_mbuf& head);
  void show(rte_mbuf& head, const std::byte* data, size_t len);
  uint32_t transmit_some(uint32_t first, uint32_t count);
  void forget(uint32_t index);

  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  uint64_t done_ = 0;
  uint64_t base_ = 0;        ///< a position of the first slot
  uint64_t first_read_ = 0;  ///< the first gathered frame since the driver last used none
  uint64_t last_read_ = 0;   ///< after the last such frame
  size_t copied_bytes_max_ = SIZE_MAX;
  uint32_t local_count_ = 0;  ///< number of queued frames with is_local_
  bool is_refused_ = false;
  Form form_;
  DpdkLane* lane_ = nullptr;
  memory::Arena* arena_ = nullptr;
  const DpdkMemory* memory_ = nullptr;
  Mbufs heads_{};
  Mbufs views_{};
  std::bitset<kSlots> is_local_;  ///< the frame is for an endpoint of the same port
  rte_mempool* head_pool_ = nullptr;
  rte_mempool* view_pool_ = nullptr;
};

}  // namespace tern::transport
