// Numbers from a seed, the same on every machine: raw outputs of the engine, no distributions. Test code.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <random>

#include <tern/duration.h>

namespace sim_test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  /// Returns 0 to count - 1.
  uint64_t below(uint64_t count) { return engine_() % count; }
  /// Returns `first` to `last`, both included.
  uint64_t between(uint64_t first, uint64_t last) { return first + below(last - first + 1); }
  /// Returns `first` to `last`, with each power of two as likely as the next one.
  uint64_t magnitude(uint64_t first, uint64_t last) {
    const auto bits = static_cast<unsigned>(between(std::bit_width(first), std::bit_width(last)));
    const uint64_t low = bits == 0 ? 0 : uint64_t{1} << (bits - 1);
    return std::clamp(low + (low == 0 ? 0 : below(low)), first, last);
  }
  bool chance(uint32_t permille) { return below(1000) < permille; }
  tern::Duration duration(tern::Duration shortest, tern::Duration longest) {
    return tern::Duration(static_cast<int64_t>(
        magnitude(static_cast<uint64_t>(shortest.count()), static_cast<uint64_t>(longest.count()))));
  }
  /// Returns a seed for another sequence.
  uint64_t split() { return engine_() ^ 0x9e3779b97f4a7c15; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace sim_test
