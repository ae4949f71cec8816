// Peers: their places, the stages of their lives, and the shares of their processes and users. See shm.h.
#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/try.h"
#include "transport/shm/shm.h"

namespace tern::transport {

using shm::MessageType;
using shm::SendResult;

namespace {

constexpr Status kOtherVersion(Code::kMisuse,
                               "shm: the peer's data-path address is not that of a shm endpoint of this version: both "
                               "sides must run the same version of the transport");
constexpr Status kNoPeerMemory(Code::kNoMemory, "shm: no memory for another peer: free some, or end sessions");

}  // namespace

Result<PeerId> ShmImpl::connect(std::span<const std::byte> address, std::string_view /*host*/) {
  shm::Identity identity{};
  if (address.size() == identity.size()) std::copy(address.begin(), address.end(), identity.begin());
  if (!shm::is_of_this_version(identity)) return kOtherVersion;
  // The peer may have closed its last connection and made a new one since the last look.
  pump(0, false);
  if (const auto known = by_identity_.find(identity); known != by_identity_.end()) {
    Peer& peer = *peers_[known->second];
    if (peer.references++ == 0) {
      peer.reconnects = 0;
      unsettle(peer);
    }
    return peer.id;
  }
  auto made = new_peer(identity);
  if (!made.ok()) return made.status();
  Peer& peer = **made;
  peer.references = 1;
  const Status status = start_attempt(peer);
  if (!status.ok() && status.code() != Code::kQueueFull) {
    free_peer(peer);
    return status;
  }
  return peer.id;
}

void ShmImpl::disconnect(PeerId id) {
  Peer& peer = *peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references == 0) unsettle(peer);
}

/// kUnavailable: peers_max peers exist. kNoMemory.
Result<ShmImpl::Peer*> ShmImpl::new_peer(const shm::Identity& identity) {
  if (free_ids_.empty()) {
    if (peers_.size() >= options_.peers_max) {
      return Status(Code::kUnavailable, "shm: Shm::Options::peers_max peers are connected: raise it, or end sessions");
    }
    if (!add_peer()) return kNoPeerMemory;
  }
  Peer& peer = *peers_[free_ids_.back()];
  const PeerId id = free_ids_.back();
  if (!base::try_grow([&] { by_identity_.insert_or_assign(identity, id); })) return kNoPeerMemory;
  free_ids_.pop_back();
  peer.id = id;
  peer.identity = identity;
  peer.references = 0;
  peer.reconnects = 0;
  peer.attempt_since_ns = 0;
  set_stage(peer, Stage::kConnecting);
  return &peer;
}

/// Adds a free peer, and reserves its element in every list. False: there is no memory.
bool ShmImpl::add_peer() {
  const size_t count = peers_.size() + 1;
  for (std::vector<PeerId>* list : {&free_ids_, &attempts_, &deserted_, &closing_, &unsettled_, &unheard_, &taken_}) {
    if (!base::try_reserve(*list, count)) return false;
  }
  if (!base::try_reserve(peers_, count) || !base::try_reserve(touched_, count) || !base::try_reserve(others_, count) ||
      !base::try_reserve(processes_, count)) {
    return false;
  }
  std::unique_ptr<Peer> peer(new (std::nothrow) Peer);
  if (peer == nullptr) return false;
  peer->doorbell = &shm::kNeverAsleep;
  free_ids_.push_back(static_cast<PeerId>(peers_.size()));
  peers_.push_back(std::move(peer));
  touched_.resize(count);
  return true;
}

void ShmImpl::free_peer(Peer& peer) {
  close_link(peer);
  discharge(peer);
  if (const auto at = by_identity_.find(peer.identity); at != by_identity_.end() && at->second == peer.id)
    by_identity_.erase(at);
  std::erase(attempts_, peer.id);
  if (peer.is_deserted) std::erase(deserted_, peer.id);
  peer.is_deserted = false;
  set_stage(peer, Stage::kFree);
  free_ids_.push_back(peer.id);
}

void ShmImpl::set_stage(Peer& peer, Stage stage) {
  connecting_ -= peer.stage == Stage::kConnecting;
  connecting_ += stage == Stage::kConnecting;
  if (stage == Stage::kConnecting) connecting_rounds_ = 0;
  peer.stage = stage;
  housekeep_soon();
}

/// Makes housekeeping look at who needs the connection.
void ShmImpl::unsettle(Peer& peer) {
  if (!peer.is_unsettled) unsettled_.push_back(peer.id);
  peer.is_unsettled = true;
  housekeep_soon();
}

/// Tells the peer when the last reference here has gone or the first has come, and closes a connection that neither
/// side needs.
void ShmImpl::settle_references(Peer& peer) {
  Link& link = peer.link;
  const bool holds = peer.references != 0;
  switch (peer.stage) {
    case Stage::kFree:
    case Stage::kHungUp:
      return;
    case Stage::kDead:
      if (!holds) free_peer(peer);
      return;
    case Stage::kConnecting:
      if (!holds && !link.socket) free_peer(peer);
      return;
    case Stage::kReady:
      break;
  }
  if (!link.socket) {  // the peer is this endpoint
    link.is_orderly = true;
    if (!holds) hang_up(peer);
    return;
  }
  if (holds != link.told_hold) {
    const auto sent = shm::send_plain(link.socket.get(), holds ? MessageType::kHold : MessageType::kRelease);
    counters_.system_calls++;
    if (sent == SendResult::kGone) return;
    if (sent != SendResult::kSent) return unsettle(peer);
    link.told_hold = holds;
  }
  if (holds || link.peer_holds || !link.is_initiator) return;
  const SendResult sent = shm::send_plain(link.socket.get(), MessageType::kBye);
  if (sent == SendResult::kFull || sent == SendResult::kShort) return unsettle(peer);
  link.is_orderly = true;
  hang_up(peer);
}

// --- Shares of processes and users -----------------------------------------------------------------------------------

/// Counts the peer among the endpoints of its process. kUnavailable: that process, or its user, has its full share.
Status ShmImpl::charge(Peer& peer, const shm::PeerProcess& name) {
  if (name.pid == pid_) return {};
  uint32_t own = kNoProcess, vacant = kNoProcess, of_user = 0;
  for (uint32_t i = 0; i < processes_.size(); i++) {
    const Process& process = processes_[i];
    if (process.peers == 0) {
      vacant = i;
    } else if (process.name.uid == name.uid) {
      of_user += process.peers;
      if (process.name.pid == name.pid) own = i;
    }
  }
  if (own != kNoProcess && own == peer.process) return {};
  if (own != kNoProcess && processes_[own].peers >= process_peers_max_) {
    return {Code::kUnavailable,
            "shm: Shm::Options::process_peers_max endpoints of the peer's process are connected: raise it, or end "
            "sessions"};
  }
  if (!shm::is_own_user(name) && of_user >= std::max(options_.peers_max / 2, 1u)) {
    return {Code::kUnavailable, "shm: another user's endpoints have half of Shm::Options::peers_max: raise it"};
  }
  discharge(peer);
  if (own == kNoProcess) {
    own = vacant;
    if (own == kNoProcess) {
      own = static_cast<uint32_t>(processes_.size());
      processes_.emplace_back();
    }
    processes_[own] = {name, 0, 0, 0};
  }
  processes_[own].peers++;
  peer.process = own;
  return {};
}

/// Must be called only when nothing of the peer is mapped.
void ShmImpl::discharge(Peer& peer) {
  if (peer.process != kNoProcess) processes_[peer.process].peers--;
  peer.process = kNoProcess;
}

bool ShmImpl::may_map_chunk(const Peer& peer, uint64_t bytes) const {
  const Link& link = peer.link;
  if (bytes == 0 || bytes > kPeerChunkBytesMax - link.chunk_bytes) return false;
  if (chunks_ >= kAllChunksMax || bytes > kAllChunkBytesMax - chunk_bytes_) return false;
  if (peer.process == kNoProcess) return true;
  const Process& process = processes_[peer.process];
  return process.chunks < kProcessChunksMax && bytes <= kProcessChunkBytesMax - process.chunk_bytes;
}

void ShmImpl::count_chunks(const Peer& peer, int64_t chunks, int64_t bytes) {
  chunks_ += static_cast<uint32_t>(chunks);
  chunk_bytes_ += static_cast<uint64_t>(bytes);
  if (peer.process == kNoProcess) return;
  Process& process = processes_[peer.process];
  process.chunks += static_cast<uint32_t>(chunks);
  process.chunk_bytes += static_cast<uint64_t>(bytes);
}

}  // namespace tern::transport
