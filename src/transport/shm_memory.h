// Memory that one process writes and others read: a sealed memfd, from its maker's and from a reader's side.
// Transport room; any thread, no state. What a peer hands over is checked before it is mapped.
#pragma once

#include <sys/types.h>
#include <unistd.h>

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

/// A mapping; unmapped with this object. A forked child does not inherit it, and its copy of this object unmaps
/// nothing: at that address the child may have put something else.
class Mapping {
 public:
  Mapping() = default;
  /// `is_peers`: it counts among the memory of peers that this process has mapped.
  Mapping(std::byte* data, size_t bytes, bool is_peers) : data_(data), bytes_(bytes), is_peers_(is_peers) {}
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      is_peers_ = other.is_peers_;
      maker_ = other.maker_;
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
  bool is_peers_ = false;
  pid_t maker_ = ::getpid();
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
/// What a process maps of all its endpoints' peers: half of the mappings that the kernel gives a process
/// (vm.max_map_count, 65530) and of its address space (128 TiB). Peers take the rest of the program nothing.
inline constexpr size_t kPeerMappingsMax = 32768;
inline constexpr size_t kPeerMappedBytesMax = size_t{64} << 40;
/// Maps a peer's memory to be read. Refused unless it is a memfd of exactly `bytes` that can neither shrink nor be
/// written by anybody but the mapping that its maker has, and beyond the limits above.
Result<Mapping> map_peer_memory(const Descriptor& fd, size_t bytes, PeerMemoryKind kind);

/// What a failed system call means to the user, where it is a shortage; else `otherwise`.
Status shortage_or(int error, Status otherwise);

}  // namespace tern::transport::shm
