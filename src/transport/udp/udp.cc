#include "transport/udp/udp.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "transport/options.h"

namespace tern::transport {

static_assert(TransportImpl<UdpImpl>);

namespace {

constexpr Status kNoMemory(Code::kNoMemory,
                           "udp: no memory for the endpoint's buffers: free some, or use fewer endpoints");
/// Memory of the receive queue that a full datagram takes: a power of two for data and the kernel's headers, plus the
/// packet's descriptor. Measured: 212 992 B hold 92 datagrams of 1400 B, or 256 of 56 B.
size_t queue_bytes_per_datagram(size_t datagram_bytes) {
  constexpr size_t kKernelHeaders = 448, kDescriptor = 256;
  return std::bit_ceil(datagram_bytes + kKernelHeaders) + kDescriptor;
}

/// Segments whose lengths differ by more than this share of a datagram do not become one train, because padding costs
/// as much as data on the wire.
constexpr uint32_t kPaddingShare = 8;

constexpr size_t kCacheLine = 64;

/// Returns the length of datagrams between loopback addresses; 0: as to other addresses.
uint32_t loopback_datagram_bytes(const SocketAddress& bound) {
  constexpr uint32_t kBytes = UdpImpl::kLoopbackDatagramBytes;
  return bound.is_loopback() && carries_within_host(bound, kBytes) ? kBytes : 0;
}

}  // namespace

Result<std::unique_ptr<UdpImpl>> UdpImpl::create(Options options, const Context& context) {
  if (options.bind.empty()) options.bind = context.listen_host;
  if (Status status = check_ranges<Udp>(options); !status.ok()) return status;
  Result<SocketAddress> bind_to = parse_bind_option(options.bind);
  if (!bind_to.ok()) return bind_to.status();
  const UdpOffloads offloads = options.offload ? test_offloads(bind_to->family()) : UdpOffloads{};
  SocketAddress bound;
  Result<Descriptor> socket = open_receive_socket(*bind_to, options.socket_buffer_bytes, offloads.gro, &bound);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<UdpImpl> transport(new (std::nothrow) UdpImpl(options, std::move(*socket), bound, offloads));
  if (transport == nullptr) return kNoMemory;
  if (Status status = transport->prepare(options); !status.ok()) return status;
  return transport;
}

UdpImpl::UdpImpl(const Options& options, Descriptor receive_socket, const SocketAddress& bound, UdpOffloads offloads)
    : receive_socket_(std::move(receive_socket)),
      datagram_bytes_(static_cast<uint32_t>(options.datagram_bytes)),
      datagram_bytes_max_(static_cast<uint32_t>(std::max(options.datagram_bytes, options.probed_datagram_bytes))),
      least_datagram_bytes_(datagram_bytes_),
      loopback_bytes_(loopback_datagram_bytes(bound)),
      slot_bytes_((std::max<size_t>(options.datagram_bytes, loopback_bytes_) + kCacheLine - 1) / kCacheLine *
                  kCacheLine),
      bound_(bound),
      socket_buffer_bytes_(options.socket_buffer_bytes),
      offloads_(offloads),
      padding_bytes_max_(datagram_bytes_ / kPaddingShare),
      pid_(getpid()) {
  const UdpAddressBytes encoded = encode_address(bound);
  std::ranges::copy(encoded.span(), address_bytes_.begin());
  address_bytes_[encoded.size] = static_cast<std::byte>(datagram_bytes_ & 0xff);
  address_bytes_[encoded.size + 1] = static_cast<std::byte>(datagram_bytes_ >> 8);
  address_size_ = encoded.size + 2;
}

UdpImpl::~UdpImpl() {
  for (const PeerId id : connected_) take_socket(peers_[id]);
}

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
    // The credits are the lesser of two numbers: the datagrams of one credit, or the credits of the full datagrams,
    // that the queue can hold.
    const size_t credits_each = (options.datagram_bytes + kCreditBytes - 1) / kCreditBytes;
    const size_t memory_each =
        std::max(queue_bytes_per_datagram(options.datagram_bytes),
                 credits_each == 1 ? 0 : credits_each * queue_bytes_per_datagram(kCreditBytes / 2));
    receive_queue_packets_ = static_cast<uint32_t>(std::max<size_t>(static_cast<size_t>(queue_bytes) / memory_each, 1));
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    connected_max_ = static_cast<uint32_t>(std::min<rlim_t>(kConnectedMax, files.rlim_cur / 8));
    connected_in_process_max_ = static_cast<uint32_t>(std::min<rlim_t>(UINT32_MAX, files.rlim_cur / 4));
  }
  if (!base::try_reserve(connected_, connected_max_)) return kNoMemory;

  if (!waits_.open() || !wake_.open() || !retry_.open()) return kNoDescriptors;
  for (const int fd : {receive_socket_.get(), wake_.descriptor(), retry_.descriptor()}) {
    if (!waits_.add(fd, EPOLLIN, 0)) return kNoMemory;
  }
  return {};
}

/// Prepares a receive call that puts the expected payload in its place, and the other bytes where they would be in the
/// receive buffer. False: nothing is expected.
bool UdpImpl::split_at(const ExpectedPacket& expected) {
  const size_t packet_bytes = kHeaderBytes + expected.payload_bytes;
  if (expected.place == nullptr || expected.payload_bytes < kInPlaceBytesMin || packet_bytes > kReceiveBufferBytes) {
    detours_.is_asking = 0;
    return false;
  }
  expected_ = expected;
  split_ = {{{receive_buffer_, kHeaderBytes},
             {expected.place, expected.payload_bytes},
             {receive_buffer_ + packet_bytes, kReceiveBufferBytes - packet_bytes}}};
  return true;
}

/// A wrong guess costs the copy that a right one spares. After one, some packets are received without a guess.
void UdpImpl::note_large_packet() {
  if (packets_unguessed_ != 0) {
    --packets_unguessed_;
  } else {
    detours_.is_asking = 1;
  }
}

ssize_t UdpImpl::receive_split() {
  ++counters_.system_calls;
  msghdr message{};
  message.msg_name = &source_;
  message.msg_namelen = sizeof(source_);
  message.msg_iov = split_.data();
  message.msg_iovlen = split_.size();
  const ssize_t got = recvmsg(receive_socket_.get(), &message, MSG_DONTWAIT);
  source_bytes_ = message.msg_namelen;
  return got;
}

/// Looks for trains, and switches the kernel's GRO if they begin or end. With GRO a train comes as one, and is longer
/// than a datagram. Without, it comes in pieces, of which all but the last are longer than half a datagram.
void UdpImpl::look_for_train(uint32_t calls, size_t packets, size_t bytes) {
  const bool was_wanted = is_gro_wanted();
  const bool is_longer = packets > 1 && bytes > calls * size_t{least_datagram_bytes_};
  const bool is_train = was_wanted ? is_longer : calls > 1 || may_follow_;
  may_follow_ = may_be_pieces(calls, bytes);
  if (is_train) {
    lone_bursts_ = 0;
  } else if (was_wanted) {
    ++lone_bursts_;
  }
  if (is_gro_wanted() == was_wanted || !offloads_.gro) [[likely]]
    return;
  ++counters_.system_calls;
  set_gro(receive_socket_.get(), is_gro_wanted());
}

/// Completes the `bytes` that the receive buffer would have without a split. Packets other than the expected one have
/// come.
void UdpImpl::mend(size_t bytes) {
  detours_.is_asking = 0;
  if (bytes <= kHeaderBytes) return;
  if (bytes >= kInPlaceBytesMin) packets_unguessed_ = kPacketsUnguessed;
  const size_t in_place = std::min<size_t>(bytes - kHeaderBytes, expected_.payload_bytes);
  std::memcpy(receive_buffer_ + kHeaderBytes, expected_.place, in_place);
}

/// Called at a place where no acceptable packet begins. Returns the place at which to continue.
[[gnu::noinline]] const std::byte* UdpImpl::skip(const std::byte* at, const std::byte* end) {
  if (*at == std::byte{0}) {
    const bool is_first = at == receive_buffer_;
    for (uint64_t word = 0; end - at >= 8; at += 8) {
      std::memcpy(&word, at, 8);
      if (word != 0) break;
    }
    while (at != end && *at == std::byte{0}) ++at;
    if (is_first && at == end) ++counters_.dropped_unparsable;
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

/// Called when the rest of a datagram is too short for a header: it is padding, or garbage.
[[gnu::noinline]] void UdpImpl::skip_tail(const std::byte* at, const std::byte* end) {
  const bool is_padding =
      at != receive_buffer_ && std::all_of(at, end, [](std::byte byte) { return byte == std::byte{0}; });
  if (!is_padding) ++counters_.dropped_unparsable;
}

void UdpImpl::end_wait() {
  if (is_watching_) unwatch_blocked();
  wake_.clear();
}

void UdpImpl::check_invariants() const {
  CHECK(connected_.size(), <=, size_t{connected_max_});
  CHECK(ids_.size() + free_ids_.size(), ==, peers_.size());
  uint32_t segments = 0;
  for (uint32_t i = 0; i < dirty_count_; ++i) {
    const Peer& peer = peers_[dirty_[i]];
    CHECK(peer.first, !=, kNone);
    for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) {
      CHECK(segments_[index].bytes(), <=, datagram_bytes_max_);
      ++segments;
    }
  }
  CHECK(segments, <=, segment_count_ - kept_count_);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < detours_.blocked_peers; ++i) {
    const Peer& peer = peers_[blocked_[i]];
    CHECK(peer.is_blocked && peer.space_bytes == 0);
    CHECK(peer.first, !=, kNone);
    for (uint32_t index = peer.first; index != kNone; index = segments_[index].next) ++kept;
  }
  CHECK(kept, ==, kept_count_);
  for (const PeerId id : connected_) CHECK(peers_[id].socket);
}

}  // namespace tern::transport
