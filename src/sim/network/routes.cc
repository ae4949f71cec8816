#include "sim/network/routes.h"

#include <algorithm>

namespace tern::sim {

void Routes::compute(uint32_t switches, const std::vector<Edge>& edges) {
  switches_ = switches;
  ranges_.assign(size_t{switches} * switches, {0, 0});
  outputs_.clear();
  std::vector<std::vector<Edge>> out(switches), in(switches);
  for (const Edge& edge : edges) {
    out[edge.from].push_back(edge);
    in[edge.to].push_back(edge);
  }
  std::vector<uint32_t> hops, to_visit;
  for (uint32_t to = 0; to < switches; to++) {
    hops.assign(switches, UINT32_MAX);
    hops[to] = 0;
    to_visit.assign(1, to);
    for (size_t i = 0; i < to_visit.size(); i++) {
      for (const Edge& edge : in[to_visit[i]]) {
        if (hops[edge.from] != UINT32_MAX) continue;
        hops[edge.from] = hops[edge.to] + 1;
        to_visit.push_back(edge.from);
      }
    }
    for (const uint32_t from : to_visit) {
      Range& range = ranges_[size_t{from} * switches + to];
      range.begin = static_cast<uint32_t>(outputs_.size());
      for (const Edge& edge : out[from]) {
        if (hops[edge.to] != UINT32_MAX && hops[edge.to] + 1 == hops[from]) outputs_.push_back(edge.output);
      }
      range.count = static_cast<uint32_t>(outputs_.size()) - range.begin;
    }
  }
}

}  // namespace tern::sim
