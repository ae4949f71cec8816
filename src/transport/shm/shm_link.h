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

/// Shows an endpoint's peers whether it sleeps. The doorbell is in a page that the endpoint writes and all of its peers
/// read.
struct Doorbell {
  std::atomic<uint32_t> sleep;  ///< counts up when the endpoint falls asleep and when it wakes; odd while asleep
};
inline constexpr size_t kDoorbellBytes = 4096;
/// Takes the place of a peer's doorbell while that is not mapped: the peer counts as awake.
alignas(64) inline constinit const std::atomic<uint32_t> kNeverAsleep{0};

/// A chunk of the peer's message arena.
struct PeerChunk {
  const std::byte* base = nullptr;
  size_t bytes = 0;
  Mapping mapping;  ///< empty if the peer is this endpoint itself
};

/// One connection, with all state that ends with it.
struct Link {
  Descriptor socket;
  Descriptor process;  ///< the peer's process; watched, because a forked child may keep a dead peer's socket open
  OwnMemory out;       ///< the ring that this endpoint writes
  uint64_t out_start = 0;
  Mapping in;  ///< the ring that this endpoint reads
  Mapping doorbell;
  std::vector<PeerChunk> chunks;   ///< by chunk id
  uint32_t chunk_count = 0;        ///< mapped chunks
  uint64_t chunk_bytes = 0;        ///< sum of their sizes
  uint64_t looked_at = 0;          ///< burst in which messages were read in vain because of an unknown chunk
  std::vector<bool> is_announced;  ///< chunks that the peer knows, by this endpoint's chunk ids
  uint32_t rounds = 0;             ///< rounds of housekeeping since the connection ended
  bool is_initiator = false;       ///< this endpoint has connected; only this side closes an unneeded connection
  bool is_orderly = false;         ///< closed as unneeded, not by death
  bool is_broken = false;          ///< the peer broke the rules of its ring, which is not read any more
  bool told_hold = false;          ///< this endpoint has references, according to its last message to the peer
  bool peer_holds = false;         ///< the peer has references, according to its last message
};

/// An accepted connection before it belongs to a peer.
struct Pending {
  Descriptor socket;
  uint32_t serial = 0;
  PeerProcess process;
  bool is_readable = false;
  bool has_hello = false;
  bool is_owner = false;   ///< the process owns the identity in its hello
  uint64_t parked_ns = 0;  ///< time since which it waits for its turn; 0: it does not wait
  uint64_t retry_ns = 0;
  Message message;
};

/// Another process, and the share of its endpoints in this endpoint.
struct Process {
  PeerProcess name;
  uint32_t peers = 0;  ///< 0: the element is free
  uint32_t chunks = 0;
  uint64_t chunk_bytes = 0;
};
inline constexpr uint32_t kNoProcess = UINT32_MAX;

}  // namespace tern::transport::shm
