// Shared memory between processes (or threads) of one host. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class ShmImpl;
}

/// A pair of endpoints has a ring of cache-line cells in a sealed memfd for each direction, which only one side writes.
/// A payload that is too large for cells is copied out of the sender's message buffer.
struct Shm {
  static constexpr std::string_view kName = "shm";  ///< the peers' endpoints must have the same
  using Impl = transport::ShmImpl;                  ///< for the library

  /// For Rpc::create(). Out of range: kMisuse.
  struct Options {
    /// Cells of 64 B in the ring towards each peer; a power of two, 256 to 65536. 1024 hold 1024 small packets.
    uint32_t ring_cells = 1024;
    /// Most peers; further peers are refused. Each peer's rings are mapped into this process.
    uint32_t peers_max = 4096;
    /// Most peers that are endpoints of one other process, so that no process takes all places. All processes of
    /// another user together may have half of peers_max. 0: a quarter of peers_max, but at most an eighth of this
    /// process's limit of descriptors, because each peer takes two.
    uint32_t process_peers_max = 0;
    /// True: accept endpoints of other users as peers; both sides must allow it. False: connections from and to other
    /// users, including root, are refused, because each side maps memory that the other can fill and read.
    bool allow_other_users = false;
    /// True: handlers of single-packet requests read the ring in place of a private copy. Only for trusted peers,
    /// because a peer can change a request while it is handled.
    bool trust_peers = false;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"ring_cells", &Options::ring_cells, 256, 65536},
                        OptionField{"peers_max", &Options::peers_max, 1},
                        OptionField{"process_peers_max", &Options::process_peers_max},
                        OptionField{"allow_other_users", &Options::allow_other_users},
                        OptionField{"trust_peers", &Options::trust_peers});
    }
  };
};

}  // namespace tern
