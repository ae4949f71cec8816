// The sizes of packets that are larger than those with which a session begins (docs/protocol.md, 5.1.1).
// Wire layer: pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tern::wire {

/// The payload of the full packets of a message with this code: code * code bytes, rounded down to cache lines of 64 B.
/// The steps are therefore small for small packets, and a code of 8 bits reaches 64 kB. Code 0 stands for the session's
/// own payload.
constexpr uint32_t payload_of_code(uint8_t code) { return (uint32_t{code} * code) & ~63u; }

/// The largest code whose payload is at most `bytes`; below 64 B, a code of 0 B.
constexpr uint8_t code_of_payload(uint32_t bytes) {
  uint32_t code = std::min<uint32_t>(1u << (std::bit_width(bytes | 1u) + 1) / 2, UINT8_MAX);
  while (payload_of_code(static_cast<uint8_t>(code)) > bytes) code--;
  return static_cast<uint8_t>(code);
}
static_assert(code_of_payload(UINT32_MAX) == UINT8_MAX && payload_of_code(UINT8_MAX) == 65024);
static_assert(payload_of_code(code_of_payload(8900 - 24)) == 8832 && payload_of_code(code_of_payload(1448)) == 1408);

/// The smallest code whose payload is at least `bytes`, which may be 65024 at most.
constexpr uint8_t code_for_payload(uint32_t bytes) {
  uint32_t code = code_of_payload(bytes);
  while (payload_of_code(static_cast<uint8_t>(code)) < bytes) code++;
  return static_cast<uint8_t>(code);
}
static_assert(payload_of_code(code_for_payload(4096)) == 4096 && payload_of_code(code_for_payload(65024)) == 65024);
static_assert(code_for_payload(65) == 12 && code_for_payload(4097) == 65);

/// Packets of a message of `bytes`, which is not 0.
constexpr uint32_t packets_of(uint64_t bytes, uint32_t payload_bytes) {
  return static_cast<uint32_t>((bytes + payload_bytes - 1) / payload_bytes);
}

}  // namespace tern::wire
