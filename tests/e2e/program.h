// Runs a program of this build as a user does, and returns its output. Test code.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace e2e {

struct Outcome {
  int code = -1;       ///< exit code; -1: a signal ended the program
  std::string output;  ///< both streams
};

/// Runs "NAME FLAGS" of apps/, for two minutes at most. `before` are shell commands to run before it, each with ";".
inline Outcome run(const std::string& command, const std::string& before = "") {
  Outcome outcome;
  FILE* pipe = popen((before + "timeout -k 5 120 '" TERN_BUILD_DIR "'/apps/" + command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 512> bytes;
  while (const size_t got = std::fread(bytes.data(), 1, bytes.size(), pipe)) outcome.output.append(bytes.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace e2e
