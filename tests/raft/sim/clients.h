// The clients of a run: each executes one command after the other, and the history has them all. Test code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tern/sim.h>

#include "../apps/raft/administrator.h"
#include "../apps/raft/client.h"
#include "raft/sim/history.h"
#include "raft/sim/plan.h"

namespace raft_test {

/// Outside of all hosts: what clients share, and what is found wrong.
struct Workload {
  const Plan& plan;
  std::vector<std::string> replicas;  ///< URIs
  History history;
  bool is_over = false;       ///< no client begins another command
  bool holds_writes = false;  ///< kLease: clients that write wait
  uint64_t first_key = 0;     ///< commands are about keys from here on
  uint64_t clients_made = 0;  ///< each has a number of its own
  uint64_t gave_up = 0;       ///< commands whose client did not hear whether they were executed
  std::string problem;        ///< of the first answer that is none

  replicated::ClientOptions options(bool has_lease_reads) const;
};

/// One client, in its endpoint's loop.
class Worker {
 public:
  Worker(tern::Endpoint& endpoint, tern::Environment& environment, Workload& workload, uint64_t number, bool by_lease);
  /// The first command, and then the others.
  void work();
  bool is_busy() const { return client_.is_busy(); }
  uint64_t ended() const { return ended_; }

 private:
  /// Until the next command.
  void pause();
  void on_end(size_t call, const replicated::Reply& reply);

  tern::Endpoint& endpoint_;
  Workload& workload_;
  replicated::Client client_;
  Random random_;
  const uint64_t number_;
  const bool is_reader_;
  uint64_t begun_ = 0, ended_ = 0;
  std::vector<std::string> seen_;  ///< by key: its value when this client last looked
};

/// A host's program.
struct ClientProgram {
  std::unique_ptr<tern::Nexus> nexus;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<replicated::Administrator> administrator;
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc;  ///< goes first

  /// The sentence why not.
  std::string open(tern::sim::Host& host, Workload& workload, uint64_t seed);
};

}  // namespace raft_test
