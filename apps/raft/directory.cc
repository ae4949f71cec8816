#include "directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace replicated {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int result(int outcome) { return outcome < 0 ? errno : 0; }

class SystemFile final : public File {
 public:
  SystemFile(Descriptor fd, Sync sync) : fd_(std::move(fd)), sync_(sync) {}

  int append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) return errno;
      if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
    }
    return 0;
  }
  int truncate(uint64_t len_bytes) override {
    if (::ftruncate(fd_.get(), static_cast<off_t>(len_bytes)) != 0) return errno;
    return sync_ == Sync::kWrite ? result(::fdatasync(fd_.get())) : 0;  // O_DSYNC covers writes only
  }
  int sync() override { return sync_ == Sync::kData ? result(::fdatasync(fd_.get())) : 0; }

 private:
  const Descriptor fd_;
  const Sync sync_;
};

class SystemDirectory final : public Directory {
 public:
  SystemDirectory(std::string path, Descriptor fd, Sync sync)
      : path_(std::move(path)), fd_(std::move(fd)), sync_(sync) {}

  std::string path(const std::string& name) const override { return path_ + "/" + name; }

  int list(std::vector<std::string>& names) override {
    DIR* entries = ::opendir(path_.c_str());
    if (entries == nullptr) return errno;
    errno = 0;
    while (const dirent* entry = ::readdir(entries)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(entries);
    return error;
  }

  int read(const std::string& name, std::string& bytes) override {
    const Descriptor fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status;
    if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0) return errno;
    bytes.resize(static_cast<size_t>(status.st_size));
    size_t len_bytes = 0;
    while (len_bytes < bytes.size()) {
      const ssize_t count = ::read(fd.get(), bytes.data() + len_bytes, bytes.size() - len_bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) break;
      len_bytes += static_cast<size_t>(count);
    }
    bytes.resize(len_bytes);
    return 0;
  }

  int create(const std::string& name, std::unique_ptr<File>& file) override {
    return open(name, O_CREAT | O_TRUNC, file);
  }
  int open(const std::string& name, std::unique_ptr<File>& file) override { return open(name, 0, file); }
  int rename(const std::string& from, const std::string& to) override {
    return result(::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()));
  }
  int remove(const std::string& name) override { return result(::unlinkat(fd_.get(), name.c_str(), 0)); }
  int sync() override { return sync_ == Sync::kNever ? 0 : result(::fsync(fd_.get())); }

 private:
  int open(const std::string& name, int flags, std::unique_ptr<File>& file) {
    flags |= O_WRONLY | O_APPEND | O_CLOEXEC | (sync_ == Sync::kWrite ? O_DSYNC : 0);
    Descriptor fd(::openat(fd_.get(), name.c_str(), flags, 0600));
    if (fd.get() < 0) return errno;
    file = std::make_unique<SystemFile>(std::move(fd), sync_);
    return 0;
  }

  const std::string path_;
  const Descriptor fd_;
  const Sync sync_;
};

/// Makes the name of a new directory durable.
int sync_parent(const std::string& path) {
  const Descriptor parent(::open((path + "/..").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return parent.get() < 0 ? errno : result(::fsync(parent.get()));
}

}  // namespace

std::unique_ptr<Directory> open_directory(const std::string& path, Sync sync, std::string& problem) {
  const auto refuse = [&](const std::string& why) {
    problem = "the directory " + path + " cannot be used: " + why;
    return nullptr;
  };
  if (::mkdir(path.c_str(), 0700) == 0) {
    if (const int error = sync == Sync::kNever ? 0 : sync_parent(path); error != 0) return refuse(std::strerror(error));
  } else if (errno != EEXIST) {
    return refuse(std::strerror(errno));
  }
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return refuse(std::strerror(errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return refuse(errno == EWOULDBLOCK ? "another replica uses it; give each replica its own directory"
                                       : std::strerror(errno));
  }
  return std::make_unique<SystemDirectory>(path, std::move(fd), sync);
}

}  // namespace replicated
