// A directory and its files, as far as a storage on a disk needs them (disk_storage.h). An interface, because the tests
// have another one: a disk of which a crash leaves any part that was not synced. Standard library only.
//
// All members return 0 or an errno. What a call has written is durable after the sync() of its file, and that a name is
// there, gone or another one's after sync() of the directory. Two threads may use it at a time, with different names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace replicated {

/// An open file, which is written at its end.
class File {
 public:
  virtual ~File() = default;
  /// All of it, or an error: then any beginning of it may be there.
  [[nodiscard]] virtual int append(std::string_view bytes) = 0;
  /// Makes it shorter.
  [[nodiscard]] virtual int truncate(uint64_t len_bytes) = 0;
  [[nodiscard]] virtual int sync() = 0;
};

class Directory {
 public:
  virtual ~Directory() = default;
  /// For people.
  virtual std::string path(const std::string& name) const = 0;
  [[nodiscard]] virtual int list(std::vector<std::string>& names) = 0;
  [[nodiscard]] virtual int read(const std::string& name, std::string& bytes) = 0;
  /// A new and empty file; one that has the name is gone.
  [[nodiscard]] virtual int create(const std::string& name, std::unique_ptr<File>& file) = 0;
  /// A file that is there.
  [[nodiscard]] virtual int open(const std::string& name, std::unique_ptr<File>& file) = 0;
  /// Takes the place of a file that has the name already, at once.
  [[nodiscard]] virtual int rename(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual int remove(const std::string& name) = 0;
  [[nodiscard]] virtual int sync() = 0;
};

/// When what is written becomes durable.
enum class Sync : uint8_t {
  kNever,  ///< when the kernel likes: a process may be killed, but the machine must not lose its power
  kData,   ///< with fdatasync() at each File::sync()
  kWrite,  ///< with each write (O_DSYNC)
};

/// A directory of this machine, which is made if it is not there. No other process may have it open through this
/// function. Null: `problem` is the sentence that says why.
std::unique_ptr<Directory> open_directory(const std::string& path, Sync sync, std::string& problem);

}  // namespace replicated
