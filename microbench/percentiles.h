// Latencies of a benchmark: a cheap clock and a histogram of fixed size. Standard library only; one thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace tern::microbench {

/// Time in ticks of the processor's counter if it has one (a reading takes 11 ns instead of 28 ns), otherwise in ns.
class Ticks {
 public:
  static uint64_t now() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }
  /// The first call takes 20 ms.
  static double ns_per_tick() {
    static const double ratio = [] {
      const auto start = std::chrono::steady_clock::now();
      const uint64_t start_ticks = now();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto time = std::chrono::steady_clock::now() - start;
      return std::chrono::duration<double, std::nano>(time).count() / static_cast<double>(now() - start_ticks);
    }();
    return ratio;
  }
};

/// Counts values of any unit, exactly below 1024 and to 0.1% above. Takes 440 kB, but only the used part stays in the
/// cache.
class Percentiles {
 public:
  Percentiles() : counts_((64 - kExactBits + 1) << kExactBits) {}

  void add(uint64_t value) {
    ++counts_[bucket_of(value)];
    ++count_;
  }
  void merge(const Percentiles& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
  }
  void clear() {
    std::fill(counts_.begin(), counts_.end(), 0);
    count_ = 0;
  }
  uint64_t count() const { return count_; }
  /// The smallest value that at least `share` (0 to 1) of all values do not exceed; 0 if there are no values.
  double at(double share) const {
    if (count_ == 0) return 0;
    // The product may be a rounding error above a whole rank: 0.07 * 100 is 7.000000000000001.
    constexpr double kWithoutError = 1 - 4 * std::numeric_limits<double>::epsilon();
    const double rank = std::ceil(share * static_cast<double>(count_) * kWithoutError);
    const auto wanted = std::max<uint64_t>(1, static_cast<uint64_t>(rank));
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      seen += counts_[bucket];
      if (seen >= wanted) return middle_of(bucket);
    }
    return 0;
  }

 private:
  static constexpr unsigned kExactBits = 10;

  /// Values of the same power of two share 2^kExactBits buckets; the first two rows are exact.
  static size_t bucket_of(uint64_t value) {
    const auto bits = static_cast<unsigned>(std::bit_width(value));
    if (bits <= kExactBits) return value;
    const unsigned shift = bits - kExactBits - 1;
    return (size_t{shift} << kExactBits) + (value >> shift);
  }
  static double middle_of(size_t bucket) {
    constexpr size_t kRow = size_t{1} << kExactBits;
    if (bucket < 2 * kRow) return static_cast<double>(bucket);
    const size_t shift = bucket / kRow - 1;
    return (static_cast<double>(bucket - shift * kRow) + 0.5) * static_cast<double>(uint64_t{1} << shift);
  }

  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
};

/// The shares at which plots show a distribution: denser in its tail.
inline constexpr std::array kDrawnShares = {0.0,   0.01,  0.05,   0.1,    0.2,     0.3,     0.4,  0.5,
                                            0.6,   0.7,   0.8,    0.9,    0.95,    0.98,    0.99, 0.995,
                                            0.998, 0.999, 0.9995, 0.9999, 0.99995, 0.99999, 1.0};

/// Adds latencies as the percentiles that a benchmark reports and, if `is_drawn`, as a list of [share, us] for plots.
/// Adds nothing if there are no latencies. `Json` is a type of nlohmann, of which this header knows nothing.
template <class Json>
void add_percentiles(Json& metrics, const Percentiles& latencies, double us_per_unit, bool is_drawn) {
  if (latencies.count() == 0) return;
  metrics["p50_us"] = latencies.at(0.5) * us_per_unit;
  metrics["p99_us"] = latencies.at(0.99) * us_per_unit;
  metrics["p999_us"] = latencies.at(0.999) * us_per_unit;
  if (!is_drawn) return;
  for (const double share : kDrawnShares)
    metrics["percentiles_us"].push_back({share, latencies.at(share) * us_per_unit});
}

}  // namespace tern::microbench
