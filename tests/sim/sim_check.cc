// sim_check: random workloads, options and faults in the simulator, under an oracle that checks the library's promises
// after every step. The seed decides everything; scripts/sim runs many seeds.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <string_view>

#include "sim/plan.h"
#include "sim/run.h"
#include "sim/seeds.h"

namespace {

using tern::Duration;

/// With more virtual seconds a plan's number of calls could overflow.
constexpr uint64_t kSecondsMax = 1000;

/// The options besides the seeds.
struct Options {
  uint64_t seconds = 0;  ///< virtual time with faults; 0: the seed decides
  bool is_off[sim_test::kRules] = {};
};

constexpr const char* kUsage =
    "usage: sim_check [--seed=N | --seeds=FROM-TO] [--seconds=S] [--without=RULES] [--only=RULES] [--verbose]\n"
    "  --seconds   of workload and faults in virtual time, 1 to 1000, instead of what the seed says\n"
    "  --without   rules that are not checked, with commas between them: retransmissions, packets, round-trips,\n"
    "              pace, held, deaths\n"
    "  --only      rules that are checked; none: \"\"\n"
    "  --verbose   what each run does and how its calls ended\n";

/// Switches off the rules of that list, or all others. False: the list has an unknown rule.
bool switch_off(std::string_view list, bool others, Options& options) {
  bool is_named[sim_test::kRules] = {};
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(name.size() + 1, list.size()));
    bool is_known = false;
    for (size_t i = 0; i < sim_test::kRules; i++) {
      if (name != sim_test::name_of(static_cast<sim_test::Rule>(i))) continue;
      is_named[i] = is_known = true;
    }
    if (!is_known) return false;
  }
  for (size_t i = 0; i < sim_test::kRules; i++) options.is_off[i] = options.is_off[i] || is_named[i] != others;
  return true;
}

sim_test::Plan plan_of(uint64_t seed, const Options& options) {
  sim_test::Plan plan = sim_test::draw_plan(seed);
  std::copy(std::begin(options.is_off), std::end(options.is_off), plan.is_off);
  if (options.seconds != 0) {
    const auto time = std::chrono::seconds(options.seconds);
    const auto factor = time / plan.fault_time + 1;
    plan.calls *= static_cast<uint32_t>(factor);
    plan.fault_time = time;
    // In a short run a few pauses may overlap. In a long one a host would pause for ever if they came faster than they
    // end.
    if (plan.pause_gap != Duration(0)) plan.pause_gap = std::max(plan.pause_gap, 4 * plan.pause_max);
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
  Options own;
  const auto options = seeds::parse(argc, argv, kUsage, [&](std::string_view name, std::string_view value) {
    if (name == "--seconds") {
      own.seconds = seeds::number(value, kUsage);
      if (own.seconds < 1 || own.seconds > kSecondsMax) seeds::usage("sim_check: --seconds must be 1 to 1000\n");
    }
    const bool is_rule = name == "--without" || name == "--only";
    return is_rule ? switch_off(value, name == "--only", own) : name == "--seconds";
  });
  uint64_t runs = 0, calls = 0, packets = 0, failed_calls = 0;
  const int code = seeds::run_all(options, argv[0], [&](uint64_t seed, const std::string& repeat) {
    const sim_test::Plan plan = plan_of(seed, own);
    if (options.is_verbose) {
      std::printf("%s\n", plan.text().c_str());
      std::fflush(stdout);
    }
    const sim_test::Outcome outcome = sim_test::run(plan, repeat);
    if (options.is_verbose) report(outcome);
    if (plan.runs_twice && sim_test::run(plan, repeat).hash != outcome.hash) {
      std::fprintf(stderr, "BROKEN: two runs of one seed differ\n  %s\nrepeat with: %s\n", plan.text().c_str(),
                   repeat.c_str());
      return false;
    }
    runs++;
    calls += outcome.calls;
    packets += outcome.packets;
    failed_calls += outcome.calls - outcome.statuses[0];
    return true;
  });
  if (code != 0) return code;
  std::printf("%" PRIu64 " runs, %" PRIu64 " calls (%" PRIu64 " of them not answered), %" PRIu64
              " packets: every promise was kept\n",
              runs, calls, failed_calls, packets);
  return 0;
}
