// Sending: packets become segments, segments become trains, and the kernel gets the trains. See udp.h.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "transport/udp/udp.h"

namespace tern::transport {

namespace {

/// True if the datagrams of a train may pass one by one. EIO: the device of the path has no checksum offload, or
/// encrypts. EMSGSIZE or EINVAL (by the kernel's version): the longest ones are too long for the path.
bool refuses_trains(int error) { return error == EIO || error == EMSGSIZE || error == EINVAL; }

/// True if a connected socket may have failed because its source address is gone. connect() chose the source by the
/// route of its time, and the socket keeps it. The error depends on the kernel's version.
bool may_lack_source(int error) { return error == ENETUNREACH || error == EINVAL || error == EADDRNOTAVAIL; }

}  // namespace

bool UdpImpl::send_slow(PeerId id, const wire::Header& header, const std::byte* data, size_t len,
                        const detail::Buffer* buffer) {
  Peer& peer = peers_[id];
  const size_t bytes = kHeaderBytes + len;
  if (bytes > peer.datagram_bytes) return send_large(id, header, data, len, buffer);
  if (bytes > peer.space_bytes && !open_segment(id)) return false;
  if (len > kCopyBytesMax) {
    CHECK(buffer != nullptr);
    end_with_range(peer, header, data, len);
    return true;
  }
  store_header(peer.write, header, bytes);
  base::copy_bytes(peer.write + kHeaderBytes, data, len);
  peer.write += bytes;
  peer.space_bytes -= static_cast<uint32_t>(bytes);
  ++peer.packets;
  return true;
}

/// Queues a packet that is longer than the datagrams with which the session began. It has a segment of its own.
bool UdpImpl::send_large(PeerId id, const wire::Header& header, const std::byte* data, size_t len,
                         const detail::Buffer* buffer) {
  if (len > large_payload_bytes()) {
    ++counters_.send_errors;
    return true;  // counts as lost, because it would not fit later either
  }
  if (burst_large_bytes_ >= kBurstLargeBytesMax) {
    is_burst_full_ = true;
    return false;
  }
  if (!open_segment(id)) return false;
  burst_large_bytes_ += static_cast<uint32_t>(len);
  CHECK(buffer != nullptr);
  end_with_range(peers_[id], header, data, len);
  return true;
}

/// Ends the open segment with a packet whose data stays where it is.
void UdpImpl::end_with_range(Peer& peer, const wire::Header& header, const std::byte* data, size_t len) {
  store_header(peer.write, header, kHeaderBytes + len);
  peer.write += kHeaderBytes;
  ++peer.packets;
  Segment& segment = segments_[peer.last];
  segment.data = data;
  segment.data_bytes = static_cast<uint32_t>(len);
  close_segment(peer);
}

/// Closes the peer's segment, if one is open, and opens the next one. False: the burst is full, or the peer is blocked
/// or gone.
bool UdpImpl::open_segment(PeerId id) {
  Peer& peer = peers_[id];
  if (peer.references == 0 || peer.is_blocked) return false;
  if (segment_count_ == kept_count_ + kSegmentsMax) {
    is_burst_full_ = true;
    return false;
  }
  const uint32_t index = order_[segment_count_++];
  segments_[index] = {0, 0, nullptr, 0, kNone};
  if (peer.first == kNone) {
    peer.first = index;
    dirty_[dirty_count_++] = id;
  } else {
    close_segment(peer);
    segments_[peer.last].next = index;
  }
  peer.last = index;
  peer.write = slot(index);
  peer.space_bytes = peer.shared_bytes;
  return true;
}

void UdpImpl::close_segment(Peer& peer) {
  if (peer.packets == 0) return;
  Segment& segment = segments_[peer.last];
  segment.staged_bytes = static_cast<uint32_t>(peer.write - slot(peer.last));
  segment.packets = peer.packets;
  peer.packets = 0;
  peer.space_bytes = 0;
}

void UdpImpl::flush_peers() {
  for (uint32_t i = 0; i < dirty_count_; ++i) transmit(peers_[dirty_[i]]);
  dirty_count_ = 0;
  segment_count_ = 0;
  burst_large_bytes_ = 0;
  if (detours_.blocked_peers != 0) [[unlikely]]
    arrange_segments();
}

/// Hands the peer's segments to the kernel. Afterwards the peer has no segments, or is blocked.
void UdpImpl::transmit(Peer& peer) {
  close_segment(peer);
  uint32_t segment = std::exchange(peer.first, kNone);
  peer.last = kNone;
  peer.last_flush = flushes_;
  if (segment == kNone) return;
  int error = 0;
  if (segments_[segment].is_simple() && peer.socket) [[likely]] {
    error = send_simple(peer, segments_[segment], slot(segment));
    if (error == 0) return;
  }
  segment = transmit_from(peer, segment, offloads_.gso && peer.gso, error);
  while (segment != kNone) segment = transmit_from(peer, segment, false, 0);  // at most twice
}

/// Sends one datagram, whose bytes are together, on the peer's own socket. Returns 0 or the kernel's error.
inline int UdpImpl::send_simple(const Peer& peer, const Segment& segment, const std::byte* bytes) {
  ++counters_.system_calls;
  if (::send(peer.socket.get(), bytes, segment.staged_bytes, MSG_DONTWAIT) < 0) [[unlikely]]
    return errno;
  counters_.packets_sent += segment.packets;
  return 0;
}

/// Sends the segments from `segment` on, in trains if `gso`. `error`: the kernel has refused the first one with this
/// already; 0: it has not. Returns kNone, or the segment with which to continue without trains: the path refuses
/// trains, or the peer uses the shared socket from now on.
uint32_t UdpImpl::transmit_from(Peer& peer, uint32_t segment, bool gso, int error) {
  uint32_t messages = 0;
  range_count_ = 0;
  while (segment != kNone) segment = add_train(peer, segment, gso, messages++);
  return send_messages(peer, messages, error);
}

/// Makes message number `message` from as many segments, `first` and later, as fit into one call. Returns the next
/// segment. Larger packets do not share a train with others, because the kernel may refuse all of it.
uint32_t UdpImpl::add_train(const Peer& peer, uint32_t first, bool gso, uint32_t message) {
  // Find the end of the train. All segments of a train but the last become as long as the longest one.
  uint32_t longest = segments_[first].bytes(), shortest = longest, count = 1;
  uint32_t last = first;
  while (gso && segments_[last].next != kNone && count < kTrainSegmentsMax) {
    const Segment& candidate = segments_[segments_[last].next];
    const uint32_t longer = std::max(longest, candidate.bytes()), shorter = std::min(shortest, candidate.bytes());
    if (uint64_t{longer} * (count + 1) > kTrainBytesMax) break;
    if ((candidate.bytes() > peer.shared_bytes) != (longest > peer.shared_bytes)) break;
    const bool is_short_end = candidate.bytes() <= longest;
    if (longer - shorter > padding_bytes_max_ && !is_short_end) break;
    last = segments_[last].next;
    ++count;
    longest = longer;
    if (longer - shorter > padding_bytes_max_) break;
    shortest = shorter;
  }

  Message& of = messages_[message];
  of.first_segment = first;
  of.packets = 0;
  of.is_train = count > 1;
  msghdr& header = headers_[message].msg_hdr;
  header = {};
  header.msg_iov = &ranges_[range_count_];
  uint32_t index = first;
  for (uint32_t i = 0; i < count; ++i, index = segments_[index].next) {
    const Segment& segment = segments_[index];
    of.packets += segment.packets;
    const uint32_t padding = i + 1 < count ? longest - segment.bytes() : 0;
    if (segment.data == nullptr && segment.staged_bytes + padding <= slot_bytes_) {
      if (padding != 0) std::memset(slot(index) + segment.staged_bytes, 0, padding);
      ranges_[range_count_++] = {slot(index), segment.staged_bytes + padding};
      continue;
    }
    ranges_[range_count_++] = {slot(index), segment.staged_bytes};
    if (segment.data != nullptr) {
      ranges_[range_count_++] = {const_cast<std::byte*>(segment.data), segment.data_bytes};
    }
    if (padding > 0) ranges_[range_count_++] = {zeros_.get(), padding};
  }
  header.msg_iovlen = static_cast<size_t>(&ranges_[range_count_] - header.msg_iov);
  if (of.is_train) set_segment_bytes(&header, of.control, static_cast<uint16_t>(longest));
  return index;
}

/// `error`: the kernel has refused the first message with this already; 0: it has not. Returns kNone if all messages
/// are sent, lost or kept; otherwise the segment from which transmit_from() must send again without trains.
uint32_t UdpImpl::send_messages(Peer& peer, uint32_t count, int error) {
  const int fd = socket_of(peer);
  const bool is_connected = static_cast<bool>(peer.socket);
  if (!is_connected) {
    for (uint32_t i = 0; i < count; ++i) {
      headers_[i].msg_hdr.msg_name = const_cast<sockaddr*>(peer.address.sockaddr_data());
      headers_[i].msg_hdr.msg_namelen = peer.address.sockaddr_bytes();
    }
  }
  bool tried_again = false;
  for (uint32_t i = 0; i < count; error = 0) {
    if (error == 0) {
      ++counters_.system_calls;
      const int sent = count - i > 1 ? sendmmsg(fd, &headers_[i], count - i, MSG_DONTWAIT)
                                     : (sendmsg(fd, &headers_[i].msg_hdr, MSG_DONTWAIT) < 0 ? -1 : 1);
      if (sent > 0) {
        counters_.send_errors += tried_again ? 1 : 0;
        tried_again = false;
        for (const uint32_t end = i + static_cast<uint32_t>(sent); i < end; ++i) {
          counters_.packets_sent += messages_[i].packets;
        }
        continue;
      }
      error = errno;
    }
    if (error == EMSGSIZE) peer.shared_bytes = peer.datagram_bytes;  // loopback has another MTU than usual
    if (messages_[i].is_train && refuses_trains(error)) {
      if (error == EIO) peer.gso = false;
      return messages_[i].first_segment;
    }
    if (error == EAGAIN || error == ENOBUFS || error == ENOMEM) {
      keep(peer, messages_[i].first_segment, error != EAGAIN);
      return kNone;
    }
    peer.error = error;
    if (is_connected && !tried_again) {
      tried_again = true;  // a connected socket reports an earlier packet's fate (ECONNREFUSED) once
      continue;
    }
    const bool is_source_chosen = bound_.is_wildcard() || bound_.family() != peer.address.family();
    if (is_connected && is_source_chosen && may_lack_source(error) && return_to_shared(peer)) {
      peer.error = 0;  // the shared socket finds out whether the path works
      return messages_[i].first_segment;
    }
    tried_again = false;
    counters_.send_errors += messages_[i++].packets;
  }
  return kNone;
}

}  // namespace tern::transport
