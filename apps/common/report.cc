#include "report.h"

#include <cerrno>
#include <cstring>

#include "flags.h"

namespace programs {

nlohmann::ordered_json common_params() {
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

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string json_of(const Report& report) {
  nlohmann::ordered_json line = {
      {"bench", report.bench}, {"transport", FLAGS_transport}, {"params", report.params}, {"metrics", report.metrics}};
  if (report.placement_ns) {
    line["placement_ns"] = report.placement_ns->second;
    line["placement_ns_min"] = report.placement_ns->first;
  }
  return text_of(line);
}

std::optional<Report> report_of(const std::string& json) {
  const auto line = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!line.is_object() || !line.contains("bench") || !line["bench"].is_string()) return std::nullopt;
  if (!line.contains("params") || !line["params"].is_object()) return std::nullopt;
  if (!line.contains("metrics") || !line["metrics"].is_object()) return std::nullopt;
  Report report;
  report.bench = line["bench"].get<std::string>();
  report.params = line["params"];
  report.metrics = line["metrics"];
  return report;
}

int end_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return fail("the result could not be written: %s", std::strerror(errno));
}

int print(const Report& report) {
  if (FLAGS_json) {
    std::printf("%s\n", json_of(report).c_str());
  } else {
    std::printf("%s over %s\n", report.bench.c_str(), FLAGS_transport.c_str());
    for (const auto& [name, value] : report.params.items()) {
      std::printf("  %-18s %s\n", name.c_str(),
                  value.is_string() ? value.get<std::string>().c_str() : text_of(value).c_str());
    }
    std::printf("  %s\n", std::string(34, '-').c_str());
    for (const auto& [name, value] : report.metrics.items()) {
      if (value.is_number_float()) {
        std::printf("  %-18s %15.3f\n", name.c_str(), value.get<double>());
      } else {
        std::printf("  %-18s %15s\n", name.c_str(), text_of(value).c_str());
      }
    }
    if (report.placement_ns) std::printf("  %-18s %15.0f\n", "placement_ns", report.placement_ns->second);
  }
  return end_output();
}

}  // namespace programs
