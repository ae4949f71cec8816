#include "raft/sim/plan.h"

#include <cstdio>

namespace raft_test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Class draw_class(Random& random) {
  const uint64_t part = random.below(100);
  if (part < 5) return Class::kCalm;
  if (part < 15) return Class::kFailover;
  return part < 85 ? Class::kRough : Class::kLease;
}

void draw_faults(Random& random, Plan& plan) {
  plan.fault_time = milliseconds(random.between(150, 400));
  plan.lasting = plan.election_timeout * static_cast<int>(random.between(1, 5));
  plan.fault_gap = plan.lasting / static_cast<int>(random.between(1, 4));
  const auto half = [&random] { return random.chance(500); };
  plan.has_crashes = random.chance(800);
  plan.has_power_losses = plan.has_disk && half();
  plan.has_lost_disks = random.chance(300);
  plan.has_full_disks = plan.has_disk && random.chance(300);
  plan.has_partitions = random.chance(700);
  plan.has_pauses = half();
  plan.has_drift = half();
  plan.has_loss = random.chance(300);
  plan.has_client_crashes = random.chance(200);
  // The attempt is shorter than many commands take, so some commands arrive twice.
  if (random.chance(400)) plan.attempt = random.duration(microseconds(20), milliseconds(2));
  if (half()) {
    const double share = static_cast<double>(random.between(1, 20)) / 1000;
    plan.faults = {.drop = share / 4,
                   .duplicate = share,
                   .reorder = share,
                   .delay = share / 4,
                   .delay_max = random.duration(microseconds(20), microseconds(2000))};
  }
}

}  // namespace

const char* name_of(Class kind) {
  static constexpr const char* kNames[kClasses] = {"calm", "failover", "rough", "lease"};
  return kNames[static_cast<size_t>(kind)];
}

Plan draw_plan(uint64_t seed) {
  Random random(seed);
  return draw_plan(seed, draw_class(random));
}

Plan draw_plan(uint64_t seed, Class kind) {
  Random random(seed ^ 0x7261667470726f6f);
  Plan plan;
  plan.seed = seed;
  plan.kind = kind;
  plan.replicas = random.chance(600) ? 3 : static_cast<uint32_t>(random.between(3, 5));
  plan.has_disk = random.chance(700);
  plan.log_bytes_max = random.magnitude(256, 65536);
  plan.snapshot_entries = static_cast<uint32_t>(random.magnitude(10, 1000));
  plan.trailing_entries = static_cast<uint32_t>(random.magnitude(1, 50));
  plan.batch_max = static_cast<uint32_t>(random.magnitude(1, 64));
  plan.election_timeout = milliseconds(10);
  plan.heartbeat = plan.election_timeout / static_cast<int>(random.between(5, 10));
  plan.client_hosts = static_cast<uint32_t>(random.between(1, 3));
  plan.clients_a_host = static_cast<uint32_t>(random.between(1, 3));
  plan.keys = static_cast<uint32_t>(random.between(1, 4));
  plan.lease_readers_permille = random.chance(300) ? 0 : 700;
  plan.think = random.duration(microseconds(300), milliseconds(4));
  plan.attempt = plan.election_timeout * static_cast<int>(random.between(1, 3));
  plan.runs_twice = random.chance(20);
  Random of_appends(seed ^ 0x617070656e647321);
  if (of_appends.chance(300)) plan.append_bytes_max = of_appends.magnitude(64, 4096);
  switch (kind) {
    case Class::kCalm:
      plan.fault_time = milliseconds(100);
      break;
    case Class::kFailover:
      break;
    case Class::kRough:
      draw_faults(random, plan);
      break;
    case Class::kLease:
      plan.replicas = 3;  // with three replicas, the two others are the most likely to agree early
      plan.clock_drift_max = 0.09;
      plan.client_hosts = 3;
      plan.clients_a_host = 2;
      plan.lease_readers_permille = 700;
      plan.think = microseconds(100);
      plan.attempt = microseconds(300);  // short, so that writers soon find the new leader
      plan.pause = microseconds(5);
      break;
  }
  return plan;
}

std::string Plan::text() const {
  char line[512];
  const auto ms = [](tern::Duration time) { return static_cast<double>(time.count()) / 1e6; };
  std::snprintf(line, sizeof(line),
                "seed %llu: %s, %u replicas %s, snapshots after %u entries (%u stay), batches of %u, appends of %llu "
                "bytes (0: any), %u clients on %u "
                "hosts, %u keys, lease reads %u, election %g ms, think %g ms, faults for %g ms every %g ms:",
                static_cast<unsigned long long>(seed), name_of(kind), replicas, has_disk ? "with disks" : "in memory",
                snapshot_entries, trailing_entries, batch_max, static_cast<unsigned long long>(append_bytes_max),
                client_hosts * clients_a_host, client_hosts, keys, lease_readers_permille, ms(election_timeout),
                ms(think), ms(fault_time), ms(fault_gap));
  std::string text = line;
  const auto add = [&text](bool is_so, const char* what) {
    if (is_so) text += std::string(" ") + what;
  };
  add(has_crashes, "crashes");
  add(has_power_losses, "power-losses");
  add(has_lost_disks, "lost-disks");
  add(has_full_disks, "full-disks");
  add(has_partitions, "partitions");
  add(has_pauses, "pauses");
  add(has_drift, "drift");
  add(has_loss, "loss");
  add(has_client_crashes, "client-crashes");
  return text;
}

}  // namespace raft_test
