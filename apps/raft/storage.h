// What a replica must find again when it comes back: its term and vote, its log, and its latest snapshot.
// The interface between the replica (port.h) and what keeps them: nothing (no_storage.h) or a disk. Standard library
// only; knows neither messages nor libraft.
//
// All members are called by the replica's thread, one at a time. A member that can fail returns a sentence that names
// the file and says what to do; empty: it is done. After a sentence the replica stops, and calls nothing but the
// destructor. Data that was written before a failure stays as it is, so that nothing acknowledged is lost by a later
// start.
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

/// An entry of the log as the replica hands it over. The bytes are valid during the call.
struct Entry {
  uint64_t term;
  uint16_t type;  ///< of libraft: RAFT_COMMAND, RAFT_BARRIER, RAFT_CHANGE; other values never occur
  Bytes bytes;
};

/// An entry of the log as it was stored.
struct StoredEntry {
  uint64_t term = 0;
  uint16_t type = 0;
  std::string bytes;
};

/// The state machine after entry `index`, which takes the place of all entries up to it.
struct Snapshot {
  uint64_t index = 0;                ///< of the last entry that is in it
  uint64_t term = 0;                 ///< of that entry
  uint64_t configuration_index = 0;  ///< of the entry that made the configuration
  std::string configuration;         ///< opaque, below 64 KiB
  std::string bytes;                 ///< opaque, up to 1 GiB
};

/// What was stored, as load() finds it.
struct Saved {
  uint64_t term = 0;                         ///< 0: none so far
  uint64_t vote = 0;                         ///< the replica that has this one's vote in `term`; 0: none
  std::shared_ptr<const Snapshot> snapshot;  ///< the latest one; null: none
  uint64_t first_index = 1;                  ///< of entries[0], or of the next entry if there are none
  std::vector<StoredEntry> entries;
};

class Storage {
 public:
  virtual ~Storage() = default;

  /// The first call, once. Without a snapshot, first_index is 1. With one, first_index is at most snapshot->index + 1,
  /// and the log reaches snapshot->index at least. A log that does not fit the snapshot (it ends before
  /// snapshot->index, begins after snapshot->index + 1, or has another term at snapshot->index) is dropped, because the
  /// replica died between put_snapshot() and restart_log(): then entries are empty and first_index is snapshot->index
  /// + 1.
  [[nodiscard]] virtual std::string load(Saved& saved) = 0;

  /// A new term, in which this replica has not voted: vote becomes 0. Durable when it returns.
  [[nodiscard]] virtual std::string set_term(uint64_t term) = 0;
  /// The vote of the present term. Durable when it returns.
  [[nodiscard]] virtual std::string set_vote(uint64_t replica) = 0;

  /// Adds entries at the end of the log. Durable after the next sync(), which the replica calls before it tells
  /// anybody. It collects the appends of one turn of its loop, so that one sync() serves many of them.
  [[nodiscard]] virtual std::string append(std::span<const Entry> entries) = 0;
  [[nodiscard]] virtual std::string sync() = 0;
  /// True if sync() costs nothing: a follower then calls it after each append().
  virtual bool is_sync_free() const = 0;

  /// Drops the entries from `index` on, which exist. Durable with the next sync(), or before.
  [[nodiscard]] virtual std::string truncate(uint64_t index) = 0;

  /// Stores a snapshot; one at a time. Calls `done` once with a sentence as above, when it is durable and load() would
  /// return it: within the call, or later from any thread. `done` is not called after the destructor, which waits for a
  /// thread that writes. Until then the snapshot before it stays valid. The log is not touched; other members may be
  /// called meanwhile.
  virtual void put_snapshot(std::shared_ptr<const Snapshot> snapshot, std::function<void(std::string)> done) = 0;
  /// Drops the entries before `index`, which a snapshot has. It may keep them longer (whole files, for example).
  [[nodiscard]] virtual std::string drop_before(uint64_t index) = 0;
  /// Drops all entries; the next one has `index`. After a snapshot of another replica, which ends just before it.
  /// Durable with the next sync(), or before.
  [[nodiscard]] virtual std::string restart_log(uint64_t index) = 0;
};

}  // namespace replicated
