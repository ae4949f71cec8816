// What tshark and scripts/wireshark/tern.lua make of a capture file. Test code.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace e2e {

/// A packet or a message of tern in a frame: the fields that Wireshark shows of it.
struct Dissected {
  size_t frame = 0;  ///< from 1 on
  std::map<std::string, std::vector<std::string>> fields;

  bool has(const std::string& field) const { return fields.contains(field); }
  std::string text(const std::string& field) const { return has(field) ? fields.at(field)[0] : ""; }
  uint64_t number(const std::string& field) const { return std::strtoull(text(field).c_str(), nullptr, 0); }
  double seconds(const std::string& field) const { return std::strtod(text(field).c_str(), nullptr); }
};

struct Dissection {
  size_t frames = 0;
  std::vector<Dissected> items;  ///< in the order of the capture
  std::vector<std::string> lua_errors;
  int exit_code = -1;
};

/// The value of `name="..."` in a line.
inline std::string attribute(std::string_view line, const std::string& name) {
  const std::string begin = " " + name + "=\"";
  const size_t at = line.find(begin);
  if (at == std::string_view::npos) return {};
  const size_t from = at + begin.size();
  return std::string(line.substr(from, line.find('"', from) - from));
}

/// Two passes, as in the window of Wireshark, so that links lead forward, too. `flags` are tshark's.
inline Dissection dissect(const std::filesystem::path& file, const std::string& flags = "") {
  const std::string command = "WIRESHARK_CONFIG_DIR='" + file.parent_path().string() +
                              "' tshark -n -2 -X lua_script:'" TERN_SOURCE_DIR
                              "'/scripts/wireshark/tern.lua -o udp.try_heuristic_first:TRUE -T pdml -J tern " +
                              flags + " -r '" + file.string() + "' 2>&1";
  Dissection result;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return result;
  char* text = nullptr;
  size_t space = 0;
  while (getline(&text, &space, pipe) >= 0) {
    const std::string_view line = text;
    if (line.starts_with("<packet>")) result.frames++;
    if (line.find("<proto name=\"tern\"") != std::string_view::npos) result.items.push_back({result.frames, {}});
    if (line.find("Lua") != std::string_view::npos && line.find("_ws.lua.fake") == std::string_view::npos) {
      result.lua_errors.emplace_back(line);
    }
    const std::string field = line.find("<field ") != std::string_view::npos ? attribute(line, "name") : "";
    if (field.starts_with("tern.") && !result.items.empty()) {
      result.items.back().fields[field].push_back(attribute(line, "show"));
    }
  }
  std::free(text);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace e2e
