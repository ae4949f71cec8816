// The common parts of the programs of this folder: their flags, and a replica's process. Main thread.
#pragma once

#include <gflags/gflags.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "client.h"
#include "load.h"
#include "replica.h"
#include "storage.h"

DECLARE_string(cluster);
DECLARE_string(replicas);
DECLARE_double(patience_seconds);
DECLARE_bool(lease_reads);

namespace replicated {

using Members = std::vector<std::pair<uint64_t, std::string>>;

/// Parses "1=HOST:PORT,2=HOST:PORT" into ids and URIs. On error it prints a sentence and returns nullopt.
std::optional<Members> parse_members(std::string_view text);

/// The number of the cluster with this name.
uint64_t cluster_number(std::string_view name);

/// Checks the flags of a replica. On error it prints a sentence and returns false.
bool check_replica_flags();
/// The options that the flags give to replica `id` at `address`, except ReplicaOptions::replicas.
ReplicaOptions replica_options(uint64_t id, const std::string& address);
/// The options that the flags give to a client.
ClientOptions client_options(const Members& members);

/// The storage of replica `id` in `directory`; a storage in memory if `directory` is empty. On error it prints a
/// sentence and returns null.
std::unique_ptr<Storage> open_storage(const std::string& directory, uint64_t id);

/// The options that the flags give to a load.
LoadOptions load_options(const ClientOptions& client);
/// Checks the flags of a load. On error it prints a sentence and returns false.
bool check_load_flags();

/// Runs a replica until the program is interrupted, or the replica cannot continue. Returns the exit code. Calls
/// `ready` once, when the replica listens.
template <tern::Transport T>
int serve(const ReplicaOptions& options, const std::string& directory, const std::function<void()>& ready) {
  const auto storage = open_storage(directory, options.port.id);
  if (storage == nullptr) return 1;
  Node<T> node;
  tern::RpcOptions rpc_options = programs::rpc_options(0);
  rpc_options.receive_budget_bytes = size_t{2} << 30;  // a snapshot is one message
  const std::string problem =
      node.open(options.port.address, programs::nexus_options(),
                programs::transport_options<T>(programs::Role::kServer), rpc_options, *storage, options);
  if (!problem.empty()) return programs::fail("%s", problem.c_str());
  ready();
  while (!programs::interrupted && node.replica->problem().empty()) {
    const auto status = node.rpc->run_event_loop(std::chrono::milliseconds(10));
    if (!status.ok()) return programs::fail_with("the event loop has ended", status);
  }
  if (programs::interrupted) {
    // The destructors tell the other replicas. It would take seconds to free the memory of a million keys piece by
    // piece, so the process exits without that. The data on the disk is as consistent as after a kill.
    node.replica->detach();
    node.rpc.reset();
    node.nexus.reset();
    std::fflush(nullptr);
    std::_Exit(0);
  }
  return programs::fail("replica %llu has stopped: %s", static_cast<unsigned long long>(options.port.id),
                        node.replica->problem().c_str());
}

/// Adds the flags of replicas and loads that affect the result of a measurement.
void add_parameters(nlohmann::ordered_json& params);
/// Adds the results of a load.
void add_metrics(const LoadReport& load, nlohmann::ordered_json& metrics);

}  // namespace replicated
