// Memory that one process writes and others read: a sealed memfd, from its maker's and from a reader's side.
// Transport room; any thread, no state. What a peer hands over is checked before it is mapped.
#pragma once

#include <cstddef>
#include <utility>

#include <tern/status.h>

namespace tern::transport::shm {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
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
  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

/// A mapping; unmapped with this object, and never inherited by a forked child.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void reset();

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Zeroed memory that only its maker's mapping can ever write: sealed SHRINK, GROW and FUTURE_WRITE.
struct OwnMemory {
  Descriptor fd;  ///< to give to readers
  Mapping mapping;
};
/// `bytes` is a multiple of the page size. `name` is seen in /proc only.
Result<OwnMemory> make_own_memory(const char* name, size_t bytes);

enum class PeerMemoryKind {
  kRing,   ///< ordinary pages; all are mapped at once, so that the first packets do not fault
  kArena,  ///< huge pages are allowed
};
/// Maps a peer's memory to be read. Refused unless it is a memfd of exactly `bytes` that can neither shrink nor be
/// written by anybody but the mapping that its maker has.
Result<Mapping> map_peer_memory(const Descriptor& fd, size_t bytes, PeerMemoryKind kind);

/// What a failed system call means to the user, where it is a shortage; else `otherwise`.
Status shortage_or(int error, Status otherwise);

}  // namespace tern::transport::shm
