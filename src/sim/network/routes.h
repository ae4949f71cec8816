// The table of routes: the outputs on shortest paths from each switch to each other switch.
// Sim layer, network part. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tern::sim {

/// For each pair of switches, all next outputs with equal cost, including those of parallel cables.
class Routes {
 public:
  /// One direction of a cable between two switches, with the number of its output.
  struct Edge {
    uint32_t from, to;  ///< numbers of the switches
    uint32_t output;
  };

  /// Replaces the table. `switches` is their count. `edges` must have only cables that are up.
  void compute(uint32_t switches, const std::vector<Edge>& edges);
  /// The outputs of switch `from` on shortest paths to switch `to`. Empty: there is no path, or `from` is `to`.
  std::span<const uint32_t> outputs(uint32_t from, uint32_t to) const {
    const Range range = ranges_[size_t{from} * switches_ + to];
    return {outputs_.data() + range.begin, range.count};
  }

 private:
  struct Range {
    uint32_t begin, count;
  };
  uint32_t switches_ = 0;
  std::vector<Range> ranges_;      ///< ranges of outputs_, at index from * switches_ + to
  std::vector<uint32_t> outputs_;  ///< each range is in the order of `edges`
};

}  // namespace tern::sim
