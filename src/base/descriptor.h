// An owner of a file descriptor, and a function that makes a descriptor nonblocking. Base layer; any thread, no state.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tern::base {

/// Sets O_NONBLOCK on a descriptor that other code has opened. Returns false on failure; errno says why.
[[nodiscard]] inline bool set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/// Closes its descriptor when it is destroyed or when it takes another one.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes ownership of `fd`. A negative number means no descriptor, so that the result of a system call can be passed.
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
  /// Returns -1 if there is no descriptor.
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace tern::base
