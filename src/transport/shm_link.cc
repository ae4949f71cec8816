// Between endpoints, besides packets: finding each other, handing over memory, ends of peers. See shm.h.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "transport/shm.h"

namespace tern::transport {

using shm::Message;
using shm::MessageType;
using shm::ReceiveResult;
using shm::SendResult;

namespace {

alignas(64) constinit const std::atomic<uint32_t> kNeverAsleep{0};

/// More than a socket's queue holds: a peer that never stops sending does not keep us.
constexpr int kMessagesPerVisit = 512;

std::atomic<uint64_t>* consumed_of(const shm::Mapping& ring) {
  return &reinterpret_cast<shm::RingControl*>(ring.data())->consumed;
}

}  // namespace

// --- peers ---------------------------------------------------------------------------------------------------------

Result<PeerId> ShmImpl::connect(std::span<const std::byte> address, std::string_view /*host*/) {
  shm::Identity identity;
  if (address.size() != identity.size()) {
    return Status(Code::kRefused, "shm: the peer's address is not one of this transport's version");
  }
  std::copy(address.begin(), address.end(), identity.begin());
  // The peer may have closed its last connection and made a new one since we looked.
  const timespec none = {};
  pump(&none, false);
  if (const auto known = by_identity_.find(identity); known != by_identity_.end()) {
    Peer& peer = *peers_[known->second];
    if (peer.references++ == 0) {
      unsettled_.push_back(peer.id);
      housekeep_soon();
    }
    return peer.id;
  }
  Peer* const peer = new_peer(identity);
  if (peer == nullptr) {
    return Status(Code::kUnavailable, "shm: Options::peers_max peers are connected: raise it or end sessions");
  }
  peer->references = 1;
  const Status status = identity == identity_ ? link_to_self(*peer) : start_attempt(*peer);
  if (!status.ok() && status.code() != Code::kQueueFull) {
    free_peer(*peer);
    return status;
  }
  return peer->id;
}

void ShmImpl::disconnect(PeerId id) {
  Peer& peer = *peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references != 0) return;
  unsettled_.push_back(id);
  housekeep_soon();
}

ShmImpl::Peer* ShmImpl::new_peer(const shm::Identity& identity) {
  if (free_ids_.empty()) {
    if (peers_.size() >= options_.peers_max) return nullptr;
    free_ids_.push_back(static_cast<PeerId>(peers_.size()));
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->doorbell = &kNeverAsleep;
    touched_.resize(peers_.size());
  }
  Peer& peer = *peers_[free_ids_.back()];
  peer.id = free_ids_.back();
  free_ids_.pop_back();
  peer.identity = identity;
  peer.references = 0;
  by_identity_[identity] = peer.id;
  set_stage(peer, Stage::kConnecting);
  return &peer;
}

void ShmImpl::free_peer(Peer& peer) {
  close_link(peer);
  if (const auto at = by_identity_.find(peer.identity); at != by_identity_.end() && at->second == peer.id)
    by_identity_.erase(at);
  std::erase(attempts_, peer.id);
  set_stage(peer, Stage::kFree);
  free_ids_.push_back(peer.id);
}

void ShmImpl::set_stage(Peer& peer, Stage stage) {
  connecting_ -= peer.stage == Stage::kConnecting;
  connecting_ += stage == Stage::kConnecting;
  peer.stage = stage;
  housekeep_soon();
}

// --- links ---------------------------------------------------------------------------------------------------------

Status ShmImpl::prepare_ring(Peer& peer) {
  Link& link = peer.link;
  if (link.out.mapping) return {};
  if (::getrandom(&link.out_start, sizeof link.out_start, 0) != sizeof link.out_start) {
    return {Code::kUnavailable, "shm: getrandom is refused here; allow it in the sandbox"};
  }
  link.out_start >>= 1;  // counts up without overflow
  auto ring = shm::make_own_memory("tern-ring", shm::region_bytes(options_.ring_cells));
  if (!ring.ok()) return ring.status();
  link.out = std::move(*ring);
  return {};
}

/// kQueueFull: to be tried again, and on attempts_.
Status ShmImpl::start_attempt(Peer& peer) {
  Status status = prepare_ring(peer);
  if (!status.ok()) return status;
  auto socket = shm::connect_to(peer.identity);
  shm::PeerProcess process;
  bool is_dead = false;
  Link& link = peer.link;
  if (socket.ok()) {
    if (!shm::peer_process(socket->get(), process) || !shm::is_acceptable(process)) {
      counters_.peers_refused++;
      return {Code::kRefused,
              "shm: the endpoint at this address belongs to another user; only the same user and root are served"};
    }
    link.process = shm::watch_process(socket->get(), process, is_dead);
    if (is_dead) return {Code::kPeerUnreachable, "shm: the peer's process has ended"};
    const shm::Hello hello = {identity_, link.out_start, options_.ring_cells, peer.references != 0};
    const SendResult sent = shm::send_hello(socket->get(), hello, link.out.fd.get(), doorbell_.fd.get());
    if (sent == SendResult::kGone) return {Code::kPeerUnreachable, "shm: the peer has ended"};
    status = sent == SendResult::kSent ? Status()
                                       : Status(Code::kQueueFull, "shm: the system takes no more messages; try again");
  } else {
    status = socket.status();
  }
  if (!status.ok()) {
    link.process.reset();
    if (status.code() == Code::kQueueFull) attempts_.push_back(peer.id);
    return status;
  }
  link.is_initiator = true;
  link.told_hold = peer.references != 0;
  link.socket = std::move(*socket);
  peer.serial = ++last_serial_;
  watch(link.socket.get(), Watched::kSocket, peer.serial, peer.id);
  if (link.process) watch(link.process.get(), Watched::kProcess, peer.serial, peer.id);
  return {};
}

/// The ring that leads out also leads in.
Status ShmImpl::link_to_self(Peer& peer) {
  if (Status status = prepare_ring(peer); !status.ok()) return status;
  const shm::Hello hello = {identity_, peer.link.out_start, options_.ring_cells, false};
  attach(peer, hello, peer.link.out.mapping.data(), reinterpret_cast<Doorbell*>(doorbell_.mapping.data()));
  return {};
}

/// Maps what came with the peer's hello.
Status ShmImpl::link_up(Peer& peer, Message& message) {
  const shm::Hello& hello = message.hello;
  if (!shm::is_valid_cell_count(hello.ring_cells) || hello.ring_start > UINT64_MAX / 2) {
    return {Code::kRefused, "shm: the peer's hello is not valid"};
  }
  auto ring =
      shm::map_peer_memory(message.descriptors[0], shm::region_bytes(hello.ring_cells), shm::PeerMemoryKind::kRing);
  if (!ring.ok()) return ring.status();
  auto doorbell = shm::map_peer_memory(message.descriptors[1], kDoorbellBytes, shm::PeerMemoryKind::kRing);
  if (!doorbell.ok()) return doorbell.status();
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
  peer.in.publish();
  peer.doorbell = &doorbell->sleep;
  peer.woken_sleep = 0;
  peer.is_refused = false;
  link.peer_holds = hello.holds;
  set_stage(peer, Stage::kReady);
  poll_from_now_on(peer);
  unsettled_.push_back(peer.id);
}

/// Makes an accepted connection the peer's link. False: refused, and the peer is as it was.
bool ShmImpl::accept_as(Peer& peer, Pending& pending) {
  Link& link = peer.link;
  bool is_dead = false;
  shm::Descriptor process = shm::watch_process(pending.socket.get(), pending.process, is_dead);
  if (is_dead || !prepare_ring(peer).ok()) return false;
  if (!link_up(peer, pending.message).ok()) return false;
  std::erase(attempts_, peer.id);
  if (link.socket) ::shutdown(link.socket.get(), SHUT_RDWR);
  unwatch(link.socket);
  unwatch(link.process);
  link.is_initiator = false;
  link.socket = std::move(pending.socket);
  link.process = std::move(process);
  link.told_hold = peer.references != 0;
  peer.serial = ++last_serial_;
  watch(link.socket.get(), Watched::kSocket, peer.serial, peer.id);
  if (link.process) watch(link.process.get(), Watched::kProcess, peer.serial, peer.id);
  const shm::Hello hello = {identity_, link.out_start, options_.ring_cells, link.told_hold};
  if (shm::send_hello(link.socket.get(), hello, link.out.fd.get(), doorbell_.fd.get()) != SendResult::kSent)
    hang_up(peer);
  link.out.fd.reset();
  return true;
}

/// Not to be called while a visitor may read the peer's memory.
void ShmImpl::close_link(Peer& peer) {
  poll_no_more(peer);
  if (peer.link.socket) ::shutdown(peer.link.socket.get(), SHUT_RDWR);  // close() is not seen while a child has a copy
  unwatch(peer.link.socket);
  unwatch(peer.link.process);
  peer.link = {};
  peer.out = {};
  peer.in = {};
  peer.doorbell = &kNeverAsleep;
}

/// The connection has ended, by whatever side. The link is closed by housekeeping when its ring has been read.
void ShmImpl::hang_up(Peer& peer) {
  if (peer.stage == Stage::kConnecting) {
    // A peer that was connecting to us at the same moment may have dropped our attempt in favour of its own.
    const uint32_t serial = peer.serial;
    accept_all();
    serve_pending();
    if (peer.stage != Stage::kConnecting || peer.serial != serial) return;
  }
  if (peer.stage != Stage::kConnecting && peer.stage != Stage::kReady) return;
  if (peer.link.socket) ::shutdown(peer.link.socket.get(), SHUT_RDWR);
  unwatch(peer.link.socket);
  unwatch(peer.link.process);
  peer.serial = ++last_serial_;
  if (!peer.link.is_orderly) by_identity_.erase(peer.identity);
  set_stage(peer, Stage::kHungUp);
  closing_.push_back(peer.id);
}

// --- events --------------------------------------------------------------------------------------------------------

void ShmImpl::watch(int fd, Watched what, uint32_t serial, PeerId id) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(what) << 61 | uint64_t{serial & 0x1fffffff} << 32 | id;
  counters_.system_calls++;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  // It was watched as a pending connection. Anything else that fails is want of kernel memory or user watches.
  if (errno != EEXIST || ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) counters_.send_errors++;
}

/// A descriptor of which a forked child has a copy stays in the epoll set when it is closed: it is taken out first.
void ShmImpl::unwatch(shm::Descriptor& fd) {
  if (!fd) return;
  if (::getpid() == pid_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
  fd.reset();
}

/// Takes what has happened to the descriptors, after waiting for it; null: as long as it takes.
void ShmImpl::pump(const timespec* timeout, bool ends_wait) {
  epoll_event events[64];
  counters_.system_calls++;
  int count = ::epoll_pwait2(epoll_.get(), events, 64, timeout, nullptr);
  if (count < 0 &&
      (errno == ENOSYS || errno == EPERM)) {  // before Linux 5.11, or in an old sandbox: whole milliseconds, rounded up
    const int64_t ms =
        timeout == nullptr ? -1 : timeout->tv_sec * int64_t{1000} + (timeout->tv_nsec + 999'999) / 1'000'000;
    count = ::epoll_wait(epoll_.get(), events, 64, static_cast<int>(std::min<int64_t>(ms, 1'000'000'000)));
  }
  has_pumped_ |= ends_wait;
  bool has_pending = false;
  for (int i = 0; i < count; i++) {
    const uint64_t data = events[i].data.u64;
    switch (static_cast<Watched>(data >> 61)) {
      case Watched::kListener:
        accept_all();
        continue;
      case Watched::kWake: {
        uint64_t wakes;
        if (ends_wait && ::read(wake_.get(), &wakes, sizeof wakes) != sizeof wakes) continue;
        continue;
      }
      case Watched::kPending:
        has_pending = true;
        continue;
      case Watched::kSocket:
      case Watched::kProcess:
        break;
    }
    Peer& peer = *peers_[static_cast<PeerId>(data)];
    if ((peer.serial & 0x1fffffff) != ((data >> 32) & 0x1fffffff)) continue;  // of a link that has just been closed
    if (static_cast<Watched>(data >> 61) == Watched::kSocket) {
      read_messages(peer);
    } else {
      hang_up(peer);
    }
  }
  if (has_pending) serve_pending();
}

void ShmImpl::accept_all() {
  while (accept_one()) {
  }
}

/// False: nobody (else) waits.
bool ShmImpl::accept_one() {
  counters_.system_calls++;
  shm::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EINTR || errno == ECONNABORTED) return true;
    if ((errno != EMFILE && errno != ENFILE) || !spare_) return false;
    // A connection that stays in the queue would keep the endpoint awake: it is taken, and refused.
    spare_.reset();
    socket = shm::Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool was_one = static_cast<bool>(socket);
    socket.reset();
    spare_ = shm::Descriptor(::eventfd(0, EFD_CLOEXEC));
    counters_.peers_refused += was_one;
    return was_one;
  }
  Pending pending;
  pending.socket = std::move(socket);
  if (!shm::peer_process(pending.socket.get(), pending.process) || !shm::is_acceptable(pending.process)) {
    counters_.peers_refused++;
    return true;
  }
  if (is_settled(pending)) return true;
  if (pending_.size() >= kPendingMax) {
    counters_.peers_refused++;
    unwatch(pending_.front().socket);
    pending_.erase(pending_.begin());
  }
  pending.serial = ++last_serial_;
  watch(pending.socket.get(), Watched::kPending, pending.serial, 0);
  pending_.push_back(std::move(pending));
  return true;
}

void ShmImpl::serve_pending() {
  std::vector<Pending> waiting = std::exchange(pending_, {});
  for (Pending& pending : waiting) {
    if (!is_settled(pending)) {
      pending_.push_back(std::move(pending));
    } else {
      unwatch(pending.socket);
    }
  }
}

/// True: the connection belongs to a peer now, or is refused. False: keep it, and ask again.
bool ShmImpl::is_settled(Pending& pending) {
  if (!pending.has_hello) {
    counters_.system_calls++;
    const ReceiveResult result = shm::receive_message(pending.socket.get(), pending.message);
    if (result == ReceiveResult::kNothing) return false;
    if (result == ReceiveResult::kHangUp) return true;  // a probe (is_owner_of), or an attempt that was given up
    if (result != ReceiveResult::kMessage || pending.message.type != MessageType::kHello) {
      counters_.peers_refused++;
      return true;
    }
    pending.has_hello = true;
  }
  const shm::Identity& identity = pending.message.hello.identity;
  bool is_busy = false;
  if (identity == identity_ || !is_owner_of(pending, is_busy)) {
    counters_.peers_refused += !is_busy;
    return !is_busy;
  }
  Peer* peer = nullptr;
  if (const auto known = by_identity_.find(identity); known != by_identity_.end()) {
    peer = peers_[known->second].get();
    if (peer->stage == Stage::kReady) read_messages(*peer);  // its end, if this connection is to replace it
    if (peer->stage == Stage::kHungUp && by_identity_.contains(identity)) return false;  // until its link is closed
    if (peer->stage == Stage::kReady) return true;  // it gave this attempt up when it accepted ours
    // Both sides are connecting: the attempt of the smaller identity counts, and one that was not made does not.
    if (peer->stage == Stage::kConnecting && peer->link.socket && identity_ < identity) return true;
    if (peer->stage != Stage::kConnecting) peer = nullptr;
  }
  const bool is_new = peer == nullptr;
  if (is_new) peer = new_peer(identity);
  if (peer != nullptr && accept_as(*peer, pending)) return true;
  counters_.peers_refused++;
  if (is_new && peer != nullptr) free_peer(*peer);
  return true;
}

/// Whether the process that says this hello is the one that listens under the identity it claims: nobody else may take
/// a peer's place. Found out by a connection that says nothing.
bool ShmImpl::is_owner_of(const Pending& pending, bool& is_busy) const {
  auto probe = shm::connect_to(pending.message.hello.identity);
  is_busy = !probe.ok() && probe.status().code() == Code::kQueueFull;
  shm::PeerProcess owner;
  return probe.ok() && shm::peer_process(probe->get(), owner) && owner.pid == pending.process.pid &&
         owner.uid == pending.process.uid;
}

void ShmImpl::read_messages(Peer& peer) {
  for (int i = 0; i < kMessagesPerVisit && peer.link.socket; i++) {
    Message message;
    counters_.system_calls++;
    switch (shm::receive_message(peer.link.socket.get(), message)) {
      case ReceiveResult::kNothing:
        return;
      case ReceiveResult::kHangUp:
        return hang_up(peer);
      case ReceiveResult::kMessage:
        if (handle_message(peer, message)) continue;
        [[fallthrough]];
      case ReceiveResult::kMalformed:
        counters_.peers_refused++;
        return hang_up(peer);
    }
  }
}

/// False: the peer breaks the protocol, or asks for more than it may have.
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
      unsettled_.push_back(peer.id);
      housekeep_soon();
      break;
    case MessageType::kBye:
      peer.link.is_orderly = true;
      break;
  }
  return true;
}

bool ShmImpl::map_chunk(Peer& peer, Message& message) {
  Link& link = peer.link;
  if (message.chunk_id >= kPeerChunksMax || message.chunk_bytes == 0 ||
      message.chunk_bytes > kPeerChunkBytesMax - link.chunk_bytes) {
    return false;
  }
  if (message.chunk_id >= link.chunks.size()) link.chunks.resize(message.chunk_id + 1);
  PeerChunk& chunk = link.chunks[message.chunk_id];
  if (chunk.base != nullptr) return false;
  auto mapping = shm::map_peer_memory(message.descriptors[0], message.chunk_bytes, shm::PeerMemoryKind::kArena);
  if (!mapping.ok()) return false;
  chunk.mapping = std::move(*mapping);
  chunk.base = chunk.mapping.data();
  chunk.bytes = chunk.mapping.bytes();
  link.chunk_bytes += chunk.bytes;
  return true;
}

// --- housekeeping --------------------------------------------------------------------------------------------------

/// Tells the peer when our last reference has gone or the first has come, and closes what neither side needs.
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
  if (!link.socket) {  // ourselves
    link.is_orderly = true;
    if (!holds) hang_up(peer);
    return;
  }
  if (holds != link.told_hold) {
    const auto sent = shm::send_plain(link.socket.get(), holds ? MessageType::kHold : MessageType::kRelease);
    counters_.system_calls++;
    if (sent == SendResult::kBusy) unsettled_.push_back(peer.id);
    if (sent != SendResult::kSent) return;
    link.told_hold = holds;
  }
  if (holds || link.peer_holds || !link.is_initiator) return;
  if (shm::send_plain(link.socket.get(), MessageType::kBye) == SendResult::kBusy) return unsettled_.push_back(peer.id);
  link.is_orderly = true;
  hang_up(peer);
}

/// The one place where links are closed: never while a visitor runs.
void ShmImpl::housekeep() {
  const timespec none = {};
  pump(&none, false);
  for (const PeerId id : std::exchange(closing_, {})) {
    Peer& peer = *peers_[id];
    if (!peer.link.is_broken && peer.in.has_input() && peer.link.rounds++ < kLastRoundsMax) {
      closing_.push_back(id);
      continue;
    }
    const bool is_orderly = peer.link.is_orderly;
    close_link(peer);
    if (peer.references == 0) {
      free_peer(peer);
    } else if (is_orderly) {
      set_stage(peer, Stage::kConnecting);
      attempts_.push_back(id);
    } else {
      set_stage(peer, Stage::kDead);
    }
  }
  serve_pending();
  for (const PeerId id : std::exchange(attempts_, {})) {
    Peer& peer = *peers_[id];
    // Another's failure may have let this one's connection in meanwhile.
    if (peer.stage != Stage::kConnecting || peer.link.socket) continue;
    if (const Status status = start_attempt(peer); !status.ok() && status.code() != Code::kQueueFull) hang_up(peer);
  }
  for (const PeerId id : std::exchange(unsettled_, {})) settle_references(*peers_[id]);
  const bool has_parked = std::any_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.has_hello; });
  const bool is_busy = connecting_ != 0 || !closing_.empty() || !attempts_.empty() || !unsettled_.empty() || has_parked;
  calls_until_housekeeping_ = is_busy ? 1 : kCallsPerHousekeeping;
}

}  // namespace tern::transport
