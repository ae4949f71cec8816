// The store of a partition: an LMDB database in a file of shared memory, used by one thread at a time.
// LMDB writes a change to free pages, and the last store instruction of a commit switches to them. So the file is
// consistent after each instruction, and committed data outlives the process, even after SIGKILL. The store syncs
// nothing to a device: a crash of the machine may lose or damage all data.
#pragma once

#include <fcntl.h>
#include <lmdb.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "protocol.h"

namespace kv {

class Store {
 public:
  enum class Outcome { kDone, kFull, kFailed };

  Store() = default;
  Store(Store&& other) noexcept
      : path_(std::move(other.path_)),
        env_(std::exchange(other.env_, nullptr)),
        reading_(std::exchange(other.reading_, nullptr)),
        values_(other.values_) {}
  ~Store() {
    if (reading_ != nullptr) mdb_txn_abort(reading_);
    if (env_ != nullptr) mdb_env_close(env_);
  }

  /// Opens or creates the file, which start() gives room for `bytes` in all. Returns an empty string, or the error
  /// message.
  std::string open(const std::string& path, size_t bytes) {
    // One thread of one process uses the file (Stores ensures that), so there are no locks. Pages are changed in the
    // mapping itself.
    constexpr unsigned kFlags = MDB_NOSUBDIR | MDB_WRITEMAP | MDB_NOSYNC | MDB_NOLOCK | MDB_NOTLS | MDB_NORDAHEAD;
    path_ = path;
    int error = mdb_env_create(&env_);
    if (error == 0) error = mdb_env_set_mapsize(env_, bytes);
    if (error == 0) error = mdb_env_open(env_, path.c_str(), kFlags, 0600);
    return explain(error);
  }

  /// Claims the memory, after open(); the file needs no name any more. Returns an empty string, or the error message.
  std::string start() {
    MDB_txn* writing = nullptr;
    int error = reserve();
    if (error == 0) error = mdb_txn_begin(env_, nullptr, 0, &writing);
    if (error == 0) error = mdb_dbi_open(writing, nullptr, MDB_INTEGERKEY, &values_);
    if (error == 0) error = mdb_txn_commit(std::exchange(writing, nullptr));
    if (error == 0) error = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &reading_);
    if (writing != nullptr) mdb_txn_abort(writing);
    if (error == 0) mdb_txn_reset(reading_);
    return explain(error);
  }

  /// Sets `record`. Its value points into the store, and stays valid until the next put().
  Outcome get(uint64_t key, Record& record) {
    MDB_val name = {sizeof(key), &key};
    MDB_val stored;
    int error = mdb_txn_renew(reading_);
    if (error == 0) error = mdb_get(reading_, values_, &name, &stored);
    mdb_txn_reset(reading_);
    return to_record(error, stored, record);
  }

  /// Stores `put`, unless the store has its version or a newer one. Sets `version` to the version that is stored
  /// afterwards.
  Outcome put(const Put& put, uint64_t& version) {
    MDB_txn* writing = nullptr;
    if (mdb_txn_begin(env_, nullptr, 0, &writing) != 0) return Outcome::kFailed;
    uint64_t key = put.key;
    MDB_val name = {sizeof(key), &key};
    MDB_val stored;
    Record old;
    const int got = mdb_get(writing, values_, &name, &stored);
    if (to_record(got, stored, old) != Outcome::kDone || old.version >= put.version) {
      mdb_txn_abort(writing);
      version = old.version;
      return old.version != 0 ? Outcome::kDone : Outcome::kFailed;
    }
    version = put.version;
    stored = {sizeof(version) + put.value.size(), nullptr};
    int error = mdb_put(writing, values_, &name, &stored, MDB_RESERVE);
    if (error == 0) {
      Writer({static_cast<std::byte*>(stored.mv_data), stored.mv_size}).write(version).write(put.value);
      error = mdb_txn_commit(writing);
    } else {
      mdb_txn_abort(writing);
    }
    return error == 0 ? Outcome::kDone : error == MDB_MAP_FULL ? Outcome::kFull : Outcome::kFailed;
  }

 private:
  std::string explain(int error) const {
    if (error == 0) return {};
    const bool is_too_large = error == ENOSPC || error == ENOMEM || error == EFBIG;
    return "cannot open the store at " + path_ + ": " + mdb_strerror(error) +
           (is_too_large ? "; try a smaller --memory_mb" : "");
  }
  /// Allocates the memory now. Without that, the first write to a page that shared memory has no room for would be a
  /// SIGBUS.
  int reserve() {
    MDB_envinfo info;
    int fd;
    int error = mdb_env_info(env_, &info);
    if (error == 0) error = mdb_env_get_fd(env_, &fd);
    return error == 0 ? posix_fallocate(fd, 0, static_cast<off_t>(info.me_mapsize)) : error;
  }
  static Outcome to_record(int error, const MDB_val& stored, Record& record) {
    record = {};
    if (error == MDB_NOTFOUND) return Outcome::kDone;
    if (error != 0) return Outcome::kFailed;
    const auto read = parse_record({static_cast<const std::byte*>(stored.mv_data), stored.mv_size});
    if (!read || read->version == 0) return Outcome::kFailed;
    record = *read;
    return Outcome::kDone;
  }

  std::string path_;
  MDB_env* env_ = nullptr;
  MDB_txn* reading_ = nullptr;
  MDB_dbi values_ = 0;
};

/// The stores of all partitions, in one directory. One server at a time may use the directory.
class Stores {
 public:
  Stores() = default;
  Stores(const Stores&) = delete;
  Stores& operator=(const Stores&) = delete;
  ~Stores() {
    if (directory_fd_ >= 0) close(directory_fd_);
  }

  /// `directory` holds the files. If it is empty, the files are in shared memory. They lose their names before they
  /// claim it, so that the kernel removes them when the process ends in any way. Returns an empty string, or the error
  /// message.
  std::string open(const std::string& directory, size_t partitions, size_t bytes) {
    std::string path = directory;
    const bool is_kept = !path.empty();
    if (!is_kept) {
      path = "/dev/shm/tern-kv." + std::to_string(getpid()) + ".XXXXXX";
      if (mkdtemp(path.data()) == nullptr)
        return "cannot create a directory in /dev/shm: " + text(errno) + "; name a directory with --store";
    }
    std::string problem = open_in(path, partitions, bytes);
    std::error_code ignored;
    if (!is_kept) std::filesystem::remove_all(path, ignored);  // the open files exist without their names
    for (Store& store : stores_) {
      if (problem.empty()) problem = store.start();
    }
    return problem;
  }
  Store& operator[](size_t partition) { return stores_[partition]; }

 private:
  static std::string text(int error) { return std::generic_category().message(error); }

  std::string open_in(const std::string& path, size_t partitions, size_t bytes) {
    std::error_code error;
    std::filesystem::create_directory(path, error);
    directory_fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_fd_ < 0) return "cannot open the directory " + path + ": " + text(errno);
    if (flock(directory_fd_, LOCK_EX | LOCK_NB) != 0)
      return "another server uses the store at " + path + "; give each server its own --store";
    // The number of partitions determines the partition of each key, so the files' names contain it.
    const std::string ending = "-of-" + std::to_string(partitions) + ".mdb";
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".mdb") && !name.ends_with(ending)) {
        return "the store at " + path + " was made with another --server_threads (it has " + name +
               "); give the same, or another --store";
      }
    }
    constexpr size_t kPageBytes = 4096;
    const size_t bytes_each = bytes / partitions / kPageBytes * kPageBytes;
    stores_.resize(partitions);
    for (size_t i = 0; i < partitions; ++i) {
      std::string problem = stores_[i].open(path + "/" + std::to_string(i) + ending, bytes_each);
      if (!problem.empty()) return problem;
    }
    return {};
  }

  int directory_fd_ = -1;  ///< locked until this server ends
  std::vector<Store> stores_;
};

}  // namespace kv
