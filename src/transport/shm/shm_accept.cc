// Connections that others make: accepted, kept until their hello has come, given to a peer or refused. See shm.h.
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/shm/shm.h"
#include "transport/shm/shm_closer.h"

namespace tern::transport {

using shm::MessageType;
using shm::ReceiveResult;

/// Accepts a few connections of the backlog. Connections that are left wake the next round.
void ShmImpl::accept_some() {
  has_backlog_ = false;
  if (shm::connections_to_close() > shm::kClosingMax) return pause_accepting();
  const uint64_t until_ns = now() + kAcceptNs;
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

/// Leaves new connections in the backlog, without an event for them.
void ShmImpl::pause_accepting() {
  waits_.remove(listener_.get());
  is_accepting_ = false;
}

void ShmImpl::resume_accepting() {
  if (shm::connections_to_close() > shm::kClosingMax) return;
  is_accepting_ = watch(listener_.get(), Watched::kListener, 0, 0);
}

/// Accepts a connection of the backlog. False: the backlog is empty.
bool ShmImpl::accept_one() {
  counters_.system_calls++;
  shm::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EINTR || errno == ECONNABORTED) return true;
    if (errno != EMFILE && errno != ENFILE) return false;
    // A connection that stayed in the queue would keep the endpoint awake, so it is accepted and refused.
    spare_.reset();
    socket = shm::Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool was_one = static_cast<bool>(socket);
    shm::PeerProcess process;
    const bool is_own = was_one && shm::peer_process(socket.get(), process) && shm::is_own_user(process);
    if (is_own) {
      socket.reset();  // at once, because its descriptor becomes the spare one
    } else {
      shm::close_elsewhere(std::move(socket));
    }
    spare_ = shm::Descriptor(::eventfd(0, EFD_CLOEXEC));
    counters_.peers_refused += was_one;
    return was_one;
  }
  Pending pending;
  pending.socket = std::move(socket);
  if (!shm::peer_process(pending.socket.get(), pending.process) ||
      (!options_.allow_other_users && !shm::is_own_user(pending.process))) {
    counters_.peers_refused++;
    shm::close_elsewhere(std::move(pending.socket));
    return true;
  }
  pending.is_readable = true;
  if (is_settled(pending)) {
    close_refused(pending);
    return true;
  }
  evict_pending_for(pending.process);
  pending.serial = ++last_serial_;
  if (pending.parked_ns == 0 && !watch(pending.socket.get(), Watched::kPending, pending.serial, 0)) {
    counters_.peers_refused++;
    shm::close_elsewhere(std::move(pending.socket));
    return true;
  }
  pending_.push_back(std::move(pending));
  return true;
}

/// Closes a settled connection, unless a peer has it.
void ShmImpl::close_refused(Pending& pending) {
  if (!pending.socket) return;
  waits_.remove(pending.socket.get());
  shm::close_elsewhere(std::move(pending.socket));
}

/// Makes space for one more connection of `process` if the table is full: refuses the oldest connection of one process.
/// That is `process` itself if it has its full share; otherwise it is the process with the most connections, of the
/// user with the most connections.
void ShmImpl::evict_pending_for(const shm::PeerProcess& process) {
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
  // Its hello may have come since the last look.
  if (oldest->parked_ns != 0 || !is_settled(*oldest)) counters_.peers_refused++;
  close_refused(*oldest);
  pending_.erase(oldest);
}

void ShmImpl::serve_pending() {
  size_t kept = 0;
  for (size_t i = 0; i < pending_.size(); i++) {
    Pending& pending = pending_[i];
    const bool is_due = pending.parked_ns == 0 ? pending.is_readable : now() >= pending.retry_ns;
    if (is_due && is_settled(pending)) {
      close_refused(pending);
      continue;
    }
    pending.is_readable = false;
    if (kept != i) pending_[kept] = std::move(pending);
    kept++;
  }
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(kept), pending_.end());
}

/// Keeps a connection that cannot be accepted yet. True: it has waited for too long, and is refused.
bool ShmImpl::park(Pending& pending, uint64_t retry_ns) {
  const uint64_t at = now();
  if (pending.parked_ns == 0) {
    pending.parked_ns = at;
    // The connection's messages must not wake this endpoint meanwhile. A connection that has just been accepted is not
    // watched yet.
    waits_.remove(pending.socket.get());
  }
  pending.retry_ns = at + retry_ns;
  if (at - pending.parked_ns < kParkedNsMax) return false;
  counters_.peers_refused++;
  return true;
}

/// Returns true if the connection belongs to a peer now, or is refused. False: the caller must keep the connection and
/// call this again.
bool ShmImpl::is_settled(Pending& pending) {
  if (!pending.has_hello) {
    counters_.system_calls++;
    const ReceiveResult result = shm::receive_message(pending.socket.get(), pending.message);
    if (result == ReceiveResult::kNothing) return false;
    if (result == ReceiveResult::kHangUp) {  // a probe of is_owner_of(), or an attempt that was given up
      unwatch(pending.socket);               // has no descriptors in its queue
      return true;
    }
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
    if (peer->stage == Stage::kReady)
      read_messages(*peer, kMessagesMore);  // the end of its connection, which this one may replace
    if (peer->stage == Stage::kHungUp && by_identity_.contains(identity)) {
      housekeep_soon();
      return park(pending, 0);  // waits until the peer's link is closed
    }
    if (peer->stage == Stage::kReady) return true;  // the peer gave this attempt up when it accepted ours
    // If both sides are connecting, the attempt of the smaller identity counts, provided that it has been made.
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

/// True if the process that sent this hello listens under the identity in it. A connection that sends nothing finds
/// this out. No other process may take a peer's place. `is_busy`: the test is not possible now.
bool ShmImpl::is_owner_of(const Pending& pending, bool& is_busy) const {
  auto probe = shm::connect_to(pending.message.hello.identity);
  is_busy = !probe.ok() && probe.status().code() == Code::kQueueFull;
  shm::PeerProcess owner;
  return probe.ok() && shm::peer_process(probe->get(), owner) && owner.pid == pending.process.pid &&
         owner.uid == pending.process.uid;
}

}  // namespace tern::transport
