// sim_check: random workloads, options and faults in the simulator, under an oracle that looks after every step whether
// each promise of the library is kept. One seed decides everything; scripts/sim runs many of them.
#include <unistd.h>
#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "sim/plan.h"
#include "sim/run.h"

namespace {

struct Options {
  uint64_t first = 1, last = 1;
  uint64_t seconds = 0;  ///< of virtual time, in which there are faults; 0: as the seed says
  bool is_verbose = false;
  bool is_off[sim_test::kRules] = {};
  std::string repeat;  ///< what of this a repetition needs
};

const char* program_name = "sim_check";
char repeat_line[512];  ///< for whatever ends the process

[[noreturn]] void usage() {
  std::fprintf(
      stderr,
      "usage: sim_check [--seed=N | --seeds=FROM-TO] [--seconds=S] [--without=RULES] [--only=RULES] [--verbose]\n"
      "  --seconds   of workload and faults in virtual time, instead of what the seed says\n"
      "  --without   rules that are not checked, with commas between them: retransmissions, packets, round-trips,\n"
      "              pace, held, deaths\n"
      "  --only      rules that are checked; none: \"\"\n"
      "  --verbose   what each run does and how its calls ended\n");
  std::exit(2);
}

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  if (text.empty()) usage();
  for (const char c : text) {
    if (c < '0' || c > '9' || value > UINT64_MAX / 10 - 1) usage();
    value = 10 * value + static_cast<uint64_t>(c - '0');
  }
  return value;
}

/// Switches the rules of that list off, or all others.
void switch_off(std::string_view list, bool others, Options& options) {
  bool is_named[sim_test::kRules] = {};
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(name.size() + 1, list.size()));
    bool is_known = false;
    for (size_t i = 0; i < sim_test::kRules; i++) {
      if (name != sim_test::name_of(static_cast<sim_test::Rule>(i))) continue;
      is_named[i] = is_known = true;
    }
    if (!is_known) usage();
  }
  for (size_t i = 0; i < sim_test::kRules; i++) options.is_off[i] = options.is_off[i] || is_named[i] != others;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
    if (name == "--seed") {
      options.first = options.last = number(value);
    } else if (name == "--seeds") {
      const size_t dash = value.find('-');
      if (dash == std::string_view::npos) usage();
      options.first = number(value.substr(0, dash));
      options.last = number(value.substr(dash + 1));
    } else if (name == "--seconds") {
      options.seconds = number(value);
      options.repeat += " " + std::string(argument);
    } else if (name == "--without" || name == "--only") {
      switch_off(value, name == "--only", options);
      options.repeat += " " + std::string(argument);
    } else if (argument == "--verbose") {
      options.is_verbose = true;
    } else {
      usage();
    }
  }
  if (options.first > options.last) usage();
  return options;
}

/// A CHECK that failed, a crash: the seed that leads there is what matters.
extern "C" void on_crash(int signal) {
  const auto written = write(STDERR_FILENO, repeat_line, std::strlen(repeat_line));
  (void)written;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

sim_test::Plan plan_of(uint64_t seed, const Options& options) {
  sim_test::Plan plan = sim_test::draw_plan(seed);
  std::copy(std::begin(options.is_off), std::end(options.is_off), plan.is_off);
  if (options.seconds != 0) {
    const auto time = std::chrono::seconds(options.seconds);
    const auto factor = time / plan.fault_time + 1;
    plan.calls *= static_cast<uint32_t>(factor);
    plan.fault_time = time;
  }
  return plan;
}

void report(const sim_test::Outcome& outcome) {
  static constexpr const char* kCodes[] = {"ok",          "unreachable", "reset",      "deadline",  "cancelled",
                                           "refused",     "too large",   "queue full", "no memory", "wrong thread",
                                           "no response", "misuse",      "unavailable"};
  std::printf("  %" PRIu64 " calls, %" PRIu64 " packets, %" PRIu64 " steps, %.3f ms, hash %016" PRIx64 ":",
              outcome.calls, outcome.packets, outcome.steps, static_cast<double>(outcome.time.count()) / 1e6,
              outcome.hash);
  for (size_t i = 0; i < std::size(kCodes); i++) {
    if (outcome.statuses[i] != 0) std::printf(" %" PRIu64 " %s", outcome.statuses[i], kCodes[i]);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  program_name = argv[0];
  const Options options = parse(argc, argv);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_crash);
  uint64_t runs = 0, calls = 0, packets = 0, failed_calls = 0;
  for (uint64_t seed = options.first; seed <= options.last; seed++) {
    std::string repeat = std::string(program_name) + " --seed=" + std::to_string(seed);
    repeat += options.repeat;
    std::snprintf(repeat_line, sizeof(repeat_line), "repeat with: %s\n", repeat.c_str());
    const sim_test::Plan plan = plan_of(seed, options);
    if (options.is_verbose) {
      std::printf("%s\n", plan.text().c_str());
      std::fflush(stdout);
    }
    const sim_test::Outcome outcome = sim_test::run(plan, repeat);
    if (options.is_verbose) report(outcome);
    if (plan.runs_twice && sim_test::run(plan, repeat).hash != outcome.hash) {
      std::fprintf(stderr, "BROKEN: two runs of one seed differ\n  %s\nrepeat with: %s\n", plan.text().c_str(),
                   repeat.c_str());
      return 1;
    }
    runs++;
    calls += outcome.calls;
    packets += outcome.packets;
    failed_calls += outcome.calls - outcome.statuses[0];
  }
  std::printf("%" PRIu64 " runs, %" PRIu64 " calls (%" PRIu64 " of them not answered), %" PRIu64
              " packets: every promise was kept\n",
              runs, calls, failed_calls, packets);
  return 0;
}
