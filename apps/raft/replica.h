// A replica: libraft, its port, the state machine, and the requests of clients and administrators.
// Its endpoint's thread owns it. It does not depend on the transport, nor on whether the network is simulated.
//
// Commands go into the log in batches, one batch at a time. The reason is that libraft commits the entries that a
// majority has stored only if these are all entries that the leader has stored (replicationQuorum() of
// src/replication.c). A leader that kept appending might never commit. Commands that arrive during a batch form the
// next batch.
//
// A new leader first appends a barrier of its term, before it handles any result. libraft counts the replicas of its
// last entry without a check of that entry's term, and would otherwise commit entries of earlier terms by counting
// (Raft paper, section 5.4.2, figure 8). Reads, commands and changes of the configuration wait until the barrier is
// applied (thesis, 6.4 step 1; and Ongaro's correction of 4.1, which requires a leader's first commit before a change).
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
  /// Used with a pristine storage: the replicas of a new cluster, including this one; three to seven, or one. The
  /// cluster begins after each of them has been up once. If the list is empty, this replica waits until a leader adds
  /// it (Admin). If the storage is not pristine, the list has no effect, and the replica continues from the storage.
  std::vector<std::pair<uint64_t, std::string>> replicas;
  unsigned snapshot_entries = 100'000;  ///< entries after which a snapshot is taken
  size_t snapshot_bytes = 256u << 20;   ///< total size of commands after which a snapshot is taken
  unsigned trailing_entries = 10'000;   ///< entries that stay in the log after a snapshot, for replicas that are
                                        ///< behind; at least 1
  unsigned batch_max = 64;              ///< maximum number of commands in a batch, 1 to 1024
  size_t queue_max = 65536;             ///< maximum number of waiting commands; beyond it clients get kBusy
  size_t queue_bytes_max = 64u << 20;   ///< maximum total size of the waiting commands; beyond it clients get kBusy
  bool is_measured = false;             ///< kAbout then reports how long commands took here, from arrival to answer
};

class Replica {
 public:
  /// All arguments must outlive the endpoint, and so must the replica.
  Replica(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, ReplicaOptions options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Starts the replica. Must be called once, before the first turn of the endpoint's loop. Returns an empty string, or
  /// the error message.
  [[nodiscard]] std::string open();
  /// Must be called before the endpoint's destructor.
  void detach() { port_.detach(); }

  /// Why the replica has stopped; empty: it runs.
  const std::string& problem() const { return problem_.empty() ? port_.problem() : problem_; }
  bool is_leader() const { return is_started_ && raft_.state == RAFT_LEADER; }
  /// True for a leader that can serve.
  bool is_ready() const { return is_leader() && is_ready_; }
  /// True for a leader that may answer reads alone at this moment.
  bool has_lease();
  const raft& state() const { return raft_; }
  const Machine& machine() const { return machine_; }
  const PortCounters& counters() const { return port_.counters(); }
  /// The service times, with ReplicaOptions::is_measured.
  const programs::Latencies& served() const { return served_; }

 private:
  struct Waiting {
    std::optional<tern::Request> request;
    uint64_t configuration = 0;                ///< the configuration that its client knows
    void (Replica::*then)(Outcome) = nullptr;  ///< called instead of an answer to a request
    raft_buffer command = {};
    uint64_t index = 0;        ///< its index, after it is in the log
    tern::Duration arrived{};  ///< set with ReplicaOptions::is_measured
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
  /// Answers a command. The answer lists the replicas if the client knows another configuration.
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

  uint64_t leading_term_ = 0;  ///< term of the last barrier
  bool is_ready_ = false;      ///< the barrier is applied
  struct raft_barrier barrier_ = {};
  struct raft_apply apply_ = {};
  std::deque<Waiting> queue_;    ///< commands that are not in the log yet
  size_t queue_bytes_ = 0;       ///< total size of the commands in queue_
  size_t applied_bytes_ = 0;     ///< total size of the commands since the last snapshot
  std::deque<Waiting> pending_;  ///< the batch under way
  std::vector<raft_buffer> buffers_;

  raft_change change_ = {};
  std::optional<Changing> changing_;
  programs::Latencies served_;  ///< with ReplicaOptions::is_measured
  std::string problem_;
};

/// A replica with its Nexus and endpoint, over any transport: the content of a process, or of a simulated host's
/// program.
template <tern::Transport T>
struct Node {
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<Replica> replica;  ///< outlives the endpoint, whose continuations may run until it is destroyed
  std::unique_ptr<tern::Rpc<T>> rpc;

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    if (replica != nullptr) replica->detach();
  }

  /// Starts the node. Returns an empty string, or the error message. `storage` must outlive the node. `listen` is the
  /// URI of the Nexus.
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
