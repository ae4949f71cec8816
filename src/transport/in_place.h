// Packets in place for transports without a kernel: the simulation's, and those of tests. Transport layer.
#pragma once

#include <algorithm>

#include "transport/transport.h"

namespace tern::transport {

/// Must be called before a packet is visited. Writes to the place of the expected packet whatever comes, as a kernel
/// would (ExpectingVisitor), so that the place has garbage at least as often as over UDP. If the packet is the expected
/// one, `payload` lies in the place afterwards.
template <class Visit>
void receive_in_place(Visit& visit, const wire::Header& header, Payload& payload) {
  if constexpr (ExpectingVisitor<Visit>) {
    if (payload.lease != nullptr) return;
    const ExpectedPacket expected = visit.expected_packet();
    if (expected.place == nullptr) return;
    std::copy_n(payload.data, std::min(payload.bytes, expected.payload_bytes), expected.place);
    if (payload.bytes == expected.payload_bytes && expected.is(header)) payload.data = expected.place;
  }
}

}  // namespace tern::transport
