#include "raft/sim/clients.h"

#include <algorithm>

namespace raft_test {

using replicated::Outcome;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

replicated::ClientOptions Workload::options(bool has_lease_reads) const {
  replicated::ClientOptions options;
  options.cluster = 1;
  options.replicas = replicas;
  options.attempt = plan.attempt;
  options.patience = seconds(5);
  options.pause = plan.pause;
  options.redirects_max = 10'000;
  options.has_lease_reads = has_lease_reads;
  return options;
}

Worker::Worker(tern::Endpoint& endpoint, tern::Environment& environment, Workload& workload, uint64_t number,
               bool by_lease)
    : endpoint_(endpoint),
      workload_(workload),
      client_(endpoint, environment, workload.options(by_lease)),
      random_(workload.plan.seed * 1000 + number),
      number_(number),
      is_reader_(workload.plan.kind == Class::kLease && by_lease) {}

void Worker::work() {
  if (workload_.is_over) return;
  if (workload_.holds_writes && !is_reader_) return pause();
  const uint64_t key = workload_.first_key + random_.below(workload_.plan.keys);
  Register::Operation operation;
  operation.key = key;
  operation.client = number_;
  operation.value = std::to_string(number_) + "." + std::to_string(++begun_);
  if (seen_.size() <= key) seen_.resize(key + 1);
  auto what = replicated::Operation::kGet;
  const uint64_t draw = random_.below(100);
  if (is_reader_ || draw < 40) {
    operation.kind = Register::Kind::kGet;
    operation.value.clear();
  } else if (draw < 65 || workload_.plan.kind == Class::kLease) {
    operation.kind = Register::Kind::kPut;
    what = replicated::Operation::kPut;
  } else if (draw < 92) {
    operation.kind = Register::Kind::kSwap;
    operation.expected = seen_[key];
    what = replicated::Operation::kSwap;
  } else {
    operation.kind = Register::Kind::kErase;
    operation.value.clear();
    what = replicated::Operation::kErase;
  }
  const std::string name = "key " + std::to_string(key), value = operation.value, expected = operation.expected;
  const size_t call = workload_.history.begin(std::move(operation));
  client_.execute(
      what, name, value, [this, call](const replicated::Reply& reply) { on_end(call, reply); }, expected);
}

void Worker::on_end(size_t call, const replicated::Reply& reply) {
  const auto& operation = workload_.history.operations()[call];
  ended_++;
  if (!reply.problem.empty()) {
    workload_.gave_up++;
  } else if (reply.outcome == Outcome::kDone) {
    auto& seen = seen_[operation.key];
    const bool is_get = operation.kind == Register::Kind::kGet;
    seen = is_get ? std::string(reply.value) : operation.value;
    workload_.history.end(call, Register::Answer::kDone, is_get ? Register::State(reply.value) : std::nullopt);
  } else if (reply.outcome == Outcome::kNotFound) {
    workload_.history.end(call, Register::Answer::kNotFound, std::nullopt);
  } else if (reply.outcome == Outcome::kDifferent) {
    workload_.history.end(call, Register::Answer::kDifferent, std::nullopt);
  } else if (workload_.problem.empty()) {
    workload_.problem = "an answer that no command has, " + std::to_string(static_cast<int>(reply.outcome)) + ", to " +
                        Register::text(operation);
  }
  pause();
}

void Worker::pause() {
  const auto time = random_.duration(microseconds(1), workload_.plan.think);
  const auto status = endpoint_.after(time, [this] { work(); }).status();
  if (status.code() == tern::Code::kSessionReset) return;  // the answer came at the end of the client's host
  if (!status.ok() && workload_.problem.empty()) workload_.problem = std::string(status.message());
}

std::string ClientProgram::open(tern::sim::Host& host, Workload& workload, uint64_t seed) {
  auto nexus_options = host.nexus_options();
  nexus_options.liveness_timeout = milliseconds(50);
  auto made_nexus = tern::Nexus::create(host.uri(), nexus_options);
  if (!made_nexus.ok()) return std::string(made_nexus.status().message());
  nexus = std::move(*made_nexus);
  auto made = tern::Rpc<tern::Sim>::create(*nexus, host.transport_options(), {.huge_pages = false});
  if (!made.ok()) return std::string(made.status().message());
  rpc = std::move(*made);
  Random random(seed);
  for (uint32_t i = 0; i < workload.plan.clients_a_host; i++) {
    // In a trial of leases, the first client of each host writes, and all others read.
    const bool by_lease =
        workload.plan.kind == Class::kLease ? i > 0 : random.chance(workload.plan.lease_readers_permille);
    workers.push_back(
        std::make_unique<Worker>(*rpc, *nexus_options.environment, workload, ++workload.clients_made, by_lease));
  }
  administrator =
      std::make_unique<replicated::Administrator>(*rpc, *nexus_options.environment, workload.options(false));
  for (const auto& worker : workers) {
    const auto timer = rpc->after(random.duration(microseconds(1), milliseconds(1)), [w = worker.get()] { w->work(); });
    if (!timer.ok()) return std::string(timer.status().message());
  }
  const auto status = host.run(*rpc);
  return status.ok() ? "" : std::string(status.message());
}

}  // namespace raft_test
