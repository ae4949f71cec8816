// Peers with full sockets: their kept packets, and the wake-up of a sleeping loop when these can be sent. See udp.h.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "transport/udp/udp.h"

namespace tern::transport {

/// Copies the data of a segment, so that no ticket waits for its peer: behind the header in its slot or, if that is too
/// short for a larger packet, to memory of its own. False: there is no memory.
bool UdpImpl::own_data(uint32_t index) {
  Segment& segment = segments_[index];
  if (segment.data == nullptr || segment.data == long_data_[index].get()) return true;
  if (segment.bytes() <= slot_bytes_) {
    std::memcpy(slot(index) + segment.staged_bytes, segment.data, segment.data_bytes);
    segment.staged_bytes = segment.bytes();
    segment.data = nullptr;
    segment.data_bytes = 0;
    return true;
  }
  long_data_[index].reset(new (std::nothrow) std::byte[segment.data_bytes]);
  if (long_data_[index] == nullptr) return false;
  std::memcpy(long_data_[index].get(), segment.data, segment.data_bytes);
  segment.data = long_data_[index].get();
  return true;
}

/// Keeps the peer's segments from `segment` on, because the kernel takes no more for this peer now.
void UdpImpl::keep(Peer& peer, uint32_t segment, bool is_short) {
  uint32_t* link = &peer.first;
  uint32_t next = segment;
  for (; next != kNone && kept_count_ < kSegmentsMax && own_data(next); next = segments_[next].next) {
    *link = peer.last = next;
    link = &segments_[next].next;
    ++kept_count_;
  }
  for (uint32_t lost = next; lost != kNone; lost = segments_[lost].next)
    counters_.send_errors += segments_[lost].packets;
  *link = kNone;
  if (peer.first == kNone) return;
  peer.is_blocked = true;
  peer.is_short = is_short;
  blocked_[detours_.blocked_peers++] = static_cast<PeerId>(&peer - peers_.data());
}

/// Tries to send the kept segments of all blocked peers.
void UdpImpl::send_again() {
  if (is_watching_) unwatch_blocked();
  kept_count_ = 0;
  const uint32_t count = std::exchange(detours_.blocked_peers, 0);
  for (uint32_t i = 0; i < count; ++i) {
    Peer& peer = peers_[blocked_[i]];
    peer.is_blocked = false;
    transmit(peer);
  }
  arrange_segments();
}

/// Drops the kept segments of a blocked peer, which has no references any more.
void UdpImpl::lose_kept(PeerId id) {
  Peer& peer = peers_[id];
  if (is_watching_ && peer.socket) waits_.remove(peer.socket.get());
  for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) {
    counters_.send_errors += segments_[index].packets;
    --kept_count_;
  }
  peer.first = peer.last = kNone;
  peer.is_blocked = false;
  PeerId* const end = blocked_.data() + detours_.blocked_peers;
  *std::find(blocked_.data(), end, id) = *(end - 1);
  --detours_.blocked_peers;
  arrange_segments();
}

/// Sorts order_ again after segments in the middle of it have become free.
void UdpImpl::arrange_segments() {
  std::array<bool, kSlots> is_used{};
  uint32_t place = 0;
  const auto put_all = [&](const PeerId* ids, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t index = peers_[ids[i]].first; index != kNone; index = segments_[index].next) {
        order_[place++] = static_cast<uint16_t>(index);
        is_used[index] = true;
      }
    }
  };
  put_all(blocked_.data(), detours_.blocked_peers);
  CHECK(place, ==, kept_count_);
  put_all(dirty_.data(), dirty_count_);
  segment_count_ = place;
  for (uint32_t index = 0; index < kSlots; ++index) {
    if (is_used[index]) continue;
    order_[place++] = static_cast<uint16_t>(index);
    long_data_[index].reset();
  }
}

/// Makes a sleeper wake up when the socket of a blocked peer takes more. A timer ends the sleep if no event would:
/// after a lack of memory, and for the receive socket, which is watched for input only.
void UdpImpl::watch_blocked() {
  is_watching_ = true;
  bool needs_time = false;
  for (uint32_t i = 0; i < detours_.blocked_peers; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    needs_time |= peer.is_short || peer.is_paired || !waits_.add(present_socket_of(peer), EPOLLOUT, 0);
  }
  if (needs_time) retry_.set_at(now() + kRetryNs);
}

void UdpImpl::unwatch_blocked() {
  is_watching_ = false;
  for (uint32_t i = 0; i < detours_.blocked_peers; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    if (!peer.is_paired) waits_.remove(present_socket_of(peer));
  }
  // The shared sockets may be watched for blocked peers that are gone.
  for (const Descriptor& shared : shared_sockets_) {
    if (shared) waits_.remove(shared.get());
  }
  retry_.stop();
}

}  // namespace tern::transport
