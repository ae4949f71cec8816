// raft_check: replicas and clients of apps/raft in the simulator, under all kinds of faults. The history of each run
// must be linearizable, and the cluster must work again after healing. The seed decides everything; scripts/sim runs
// many seeds.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "raft/sim/plan.h"
#include "raft/sim/run.h"
#include "sim/seeds.h"

namespace {

using raft_test::Class;
using raft_test::Outcome;
using raft_test::Plan;

constexpr const char* kUsage =
    "usage: raft_check [--seed=N | --seeds=FROM-TO] [--class=calm|failover|rough|lease] [--verbose]\n"
    "  --class     of all runs, instead of what their seeds say\n"
    "  --verbose   what each run does, and what goes wrong in it\n";

double to_ms(tern::Duration time) { return static_cast<double>(time.count()) / 1e6; }

void report(const Outcome& outcome) {
  std::printf("  %" PRIu64 " commands, %" PRIu64 " of them answered; %" PRIu64 " crashes, %" PRIu64 " lost and %" PRIu64
              " full disks; term %" PRIu64 "; %" PRIu64 " packets, %.3f ms, hash %016" PRIx64 "\n",
              outcome.calls, outcome.ended, outcome.crashes, outcome.lost_disks, outcome.full_disks, outcome.terms,
              outcome.packets, to_ms(outcome.time), outcome.hash);
  for (const tern::Duration time : outcome.failovers) std::printf("  failover in %.3f ms\n", to_ms(time));
  std::fflush(stdout);
}

/// Prints the broken rule. Always returns false.
bool broken(const Plan& plan, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "BROKEN: %s\n  %s\n%s", what.c_str(), plan.text().c_str(), seeds::repeat_line);
  return false;
}

tern::Duration median(std::vector<tern::Duration> times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<Class> kind;  // class of all runs; none: the seeds decide
  const auto options = seeds::parse(argc, argv, kUsage, [&](std::string_view name, std::string_view value) {
    for (size_t k = 0; name == "--class" && k < raft_test::kClasses; k++) {
      if (value == raft_test::name_of(static_cast<Class>(k))) kind = static_cast<Class>(k);
    }
    return kind.has_value();
  });
  uint64_t runs = 0, calls = 0, packets = 0, unanswered = 0;
  std::vector<tern::Duration> failovers;
  const int code = seeds::run_all(options, argv[0], [&](uint64_t seed, const std::string&) {
    const Plan plan = kind ? raft_test::draw_plan(seed, *kind) : raft_test::draw_plan(seed);
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
    // Each run has checked its slowest failover. The median of a few failovers would say little.
    if (failovers.size() < 30 || median(failovers) < 2 * plan.election_timeout) return true;
    return broken(
        plan, "half of " + std::to_string(failovers.size()) + " failovers have taken two election timeouts or more");
  });
  if (code != 0) return code;
  std::printf("%" PRIu64 " runs, %" PRIu64 " calls (%" PRIu64 " of them not answered), %" PRIu64
              " packets: every history is linearizable\n",
              runs, calls, unanswered, packets);
  if (!failovers.empty()) {
    std::printf("%zu failovers: median %.3f ms, slowest %.3f ms\n", failovers.size(), to_ms(median(failovers)),
                to_ms(*std::max_element(failovers.begin(), failovers.end())));
  }
  return 0;
}
