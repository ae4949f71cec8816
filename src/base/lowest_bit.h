// The position of a mask's lowest bit, as an index. Base layer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tern::base {

/// As std::countr_zero(), but of a mask that is not 0. std::countr_zero() returns an int: as an index it takes g++ two
/// instructions more, one that clears the register before and one that extends its sign after.
inline size_t lowest_bit(uint64_t mask) {
#if defined(__x86_64__) && !defined(__clang__)
  uint64_t position;
  // A CPU that has tzcnt reads this as tzcnt.
  asm("rep bsf %[mask], %[position]" : [position] "=r"(position) : [mask] "rm"(mask) : "cc");
  return position;
#else
  return static_cast<size_t>(std::countr_zero(mask));
#endif
}

}  // namespace tern::base
