// Stretches of virtual time in which threads run, and in which they wait: a busy machine's scheduler.
// Sim layer. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/network/event_queue.h"

namespace tern::sim {

class Slices {
 public:
  /// Threads always run.
  Slices() = default;
  /// From `now` on they run for `run`, wait for `wait`, and so on; random: for up to twice as long.
  Slices(Picoseconds run, Picoseconds wait, bool is_random, uint64_t seed, Picoseconds now)
      : run_(std::max(run, kShortest)), wait_(wait), is_random_(is_random), state_(seed), end_(now) {
    if (wait_ != 0) begin_next();
  }

  /// True: threads always run.
  bool is_always() const { return wait_ == 0; }
  /// The end of the stretch in which threads wait at `now`, or `now`, if they run. `now` never goes back.
  Picoseconds awake_at(Picoseconds now) {
    if (wait_ == 0) return now;
    const Picoseconds period = run_ + wait_;
    if (!is_random_ && now > end_ + period) end_ += (now - end_) / period * period;
    while (end_ <= now) begin_next();
    return do_run_ ? now : end_;
  }

 private:
  static constexpr Picoseconds kShortest = 1000 * kPicosecondsPerNs;

  /// splitmix64: a generator of one word.
  uint64_t draw() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  void begin_next() {
    do_run_ = !do_run_;
    const Picoseconds length = do_run_ ? run_ : wait_;
    end_ += !is_random_ ? length : kShortest + draw() % (2 * length);
  }

  Picoseconds run_ = 0;
  Picoseconds wait_ = 0;
  bool is_random_ = false;
  bool do_run_ = false;
  uint64_t state_ = 0;   ///< of draw()
  Picoseconds end_ = 0;  ///< of the present stretch
};

}  // namespace tern::sim
