// Between endpoints, besides packets: finding each other, handing over memory, ends of peers. See shm.h.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/try.h"
#include "transport/shm.h"

namespace tern::transport {

using shm::Message;
using shm::MessageType;
using shm::ReceiveResult;
using shm::SendResult;

namespace {

alignas(64) constinit const std::atomic<uint32_t> kNeverAsleep{0};

constexpr Status kNoPeerMemory(Code::kNoMemory, "shm: no memory for another peer: free some, or end sessions");

std::atomic<uint64_t>* consumed_of(const shm::Mapping& ring) {
  return &reinterpret_cast<shm::RingControl*>(ring.data())->consumed;
}

}  // namespace

// --- peers ---------------------------------------------------------------------------------------------------------

Result<PeerId> ShmImpl::connect(std::span<const std::byte> address, std::string_view /*host*/) {
  shm::Identity identity;
  if (address.size() != identity.size()) {
    return Status(
        Code::kMisuse,
        "shm: the peer's data-path address is not that of a shm endpoint of this version: both sides must run "
        "the same transport");
  }
  std::copy(address.begin(), address.end(), identity.begin());
  // The peer may have closed its last connection and made a new one since we looked.
  const timespec none = {};
  pump(&none, false);
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
  const Status status = identity == identity_ ? link_to_self(peer) : start_attempt(peer);
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

/// kUnavailable: there are peers_max. kNoMemory.
Result<ShmImpl::Peer*> ShmImpl::new_peer(const shm::Identity& identity) {
  if (free_ids_.empty()) {
    if (peers_.size() >= options_.peers_max) {
      return Status(Code::kUnavailable, "shm: Options::peers_max peers are connected: raise it or end sessions");
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

/// One more place for a peer, and for it in every list. False: no memory.
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
  peer->doorbell = &kNeverAsleep;
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

/// Housekeeping is to look at who needs the connection.
void ShmImpl::unsettle(Peer& peer) {
  if (!peer.is_unsettled) unsettled_.push_back(peer.id);
  peer.is_unsettled = true;
  housekeep_soon();
}

// --- shares --------------------------------------------------------------------------------------------------------

/// Counts the peer among the endpoints of its process. kUnavailable: that process, or its user, has its share of peers.
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
            "shm: this many endpoints of the peer's process are connected: raise Shm::Options::process_peers_max"};
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

/// Only when the peer has nothing mapped.
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

/// The ring, which costs ten times as much as the rest, is made for a peer that exists.
Status ShmImpl::try_attempt(Peer& peer) {
  auto socket = shm::connect_to(peer.identity);
  if (!socket.ok()) return socket.status();
  shm::PeerProcess process;
  if (!shm::peer_process(socket->get(), process) || (!options_.allow_other_users && !shm::is_own_user(process))) {
    counters_.peers_refused++;
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
    if (sent == SendResult::kGone) return {Code::kPeerUnreachable, "shm: the peer has ended"};
    return {Code::kQueueFull, "shm: the system takes no more messages; try again"};
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

/// The ring that leads out also leads in.
Status ShmImpl::link_to_self(Peer& peer) {
  if (Status status = prepare_ring(peer); !status.ok()) return status;
  const shm::Hello hello = {identity_, peer.link.out_start, options_.ring_cells, false};
  attach(peer, hello, peer.link.out.mapping.data(), reinterpret_cast<Doorbell*>(doorbell_.mapping.data()));
  return {};
}

/// Maps what came with the peer's hello; makes our ring, if there is none yet.
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
  peer.in.publish();
  peer.doorbell = &doorbell->sleep;
  peer.woken_sleep = 0;
  peer.is_refused = false;
  peer.is_unannounced = false;
  link.peer_holds = hello.holds;
  set_stage(peer, Stage::kReady);
  poll_from_now_on(peer);
  unsettle(peer);
}

/// Makes an accepted connection the peer's link. False: refused, and the peer is as it was.
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

/// Closes the link's socket. Not in a forked child's name: there it is closed without the shutdown, which would end the
/// parent's connection.
void ShmImpl::end_connection(Peer& peer) {
  Link& link = peer.link;
  // close() alone is not seen while a child has a copy
  if (link.socket && ::getpid() == pid_) ::shutdown(link.socket.get(), SHUT_RDWR);
  unwatch(link.socket);
  unwatch(link.process);
}

/// Not to be called while a visitor may read the peer's memory.
void ShmImpl::close_link(Peer& peer) {
  poll_no_more(peer);
  end_connection(peer);
  count_chunks(peer, -int64_t{peer.link.chunk_count}, -static_cast<int64_t>(peer.link.chunk_bytes));
  peer.link = {};
  peer.out = {};
  peer.in = {};
  peer.doorbell = &kNeverAsleep;
}

/// The connection has ended, by whatever side. The link is closed by housekeeping when its ring has been read.
void ShmImpl::hang_up(Peer& peer) {
  if (peer.stage == Stage::kConnecting && !peer.is_deserted) {
    // A peer that was connecting to us at the same moment may have dropped our attempt in favour of its own. That waits
    // in the backlog now, if it has not come yet.
    end_connection(peer);
    peer.serial = ++last_serial_;
    peer.is_deserted = true;
    peer.deserted_until = accepted_ + shm::kListenBacklog + 1;
    peer.deserted_backlog = backlogs_read_;
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

// --- events --------------------------------------------------------------------------------------------------------

/// False: want of kernel memory or user watches.
bool ShmImpl::watch(int fd, Watched what, uint32_t serial, PeerId id) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(what) << 61 | uint64_t{serial & 0x1fffffff} << 32 | id;
  counters_.system_calls++;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return true;
  // It was watched as a pending connection.
  return errno == EEXIST && ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
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
  if (count < 0 && (errno == ENOSYS || errno == EPERM)) {  // before Linux 5.11, or in an old sandbox
    pollfd readable = {epoll_.get(), POLLIN, 0};
    ::ppoll(&readable, 1, timeout, nullptr);
    count = ::epoll_wait(epoll_.get(), events, 64, 0);
  }
  has_pumped_ |= ends_wait;
  messages_left_ = kMessagesPerRound;
  bool has_pending = false;
  bool has_newcomers = has_backlog_;  // the last look may have ended just before it saw that none is left
  for (int i = 0; i < count; i++) {
    const uint64_t data = events[i].data.u64;
    switch (static_cast<Watched>(data >> 61)) {
      case Watched::kListener:
        has_newcomers = true;
        continue;
      case Watched::kWake: {
        uint64_t wakes;
        if (ends_wait && ::read(wake_.get(), &wakes, sizeof wakes) != sizeof wakes) continue;
        continue;
      }
      case Watched::kRetry: {
        uint64_t expirations;
        if (::read(retry_.get(), &expirations, sizeof expirations) == sizeof expirations) housekeep_soon();
        continue;
      }
      case Watched::kPending:
        for (Pending& pending : pending_) {
          if ((pending.serial & 0x1fffffff) == ((data >> 32) & 0x1fffffff)) pending.is_readable = true;
        }
        has_pending = true;
        continue;
      case Watched::kSocket:
      case Watched::kProcess:
        break;
    }
    Peer& peer = *peers_[static_cast<PeerId>(data)];
    if ((peer.serial & 0x1fffffff) != ((data >> 32) & 0x1fffffff)) continue;  // of a link that has just been closed
    if (static_cast<Watched>(data >> 61) == Watched::kSocket) {
      const uint32_t limit = std::min(messages_left_, kMessagesPerPeer);
      messages_left_ -= read_messages(peer, limit);
    } else {
      hang_up(peer);
    }
  }
  if (has_newcomers) accept_some();
  if (has_pending) serve_pending();
}

/// Wakes a sleeper when something has to be tried again for which there will be no event.
void ShmImpl::retry_later() {
  if (closing_.empty() && deserted_.empty() && !has_to_retry()) return;
  itimerspec time = {};
  time.it_value.tv_nsec = kRetryNs;
  ::timerfd_settime(retry_.get(), 0, &time, nullptr);  // cannot fail with these arguments
}

/// Takes a few connections out of the backlog. What is left wakes the next round.
void ShmImpl::accept_some() {
  const uint64_t until_ns = now() + kAcceptNs;
  has_backlog_ = false;
  for (uint32_t left = kAcceptsPerVisit; left != 0; --left) {
    if (!accept_one()) {
      backlogs_read_++;
      return;
    }
    accepted_++;
    if (now() >= until_ns) break;
  }
  has_backlog_ = true;
  housekeep_soon();
}

/// False: nobody (else) waits.
bool ShmImpl::accept_one() {
  counters_.system_calls++;
  shm::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EINTR || errno == ECONNABORTED) return true;
    if (errno != EMFILE && errno != ENFILE) return false;
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
  if (!shm::peer_process(pending.socket.get(), pending.process) ||
      (!options_.allow_other_users && !shm::is_own_user(pending.process))) {
    counters_.peers_refused++;
    return true;
  }
  pending.is_readable = true;
  if (is_settled(pending)) return true;
  make_pending_room(pending.process);
  pending.serial = ++last_serial_;
  if (pending.parked_ns == 0 && !watch(pending.socket.get(), Watched::kPending, pending.serial, 0)) {
    counters_.peers_refused++;
    return true;
  }
  pending_.push_back(std::move(pending));
  return true;
}

/// For one more of this process. Who has most gives way: the process if it has its share, else the user with the most,
/// of its processes that with the most, and of its connections the oldest.
void ShmImpl::make_pending_room(const shm::PeerProcess& process) {
  const auto count = [this](auto&& is_one) {
    return static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), is_one));
  };
  const auto of_user = [&](uid_t uid) { return count([=](const Pending& p) { return p.process.uid == uid; }); };
  const auto of_process = [&](const shm::PeerProcess& name) {
    return count([&](const Pending& p) { return p.process == name; });
  };
  shm::PeerProcess from = process;
  if (of_process(process) < kProcessPendingMax) {
    if (pending_.size() < kPendingMax) return;
    size_t users_most = 0, most = 0;
    for (const Pending& each : pending_) {
      const size_t users = of_user(each.process.uid), own = of_process(each.process);
      if (users < users_most || (users == users_most && own <= most)) continue;
      users_most = users;
      most = own;
      from = each.process;
    }
  }
  const auto oldest =
      std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.process == from; });
  counters_.peers_refused++;
  unwatch(oldest->socket);
  pending_.erase(oldest);
}

void ShmImpl::serve_pending() {
  size_t kept = 0;
  for (size_t i = 0; i < pending_.size(); i++) {
    Pending& pending = pending_[i];
    const bool is_due = pending.parked_ns == 0 ? pending.is_readable : now() >= pending.retry_ns;
    if (is_due && is_settled(pending)) {
      unwatch(pending.socket);
      continue;
    }
    pending.is_readable = false;
    if (kept != i) pending_[kept] = std::move(pending);
    kept++;
  }
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(kept), pending_.end());
}

/// Keeps a connection whose turn has not come. True: it has waited long enough, and is refused.
bool ShmImpl::park(Pending& pending, uint64_t retry_ns) {
  const uint64_t at = now();
  if (pending.parked_ns == 0) {
    pending.parked_ns = at;
    // What it says meanwhile must not keep us awake. Not watched yet if it has just been accepted.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pending.socket.get(), nullptr);
  }
  pending.retry_ns = at + retry_ns;
  if (at - pending.parked_ns < kParkedNsMax) return false;
  counters_.peers_refused++;
  return true;
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
  if (!pending.is_owner) {
    bool is_busy = false;
    pending.is_owner = identity != identity_ && is_owner_of(pending, is_busy);
    if (is_busy) return park(pending, kRetryNs);
    if (!pending.is_owner) {
      counters_.peers_refused++;
      return true;
    }
  }
  Peer* peer = nullptr;
  if (const auto known = by_identity_.find(identity); known != by_identity_.end()) {
    peer = peers_[known->second].get();
    if (peer->stage == Stage::kReady) read_messages(*peer, kMessagesMore);  // its end, if this one is to replace it
    if (peer->stage == Stage::kHungUp && by_identity_.contains(identity)) {
      housekeep_soon();
      return park(pending, 0);  // until its link is closed
    }
    if (peer->stage == Stage::kReady) return true;  // it gave this attempt up when it accepted ours
    // Both sides are connecting: the attempt of the smaller identity counts, and one that was not made does not.
    if (peer->stage == Stage::kConnecting && peer->link.socket && identity_ < identity) return true;
    if (peer->stage != Stage::kConnecting) peer = nullptr;
  }
  const bool is_new = peer == nullptr;
  if (is_new) {
    if (auto made = new_peer(identity); made.ok()) peer = *made;
  }
  if (peer != nullptr && charge(*peer, pending.process).ok() && accept_as(*peer, pending)) return true;
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

/// At most `limit` messages; returns how many. A peer that never stops sending does not keep us.
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

/// As housekeep(), from a loop that polls: not more often than leaves most of the time to the packets.
void ShmImpl::housekeep_or_rest() {
  const uint64_t start_ns = now();
  quiet_looks_ = counters_.packets_received == packets_at_look_ ? quiet_looks_ + 1 : 0;
  packets_at_look_ = counters_.packets_received;
  if (start_ns < rest_until_ns_ && quiet_looks_ < kQuietLooks) {
    calls_until_housekeeping_ = kCallsPerRest;
    return;
  }
  housekeep();
  const uint64_t end_ns = now();
  rest_until_ns_ = end_ns + kRestShare * (end_ns - start_ns);
}

/// Moves up to `count_max` of the oldest to taken_. What is gone through may be listed again meanwhile.
void ShmImpl::take_from(std::vector<PeerId>& list, size_t count_max) {
  const auto end = list.begin() + static_cast<ptrdiff_t>(std::min(count_max, list.size()));
  taken_.assign(list.begin(), end);
  list.erase(list.begin(), end);
}

/// The one place where links are closed: never while a visitor runs.
void ShmImpl::housekeep() {
  const timespec none = {};
  pump(&none, false);
  close_ended();
  serve_pending();
  if (!deserted_.empty()) {
    accept_some();
    take_from(deserted_, SIZE_MAX);
    for (const PeerId id : taken_) {
      Peer& peer = *peers_[id];
      if (backlogs_read_ == peer.deserted_backlog && accepted_ < peer.deserted_until) {
        deserted_.push_back(id);
        continue;
      }
      hang_up(peer);
      peer.is_deserted = false;
    }
  }
  take_from(attempts_, attempts_.empty() || now() < next_attempts_ns_ ? 0 : kAttemptsPerRound);
  for (const PeerId id : taken_) {
    Peer& peer = *peers_[id];
    // Another's failure may have let this one's connection in meanwhile.
    if (peer.stage != Stage::kConnecting || peer.link.socket) continue;
    if (const Status status = start_attempt(peer); !status.ok() && status.code() != Code::kQueueFull) hang_up(peer);
  }
  if (!taken_.empty()) next_attempts_ns_ = now() + kRetryNs;
  take_from(unsettled_, SIZE_MAX);
  for (const PeerId id : taken_) {
    peers_[id]->is_unsettled = false;
    settle_references(*peers_[id]);
  }
  take_from(unheard_, SIZE_MAX);
  for (const PeerId id : taken_) {
    Peer& peer = *peers_[id];
    peer.is_unheard = false;
    if (peer.stage != Stage::kReady) continue;
    peer.is_unannounced = false;
    wake_if_asleep(peer);
  }
  if (connecting_ != 0) connecting_rounds_++;
  is_busy_ = (connecting_ != 0 && connecting_rounds_ < kConnectingRoundsMax) || has_backlog_ || !closing_.empty() ||
             !deserted_.empty();
  calls_until_housekeeping_ = is_busy_ ? 1 : has_to_retry() ? kCallsPerRetry : kCallsPerHousekeeping;
}

/// Something waits for a peer to take it, and there will be no event when it would.
bool ShmImpl::has_to_retry() const {
  return !attempts_.empty() || !unsettled_.empty() || !unheard_.empty() ||
         std::any_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.parked_ns != 0; });
}

void ShmImpl::close_ended() {
  take_from(closing_, SIZE_MAX);
  for (const PeerId id : taken_) {
    Peer& peer = *peers_[id];
    if (!peer.link.is_broken && peer.in.has_input() && peer.link.rounds++ < kLastRoundsMax) {
      closing_.push_back(id);
      continue;
    }
    const bool is_orderly = peer.link.is_orderly;
    close_link(peer);
    if (peer.references == 0) {
      free_peer(peer);
    } else if (is_orderly && peer.reconnects < kReconnectsMax) {
      peer.reconnects++;
      set_stage(peer, Stage::kConnecting);
      attempts_.push_back(id);
    } else {
      if (is_orderly) by_identity_.erase(peer.identity);
      set_stage(peer, Stage::kDead);
    }
  }
}

}  // namespace tern::transport
