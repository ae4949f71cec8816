#include "raft/sim/cluster.h"

#include <functional>
#include <string_view>
#include <utility>

#include "../apps/raft/disk_storage.h"
#include "raft/memory_storage.h"

namespace raft_test {

using std::chrono::milliseconds;

Cluster::Cluster(const Plan& plan, tern::sim::Simulation& simulation, Random& random)
    : plan_(plan), simulation_(simulation), random_(random), places_(plan.replicas), last_id_(plan.replicas) {
  for (uint32_t i = 0; i < size(); i++) {
    places_[i].id = i + 1;
    if (plan_.has_disk) places_[i].disk = std::make_shared<MemoryDisk>();
  }
}

bool Cluster::is_up(uint32_t place) const { return simulation_.host(place).is_up(); }

replicated::Replica* Cluster::replica(uint32_t place) const {
  auto* node = static_cast<Node*>(simulation_.host(place).program());
  return node != nullptr ? node->replica.get() : nullptr;
}

bool Cluster::has_stopped(uint32_t place) const {
  const replicated::Replica* its = replica(place);
  return its != nullptr && !its->problem().empty();
}

void Cluster::fail(uint32_t place, const std::string& what) {
  if (problem.empty()) problem = "replica " + std::to_string(places_[place].id) + ": " + what;
}

replicated::ReplicaOptions Cluster::options(const Place& place) const {
  replicated::ReplicaOptions options;
  options.port.cluster = 1;
  options.port.id = place.id;
  options.port.address = simulation_.host(static_cast<uint32_t>(&place - places_.data())).uri();
  options.port.election_timeout = plan_.election_timeout;
  options.port.heartbeat = plan_.heartbeat;
  options.port.snapshot_timeout = 10 * plan_.election_timeout;
  options.port.clock_drift_max = plan_.clock_drift_max;
  if (plan_.append_bytes_max != 0) options.port.append_bytes_max = plan_.append_bytes_max;
  options.snapshot_entries = plan_.snapshot_entries;
  options.trailing_entries = plan_.trailing_entries;
  options.batch_max = plan_.batch_max;
  for (uint32_t i = 0; i < size() && place.id <= size(); i++) {
    options.replicas.emplace_back(i + 1, simulation_.host(i).uri());
  }
  return options;
}

void Cluster::boot(uint32_t i) {
  Place& place = places_[i];
  if (place.disk != nullptr) {
    place.disk->work_again();
    place.storage = std::make_unique<replicated::DiskStorage>(
        std::make_unique<MemoryDirectory>(place.disk),
        replicated::DiskOptions{.log_bytes_max = plan_.log_bytes_max, .has_thread = false});
  } else if (place.storage == nullptr) {
    place.storage = std::make_unique<replicated::MemoryStorage>();
  }
  place.looked_at = 0;
  const auto status = simulation_.host(i).boot([&](tern::sim::Host& host) {
    auto node = std::make_shared<Node>();
    auto nexus_options = host.nexus_options();
    nexus_options.liveness_timeout = milliseconds(50);
    tern::RpcOptions rpc_options;
    rpc_options.huge_pages = false;
    const std::string sentence =
        node->open(host.uri(), nexus_options, host.transport_options(), rpc_options, *place.storage, options(place));
    if (!sentence.empty()) fail(i, "it does not come back: " + sentence);
    if (node->rpc != nullptr && !host.run(*node->rpc).ok()) fail(i, "its endpoint does not run");
    return node;
  });
  if (!status.ok()) fail(i, std::string(status.message()));
}

void Cluster::crash(uint32_t i, Loss loss) {
  Place& place = places_[i];
  if (!simulation_.host(i).crash().ok()) return fail(i, "its host does not crash");
  if (place.disk != nullptr) {
    place.storage.reset();
    place.disk->work_again();
    if (loss == Loss::kUnsynced) {
      place.disk = std::make_shared<MemoryDisk>(
          place.disk->after_crash([this](size_t count) { return static_cast<size_t>(random_.below(count)); }));
    }
    if (loss == Loss::kAll) place.disk = std::make_shared<MemoryDisk>();
  } else if (loss == Loss::kAll) {
    place.storage.reset();
  }
  place.may_stop = loss == Loss::kAll;
}

void Cluster::fill_disk(uint32_t i, uint64_t operations) {
  places_[i].disk->fail_after(operations, ENOSPC);
  places_[i].may_stop = true;
}

uint32_t Cluster::leader() const {
  uint32_t found = size();
  uint64_t term = 0;
  for (uint32_t i = 0; i < size(); i++) {
    const replicated::Replica* its = replica(i);
    if (its == nullptr || !its->is_ready() || its->state().current_term <= term) continue;
    found = i;
    term = its->state().current_term;
  }
  return found;
}

bool Cluster::agree(std::string& why_not) const {
  const replicated::Replica* first = nullptr;
  uint64_t first_id = 0;
  for (uint32_t i = 0; i < size(); i++) {
    const replicated::Replica* its = replica(i);
    if (its == nullptr || has_stopped(i)) continue;
    if (first == nullptr) {
      first = its;
      first_id = id(i);
    }
    const auto state = [](const replicated::Replica& replica) {
      return std::tuple(replica.state().last_applied, replica.machine().keys(), replica.machine().clients());
    };
    why_not = "replicas " + std::to_string(first_id) + " and " + std::to_string(id(i)) +
              " have not executed the same commands: up to " + std::to_string(first->state().last_applied) + " and " +
              std::to_string(its->state().last_applied);
    if (state(*its) != state(*first)) return false;
  }
  return true;
}

std::string Cluster::text() const {
  static constexpr const char* kStates[] = {"unavailable", "follower", "candidate", "leader"};
  std::string text;
  for (uint32_t i = 0; i < size(); i++) {
    text += "  host " + std::to_string(i) + ": replica " + std::to_string(id(i));
    const replicated::Replica* its = replica(i);
    if (its == nullptr) {
      text += ", down\n";
      continue;
    }
    const raft& state = its->state();
    text += std::string(", ") + kStates[state.state] + " in term " + std::to_string(state.current_term) + ", log " +
            std::to_string(state.log.offset) + " to " + std::to_string(raft_last_index(const_cast<raft*>(&state))) +
            ", committed " + std::to_string(state.commit_index) + ", applied " + std::to_string(state.last_applied) +
            ", snapshot " + std::to_string(state.log.snapshot.last_index) + ", configuration " +
            std::to_string(state.configuration_index) + " (uncommitted " +
            std::to_string(state.configuration_uncommitted_index) + "):";
    for (unsigned j = 0; j < state.configuration.n; j++) {
      const raft_server& server = state.configuration.servers[j];
      text += " " + std::to_string(server.id) + (server.role == RAFT_VOTER ? "" : "*");
    }
    text += its->problem().empty() ? "\n" : ", stopped: " + its->problem() + "\n";
  }
  return text;
}

void Cluster::look() {
  for (uint32_t i = 0; i < size(); i++) {
    const replicated::Replica* its = replica(i);
    if (its == nullptr) continue;
    if (!its->problem().empty() && !places_[i].may_stop) fail(i, "it has stopped: " + its->problem());
    if (its->is_leader()) {
      const uint64_t term = its->state().current_term;
      const auto [known, is_new] = leaders_.try_emplace(term, id(i));
      if (!is_new && known->second != id(i)) {
        fail(i, "it leads in term " + std::to_string(term) + ", and so does replica " + std::to_string(known->second));
      }
    }
    if (its->state().commit_index != places_[i].looked_at) look_at_log(places_[i], its->state());
  }
}

void Cluster::look_at_log(Place& place, const raft& state) {
  const raft_log& log = state.log;
  if (log.size == 0) return;
  const size_t count = log.back >= log.front ? log.back - log.front : log.size - log.front + log.back;
  for (uint64_t index = std::max<uint64_t>(place.looked_at, log.offset) + 1; index <= state.commit_index; index++) {
    if (index > log.offset + count) break;
    const raft_entry& entry = log.entries[(log.front + index - log.offset - 1) % log.size];
    // libraft leaves some bytes of an encoded configuration uninitialised.
    const std::string_view bytes(static_cast<const char*>(entry.buf.base),
                                 entry.type == RAFT_COMMAND ? entry.buf.len : 0);
    const std::pair<uint64_t, uint64_t> seen(entry.term, std::hash<std::string_view>()(bytes) + entry.type);
    const auto [known, is_new] = committed_.try_emplace(index, seen);
    if (!is_new && known->second != seen) {
      fail(static_cast<uint32_t>(&place - places_.data()),
           "its committed entry " + std::to_string(index) + " is of term " + std::to_string(entry.term) +
               ", and another one has committed one of term " + std::to_string(known->second.first) + " there");
    }
    place.looked_at = index;
  }
}

}  // namespace raft_test
