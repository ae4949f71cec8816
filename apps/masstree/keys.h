// Keys and values of the load. The keys follow from a seed, so that server and clients agree on them without exchanging
// them. Standard library only; no state.
#pragma once

#include <cstdint>

#include "../common/messages.h"

namespace ordered {

/// The i-th random key of a seed. Different values of i give different keys, because mix() is a permutation.
constexpr uint64_t key_of(uint64_t seed, uint64_t i) { return programs::mix(programs::mix(seed) + i); }

/// The upper half of each value of a key. It reveals a value that belongs to another key. Never 0.
constexpr uint64_t tag_of(uint64_t key) { return (programs::mix(key) | uint64_t{1} << 63) & 0xffff'ffff'0000'0000u; }

/// The value of version `version` of a key. The writer of a key counts its PUTs.
constexpr uint64_t value_of(uint64_t key, uint32_t version) { return tag_of(key) | version; }

/// Random numbers at a small cost of memory and time. One thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(programs::mix(seed + 1)) {}
  uint64_t next() { return programs::mix(state_ += 0x9e3779b97f4a7c15u); }
  uint64_t below(uint64_t limit) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * limit) >> 64);
  }
  bool is_one_of(double share) { return static_cast<double>(next() >> 11) * 0x1p-53 < share; }

 private:
  uint64_t state_;
};

}  // namespace ordered
