// The state that a replica needs when it comes back: its term and vote, its log, and its latest snapshot.
// This is the interface between the replica (port.h) and a storage: none (no_storage.h) or a disk. Standard library
// only; does not depend on messages or libraft.
//
// The replica's thread calls all members, one at a time. A member that can fail returns an error message that names the
// file and the remedy; an empty string means success. After an error the replica stops, and calls only the destructor.
// Data that was written before a failure stays unchanged, so that a later start loses nothing that was acknowledged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bytes.h"

namespace replicated {

/// An entry of the log that the replica adds. The bytes are valid during the call.
struct Entry {
  uint64_t term;
  uint16_t type;  ///< libraft's type: RAFT_COMMAND, RAFT_BARRIER, RAFT_CHANGE; other values never occur
  Bytes bytes;
};

/// An entry of the log as it was stored.
struct StoredEntry {
  uint64_t term = 0;
  uint16_t type = 0;
  std::string bytes;
};

/// The state machine after entry `index`. It replaces all entries up to that index.
struct Snapshot {
  uint64_t index = 0;                ///< index of the last entry in the snapshot
  uint64_t term = 0;                 ///< term of that entry
  uint64_t configuration_index = 0;  ///< index of the entry with the configuration
  std::string configuration;         ///< opaque, below 64 KiB
  std::string bytes;                 ///< opaque, up to 1 GiB
};

/// The stored state that load() returns.
struct Saved {
  uint64_t term = 0;                         ///< 0: no term so far
  uint64_t vote = 0;                         ///< the replica that this one voted for in `term`; 0: no vote
  std::shared_ptr<const Snapshot> snapshot;  ///< the latest snapshot; null: none
  uint64_t first_index = 1;                  ///< index of entries[0], or of the next entry if `entries` is empty
  std::vector<StoredEntry> entries;
};

class Storage {
 public:
  virtual ~Storage() = default;

  /// Must be called first, and once. Without a snapshot, first_index is 1. With a snapshot, first_index is at most
  /// snapshot->index + 1, and the log reaches at least snapshot->index. load() drops a log that does not fit the
  /// snapshot (it ends before snapshot->index, begins after snapshot->index + 1, or has another term at
  /// snapshot->index), because the replica died between put_snapshot() and restart_log(). `entries` is then empty and
  /// first_index is snapshot->index + 1.
  [[nodiscard]] virtual std::string load(Saved& saved) = 0;

  /// Begins a new term, in which this replica has not voted: vote becomes 0. Durable when it returns.
  [[nodiscard]] virtual std::string set_term(uint64_t term) = 0;
  /// Stores the vote of the current term. Durable when it returns.
  [[nodiscard]] virtual std::string set_vote(uint64_t replica) = 0;

  /// Adds entries at the end of the log. They are durable after the next sync(). The replica calls sync() before it
  /// acknowledges the entries. It collects the appends of one turn of its loop, so that one sync() covers many appends.
  [[nodiscard]] virtual std::string append(std::span<const Entry> entries) = 0;
  [[nodiscard]] virtual std::string sync() = 0;
  /// True if sync() costs nothing: a follower then calls it after each append().
  virtual bool is_sync_free() const = 0;

  /// Drops the existing entries from `index` on. Durable with the next sync(), or earlier.
  [[nodiscard]] virtual std::string truncate(uint64_t index) = 0;

  /// Stores a snapshot; one at a time. Calls `done` once with an empty string or an error message, when the snapshot is
  /// durable and load() would return it. `done` may run within the call, or later in any thread. `done` is not called
  /// after the destructor, which waits for a writing thread. Until `done` is called, the earlier snapshot stays valid.
  /// The call does not change the log. Other members may be called meanwhile.
  virtual void put_snapshot(std::shared_ptr<const Snapshot> snapshot, std::function<void(std::string)> done) = 0;
  /// Drops the entries before `index`; the snapshot must contain them. It may keep them longer (whole files, for
  /// example).
  [[nodiscard]] virtual std::string drop_before(uint64_t index) = 0;
  /// Drops all entries; the next entry has `index`. Called after a snapshot of another replica, which ends just before
  /// `index`. Durable with the next sync(), or earlier.
  [[nodiscard]] virtual std::string restart_log(uint64_t index) = 0;
};

}  // namespace replicated
