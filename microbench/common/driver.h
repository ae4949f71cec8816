// The common parts of the two drivers for callgrind, instructions_driver and erpc_driver: their flags, and the
// application's work on a message. Include this file only once in a program, because it defines flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "../../apps/common/flags.h"

DEFINE_uint64(rpcs, 100000, "RPCs to complete");
DEFINE_uint64(window, 60, "requests in flight, at most 8 a session");
DEFINE_uint64(sessions, 8, "sessions; the window is dealt out to them in turn");
DEFINE_uint64(size, 32, "bytes of a request and of its response, at least 8");

namespace microbench {

constexpr uint64_t kSlotsPerSession = 8;
constexpr size_t kCommonBytes = 32;

/// Copies a message. It has a fast path for the common size, because an application knows the usual size of its
/// messages.
template <class Byte>
void copy_message(Byte* to, const Byte* from, size_t bytes) {
  if (bytes == kCommonBytes) [[likely]] {
    std::memcpy(to, from, kCommonBytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

/// Checks the drivers' flags. On error it prints a sentence and returns false.
inline bool check_driver_flags(uint64_t size_max) {
  for (const char* name : {"role", "processes", "server", "listen", "cpus", "ready_fd", "seconds"}) {
    if (!programs::is_given(name)) continue;
    programs::fail("--%s does not work here: both sides are in one thread, until --rpcs have completed", name);
    return false;
  }
  std::string problem;
  if (FLAGS_rpcs < 1 || FLAGS_rpcs > 1'000'000'000) {
    problem = "--rpcs must be between 1 and 1000000000";
  } else if (FLAGS_sessions < 1 || FLAGS_sessions > 65536) {
    problem = "--sessions must be between 1 and 65536";
  } else if (FLAGS_window < 1 || FLAGS_window > kSlotsPerSession * FLAGS_sessions) {
    problem = "--window must be between 1 and 8 times --sessions";
  } else if (FLAGS_size < sizeof(uint64_t) || FLAGS_size > size_max) {
    problem = "--size must be between 8 and " + std::to_string(size_max);
  }
  if (!problem.empty()) programs::fail("%s", problem.c_str());
  return problem.empty();
}

/// For a driver without the fault layer. If a flag of that layer is given, it prints a sentence and returns false.
inline bool check_no_faults() {
  for (const char* name : {"drop", "dup", "reorder", "corrupt", "delay", "delay_us_max", "seed"}) {
    if (!programs::is_given(name)) continue;
    programs::fail("--%s does not work here: there is no fault layer", name);
    return false;
  }
  return true;
}

}  // namespace microbench
