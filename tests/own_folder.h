// A folder of one process for its temporary files. Test code.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace tern::test {

/// A new folder PREFIX-PID-XXXXXX. The destructor removes it in the process that made it, not in that one's children.
/// The constructor also removes the folders with this prefix that killed processes have left.
class OwnFolder {
 public:
  /// `prefix` is a path, as in "/dev/shm/tern-test".
  explicit OwnFolder(const std::string& prefix) : path_(prefix + "-" + std::to_string(owner_) + "-XXXXXX") {
    remove_stale(prefix + "-");
    if (mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  ~OwnFolder() {
    std::error_code error;
    if (getpid() == owner_) std::filesystem::remove_all(path_, error);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  static void remove_stale(const std::string& begin) {
    std::error_code error;  // other tests remove folders at the same time
    for (std::filesystem::directory_iterator at(std::filesystem::path(begin).parent_path(), error), end;
         !error && at != end; at.increment(error)) {
      const std::string path = at->path();
      if (!path.starts_with(begin)) continue;
      pid_t pid = 0;
      const char* const after = std::from_chars(path.data() + begin.size(), path.data() + path.size(), pid).ptr;
      if (*after != '-' || pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  }

  const pid_t owner_ = getpid();
  std::string path_;
};

}  // namespace tern::test
