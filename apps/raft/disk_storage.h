// A storage on a disk: a log in files of bounded length, a snapshot, and a file `state` that says which of these there
// are (disk_format.h has their bytes). Owned by the replica's thread; a snapshot may be written by another one.
//
// A file takes its name when all that it begins with is durable, and is the storage's when `state` names it. `state`
// is written aside and renamed, so each change of what there is happens at once. So a file that is named is there and
// whole, all but the end of the log's last file, where records are added: what a crash has left of a record there was
// never acknowledged, and is cut off. Anything else that load() finds missing, short or changed is damage. The storage
// then says which file it is, and touches nothing.
//
// What it cannot know: whether entries at the very end of the log have been cut off by something else than a crash.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "directory.h"
#include "disk_format.h"
#include "storage.h"

namespace replicated {

struct DiskOptions {
  /// A file of the log that is longer is followed by another one.
  uint64_t log_bytes_max = 16u << 20;
  /// Snapshots are written by a thread of their own, so that the replica goes on meanwhile.
  bool has_thread = true;
};

class DiskStorage final : public Storage {
 public:
  DiskStorage(std::unique_ptr<Directory> directory, DiskOptions options);
  ~DiskStorage() override;

  std::string load(Saved& saved) override;
  std::string set_term(uint64_t term) override;
  std::string set_vote(uint64_t replica) override;
  std::string append(std::span<const Entry> entries) override;
  std::string sync() override;
  bool is_sync_free() const override { return false; }
  std::string truncate(uint64_t index) override;
  void put_snapshot(std::shared_ptr<const Snapshot> snapshot, std::function<void(std::string)> done) override;
  std::string drop_before(uint64_t index) override;
  std::string restart_log(uint64_t index) override;

 private:
  /// A file of the log; they have consecutive numbers.
  struct LogFile {
    uint64_t number = 0;
    uint64_t first_index = 0;
  };

  std::string load_state();
  std::string load_log(Saved& saved);
  std::string load_log_file(uint64_t number, Saved& saved);
  std::string load_snapshot(Saved& saved);
  std::string remove_others();

  /// Makes `state` say what `change` has made of it.
  std::string change_state(const std::function<void(disk::State&)>& change);
  /// A new file with these bytes takes the name.
  std::string write_file(const std::string& name, std::initializer_list<std::string_view> parts);
  std::string write_snapshot(const Snapshot& snapshot);
  std::string add_log_file(uint64_t first_index, bool is_only_one);
  std::string open_last();
  void remove(const std::string& name);

  std::string failed(const char* to, const std::string& name, int error) const;
  std::string damaged(const std::string& name, const std::string& how) const;

  const std::unique_ptr<Directory> directory_;
  const DiskOptions options_;
  std::mutex mutex_;          ///< of what follows, for a snapshot's thread
  disk::State state_;         ///< what `state` says
  std::vector<LogFile> log_;  ///< never empty after load()
  uint64_t next_index_ = 1;   ///< of the next entry
  std::unique_ptr<File> last_;
  uint64_t last_bytes_ = 0;  ///< written to it
  std::string unwritten_;    ///< records that follow them
  std::thread thread_;       ///< writes a snapshot
};

}  // namespace replicated
