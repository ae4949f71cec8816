// Received datagrams of one or more packets, each with its length in its header. Transport layer; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/detail/export.h>

#include "transport/transport.h"
#include "wire/header.h"

namespace tern::transport {

/// Called if no valid packet begins at the front of `left`. Returns the number of bytes to skip. Counts the reason,
/// unless they are padding. `is_whole`: nothing was in front of `left`, so zeros to its end are no padding.
TERN_API size_t skip_packet(std::span<const std::byte> left, bool is_whole, TransportCounters& counters);

/// True if a header's first word is that of a valid packet. The length is not checked.
inline bool is_packet_start(uint64_t w0) {
  constexpr uint64_t kFixed = 0xf0 | uint64_t{wire::kByReference} << 8;
  return (w0 & kFixed) == wire::kVersion << 4 && wire::is_known(static_cast<uint8_t>(w0 & 15));
}

/// Visits the packets of a datagram in place, in order, and counts invalid ones. Returns the number of visited packets.
/// The bytes are not trusted.
template <class Visit>
[[gnu::always_inline]] inline size_t visit_packets(const std::byte* at, size_t bytes, Visit& visit,
                                                   TransportCounters& counters) {
  constexpr size_t kHeaderBytes = wire::kHeaderBytes;
  size_t packets = 0, left = bytes;
  while (left != 0) {
    size_t space = 0;  // behind the header
    wire::Header header;
    Payload payload;
    bool is_packet = !__builtin_sub_overflow(left, kHeaderBytes, &space);
    if (is_packet) [[likely]] {
      header = wire::load_header(at);
      payload.data = at + kHeaderBytes;
      payload.bytes = header.length() -
                      static_cast<uint32_t>(kHeaderBytes);  // a too small length wraps to a number above every space
      is_packet = payload.bytes <= space;
    }
    if (!is_packet || !try_visit(visit, header, payload, nullptr)) [[unlikely]] {
      if (!is_packet || !is_packet_start(header.w0)) {
        const size_t skipped = skip_packet({at, left}, left == bytes, counters);
        at += skipped;
        left -= skipped;
        continue;
      }
      visit_uncommon(visit, header, payload, nullptr);
    }
    at = payload.data + payload.bytes;
    left = space - payload.bytes;
    ++packets;
  }
  return packets;
}

}  // namespace tern::transport
