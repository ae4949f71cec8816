// Programs written for eRPC: random numbers. Not for secrets. See docs/erpc-migration.md.
#pragma once

#include <cstdint>
#include <random>

namespace erpc {

class SlowRand {
 public:
  uint64_t next_u64() { return generator_(); }

 private:
  std::mt19937_64 generator_{std::random_device{}()};
};

/// A linear congruential generator. Its result is the high half of the state.
class FastRand {
 public:
  uint64_t seed_ = SlowRand().next_u64();

  uint32_t next_u32() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(seed_ >> 32);
  }
};

}  // namespace erpc
