// A limit on how often something may happen. Neighbours layer: pure.
#pragma once

#include <cstdint>

namespace tern::neighbours {

/// Allows at most `per_second_max` events in each second. A second begins with an event.
class Budget {
 public:
  explicit Budget(uint32_t per_second_max) : per_second_max_(per_second_max) {}

  /// Returns false if no more events are allowed in this second.
  [[nodiscard]] bool take(uint64_t now_ns) {
    if (now_ns - second_ns_ >= 1'000'000'000) {
      second_ns_ = now_ns;
      taken_ = 0;
    }
    if (taken_ == per_second_max_) return false;
    taken_++;
    return true;
  }

 private:
  uint32_t per_second_max_;
  uint32_t taken_ = 0;
  uint64_t second_ns_ = 0;
};

}  // namespace tern::neighbours
