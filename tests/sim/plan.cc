#include "sim/plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace sim_test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using tern::Duration;

/// A short pause is at most this fraction (one sixteenth) of every liveness timeout.
constexpr int64_t kShortPauses = 16;

/// The other trials are equally likely.
constexpr size_t kTrialsBeforeNat = static_cast<size_t>(Trial::kNat) - 1;

Class draw_class(Random& random) {
  const uint64_t draw = random.below(100);
  if (draw < 15) return Class::kClean;
  if (draw < 40) return Class::kGentle;
  if (draw < 52) return Class::kTight;
  if (draw < 90) return Class::kRough;
  return Class::kCorrupt;
}

void draw_network(Random& random, Plan& plan) {
  using tern::sim::Topology;
  const bool is_tight = plan.kind == Class::kTight;
  static constexpr size_t kFrames[] = {578, 1024, 1500, 4096, 9018};
  plan.simulation.seed = random.bits();
  plan.simulation.frame_bytes = kFrames[random.below(std::size(kFrames))];
  const uint64_t shape = random.below(10);
  if (shape < 2) {
    plan.topology = Topology::cx5_pair();
    plan.network = "pair";
  } else if (shape < 4) {
    const auto hosts = static_cast<uint32_t>(random.between(2, 12));
    plan.topology = Topology::cx4(hosts);
    plan.network = "cx4 " + std::to_string(hosts);
  } else {
    const auto hosts = static_cast<uint32_t>(random.between(2, 12));
    tern::sim::LinkOptions link;
    link.bits_per_sec = random.magnitude(1'000'000'000, 100'000'000'000);
    plan.has_long_paths = random.chance(100);
    link.delay = random.duration(nanoseconds(100), microseconds(plan.has_long_paths ? 2000 : 20));
    tern::sim::SwitchOptions options;
    if (is_tight) options.buffer_bytes = random.magnitude(40'000, 1 << 20);
    plan.topology = Topology::star(hosts, link, options);
    plan.network = "star " + std::to_string(hosts);
  }
  if (random.chance(300)) {
    for (tern::sim::SwitchOptions& each : plan.topology.switches()) {
      each.ecn_threshold_bytes = random.magnitude(2'000, 200'000);
    }
  }
  plan.slowest_link_bits_per_sec = UINT64_MAX;
  for (const Topology::Link& link : plan.topology.links()) {
    plan.slowest_link_bits_per_sec = std::min(plan.slowest_link_bits_per_sec, link.options.bits_per_sec);
  }
}

}  // namespace

tern::CongestionControl draw_congestion_control(Random& random, const Plan& plan) {
  using tern::CongestionControl;
  static constexpr CongestionControl kAll[] = {CongestionControl::kNone, CongestionControl::kTimely,
                                               CongestionControl::kPatchedTimely, CongestionControl::kSwift,
                                               CongestionControl::kDctcp};
  // Timely has thresholds for datacenters. It takes every round trip on a long path for congestion, and its rate falls
  // without end.
  static constexpr CongestionControl kLong[] = {CongestionControl::kNone, CongestionControl::kSwift,
                                                CongestionControl::kDctcp};
  return plan.has_long_paths ? kLong[random.below(std::size(kLong))] : kAll[random.below(std::size(kAll))];
}

namespace {

EndpointPlan draw_endpoint(Random& random, Plan& plan, uint16_t id) {
  EndpointPlan endpoint;
  const bool is_limited = plan.kind == Class::kTight || plan.kind == Class::kRough;
  auto& rpc = endpoint.rpc;
  rpc.endpoint_id = id;
  rpc.huge_pages = false;
  rpc.queue_limit = static_cast<uint32_t>(random.chance(700) ? 4096 : random.magnitude(1, 64));
  rpc.credit_limit =
      random.chance(800) ? 0 : static_cast<uint32_t>(random.magnitude(1, tern::RpcOptions::kCreditLimitMax));
  if (random.chance(300)) rpc.congestion_control = draw_congestion_control(random, plan);
  rpc.report_delay = random.duration(microseconds(100), milliseconds(100));
  static constexpr tern::Wait kWaits[] = {tern::Wait::kPoll, tern::Wait::kAdaptive, tern::Wait::kBlock};
  rpc.wait = kWaits[random.below(3)];
  endpoint.receive_queue_packets = static_cast<uint32_t>(random.magnitude(64, 4096));
  endpoint.send_queue_packets = static_cast<uint32_t>(random.magnitude(4, 1024));
  if (is_limited && random.chance(300)) {
    endpoint.receive_queue_packets = static_cast<uint32_t>(random.magnitude(1, 64));
    endpoint.send_queue_packets = static_cast<uint32_t>(random.magnitude(1, 64));
  }
  if (is_limited && random.chance(200)) {
    rpc.receive_budget_bytes = random.magnitude(16 << 10, 4 << 20);
    plan.has_limited_memory = true;
  }
  if (is_limited && random.chance(100)) {
    rpc.memory_limit_bytes = random.magnitude(4 << 20, 64 << 20);
    plan.has_limited_memory = true;
  }
  if (is_limited && random.chance(200)) {
    rpc.server_sessions_max = static_cast<uint32_t>(random.between(1, 8));
    plan.has_limited_sessions = true;
  }
  return endpoint;
}

void draw_hosts(Random& random, Plan& plan) {
  const bool is_limited = plan.kind == Class::kTight || plan.kind == Class::kRough;
  const bool has_cost = random.chance(600);
  // The timeout may be too short only where faults may end sessions.
  const Duration liveness_min = plan.is_strict() || plan.is_corrupt() ? milliseconds(100) : milliseconds(10);
  const Duration liveness = random.duration(liveness_min, milliseconds(500));
  for (uint32_t i = 0; i < plan.topology.hosts(); i++) {
    HostPlan host;
    host.liveness_timeout = random.chance(700) ? liveness : random.duration(liveness_min, milliseconds(500));
    plan.liveness_max = std::max(plan.liveness_max, host.liveness_timeout);
    host.worker_threads = random.between(1, 4);
    if (is_limited && random.chance(200)) {
      host.worker_queue_limit = random.between(1, 4);
      plan.has_limited_workers = true;
    }
    host.worker_time = random.duration(nanoseconds(100), milliseconds(1));
    if (!has_cost) {
      host.cost = tern::sim::HostCost::none();
    } else if (random.chance(200)) {
      const Duration packet = random.duration(nanoseconds(5), microseconds(2));
      host.cost = {random.duration(nanoseconds(5), microseconds(2)), packet, packet};
    }
    const uint64_t endpoints = random.chance(700) ? 1 : random.between(1, 3);
    for (uint64_t id = 0; id < endpoints; id++) {
      host.endpoints.push_back(draw_endpoint(random, plan, static_cast<uint16_t>(id)));
    }
    plan.hosts.push_back(std::move(host));
  }
}

void draw_workload(Random& random, Plan& plan) {
  size_t endpoints = 0;
  for (const HostPlan& host : plan.hosts) endpoints += host.endpoints.size();
  plan.looks_often = random.chance(100);
  plan.runs_twice = random.chance(60);
  plan.calls = static_cast<uint32_t>(random.magnitude(50, plan.looks_often ? 400 : 4000));
  plan.fault_time = random.duration(milliseconds(2), milliseconds(500));
  // A step makes about four calls.
  plan.step_gap =
      std::max<Duration>(plan.fault_time * static_cast<int64_t>(4 * endpoints) / plan.calls, nanoseconds(200));
  plan.sessions = static_cast<uint32_t>(random.magnitude(1, 12));
  plan.window_max = static_cast<uint8_t>(random.magnitude(1, 64));
  plan.bulk_permille = random.chance(500) ? 0 : static_cast<uint32_t>(random.magnitude(4, 100));
  plan.bulk_bytes_max = random.chance(50) ? 6 << 20 : random.magnitude(32 << 10, 400 << 10);
  if (random.chance(250)) plan.paced_permille = static_cast<uint32_t>(random.between(100, 1000));
  if (random.chance(300)) plan.controlled_permille = static_cast<uint32_t>(random.between(100, 1000));
  plan.rate_bytes_per_sec_min = random.magnitude(20'000'000, 1'000'000'000);
  plan.early_permille = random.chance(300) ? 0 : static_cast<uint32_t>(random.magnitude(10, 400));
  plan.handler_time_max = random.duration(microseconds(1), milliseconds(50));
  // The strict limit is long enough for a path with full queues.
  plan.connect_timeout = random.duration(plan.is_strict() ? milliseconds(400) : milliseconds(20), seconds(2));
}

/// The shortest liveness timeout of all hosts.
Duration shortest_liveness(const Plan& plan) {
  Duration shortest = Duration::max();
  for (const HostPlan& host : plan.hosts) shortest = std::min(shortest, host.liveness_timeout);
  return shortest;
}

/// A call past its deadline ends when its endpoint's loop has noticed that and the wire has taken the call's packets.
Duration lateness_of(const Plan& plan) {
  uint64_t packets = 0;
  for (const HostPlan& host : plan.hosts) {
    uint64_t of_host = 0;
    for (const EndpointPlan& endpoint : host.endpoints) of_host += endpoint.send_queue_packets;
    packets = std::max(packets, of_host);
  }
  const uint64_t bits = 8 * packets * plan.simulation.frame_bytes;
  return milliseconds(10) + 2 * plan.pause_max + 2 * plan.slices.wait +
         nanoseconds(bits * 1'000'000'000 / plan.slowest_link_bits_per_sec);
}

void draw_faults(Random& random, Plan& plan) {
  const auto share = [&](uint32_t permille_max) { return static_cast<double>(random.below(permille_max + 1)) / 1000; };
  if (plan.kind == Class::kGentle || plan.kind == Class::kCorrupt) {
    if (random.chance(700)) plan.faults.drop = share(20);
    if (random.chance(700)) plan.faults.duplicate = share(200);
    if (random.chance(700)) plan.faults.reorder = share(300);
    if (random.chance(400)) plan.faults.delay = share(20);
    plan.faults.delay_max = random.duration(microseconds(1), milliseconds(random.chance(200) ? 5 : 1));
  }
  if (plan.kind == Class::kCorrupt) plan.faults.corrupt = share(100) + 0.001;
  // Short pauses come together with the events that look like them: overtaken packets, deadlines, long messages.
  const bool has_pauses = plan.kind == Class::kGentle || plan.kind == Class::kRough;
  if (has_pauses && random.chance(400)) {
    const Duration shortest = shortest_liveness(plan);
    plan.pause_gap = random.duration(plan.fault_time / 50 + Duration(1), plan.fault_time / 4 + Duration(2));
    plan.pause_max = random.duration(microseconds(20), shortest / kShortPauses);
    if (plan.kind == Class::kGentle) plan.faults.reorder = std::max(plan.faults.reorder, 0.01);
    plan.early_permille = std::max(plan.early_permille, 50u);
    plan.bulk_permille = std::max(plan.bulk_permille, 20u);
  }
  if (has_pauses && random.chance(150)) {
    plan.sliced_host = static_cast<uint32_t>(random.below(plan.hosts.size()));
    plan.slices.run = random.duration(microseconds(10), milliseconds(5));
    plan.slices.wait = random.duration(microseconds(10), shortest_liveness(plan) / (2 * kShortPauses));
    // A thread with a tenth of its CPU's time could not keep up, because the workload is made for all of that time.
    plan.slices.run = std::max(plan.slices.run, plan.slices.wait / 4);
    plan.slices.is_random = random.chance(500);
    if (random.chance(300)) plan.slices.what = tern::sim::TimeSlices::What::kManagement;
  }
  plan.has_drifting_clocks = plan.kind == Class::kRough && random.chance(500);
  if (plan.kind == Class::kRough) plan.fault_gap = random.duration(plan.fault_time / 20, plan.fault_time / 2);
}

}  // namespace

Plan draw_plan(uint64_t seed) {
  Random random(seed * 2654435761 + 5);
  Plan plan;
  plan.seed = seed;
  plan.kind = draw_class(random);
  draw_network(random, plan);
  draw_hosts(random, plan);
  draw_workload(random, plan);
  draw_faults(random, plan);
  if (random.chance(700) && !plan.is_corrupt()) {
    plan.trial = static_cast<Trial>(random.between(1, kTrialsBeforeNat));
  } else if (random.chance(400) && !plan.is_corrupt()) {
    plan.trial = Trial::kNat;
  }
  plan.lateness = lateness_of(plan);
  return plan;
}

const char* name_of(Class kind) {
  static constexpr const char* kNames[] = {"clean", "gentle", "tight", "rough", "corrupt"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name_of(Rule rule) {
  static constexpr const char* kNames[kRules] = {"retransmissions", "packets", "round-trips", "pace", "held", "deaths"};
  return kNames[static_cast<size_t>(rule)];
}

const char* name_of(Trial trial) {
  static constexpr const char* kNames[kTrials] = {"no trial",      "paced session", "frame limit", "pauses",
                                                  "no management", "lost report",   "busy slot",   "NAT"};
  return kNames[static_cast<size_t>(trial)];
}

std::string Plan::text() const {
  size_t endpoints = 0;
  for (const HostPlan& host : hosts) endpoints += host.endpoints.size();
  char line[500];
  std::snprintf(line, sizeof(line),
                "seed %" PRIu64
                ": %s, %s, %zu endpoints, frames of %zu B, %u calls in %.3f ms, bulk %u/1000 to %zu B, "
                "windows to %u, liveness %.0f ms, %s%s%s",
                seed, name_of(kind), network.c_str(), endpoints, simulation.frame_bytes, calls,
                static_cast<double>(fault_time.count()) / 1e6, bulk_permille, bulk_bytes_max, window_max,
                static_cast<double>(liveness_max.count()) / 1e6, name_of(trial),
                pause_gap == Duration(0) ? "" : ", short pauses", sliced_host == UINT32_MAX ? "" : ", time slices");
  return line;
}

}  // namespace sim_test
