// Unreliable datagrams over verbs (eRPC, section 4): one queue pair, one packet a datagram. Transport layer; owned by
// the endpoint's thread, wake() excepted.
//
//   this file           the common path: send(), flush(), receive()
//   verbs.cc            creation, waiting, events of the device, the end
//   verbs_peers.cc      peers and their address handles
//   verbs_resolver.*    threads in which address handles are made
//   verbs_address.*     addresses in the handshake
//   src/rdma            ports, registered memory, queues: the common code of transports over verbs
//
// Sending: the NIC gathers a packet from a header's slot in registered memory and from message memory. A short packet
// is sent inline, and its message memory is free after flush(). Completions release the tickets of other packets, so
// that an answer to a retransmitted request needs no flush of the NIC's queue (section 4.2.2).
//
// Receiving: the NIC writes a packet after 40 bytes for a GRH, so that the payload begins a cache line. Visitors read
// it in place; the buffer is posted again, with others, after the burst. A buffer holds the longest packet that the
// port receives.
//
// A failed queue pair is reset, which releases all tickets, and continues under the same number. If that does not help,
// or the device is gone, or the port has another address, the transport has failed for good.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/verbs.h>

#include "base/threads.h"
#include "base/tick_clock.h"
#include "base/wait.h"
#include "memory/arena.h"
#include "rdma/completions.h"
#include "rdma/port.h"
#include "rdma/receive_queue.h"
#include "rdma/registration.h"
#include "rdma/send_queue.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_address.h"
#include "transport/verbs/verbs_resolver.h"
#include "wire/header.h"
#include "wire/management.h"

namespace tern::transport {

class TERN_API VerbsImpl : public DefaultMembers {
 public:
  using Options = Verbs::Options;
  using Sender = PlainSender<VerbsImpl>;
  static constexpr std::string_view kChooseFabric =
      ": choose Verbs::Options::device and gid_index so that both have the same";
  static constexpr std::string_view kChoosePartition =
      ": choose Verbs::Options::partition_index so that both are in one partition, and one of them a full member";
  /// rto_ns_min is that of kernel UDP: the NIC takes microseconds, but a host that has lost its CPU takes some
  /// milliseconds.
  static constexpr Traits kTraits{.reports_space = true,
                                  .can_fail = true,
                                  .rto_ns_min = 1'000'000,
                                  .congestion_control = CongestionControl::kSwift,
                                  .remedies = {.packet_bytes = " (Verbs::Options::packet_bytes on either side)",
                                               .other_fabric = kChooseFabric,
                                               .other_partition = kChoosePartition}};

  /// kMisuse: an option is out of range, or above the device's limit. kUnavailable: see rdma::open_port(); also memory
  /// that cannot be registered. kNoMemory.
  static Result<std::unique_ptr<VerbsImpl>> create(Options options, const Context& context);
  ~VerbsImpl();
  VerbsImpl(const VerbsImpl&) = delete;
  VerbsImpl& operator=(const VerbsImpl&) = delete;

  std::span<const std::byte> address() const { return address_bytes_; }
  /// kMisuse: the bytes are not an address of this transport. kUnavailable: the peer is on another fabric, subnet or
  /// partition. kNoMemory.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  wire::Refusal refusal_of(std::span<const std::byte> address) const;
  PeerState peer_state(PeerId id);
  void disconnect(PeerId id);
  Status failure() const { return failure_; }
  uint32_t payload_bytes_max() const { return packet_bytes_ - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return routes_[id].packet_bytes - kHeaderBytes; }
  uint32_t receive_queue_packets() const { return receives_.count(); }
  uint64_t link_bytes_per_sec() const { return objects_->opened.port.bytes_per_sec; }
  /// A path is long, or its device is software, if its round trip without a queue is longer than this.
  DelayTarget delay_target() const { return {delay_target_ns_, delay_target_ns_, true}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    const Route& route = routes_[id];
    const size_t bytes = kHeaderBytes + len;
    if (bytes > route.quick_bytes || sends_.is_full() || (buffer == nullptr && len != 0)) [[unlikely]] {
      return send_slow(id, header, data, len, buffer);
    }
    SendQueue::Slot& slot = begin_packet(route, header, bytes);
    slot.ranges[0].length = kHeaderBytes;
    slot.ranges[1].addr = reinterpret_cast<uint64_t>(data);
    slot.ranges[1].length = static_cast<uint32_t>(len);
    slot.request.num_sge = len != 0 ? 2 : 1;
    sends_.add(slot, rdma::Reading::kInline);
    return true;
  }
  uint64_t ticket() const { return sends_.ticket(); }
  uint64_t released() const { return sends_.released(); }
  void flush() {
    if (sends_.has_queued()) post_sends();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (is_troubled_) [[unlikely]] {
      if (!recover()) return 0;
    }
    if (sends_.wants_completions()) poll_sends();
    if (arrived_ == 0 && poll_receives() == 0) return 0;
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    size_t packets = 0;
    const uint32_t arrived = arrived_;
    for (uint32_t i = 0; i < arrived; ++i) {
      wire::Header header;
      Payload payload;
      if (!open(completions_[i], &header, &payload)) [[unlikely]]
        continue;
      ++packets;
      visit_packet(visit, header, payload);
    }
    arrived_ = 0;
    counters_.packets_received += packets;
    if (receives_.wants_post()) post_receives();
    return packets;
  }

  uint64_t now() { return clock_.now_ns(); }
  bool prepare_wait();
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

 private:
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static constexpr uint32_t kRouteBytes = 40;  ///< in front of every received packet; a GRH, if it has one
  static constexpr uint32_t kSendSlots = 256;
  static constexpr uint32_t kPacketBytesMin = kHeaderBytes + wire::kPayloadBytesMin;
  /// Bytes of a slot: a header, and a payload that is not in a Buffer.
  static constexpr uint32_t kHeadBytes = kHeaderBytes + kCopiedBytesMax;
  static constexpr uint32_t kBurst = 32;
  /// Longest packet sent inline. The driver copies it into the NIC's queue, which is cheaper than a gather up to about
  /// this length.
  static constexpr uint32_t kInlineBytes = 256;
  /// Number of empty polls before one check for events of the device. A sleep is followed by a check, too.
  static constexpr uint32_t kEventPolls = 1u << 16;
  /// A queue pair has failed for good if a row of failures has more than kResetsMax, and is longer than kRowNs. A sent
  /// packet ends a row, and so does a time of kRowNs without a failure. The number alone does not suffice, because over
  /// Soft-RoCE each send fails while there is no link, and retransmissions follow within milliseconds.
  static constexpr uint32_t kResetsMax = 3;
  static constexpr uint64_t kRowNs = 2'000'000'000;

  using Lookup = VerbsResolver::Lookup;
  using SendQueue = rdma::SendQueue<kSendSlots, kHeadBytes>;

  /// The fields of a peer that each packet needs.
  struct Route {
    decltype(ibv_send_wr().wr.ud) way;  ///< `ah` is the handle of the peer's lookup; null: not made yet
    uint32_t packet_bytes = kHeaderBytes;
    uint32_t quick_bytes = 0;  ///< packets up to this length can be sent, and are sent inline
  };
  /// All other fields of a peer.
  struct Peer {
    uint32_t references = 0;
    std::shared_ptr<Lookup> lookup;
    VerbsAddress address;
  };
  /// An address handle without a peer, whose packets the NIC may not have sent yet.
  struct Retired {
    uint64_t ticket;
    std::shared_ptr<Lookup> lookup;
  };
  /// Objects that a forked child must not use, because the parent owns them. Destroyed in reverse order.
  struct Objects {
    rdma::OpenedPort opened;
    std::unique_ptr<rdma::ChunkRegistration> chunks;
    std::unique_ptr<rdma::RegisteredMemory> memory;
    rdma::CompletionEvents events;
    rdma::CompletionQueue send_completions, receive_completions;
    rdma::QueuePair pair;
    std::vector<Peer> peers;
    std::vector<Retired> retired;  ///< oldest first
    std::unique_ptr<VerbsResolver> resolver;
  };

  VerbsImpl(Options options, const Context& context);
  Status open(std::string_view listen_host);
  Status open_queues();
  Status make_queue_pair();
  int start_queue_pair();

  uint32_t key_of(const detail::Buffer* buffer) const { return objects_->chunks->key_of(arena_.chunk_of(buffer).id); }
  /// Returns the slot of the next packet, with header and destination filled in.
  SendQueue::Slot& begin_packet(const Route& route, const wire::Header& header, size_t bytes) {
    SendQueue::Slot& slot = sends_.next();
    wire::Header sent = header;
    sent.set_length_and_flags(bytes, 0);
    wire::store_header(slot.head, sent);
    slot.request.wr.ud = route.way;
    return slot;
  }
  bool send_slow(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);
  bool may_send(PeerId id);
  void post_sends();
  void poll_sends();
  void post_receives();
  /// Polls for received packets if none is left of the last poll; returns their number.
  uint32_t poll_receives() {
    const int got = ibv_poll_cq(objects_->receive_completions.get(), kBurst, completions_.data());
    if (got <= 0) [[likely]] {
      if (got < 0) [[unlikely]]
        is_troubled_ = true;
      if (++empty_polls_ % kEventPolls == 0) [[unlikely]]
        read_events();
      return 0;
    }
    arrived_ = static_cast<uint32_t>(got);
    return arrived_;
  }
  /// Reads the packet of a completion. False: it is invalid, and was counted.
  bool open(const ibv_wc& completion, wire::Header* header, Payload* payload) {
    const std::byte* const buffer = receives_.take(completion.wr_id);
    if (buffer == nullptr || completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      if (buffer != nullptr) is_troubled_ = true;
      return false;
    }
    // byte_len has the 40 bytes in front. If it has less than a header behind them, no plausible header has that
    // length.
    const uint32_t bytes = completion.byte_len - kRouteBytes;
    *header = wire::load_header(buffer + kRouteBytes);
    const bool is_good = wire::is_plausible(*header, packet_bytes_) && header->length() == bytes &&
                         (header->flags() & wire::kByReference) == 0;
    if (!is_good) [[unlikely]] {
      count_bad(*header, bytes);
      return false;
    }
    payload->data = buffer + kRouteBytes + kHeaderBytes;
    payload->bytes = bytes - kHeaderBytes;
    return true;
  }
  void count_bad(const wire::Header& header, uint32_t bytes);
  void read_events();
  bool recover();
  void fail(Status why);
  wire::Refusal refusal_of(const VerbsAddress& address) const;
  Status unreachable(const VerbsAddress& address) const;
  Result<PeerId> new_peer(const VerbsAddress& address, std::string_view host);
  std::shared_ptr<Lookup> look_up(const VerbsAddress& address, std::string_view host);
  void adopt(PeerId id);
  void bury_retired();

  base::OfThisProcess<Objects> objects_;
  SendQueue sends_;
  rdma::ReceiveQueue receives_;
  memory::Arena& arena_;
  std::vector<Route> routes_;  ///< by PeerId, as the peers
  uint32_t inline_bytes_max_ = 0;
  uint32_t packet_bytes_ = 0;
  uint32_t arrived_ = 0;  ///< packets in completions_ that have not been visited
  uint32_t empty_polls_ = 0;
  uint32_t resets_ = 0;       ///< of the queue pair, in the present row of failures
  bool is_troubled_ = false;  ///< the queue pair has failed; or, with failure_, everything
  bool is_refused_ = false;   ///< a packet was refused, because the send queue was full
  bool is_armed_ = false;
  bool is_observing_ = false;
  uint64_t row_ns_ = 0;    ///< time of the row's first failure
  uint64_t reset_ns_ = 0;  ///< time of the last failure
  std::array<ibv_wc, kBurst> completions_;
  base::TickClock<> clock_;
  TransportCounters counters_;

  Options options_;
  uint32_t delay_target_ns_;
  uint32_t own_key_ = 0;  ///< Q_Key
  Status failure_;
  VerbsAddress::Bytes address_bytes_{};
  std::map<VerbsAddress::Bytes, PeerId> ids_;
  std::vector<PeerId> free_ids_;
  base::WaitSet waits_;
  base::WakeEvent wake_;
};

}  // namespace tern::transport
