// The common parts of the limits: their flags, two pinned sides with the placement before and after, and their output.
// This file defines flags: include it only in a program's one source file. Main thread. It contains no code of the
// library, because the library's results are divided by a limit.
#pragma once

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "../percentiles.h"
#include "../placement.h"

DEFINE_double(seconds, 2, "how long to measure");
DEFINE_string(cpus, "0,1", "the two CPUs to pin the two sides to: the server's first");
DEFINE_bool(json, false, "one JSON object on standard output instead of a table");

namespace limits {

using Json = nlohmann::ordered_json;

/// Prints one sentence on standard error. Returns the program's exit code.
[[gnu::format(printf, 1, 2)]] inline int fail(const char* format, ...) {
  std::fprintf(stderr, "%s: ", gflags::ProgramInvocationShortName());
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  return 1;
}

/// The two CPUs of --cpus. nullopt if it does not name two CPUs.
inline std::optional<std::pair<int, int>> two_cpus() {
  int server = 0, client = 0, end = 0;
  const int read = std::sscanf(FLAGS_cpus.c_str(), "%d,%d%n", &server, &client, &end);
  if (read != 2 || end != static_cast<int>(FLAGS_cpus.size()) || server == client) return std::nullopt;
  return std::pair(server, client);
}

/// True if threads of this process may run on these CPUs.
inline bool can_pin(std::pair<int, int> cpus) {
  bool is_pinned = false;
  std::thread([&] {
    is_pinned = tern::microbench::pin_to_cpu(cpus.first) && tern::microbench::pin_to_cpu(cpus.second);
  }).join();
  return is_pinned;
}

/// Parses the command line and checks the flags of this file. On error it prints a sentence and returns false; the
/// program must then exit with code 1.
inline bool parse_flags(int& argc, char**& argv, const char* usage) {
  gflags::SetUsageMessage(usage);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (argc > 1) {
    fail("'%s' is not a flag; --help lists them", argv[1]);
  } else if (!(FLAGS_seconds > 0 && FLAGS_seconds <= 1e6)) {
    fail("--seconds=%g is not between 0 and 1000000", FLAGS_seconds);
  } else if (!two_cpus()) {
    fail("--cpus=%s is not two different CPUs, as in 0,1", FLAGS_cpus.c_str());
  } else if (!can_pin(*two_cpus())) {
    fail("cannot pin to the CPUs --cpus=%s; choose two that this process may use (taskset -p $$)", FLAGS_cpus.c_str());
  } else {
    return true;
  }
  return false;
}

/// Round trip of a cache line between the two sides' CPUs, ns: the smaller and the larger of the values measured just
/// before and just after.
struct Placement {
  double ns_min = 0;
  double ns_max = 0;
};

/// Runs both sides at once, each in a thread pinned to its CPU, until both return. Must be called after parse_flags().
/// If the CPUs can no longer be pinned to, it prints a sentence and returns nullopt.
template <class Server, class Client>
std::optional<Placement> run_pinned(const Server& server, const Client& client) {
  const auto [server_cpu, client_cpu] = *two_cpus();
  const auto start = [](int cpu, const auto& side) {
    return std::thread([cpu, &side] {
      tern::microbench::pin_to_cpu(cpu);  // can_pin() has just succeeded
      side();
    });
  };
  const double before_ns = tern::microbench::placement_ns(server_cpu, client_cpu);
  double after_ns = -1;
  if (before_ns >= 0) {
    std::thread one = start(server_cpu, server), other = start(client_cpu, client);
    one.join();
    other.join();
    after_ns = tern::microbench::placement_ns(server_cpu, client_cpu);
  }
  if (after_ns < 0) {
    fail("the CPUs --cpus=%s were taken from this process", FLAGS_cpus.c_str());
    return std::nullopt;
  }
  return Placement{std::min(before_ns, after_ns), std::max(before_ns, after_ns)};
}

/// A count, and the time in which it was counted.
struct Counted {
  uint64_t count = 0;
  double seconds = 0;
};

/// Runs rounds for --seconds after a warm-up, and adds their results. Reads the clock once in kRoundsPerClock rounds.
template <uint64_t kRoundsPerClock, class Round>
Counted count_rounds(Round&& round) {
  using Clock = std::chrono::steady_clock;
  constexpr double kWarmUpSeconds = 0.1;
  uint64_t count = 0, count_before = 0;
  bool is_warm = false;
  Clock::time_point start = Clock::now();
  for (uint64_t number = 1;; ++number) {
    count += round();
    if (number % kRoundsPerClock != 0) continue;
    const Clock::time_point time = Clock::now();
    const double seconds = std::chrono::duration<double>(time - start).count();
    if (!is_warm && seconds > kWarmUpSeconds) {
      is_warm = true;
      count_before = count;
      start = time;
    } else if (is_warm && seconds > FLAGS_seconds) {
      return {count - count_before, seconds};
    }
  }
}

/// Round trips and their total time.
struct Timed {
  tern::microbench::Percentiles ticks;
  double seconds = 0;
};

/// Times round trips, one after the other, for --seconds after kWarmUp round trips. Reads the clock once in
/// kRoundsPerClock; between two readings a round trip begins at the end of the one before.
template <uint64_t kWarmUp, uint64_t kRoundsPerClock, class RoundTrip>
Timed time_round_trips(RoundTrip&& round_trip) {
  using tern::microbench::Ticks;
  Timed timed;
  auto start = std::chrono::steady_clock::now();
  uint64_t before = Ticks::now();
  for (uint64_t round = 0;; ++round) {
    round_trip();
    const uint64_t after = Ticks::now();
    timed.ticks.add(after - before);
    before = after;
    if (round % kRoundsPerClock != 0) continue;
    const auto time = std::chrono::steady_clock::now();
    if (round <= kWarmUp) {
      timed.ticks.clear();
      start = time;
    } else if (time - start > std::chrono::duration<double>(FLAGS_seconds)) {
      timed.seconds = std::chrono::duration<double>(time - start).count();
      return timed;
    }
    before = Ticks::now();
  }
}

/// The metrics of a ping-pong, with the names of the library's benchmarks.
inline Json latency_metrics(const tern::microbench::Percentiles& ticks, double seconds) {
  Json metrics = {{"rate_mrps", static_cast<double>(ticks.count()) / seconds / 1e6}};
  tern::microbench::add_percentiles(metrics, ticks, tern::microbench::Ticks::ns_per_tick() / 1e3, FLAGS_json);
  return metrics;
}

/// Prints the result, with `params` and the flags of this file. Names of metrics end in their unit. `subject` is the
/// measured program. Returns the program's exit code: 1, after it has printed a sentence, if not all of the result was
/// written.
[[nodiscard]] inline int print(const char* bench, const char* transport, Json params, const Json& metrics,
                               Placement placement, const char* subject = "a bare limit") {
  params["cpus"] = FLAGS_cpus;
  params["seconds"] = FLAGS_seconds;
  if (FLAGS_json) {
    const Json line = {
        {"bench", bench},     {"transport", transport},           {"params", params},
        {"metrics", metrics}, {"placement_ns", placement.ns_max}, {"placement_ns_min", placement.ns_min}};
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%s, %s\n", bench, subject);
    for (const auto& [name, value] : params.items()) {
      std::printf("  %-18s %15s\n", name.c_str(),
                  value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
    }
    std::printf("  %s\n", std::string(34, '-').c_str());
    for (const auto& [name, value] : metrics.items()) {
      if (value.is_number_float()) {
        std::printf("  %-18s %15.3f\n", name.c_str(), value.get<double>());
      } else {
        std::printf("  %-18s %15s\n", name.c_str(), value.dump().c_str());
      }
    }
    std::printf("  %-18s %15.0f\n", "placement_ns", placement.ns_max);
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return fail("the result could not be written: %s", std::strerror(errno));
}

}  // namespace limits
