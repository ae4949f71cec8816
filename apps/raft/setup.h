// What the programs of this folder have in common: their flags, and a replica's process. Main thread.
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

/// "1=HOST:PORT,2=HOST:PORT" as ids and URIs. Nothing: the sentence has been printed.
std::optional<Members> parse_members(std::string_view text);

/// The number of the cluster that has this name.
uint64_t cluster_number(std::string_view name);

/// Checks the flags that say what kind of replica this is. False: the sentence has been printed.
bool check_replica_flags();
/// What the flags say about replica `id` at `address`; all but ReplicaOptions::replicas.
ReplicaOptions replica_options(uint64_t id, const std::string& address);
/// What the flags say about a client.
ClientOptions client_options(const Members& members);

/// The storage of replica `id` in `directory`; none, if that is empty. Null: the sentence has been printed.
std::unique_ptr<Storage> open_storage(const std::string& directory, uint64_t id);

/// What the flags say about a load.
LoadOptions load_options(const ClientOptions& client);
/// False: the sentence has been printed.
bool check_load_flags();

/// A replica's program, until it is interrupted or cannot go on. Its exit code. `ready` is called once it listens.
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
    // The others hear of it. The memory of a million keys would take seconds to give back piece by piece; what is on
    // the disk is as whole as after a kill.
    node.replica->detach();
    node.rpc.reset();
    node.nexus.reset();
    std::fflush(nullptr);
    std::_Exit(0);
  }
  return programs::fail("replica %llu has stopped: %s", static_cast<unsigned long long>(options.port.id),
                        node.replica->problem().c_str());
}

/// The flags of replicas and loads that change what is measured.
void add_parameters(nlohmann::ordered_json& params);
/// The figures of a load.
void add_metrics(const LoadReport& load, nlohmann::ordered_json& metrics);

}  // namespace replicated
