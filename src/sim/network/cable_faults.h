// Faults of one direction of a cable: the probabilities of sim::Faults, prepared for one draw per frame, and the
// longest frame that passes. Sim layer, network part. One thread; knows neither queues nor events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include <tern/sim/network.h>

#include "sim/network/event_queue.h"

namespace tern::sim {

/// A random event with a fixed probability. A draw takes one 64-bit random number.
class Chance {
 public:
  /// A NaN counts as 0. Probabilities outside of 0 to 1 count as the nearer end.
  explicit Chance(double probability)
      : below_(!(probability > 0) ? 0
               : probability >= 1 ? UINT64_MAX
                                  : static_cast<uint64_t>(probability * 0x1p64)) {}
  bool is_never() const { return below_ == 0; }
  /// True with the given probability. Draws no random number if the probability is 0 or 1.
  bool happens(std::mt19937_64& random) const { return below_ != 0 && (below_ == UINT64_MAX || random() < below_); }

 private:
  uint64_t below_;
};

struct CableFaults {
  /// 12 days: longer than any simulation, and short enough that virtual time does not wrap.
  static constexpr int64_t kDelayNsMax = 1'000'000'000'000'000;
  explicit CableFaults(const Faults& faults)
      : drop(faults.drop),
        duplicate(faults.duplicate),
        reorder(faults.reorder),
        delay(faults.delay),
        corrupt(faults.corrupt),
        delay_max(static_cast<Picoseconds>(std::clamp<int64_t>(faults.delay_max.count(), 0, kDelayNsMax)) *
                  kPicosecondsPerNs) {}
  bool is_nothing() const {
    return drop.is_never() && duplicate.is_never() && reorder.is_never() && delay.is_never() && corrupt.is_never() &&
           frame_bytes_max == UINT32_MAX;
  }
  /// A random delay in picoseconds: 1 to delay_max, or 0 if delay_max is 0.
  Picoseconds draw_delay(std::mt19937_64& random) const { return delay_max == 0 ? 0 : 1 + random() % delay_max; }

  Chance drop, duplicate, reorder, delay, corrupt;
  Picoseconds delay_max;
  uint32_t frame_bytes_max = UINT32_MAX;  ///< longer frames are lost
  Picoseconds held_until = 0;  ///< end of a spike of delay: frames that are not reordered arrive then or later
};

}  // namespace tern::sim
