// The send queue of a queue pair. It makes work requests in advance, rings one doorbell for many, and tracks the
// packets that the NIC may still read. RDMA layer; owner thread only.
//
// Positions count all packets since the queue was created. add() queues a packet, and post() hands it to the NIC. The
// NIC is done with it when complete() was called for it or for a later packet. Only gathered packets need a completion
// before their memory is released; the slots of all packets need one. Few work requests are signalled: one in a quarter
// of the slots, and in each post() the last request of a gathered packet.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tern::rdma {

/// The reader of a packet, and the time until which it reads.
enum class Reading : uint8_t {
  kInline,    ///< the driver reads it, within post(); the packet fits into the queue pair's inline data
  kCopied,    ///< the NIC reads it, from its slot alone: message memory has been copied there
  kGathered,  ///< the NIC reads it, from message memory too
};

/// A queue of `kSlots` packets, a power of two and at least 8, with memory for `kHeadBytes` of each.
template <uint32_t kSlots, uint32_t kHeadBytes>
class SendQueue {
  static_assert(std::has_single_bit(kSlots) && kSlots >= 8);

 public:
  /// A packet: its work request, and memory for its headers. A transport that copies has more data in that memory. The
  /// second range may lie elsewhere.
  struct alignas(64) Slot {
    ibv_send_wr request;
    ibv_sge ranges[2];      ///< the first one begins at `head`
    unsigned inline_flags;  ///< flags of the request if the packet is inline
    alignas(8) std::byte head[kHeadBytes];
  };
  /// The size of the slots' memory, which is registered and aligned to a cache line.
  static constexpr size_t kMemoryBytes = kSlots * sizeof(Slot);

  /// Makes the slots in `memory`, which has kMemoryBytes and is registered under `key`. All requests have `flags`, of
  /// ibv_send_flags.
  void create(std::byte* memory, uint32_t key, unsigned flags = 0) {
    slots_ = reinterpret_cast<Slot*>(memory);
    for (uint32_t i = 0; i < kSlots; ++i) {
      Slot& slot = *std::construct_at(slots_ + i);
      slot.request = {};
      slot.request.next = &at(i + 1).request;
      slot.request.sg_list = slot.ranges;
      slot.request.opcode = IBV_WR_SEND;
      slot.ranges[0] = {reinterpret_cast<uint64_t>(slot.head), 0, key};
      slot.ranges[1] = {};
      slot.inline_flags = flags | IBV_SEND_INLINE;
      if (i % kInterval == kInterval - 1) slot.inline_flags |= IBV_SEND_SIGNALED;
    }
  }

  bool is_full() const { return queued_ - done_ >= kSlots; }
  bool has_queued() const { return queued_ != posted_; }
  uint64_t queued() const { return queued_ - posted_; }  ///< packets that the next post() hands over
  /// The next packet, for the caller to fill in: head, lengths and number of the ranges, and destination. Must not be
  /// called when is_full().
  Slot& next() { return at(queued_); }
  /// Queues the packet that next() describes. A copied packet may still change until post(). It may also become inline,
  /// by IBV_SEND_INLINE in its request.
  void add(Slot& slot, Reading reading) {
    slot.request.wr_id = queued_;
    slot.request.send_flags = slot.inline_flags;
    if (reading != Reading::kInline) {
      slot.request.send_flags &= ~unsigned{IBV_SEND_INLINE};
      if (reading == Reading::kGathered) {
        if (last_read_ <= done_) first_read_ = queued_;
        last_read_ = queued_ + 1;
      }
    }
    ++queued_;
  }
  /// Hands the queued packets to the NIC, as one list. Returns 0, or the error of ibv_post_send(3). After an error the
  /// queue pair must be reset.
  int post(ibv_qp* pair) {
    if (last_read_ > posted_) at(last_read_ - 1).request.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr& last = at(queued_ - 1).request;
    ibv_send_wr* const next = last.next;
    last.next = nullptr;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair, &at(posted_).request, &bad);
    last.next = next;
    posted_ = queued_;
    return error;
  }

  /// True if the caller should poll for completions: message memory is held, or the queue is more than half full.
  bool wants_completions() const { return last_read_ > done_ || queued_ - done_ > kSlots / 2; }
  /// The NIC has reported that it is done with the packet of this wr_id, and with all packets before it. Ignores
  /// completions of packets that reset() has dropped.
  void complete(uint64_t id) {
    if (is_outstanding(id)) done_ = id + 1;
  }
  struct Polled {
    bool has_sent = false;    ///< a packet has left
    bool has_failed = false;  ///< the queue pair or the completion queue cannot be used until it is reset
    uint64_t errors = 0;      ///< packets that have failed
  };
  /// Takes all completions of this queue's packets. `completions` must not have completions of other queues.
  Polled poll(ibv_cq* completions) {
    Polled polled;
    std::array<ibv_wc, 8> some;
    int got = 0;
    do {
      got = ibv_poll_cq(completions, some.size(), some.data());
      for (const ibv_wc& completion : std::span(some).first(static_cast<size_t>(std::max(got, 0)))) {
        if (completion.status == IBV_WC_SUCCESS) {
          complete(completion.wr_id);
          polled.has_sent = true;
        } else if (is_outstanding(completion.wr_id)) {
          ++polled.errors;
        }
      }
    } while (got == static_cast<int>(some.size()));
    polled.has_failed = got < 0 || polled.errors != 0;
    return polled;
  }
  bool is_outstanding(uint64_t id) const { return id >= done_ && id < posted_; }
  bool has_outstanding() const { return done_ != queued_; }
  /// The NIC is done with all packets before this position.
  uint64_t done() const { return done_; }
  /// Must be called when the queue pair has been reset: the NIC has forgotten all packets.
  void reset() { done_ = posted_ = queued_; }

  /// The ticket of all packets that are queued.
  uint64_t ticket() const { return queued_; }
  /// The NIC reads no memory of packets with tickets up to this one. The value never falls.
  uint64_t released() const {
    if (last_read_ <= done_) return posted_;
    return std::max(done_, std::min(first_read_, posted_));
  }

 private:
  /// The last packet of each interval is signalled.
  static constexpr uint32_t kInterval = kSlots / 4;

  Slot& at(uint64_t position) const { return slots_[position % kSlots]; }

  Slot* slots_ = nullptr;
  uint64_t queued_ = 0;
  uint64_t posted_ = 0;
  uint64_t done_ = 0;
  uint64_t first_read_ = 0;  ///< the first gathered packet since all were done
  uint64_t last_read_ = 0;   ///< the position after the last such packet
};

}  // namespace tern::rdma
