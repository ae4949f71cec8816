// A histogram of times with a relative error of 1 / 256. Its size is constant. Standard library only; one thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <tern/duration.h>

namespace programs {

class Latencies {
 public:
  void add(tern::Duration time) {
    const auto ns = static_cast<uint64_t>(time.count() > 0 ? time.count() : 0);
    buckets_[bucket_of(ns)]++;
    count_++;
  }
  void clear() { *this = Latencies(); }
  void add(const Latencies& other) {
    for (size_t i = 0; i < buckets_.size(); i++) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
  }
  uint64_t count() const { return count_; }
  /// The time in ns below which `share` of all times lie; 0 if there are no times.
  uint64_t quantile_ns(double share) const {
    const auto wanted = static_cast<uint64_t>(share * static_cast<double>(count_));
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); i++) {
      seen += buckets_[i];
      if (seen > wanted || (seen == count_ && count_ > 0)) return middle_of(i);
    }
    return 0;
  }

 private:
  static constexpr unsigned kBits = 8;  ///< bits of precision below the highest bit
  static size_t bucket_of(uint64_t ns) {
    if (ns < (1u << kBits)) return ns;
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - kBits - 1;
    return ((size_t{shift} + 1) << kBits) + static_cast<size_t>((ns >> shift) - (1u << kBits));
  }
  static uint64_t middle_of(size_t bucket) {
    if (bucket < (1u << kBits)) return bucket;
    const size_t shift = (bucket >> kBits) - 1;
    const uint64_t begin = ((bucket & ((1u << kBits) - 1)) + (1u << kBits)) << shift;
    return begin + ((uint64_t{1} << shift) >> 1);
  }

  std::array<uint64_t, (64 - kBits + 1) << kBits> buckets_{};
  uint64_t count_ = 0;
};

}  // namespace programs
