// Programs written for eRPC: a little arithmetic. See docs/erpc-migration.md.
#pragma once

#include <bit>
#include <cmath>

#include "../common.h"

namespace erpc {

template <typename T>
constexpr bool is_power_of_two(T x) {
  return x != 0 && (x & (x - 1)) == 0;
}

template <uint64_t to, typename T>
constexpr T round_up(T x) {
  static_assert(is_power_of_two(to));
  return (x + T(to - 1)) & ~T(to - 1);
}

inline double stddev(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0, squares = 0;
  for (double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values.size());
  return std::sqrt(std::max(0.0, squares / count - (sum / count) * (sum / count)));
}

}  // namespace erpc
