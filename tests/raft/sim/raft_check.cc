// raft_check: replicas and clients of apps/raft in the simulator, under everything that can go wrong. The history of
// each run must be linearizable, and all must work again when all is healed. One seed decides everything; scripts/sim
// runs many of them.
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "raft/sim/plan.h"
#include "raft/sim/run.h"

namespace {

using raft_test::Class;
using raft_test::Outcome;
using raft_test::Plan;

struct Options {
  uint64_t first = 1, last = 1;
  std::optional<Class> kind;  ///< of all runs, in place of what the seeds say
  bool is_verbose = false;
  std::string repeat;  ///< what of this a repetition needs
};

const char* program_name = "raft_check";
char repeat_line[512];  ///< for whatever ends the process

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: raft_check [--seed=N | --seeds=FROM-TO] [--class=calm|failover|rough|lease] [--verbose]\n"
               "  --class     of all runs, instead of what their seeds say\n"
               "  --verbose   what each run does, and what goes wrong in it\n");
  std::exit(2);
}

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  if (text.empty() || text.size() > 18) usage();
  for (const char c : text) {
    if (c < '0' || c > '9') usage();
    value = 10 * value + static_cast<uint64_t>(c - '0');
  }
  return value;
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
    } else if (name == "--class") {
      for (size_t k = 0; k < raft_test::kClasses; k++) {
        if (value == raft_test::name_of(static_cast<Class>(k))) options.kind = static_cast<Class>(k);
      }
      if (!options.kind) usage();
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

double to_ms(tern::Duration time) { return static_cast<double>(time.count()) / 1e6; }

void report(const Outcome& outcome) {
  std::printf("  %" PRIu64 " commands, %" PRIu64 " of them answered; %" PRIu64 " crashes, %" PRIu64 " lost and %" PRIu64
              " full disks; term %" PRIu64 "; %" PRIu64 " packets, %.3f ms, hash %016" PRIx64 "\n",
              outcome.calls, outcome.ended, outcome.crashes, outcome.lost_disks, outcome.full_disks, outcome.terms,
              outcome.packets, to_ms(outcome.time), outcome.hash);
  for (const tern::Duration time : outcome.failovers) std::printf("  failover in %.3f ms\n", to_ms(time));
  std::fflush(stdout);
}

int broken(const Plan& plan, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "BROKEN: %s\n  %s\n%s", what.c_str(), plan.text().c_str(), repeat_line);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  program_name = argv[0];
  const Options options = parse(argc, argv);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_crash);
  uint64_t runs = 0, calls = 0, packets = 0, unanswered = 0;
  std::vector<tern::Duration> failovers;
  for (uint64_t seed = options.first; seed <= options.last; seed++) {
    std::snprintf(repeat_line, sizeof(repeat_line), "repeat with: %s --seed=%" PRIu64 "%s\n", program_name, seed,
                  options.repeat.c_str());
    const Plan plan = options.kind ? raft_test::draw_plan(seed, *options.kind) : raft_test::draw_plan(seed);
    if (options.is_verbose) {
      std::printf("%s\n", plan.text().c_str());
      std::fflush(stdout);
    }
    const Outcome outcome = raft_test::run(plan, options.is_verbose);
    if (options.is_verbose) report(outcome);
    if (!outcome.problem.empty()) return broken(plan, outcome.problem);
    if (plan.runs_twice && raft_test::run(plan, false).hash != outcome.hash) {
      return broken(plan, "two runs of one seed differ");
    }
    runs++;
    calls += outcome.calls;
    packets += outcome.packets;
    unanswered += outcome.calls - outcome.ended;
    failovers.insert(failovers.end(), outcome.failovers.begin(), outcome.failovers.end());
    // The slowest one has been looked at in its run. A median of a few says little.
    if (failovers.size() < 30) continue;
    std::nth_element(failovers.begin(), failovers.begin() + static_cast<ptrdiff_t>(failovers.size() / 2),
                     failovers.end());
    if (failovers[failovers.size() / 2] >= 2 * plan.election_timeout) {
      return broken(
          plan, "half of " + std::to_string(failovers.size()) + " failovers have taken two election timeouts or more");
    }
  }
  std::printf("%" PRIu64 " runs, %" PRIu64 " calls (%" PRIu64 " of them not answered), %" PRIu64
              " packets: every history is linearizable\n",
              runs, calls, unanswered, packets);
  if (!failovers.empty()) {
    std::printf("%zu failovers: median %.3f ms, slowest %.3f ms\n", failovers.size(),
                to_ms(failovers[failovers.size() / 2]), to_ms(*std::max_element(failovers.begin(), failovers.end())));
  }
  return 0;
}
