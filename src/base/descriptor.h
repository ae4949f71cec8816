// The owner of a file descriptor, and a flag of one. Base layer; any thread, no state.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tern::base {

/// For descriptors that somebody else has opened. False: errno says why.
[[nodiscard]] inline bool set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/// Closes its descriptor when it is destroyed or takes another one.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes ownership of `fd`; a negative number means none, so that the result of a system call fits.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  /// -1: it has none.
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace tern::base
