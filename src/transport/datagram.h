// Received datagrams that are rows of packets, each of which tells its length. Transport layer; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/detail/export.h>

#include "transport/transport.h"
#include "wire/header.h"

namespace tern::transport {

/// Counts why no packet begins at the front of `left` that can be handed out. Returns how many bytes to skip.
TERN_API size_t skip_packet(std::span<const std::byte> left, TransportCounters& counters);

/// Whether a header's first word is that of a packet that may be handed out, but for its length.
inline bool is_packet_start(uint64_t w0) {
  constexpr uint64_t kFixed = 0xf0 | uint64_t{wire::kByReference} << 8;
  // Of most packets. Where they are handled, the compiler knows then which of the two one is.
  const auto shape = static_cast<uint16_t>(w0);
  if (shape == wire::shape_of(wire::Kind::kRequest, wire::kFirst)) return true;
  if (shape == wire::shape_of(wire::Kind::kResponse, wire::kFirst)) return true;
  return (w0 & kFixed) == wire::kVersion << 4 && wire::is_known(static_cast<uint8_t>(w0 & 15));
}

/// Visits the packets of a datagram in place, in order, and counts what is no packet. Returns how many were visited.
/// The bytes are a stranger's.
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
      payload.bytes = header.length() - static_cast<uint32_t>(kHeaderBytes);  // above every space, of a wrong length
      is_packet = payload.bytes <= space && is_packet_start(header.w0);
    }
    if (!is_packet) [[unlikely]] {
      const size_t skipped = skip_packet({at, left}, counters);
      at += skipped;
      left -= skipped;
      continue;
    }
    at = payload.data + payload.bytes;
    left = space - payload.bytes;
    ++packets;
    if constexpr (BurstVisitor<Visit>) {
      visit.in_burst(header, payload, nullptr);
    } else {
      visit(header, payload);
    }
  }
  return packets;
}

}  // namespace tern::transport
