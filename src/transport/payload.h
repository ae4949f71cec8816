// The payload of a received packet, where the transport has it. Transport layer; the layers above get this and the
// header of a received packet.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "wire/header.h"

namespace tern::transport {

/// The payload of a received packet. Valid inside the visitor's call only.
struct Payload {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  /// By reference: the sender's generation word, and the value under which `data` may be read. Null otherwise.
  const std::atomic<uint32_t>* lease = nullptr;
  uint32_t lease_value = 0;
  /// The packet has a congestion mark (ECN CE). Always false over a transport without marks.
  bool is_marked = false;

  /// Copies to the final place. False: the sender has taken the memory back meanwhile; treat the packet as lost and the
  /// written bytes as garbage. The bytes at `data` may change during the copy only if `lease` is set.
  bool copy_to(std::byte* to) const {
    if (lease == nullptr) [[likely]] {
      if (to != data) base::copy_bytes(to, data, bytes);  // else it was received in place
      return true;
    }
    base::copy_large(to, data, bytes);
    std::atomic_thread_fence(std::memory_order_acquire);
    return lease->load(std::memory_order_relaxed) == lease_value;
  }
};

/// A packet that will probably come next: a part that a long message still misses. See transport::ExpectingVisitor.
struct ExpectedPacket {
  wire::Header header;
  wire::Header known;          ///< the bits of `header` that the packet must have
  std::byte* place = nullptr;  ///< where the message has the payload; null: nothing is expected
  uint32_t payload_bytes = 0;

  bool is(const wire::Header& received) const {
    return (((received.w0 ^ header.w0) & known.w0) | ((received.w1 ^ header.w1) & known.w1) |
            ((received.w2 ^ header.w2) & known.w2)) == 0;
  }
};

/// Returns the payload of a packet in memory that no peer can write: copied to `space` (BurstVisitor), or in place if
/// `space` is null. `readable`: Traits::readable_bytes, or 0.
template <size_t readable = 0>
[[gnu::always_inline]] inline const std::byte* private_copy(const Payload& payload, std::byte* space) {
  if (space == nullptr) return payload.data;
  base::copy_padded<readable>(space, payload.data, payload.bytes);
  asm volatile("" : : : "memory");  // the compiler must not read the original again after this
  return space;
}

}  // namespace tern::transport
