// Kernel UDP: small packets share a datagram, and one system call moves a train of datagrams.
// Transport layer; owned by the endpoint's thread, wake() excepted. Knows of a packet's header only its length.
//
//   this file        the hot path: send() into a segment, receive(), parsing
//   udp.cc           creation, waiting, datagrams that are not simply packets
//   udp_peers.cc     peers and their sockets
//   udp_send.cc      segments, trains, system calls that send
//   udp_blocked.cc   peers whose sockets take no more
//
// Receiving: one unconnected socket. Packets say their own length, so the borders of datagrams do not matter, and GRO
// hands over whole trains. GRO is off while no trains come: for each datagram of a socket with UDP_GRO the kernel reads
// a line that the sender's CPU has (skb_shared_info, in udp_cmsg_recv()), 180 ns on loopback. It is on again after the
// first train, because a train of two takes 2 us longer in pieces.
//
// Sending: a connected socket per peer, from a port of its own, because a socket on the receiver's port would steal the
// receives. The kernel then looks up no route per call, and a dead peer's ECONNREFUSED is an ordinary loss. Peers
// beyond the limit share a socket, as do peers whose source address has gone; busy ones take over the sockets of silent
// ones. Packets to a paired peer (connect_paired(), connect_back()) leave from the receive socket: filters and NATs
// that pass only answers then see one pair of addresses and ports.
//
// A packet goes into the open segment (datagram) of its peer; flush() makes one call for each peer. Segments of
// (nearly) equal size are padded with zeros to be one GSO train; the order of packets never changes.
//
// A socket that takes no more (its send buffer is full, or the kernel is short of memory) blocks its peer: segments
// that have not left stay in the staging memory, and send() refuses more until receive() has handed them over. A
// sleeper is woken when the socket is writable, or after kRetryNs where no event would say so.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/udp.h>

#include "base/copy.h"
#include "base/tick_clock.h"
#include "base/wait.h"
#include "memory/arena.h"
#include "transport/transport.h"
#include "transport/udp/udp_address.h"
#include "transport/udp/udp_socket.h"
#include "wire/header.h"

namespace tern::transport {

class TERN_API UdpImpl : public DefaultMembers {
 public:
  using Options = Udp::Options;
  class Sender;
  /// rto_ns_min: a scheduler's time slice on a busy machine is some milliseconds, and the kernel's part of a round trip
  /// is some microseconds. With 1 ms the loss of a last packet costs little. An early retransmission after a preemption
  /// costs one packet.
  static constexpr Traits kTraits{.reports_space = true,
                                  .has_pairs = true,
                                  .rto_ns_min = 1'000'000,
                                  .congestion_control = CongestionControl::kSwift,
                                  .remedies = {.packet_bytes = " (Udp::Options::datagram_bytes on either side)",
                                               .address = " (the server's Udp::Options::bind has its address and port)",
                                               .no_way_back = ": both need addresses of one family and a route between "
                                                              "them, which Udp::Options::bind chooses"}};
  /// Data up to this length is copied into the segment, where other packets can follow it. Longer data ends its segment
  /// as a range of its own. Measured per packet, copy against range: 0.63-0.76 at 200-480 B, 0.95-0.98 at 1000 B, 1.00
  /// at 1376 B.
  static constexpr size_t kCopyBytesMax = 1024;
  /// Packets between two loopback addresses share datagrams up to this length. With the kernel's headers such a
  /// datagram takes 4 KiB of the receiver's queue, as the credits of its packets allow.
  static constexpr uint32_t kLoopbackDatagramBytes = 3584;
  /// Most datagrams of one burst, to all peers together.
  static constexpr uint32_t kSegmentsMax = 256;
  /// Most peers with a socket of their own. An eighth of the process's limit of open files, if that is less; and a
  /// quarter of that limit for all endpoints of the process together.
  static constexpr uint32_t kConnectedMax = 256;

  /// kMisuse: datagram_bytes out of range, or `bind` malformed. kUnavailable: port taken, no such address, no
  /// descriptors.
  static Result<std::unique_ptr<UdpImpl>> create(Options options, const Context& context);
  ~UdpImpl();
  UdpImpl(const UdpImpl&) = delete;
  UdpImpl& operator=(const UdpImpl&) = delete;

  std::span<const std::byte> address() const { return std::span(address_bytes_).first(address_size_); }
  /// kMisuse: the bytes are not a UDP address, or the address of a group. kUnavailable: no route, the other family, no
  /// descriptors.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host) {
    return connect_to(address, host, false);
  }
  /// As connect(), but makes a separate peer, because one session may be paired and the next one not. It can also fail
  /// with kUnavailable, if the receive socket cannot send to the peer's family.
  Result<PeerId> connect_paired(std::span<const std::byte> address, std::string_view host) {
    return connect_to(address, host, true);
  }
  /// Sessions that come from one address and port share the peer.
  Result<PeerId> connect_back(PeerId like);
  PathError take_path_error(PeerId peer);
  uint16_t port_of(PeerId peer) const { return peers_[peer].address.port(); }
  PeerState peer_state(PeerId peer) const { return peers_[peer].references > 0 ? PeerState::kReady : PeerState::kDead; }
  void disconnect(PeerId peer);
  uint32_t payload_bytes_max() const { return datagram_bytes_ - static_cast<uint32_t>(wire::kHeaderBytes); }
  uint32_t payload_bytes_max(PeerId peer) const {
    return peers_[peer].datagram_bytes - static_cast<uint32_t>(kHeaderBytes);
  }
  uint32_t large_payload_bytes() const {
    return datagram_bytes_max_ == datagram_bytes_ ? 0 : datagram_bytes_max_ - static_cast<uint32_t>(kHeaderBytes);
  }
  uint32_t large_payload_bytes(PeerId peer);
  uint32_t receive_queue_packets() const { return receive_queue_packets_; }
  /// The kernel counts the memory of datagrams, not their number. A datagram of 1232 B takes 2 KiB.
  uint32_t credit_bytes() const { return kCreditBytes; }
  /// The links of a path are unknown. This is the highest rate that the kernel reaches (ANCHORS.md), and an upper limit
  /// from which controllers come down.
  uint64_t link_bytes_per_sec() const { return 6'250'000'000; }
  /// The target includes the CPUs' time: a thread that has lost its CPU waits some milliseconds for its next turn.
  DelayTarget delay_target() const { return {10'000'000, 10'000'000, false}; }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);
  uint64_t ticket() const { return flushes_ + 1; }
  /// The kernel copies within the call, so that all flushed packets are released.
  uint64_t released() const { return flushes_; }
  void flush() {
    if (dirty_count_ > 0) flush_peers();
    ++flushes_;
  }

  template <class Visit>
  [[gnu::always_inline]] size_t receive(Visit&& visit) {
    if (std::bit_cast<uint64_t>(detours_) != 0) [[unlikely]] {
      if (detours_.blocked_peers != 0) send_again();
      if constexpr (ExpectingVisitor<Visit>) {
        if (detours_.is_asking != 0) return receive_expecting(visit);
      }
    }
    return receive_burst<false>(visit);
  }

  uint64_t now() { return clock_.now_ns(); }
  /// Checks no receive queue, because the descriptor is readable if there is input.
  bool prepare_wait() {
    if (detours_.blocked_peers != 0) watch_blocked();
    return !std::exchange(is_burst_full_, false);
  }
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  /// Async-signal-safe. Only the first call since the last end_wait() makes a system call.
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

  // For tests.
  struct Census {
    UdpOffloads offloads;           ///< the kernel's offloads that the options allow
    uint32_t blocked_peers;         ///< peers with segments of earlier bursts
    std::vector<PeerId> connected;  ///< peers that have a socket of their own
    bool is_gro_wanted;             ///< trains have come lately
  };
  Census census() const { return {offloads_, detours_.blocked_peers, connected_, is_gro_wanted()}; }
  void check_invariants() const;

 private:
  static constexpr size_t kHeaderBytes = wire::kHeaderBytes;
  static constexpr uint32_t kCreditBytes = 2048;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kReceiveBufferBytes = 1u << 16;  ///< more than the longest datagram or train has
  /// Payloads from this length on are received in place. A packet of half of the receive buffer is alone in its train,
  /// so that a receive call has one place.
  static constexpr uint32_t kInPlaceBytesMin = kReceiveBufferBytes / 2;
  static constexpr uint32_t kPacketsUnguessed = 8;  ///< large packets after a wrong guess, until the next guess
  static constexpr uint32_t kReceiveCallsMax = 16;
  static constexpr uint32_t kLoneBurstsMax = 64;  ///< after so many bursts in a row without a train, GRO is off
  /// A burst ends after so many bytes in packets of more than the safe size, because the system calls take a
  /// millisecond for a few megabytes.
  static constexpr uint32_t kBurstLargeBytesMax = 1u << 20;
  /// The kernel's limits for one GSO call (64 segments before Linux 6.9; 65 507 bytes on IPv4, rounded down).
  static constexpr uint32_t kTrainSegmentsMax = 64;
  static constexpr uint32_t kTrainBytesMax = 65000;
  /// A peer without a socket tries to take over a silent peer's socket after this many trains.
  static constexpr uint32_t kTrainsPerTakeover = 64;
  /// All blocked peers together keep at most as many segments as one burst has. Further segments are lost.
  static constexpr uint32_t kSlots = 2 * kSegmentsMax;
  /// Time after which a sleeping loop retries sends for which the kernel had no memory.
  static constexpr uint64_t kRetryNs = 1'000'000;

  /// One datagram: bytes in its slot of the staging memory, followed by at most one range elsewhere.
  struct Segment {
    uint32_t staged_bytes;
    uint32_t data_bytes;
    const std::byte* data;
    uint32_t packets;
    uint32_t next;  ///< the same peer's next segment, or kNone
    uint32_t bytes() const { return staged_bytes + data_bytes; }
    bool is_simple() const { return next == kNone && data == nullptr; }  ///< none follows, and all of it is in its slot
  };

  struct Peer {
    std::byte* write = nullptr;   ///< place of the next packet in the open segment
    uint32_t space_bytes = 0;     ///< space left in the open segment; 0: no segment is open
    uint32_t datagram_bytes = 0;  ///< the smaller of both endpoints' limits; the path was probed with it
    uint32_t shared_bytes = 0;    ///< most bytes of a datagram that several packets share
    uint32_t packets = 0;         ///< packets in the open segment
    uint32_t first = kNone;       ///< first segment of this burst; kNone: there is none
    uint32_t last = kNone;
    Descriptor socket;        ///< connected socket; empty: the peer uses the shared one
    bool gso = true;          ///< false once the path has refused a train
    bool is_paired = false;   ///< the receive socket sends to the peer
    bool is_blocked = false;  ///< on blocked_: its segments are kept until its socket takes them
    bool is_short = false;    ///< blocked by lack of memory, whose end no event reports
    int error = 0;            ///< errno of the last packet that the kernel refused for other reasons than full queues
    uint32_t references = 0;
    uint32_t shared_trains = 0;  ///< trains sent over the shared socket since `shared_since`
    uint64_t shared_since = 0;   ///< number of a flush
    uint64_t last_flush = 0;     ///< flush number of the last train; the most silent peer loses its socket first
    SocketAddress address;
  };

  UdpImpl(const Options& options, Descriptor receive_socket, const SocketAddress& bound, UdpOffloads offloads);
  Status prepare(const Options& options);

  /// `bytes`: the length of the whole packet.
  static void store_header(std::byte* at, wire::Header header, size_t bytes) {
    header.set_length_and_flags(bytes, 0);
    wire::store_header(at, header);
  }
  bool send_slow(PeerId peer, const wire::Header& header, const std::byte* data, size_t len,
                 const detail::Buffer* buffer);
  bool send_large(PeerId peer, const wire::Header& header, const std::byte* data, size_t len,
                  const detail::Buffer* buffer);
  void end_with_range(Peer& peer, const wire::Header& header, const std::byte* data, size_t len);
  bool open_segment(PeerId peer);
  void close_segment(Peer& peer);

  void flush_peers();
  void transmit(Peer& peer);
  int send_simple(const Peer& peer, const Segment& segment, const std::byte* bytes);
  uint32_t transmit_from(Peer& peer, uint32_t segment, bool gso, int error);
  uint32_t add_train(const Peer& peer, uint32_t first, bool gso, uint32_t message);
  uint32_t send_messages(Peer& peer, uint32_t count, int error);
  bool own_data(uint32_t index);
  void keep(Peer& peer, uint32_t segment, bool is_short);
  void send_again();
  void lose_kept(PeerId id);
  void arrange_segments();
  void watch_blocked();
  void unwatch_blocked();
  int present_socket_of(const Peer& peer) const {
    return peer.socket ? peer.socket.get() : shared_sockets_[peer.address.family() == AF_INET6 ? 1 : 0].get();
  }
  int socket_of(Peer& peer);
  void take_over_socket(Peer& peer);
  bool may_connect() const;
  bool give_socket(Peer& peer);
  void take_socket(Peer& peer);
  bool return_to_shared(Peer& peer);
  /// Address, datagram size, and whether the peer is paired. They are all in the name, so that a stranger who names
  /// another peer's address does not change how packets to that peer are sent.
  using PeerName = std::array<std::byte, UdpAddressBytes::kBytesMax + 7>;
  static PeerName name_of(const SocketAddress& address, uint32_t datagram_bytes, bool is_paired);
  Result<PeerId> connect_to(std::span<const std::byte> address, std::string_view host, bool is_paired);
  Result<PeerId> find_or_make(const SocketAddress& target, uint32_t datagram_bytes, bool is_paired);
  Result<PeerId> pair_with(const SocketAddress& target, uint32_t datagram_bytes);
  Result<PeerId> new_peer(const PeerName& name);
  uint32_t shared_bytes_of(const Peer& peer) const;
  void free_peer(PeerId id);
  Status resolve(std::span<const std::byte> address, std::string_view host, SocketAddress* target,
                 uint32_t* datagram_bytes) const;
  std::byte* slot(uint32_t segment) const { return staging_.get() + size_t{segment} * slot_bytes_; }

  ssize_t receive_once() {
    ++counters_.system_calls;
    source_bytes_ = sizeof(source_);
    return recvfrom(receive_socket_.get(), receive_buffer_, kReceiveBufferBytes, MSG_DONTWAIT,
                    reinterpret_cast<sockaddr*>(&source_), &source_bytes_);
  }
  template <bool is_expecting, class Visit>
  [[gnu::always_inline]] size_t receive_burst(Visit& visit) {
    size_t packets = 0, bytes = 0;
    uint32_t calls = 0;
    for (; calls < receive_calls_max_ && bytes < kReceiveBufferBytes; ++calls) {
      bool is_split = false;
      if constexpr (is_expecting) is_split = detours_.is_asking != 0 && split_at(visit.expected_packet());
      const ssize_t got = is_split ? receive_split() : receive_once();
      if (got <= 0) {
        if (got == 0) {
          ++counters_.dropped_unparsable;
          continue;
        }
        receive_calls_max_ = std::max(calls, 1u);
        if (calls != 0) note_burst(calls, packets, bytes);
        may_follow_ = false;
        return packets;
      }
      bytes += static_cast<size_t>(got);
      if constexpr (BurstVisitor<Visit>) visit.begin_burst();
      size_t from = 0;
      if (is_split) from = visit_in_place(static_cast<size_t>(got), visit);
      packets += parse(receive_buffer_ + from, receive_buffer_ + got, visit) + (from != 0 ? 1 : 0);
    }
    if (calls == receive_calls_max_) receive_calls_max_ = std::min(2 * calls, kReceiveCallsMax);
    note_burst(calls, packets, bytes);
    return packets;
  }
  /// Notes what `calls` receive calls have brought.
  void note_burst(uint32_t calls, size_t packets, size_t bytes) {
    counters_.packets_received += packets;
    if (is_gro_wanted() || may_follow_ || may_be_pieces(calls, bytes)) look_for_train(calls, packets, bytes);
  }
  bool may_be_pieces(uint32_t calls, size_t bytes) const { return 2 * bytes > calls * size_t{least_datagram_bytes_}; }
  void look_for_train(uint32_t calls, size_t packets, size_t bytes);
  bool is_gro_wanted() const { return lone_bursts_ < kLoneBurstsMax; }
  /// A function of its own, because long messages should cost the common case no instruction.
  template <class Visit>
  [[gnu::noinline]] size_t receive_expecting(Visit& visit) {
    return receive_burst<true>(visit);
  }
  void note_large_packet();
  bool split_at(const ExpectedPacket& expected);
  ssize_t receive_split();
  void mend(size_t bytes);
  /// Visits the first packet of `bytes` received ones in place, and returns its length. 0: it is not the expected
  /// packet, and the receive buffer has all bytes.
  template <class Visit>
  size_t visit_in_place(size_t bytes, Visit& visit) {
    const size_t packet_bytes = kHeaderBytes + expected_.payload_bytes;
    const wire::Header header = wire::load_header(receive_buffer_);
    if (bytes < packet_bytes || !expected_.is(header)) {
      mend(bytes);
      return 0;
    }
    Payload payload;
    payload.data = expected_.place;
    payload.bytes = expected_.payload_bytes;
    visit_uncommon(visit, header, payload, nullptr);
    return packet_bytes;
  }
  /// Visits the packets between two places of the receive buffer.
  template <class Visit>
  size_t parse(const std::byte* at, const std::byte* const end, Visit& visit) {
    size_t packets = 0;
    while (static_cast<size_t>(end - at) >= kHeaderBytes) {
      const wire::Header header = wire::load_header(at);
      const size_t acceptable = std::min<size_t>(static_cast<size_t>(end - at), datagram_bytes_max_);
      Payload payload;
      payload.data = at + kHeaderBytes;
      payload.bytes = header.length() - static_cast<uint32_t>(kHeaderBytes);  // if wrong: above any space
      if (payload.bytes > acceptable - kHeaderBytes || !try_visit(visit, header, payload, nullptr)) [[unlikely]] {
        if (!wire::is_plausible(header, acceptable) || (header.flags() & wire::kByReference) != 0) {
          at = skip(at, end);
          continue;
        }
        visit_uncommon(visit, header, payload, nullptr);
        if (payload.bytes >= kInPlaceBytesMin) note_large_packet();
      }
      at = payload.data + payload.bytes;
      ++packets;
    }
    if (at != end) [[unlikely]]
      skip_tail(at, end);
    return packets;
  }
  const std::byte* skip(const std::byte* at, const std::byte* end);
  void skip_tail(const std::byte* at, const std::byte* end);

  // Every send and receive reads these fields.
  std::vector<Peer> peers_;
  Descriptor receive_socket_;
  uint32_t datagram_bytes_;         ///< a session begins with these
  uint32_t datagram_bytes_max_;     ///< a session may find by probes that these pass
  uint32_t receive_calls_max_ = 1;  ///< limit of the next receive(); doubles while all calls bring data
  uint32_t lone_bursts_ = 0;        ///< bursts in a row without a train; kLoneBurstsMax: GRO is off
  uint32_t least_datagram_bytes_;   ///< the least Peer::datagram_bytes since the endpoint had no peer
  bool may_follow_ = false;         ///< the next datagram may be of a train that began in the last burst
  std::byte* receive_buffer_;       ///< a part of receive_memory_
  socklen_t source_bytes_ = 0;      ///< length of `source_`
  uint64_t flushes_ = 0;
  uint32_t dirty_count_ = 0;  ///< peers with segments in this burst
  struct Detours {
    uint32_t blocked_peers = 0;  ///< peers with segments of earlier bursts
    uint32_t is_asking = 0;      ///< 1: the last packets were large, so the visitor is asked for the next one's place
  };
  Detours detours_;             ///< receive() reads both at once
  uint32_t segment_count_ = 0;  ///< segments of blocked peers and of this burst
  base::TickClock<> clock_;
  TransportCounters counters_;

  // The burst.
  uint32_t loopback_bytes_;  ///< kLoopbackDatagramBytes; 0: not bound to loopback, or that does not carry them
  size_t slot_bytes_;
  std::unique_ptr<std::byte[]> staging_;  ///< kSlots slots; pages are touched when used
  std::array<PeerId, kSegmentsMax> dirty_;
  std::array<Segment, kSlots> segments_;
  std::array<std::unique_ptr<std::byte[]>, kSlots> long_data_;  ///< of kept segments that are longer than their slots
  std::array<uint16_t, kSlots> order_;  ///< indices of segments: kept ones, those of this burst, free ones
  std::array<PeerId, kSegmentsMax> blocked_;
  uint32_t kept_count_ = 0;         ///< segments of blocked peers
  uint32_t burst_large_bytes_ = 0;  ///< bytes of this burst in packets of more than the safe size
  bool is_burst_full_ = false;      ///< the burst is full, and a send() was refused for that reason
  bool is_watching_ = false;        ///< blocked peers' sockets are in the epoll set
  struct Message {
    uint32_t first_segment;
    uint32_t packets;
    bool is_train;
    alignas(cmsghdr) std::byte control[kSegmentControlBytes];
  };
  std::array<mmsghdr, kSegmentsMax> headers_;
  std::array<Message, kSegmentsMax> messages_;
  std::array<iovec, 3 * kSegmentsMax> ranges_;  ///< staged bytes, data, padding
  uint32_t range_count_ = 0;

  // The receive call that runs, if it is split.
  uint32_t packets_unguessed_ = 0;  ///< large packets that are still received without a guess
  ExpectedPacket expected_;
  std::array<iovec, 3> split_;  ///< header, place, rest

  sockaddr_storage source_{};  ///< source of the datagram in the receive buffer

  // Creation, peers and waiting.
  SocketAddress bound_;
  std::array<std::byte, UdpAddressBytes::kBytesMax + 2> address_bytes_{};  ///< of `bound_`, then datagram_bytes_
  size_t address_size_ = 0;
  size_t socket_buffer_bytes_;
  UdpOffloads offloads_;
  uint32_t receive_queue_packets_ = 1;
  uint32_t padding_bytes_max_;
  uint32_t connected_max_ = kConnectedMax;
  uint32_t connected_in_process_max_ = UINT32_MAX;
  std::unique_ptr<std::byte[]> receive_memory_;
  std::unique_ptr<std::byte[]> zeros_;  ///< padding behind data that is not in a slot
  Descriptor shared_sockets_[2];        ///< for IPv4 and IPv6; opened with the first peer that needs one
  std::vector<PeerId> connected_;       ///< peers with a socket of their own
  std::vector<PeerId> free_ids_;
  std::map<PeerName, PeerId> ids_;
  pid_t pid_;  ///< a forked child must not send what its parent has queued
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer retry_;  ///< ends a sleep for a retry that no event reports
};

/// Sends to one peer several times, with the position in the open segment in registers.
class UdpImpl::Sender {
 public:
  Sender(UdpImpl& transport, PeerId id) : transport_(transport), peer_(transport.peers_[id]), id_(id) { load(); }
  [[gnu::always_inline]] ~Sender() { store(); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  [[gnu::always_inline]] bool send(const wire::Header& header, const std::byte* data, size_t len,
                                   detail::Buffer* buffer) {
    const size_t bytes = kHeaderBytes + len;
    if (bytes > space_bytes_ || len > kCopyBytesMax) [[unlikely]] {
      store();
      // The copy is made here, because an object with an address lives in memory, and the common case in registers.
      const wire::Header copy = {header.w0, header.w1, header.w2};
      const bool is_taken = transport_.send_slow(id_, copy, data, len, buffer);
      load();
      return is_taken;
    }
    store_header(write_, header, bytes);
    base::copy_bytes(write_ + kHeaderBytes, data, len);
    write_ += bytes;
    space_bytes_ -= static_cast<uint32_t>(bytes);
    ++peer_.packets;
    return true;
  }

 private:
  [[gnu::always_inline]] void load() {
    write_ = peer_.write;
    space_bytes_ = peer_.space_bytes;
  }
  [[gnu::always_inline]] void store() {
    peer_.write = write_;
    peer_.space_bytes = space_bytes_;
  }
  UdpImpl& transport_;
  Peer& peer_;
  const PeerId id_;
  std::byte* write_;
  uint32_t space_bytes_;
};

inline bool UdpImpl::send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len,
                          detail::Buffer* buffer) {
  return Sender(*this, peer).send(header, data, len, buffer);
}

}  // namespace tern::transport
