// The replicas of a run on their hosts, with their disks, and what must be true of them at every moment. Test code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tern/sim.h>

#include "../apps/raft/replica.h"
#include "raft/memory_disk.h"
#include "raft/sim/plan.h"

namespace raft_test {

/// What a replica's disk loses when its host crashes.
enum class Loss : uint8_t { kNothing, kUnsynced, kAll };

class Cluster {
 public:
  using Node = replicated::Node<tern::Sim>;

  Cluster(const Plan& plan, tern::sim::Simulation& simulation, Random& random);

  /// Place i is the host i. A replica that has no memory begins the cluster, if it is one of the first ones, or waits
  /// until it is added.
  void boot(uint32_t place);
  void crash(uint32_t place, Loss loss);
  /// From the next boot() on another replica is here, which no one has heard of.
  void renew(uint32_t place) { places_[place].id = ++last_id_; }
  /// So many operations work until the disk is full, until the next boot().
  void fill_disk(uint32_t place, uint64_t operations);
  void empty_disk(uint32_t place) {
    if (places_[place].disk != nullptr) places_[place].disk->work_again();
  }
  /// It has been removed, or has lost its memory: that it says why it stops is right.
  void expect_stop(uint32_t place) { places_[place].may_stop = true; }

  uint32_t size() const { return plan_.replicas; }
  uint64_t id(uint32_t place) const { return places_[place].id; }
  bool is_up(uint32_t place) const;
  /// Null: its host is down.
  replicated::Replica* replica(uint32_t place) const;
  /// It has said why it goes on no more.
  bool has_stopped(uint32_t place) const;
  /// The leader that serves, in the latest term if there are two; size(): there is none.
  uint32_t leader() const;
  /// All replicas that are up have executed the same commands, with the same result.
  bool agree(std::string& why_not) const;

  /// What each replica is, a line for each.
  std::string text() const;

  /// After each step: one leader a term, and no two replicas that commit different entries.
  void look();
  /// The first thing that was wrong. Empty: none.
  std::string problem;

 private:
  struct Place {
    uint64_t id = 0;
    bool may_stop = false;
    std::shared_ptr<MemoryDisk> disk;  ///< null: its storage is memory, and survives
    std::unique_ptr<replicated::Storage> storage;
    uint64_t looked_at = 0;  ///< index of its last committed entry that was compared
    uint64_t looked_term = 0;
  };
  void fail(uint32_t place, const std::string& what);
  void look_at_log(Place& place, const raft& state);
  replicated::ReplicaOptions options(const Place& place) const;

  const Plan& plan_;
  tern::sim::Simulation& simulation_;
  Random& random_;
  std::vector<Place> places_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, uint64_t> leaders_;                         ///< id by term
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> committed_;  ///< by index: term and hash
};

}  // namespace raft_test
