// An endpoint's records of its connections and of the processes at their other ends. Plain data. See shm.h.
// Transport layer; owned by the endpoint's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_socket.h"

namespace tern::transport::shm {

/// A page that only its endpoint writes and all its peers see.
struct Doorbell {
  std::atomic<uint32_t> sleep;  ///< counts up at falling asleep and at waking: odd while asleep
};
inline constexpr size_t kDoorbellBytes = 4096;
/// The doorbell of a peer whose own is not mapped.
alignas(64) inline constinit const std::atomic<uint32_t> kNeverAsleep{0};

/// A chunk of the peer's message arena.
struct PeerChunk {
  const std::byte* base = nullptr;
  size_t bytes = 0;
  Mapping mapping;  ///< empty if the peer is this endpoint itself
};

/// One connection: everything that ends with it.
struct Link {
  Descriptor socket;
  Descriptor process;  ///< watched, because a forked child may keep the socket of a dead peer open
  OwnMemory out;       ///< the ring that this endpoint writes
  uint64_t out_start = 0;
  Mapping in;  ///< the ring that this endpoint reads
  Mapping doorbell;
  std::vector<PeerChunk> chunks;   ///< by chunk id
  uint32_t chunk_count = 0;        ///< mapped ones
  uint64_t chunk_bytes = 0;        ///< their sum
  uint64_t looked_at = 0;          ///< burst in which messages were read in vain because of an unknown chunk
  std::vector<bool> is_announced;  ///< by this endpoint's chunk ids
  uint32_t rounds = 0;             ///< of housekeeping since the connection ended
  bool is_initiator = false;       ///< this endpoint has connected; only that side closes an unneeded connection
  bool is_orderly = false;         ///< closed as unneeded, not by death
  bool is_broken = false;          ///< the peer broke the rules of its ring, which is not read any more
  bool told_hold = false;          ///< whether this endpoint has references, as last told to the peer
  bool peer_holds = false;         ///< whether the peer has references, as it last told
};

/// An accepted connection before it belongs to a peer.
struct Pending {
  Descriptor socket;
  uint32_t serial = 0;
  PeerProcess process;
  bool is_readable = false;
  bool has_hello = false;
  bool is_owner = false;   ///< of the identity in its hello
  uint64_t parked_ns = 0;  ///< since when it waits for its turn; 0: it does not
  uint64_t retry_ns = 0;
  Message message;
};

/// Another process, and what its endpoints have of this one.
struct Process {
  PeerProcess name;
  uint32_t peers = 0;  ///< 0: the element is free
  uint32_t chunks = 0;
  uint64_t chunk_bytes = 0;
};
inline constexpr uint32_t kNoProcess = UINT32_MAX;

}  // namespace tern::transport::shm
