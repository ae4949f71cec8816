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

/// Visits the packets of a datagram in place, in order, and counts what is no packet. Returns how many were visited.
/// The bytes are a stranger's.
template <class Visit>
[[gnu::always_inline]] inline size_t visit_packets(const std::byte* at, size_t bytes, Visit& visit,
                                                   TransportCounters& counters) {
  constexpr size_t kHeaderBytes = wire::kHeaderBytes;
  const std::byte* const end = at + bytes;
  size_t packets = 0;
  while (at != end) {
    const auto left = static_cast<size_t>(end - at);
    wire::Header header;
    if (left >= kHeaderBytes) [[likely]]
      header = wire::load_header(at);
    if (left < kHeaderBytes || !wire::is_plausible(header, left) || (header.flags() & wire::kByReference) != 0)
        [[unlikely]] {
      at += skip_packet({at, left}, counters);
      continue;
    }
    Payload payload;
    payload.data = at + kHeaderBytes;
    payload.bytes = header.length() - static_cast<uint32_t>(kHeaderBytes);
    at += header.length();
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
