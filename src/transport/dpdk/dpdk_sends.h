// The frames that an endpoint sends: mbufs that it keeps, in the order in which they leave. Transport layer; owned by
// the endpoint's thread. A driver may free what it has taken in another thread.
//
// Positions count the frames of all time. A frame is queued by open() or add(), the driver has it from transmit() on,
// and is done with it when take_done() finds that. Each slot has an mbuf for a frame, and one more that shows message
// memory and follows in a gathered frame. The endpoint keeps a reference to both as long as it lives. A driver that
// frees them takes its own reference back only: so no frame costs an allocation, and the driver is done with a slot
// when the endpoint's references are the only ones.
//
// While the driver has nothing, the next frame takes the first slot, because that is in the cache.
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

  /// What is the same in all frames.
  struct Form {
    frames::MacAddress own_mac;  ///< frames to it are looped back
    uint32_t header_bytes = 0;   ///< 42, 46, 62 or 66
    bool is_ipv4 = false;
    uint32_t datagram_bytes = 0;   ///< the longest UDP payload
    bool makes_checksums = false;  ///< the device does
    bool gathers = false;          ///< the device sends frames of several segments, from message memory
  };

  DpdkSends() = default;
  DpdkSends(const DpdkSends&) = delete;
  DpdkSends& operator=(const DpdkSends&) = delete;
  /// Leaves frames to the driver that it still has, and their memory, but for message memory.
  ~DpdkSends();

  /// `lane` outlives the object, as do `arena` and `memory`, its registration. kNoMemory: EAL has no memory for the
  /// frames.
  Status create(DpdkLane& lane, memory::Arena& arena, const DpdkMemory& memory, const Form& form);
  /// The end: waits until the driver reads no message memory, in bounded time. Frames that it has not taken are lost.
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
  /// Gives complete frames to the driver, as many as it takes. False: it takes none.
  bool transmit();
  /// The driver has frames of which somebody wants to know that it is done with them: message memory is held, or half
  /// of the slots.
  bool wants_done() const { return last_read_ > done_ || queued_ - done_ > kSlots / 2; }
  /// Finds the frames that the driver is done with; asks the driver to free some first.
  void take_done();
  /// next() has refused a slot; until make_space() has found one.
  bool has_refused() const { return is_refused_; }
  /// False: the driver still has all slots.
  bool make_space();
  /// Frames that the driver has not taken are lost. Returns how many there were.
  uint64_t drop_queued();
  /// The device is gone: nothing is read any more, and what it has may never come back.
  void abandon() {
    (void)drop_queued();
    done_ = sent_;
  }
  /// From now on message memory is copied.
  void stop_gathering() { copied_bytes_max_ = SIZE_MAX; }

  /// Of all that is queued.
  uint64_t ticket() const { return queued_; }
  /// Nobody reads message memory for frames with tickets up to this. Never falls.
  uint64_t released() const {
    if (last_read_ <= done_) return sent_;
    return std::max(done_, std::min(first_read_, sent_));
  }
  /// The driver has frames that show message memory.
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
  uint64_t first_read_ = 0;  ///< the first gathered frame since all were done
  uint64_t last_read_ = 0;   ///< after the last such frame
  size_t copied_bytes_max_ = SIZE_MAX;
  uint32_t local_count_ = 0;  ///< of is_local_, among those that are queued
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
