// Memory that one process writes and others read: sealed memfds, for their makers and for their readers. A memfd from a
// peer is checked before it is mapped. Transport layer; any thread, no state except the sums below.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

#include <tern/status.h>

#include "base/descriptor.h"

namespace tern::transport::shm {

using base::Descriptor;

/// Owns a mapping. A forked child does not inherit the mapping, and its copy of this object unmaps nothing, because the
/// child may have mapped something else at that address.
class Mapping {
 public:
  Mapping() = default;
  /// `is_peers`: the mapping counts as memory of peers that this process has mapped.
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

/// Zeroed memory that only this mapping can ever write: its memfd is sealed SHRINK, GROW and FUTURE_WRITE.
struct OwnMemory {
  Descriptor fd;  ///< descriptor for readers
  Mapping mapping;
};
/// `bytes` must be a multiple of the page size. `name` is only for /proc.
Result<OwnMemory> make_own_memory(const char* name, size_t bytes);

enum class PeerMemoryKind {
  kRing,   ///< ordinary pages; all are mapped at once, so that the first packets do not fault
  kArena,  ///< huge pages are allowed
};
/// Limits of the memory that all endpoints of a process map from peers: half of the mappings that the kernel gives a
/// process (vm.max_map_count, 65530) and of its address space (128 TiB). The other half is left to the program.
inline constexpr size_t kPeerMappingsMax = 32768;
inline constexpr size_t kPeerMappedBytesMax = size_t{64} << 40;
/// Maps a peer's memory for reading. kRefused: the memory is not a memfd of exactly `bytes` bytes that cannot shrink
/// and that only its maker's mapping can write. kNoMemory: the mapping would exceed the limits above.
Result<Mapping> map_peer_memory(const Descriptor& fd, size_t bytes, PeerMemoryKind kind);

/// Returns the status that names the resource that is short, if `error` (errno) is a shortage; otherwise `otherwise`.
Status shortage_or(int error, Status otherwise);

}  // namespace tern::transport::shm
