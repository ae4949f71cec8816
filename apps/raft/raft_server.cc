// raft_server: one replica of a key-value store, in the foreground. raft_client sends requests to it, and raft_cluster
// runs several replicas. All code runs in the main thread.
#include <gflags/gflags.h>

#include <cstdint>
#include <string>

#include "../common/flags.h"
#include "../common/sides.h"
#include "heap.h"
#include "setup.h"

DEFINE_uint64(id, 0, "this replica's id, above 0: one of --replicas, or with --join a higher id than any before");
DEFINE_string(join, "", "HOST:PORT of this replica, which waits until raft_client --add adds it to a running cluster");
DEFINE_string(
    storage, "",
    "directory of the log, term, vote and snapshot; default: memory, and a replica that ends has to come back "
    "under a new id with --join");

int main(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("wait", "adaptive", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(
          argc, argv,
          "A replica of a key-value store that is replicated by Raft. All replicas of a new cluster are started once "
          "with the\nsame --replicas. Example, for each of the ids: raft_server --id=1 --storage=/var/lib/raft "
          "--replicas=1=10.0.0.1:31850,2=10.0.0.2:31850,3=10.0.0.3:31850"))
    return 1;
  if (!replicated::check_replica_flags()) return 1;
  const auto members = replicated::parse_members(FLAGS_replicas);
  if (!members) return 1;
  if (FLAGS_id == 0) return programs::fail("--id is missing: each replica has its own id, above 0");
  if (FLAGS_join.empty() == members->empty()) {
    return programs::fail("give either --replicas (for a new cluster, or one to which this replica returns) or --join");
  }
  std::string address = "tern://" + FLAGS_join;
  if (!members->empty()) {
    address.clear();
    for (const auto& [id, uri] : *members) {
      if (id == FLAGS_id) address = uri;
    }
    if (address.empty()) return programs::fail("--id=%ju is not one of --replicas", FLAGS_id);
    if (members->size() != 1 && (members->size() < 3 || members->size() > replicated::kReplicasMax)) {
      return programs::fail("--replicas must name one replica, or three to seven");
    }
  }
  replicated::ReplicaOptions options = replicated::replica_options(FLAGS_id, address);
  options.replicas = *members;
  replicated::use_own_heap();
  programs::catch_interrupts();
  return programs::with_transport([&]<class T>() {
    return replicated::serve<T>(options, FLAGS_storage, [&] { programs::announce_server(address); });
  });
}
