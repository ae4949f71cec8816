#include "transport/udp.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::transport {

static_assert(TransportImpl<UdpImpl>);

namespace {

constexpr Status kBadDatagramBytes(
    Code::kMisuse,
    "udp: Udp::Options::datagram_bytes must be 576 to 65000: 1232 passes every path, 8900 "
    "where all links have jumbo frames");
constexpr Status kNoDescriptors(Code::kUnavailable, "udp: no file descriptors are left: raise the limit (ulimit -n)");
constexpr Status kNoMemory(Code::kNoMemory,
                           "udp: no memory for the endpoint's buffers: free some, or use fewer endpoints");
constexpr Status kNoPeerMemory(Code::kNoMemory, "udp: no memory for another peer: free some, or end sessions");
constexpr Status kBadPeerAddress(Code::kMisuse,
                                 "udp: the peer's data-path address is not that of a UDP endpoint: both sides must run "
                                 "the same transport, bound to a unicast address");
constexpr Status kOtherFamily(
    Code::kUnavailable,
    "udp: the peer's data path takes IPv4 only, but its Nexus was reached by IPv6: bind the peer "
    "to [::], or name it by its IPv4 address");
constexpr Status kNoRoute(Code::kUnavailable,
                          "udp: this machine has no route to the peer's data-path address from the address bound here: "
                          "check routes and Udp::Options::bind on both sides");

/// What a full datagram takes of the receive queue's memory: a power of two for data and the kernel's headers, plus the
/// packet's descriptor. (212 992 B were measured to hold 92 of 1400 B, and 256 of 56 B.)
size_t queue_bytes_per_datagram(size_t datagram_bytes) {
  constexpr size_t kKernelHeaders = 448, kDescriptor = 256;
  return std::bit_ceil(datagram_bytes + kKernelHeaders) + kDescriptor;
}

/// Ranges differing by more than this share of a datagram do not become one train: on the wire, padding costs as much
/// as data.
constexpr uint32_t kPaddingShare = 8;

constexpr size_t kCacheLine = 64;

}  // namespace

Result<std::unique_ptr<UdpImpl>> UdpImpl::create(const Options& options, memory::Arena&) {
  if (options.datagram_bytes < kDatagramBytesMin || options.datagram_bytes > kDatagramBytesMax)
    return kBadDatagramBytes;
  Result<UdpAddress> bind_to = UdpAddress::parse(options.bind);
  if (!bind_to.ok()) return bind_to.status();
  const UdpOffloads offloads = options.offload ? test_offloads(bind_to->family()) : UdpOffloads{};
  UdpAddress bound;
  Result<Fd> socket = open_receive_socket(*bind_to, options.socket_buffer_bytes, offloads.gro, &bound);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<UdpImpl> transport(new (std::nothrow) UdpImpl(options, std::move(*socket), bound, offloads));
  if (transport == nullptr) return kNoMemory;
  if (Status status = transport->prepare(options); !status.ok()) return status;
  return transport;
}

UdpImpl::UdpImpl(const Options& options, Fd receive_socket, const UdpAddress& bound, UdpOffloads offloads)
    : receive_socket_(std::move(receive_socket)),
      datagram_bytes_(static_cast<uint32_t>(options.datagram_bytes)),
      slot_bytes_((options.datagram_bytes + kCacheLine - 1) / kCacheLine * kCacheLine),
      bound_(bound),
      socket_buffer_bytes_(options.socket_buffer_bytes),
      offloads_(offloads),
      padding_bytes_max_(datagram_bytes_ / kPaddingShare),
      pid_(getpid()) {
  const UdpAddress::Bytes encoded = bound.encode();
  std::copy_n(encoded.bytes.begin(), encoded.size, address_bytes_.begin());
  address_bytes_[encoded.size] = static_cast<std::byte>(datagram_bytes_ & 0xff);
  address_bytes_[encoded.size + 1] = static_cast<std::byte>(datagram_bytes_ >> 8);
  address_size_ = encoded.size + 2;
}

UdpImpl::~UdpImpl() = default;

Status UdpImpl::prepare(const Options& options) {
  staging_.reset(new (std::nothrow) std::byte[kSlots * slot_bytes_]);
  std::iota(order_.begin(), order_.end(), uint16_t{0});
  receive_memory_.reset(new (std::nothrow) std::byte[kReceiveBufferBytes + 2 * kCacheLine]);
  zeros_.reset(new (std::nothrow) std::byte[padding_bytes_max_]());
  if (staging_ == nullptr || receive_memory_ == nullptr || zeros_ == nullptr) return kNoMemory;
  // The first payload of a datagram begins a cache line, as a message buffer's does.
  const auto memory = reinterpret_cast<uintptr_t>(receive_memory_.get());
  const uintptr_t first_payload = (memory + kHeaderBytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  receive_buffer_ = receive_memory_.get() + (first_payload - kHeaderBytes - memory);

  int queue_bytes = 0;
  socklen_t option_bytes = sizeof(queue_bytes);
  if (getsockopt(receive_socket_.get(), SOL_SOCKET, SO_RCVBUF, &queue_bytes, &option_bytes) == 0) {
    const size_t packets = static_cast<size_t>(queue_bytes) / queue_bytes_per_datagram(options.datagram_bytes);
    receive_queue_packets_ = static_cast<uint32_t>(std::max<size_t>(packets, 1));
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    connected_max_ = static_cast<uint32_t>(std::min<rlim_t>(kConnectedMax, files.rlim_cur / 8));
  }
  if (!base::try_reserve(connected_, connected_max_)) return kNoMemory;

  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  event_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  retry_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_ || !event_ || !retry_) return kNoDescriptors;
  for (const int fd : {receive_socket_.get(), event_.get(), retry_.get()}) {
    epoll_event interest{};
    interest.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &interest) != 0) return kNoMemory;
  }
  return {};
}

// --- Peers ----------------------------------------------------------------------------------------------------------

/// The last two bytes of an address are the datagram_bytes of its endpoint.
Status UdpImpl::resolve(std::span<const std::byte> address, std::string_view host, UdpAddress* target,
                        uint32_t* datagram_bytes) const {
  if (address.size() < 2) return kBadPeerAddress;
  const auto size = address.last(2);
  *datagram_bytes = std::to_integer<uint32_t>(size[0]) | std::to_integer<uint32_t>(size[1]) << 8;
  if (!UdpAddress::decode(address.first(address.size() - 2), target) || target->is_group() ||
      *datagram_bytes < kDatagramBytesMin) {
    return kBadPeerAddress;
  }
  UdpAddress reached_at;
  const bool has_host = UdpAddress::parse_ip(host, &reached_at);
  if (target->is_wildcard()) {
    if (!has_host || reached_at.is_wildcard() || reached_at.is_group()) return kBadPeerAddress;
    if (target->family() == AF_INET && reached_at.family() == AF_INET6) return kOtherFamily;
    reached_at.set_port(target->port());
    *target = reached_at;
  } else if (target->is_link_local() && has_host) {
    target->set_scope(reached_at.scope());  // means the same link only on this side
  }
  return {};
}

UdpImpl::PeerName UdpImpl::name_of(const UdpAddress& address, uint32_t datagram_bytes, bool is_paired) {
  PeerName name{};
  const UdpAddress::Bytes encoded = address.encode();
  std::copy_n(encoded.bytes.begin(), encoded.size, name.begin());
  name[UdpAddress::kBytesMax] = static_cast<std::byte>(datagram_bytes & 0xff);
  name[UdpAddress::kBytesMax + 1] = static_cast<std::byte>(datagram_bytes >> 8);
  name[UdpAddress::kBytesMax + 2] = static_cast<std::byte>(is_paired);
  return name;
}

/// A place for a peer, under its name; as if it had just been made. Room for it in free_ids_, too.
Result<PeerId> UdpImpl::new_peer(const PeerName& name) {
  const bool is_more = free_ids_.empty();
  const size_t count = peers_.size() + (is_more ? 1 : 0);
  const PeerId id = is_more ? static_cast<PeerId>(peers_.size()) : free_ids_.back();
  if (!base::try_reserve(peers_, count) || !base::try_reserve(free_ids_, count) ||
      !base::try_grow([&] { ids_.emplace(name, id); })) {
    return kNoPeerMemory;
  }
  if (is_more) {
    peers_.emplace_back();
  } else {
    free_ids_.pop_back();
  }
  peers_[id] = Peer();
  return id;
}

void UdpImpl::free_peer(PeerId id) {
  const Peer& peer = peers_[id];
  ids_.erase(name_of(peer.address, peer.datagram_bytes, peer.is_paired));
  free_ids_.push_back(id);
}

Result<PeerId> UdpImpl::connect(std::span<const std::byte> address, std::string_view host) {
  UdpAddress target;
  uint32_t datagram_bytes = 0;
  if (Status status = resolve(address, host, &target, &datagram_bytes); !status.ok()) {
    ++counters_.peers_refused;
    return status;
  }
  return find_or_make(target, std::min(datagram_bytes, datagram_bytes_), false);
}

Result<PeerId> UdpImpl::connect_paired(std::span<const std::byte> address, std::string_view host) {
  UdpAddress target;
  uint32_t datagram_bytes = 0;
  if (Status status = resolve(address, host, &target, &datagram_bytes); !status.ok()) {
    ++counters_.peers_refused;
    return status;
  }
  return pair_with(target, std::min(datagram_bytes, datagram_bytes_));
}

Result<PeerId> UdpImpl::connect_back(PeerId like) {
  const UdpAddress source = UdpAddress::from_sockaddr(source_);
  if (source.port() == 0 || source.is_wildcard() || source.is_group()) return kBadPeerAddress;
  return pair_with(source, peers_[like].datagram_bytes);
}

/// The receive socket takes the family that it was bound to, and as a wildcard [::] IPv4 as well.
Result<PeerId> UdpImpl::pair_with(const UdpAddress& target, uint32_t datagram_bytes) {
  if (target.family() == bound_.family()) return find_or_make(target, datagram_bytes, true);
  if (bound_.family() != AF_INET6 || !bound_.is_wildcard()) return kNoRoute;
  return find_or_make(target.mapped(), datagram_bytes, true);
}

/// Each result is a reference more.
Result<PeerId> UdpImpl::find_or_make(const UdpAddress& target, uint32_t datagram_bytes, bool is_paired) {
  const PeerName name = name_of(target, datagram_bytes, is_paired);
  if (const auto known = ids_.find(name); known != ids_.end()) {
    ++peers_[known->second].references;
    return known->second;
  }
  const auto made = new_peer(name);
  if (!made.ok()) return made.status();
  const PeerId id = *made;
  Peer& peer = peers_[id];
  peer.address = target;
  peer.datagram_bytes = datagram_bytes;
  peer.is_paired = is_paired;
  peer.shared_since = peer.last_flush = flushes_;
  const bool has_socket = is_paired || (connected_.size() < connected_max_ && give_socket(peer));
  if (!has_socket) {
    const int error = connected_.size() < connected_max_ ? errno : 0;
    const bool unreachable = error == ENETUNREACH || error == EHOSTUNREACH || error == EINVAL || error == EACCES ||
                             error == EPERM || error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    Fd& shared = shared_sockets_[target.family() == AF_INET6 ? 1 : 0];
    if (!unreachable && !shared) shared = open_send_socket(target.family(), bound_, socket_buffer_bytes_);
    if (unreachable || !shared) {
      free_peer(id);
      return unreachable ? kNoRoute : kNoDescriptors;
    }
  }
  peer.references = 1;
  return id;
}

void UdpImpl::disconnect(PeerId id) {
  Peer& peer = peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references > 0) return;
  if (peer.first != kNone && !peer.is_blocked) {
    if (getpid() == pid_) transmit(peer);
    PeerId* const end = dirty_.data() + dirty_count_;
    *std::find(dirty_.data(), end, id) = *(end - 1);
    --dirty_count_;
  }
  if (peer.is_blocked) lose_kept(id);
  if (peer.socket) std::erase(connected_, id);
  peer.socket.reset();
  free_peer(id);
}

PathError UdpImpl::take_path_error(PeerId id) {
  Peer& peer = peers_[id];
  int error = 0;
  socklen_t error_bytes = sizeof(error);
  // What ICMP has told since the last packet.
  if (peer.socket) (void)getsockopt(peer.socket.get(), SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  if (error == 0) error = peer.error;
  peer.error = 0;
  switch (error) {
    case 0:
      return PathError::kNone;
    case EPERM:
    case EACCES:
      return PathError::kForbidden;
    case ECONNREFUSED:
      return PathError::kRefused;
    case EMSGSIZE:
      return PathError::kTooLong;
    default:
      return PathError::kUnreachable;
  }
}

/// Opens and connects a socket for `peer`. False: errno says why; the peer has none.
bool UdpImpl::give_socket(Peer& peer) {
  Fd fd = open_send_socket(peer.address.family(), bound_, socket_buffer_bytes_);
  if (!fd) return false;
  if (::connect(fd.get(), peer.address.sockaddr_data(), peer.address.sockaddr_bytes()) != 0) return false;
  peer.socket = std::move(fd);
  connected_.push_back(static_cast<PeerId>(&peer - peers_.data()));
  return true;
}

/// `peer` has been using the shared socket: gives it one of its own if there is one to have, or if another peer has
/// been silent for all the trains that this one has sent. Peers that take turns therefore do not rob each other.
void UdpImpl::take_over_socket(Peer& peer) {
  if (connected_.size() >= connected_max_ && !connected_.empty()) {
    const auto silent = std::min_element(connected_.begin(), connected_.end(), [this](PeerId a, PeerId b) {
      return peers_[a].last_flush < peers_[b].last_flush;
    });
    Peer& victim = peers_[*silent];
    Fd& shared = shared_sockets_[victim.address.family() == AF_INET6 ? 1 : 0];
    if (!shared) shared = open_send_socket(victim.address.family(), bound_, socket_buffer_bytes_);
    if (shared && !victim.is_blocked && victim.last_flush < peer.shared_since) {
      victim.socket.reset();
      victim.shared_trains = 0;
      victim.shared_since = flushes_;
      *silent = connected_.back();
      connected_.pop_back();
    }
  }
  if (connected_.size() < connected_max_) give_socket(peer);
  peer.shared_trains = 0;
  peer.shared_since = flushes_;
}

int UdpImpl::socket_of(Peer& peer) {
  if (!peer.socket) [[unlikely]] {
    if (peer.is_paired) return receive_socket_.get();
    if (++peer.shared_trains >= kTrainsPerTakeover) take_over_socket(peer);
    if (!peer.socket) return shared_sockets_[peer.address.family() == AF_INET6 ? 1 : 0].get();
  }
  return peer.socket.get();
}

// --- Sending --------------------------------------------------------------------------------------------------------

bool UdpImpl::send_slow(PeerId id, const wire::Header& header, const std::byte* data, size_t len,
                        const detail::Buffer* buffer) {
  Peer& peer = peers_[id];
  const size_t bytes = kHeaderBytes + len;
  if (bytes > peer.datagram_bytes) {
    ++counters_.send_errors;
    return true;  // a loss: it would not fit later either
  }
  if (bytes > peer.room_bytes && !open_segment(id)) return false;
  if (len <= kCopyBytesMax) {
    put(peer, header, data, len);
    return true;
  }
  CHECK(buffer != nullptr, ==, true);
  put_header(peer, header, bytes);
  Segment& segment = segments_[peer.last];
  segment.data = data;
  segment.data_bytes = static_cast<uint32_t>(len);
  close_segment(peer);
  return true;
}

/// Closes the peer's segment, if one is open, and opens the next. False: the burst is full, or the peer is blocked or
/// gone.
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
  peer.room_bytes = peer.datagram_bytes;
  return true;
}

void UdpImpl::close_segment(Peer& peer) {
  if (peer.packets == 0) return;
  Segment& segment = segments_[peer.last];
  segment.staged_bytes = static_cast<uint32_t>(peer.write - slot(peer.last));
  segment.packets = peer.packets;
  peer.packets = 0;
  peer.room_bytes = 0;
}

void UdpImpl::flush_peers() {
  for (uint32_t i = 0; i < dirty_count_; ++i) transmit(peers_[dirty_[i]]);
  dirty_count_ = 0;
  segment_count_ = 0;
  if (blocked_count_ != 0) [[unlikely]]
    arrange_segments();
}

/// Hands the peer's segments to the kernel; afterwards it has none, or is blocked.
void UdpImpl::transmit(Peer& peer) {
  close_segment(peer);
  uint32_t segment = std::exchange(peer.first, kNone);
  peer.last = kNone;
  peer.last_flush = flushes_;
  while (segment != kNone) segment = transmit_from(peer, segment);
}

/// Sends the segments from this one on. Result: kNone, or where to go on after trains have been switched off.
uint32_t UdpImpl::transmit_from(Peer& peer, uint32_t segment) {
  const bool gso = offloads_.gso && peer.gso;
  uint32_t messages = 0;
  range_count_ = 0;
  while (segment != kNone) segment = add_train(segment, gso, messages++);
  return send_messages(peer, messages);
}

/// Makes message number `message` of as many segments from this one on as fit into one call. Result: the next segment.
uint32_t UdpImpl::add_train(uint32_t first, bool gso, uint32_t message) {
  // How far the train goes: all segments but the last become as long as the longest.
  uint32_t longest = segments_[first].bytes(), shortest = longest, count = 1;
  uint32_t last = first;
  while (gso && segments_[last].next != kNone && count < kTrainSegmentsMax) {
    const Segment& candidate = segments_[segments_[last].next];
    const uint32_t longer = std::max(longest, candidate.bytes()), shorter = std::min(shortest, candidate.bytes());
    if (uint64_t{longer} * (count + 1) > kTrainBytesMax) break;
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
    if (segment.data == nullptr) {
      std::memset(slot(index) + segment.staged_bytes, 0, padding);
      ranges_[range_count_++] = {slot(index), segment.staged_bytes + padding};
      continue;
    }
    ranges_[range_count_++] = {slot(index), segment.staged_bytes};
    ranges_[range_count_++] = {const_cast<std::byte*>(segment.data), segment.data_bytes};
    if (padding > 0) ranges_[range_count_++] = {zeros_.get(), padding};
  }
  header.msg_iovlen = static_cast<size_t>(&ranges_[range_count_] - header.msg_iov);
  if (of.is_train) set_segment_bytes(&header, of.control, static_cast<uint16_t>(longest));
  return index;
}

/// Result: kNone when all messages are sent, lost or kept, else the segment from which on trains must not be used.
uint32_t UdpImpl::send_messages(Peer& peer, uint32_t count) {
  const int fd = socket_of(peer);
  const bool is_connected = static_cast<bool>(peer.socket);
  if (!is_connected) {
    for (uint32_t i = 0; i < count; ++i) {
      headers_[i].msg_hdr.msg_name = const_cast<sockaddr*>(peer.address.sockaddr_data());
      headers_[i].msg_hdr.msg_namelen = peer.address.sockaddr_bytes();
    }
  }
  bool tried_again = false;
  for (uint32_t i = 0; i < count;) {
    ++counters_.system_calls;
    const msghdr& message = headers_[i].msg_hdr;
    int sent;
    if (count - i > 1) {
      sent = sendmmsg(fd, &headers_[i], count - i, MSG_DONTWAIT);
    } else if (message.msg_iovlen == 1 && is_connected) {
      sent = ::send(fd, message.msg_iov->iov_base, message.msg_iov->iov_len, MSG_DONTWAIT) < 0 ? -1 : 1;
    } else {
      sent = sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -1 : 1;
    }
    if (sent > 0) {
      counters_.send_errors += tried_again ? 1 : 0;
      tried_again = false;
      for (const uint32_t end = i + static_cast<uint32_t>(sent); i < end; ++i) {
        counters_.packets_sent += messages_[i].packets;
      }
      continue;
    }
    const int error = errno;
    if (error == EIO && messages_[i].is_train) {
      peer.gso = false;  // this path's device has no checksum offload, or encrypts
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
    tried_again = false;
    counters_.send_errors += messages_[i++].packets;
  }
  return kNone;
}

/// The kernel takes nothing more for this peer now: its segments from this one on stay. They refer to no message memory
/// any more, so that nobody's tickets wait for this peer.
void UdpImpl::keep(Peer& peer, uint32_t segment, bool is_short) {
  uint32_t* link = &peer.first;
  uint32_t next = segment;
  for (; next != kNone && kept_count_ < kSegmentsMax; next = segments_[next].next) {
    Segment& kept = segments_[next];
    if (kept.data != nullptr) std::memcpy(slot(next) + kept.staged_bytes, kept.data, kept.data_bytes);
    kept.staged_bytes = kept.bytes();
    kept.data = nullptr;
    kept.data_bytes = 0;
    *link = peer.last = next;
    link = &kept.next;
    ++kept_count_;
  }
  for (uint32_t lost = next; lost != kNone; lost = segments_[lost].next)
    counters_.send_errors += segments_[lost].packets;
  *link = kNone;
  if (peer.first == kNone) return;
  peer.is_blocked = true;
  peer.is_short = is_short;
  blocked_[blocked_count_++] = static_cast<PeerId>(&peer - peers_.data());
}

/// Tries all blocked peers.
void UdpImpl::send_again() {
  if (is_watching_) unwatch_blocked();
  kept_count_ = 0;
  const uint32_t count = std::exchange(blocked_count_, 0);
  for (uint32_t i = 0; i < count; ++i) {
    Peer& peer = peers_[blocked_[i]];
    peer.is_blocked = false;
    transmit(peer);
  }
  arrange_segments();
}

/// Nobody refers to the blocked peer any more.
void UdpImpl::lose_kept(PeerId id) {
  Peer& peer = peers_[id];
  if (is_watching_ && peer.socket) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) {
    counters_.send_errors += segments_[index].packets;
    --kept_count_;
  }
  peer.first = peer.last = kNone;
  peer.is_blocked = false;
  PeerId* const end = blocked_.data() + blocked_count_;
  *std::find(blocked_.data(), end, id) = *(end - 1);
  --blocked_count_;
  arrange_segments();
}

/// Puts order_ in order after segments in the middle of it have become free.
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
  put_all(blocked_.data(), blocked_count_);
  CHECK(place, ==, kept_count_);
  put_all(dirty_.data(), dirty_count_);
  segment_count_ = place;
  for (uint32_t index = 0; index < kSlots; ++index) {
    if (!is_used[index]) order_[place++] = static_cast<uint16_t>(index);
  }
}

// --- Receiving ------------------------------------------------------------------------------------------------------

/// `at` holds no packet that can be handed out. Result: where to go on.
[[gnu::noinline]] const std::byte* UdpImpl::skip(const std::byte* at, const std::byte* end) {
  if (*at == std::byte{0}) {
    for (uint64_t word = 0; end - at >= 8; at += 8) {
      std::memcpy(&word, at, 8);
      if (word != 0) break;
    }
    while (at != end && *at == std::byte{0}) ++at;
    return at;
  }
  const wire::Header header = wire::load_header(at);
  if (!wire::is_plausible(header, static_cast<size_t>(end - at))) {
    ++counters_.dropped_unparsable;
    return end;
  }
  ++((header.flags() & wire::kByReference) != 0 ? counters_.dropped_bad_reference : counters_.dropped_oversize);
  return at + header.length();
}

/// What is left of a datagram is too short for a header: padding, or garbage.
[[gnu::noinline]] void UdpImpl::skip_tail(const std::byte* at, const std::byte* end) {
  if (std::any_of(at, end, [](std::byte byte) { return byte != std::byte{0}; })) ++counters_.dropped_unparsable;
}

// --- Sleeping -------------------------------------------------------------------------------------------------------

void UdpImpl::wait(uint64_t deadline_ns) {
  constexpr uint64_t kNsPerSec = 1'000'000'000;
  constexpr uint64_t kNsMax = 3600 * kNsPerSec;  // wakes once an hour: no overflow to think about
  const uint64_t time = now();
  const uint64_t left_ns =
      deadline_ns == UINT64_MAX ? kNsMax : std::min(deadline_ns - std::min(deadline_ns, time), kNsMax);
  const timespec timeout = {static_cast<time_t>(left_ns / kNsPerSec), static_cast<long>(left_ns % kNsPerSec)};
  epoll_event event;
  // ENOSYS: an older kernel; EPERM: a container's filter that does not know the call.
  if (epoll_pwait2(epoll_.get(), &event, 1, &timeout, nullptr) < 0 && (errno == ENOSYS || errno == EPERM)) {
    pollfd readable{epoll_.get(), POLLIN, 0};
    ppoll(&readable, 1, &timeout, nullptr);
  }
}

/// A sleeper is to wake up when one of the blocked peers' sockets takes more, or, where that is the receive socket,
/// which is watched for what arrives, to try again in time.
void UdpImpl::watch_blocked() {
  is_watching_ = true;
  bool needs_time = false;
  for (uint32_t i = 0; i < blocked_count_; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    epoll_event interest{};
    interest.events = EPOLLOUT;
    const bool is_watched =
        !peer.is_short && !peer.is_paired &&
        (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, present_socket_of(peer), &interest) == 0 || errno == EEXIST);
    needs_time |= !is_watched;
  }
  if (!needs_time) return;
  itimerspec time{};
  time.it_value.tv_nsec = kRetryNs;
  timerfd_settime(retry_.get(), 0, &time, nullptr);  // cannot fail with these arguments
}

void UdpImpl::unwatch_blocked() {
  is_watching_ = false;
  for (uint32_t i = 0; i < blocked_count_; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    if (!peer.is_paired) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, present_socket_of(peer), nullptr);
  }
  // Of a blocked peer that is gone.
  for (const Fd& shared : shared_sockets_) {
    if (shared) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, shared.get(), nullptr);
  }
  const itimerspec never{};
  timerfd_settime(retry_.get(), 0, &never, nullptr);
}

void UdpImpl::wake() {
  if (wake_written_.exchange(true, std::memory_order_acq_rel)) return;
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));  // cannot be full
  errno = saved;
}

void UdpImpl::end_wait() {
  if (is_watching_) unwatch_blocked();
  if (!wake_written_.load(std::memory_order_acquire)) return;
  // A waker that has set the flag but not written yet leaves it set: its event then ends the next wait.
  uint64_t count;
  if (read(event_.get(), &count, sizeof(count)) == sizeof(count))
    wake_written_.exchange(false, std::memory_order_acq_rel);
}

void UdpImpl::check_invariants() const {
  CHECK(connected_.size(), <=, size_t{connected_max_});
  CHECK(ids_.size() + free_ids_.size(), ==, peers_.size());
  uint32_t segments = 0;
  for (uint32_t i = 0; i < dirty_count_; ++i) {
    const Peer& peer = peers_[dirty_[i]];
    CHECK(peer.first, !=, kNone);
    for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) {
      CHECK(segments_[index].bytes(), <=, datagram_bytes_);
      ++segments;
    }
  }
  CHECK(segments, <=, segment_count_ - kept_count_);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < blocked_count_; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    CHECK(peer.is_blocked && peer.room_bytes == 0, ==, true);
    CHECK(peer.first, !=, kNone);
    for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) ++kept;
  }
  CHECK(kept, ==, kept_count_);
  for (const PeerId id : connected_) CHECK(static_cast<bool>(peers_[id].socket), ==, true);
}

}  // namespace tern::transport
