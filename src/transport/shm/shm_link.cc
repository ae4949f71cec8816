// Links: connecting to a peer, handing over memory, messages, the end of a connection. See shm.h.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "base/try.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_closer.h"

namespace tern::transport {

using shm::Message;
using shm::MessageType;
using shm::ReceiveResult;
using shm::SendResult;

namespace {

std::atomic<uint64_t>* consumed_of(const shm::Mapping& ring) {
  return &reinterpret_cast<shm::RingControl*>(ring.data())->consumed;
}

}  // namespace

Status ShmImpl::prepare_ring(Peer& peer) {
  Link& link = peer.link;
  if (link.out.mapping) return {};
  if (!base::fill_random(&link.out_start, sizeof(link.out_start))) {
    return {Code::kUnavailable,
            "shm: the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox"};
  }
  link.out_start >>= 1;  // below 2^63, so that it never overflows
  auto ring = shm::make_own_memory("tern-ring", shm::region_bytes(options_.ring_cells));
  if (!ring.ok()) return ring.status();
  link.out = std::move(*ring);
  return {};
}

/// Starts an attempt to connect. kQueueFull: the peer is on attempts_, and housekeeping tries again.
Status ShmImpl::start_attempt(Peer& peer) {
  if (peer.identity == identity_) return link_to_self(peer);
  const Status status = try_attempt(peer);
  if (status.code() != Code::kQueueFull) return status;
  const uint64_t at = now();
  if (peer.attempt_since_ns == 0) peer.attempt_since_ns = at;
  if (at - peer.attempt_since_ns >= kAttemptNsMax) {
    return {Code::kPeerUnreachable, "shm: the peer does not accept connections"};
  }
  attempts_.push_back(peer.id);
  return status;
}

/// Makes one attempt. It makes the ring last, for a peer that exists, because the ring costs ten times as much as the
/// other steps.
Status ShmImpl::try_attempt(Peer& peer) {
  auto socket = shm::connect_to(peer.identity);
  if (!socket.ok()) return socket.status();
  shm::PeerProcess process;
  if (!shm::peer_process(socket->get(), process) || (!options_.allow_other_users && !shm::is_own_user(process))) {
    counters_.peers_refused++;
    shm::close_elsewhere(std::move(*socket));
    return {Code::kRefused,
            "shm: the endpoint at this address belongs to another user: run both sides as one user, or set "
            "Shm::Options::allow_other_users on both"};
  }
  if (Status status = charge(peer, process); !status.ok()) {
    counters_.peers_refused++;
    return status;
  }
  bool is_dead = false;
  shm::Descriptor watched = shm::watch_process(socket->get(), process, is_dead);
  if (is_dead) return {Code::kPeerUnreachable, "shm: the peer's process has ended"};
  if (Status status = prepare_ring(peer); !status.ok()) return status;
  Link& link = peer.link;
  const uint32_t serial = ++last_serial_;
  if (!watch(socket->get(), Watched::kSocket, serial, peer.id)) {
    return {Code::kNoMemory, "shm: the system watches no more descriptors: raise fs.epoll.max_user_watches"};
  }
  const shm::Hello hello = {identity_, link.out_start, options_.ring_cells, peer.references != 0};
  const SendResult sent = shm::send_hello(socket->get(), hello, link.out.fd.get(), doorbell_.fd.get());
  if (sent != SendResult::kSent) {
    unwatch(*socket);
    if (sent == SendResult::kGone && !shm::is_own_user(process)) {
      return {Code::kRefused,
              "shm: the endpoint at this address belongs to another user and has closed the connection: set "
              "Shm::Options::allow_other_users there, too"};
    }
    // The peer closes connections whose hello has not come yet if one process has too many of them. If it has ended
    // instead, the next attempt finds that.
    return {Code::kQueueFull, "shm: the hello cannot be sent now; try again"};
  }
  peer.attempt_since_ns = 0;
  peer.serial = serial;
  link.is_initiator = true;
  link.told_hold = peer.references != 0;
  link.socket = std::move(*socket);
  link.process = std::move(watched);
  if (link.process) watch(link.process.get(), Watched::kProcess, serial, peer.id);
  return {};
}

/// Links the endpoint to itself: the ring that leads out also leads in.
Status ShmImpl::link_to_self(Peer& peer) {
  if (Status status = prepare_ring(peer); !status.ok()) return status;
  const shm::Hello hello = {identity_, peer.link.out_start, options_.ring_cells, false};
  attach(peer, hello, peer.link.out.mapping.data(), reinterpret_cast<Doorbell*>(doorbell_.mapping.data()));
  return {};
}

/// Maps the memory that came with the peer's hello, and makes the ring to the peer if there is none yet.
Status ShmImpl::link_up(Peer& peer, Message& message) {
  const shm::Hello& hello = message.hello;
  if (!shm::is_valid_cell_count(hello.ring_cells) || hello.ring_start > UINT64_MAX / 2) {
    return {Code::kRefused, "shm: the peer's hello is not valid"};
  }
  auto ring =
      shm::map_peer_memory(message.descriptors[0], shm::region_bytes(hello.ring_cells), shm::PeerMemoryKind::kRing);
  if (!ring.ok()) return ring.status();
  auto doorbell = shm::map_peer_memory(message.descriptors[1], shm::kDoorbellBytes, shm::PeerMemoryKind::kRing);
  if (!doorbell.ok()) return doorbell.status();
  if (Status status = prepare_ring(peer); !status.ok()) return status;
  Link& link = peer.link;
  link.in = std::move(*ring);
  link.doorbell = std::move(*doorbell);
  attach(peer, hello, link.in.data(), reinterpret_cast<const Doorbell*>(link.doorbell.data()));
  return {};
}

void ShmImpl::attach(Peer& peer, const shm::Hello& hello, const std::byte* in, const Doorbell* doorbell) {
  Link& link = peer.link;
  const auto* control = reinterpret_cast<const shm::RingControl*>(in);
  peer.out.attach(link.out.mapping.data(), options_.ring_cells, link.out_start, &control->consumed);
  peer.in.attach(in, hello.ring_cells, hello.ring_start, consumed_of(link.out.mapping));
  peer.in.publish(peer.in.position);
  peer.doorbell = &doorbell->sleep;
  peer.woken_sleep = 0;
  peer.is_refused = false;
  peer.is_unannounced = false;
  peer.attempt_since_ns = 0;
  link.peer_holds = hello.holds;
  set_stage(peer, Stage::kReady);
  poll_from_now_on(peer);
  unsettle(peer);
}

/// Makes an accepted connection the peer's link. False: the connection is refused, and the peer has not changed.
bool ShmImpl::accept_as(Peer& peer, Pending& pending) {
  Link& link = peer.link;
  bool is_dead = false;
  shm::Descriptor process = shm::watch_process(pending.socket.get(), pending.process, is_dead);
  if (is_dead || !link_up(peer, pending.message).ok()) return false;
  std::erase(attempts_, peer.id);
  if (peer.is_deserted) std::erase(deserted_, peer.id);
  peer.is_deserted = false;
  end_connection(peer);
  link.is_initiator = false;
  link.socket = std::move(pending.socket);
  link.process = std::move(process);
  link.told_hold = peer.references != 0;
  peer.serial = ++last_serial_;
  const bool is_watched = watch(link.socket.get(), Watched::kSocket, peer.serial, peer.id);
  if (link.process) watch(link.process.get(), Watched::kProcess, peer.serial, peer.id);
  const shm::Hello hello = {identity_, link.out_start, options_.ring_cells, link.told_hold};
  if (!is_watched ||
      shm::send_hello(link.socket.get(), hello, link.out.fd.get(), doorbell_.fd.get()) != SendResult::kSent) {
    hang_up(peer);
  }
  link.out.fd.reset();
  return true;
}

/// Closes the link's socket. A forked child closes it without the shutdown, which would end the parent's connection.
void ShmImpl::end_connection(Peer& peer) {
  Link& link = peer.link;
  // close() alone does not end the connection while a forked child has a copy of the socket.
  if (link.socket && ::getpid() == pid_) ::shutdown(link.socket.get(), SHUT_RDWR);
  unwatch(link.socket);
  unwatch(link.process);
}

/// Unmaps the memory of a link. Must not be called while a visitor may read the peer's memory.
void ShmImpl::close_link(Peer& peer) {
  poll_no_more(peer);
  end_connection(peer);
  count_chunks(peer, -int64_t{peer.link.chunk_count}, -static_cast<int64_t>(peer.link.chunk_bytes));
  peer.link = {};
  peer.out = {};
  peer.in = {};
  peer.doorbell = &shm::kNeverAsleep;
}

/// Called when the connection has ended, by either side. Housekeeping closes the link when its ring has been read.
void ShmImpl::hang_up(Peer& peer) {
  if (peer.stage == Stage::kConnecting && !peer.is_deserted) {
    // A peer that was connecting to this endpoint at the same moment may have dropped this attempt in favour of its
    // own, which then waits in the backlog.
    end_connection(peer);
    peer.serial = ++last_serial_;
    peer.is_deserted = true;
    peer.deserted_until = accepted_ + shm::kListenBacklog + 1;
    peer.deserted_backlog = backlogs_read_;
    peer.deserted_ns = now();
    deserted_.push_back(peer.id);
    return housekeep_soon();
  }
  if (peer.stage != Stage::kConnecting && peer.stage != Stage::kReady) return;
  end_connection(peer);
  peer.serial = ++last_serial_;
  if (!peer.link.is_orderly) by_identity_.erase(peer.identity);
  set_stage(peer, Stage::kHungUp);
  closing_.push_back(peer.id);
}

// --- Messages of a link ----------------------------------------------------------------------------------------------

/// Reads at most `limit` messages, so that a peer that never stops sending cannot occupy this endpoint. Returns the
/// number of messages read.
uint32_t ShmImpl::read_messages(Peer& peer, uint32_t limit) {
  for (uint32_t i = 0; i < limit; i++) {
    if (!peer.link.socket) return i;
    Message message;
    counters_.system_calls++;
    switch (shm::receive_message(peer.link.socket.get(), message)) {
      case ReceiveResult::kNothing:
        return i;
      case ReceiveResult::kHangUp:
        hang_up(peer);
        return i;
      case ReceiveResult::kMessage:
        if (handle_message(peer, message)) continue;
        [[fallthrough]];
      case ReceiveResult::kMalformed:
        counters_.peers_refused++;
        hang_up(peer);
        return i;
    }
  }
  return limit;
}

/// Handles a message. False: the peer broke the protocol, or asks for more than its share.
bool ShmImpl::handle_message(Peer& peer, Message& message) {
  if (message.type == MessageType::kHello) {
    if (peer.stage != Stage::kConnecting || message.hello.identity != peer.identity) return false;
    if (!link_up(peer, message).ok()) return false;
    peer.link.out.fd.reset();
    return true;
  }
  if (peer.stage != Stage::kReady) return false;
  switch (message.type) {
    case MessageType::kHello:
    case MessageType::kWake:
      break;
    case MessageType::kChunk:
      return map_chunk(peer, message);
    case MessageType::kHold:
    case MessageType::kRelease:
      peer.link.peer_holds = message.type == MessageType::kHold;
      unsettle(peer);
      break;
    case MessageType::kBye:
      peer.link.is_orderly = true;
      break;
  }
  return true;
}

bool ShmImpl::map_chunk(Peer& peer, Message& message) {
  Link& link = peer.link;
  if (message.chunk_id >= kPeerChunksMax || !may_map_chunk(peer, message.chunk_bytes)) return false;
  if (message.chunk_id >= link.chunks.size()) {
    if (!base::try_reserve(link.chunks, message.chunk_id + size_t{1})) return false;
    link.chunks.resize(message.chunk_id + size_t{1});
  }
  PeerChunk& chunk = link.chunks[message.chunk_id];
  if (chunk.base != nullptr) return false;
  auto mapping = shm::map_peer_memory(message.descriptors[0], message.chunk_bytes, shm::PeerMemoryKind::kArena);
  if (!mapping.ok()) return false;
  chunk.mapping = std::move(*mapping);
  chunk.base = chunk.mapping.data();
  chunk.bytes = chunk.mapping.bytes();
  link.chunk_count++;
  link.chunk_bytes += chunk.bytes;
  count_chunks(peer, 1, static_cast<int64_t>(chunk.bytes));
  return true;
}

}  // namespace tern::transport
