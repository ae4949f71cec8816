// Programs written for eRPC: a histogram of times. See docs/erpc-migration.md.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "../common.h"

namespace erpc {

/// Counts values below 3968 in bins that are 1 wide below 128, and 2, 4, 8 and 16 wide above; larger values count as
/// 3968. A value is reported as the lower end of its bin.
class Latency {
 public:
  void reset() { bins_.fill(0); }
  void update(size_t value) { bins_[bin_of(value)]++; }
  Latency& operator+=(const Latency& other) {
    for (size_t i = 0; i < kBins; i++) bins_[i] += other.bins_[i];
    return *this;
  }
  size_t count() const {
    size_t count = 0;
    for (size_t in_bin : bins_) count += in_bin;
    return count;
  }
  size_t sum() const {
    size_t sum = 0;
    for (size_t i = 0; i < kBins; i++) sum += bins_[i] * value_of(i);
    return sum;
  }
  double avg() const { return static_cast<double>(sum()) / static_cast<double>(std::max<size_t>(1, count())); }
  size_t latency_min() const {
    const auto first = std::find_if(bins_.begin(), bins_.end(), [](size_t in_bin) { return in_bin != 0; });
    return value_of(first == bins_.end() ? kBins - 1 : static_cast<size_t>(first - bins_.begin()));
  }
  size_t latency_max() const {
    const auto last = std::find_if(bins_.rbegin(), bins_.rend(), [](size_t in_bin) { return in_bin != 0; });
    return last == bins_.rend() ? 0 : value_of(static_cast<size_t>(bins_.rend() - last) - 1);
  }
  /// `share` from 0 to 1.
  size_t perc(double share) const {
    const auto rank = static_cast<size_t>(share * static_cast<double>(count()));
    size_t passed = 0;
    for (size_t i = 0; i < kBins; i++) {
      passed += bins_[i];
      if (passed > rank) return value_of(i);
    }
    return value_of(kBins - 1);
  }
  void print(FILE* file) const {
    for (size_t i = 0; i < kBins; i++) {
      if (bins_[i] != 0) std::fprintf(file, "%4zu %6zu\n", value_of(i), bins_[i]);
    }
  }

 private:
  static constexpr size_t kGroup = 128;  ///< bins of one width
  static constexpr size_t kGroups = 5;
  static constexpr size_t kBins = kGroups * kGroup + 1;

  /// Group g begins at kGroup * (2^g - 1), and its bins are 2^g wide.
  static size_t bin_of(size_t value) {
    const size_t group = static_cast<size_t>(std::bit_width(value / kGroup + 1)) - 1;
    if (group >= kGroups) return kBins - 1;
    return group * kGroup + ((value - begin_of(group)) >> group);
  }
  static size_t value_of(size_t bin) {
    const size_t group = bin / kGroup;
    return begin_of(group) + ((bin % kGroup) << group);
  }
  static size_t begin_of(size_t group) { return kGroup * ((size_t{1} << group) - 1); }

  std::array<size_t, kBins> bins_{};
};

}  // namespace erpc
