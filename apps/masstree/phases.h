// The phases that both programs measure, and the output for each phase. Main thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "load.h"

namespace ordered {

struct NamedPhase {
  std::string_view name;
  Phase phase;
};
inline constexpr std::array<NamedPhase, 5> kMeasured = {{{"plain", Phase::kPlain},
                                                         {"worker", Phase::kScansInWorkers},
                                                         {"dispatch", Phase::kScansInLoops},
                                                         {"hop_worker", Phase::kNothingInWorker},
                                                         {"hop_dispatch", Phase::kNothingInLoop}}};

/// Parses a list such as "plain,worker". nullopt if a name is unknown, or if the list is empty.
inline std::optional<std::vector<NamedPhase>> parse_phases(std::string_view text) {
  std::vector<NamedPhase> phases;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    text.remove_prefix(std::min(name.size() + 1, text.size()));
    const auto* const found =
        std::find_if(kMeasured.begin(), kMeasured.end(), [&](const NamedPhase& one) { return one.name == name; });
    if (found == kMeasured.end()) return std::nullopt;
    phases.push_back(*found);
  }
  return phases.empty() ? std::nullopt : std::optional(phases);
}

/// Adds "get_mrps", "get_p50_us" and so on, for each type of request in the phase.
inline void add_metrics(const PhaseReport& report, nlohmann::ordered_json& metrics) {
  const auto add = [&](const std::string& name, const programs::Latencies& latencies) {
    if (latencies.count() == 0) return;
    metrics[name + "_mrps"] = static_cast<double>(latencies.count()) / report.seconds / 1e6;
    for (const auto& [share, suffix] : {std::pair(0.5, "_p50_us"), {0.99, "_p99_us"}, {0.999, "_p999_us"}}) {
      metrics[name + suffix] = static_cast<double>(latencies.quantile_ns(share)) / 1e3;
    }
  };
  add("get", report.gets);
  add("put", report.puts);
  add("scan", report.scans);
  add("nothing", report.nothings);
  metrics["refused_overloaded"] = report.refused_overloaded;
  metrics["refused_full"] = report.refused_full;
}

/// Adds the ratio of GET latencies with scans to those without: "get_p50_worker_ratio" and so on, if both phases had
/// GETs.
inline void add_comparison(const PhaseReport& plain, const PhaseReport& with_scans, const std::string& name,
                           nlohmann::ordered_json& metrics) {
  if (with_scans.gets.count() == 0 || plain.gets.count() == 0) return;
  for (const auto& [share, prefix] : {std::pair(0.5, "get_p50_"), {0.99, "get_p99_"}}) {
    metrics[prefix + name + "_ratio"] =
        static_cast<double>(with_scans.gets.quantile_ns(share)) / static_cast<double>(plain.gets.quantile_ns(share));
  }
}

}  // namespace ordered
