// The common parts of sim_check and raft_check: the seeds on the command line, and the command that repeats a run. It
// is printed also when a CHECK or a signal ends the process. Test code.
#pragma once

#include <unistd.h>

#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace seeds {

struct Options {
  uint64_t first = 1, last = 1;
  bool is_verbose = false;
  std::string repeat;  ///< further flags that a repetition needs
};

inline char repeat_line[512];  ///< printed when the process ends

/// Prints `text` and ends the process.
[[noreturn]] inline void usage(const char* text) {
  std::fputs(text, stderr);
  std::exit(2);
}

inline uint64_t number(std::string_view text, const char* usage_text) {
  uint64_t value = 0;
  if (text.empty() || text.size() > 18) usage(usage_text);
  for (const char c : text) {
    if (c < '0' || c > '9') usage(usage_text);
    value = 10 * value + static_cast<uint64_t>(c - '0');
  }
  return value;
}

/// `other(name, value)` takes an option of the program's own, which a repetition needs, too. It returns false if it
/// does not know that name or the value is wrong.
template <class Other>
Options parse(int argc, char** argv, const char* usage_text, Other&& other) {
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
    if (name == "--seed") {
      options.first = options.last = number(value, usage_text);
    } else if (name == "--seeds") {
      const size_t dash = value.find('-');
      if (dash == std::string_view::npos) usage(usage_text);
      options.first = number(value.substr(0, dash), usage_text);
      options.last = number(value.substr(dash + 1), usage_text);
    } else if (argument == "--verbose") {
      options.is_verbose = true;
    } else if (other(name, value)) {
      options.repeat += " " + std::string(argument);
    } else {
      usage(usage_text);
    }
  }
  if (options.first > options.last) usage(usage_text);
  return options;
}

/// Prints the seed when a CHECK fails or the process crashes.
extern "C" inline void print_repeat_line(int signal) {
  const auto written = write(STDERR_FILENO, repeat_line, std::strlen(repeat_line));
  (void)written;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Calls run(seed, command) for each seed, until one returns false; `command` repeats that run. The exit code.
template <class Run>
int run_all(const Options& options, const char* program, Run&& run) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, print_repeat_line);
  for (uint64_t seed = options.first; seed <= options.last; seed++) {
    const std::string command = std::string(program) + " --seed=" + std::to_string(seed) + options.repeat;
    std::snprintf(repeat_line, sizeof(repeat_line), "repeat with: %s\n", command.c_str());
    if (!run(seed, command)) return 1;
  }
  return 0;
}

}  // namespace seeds
