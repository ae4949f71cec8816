// The scheduler of a busy machine: slices of virtual time in which the threads run, and slices between them in which
// the threads wait. Sim layer. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/network/event_queue.h"

namespace tern::sim {

class Slices {
 public:
  /// Threads always run.
  Slices() = default;
  /// From `now` on threads run for `run`, wait for `wait`, and so on. `run` is at least 1 us. If `is_random`, each
  /// slice has a random length, from 1 us to 1 us more than twice the given length. If `wait` is 0, threads always run.
  Slices(Picoseconds run, Picoseconds wait, bool is_random, uint64_t seed, Picoseconds now)
      : run_(std::max(run, kShortest)), wait_(wait), is_random_(is_random), state_(seed), end_(now) {
    if (wait_ != 0) begin_next();
  }

  /// True: threads always run.
  bool is_always() const { return wait_ == 0; }
  /// Returns `now` if threads run at `now`; otherwise the end of the slice in which they wait. `now` must not decrease
  /// from call to call.
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
  uint64_t state_ = 0;   ///< state of draw()
  Picoseconds end_ = 0;  ///< end of the present slice
};

}  // namespace tern::sim
