// A directory and its files, with the operations that a storage on a disk needs (disk_storage.h). It is an interface
// because the tests use another implementation: a disk that keeps an arbitrary part of unsynced data in a crash.
// Standard library only.
//
// All members return 0 or an errno. The data of a file is durable after the sync() of the file. A created, removed or
// renamed name is durable after sync() of the directory. Two threads may use a directory at the same time, with
// different names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace replicated {

/// An open file. Writes append to it.
class File {
 public:
  virtual ~File() = default;
  /// Appends all bytes, or returns an error; then any beginning of `bytes` may be in the file.
  [[nodiscard]] virtual int append(std::string_view bytes) = 0;
  /// Shortens the file. With sync() after it, all that is left is durable, also what an earlier run has written.
  [[nodiscard]] virtual int truncate(uint64_t len_bytes) = 0;
  [[nodiscard]] virtual int sync() = 0;
};

class Directory {
 public:
  virtual ~Directory() = default;
  /// The path for messages to people.
  virtual std::string path(const std::string& name) const = 0;
  [[nodiscard]] virtual int list(std::vector<std::string>& names) = 0;
  [[nodiscard]] virtual int read(const std::string& name, std::string& bytes) = 0;
  /// Creates a new, empty file, and replaces a file of that name.
  [[nodiscard]] virtual int create(const std::string& name, std::unique_ptr<File>& file) = 0;
  /// Opens an existing file.
  [[nodiscard]] virtual int open(const std::string& name, std::unique_ptr<File>& file) = 0;
  /// Renames a file. Atomically replaces a file that already has the name.
  [[nodiscard]] virtual int rename(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual int remove(const std::string& name) = 0;
  [[nodiscard]] virtual int sync() = 0;
};

/// When written data becomes durable.
enum class Sync : uint8_t {
  kNever,  ///< when the kernel decides: the data survives a killed process, but not a loss of power
  kData,   ///< with fdatasync() at each File::sync()
  kWrite,  ///< with each write (O_DSYNC)
};

/// Opens a directory of this machine; creates it if it does not exist. Only one process at a time may have it open
/// through this function. On error it returns null, and `problem` has the message.
std::unique_ptr<Directory> open_directory(const std::string& path, Sync sync, std::string& problem);

}  // namespace replicated
