#include "sim/run.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <unordered_map>

#include "rpc/endpoint_core.h"
#include "sim/machine.h"
#include "sim/trial.h"

namespace sim_test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using tern::Duration;
using tern::rpc::EndpointCore;

/// More steps than any run needs. A run that takes more is in a loop in which no time passes.
constexpr uint64_t kStepsMax = 200'000'000;
/// Each session of an endpoint may have one last timer; an endpoint has fewer sessions than this.
constexpr int kLooksMax = 100;

/// Calls that a worker got while its host was slow keep their long times: some calls, one after the other, of a
/// thousand times 1 ms each.
constexpr Duration kWorkersLate = seconds(20);

/// Longer than any message of the management (clause 7.1.2), and than packets without a payload.
constexpr size_t kFrameLimitMin = 330;
/// A client gives up a report without an acknowledgement after 255 eighths of the report delay, or 255 128ths of the
/// liveness timeout, or 255 RTOs, which are less than a quarter of the latter.
constexpr int kReportDelays = 32, kReportTimeouts = 64;
/// Packets for the opening of a session on both sides and for its reports.
constexpr double kPacketsPerSession = 40;

class Run {
 public:
  Run(const Plan& plan, const std::string& repeat)
      : plan_(plan), world_(plan, repeat), random_(plan.seed * 6364136223846793005 + 1442695040888963407) {}
  ~Run() {
    world_.attic.clear();
    simulation_.reset();
  }

  Outcome operator()();

 private:
  // The phases.
  void start();
  void heal();
  void demand_completion(const char* what);
  void demand_fresh_calls();
  void demand_quiet();
  void check_held(Agent& agent);
  void demand_proportion();
  void demand_nothing_left();
  Duration patience() const;

  // Faults and others outside of all hosts.
  void boot(uint32_t host);
  void fault_later();
  void pause_later();
  void cause_fault();
  void cause_network_fault(Duration lasting);
  void crash(uint32_t host, Duration lasting);
  void visit_attic();

  void observe();
  void check(Agent& agent);
  template <class F>
  void for_each_agent(F&& f) {
    for (Machine* machine : world_.machines) {
      if (machine == nullptr) continue;
      for (const auto& agent : machine->agents()) {
        if (agent != nullptr) f(*agent);
      }
    }
  }

  const Plan& plan_;
  World world_;
  Random random_;
  std::unique_ptr<tern::sim::Simulation> simulation_;
  uint64_t steps_ = 0;
  uint64_t next_look_ = 1;
  /// In flight when each session was last looked at, by endpoint and session.
  std::unordered_map<const EndpointCore*, std::unordered_map<uint32_t, uint32_t>> in_flight_;
};

Outcome Run::operator()() {
  start();
  simulation_->run_for(plan_.fault_time);
  heal();
  demand_completion("a call has not ended long after the network was healed");
  demand_fresh_calls();
  run_trial(world_, random_);
  demand_quiet();
  demand_proportion();
  demand_nothing_left();
  Outcome outcome;
  outcome.steps = steps_;
  outcome.calls = world_.ledger.calls();
  outcome.packets = simulation_->counters().packets_delivered;
  outcome.time = simulation_->now();
  outcome.statuses = world_.ledger.statuses();
  outcome.hash = simulation_->trace_hash() ^ world_.ledger.hash();
  return outcome;
}

// ---- Phases ----

void Run::start() {
  auto simulation = tern::sim::Simulation::create(plan_.topology, plan_.simulation);
  if (!simulation.ok()) {
    world_.oracle.broken("Simulation::create(): %s", std::string(simulation.status().message()).c_str());
  }
  simulation_ = std::move(*simulation);
  world_.simulation = simulation_.get();
  world_.oracle.set_simulation(simulation_.get());
  world_.machines.resize(simulation_->hosts());
  world_.round_trips = std::make_unique<RoundTrips>(plan_.topology);
  simulation_->set_faults(plan_.faults);
  if (plan_.kind == Class::kTight || plan_.kind == Class::kCorrupt) world_.troubles.on_all(Duration::max() / 2);
  for (uint32_t i = 0; i < simulation_->hosts(); i++) boot(i);
  simulation_->set_observer([this] { observe(); });
  simulation_->after(plan_.fault_time / 50, [this] { visit_attic(); });
  if (plan_.kind == Class::kRough) fault_later();
  if (plan_.pause_gap != Duration(0)) pause_later();
  if (plan_.sliced_host != UINT32_MAX) simulation_->host(plan_.sliced_host).set_time_slices(plan_.slices);
}

void Run::boot(uint32_t host) {
  const tern::Status status = simulation_->host(host).boot(
      [this](tern::sim::Host& its_host) { return std::make_shared<Machine>(world_, its_host); });
  if (!status.ok()) world_.oracle.broken("boot(): %s", std::string(status.message()).c_str());
}

/// Ends all faults. All kept requests are answered from now on.
void Run::heal() {
  world_.phase = World::Phase::kFinish;
  simulation_->heal();
  if (plan_.kind != Class::kTight) world_.troubles.end_all(simulation_->now());
  for (uint32_t i = 0; i < simulation_->hosts(); i++) {
    if (world_.machines[i] == nullptr) boot(i);
  }
}

/// How long a call may take in a healthy network after any faults.
Duration Run::patience() const {
  const uint64_t rate = std::min(plan_.slowest_link_bits_per_sec / 8, plan_.rate_bytes_per_sec_min);
  const auto transfer = Duration(static_cast<int64_t>(20 * world_.ledger.bytes_open() * 1'000'000'000 / rate));
  return 8 * plan_.liveness_max + 3 * plan_.connect_timeout + 2 * plan_.handler_time_max + kWorkersLate + transfer;
}

void Run::demand_completion(const char* what) {
  const Duration limit = patience();
  const bool is_over = simulation_->run_until([this] { return world_.ledger.open() == 0; }, limit);
  if (!is_over) world_.oracle.broken(*world_.ledger.first_open(), "%s", what);
}

/// Checks that new sessions open and all calls on them are answered.
void Run::demand_fresh_calls() {
  // The endpoints have noticed all broken sessions by then.
  if (plan_.kind != Class::kTight) {
    const Duration over = world_.troubles.over();
    if (over > simulation_->now()) simulation_->run_for(over - simulation_->now());
  }
  const bool has_limits = plan_.has_limited_sessions || random_.chance(300);
  if (has_limits) {
    for_each_agent([](Agent& agent) { agent.destroy_sessions(); });
    simulation_->run_for(4 * plan_.liveness_max);
  }
  const auto statuses = world_.ledger.statuses();
  size_t calls = 0;
  for_each_agent([&](Agent& agent) {
    Place server;
    server.host = static_cast<uint32_t>(random_.below(plan_.hosts.size()));
    server.endpoint = static_cast<uint16_t>(random_.below(plan_.hosts[server.host].endpoints.size()));
    calls += agent.call_afresh(server);
  });
  demand_completion("a call on a new session in a healthy network has not ended");
  const uint64_t answered = world_.ledger.statuses()[0] - statuses[0];
  const bool may_be_refused = plan_.has_limited_sessions || plan_.has_limited_memory || plan_.has_limited_workers ||
                              plan_.kind == Class::kTight;
  if (!may_be_refused && answered != calls) {
    world_.oracle.broken("of %zu calls on new sessions in a healthy network %" PRIu64 " were answered", calls,
                         answered);
  }
}

/// Sessions without calls send nothing and have no timers once the servers know that their responses have arrived.
void Run::demand_quiet() {
  Duration delay{};
  for (const HostPlan& host : plan_.hosts) {
    for (const EndpointPlan& endpoint : host.endpoints) delay = std::max(delay, endpoint.rpc.report_delay);
  }
  simulation_->run_for(3 * delay + plan_.liveness_max + milliseconds(50));
  // A damaged disconnect may have ended a session at its server only, and a NAT that has forgotten a flow holds back
  // acknowledgements: the client's last report is then sent long after the first (clause 5.5.1).
  if (plan_.is_corrupt() || plan_.trial == Trial::kNat)
    simulation_->run_for(kReportDelays * delay + kReportTimeouts * plan_.liveness_max);
  std::vector<uint64_t> sent;
  for_each_agent([&](Agent& agent) { sent.push_back(agent.rpc().counters().packets_sent); });
  simulation_->run_for(2 * delay + plan_.liveness_max);
  size_t i = 0;
  for_each_agent([&](Agent& agent) {
    const Place place = agent.place();
    // Timers that are left fire without effect: the deadline of an ended call, a departure time.
    const EndpointCore& core = EndpointCore::of(agent.rpc());
    auto census = core.census();
    for (int looks = 0; looks < kLooksMax && census.next_due_ns != UINT64_MAX; looks++) {
      const Duration left = Duration(static_cast<int64_t>(census.next_due_ns)) - agent.rpc().now();
      simulation_->run_for(std::max(left, Duration(0)) + milliseconds(1));
      census = core.census();
    }
    if (agent.rpc().counters().packets_sent != sent[i++]) {
      world_.oracle.broken("host %u/%u sends packets and has no calls", place.host, place.endpoint);
    }
    if (census.next_due_ns != UINT64_MAX) {
      world_.oracle.broken("host %u/%u has something due and has no calls", place.host, place.endpoint);
    }
    if (census.requests_open != 0 && !plan_.is_corrupt()) {
      world_.oracle.broken("host %u/%u still has %zu requests, and all calls have ended", place.host, place.endpoint,
                           census.requests_open);
    }
    check_held(agent);
  });
}

/// Checks the memory of sessions. All calls have ended, and every session has had the time to report that.
void Run::check_held(Agent& agent) {
  if (plan_.is_corrupt()) return;
  const Place place = agent.place();
  const EndpointCore& core = EndpointCore::of(agent.rpc());
  size_t responses = 0;
  core.for_each_server_session([&](const tern::session::ServerSession& session) {
    for (uint32_t i = 0; i < session.window(); i++) {
      const auto* slot = session.slot(i);
      responses += slot != nullptr && slot->phase == tern::session::ServerSlot::Phase::kResponded;
    }
  });
  if (responses != 0) {
    world_.oracle.broken(Rule::kHeld, "host %u/%u still has %zu responses, and all calls have ended", place.host,
                         place.endpoint, responses);
  }
  const auto census = core.census();
  if (census.arriving_bytes != 0) {
    world_.oracle.broken(Rule::kHeld,
                         "host %u/%u still has %zu bytes of requests that arrive, and all calls have ended", place.host,
                         place.endpoint, census.arriving_bytes);
  }
  core.for_each_client_session([&](const tern::session::ClientSession& session) {
    if (session.packets_in_flight() == 0) return;
    world_.oracle.broken(Rule::kHeld, "host %u/%u has %u packets in flight in a session, and all calls have ended",
                         place.host, place.endpoint, session.packets_in_flight());
  });
}

/// Checks that the number of packets is in proportion to the calls.
void Run::demand_proportion() {
  if (plan_.is_corrupt()) return;
  uint64_t sent = world_.packets_sent, again = 0, put_off = 0;
  for_each_agent([&](Agent& agent) {
    sent += agent.rpc().counters().packets_sent;
    again += agent.rpc().counters().retransmissions;
    put_off += agent.rpc().counters().transport_full;
    agent.check_round_trips();
  });
  const tern::sim::NetworkCounters& counters = simulation_->counters();
  const uint64_t lost = counters.dropped_buffer_full + counters.dropped_receive_full + counters.dropped_no_receiver +
                        counters.dropped_too_long + counters.dropped_fault + counters.dropped_nat;
  // No endpoint of a run without faults has ended before. A full send queue cuts a burst of answers in two: the
  // postponed answers come later than the answer to a later packet, and their request may count as lost, once for each
  // time that a queue was full.
  if (plan_.is_lossless() && lost == 0 && again > put_off) {
    world_.oracle.broken(Rule::kRetransmissions, "%" PRIu64 " retransmissions, and nothing was lost or late", again);
  }
  const double allowed = world_.ledger.packets_allowed() + world_.sessions_begun * kPacketsPerSession;
  if (static_cast<double>(sent) > allowed) {
    world_.oracle.broken(Rule::kPackets, "%" PRIu64 " packets, of at most %.0f", sent, allowed);
  }
}

/// Checks that no server session is left without a client, and no buffer without an owner.
void Run::demand_nothing_left() {
  for_each_agent([](Agent& agent) {
    agent.destroy_sessions();
    agent.drop_buffers();
  });
  world_.attic.clear();
  // A damaged disconnect ends the wrong session, or none, and is acknowledged: the right session stays while its
  // client's process lives.
  const auto is_empty = [this](const EndpointCore::Census& census) {
    if (plan_.is_corrupt() && census.server_sessions != 0) return census.client_sessions == 0;
    return census.client_sessions == 0 && census.server_sessions == 0 && census.buffers_out == 0;
  };
  const auto is_over = [&] {
    bool all = true;
    for_each_agent([&](Agent& agent) { all = all && is_empty(EndpointCore::of(agent.rpc()).census()); });
    return all;
  };
  const Duration limit = 8 * plan_.liveness_max + seconds(8);
  for (Duration waited{}; waited < limit && !is_over(); waited += milliseconds(10))
    simulation_->run_for(milliseconds(10));
  for_each_agent([&](Agent& agent) {
    const auto census = EndpointCore::of(agent.rpc()).census();
    if (is_empty(census)) return;
    world_.oracle.broken(
        "all sessions were destroyed: host %u/%u still has %zu client sessions, %zu server sessions, %zu buffers",
        agent.place().host, agent.place().endpoint, census.client_sessions, census.server_sessions, census.buffers_out);
  });
}

// ---- Outside of all hosts ----

void Run::visit_attic() {
  const bool is_last = world_.phase == World::Phase::kFinish;
  while (!world_.attic.empty() && (is_last || random_.chance(500))) {
    const size_t at = is_last ? 0 : static_cast<size_t>(random_.below(world_.attic.size()));
    World::Kept kept = std::move(world_.attic[at]);
    world_.attic.erase(world_.attic.begin() + static_cast<std::ptrdiff_t>(at));
    Call& call = *world_.ledger.find(kept.name);
    world_.ledger.check_kept(call, kept.request.bytes());
    if (random_.chance(100)) {
      world_.ledger.on_outcome(call, Call::Outcome::kDropped);
    } else {
      answer_request(world_, call, std::move(kept.request));
    }
  }
  simulation_->after(std::max<Duration>(plan_.fault_time / 50, microseconds(100)), [this] { visit_attic(); });
}

void Run::fault_later() {
  simulation_->after(random_.duration(plan_.fault_gap / 8 + Duration(1), 2 * plan_.fault_gap + Duration(2)), [this] {
    if (world_.phase != World::Phase::kWork) return;
    cause_fault();
    fault_later();
  });
}

void Run::pause_later() {
  simulation_->after(random_.duration(plan_.pause_gap / 4 + Duration(1), 2 * plan_.pause_gap + Duration(2)), [this] {
    if (world_.phase != World::Phase::kWork) return;
    const auto host = static_cast<uint32_t>(random_.below(simulation_->hosts()));
    simulation_->host(host).pause(random_.duration(microseconds(10), plan_.pause_max));
    pause_later();
  });
}

void Run::cause_fault() {
  const Duration now = simulation_->now();
  const Duration lasting = random_.duration(microseconds(10), 3 * plan_.liveness_max);
  const auto host = static_cast<uint32_t>(random_.below(simulation_->hosts()));
  tern::sim::Host& victim = simulation_->host(host);
  const uint64_t draw = random_.below(100);
  if (draw < 45) return cause_network_fault(lasting);
  if (draw < 65) {
    world_.troubles.on_host(host, now + lasting);
    crash(host, lasting);
  } else if (draw < 72) {
    world_.troubles.on_host(host, now + lasting);
    if (Machine* machine = world_.machines[host]; machine != nullptr) {
      machine->restart_agent(static_cast<size_t>(random_.below(machine->agents().size())));
    }
  } else if (draw < 82) {
    world_.troubles.on_silence(host, now, now + lasting);
    victim.pause(lasting);
  } else if (draw < 88) {
    world_.troubles.on_host(host, now + lasting);
    victim.set_slowness(static_cast<double>(random_.magnitude(2, 1000)));
    simulation_->after(lasting, [&victim] { victim.set_slowness(1); });
  } else if (draw < 94) {
    world_.troubles.on_host(host, now + lasting);
    tern::sim::TimeSlices slices;
    slices.run = random_.duration(microseconds(1), milliseconds(10));
    slices.wait = random_.duration(microseconds(1), plan_.liveness_max);
    slices.is_random = random_.chance(500);
    if (random_.chance(500)) slices.what = tern::sim::TimeSlices::What::kManagement;
    victim.set_time_slices(slices);
    simulation_->after(lasting, [&victim] { victim.set_time_slices({}); });
  } else if (plan_.has_drifting_clocks) {
    const auto ppm = static_cast<int32_t>(random_.magnitude(1, 100'000));
    victim.set_clock_drift(random_.chance(500) ? ppm : -ppm);
    simulation_->after(lasting, [&victim] { victim.set_clock_drift(0); });
  }
}

void Run::cause_network_fault(Duration lasting) {
  const Duration now = simulation_->now(), until = now + lasting;
  const auto a = static_cast<uint32_t>(random_.below(simulation_->hosts()));
  const auto b = static_cast<uint32_t>(random_.below(simulation_->hosts()));
  const auto& links = plan_.topology.links();
  const auto& link = links[static_cast<size_t>(random_.below(links.size()))];
  const auto check = [this](tern::Status status) {
    if (!status.ok()) world_.oracle.broken("a fault: %s", std::string(status.message()).c_str());
  };
  const uint64_t draw = random_.below(100);
  if (draw < 25 && a != b) {
    world_.troubles.on_silence(a, b, now, until);
    simulation_->set_partition(a, b, true);
    simulation_->after(lasting, [this, a, b] { simulation_->set_partition(a, b, false); });
    return;
  }
  if (draw < 45) {
    world_.troubles.on_silence(now, until);
    check(simulation_->set_link_up(link.a, link.b, false));
    simulation_->after(lasting, [this, check, &link] { check(simulation_->set_link_up(link.a, link.b, true)); });
    return;
  }
  if (draw < 55) {  // full packets are lost, in one direction or both; the headers of the library pass
    world_.troubles.on_silence(now, until);
    const size_t limit = random_.between(kFrameLimitMin, plan_.simulation.frame_bytes);
    const uint64_t ways = random_.between(1, 3);
    const auto set = [this, check, &link, ways](size_t bytes) {
      if ((ways & 1) != 0) check(simulation_->set_frame_limit(link.a, link.b, bytes));
      if ((ways & 2) != 0) check(simulation_->set_frame_limit(link.b, link.a, bytes));
    };
    set(limit);
    simulation_->after(lasting, [set] { set(SIZE_MAX); });
    return;
  }
  world_.troubles.on_all(until);
  tern::sim::Faults faults;
  const auto share = [this] { return static_cast<double>(random_.magnitude(0, 400)) / 1000; };
  if (random_.chance(600)) faults.drop = share();
  if (random_.chance(400)) faults.duplicate = share();
  if (random_.chance(400)) faults.reorder = share();
  if (random_.chance(300)) faults.delay = share() / 10;
  faults.delay_max = random_.duration(microseconds(1), plan_.liveness_max);
  if (draw < 75) {
    simulation_->set_faults(faults);
    simulation_->after(lasting, [this] { simulation_->set_faults({}); });
  } else {
    check(simulation_->set_faults(link.a, link.b, faults));
    simulation_->after(lasting, [this, check, &link] { check(simulation_->set_faults(link.a, link.b, {})); });
  }
}

void Run::crash(uint32_t host, Duration lasting) {
  if (world_.machines[host] == nullptr) return;
  if (tern::Status status = simulation_->host(host).crash(); !status.ok()) {
    world_.oracle.broken("crash(): %s", std::string(status.message()).c_str());
  }
  simulation_->after(lasting, [this, host] {
    if (world_.machines[host] == nullptr) boot(host);
  });
}

// ---- Invariants of the library's state ----

void Run::observe() {
  if (++steps_ > kStepsMax) world_.oracle.broken("%" PRIu64 " steps, and no end", steps_);
  if (steps_ < next_look_) return;
  next_look_ = steps_ + (plan_.looks_often ? 1 : random_.between(1, 2000));
  for_each_agent([this](Agent& agent) { check(agent); });
}

void Run::check(Agent& agent) {
  const EndpointCore& core = EndpointCore::of(agent.rpc());
  core.check_invariants();
  if (!plan_.looks_often) return;
  // A packet leaves only within the limit. The limit may be lower than the number of packets in flight.
  auto& before = in_flight_[&core];
  std::unordered_map<uint32_t, uint32_t> now;
  core.for_each_client_session([&](const tern::session::ClientSession& session) {
    const uint32_t in_flight = session.credits_in_flight();
    const auto found = before.find(session.local_key());
    const uint32_t last = found == before.end() ? 0 : found->second;
    if (in_flight > last && in_flight > session.credit_limit() + session.full_packet_credits() - 1) {
      world_.oracle.broken("host %u/%u has %u credits in flight in a session, of %u", agent.place().host,
                           agent.place().endpoint, in_flight, session.credit_limit());
    }
    now[session.local_key()] = in_flight;
  });
  before = std::move(now);
}

}  // namespace

Outcome run(const Plan& plan, const std::string& repeat) {
  Run run(plan, repeat);
  return run();
}

}  // namespace sim_test
