// The replicas of a run on their hosts with their disks, and the invariants that must hold after every step. Test code.
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

/// The data that a replica's disk loses in a crash of its host.
enum class Loss : uint8_t { kNothing, kUnsynced, kAll };

class Cluster {
 public:
  using Node = replicated::Node<tern::Sim>;

  Cluster(const Plan& plan, tern::sim::Simulation& simulation, Random& random);

  /// Place i is host i. A replica without stored state begins the cluster if it is one of the first ones. Otherwise it
  /// waits until it is added.
  void boot(uint32_t place);
  void crash(uint32_t place, Loss loss);
  /// Puts another, unknown replica here from the next boot() on.
  void renew(uint32_t place) { places_[place].id = ++last_id_; }
  /// Lets the disk become full after the given number of operations, until the next boot().
  void fill_disk(uint32_t place, uint64_t operations);
  void empty_disk(uint32_t place) {
    if (places_[place].disk != nullptr) places_[place].disk->work_again();
  }
  /// Allows the replica to stop with a reason, because it was removed or has lost its state.
  void expect_stop(uint32_t place) { places_[place].may_stop = true; }

  uint32_t size() const { return plan_.replicas; }
  uint64_t id(uint32_t place) const { return places_[place].id; }
  bool is_up(uint32_t place) const;
  /// Null: the host is down.
  replicated::Replica* replica(uint32_t place) const;
  /// True: the replica has stopped with a reason.
  bool has_stopped(uint32_t place) const;
  /// The serving leader, of the latest term if there are two. size(): there is none.
  uint32_t leader() const;
  /// True: all running replicas have executed the same commands with the same result.
  bool agree(std::string& why_not) const;

  /// A text with one line about each replica.
  std::string text() const;

  /// Checks after each step that a term has one leader and that no two replicas commit different entries.
  void look();
  /// The first error, or an empty text.
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
  std::map<uint64_t, uint64_t> leaders_;                         ///< leader's id by term
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> committed_;  ///< term and hash by index
};

}  // namespace raft_test
