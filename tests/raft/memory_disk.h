// A disk in memory that loses data in a crash of the machine as a real disk may: any unsynced changes of names, and the
// unsynced end of each file, which is missing or zeros. It can fail, too. In the simulator it outlives its host's
// program. Test code.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../apps/raft/directory.h"

namespace raft_test {

class MemoryDisk {
 public:
  /// Returns a number below its argument, which chooses one of the possible outcomes. 0 is the outcome without a crash.
  using Choose = std::function<size_t(size_t)>;

  /// Returns the disk as it may be after a crash at this moment.
  MemoryDisk after_crash(const Choose& choose) const {
    MemoryDisk disk;
    auto& names = disk.durable_names_;
    names = durable_names_;
    for (const auto& change : name_changes_) {
      if (choose(2) != 0) continue;
      if (!change.removed.empty()) names.erase(change.removed);
      if (!change.added.empty()) names[change.added] = change.file;
    }
    for (auto& [name, file] : names) {
      auto after = std::make_shared<Content>();
      after->durable = after->bytes = bytes_after_crash(*file, choose);
      file = after;
    }
    disk.names_ = names;
    return disk;
  }

  /// The given number of operations succeed. All later ones fail, or only those that need space.
  void fail_after(uint64_t operations, int error) {
    operations_left_ = operations;
    error_ = error;
  }
  /// The given number of operations succeed, and only the next one fails.
  void fail_once_after(uint64_t operations, int error) {
    fail_after(operations, error);
    fails_once_ = true;
  }
  void work_again() { error_ = 0; }
  uint64_t operations() const { return operations_; }

  /// The bytes of a file, which a test may read or damage. Null: no such file.
  std::string* bytes_of(const std::string& name) {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : &found->second->bytes;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : names_) names.push_back(entry.first);
    return names;
  }
  /// Marks all changes as synced.
  void forget(const std::string& name) { names_.erase(name); }
  /// Returns a disk with copies of the files and no unsynced changes.
  MemoryDisk copy() const {
    MemoryDisk disk;
    for (const auto& [name, file] : names_) {
      auto own = std::make_shared<Content>();
      own->durable = own->bytes = file->bytes;
      disk.names_[name] = disk.durable_names_[name] = own;
    }
    return disk;
  }

 private:
  friend class MemoryDirectory;
  friend class MemoryFile;
  struct Change {
    uint64_t len_bytes = 0;  ///< length after the change
    std::string added;       ///< empty: the file was made shorter
  };
  struct Content {
    std::string bytes;
    std::string durable;
    std::vector<Change> changes;  ///< that were not synced
  };
  struct NameChange {
    std::string removed, added;
    std::shared_ptr<Content> file;
  };

  static constexpr size_t kSectorBytes = 8;  ///< smaller than a disk's, so that a small file has several

  static std::string bytes_after_crash(const Content& file, const Choose& choose) {
    std::string bytes = file.durable;
    for (const Change& change : file.changes) {
      const size_t choice = choose(change.added.empty() ? 2 : 5);
      if (choice == 1) break;
      if (choice == 0) {
        bytes += change.added;
        bytes.resize(change.len_bytes);
        continue;
      }
      bytes += change.added.substr(0, choice == 2 ? change.added.size() - 1 : change.added.size() / 2);
      if (choice == 4) {
        bytes.resize(bytes.size() / kSectorBytes * kSectorBytes);
        bytes.resize(change.len_bytes);  // zeros
      }
      break;
    }
    return bytes;
  }

  /// 0: the operation succeeds.
  int operate(bool needs_room) {
    operations_++;
    if (error_ == 0 || (error_ == ENOSPC && !needs_room)) return 0;
    if (operations_left_ == 0) return fails_once_ ? std::exchange(error_, 0) : error_;
    operations_left_--;
    return 0;
  }

  std::map<std::string, std::shared_ptr<Content>> names_, durable_names_;
  std::vector<NameChange> name_changes_;  ///< that were not synced
  uint64_t operations_ = 0, operations_left_ = 0;
  int error_ = 0;
  bool fails_once_ = false;
};

class MemoryFile final : public replicated::File {
 public:
  MemoryFile(std::shared_ptr<MemoryDisk> disk, std::shared_ptr<MemoryDisk::Content> content)
      : disk_(std::move(disk)), content_(std::move(content)) {}

  int append(std::string_view bytes) override {
    if (bytes.empty()) return 0;
    const int error = disk_->operate(true);
    if (error != 0) bytes = bytes.substr(0, bytes.size() / 2);  // only a part, as write() may
    content_->bytes += bytes;
    if (!bytes.empty()) content_->changes.push_back({content_->bytes.size(), std::string(bytes)});
    return error;
  }
  int truncate(uint64_t len_bytes) override {
    if (const int error = disk_->operate(false)) return error;
    content_->bytes.resize(len_bytes);
    content_->changes.push_back({len_bytes, ""});
    return 0;
  }
  int sync() override {
    if (const int error = disk_->operate(false)) return error;
    content_->durable = content_->bytes;
    content_->changes.clear();
    return 0;
  }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
  const std::shared_ptr<MemoryDisk::Content> content_;
};

/// The disk's one directory, as a program has it open.
class MemoryDirectory final : public replicated::Directory {
 public:
  explicit MemoryDirectory(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}

  std::string path(const std::string& name) const override { return "disk/" + name; }
  int list(std::vector<std::string>& names) override {
    names = disk_->names();
    return 0;
  }
  int read(const std::string& name, std::string& bytes) override {
    const std::string* found = disk_->bytes_of(name);
    if (found == nullptr) return ENOENT;
    bytes = *found;
    return 0;
  }
  int create(const std::string& name, std::unique_ptr<replicated::File>& file) override {
    if (const int error = disk_->operate(true)) return error;
    auto content = std::make_shared<MemoryDisk::Content>();
    disk_->names_[name] = content;
    disk_->name_changes_.push_back({"", name, content});
    file = std::make_unique<MemoryFile>(disk_, content);
    return 0;
  }
  int open(const std::string& name, std::unique_ptr<replicated::File>& file) override {
    const auto found = disk_->names_.find(name);
    if (found == disk_->names_.end()) return ENOENT;
    file = std::make_unique<MemoryFile>(disk_, found->second);
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    if (const int error = disk_->operate(false)) return error;
    const auto found = disk_->names_.find(from);
    if (found == disk_->names_.end()) return ENOENT;
    const auto content = found->second;
    disk_->names_.erase(found);
    disk_->names_[to] = content;
    disk_->name_changes_.push_back({from, to, content});
    return 0;
  }
  int remove(const std::string& name) override {
    if (const int error = disk_->operate(false)) return error;
    if (disk_->names_.erase(name) == 0) return ENOENT;
    disk_->name_changes_.push_back({name, "", nullptr});
    return 0;
  }
  int sync() override {
    if (const int error = disk_->operate(false)) return error;
    disk_->durable_names_ = disk_->names_;
    disk_->name_changes_.clear();
    return 0;
  }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
};

}  // namespace raft_test
