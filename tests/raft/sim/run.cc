#include "raft/sim/run.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "linearizability/key_value.h"
#include "raft/sim/clients.h"
#include "raft/sim/cluster.h"

namespace raft_test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using tern::Duration;

class Run {
 public:
  Run(const Plan& plan, bool says);
  ~Run() { simulation_.reset(); }  // the programs in the simulation use the other members
  Outcome operator()();

 private:
  // The steps of a run, by class.
  void fail_over();
  void misfortune();
  void cause_fault(uint32_t victim);
  void cut_off_leaders();
  void end();
  void look_at_end();

  // Faults.
  void crash(uint32_t place, Loss loss, Duration lasting);
  void lose_disk(uint32_t place);
  void renew();
  void change(replicated::Action action, std::function<void()> then);
  void fill_disk(uint32_t place, Duration lasting);
  void cut_off(uint32_t host, Duration lasting);
  void lose_clients(uint32_t host);
  void boot_clients(uint32_t host);

  ClientProgram* clients(uint32_t host) { return static_cast<ClientProgram*>(simulation_->host(host).program()); }
  uint32_t random_replica();
  Duration random_time(Duration most) { return random_.duration(microseconds(10), std::max(most, Duration(20'000))); }
  bool wait(Duration limit, const std::function<bool()>& done);
  void run_for(Duration time) {
    wait(time, [] { return false; });
  }
  /// Calls `then` after the delay, unless all faults are healed by then.
  void later(Duration delay, std::function<void()> then) {
    simulation_->after(delay, [this, run_then = std::move(then)] {
      if (!is_healed_) run_then();
    });
  }
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  void say(const char* what, uint32_t host, Duration time = {}) const;

  const Plan& plan_;
  const bool says_;
  Random random_;
  Outcome outcome_;
  std::string problem_;
  bool is_healed_ = false;
  /// The replica at this place has lost its disk, and its successor is not yet a member.
  std::optional<uint32_t> rejoining_;
  Workload workload_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<tern::sim::Simulation> simulation_;
};

Run::Run(const Plan& plan, bool says)
    : plan_(plan),
      says_(says),
      random_(plan.seed ^ 0x66617465),
      workload_{.plan = plan, .replicas = {}, .history = {}, .problem = {}} {
  auto made = tern::sim::Simulation::create(tern::sim::Topology::star(plan.hosts()), {.seed = plan.seed});
  if (!made.ok()) {
    problem_ = made.status().message();
    return;
  }
  simulation_ = std::move(*made);
  for (uint32_t i = 0; i < plan.replicas; i++) workload_.replicas.push_back(simulation_->host(i).uri());
  cluster_ = std::make_unique<Cluster>(plan, *simulation_, random_);
  for (uint32_t i = 0; i < plan.replicas; i++) cluster_->boot(i);
  for (uint32_t i = plan.replicas; i < plan.hosts(); i++) boot_clients(i);
  simulation_->set_observer([this] { cluster_->look(); });
}

void Run::say(const char* what, uint32_t host, Duration time) const {
  if (!says_) return;
  std::printf("%10.3f ms: host %u %s", static_cast<double>(simulation_->now().count()) / 1e6, host, what);
  if (time != Duration::zero()) std::printf(" for %.3f ms", static_cast<double>(time.count()) / 1e6);
  std::printf("\n");
  std::fflush(stdout);
}

/// Waits until `done`. False: the limit has passed, or a rule was broken.
bool Run::wait(Duration limit, const std::function<bool()>& done) {
  const auto is_wrong = [this] {
    return !cluster_->problem.empty() || !workload_.problem.empty() || !problem_.empty();
  };
  const bool is_done = simulation_->run_until([&] { return is_wrong() || done(); }, limit);
  if (!cluster_->problem.empty()) fail(cluster_->problem);
  if (!workload_.problem.empty()) fail(workload_.problem);
  return is_done && problem_.empty();
}

Outcome Run::operator()() {
  if (problem_.empty() &&
      !wait(20 * plan_.election_timeout, [this] { return cluster_->leader() < cluster_->size(); })) {
    fail("there is no leader after twenty election timeouts without faults");
  }
  if (problem_.empty()) {
    simulation_->set_faults(plan_.faults);
    switch (plan_.kind) {
      case Class::kCalm:
        run_for(plan_.fault_time);
        break;
      case Class::kFailover:
        fail_over();
        break;
      case Class::kRough:
        misfortune();
        run_for(plan_.fault_time);
        break;
      case Class::kLease:
        cut_off_leaders();
        break;
    }
  }
  if (problem_.empty()) end();
  if (problem_.empty()) look_at_end();
  if (says_ && !problem_.empty()) std::printf("%s", cluster_->text().c_str());
  // The history is checked in any case. fail() keeps the first error.
  const std::string verdict = linearizability::check_keys(workload_.history.operations());
  if (!verdict.empty()) fail(verdict);
  outcome_.problem = problem_;
  outcome_.calls = workload_.history.operations().size();
  outcome_.ended = workload_.history.ended();
  if (simulation_ != nullptr) {
    outcome_.packets = simulation_->counters().packets_sent;
    outcome_.time = simulation_->now();
    outcome_.hash = simulation_->trace_hash();
  }
  return outcome_;
}

// ---- Classes ----

/// The leader's crash is the only fault.
void Run::fail_over() {
  for (int i = 0; i < 6 && problem_.empty(); i++) {
    run_for(random_.duration(milliseconds(5), milliseconds(20)));
    const uint32_t victim = cluster_->leader();
    if (victim == cluster_->size()) return fail("the leader has gone without a fault");
    say("leads, and is killed", victim);
    cluster_->crash(victim, Loss::kNothing);
    outcome_.crashes++;
    const Duration begin = simulation_->now();
    const auto is_led = [this] { return cluster_->leader() < cluster_->size(); };
    if (!wait(4 * plan_.election_timeout, is_led)) {
      return fail("no other leader serves four election timeouts after the leader's crash, the only fault");
    }
    outcome_.failovers.push_back(simulation_->now() - begin);
    run_for(random_time(plan_.election_timeout));
    cluster_->boot(victim);
    // The restarted replica hears of the leader, for which it did not vote, and gives it the promise of a voter.
    run_for(3 * plan_.election_timeout);
  }
}

/// Causes one more fault, and schedules the next one.
void Run::misfortune() {
  if (is_healed_) return;
  later(random_time(2 * plan_.fault_gap), [this] { misfortune(); });
  cause_fault(random_replica());
}

void Run::cause_fault(uint32_t victim) {
  const Duration lasting = random_time(plan_.lasting);
  tern::sim::Host& host =
      simulation_->host(random_.chance(800) ? victim : static_cast<uint32_t>(random_.below(plan_.hosts())));
  switch (random_.below(9)) {
    case 0:
    case 1:
      if (!plan_.has_crashes) return;
      return crash(victim, plan_.has_power_losses && random_.chance(700) ? Loss::kUnsynced : Loss::kNothing, lasting);
    case 2:
    case 3:
      if (plan_.has_partitions) cut_off(host.index(), lasting);
      return;
    case 4:
      if (!plan_.has_pauses) return;
      say("is paused", host.index(), lasting);
      return host.pause(lasting);
    case 5: {
      if (!plan_.has_drift) return;
      const auto most = static_cast<int64_t>(plan_.clock_drift_max * 1e6);
      host.set_clock_drift(
          static_cast<int32_t>(static_cast<int64_t>(random_.below(2 * static_cast<uint64_t>(most) + 1)) - most));
      return;
    }
    case 6:
      if (!plan_.has_loss) return;
      simulation_->set_faults({.drop = 0.3, .duplicate = 0.1, .reorder = 0.3});
      return later(lasting, [this] { simulation_->set_faults(plan_.faults); });
    case 7:
      if (plan_.has_full_disks) return fill_disk(victim, lasting);
      // The clients of the first host stay, because one of them is the administrator.
      if (plan_.has_client_crashes && plan_.client_hosts > 1) {
        lose_clients(plan_.replicas + static_cast<uint32_t>(random_.between(1, plan_.client_hosts - 1)));
      }
      return;
    default:
      if (plan_.has_lost_disks) lose_disk(victim);
  }
}

/// All clocks have their largest permitted errors. The leader's clock is slow, so that its lease lasts long, and all
/// others are fast. The leader is cut off from the other replicas, but not from its clients, until another replica
/// leads. In some rounds it is first cut off from one replica, which will soon stand for election. The third replica,
/// whose promise is fresh, then restarts after a crash at the moment of the cut.
void Run::cut_off_leaders() {
  const auto drift = static_cast<int32_t>(plan_.clock_drift_max * 1e6);
  for (int round = 0; round < 12 && problem_.empty(); round++) {
    workload_.first_key = static_cast<uint64_t>(round) * plan_.keys;
    const auto is_led = [this] { return cluster_->leader() < cluster_->size(); };
    if (!wait(20 * plan_.election_timeout, is_led)) return fail("there is no leader in a healthy network");
    const uint32_t leader = cluster_->leader();
    for (uint32_t i = 0; i < plan_.replicas; i++) simulation_->host(i).set_clock_drift(i == leader ? -drift : drift);
    run_for(plan_.election_timeout + random_.duration(microseconds(10), milliseconds(1)));
    say("leads, and is cut off", leader);
    const auto cut = [&](uint32_t i, bool is_cut) {
      simulation_->set_partition(leader, i, is_cut);
      simulation_->set_partition(i, leader, is_cut);
    };
    if (round % 4 == 3) {
      const uint32_t candidate = (leader + 1) % plan_.replicas, witness = (leader + 2) % plan_.replicas;
      workload_.holds_writes = true;  // the candidate would lack the entries of these writes
      run_for(milliseconds(1));
      cut(candidate, true);
      // Restarts at once, and without a session, so that it does not lose its request.
      crash(candidate, Loss::kNothing, {});
      run_for(plan_.election_timeout * static_cast<int>(random_.between(5, 9)) / 10);
      crash(witness, Loss::kNothing, {});
      workload_.holds_writes = false;
    }
    for (uint32_t i = 0; i < plan_.replicas; i++) {
      if (i != leader) cut(i, true);
    }
    wait(6 * plan_.election_timeout,
         [&] { return cluster_->leader() != leader && cluster_->leader() < cluster_->size(); });
    run_for(plan_.election_timeout);
    for (uint32_t i = 0; i < plan_.replicas; i++) {
      if (i != leader) cut(i, false);
    }
  }
}

/// Heals all faults. Everything must then work again soon.
void Run::end() {
  is_healed_ = true;
  simulation_->heal();
  simulation_->set_faults({});
  for (uint32_t i = 0; i < cluster_->size(); i++) {
    cluster_->empty_disk(i);
    if (rejoining_ == i) continue;
    if (cluster_->is_up(i) && cluster_->has_stopped(i)) cluster_->crash(i, Loss::kNothing);
    if (!cluster_->is_up(i)) cluster_->boot(i);
  }
  for (uint32_t i = plan_.replicas; i < plan_.hosts(); i++) {
    if (!simulation_->host(i).is_up()) boot_clients(i);
  }
  const Duration patience = 40 * plan_.election_timeout + seconds(1);
  const auto all = [this](const std::function<bool(Worker&)>& so) {
    for (uint32_t i = plan_.replicas; i < plan_.hosts(); i++) {
      for (const auto& worker : clients(i)->workers) {
        if (!so(*worker)) return false;
      }
    }
    return true;
  };
  if (!wait(patience, [this] { return cluster_->leader() < cluster_->size(); })) {
    return fail("there is no leader long after all was healed");
  }
  if (!wait(2 * patience, [this] { return !rejoining_; })) {
    return fail("a replica in place of one that has lost its disk is no member long after all was healed");
  }
  std::vector<uint64_t> ended;
  all([&](Worker& worker) { return ended.push_back(worker.ended()), true; });
  size_t at = 0;
  // Each client must end its present command and another one.
  if (!wait(patience, [&] { return at = 0, all([&](Worker& worker) { return worker.ended() >= ended[at++] + 2; }); })) {
    return fail("a client's commands are not executed long after all was healed");
  }
  workload_.is_over = true;
  if (!wait(patience, [&] { return all([](Worker& worker) { return !worker.is_busy(); }); })) {
    return fail("a client's last command does not end");
  }
}

void Run::look_at_end() {
  std::string why_not;
  if (!wait(seconds(2), [&] { return cluster_->agree(why_not); })) return fail(why_not);
  outcome_.terms = cluster_->replica(cluster_->leader() % cluster_->size())->state().current_term;
}

// ---- Faults ----

/// Returns a random place. The leader is more likely than the others.
uint32_t Run::random_replica() {
  const uint32_t leader = cluster_->leader();
  if (leader < cluster_->size() && random_.chance(400)) return leader;
  return static_cast<uint32_t>(random_.below(cluster_->size()));
}

void Run::crash(uint32_t place, Loss loss, Duration lasting) {
  if (!cluster_->is_up(place) || rejoining_ == place) return;
  say(loss == Loss::kUnsynced ? "loses its power" : "is killed", place, lasting);
  cluster_->crash(place, loss);
  outcome_.crashes++;
  later(lasting, [this, place] {
    if (!cluster_->is_up(place) && rejoining_ != place) cluster_->boot(place);
  });
}

/// The replica comes back without its memory. Sometimes it is first started by mistake as if nothing had happened,
/// which it must not survive. It is then removed, and another replica is added in its place. All of this continues
/// after the other faults are healed.
void Run::lose_disk(uint32_t place) {
  if (rejoining_ || !cluster_->is_up(place)) return;
  rejoining_ = place;
  say("loses its disk", place);
  outcome_.lost_disks++;
  cluster_->crash(place, Loss::kAll);
  const bool is_mistaken = random_.chance(500);
  if (is_mistaken) cluster_->boot(place);
  simulation_->after(2 * plan_.election_timeout, [this, place, is_mistaken] {
    if (is_mistaken && cluster_->is_up(place)) cluster_->crash(place, Loss::kAll);
    change(replicated::Action::kRemove, [this, place] {
      renew();
      change(replicated::Action::kAdd, [this, place] {
        say("is a member", place);
        rejoining_.reset();
      });
    });
  });
}

/// Puts another replica in the place of the rejoining one.
void Run::renew() {
  if (cluster_->is_up(*rejoining_)) cluster_->crash(*rejoining_, Loss::kAll);
  cluster_->renew(*rejoining_);
  cluster_->boot(*rejoining_);
  say("has another replica", *rejoining_);
}

/// Changes the membership of the rejoining replica. The administrator repeats the request until it has succeeded.
void Run::change(replicated::Action action, std::function<void()> then) {
  ClientProgram* program = clients(plan_.replicas);
  auto ask = std::make_unique<std::function<void()>>([this, program, action, next = std::move(then)] {
    program->administrator->change(action, cluster_->id(*rejoining_), workload_.replicas[*rejoining_],
                                   [this, action, next](const std::string& sentence) {
                                     // This must not run within a program of the simulation.
                                     simulation_->after(milliseconds(1), [this, action, sentence, next] {
                                       if (sentence.empty()) return next();
                                       say(sentence.c_str(), *rejoining_);
                                       // As the sentence says, the id is used up, although the change was interrupted.
                                       if (sentence.find("give the new replica a higher one") != std::string::npos)
                                         renew();
                                       change(action, next);
                                     });
                                   });
  });
  if (!program->rpc->post([run_ask = std::move(ask)] { (*run_ask)(); }).ok()) fail("an administrator is not heard");
}

void Run::fill_disk(uint32_t place, Duration lasting) {
  if (!cluster_->is_up(place) || rejoining_ == place) return;
  say("has a disk that is full soon", place, lasting);
  outcome_.full_disks++;
  cluster_->fill_disk(place, random_.below(30));
  later(lasting, [this, place] {
    if (!cluster_->is_up(place) || rejoining_ == place) return;
    cluster_->crash(place, Loss::kNothing);
    cluster_->boot(place);
  });
}

/// Cuts off the host from some of the others, in one direction or in both.
void Run::cut_off(uint32_t host, Duration lasting) {
  say("is cut off from some", host, lasting);
  const uint64_t way = random_.below(4);
  const bool from_all = random_.chance(600);
  for (uint32_t other = 0; other < plan_.hosts(); other++) {
    if (other == host || (!from_all && random_.chance(500))) continue;
    if (other >= plan_.replicas && random_.chance(700)) continue;  // less often from clients
    const auto set = [this, host, other, way](bool is_cut) {
      if (way != 0) simulation_->set_partition(host, other, is_cut);
      if (way != 1) simulation_->set_partition(other, host, is_cut);
    };
    set(true);
    later(lasting, [set] { set(false); });
  }
}

void Run::lose_clients(uint32_t host) {
  // A history takes long to check if many operations have an unknown outcome.
  if (!simulation_->host(host).is_up() || workload_.clients_made > 30) return;
  say("and its clients are gone", host);
  if (!simulation_->host(host).crash().ok()) return fail("a host of clients does not crash");
  boot_clients(host);
}

void Run::boot_clients(uint32_t host) {
  const auto status = simulation_->host(host).boot([&](tern::sim::Host& its) {
    auto program = std::make_shared<ClientProgram>();
    const std::string sentence = program->open(its, workload_, random_.bits());
    if (!sentence.empty()) fail("clients do not begin: " + sentence);
    return program;
  });
  if (!status.ok()) fail(std::string(status.message()));
}

}  // namespace

Outcome run(const Plan& plan, bool says) { return Run(plan, says)(); }

}  // namespace raft_test
