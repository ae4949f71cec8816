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

/// State outside of all hosts: the clients' shared data and the first error.
struct Workload {
  const Plan& plan;
  std::vector<std::string> replicas;  ///< URIs
  History history;
  bool is_over = false;       ///< no client begins another command
  bool holds_writes = false;  ///< kLease: clients that write wait
  uint64_t first_key = 0;     ///< lowest key of commands
  uint64_t clients_made = 0;  ///< gives each client its number
  uint64_t gave_up = 0;       ///< commands whose client does not know whether they were executed
  std::string problem;        ///< text about the first impossible answer

  replicated::ClientOptions options(bool has_lease_reads) const;
};

/// One client, in its endpoint's loop.
class Worker {
 public:
  Worker(tern::Endpoint& endpoint, tern::Environment& environment, Workload& workload, uint64_t number, bool by_lease);
  /// Executes the first command, and then the others.
  void work();
  bool is_busy() const { return client_.is_busy(); }
  uint64_t ended() const { return ended_; }

 private:
  /// Time until the next command.
  void pause();
  void on_end(size_t call, const replicated::Reply& reply);

  tern::Endpoint& endpoint_;
  Workload& workload_;
  replicated::Client client_;
  Random random_;
  const uint64_t number_;
  const bool is_reader_;
  uint64_t begun_ = 0, ended_ = 0;
  std::vector<std::string> seen_;  ///< for each key, the value that this client last read
};

/// A host's program.
struct ClientProgram {
  std::unique_ptr<tern::Nexus> nexus;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<replicated::Administrator> administrator;
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc;  ///< destroyed first

  /// Returns an empty text, or a sentence with the error.
  std::string open(tern::sim::Host& host, Workload& workload, uint64_t seed);
};

}  // namespace raft_test
