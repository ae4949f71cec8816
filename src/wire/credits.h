// Credits: what a packet costs, and how a limit travels in 8 bits (docs/protocol.md, 4.5).
// Wire layer: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tern::wire {

/// The unit of a session's credits, as the handshake names it (clause 7.2.1): kPacketCredits, or log2 of the bytes of a
/// credit. In the smallest unit the shortest full packet (512 B of payload) costs one credit, in the largest every one.
inline constexpr uint8_t kPacketCredits = 0;  ///< every packet costs one credit
inline constexpr uint8_t kCreditUnitMin = 10;
inline constexpr uint8_t kCreditUnitMax = 17;
constexpr bool is_credit_unit(uint8_t unit) {
  return unit == kPacketCredits || (unit >= kCreditUnitMin && unit <= kCreditUnitMax);
}

/// Credits that a request packet costs; `packet_bytes` includes its header. At least 1.
constexpr uint32_t credits_of(uint32_t packet_bytes, uint8_t unit) {
  if (unit == kPacketCredits) return 1;
  return std::max((packet_bytes + (1u << unit) - 1) >> unit, 1u);
}

/// A limit up to this is exact; it is the largest one where credits are packets. Above it each step of the 8 bits
/// stands for kCreditStep credits.
inline constexpr uint32_t kExactCreditsMax = 128;
inline constexpr uint32_t kCreditStep = 16;
/// Packets of 1.2 kB: 2.7 MB, twice the round trip of 1 ms at 10 Gbit/s. Half of the records that a client can keep of
/// the packets that it has sent (session::SentPackets).
inline constexpr uint32_t kCreditsMax = kExactCreditsMax + (UINT8_MAX - kExactCreditsMax) * kCreditStep;

/// The largest code that does not stand for more credits; `credits` is at least 1.
constexpr uint8_t encode_credits(uint32_t credits) {
  if (credits <= kExactCreditsMax) return static_cast<uint8_t>(credits);
  const uint32_t steps = (std::min(credits, kCreditsMax) - kExactCreditsMax) / kCreditStep;
  return static_cast<uint8_t>(kExactCreditsMax + steps);
}
/// The limit of a received code. Peers that count packets know of no larger one than kExactCreditsMax.
constexpr uint32_t decode_credits(uint8_t code, uint8_t unit) {
  if (code <= kExactCreditsMax) return code;
  return unit == kPacketCredits ? kExactCreditsMax : kExactCreditsMax + (code - kExactCreditsMax) * kCreditStep;
}
static_assert(decode_credits(encode_credits(kCreditsMax), kCreditUnitMin) == kCreditsMax);

}  // namespace tern::wire
