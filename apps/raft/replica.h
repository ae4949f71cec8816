// A replica: libraft, its port, and the state machine; what clients and administrators ask of it.
// Owned by its endpoint's thread. Does not know its transport, nor whether the world around it is real.
//
// Commands go into the log in batches, one batch at a time: libraft commits what a majority has stored only when that
// is all that the leader has stored (replicationQuorum() of src/replication.c), so that a leader that went on appending
// might never commit. What comes while a batch is under way is the next one.
//
// A new leader first appends a barrier of its term, before it hears any result. libraft counts the replicas of its last
// entry without a look at that entry's term, and would else commit entries of earlier terms by counting (Raft paper,
// section 5.4.2, figure 8). Until the barrier is applied, reads, commands and changes of the configuration wait
// (thesis, 6.4 step 1; and the leader's first commit before a change, as Ongaro's correction of 4.1 has it).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>
#include <tern/nexus.h>
#include <tern/rpc.h>

#include "../common/latencies.h"
#include "admin.h"
#include "commands.h"
#include "libraft.h"
#include "machine.h"
#include "port.h"
#include "storage.h"

namespace replicated {

struct ReplicaOptions {
  PortOptions port;
  /// With a pristine storage: the replicas of a new cluster, this one among them; three to seven, or one. All of them
  /// must be up once before it begins. Empty: this replica waits until a leader adds it (Admin). With a storage that
  /// has something: no effect, it goes on with that.
  std::vector<std::pair<uint64_t, std::string>> replicas;
  unsigned snapshot_entries = 100'000;  ///< a snapshot is taken after so many
  size_t snapshot_bytes = 256u << 20;   ///< likewise, after commands that are so long together
  unsigned trailing_entries = 10'000;   ///< stay in the log after it, for replicas that are behind; 1 at least
  unsigned batch_max = 64;              ///< commands of a batch, 1 to 1024
  size_t queue_max = 65536;             ///< commands that may wait; beyond it clients hear kBusy
  size_t queue_bytes_max = 64u << 20;   ///< likewise, of these commands together
  bool is_measured = false;             ///< kAbout says how long commands took here, from arrival to answer
};

class Replica {
 public:
  /// All arguments outlive the endpoint, and the replica outlives it too.
  Replica(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, ReplicaOptions options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Once, before the first turn of the endpoint's loop. The sentence why not; empty: it runs.
  [[nodiscard]] std::string open();
  /// Before the endpoint's destructor.
  void detach() { port_.detach(); }

  /// Why it has stopped; empty: it has not.
  const std::string& problem() const { return problem_.empty() ? port_.problem() : problem_; }
  bool is_leader() const { return is_started_ && raft_.state == RAFT_LEADER; }
  /// A leader that can serve.
  bool is_ready() const { return is_leader() && is_ready_; }
  /// A leader that may answer reads alone, at this moment.
  bool has_lease();
  const raft& state() const { return raft_; }
  const Machine& machine() const { return machine_; }
  const PortCounters& counters() const { return port_.counters(); }
  /// With ReplicaOptions::is_measured.
  const programs::Latencies& served() const { return served_; }

 private:
  struct Waiting {
    std::optional<tern::Request> request;
    uint64_t configuration = 0;                ///< that its client knows
    void (Replica::*then)(Outcome) = nullptr;  ///< in place of a request
    raft_buffer command = {};
    uint64_t index = 0;        ///< in the log, once it is there
    tern::Duration arrived{};  ///< with ReplicaOptions::is_measured
  };
  struct Changing {
    tern::Request request;
    Change change;  ///< without its address
    std::string address;
  };

  void start();
  std::string begin_cluster();
  void after();
  void lead();
  void stop(std::string problem);
  // ---- commands ----
  void execute(tern::Request request);
  void enqueue(Waiting waiting);
  void submit();
  void apply(const raft_buffer& command);
  void prepare_pending() const;
  void on_snapshot();
  void fail_pending();
  void refuse(tern::Request request, uint64_t configuration);
  /// Answers a command. The client hears of the replicas if it knows another configuration.
  void reply(tern::Request request, uint64_t configuration, std::string_view said);
  static void answer(tern::Request request, std::string_view bytes);
  // ---- configuration ----
  void change(tern::Request request);
  void add();
  void on_reserved(Outcome outcome);
  void promote();
  void remove();
  void end_change(ChangeOutcome outcome, std::string_view text);
  void on_changed(int status);
  const raft_server* member(uint64_t id) const;
  void tell(tern::Request request);

  tern::Endpoint& endpoint_;
  const ReplicaOptions options_;
  raft raft_ = {};
  raft_fsm fsm_ = {};
  Machine machine_;
  Port port_;
  bool is_initialized_ = false, is_started_ = false;
  bool is_in_after_ = false;

  uint64_t leading_term_ = 0;  ///< of the last barrier
  bool is_ready_ = false;      ///< the barrier is applied
  struct raft_barrier barrier_ = {};
  struct raft_apply apply_ = {};
  std::deque<Waiting> queue_;    ///< not in the log yet
  size_t queue_bytes_ = 0;       ///< of their commands
  size_t applied_bytes_ = 0;     ///< of commands since the last snapshot
  std::deque<Waiting> pending_;  ///< the batch under way
  std::vector<raft_buffer> buffers_;

  raft_change change_ = {};
  std::optional<Changing> changing_;
  programs::Latencies served_;  ///< with ReplicaOptions::is_measured
  std::string problem_;
};

/// A replica and what it lives on, over any transport: what a process is, or a simulated host's program.
template <tern::Transport T>
struct Node {
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<Replica> replica;  ///< outlives the endpoint, whose continuations may run until it is gone
  std::unique_ptr<tern::Rpc<T>> rpc;

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    if (replica != nullptr) replica->detach();
  }

  /// The sentence why not; empty: it runs. `storage` outlives the node. `listen`: the URI of the Nexus.
  [[nodiscard]] std::string open(const std::string& listen, tern::NexusOptions nexus_options,
                                 typename T::Options transport, tern::RpcOptions rpc_options, Storage& storage,
                                 ReplicaOptions options) {
    auto made_nexus = tern::Nexus::create(listen, nexus_options);
    if (!made_nexus.ok()) return "no Nexus at " + listen + ": " + std::string(made_nexus.status().message());
    nexus = std::move(*made_nexus);
    auto made = tern::Rpc<T>::create(*nexus, transport, rpc_options);
    if (!made.ok()) return "no endpoint at " + listen + ": " + std::string(made.status().message());
    rpc = std::move(*made);
    tern::Environment& environment =
        nexus_options.environment != nullptr ? *nexus_options.environment : tern::real_environment();
    replica = std::make_unique<Replica>(*rpc, environment, storage, std::move(options));
    return replica->open();
  }
};

}  // namespace replicated
