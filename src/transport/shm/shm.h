// Shared memory between the endpoints of one host: a ring per direction and pair, payloads by reference under a lease.
// Transport layer: does not know what an RPC header means. Owned by the endpoint's thread, wake() excepted.
//
//   this file             the hot path: flush(), receive()
//   shm_send.h            the hot path: send()
//   shm.cc                creation, unusual records, chunks by reference, polling, waiting
//   shm_ring.h            rings and their records
//   shm_peers.cc          peers, references, shares of processes and users
//   shm_link.cc, .h       connecting, handing over memory, the end of a connection
//   shm_accept.cc         connections that others make
//   shm_housekeeping.cc   events of descriptors, regular work
//   shm_socket.*          messages and sockets; shm_memory.*: sealed memory
//
// receive() calls housekeeping every kCallsPerHousekeeping calls, or each time while a connection changes. Functions
// that a visitor calls (connect, disconnect, send) never unmap anything: links are closed in housekeeping only.
//
// Sleeping: a sender writes its record and looks at the peer's doorbell; a sleeper writes its doorbell and looks at its
// rings. A full fence between each one's write and look makes sure that one of them sees the other. The sender's fence
// waits for all of its stores, so a busy sender fences in only one of several bursts (wake_touched()). In the others,
// flush() may miss a peer that is just falling asleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <tern/detail/export.h>
#include <tern/transport/shm.h>

#include "base/tick_clock.h"
#include "base/wait.h"
#include "transport/shm/shm_link.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_ring.h"
#include "transport/shm/shm_socket.h"
#include "transport/transport.h"

namespace tern::transport {

class TERN_API ShmImpl : public DefaultMembers {
  struct Peer;

 public:
  using Options = Shm::Options;
  /// rto_ns_min: a packet is lost only by a peer's fault. A late peer sleeps (waking a halted CPU takes 40 to 90 us) or
  /// has lost its CPU.
  static constexpr Traits kTraits{.has_shared_memory = true,
                                  .reads_clock_per_burst = false,
                                  .releases_at_once = true,
                                  .readable_bytes = shm::kCellPayloadBytes,
                                  .reports_space = true,
                                  .looks_ahead = true,
                                  .rto_ns_min = 1'000'000,
                                  .congestion_control = CongestionControl::kNone,
                                  .remedies = {.other_user = ": run both sides as one user, or set "
                                                             "Shm::Options::allow_other_users on both",
                                               .other_host = ": shared memory is for processes of one host (and one "
                                                             "container, or containers that share the network "
                                                             "namespace); use udp",
                                               .no_way_back = ": its limit of peers or descriptors is reached: raise "
                                                              "Shm::Options::peers_max or ulimit -n there"}};

  static Result<std::unique_ptr<ShmImpl>> create(const Options& options, const Context& context);
  ~ShmImpl();
  ShmImpl(const ShmImpl&) = delete;
  ShmImpl& operator=(const ShmImpl&) = delete;

  std::span<const std::byte> address() const { return identity_; }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id) const;
  void disconnect(PeerId id);
  uint32_t payload_bytes_max() const { return kReferenceBytesMax; }
  uint32_t payload_bytes_max(PeerId) const { return kReferenceBytesMax; }
  uint32_t receive_queue_packets() const { return options_.ring_cells; }
  uint64_t link_bytes_per_sec() const { return 25'000'000'000; }
  /// The target is the CPUs' time: a thread that has lost its CPU waits some milliseconds for its next turn.
  DelayTarget delay_target() const { return {10'000'000, 10'000'000, false}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);

  /// Sends to one peer several times, with the ring's position in a register. No other function may be called
  /// meanwhile.
  class Sender;
  /// Payloads are copied, or are under a lease, so that no call waits for a ticket.
  uint64_t ticket() const { return 0; }
  uint64_t released() const { return UINT64_MAX; }
  void flush() {
    if (touched_count_ == 0) return;
    if (!may_miss_sleepers_ || touched_count_ > kPeersPerFence) return wake_touched();
    for (uint32_t i = 0; i < touched_count_; i++) wake_if_asleep(*touched_[i]);
  }
  void before_burst() { may_miss_sleepers_ = true; }
  void before_pause() {
    may_miss_sleepers_ = false;
    if (touched_count_ != 0) [[unlikely]]
      wake_rest();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (--calls_until_housekeeping_ == 0) [[unlikely]]
      housekeep_or_rest();
    if (others_count_ != 0) [[unlikely]]
      poll_others();
    size_t packets = 0;
    for (uint32_t i = 0; i < active_count_; i++) {
      Peer& peer = *active_[i];
      if (!peer.in.has_input()) continue;
      packets += drain(peer, visit);
      if (packets >= kBurstPackets) [[unlikely]] {
        start_after(i);
        break;
      }
    }
    return packets;
  }

  uint64_t now() { return clock_.now_ns(); }
  bool prepare_wait();
  void wait(uint64_t until_ns);
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

 private:
  static constexpr uint32_t kReferenceBytesMax = 65536;  ///< DESIGN section 4
  /// Payloads by reference up to this length are copied to private memory before their packet is visited. The visitor
  /// then has the common case. Longer ones are copied by the visitor, to where their message is.
  static constexpr uint32_t kCopiedReferenceBytesMax = 8192;
  /// The beginning of the next packet's payload by reference that comes into the cache while a packet is visited.
  static constexpr uint32_t kPrefetchedBytes = 1024;
  static constexpr uint32_t kCallsPerHousekeeping = 1024;
  /// With more peers to look at, one fence and one look cost less than several looks.
  static constexpr uint32_t kPeersPerFence = 16;
  static constexpr uint32_t kCallsPerRetry = 64;   ///< calls until housekeeping while a message waits for a peer
  static constexpr uint32_t kActivePeersMax = 64;  ///< most peers that every call polls
  static constexpr uint32_t kOthersPerCall = 4;    ///< other peers that a call polls
  static constexpr size_t kBurstPackets = 64;      ///< a call takes about this many packets at most ...
  static constexpr size_t kPeerBurstPackets =
      32;  ///< ... and this many of one peer, so that at least two peers have their turn
  /// A peer's burst also ends after this many bytes by reference. The visitor copies 256 kB in 8 us. Meanwhile the
  /// other peers wait, and so does the peer itself: with another 256 kB in flight it needs an acknowledgement.
  static constexpr uint32_t kBurstReferenceBytes = 4 * kReferenceBytesMax;
  // Limits of the chunks that this endpoint maps: of one peer, of all endpoints of one process, and of all peers.
  static constexpr uint32_t kPeerChunksMax = 1024;
  static constexpr uint64_t kPeerChunkBytesMax = uint64_t{64} << 30;  ///< bytes of address space
  static constexpr uint32_t kProcessChunksMax = 4096;
  static constexpr uint64_t kProcessChunkBytesMax = uint64_t{1} << 40;
  static constexpr uint32_t kAllChunksMax = 16384;
  static constexpr uint64_t kAllChunkBytesMax = uint64_t{16} << 40;
  static constexpr size_t kPendingMax = 64;
  static constexpr size_t kProcessPendingMax = 16;  ///< a process with more loses its oldest connection

  // Limits of one round of housekeeping. The rest stays in the kernel's queues for the next round.
  static constexpr uint32_t kAcceptsPerVisit = 16;
  static constexpr uint64_t kAcceptNs = 100'000;  ///< no further connection is accepted after this time
  static constexpr uint32_t kMessagesPerRound = 256;
  static constexpr uint32_t kMessagesPerPeer = 64;
  static constexpr uint32_t kMessagesPerLook = 16;  ///< messages read because of an unknown chunk
  /// More messages than the queue of a socket holds (277 of the shortest in 212 992 B).
  static constexpr uint32_t kMessagesMore = 512;
  static constexpr size_t kAttemptsPerRound = 16;
  /// An endpoint with traffic spends at most a quarter of its time on housekeeping: after a round it waits this many
  /// times as long as the round took.
  static constexpr uint64_t kRestShare = 3;
  static constexpr uint32_t kCallsPerRest = 16;  ///< calls between two looks at the clock
  static constexpr uint32_t kQuietLooks =
      64;  ///< after this many looks without a packet (some 20 us of polling) there is no traffic
  /// The ring of a closed peer is read for this many rounds of housekeeping. The rest of it is then dropped.
  static constexpr uint32_t kLastRoundsMax = 4096;
  /// While a peer connects, this many rounds follow one another at once. A peer that takes longer wakes this endpoint
  /// by its socket.
  static constexpr uint32_t kConnectingRoundsMax = 4096;
  static constexpr uint64_t kRetryNs = 1'000'000;            ///< time until a retry of an action that waits for a peer
  static constexpr uint64_t kAttemptNsMax = 10'000'000'000;  ///< a peer that does not accept for this time is dead
  static constexpr uint64_t kParkedNsMax = 1'000'000'000;  ///< longest wait of a connection that cannot be accepted yet
  /// If a peer closes orderly while this endpoint refers to it, it has not yet read the message that says so. An honest
  /// peer has read the message by the second time.
  static constexpr uint32_t kReconnectsMax = 8;

  using Doorbell = shm::Doorbell;
  using Link = shm::Link;
  using PeerChunk = shm::PeerChunk;
  using Pending = shm::Pending;
  using Process = shm::Process;
  static constexpr uint32_t kNoProcess = shm::kNoProcess;

  /// kFree -> kConnecting -> kReady -> kHungUp -> kDead -> kFree. Besides:
  /// kConnecting -> kHungUp or kFree: the attempt failed.
  /// kHungUp -> kConnecting: the peer closed an unneeded connection just when a reference came.
  /// kHungUp -> kFree: there are no references.
  enum class Stage : uint8_t {
    kFree,
    kConnecting,  ///< no hello from the peer yet
    kReady,
    kHungUp,  ///< the peer is gone; the rest of its ring is still read
    kDead,    ///< no memory is mapped any more; waits for disconnect()
  };

  struct alignas(64) Peer {
    shm::Outbound out;
    const std::atomic<uint32_t>* doorbell = nullptr;  ///< the peer's; never null
    uint32_t woken_sleep = 0;     ///< the sleep that a message has ended already; one message is enough
    bool is_touched = false;      ///< on touched_
    bool is_refused = false;      ///< a send found the ring full; prepare_wait() looks for space
    bool is_unannounced = false;  ///< a send waits until the peer can get the message about a chunk
    bool is_unheard = false;      ///< on unheard_
    bool is_active = false;       ///< on active_, otherwise on others_ (when kReady or kHungUp)
    bool is_recent = false;       ///< the peer has sent since the clock's hand last passed
    shm::Inbound in;
    uint32_t reference_bytes = 0;  ///< bytes of payloads by reference since they last ended a burst
    Stage stage = Stage::kFree;
    PeerId id = 0;
    uint32_t references = 0;  ///< connect() minus disconnect()
    uint32_t serial = 0;      ///< serial number of the link's descriptors in the epoll set
    shm::Identity identity{};
    uint32_t process = kNoProcess;  ///< index in processes_
    uint32_t reconnects = 0;        ///< orderly closes by the peer since connect()
    uint64_t attempt_since_ns = 0;  ///< time of the first attempt that has to be repeated; 0: there is none
    bool is_unsettled = false;      ///< on unsettled_
    bool is_deserted = false;       ///< on deserted_
    uint64_t deserted_until = 0;    ///< value of accepted_ at which the wait ends
    uint64_t deserted_backlog = 0;  ///< backlogs_read_ at the beginning of the wait
    uint64_t deserted_ns = 0;       ///< time of that beginning
    Link link;
  };

  /// The subject of an event of the epoll set.
  enum class Watched : uint8_t { kListener, kWake, kSocket, kProcess, kPending, kRetry };

  static_assert(shm::kInlinePayloadBytes <= kCopiedReferenceBytesMax);

  /// A record whose packet is not in its cells.
  struct Opened {
    Payload payload;        ///< `data` is null if there is no packet to visit
    uint64_t record_bytes;  ///< 0: the rest of the ring cannot be read
  };

  ShmImpl(const Options& options, memory::Arena& arena) : options_(options), arena_(arena) {}

  /// Finds every sleeper only after a full fence behind the writes that the peer must see.
  void wake_if_asleep(Peer& peer) {
    const uint32_t sleep = peer.doorbell->load(std::memory_order_relaxed);
    if ((sleep & 1) != 0) [[unlikely]]
      wake_peer(peer, sleep);
  }
  /// Wakes all touched peers that sleep. Only if there are touched ones.
  [[gnu::always_inline]] void wake_touched() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    do {
      Peer& peer = *touched_[--touched_count_];
      peer.is_touched = false;
      wake_if_asleep(peer);
    } while (touched_count_ != 0);
  }
  void wake_rest();
  /// Notes that something was written for this peer to see.
  void touch(Peer& peer) {
    if (peer.is_touched) return;
    peer.is_touched = true;
    touched_[touched_count_++] = &peer;
  }

  /// Reads kPeerBurstPackets records, or fewer up to the end of the ring. There must be at least one record.
  template <class Visit>
  [[gnu::always_inline]] size_t drain(Peer& peer, Visit visit) {
    shm::Inbound& in = peer.in;
    uint64_t position = in.position;
    const std::byte* cell = in.cell_at(position);
    const std::byte* end = cell + std::min<uint64_t>(kPeerBurstPackets * shm::kCellBytes, in.bytes_to_end(position));
    std::byte* const copy = private_space();
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    if constexpr (AheadVisitor<Visit>) look_ahead(cell, end, position, visit);
    uint64_t more_cells = 0;  // cells beyond the first of each record
    do {
      const wire::Header header = shm::take_header(cell);
      const uint32_t bytes = header.length() - static_cast<uint32_t>(wire::kHeaderBytes);
      const Payload payload = {cell + shm::kPayloadOffset, bytes, nullptr, 0};
      if (bytes <= shm::kCellPayloadBytes && try_visit(visit, header, payload, copy)) [[likely]] {
        position += shm::kCellBytes;
        shm::demote(cell);
        cell += shm::kCellBytes;
      } else {
        const uint64_t record = visit_unusual(peer, position, visit);
        if (record == 0) break;
        position += record;
        shm::demote(cell, record);
        cell += record;
        more_cells += record / shm::kCellBytes - 1;
        end += std::min<uint64_t>(record - shm::kCellBytes, static_cast<uint64_t>(in.cells_end() - end));
        if (in.is_publication_due(position)) publish(peer, position);
        if (peer.reference_bytes >= kBurstReferenceBytes) {
          peer.reference_bytes = 0;
          break;
        }
      }
    } while (cell < end && shm::word_at(cell).load(std::memory_order_acquire) == position);
    const size_t records = (position - in.position) / shm::kCellBytes - more_cells;
    in.position = position;
    peer.is_recent = true;
    counters_.packets_received += records;
    if (in.is_publication_due(position)) [[unlikely]]
      publish(peer, position);
    return records;
  }

  /// Shows the visitor the packets of one cell each that have arrived. The peer may change them later.
  template <class Visit>
  static void look_ahead(const std::byte* cell, const std::byte* end, uint64_t position, Visit& visit) {
    uint64_t first_words[kAheadMax];
    static_assert(kPeerBurstPackets <= kAheadMax);
    size_t count = 0;
    for (; cell < end && shm::word_at(cell).load(std::memory_order_acquire) == position; cell += shm::kCellBytes) {
      first_words[count++] = shm::take_header(cell).w0;
      position += shm::kCellBytes;
    }
    if (count > 1) visit.look_ahead({first_words, count});
  }

  /// Memory into which visitors copy a packet before they read it. Null: they read the packet in place.
  std::byte* private_space() { return options_.trust_peers ? nullptr : scratch_.bytes; }

  /// Visits a record that try_visit() has not taken. Returns its length; 0: the rest of the ring cannot be read.
  template <class Visit>
  [[gnu::noinline]] uint64_t visit_unusual(Peer& peer, uint64_t position, Visit visit) {
    const std::byte* const cell = peer.in.cell_at(position);
    wire::Header header = shm::take_header(cell);  // read again, because the peer may have changed it
    const uint32_t bytes = header.length() - static_cast<uint32_t>(wire::kHeaderBytes);
    if (bytes <= shm::kInlinePayloadBytes && shm::is_plain(header.w0)) {
      const Payload payload = {cell + shm::kPayloadOffset, bytes, nullptr, 0};
      const uint64_t record = shm::record_bytes(bytes);
      if (record == shm::kCellBytes) {
        visit_uncommon(visit, header, payload, private_space());
        return record;
      }
      if (record <= peer.in.bytes_to_end(position)) {
        visit_packet(visit, header, payload, private_space());
        return record;
      }
    }
    const Opened opened = open_unusual(peer, header, position);
    // The visitor may take microseconds, in which the next record can come into the cache.
    __builtin_prefetch(peer.in.cell_at(position + opened.record_bytes));
    if (opened.payload.data != nullptr) visit(header, opened.payload);
    return opened.record_bytes;
  }

  // shm.cc
  Status open(const shm::Identity& identity);
  bool send_slow(Peer& peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);
  bool send_reference(Peer& peer, const wire::Header& header, const std::byte* data, size_t len,
                      detail::Buffer* buffer);
  bool announce(Peer& peer, const memory::Chunk& chunk);
  Opened open_unusual(Peer& peer, wire::Header& header, uint64_t position);
  const detail::Buffer* open_reference(Peer& peer, const shm::Reference& reference);
  static void prefetch_reference(const Peer& peer, uint64_t position);
  void look_for_chunks(Peer& peer);
  void publish(Peer& peer, uint64_t position);
  void wake_peer(Peer& peer, uint32_t sleep);
  void tell_later(Peer& peer);
  void poll_others();
  void promote(uint32_t other);
  void start_after(uint32_t active);
  void poll_from_now_on(Peer& peer);
  void poll_no_more(Peer& peer);

  // shm_peers.cc
  Result<Peer*> new_peer(const shm::Identity& identity);
  bool add_peer();
  void free_peer(Peer& peer);
  void set_stage(Peer& peer, Stage stage);
  void unsettle(Peer& peer);
  void settle_references(Peer& peer);
  Status charge(Peer& peer, const shm::PeerProcess& process);
  void discharge(Peer& peer);
  bool may_map_chunk(const Peer& peer, uint64_t bytes) const;
  void count_chunks(const Peer& peer, int64_t chunks, int64_t bytes);

  // shm_link.cc
  Status prepare_ring(Peer& peer);
  Status start_attempt(Peer& peer);
  Status try_attempt(Peer& peer);
  Status link_to_self(Peer& peer);
  Status link_up(Peer& peer, shm::Message& hello);
  bool accept_as(Peer& peer, Pending& pending);
  void attach(Peer& peer, const shm::Hello& hello, const std::byte* in, const Doorbell* doorbell);
  void end_connection(Peer& peer);
  void close_link(Peer& peer);
  void hang_up(Peer& peer);
  uint32_t read_messages(Peer& peer, uint32_t limit);
  bool handle_message(Peer& peer, shm::Message& message);
  bool map_chunk(Peer& peer, shm::Message& message);

  // shm_accept.cc
  void accept_some();
  bool accept_one();
  void close_refused(Pending& pending);
  void pause_accepting();
  void resume_accepting();
  void evict_pending_for(const shm::PeerProcess& process);
  void serve_pending();
  bool park(Pending& pending, uint64_t retry_ns);
  bool is_settled(Pending& pending);
  bool is_owner_of(const Pending& pending, bool& is_busy) const;

  // shm_housekeeping.cc
  bool watch(int fd, Watched what, uint32_t serial, PeerId id);
  void unwatch(shm::Descriptor& fd);
  void pump(uint64_t deadline_ns, bool ends_wait);
  void retry_later();
  void housekeep();
  void housekeep_or_rest();
  void close_ended();
  bool may_still_come(const Peer& peer);
  void take_from(std::vector<PeerId>& list, size_t count_max);
  bool has_to_retry() const;
  void housekeep_soon() {
    calls_until_housekeeping_ = 1;
    is_busy_ = true;
  }

  struct alignas(64) Scratch {
    std::byte bytes[kCopiedReferenceBytesMax];  ///< the private copy of the payload that is being visited
  };

  // Fields that every packet touches come first.
  const Options options_;
  uint32_t calls_until_housekeeping_ = kCallsPerHousekeeping;
  uint32_t active_count_ = 0;
  uint32_t others_count_ = 0;
  uint32_t touched_count_ = 0;
  bool may_miss_sleepers_ = false;            ///< flush() need not fence
  std::vector<std::unique_ptr<Peer>> peers_;  ///< by PeerId; objects are reused, never freed
  std::vector<Peer*> touched_;  ///< peers written to since the last wake_touched(); as many elements as peers_
  std::vector<Peer*> others_;   ///< peers that are not active; others_count_ elements
  uint32_t others_cursor_ = 0;
  uint32_t clock_hand_ = 0;
  base::TickClock<> clock_;
  TransportCounters counters_;
  Peer* active_[kActivePeersMax] = {};
  Scratch scratch_ = {};

  memory::Arena& arena_;
  shm::Identity identity_{};
  pid_t pid_ = 0;  ///< the process that made the endpoint; a forked child must not use its sockets
  shm::OwnMemory doorbell_;
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer retry_;  ///< ends a sleep for a retry that no event reports
  shm::Descriptor listener_;
  shm::Descriptor spare_;    ///< closed for a moment to refuse a connection when descriptors have run out
  bool has_pumped_ = false;  ///< pump() was called since prepare_wait()

  uint32_t process_peers_max_ = 0;
  std::map<shm::Identity, PeerId> by_identity_;  ///< kConnecting, kReady, and kHungUp if orderly
  // add_peer() reserves an element for each peer in all of these lists, so that a peer's actions need no memory for
  // them.
  std::vector<Process> processes_;
  std::vector<PeerId> free_ids_;
  std::vector<PeerId> attempts_;    ///< peers that are kConnecting, whose attempt has not started
  std::vector<PeerId> deserted_;    ///< peers that are kConnecting, whose connection has ended
  std::vector<PeerId> closing_;     ///< peers that are kHungUp
  std::vector<PeerId> unsettled_;   ///< peers whose references here have changed, or that have sent kHold or kRelease
  std::vector<PeerId> unheard_;     ///< peers that missed a message because the system was short of memory
  std::vector<PeerId> taken_;       ///< elements of one of these lists, which are handled now
  std::vector<Pending> pending_;    ///< kPendingMax elements are reserved
  uint32_t connecting_ = 0;         ///< peers that are kConnecting
  uint32_t connecting_rounds_ = 0;  ///< rounds of housekeeping since the last of these peers began
  uint32_t last_serial_ = 0;
  uint32_t messages_left_ = 0;     ///< messages left to read in this round of housekeeping
  uint32_t chunks_ = 0;            ///< mapped chunks of all peers
  uint64_t chunk_bytes_ = 0;       ///< sum of their sizes
  uint64_t accepted_ = 0;          ///< connections that the system has handed over
  uint64_t backlogs_read_ = 0;     ///< number of times that the backlog was found empty
  uint64_t next_attempts_ns_ = 0;  ///< attempts do not begin before this time
  bool has_backlog_ = false;       ///< the last look left connections there
  bool is_accepting_ = true;       ///< new connections have events
  bool is_busy_ = false;           ///< the next round of housekeeping follows at once
  uint64_t rest_until_ns_ = 0;     ///< no housekeeping before this time if there is traffic
  uint64_t packets_at_look_ = 0;   ///< counters_.packets_received at the last look at the clock
  uint32_t quiet_looks_ = 0;       ///< consecutive looks at the clock without a packet before
};

}  // namespace tern::transport

#include "transport/shm/shm_send.h"  // IWYU pragma: export
