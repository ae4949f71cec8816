// Shared memory between processes (or threads) of one host. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tern {
namespace transport {
class ShmImpl;
}

/// Rings of cache-line cells in sealed memfds, one per direction and pair of endpoints, each written by one
/// side only. Payloads too large for cells are copied once, out of the sender's message buffer.
struct Shm {
  static constexpr std::string_view kName = "shm";  ///< the peers' endpoints must have the same
  using Impl = transport::ShmImpl;                  ///< for the library

  /// For Rpc::create(). Out of range: kMisuse.
  struct Options {
    /// Cells of 64 B in the ring towards each peer; a power of two, 256 to 65536. 1024 hold 1024 small packets.
    uint32_t ring_cells = 1024;
    /// Peers beyond this many are refused (each maps its rings into this process).
    uint32_t peers_max = 4096;
    /// How many of them may be endpoints of one other process, so that no process takes all; of all processes of
    /// another user, half of peers_max. 0: a quarter of peers_max, and no more than take a quarter of this process's
    /// descriptors (two each).
    uint32_t process_peers_max = 0;
    /// Endpoints of other users are peers, too. Off: connections from and to them are refused, also those of root, as
    /// each side maps memory that the other can fill and read. Both sides have to allow it.
    bool allow_other_users = false;
    /// Handlers of single-packet requests read the ring itself instead of a private copy. Only for peers that are
    /// trusted not to change a request while it is being handled.
    bool trust_peers = false;
  };
};

}  // namespace tern
