// What a program prints on standard output: one JSON object on one line, or a short table. Main thread.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "flags.h"

namespace programs {

struct Report {
  std::string bench;
  nlohmann::ordered_json params = nlohmann::ordered_json::object();
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();  ///< names end in their unit
  /// Cache-line round trip between the two sides' CPUs, ns: the smaller and the larger of the two taken before and
  /// after the measurement. Absent from the output if the sides are started separately (--role=client), or share a
  /// CPU.
  std::optional<std::pair<double, double>> placement_ns;
};

/// The flags of every program that change what is measured.
inline nlohmann::ordered_json common_params() {
  nlohmann::ordered_json params = {
      {"role", FLAGS_role}, {"processes", FLAGS_processes}, {"cc", FLAGS_cc}, {"wait", FLAGS_wait}};
  if (!FLAGS_transport_options.empty()) params["transport_options"] = FLAGS_transport_options;
  if (!FLAGS_server_transport_options.empty()) params["server_transport_options"] = FLAGS_server_transport_options;
  if (has_faults()) {
    params.update({{"drop", FLAGS_drop},
                   {"dup", FLAGS_dup},
                   {"reorder", FLAGS_reorder},
                   {"corrupt", FLAGS_corrupt},
                   {"delay", FLAGS_delay},
                   {"delay_us_max", FLAGS_delay_us_max},
                   {"seed", FLAGS_seed}});
  }
  return params;
}

inline void print(const Report& report) {
  if (FLAGS_json) {
    nlohmann::ordered_json line = {{"bench", report.bench},
                                   {"transport", FLAGS_transport},
                                   {"params", report.params},
                                   {"metrics", report.metrics}};
    if (report.placement_ns) {
      line["placement_ns"] = report.placement_ns->second;
      line["placement_ns_min"] = report.placement_ns->first;
    }
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%s over %s\n", report.bench.c_str(), FLAGS_transport.c_str());
    for (const auto& [name, value] : report.params.items()) {
      std::printf("  %-18s %s\n", name.c_str(),
                  value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
    }
    std::printf("  %s\n", std::string(34, '-').c_str());
    for (const auto& [name, value] : report.metrics.items()) {
      if (value.is_number_float()) {
        std::printf("  %-18s %15.3f\n", name.c_str(), value.get<double>());
      } else {
        std::printf("  %-18s %15s\n", name.c_str(), value.dump().c_str());
      }
    }
    if (report.placement_ns) std::printf("  %-18s %15.0f\n", "placement_ns", report.placement_ns->second);
  }
  std::fflush(stdout);
}

/// One line on standard error that is overwritten, on a terminal only.
class Progress {
 public:
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void show(double seconds, double seconds_total, double rate_mrps) {
    if (!is_terminal_) return;
    std::fprintf(stderr, "\r\033[K%.1f of %.1f s, %.3f M RPCs/s", seconds, seconds_total, rate_mrps);
    shown_ = true;
  }
  /// Of a simulation: in which phase it is, and how fast it goes.
  void show(const char* phase, double virtual_seconds, double packets_mps) {
    if (!is_terminal_) return;
    std::fprintf(stderr, "\r\033[K%s, %.4f s of virtual time, %.2f M packets/s", phase, virtual_seconds, packets_mps);
    shown_ = true;
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
};

}  // namespace programs
