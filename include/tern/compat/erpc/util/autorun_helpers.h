// Programs written for eRPC: the list of processes that eRPC's autorun scripts write. See docs/erpc-migration.md.
#pragma once

#include <fstream>

#include "../common.h"

namespace erpc {

inline std::vector<std::string> split(const std::string& text, char delimiter) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, delimiter);) parts.push_back(part);
  return parts;
}

/// Returns line n of the file, counted from 0. Throws std::runtime_error if there is no such line, or it is empty.
inline std::string get_line_n(const std::string& filename, size_t n) {
  std::ifstream file(filename);
  rt_assert(!file.fail(), "Required file " + filename + " not found");
  std::string line;
  for (size_t i = 0; i <= n; i++) {
    line.clear();
    std::getline(file, line);
    rt_assert(!line.empty(), "Insufficient lines in " + filename);
  }
  return line;
}

/// "HOST PORT NUMA_NODE".
inline bool is_valid_process_line(const std::string& line) {
  if (line.empty() || line.front() == ' ' || line.back() == ' ') return false;
  const auto parts = split(line, ' ');
  return parts.size() == 3 && !parts[0].empty() && !parts[1].empty() && !parts[2].empty();
}

/// "HOST:PORT".
inline bool is_valid_uri(const std::string& uri) {
  const auto parts = split(uri, ':');
  return parts.size() == 2 && !parts[0].empty() && !parts[1].empty();
}
inline std::string extract_hostname_from_uri(const std::string& uri) { return uri.substr(0, uri.find(':')); }
inline uint16_t extract_udp_port_from_uri(const std::string& uri) {
  return static_cast<uint16_t>(std::stoi(uri.substr(uri.find(':') + 1)));
}

/// The file in which eRPC's programs find the processes, relative to their working directory: a line for each process
/// number. The environment variable ERPC_PROCESS_FILE names another file.
inline std::string process_file() {
  const char* named = std::getenv("ERPC_PROCESS_FILE");
  return named != nullptr ? named : "../eRPC/scripts/autorun_process_file";
}
inline std::vector<std::string> process_line(size_t process) {
  const std::string line = get_line_n(process_file(), process);
  rt_assert(is_valid_process_line(line), "Invalid process line " + line);
  return split(line, ' ');
}
inline std::string get_hostname_for_process(size_t process) { return process_line(process)[0]; }
inline std::string get_udp_port_for_process(size_t process) { return process_line(process)[1]; }
inline std::string get_uri_for_process(size_t process) {
  const auto parts = process_line(process);
  return parts[0] + ":" + parts[1];
}

}  // namespace erpc
