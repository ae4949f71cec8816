// The events of the endpoint's descriptors, and the periodic work besides packets. See shm.h.
#include <unistd.h>

#include <algorithm>

#include "transport/shm/shm.h"

namespace tern::transport {

/// Adds a descriptor to the epoll set. False: the system is short of memory or of user watches.
bool ShmImpl::watch(int fd, Watched what, uint32_t serial, PeerId id) {
  counters_.system_calls++;
  // A socket that was a pending connection is watched already, and takes the new name.
  return waits_.add(fd, EPOLLIN, static_cast<uint64_t>(what) << 61 | uint64_t{serial & 0x1fffffff} << 32 | id);
}

/// Closes `fd`. A forked child leaves the epoll set, which it shares with its parent, as it is.
void ShmImpl::unwatch(base::Descriptor& fd) {
  if (!fd) return;
  if (::getpid() == pid_) waits_.remove(fd.get());
  fd.reset();
}

/// Waits for the first event of the epoll set until `deadline_ns`, and handles all events. `ends_wait`: the endpoint
/// stops waiting, so this also clears the wake-ups that have come.
void ShmImpl::pump(uint64_t deadline_ns, bool ends_wait) {
  epoll_event events[64];
  counters_.system_calls++;
  const size_t count = waits_.wait(events, deadline_ns);
  has_pumped_ |= ends_wait;
  messages_left_ = kMessagesPerRound;
  bool has_pending = false;
  bool has_newcomers = has_backlog_;  // connections may be left from the last look
  for (size_t i = 0; i < count; i++) {
    const uint64_t data = events[i].data.u64;
    switch (static_cast<Watched>(data >> 61)) {
      case Watched::kListener:
        has_newcomers = true;
        continue;
      case Watched::kWake:
        if (ends_wait) wake_.clear();
        continue;
      case Watched::kRetry:
        if (retry_.take()) housekeep_soon();
        continue;
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
    if ((peer.serial & 0x1fffffff) != ((data >> 32) & 0x1fffffff)) continue;  // its link has just been closed
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

/// Sets the timer that ends a sleep, if there is a retry that no event reports.
void ShmImpl::retry_later() {
  if (!closing_.empty() || !deserted_.empty() || has_to_retry()) retry_.set_at(now() + kRetryNs);
}

/// Calls housekeep() from a loop that polls, but so seldom that most of the time is left for packets.
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

/// Moves up to `count_max` of the list's oldest elements to taken_. A peer in taken_ may be listed again meanwhile.
void ShmImpl::take_from(std::vector<PeerId>& list, size_t count_max) {
  const auto end = list.begin() + static_cast<ptrdiff_t>(std::min(count_max, list.size()));
  taken_.assign(list.begin(), end);
  list.erase(list.begin(), end);
}

/// One round of housekeeping. Links are closed only here, because no visitor runs.
void ShmImpl::housekeep() {
  if (!is_accepting_) resume_accepting();
  pump(0, false);
  close_ended();
  serve_pending();
  if (!deserted_.empty()) {
    accept_some();
    take_from(deserted_, SIZE_MAX);
    for (const PeerId id : taken_) {
      Peer& peer = *peers_[id];
      if (may_still_come(peer)) {
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
    // The failure of another attempt may have let this peer's connection in meanwhile.
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

/// True if a connection of a peer on deserted_ may be in the backlog, or be one whose hello has not been taken yet. A
/// stranger's connection may look like one, so the wait has an end.
bool ShmImpl::may_still_come(const Peer& peer) {
  if (now() - peer.deserted_ns >= kParkedNsMax) return false;
  if (backlogs_read_ == peer.deserted_backlog && accepted_ < peer.deserted_until) return true;
  return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return !pending.has_hello || pending.message.hello.identity == peer.identity;
  });
}

/// True if there is a retry that no event reports.
bool ShmImpl::has_to_retry() const {
  return !attempts_.empty() || !unsettled_.empty() || !unheard_.empty() || !is_accepting_ ||
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
