#include "wire/header.h"

#include <bit>

namespace tern::wire {

uint32_t encode_time_left(uint64_t left_ns) {
  if (left_ns == UINT64_MAX) return kNoDeadline;
  const uint64_t us = left_ns / 1000 + (left_ns % 1000 != 0 ? 1 : 0);
  auto exponent = static_cast<uint32_t>(std::bit_width(us | 0xffff)) - 16;
  uint64_t mantissa = (us + (uint64_t{1} << exponent) - 1) >> exponent;
  if (mantissa > 0xffff) {  // rounded up to 2^16
    mantissa = 0x8000;
    exponent++;
  }
  if (exponent > 31 || (exponent == 31 && mantissa == 0xffff)) return kNoDeadline;
  return exponent << 16 | static_cast<uint32_t>(mantissa);
}

uint64_t decode_time_left(uint32_t code) {
  if (code == kNoDeadline) return UINT64_MAX;
  const uint64_t mantissa = code & 0xffff;
  const uint32_t exponent = (code >> 16) & 31;
  return (mantissa << exponent) * 1000;  // at most 2^47 us: 2^57 ns
}

}  // namespace tern::wire
