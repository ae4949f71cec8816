// Routes: the outputs on shortest paths from each switch to each other one. Sim layer, network part. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tern::sim {

/// All equal-cost next outputs, parallel cables included, for each pair of switches.
class Routes {
 public:
  /// A cable in one direction, by the number of its output.
  struct Edge {
    uint32_t from, to;  ///< switches
    uint32_t output;
  };

  /// `edges` leaves out the cables that are not up.
  void compute(uint32_t switches, const std::vector<Edge>& edges);
  /// Empty: there is no way, or `from` is `to`.
  std::span<const uint32_t> outputs(uint32_t from, uint32_t to) const {
    const Range range = ranges_[size_t{from} * switches_ + to];
    return {outputs_.data() + range.begin, range.count};
  }

 private:
  struct Range {
    uint32_t begin, count;
  };
  uint32_t switches_ = 0;
  std::vector<Range> ranges_;      ///< by from * switches_ + to
  std::vector<uint32_t> outputs_;  ///< in the order of `edges` within a range
};

}  // namespace tern::sim
