// A storage on a disk: a log in files of bounded length, a snapshot, and a file `state` that lists the valid files
// (disk_format.h describes their bytes). The replica's thread owns it; another thread may write a snapshot.
//
// A file gets its name when its first content is durable, and becomes part of the storage when `state` names it.
// `state` is written to another file and renamed, so each change of the list is atomic. Therefore a file that `state`
// names exists and is complete, except the end of the log's last file, where records are added. A partial record at
// that end is the result of a crash. It was never acknowledged, and load() cuts it off. Any other missing, short or
// changed data that load() finds is damage. The storage then reports the file, and changes nothing.
//
// If power fails while the disk writes new records, and it writes their later bytes first, then zeros are left before
// written bytes. That is reported as damage, too, because a changed record that was acknowledged looks the same.
//
// The storage cannot detect whether anything other than a crash has removed entries at the very end of the log.
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
  /// If a log file becomes longer than this, the storage begins another file.
  uint64_t log_bytes_max = 16u << 20;
  /// A separate thread writes snapshots, so that the replica can continue meanwhile.
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
  /// A file of the log. The files have consecutive numbers.
  struct LogFile {
    uint64_t number = 0;
    uint64_t first_index = 0;
  };

  std::string load_state();
  std::string load_log(Saved& saved);
  std::string load_log_file(uint64_t number, Saved& saved);
  std::string load_snapshot(Saved& saved);
  std::string remove_others();

  /// Applies `change` to the state, and writes the file `state`.
  std::string change_state(const std::function<void(disk::State&)>& change);
  /// Writes a new file with these bytes, and gives it the name.
  std::string write_file(const std::string& name, std::initializer_list<std::string_view> parts);
  std::string write_snapshot(const Snapshot& snapshot);
  std::string add_log_file(uint64_t first_index, bool is_only_one);
  std::string open_last();
  void remove(const std::string& name);

  std::string failed(const char* to, const std::string& name, int error) const;
  std::string damaged(const std::string& name, const std::string& how) const;

  const std::unique_ptr<Directory> directory_;
  const DiskOptions options_;
  std::mutex mutex_;          ///< protects the members below against a snapshot's thread
  disk::State state_;         ///< the content of the file `state`
  std::vector<LogFile> log_;  ///< never empty after load()
  uint64_t next_index_ = 1;   ///< index of the next entry
  std::unique_ptr<File> last_;
  uint64_t last_bytes_ = 0;  ///< bytes written to the last file
  std::string unwritten_;    ///< records that follow those bytes
  std::thread thread_;       ///< writes a snapshot
};

}  // namespace replicated
