// The output of a program on standard output: one JSON object on one line, or a short table. Main thread.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace programs {

struct Report {
  std::string bench;
  nlohmann::ordered_json params = nlohmann::ordered_json::object();
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();  ///< each name ends in its unit
  /// Cache-line round trip between the two sides' CPUs, ns. It is measured before and after the measurement; the pair
  /// holds the smaller and the larger value. Absent from the output if the sides are started separately
  /// (--role=client), or share a CPU.
  std::optional<std::pair<double, double>> placement_ns;
};

/// The common flags that affect the result of a measurement.
nlohmann::ordered_json common_params();

/// JSON on one line. Bytes of paths and flags that are not UTF-8 are replaced. Any thread.
std::string text_of(const nlohmann::ordered_json& json);
/// The JSON object of a report, without a line break, as print() prints it with --json.
std::string json_of(const Report& report);
/// The report of such an object, without the fields that print() does not show; nullopt if `json` is not a report.
std::optional<Report> report_of(const std::string& json);

/// Flushes standard output. Returns the program's exit code: 1, after it has printed a sentence, if not all of the
/// output was written. Must be called right after the last output.
[[nodiscard]] int end_output();
/// Prints the report, and returns end_output().
[[nodiscard]] int print(const Report& report);

/// A line on standard error that show() overwrites. It is shown on a terminal only.
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
  /// The progress of a simulation: its phase and its speed.
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
