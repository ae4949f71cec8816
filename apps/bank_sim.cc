// bank_sim: the branches of bank (bank/branch.h) on a hundred simulated hosts. First many kinds of faults occur; then
// the branches run without faults until all transfers are settled. One seed determines the whole run; see
// docs/simulation.md. One thread.
#include <gflags/gflags.h>

#include <tern/sim.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bank/branch.h"

DEFINE_uint64(branches, 100, "branches, each on a host of its own");
DEFINE_double(seconds, 0.2, "virtual time with faults; then ten seconds without faults to settle in");
DEFINE_uint64(seed, 1, "seed of all random choices");
DEFINE_uint64(seeds, 1, "runs, with this seed and those that follow");
DEFINE_bool(verbose, false, "prints each fault and its time");

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using tern::Duration;
using tern::sim::Host;

double to_ms(Duration time) { return static_cast<double>(time.count()) / 1e6; }

class Run {
 public:
  explicit Run(uint64_t seed) : seed_(seed) {}

  /// False: the error message has been printed.
  bool run() {
    auto simulation = tern::sim::Simulation::create(topology_, {.seed = seed_});
    if (!simulation.ok()) return fail(std::string(simulation.status().message()));
    simulation_ = std::move(*simulation);
    journals_.resize(simulation_->hosts());
    ledgers_.resize(simulation_->hosts());
    for (uint32_t i = 0; i < simulation_->hosts(); i++) uris_.push_back(simulation_->host(i).uri());
    for (uint32_t i = 0; i < simulation_->hosts(); i++) boot(i);

    simulation_->set_faults({.drop = 0.005, .duplicate = 0.005, .reorder = 0.01, .delay = 0.001});
    misfortune();
    const auto until = Duration(static_cast<int64_t>(FLAGS_seconds * 1e9));
    while (problem_.empty() && simulation_->now() < until) {
      simulation_->run_for(milliseconds(1));
      look();
    }
    is_healed_ = true;
    simulation_->heal();
    for (uint32_t i = 0; i < simulation_->hosts(); i++) {
      if (!simulation_->host(i).is_up()) boot(i);
      if (bank::Branch* branch = this->branch(i)) branch->close();
    }
    const auto patience = simulation_->now() + std::chrono::seconds(10);
    while (problem_.empty() && !look().is_over()) {
      if (simulation_->now() >= patience) problem_ = "transfers are not settled in ten seconds without faults";
      simulation_->run_for(milliseconds(10));
    }
    return problem_.empty() ? report() : fail(problem_);
  }

 private:
  using Office = bank::Office<tern::Sim>;

  /// The journal and the ledger are the host's disk: they outlive its program.
  void boot(uint32_t branch) {
    (void)simulation_->host(branch).boot([this, branch](Host& host) {
      auto& journal = journals_[branch];
      ledgers_[branch] = std::make_unique<bank::Ledger>(
          simulation_->hosts(), journal, [&journal](const bank::Entry& entry) { journal.push_back(entry); });
      auto office = std::make_shared<Office>();
      tern::RpcOptions options;
      options.huge_pages = false;  // because one process has a hundred small endpoints
      auto status =
          office->open(host.nexus_options(), host.transport_options(), options, *ledgers_[branch], uris_, branch);
      if (status.ok()) status = host.run(*office->rpc);
      if (!status.ok()) problem_ = "branch " + std::to_string(branch) + ": " + std::string(status.message());
      return office;
    });
  }
  bank::Branch* branch(uint32_t host) {
    auto* office = static_cast<Office*>(simulation_->host(host).program());
    return office != nullptr ? office->branch.get() : nullptr;
  }

  /// Audits the bank now.
  bank::Audit look() {
    std::vector<bank::Ledger*> ledgers;
    for (const auto& ledger : ledgers_) ledgers.push_back(ledger.get());
    const bank::Audit audit = bank::audit(ledgers);
    if (problem_.empty()) problem_ = audit.problem;
    return audit;
  }

  uint64_t random(uint64_t below) { return simulation_->random() % below; }
  uint32_t random_host() { return static_cast<uint32_t>(random(simulation_->hosts())); }
  Duration random_time(Duration most) { return Duration(random(static_cast<uint64_t>(most.count()))); }
  double now_ms() const { return to_ms(simulation_->now()); }
  void say(const char* what, uint32_t branch, Duration time) {
    if (FLAGS_verbose) std::printf("%10.3f ms: branch %u %s %.3f ms\n", now_ms(), branch, what, to_ms(time));
  }

  /// Causes one fault, and schedules the next: about ten a second on each host, for 30 ms on average.
  void misfortune() {
    if (is_healed_) return;
    simulation_->after(random_time(milliseconds(200) / simulation_->hosts()), [this] { misfortune(); });
    const uint32_t victim = random_host();
    Host& host = simulation_->host(victim);
    const Duration time = random_time(milliseconds(60));
    switch (random(5)) {
      case 0:
        if (!host.is_up()) return;
        say("is killed, and starts again after", victim, time);
        kills_++;
        (void)host.crash();
        return later(time, [this, victim] { boot(victim); });
      case 1: {
        const uint32_t other = random_host();
        say("does not reach another one for", victim, time);
        simulation_->set_partition(victim, other, true);
        return later(time, [this, victim, other] { simulation_->set_partition(victim, other, false); });
      }
      case 2: {
        const auto cable = topology_.links()[random(topology_.links().size())];
        if (FLAGS_verbose) std::printf("%10.3f ms: a cable is pulled for %.3f ms\n", now_ms(), to_ms(time));
        (void)simulation_->set_link_up(cable.a, cable.b, false);
        return later(time, [this, cable] { (void)simulation_->set_link_up(cable.a, cable.b, true); });
      }
      case 3:
        say("loses its CPUs for", victim, time);
        return host.pause(time);
      case 4:
        say("is slow, and its clock runs away, for", victim, time);
        host.set_slowness(static_cast<double>(2 + random(50)));
        host.set_clock_drift(static_cast<int32_t>(random(2001)) - 1000);
        return later(time, [&host] {
          host.set_slowness(1);
          host.set_clock_drift(0);
        });
    }
  }
  /// Runs `then` after `delay`, unless the faults have ended by then.
  void later(Duration delay, std::function<void()> then) {
    simulation_->after(delay, [this, run_then = std::move(then)] {
      if (!is_healed_) run_then();
    });
  }

  bool report() {
    uint64_t repeated = 0;
    for (uint32_t i = 0; i < simulation_->hosts(); i++) repeated += branch(i)->repeated();
    const tern::sim::NetworkCounters& packets = simulation_->counters();
    std::printf(
        "seed %llu: %llu transfers are settled after %.3f ms; %llu kills, %llu calls repeated after a loss; "
        "%llu of %llu packets lost; trace %016llx\n",
        as_printed(seed_), as_printed(look().settled), now_ms(), as_printed(kills_), as_printed(repeated),
        as_printed(packets.packets_sent - packets.packets_delivered), as_printed(packets.packets_sent),
        as_printed(simulation_->trace_hash()));
    return true;
  }
  bool fail(const std::string& what) {
    std::fflush(stdout);
    std::fprintf(stderr,
                 "bank_sim: at %.3f ms: %s\nto see it again: %s --seed=%llu --branches=%llu --seconds=%g --verbose\n",
                 simulation_ != nullptr ? now_ms() : 0, what.c_str(), gflags::ProgramInvocationName(),
                 as_printed(seed_), as_printed(FLAGS_branches), FLAGS_seconds);
    return false;
  }
  static unsigned long long as_printed(uint64_t number) { return number; }

  const uint64_t seed_;
  const tern::sim::Topology topology_ = tern::sim::Topology::cx4(static_cast<uint32_t>(FLAGS_branches));
  std::vector<std::string> uris_;
  std::vector<std::vector<bank::Entry>> journals_;
  std::vector<std::unique_ptr<bank::Ledger>> ledgers_;
  std::string problem_;  ///< empty: no problem so far
  bool is_healed_ = false;
  uint64_t kills_ = 0;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< is destroyed first, because its programs use the ledgers
};

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage(
      "Branches of a bank send money to each other on simulated hosts, while all kinds of faults occur. At no "
      "moment may\nmoney be made or lost, and after the faults all transfers must be settled soon. Example: "
      "bank_sim --seed=7 --verbose");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (argc > 1 || FLAGS_branches < 2 || FLAGS_branches > 200 || !(FLAGS_seconds >= 0 && FLAGS_seconds <= 3600) ||
      FLAGS_seeds < 1) {
    std::fprintf(stderr,
                 "bank_sim: --branches must be between 2 and 200, --seconds between 0 and 3600, --seeds at least 1; "
                 "--help has the flags\n");
    return 1;
  }
  for (uint64_t i = 0; i < FLAGS_seeds; i++) {
    if (!Run(FLAGS_seed + i).run()) return 1;
  }
  return 0;
}
