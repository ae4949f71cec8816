// Shared memory between the endpoints of one host: a ring per direction and pair, payloads by reference under a lease.
// Transport room: does not know what an RPC header means. Owned by the endpoint's thread, wake() excepted.
//
// Hot path (this file): send, flush, receive. Rings: shm_ring.h. Finding peers, handing over memory, and ends of
// peers: shm_link.cc, called from receive() every kCallsPerHousekeeping calls, or each time while something is under
// way. What a visitor calls (connect, disconnect, send) never unmaps anything: links are closed in housekeeping only.
//
// Sleeping: a sender writes its record and looks at the peer's doorbell; a sleeper writes its doorbell and looks at its
// rings. A full fence between each one's write and look makes sure that one of them sees the other. The sender's, once
// a burst, showed no consistent difference against asymmetric fences by membarrier(2), near or far.
#pragma once

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

#include "transport/shm_memory.h"
#include "transport/shm_ring.h"
#include "transport/shm_socket.h"
#include "transport/transport.h"

namespace tern::transport {

class TERN_API ShmImpl {
  struct Peer;

 public:
  using Options = Shm::Options;
  static constexpr bool kShared = true;
  static constexpr bool kTimesHandlers = false;
  static constexpr bool kTellsRoom = true;
  /// Nothing is lost here but by a peer's fault; what is late is a peer that sleeps (waking a halted CPU takes 40 to
  /// 90 us) or has lost its CPU.
  static constexpr uint64_t kRtoNsMin = 1'000'000;
  static constexpr CongestionControl kCongestionControl = CongestionControl::kNone;

  static Result<std::unique_ptr<ShmImpl>> create(const Options& options, memory::Arena& arena);
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
  /// Of the CPUs: a thread that has lost its own waits some milliseconds for its next turn.
  DelayTarget delay_target() const { return {10'000'000, 10'000'000, false}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);

  /// send() to one peer several times, with the ring's position in a register. Nothing else may be called meanwhile.
  class Sender;
  /// What was sent was copied, or is under a lease: no ticket is ever waited for.
  uint64_t ticket() const { return 0; }
  uint64_t released() const { return UINT64_MAX; }
  void flush() {
    uint32_t left = touched_count_;
    if (left == 0) return;
    touched_count_ = 0;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    do {
      Peer& peer = *touched_[--left];
      peer.is_touched = false;
      wake_if_asleep(peer);
    } while (left != 0);
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

  uint64_t now() const;
  bool prepare_wait();
  void wait(uint64_t until_ns);
  void end_wait();
  int descriptor() const { return epoll_.get(); }
  void wake();
  const TransportCounters& counters() const { return counters_; }

 private:
  static constexpr uint32_t kReferenceBytesMax = 65536;  ///< DESIGN section 4
  static constexpr uint32_t kCallsPerHousekeeping = 1024;
  static constexpr uint32_t kCallsPerRetry = 64;   ///< instead, while something waits for a peer to take it
  static constexpr uint32_t kActivePeersMax = 64;  ///< polled at every call
  static constexpr uint32_t kOthersPerCall = 4;    ///< of the rest
  static constexpr size_t kBurstPackets = 64;      ///< a call takes about this many at most ...
  static constexpr size_t kPeerBurstPackets =
      32;  ///< ... and at most this many from one peer: at least two have their turn
  /// ... and its burst ends whenever it has sent so much by reference: what the visitor copies, 256 kB in 8 us, keeps
  /// the others waiting, and the sender, which has as much again in flight, for an acknowledgement.
  static constexpr uint32_t kBurstReferenceBytes = 4 * kReferenceBytesMax;
  // What peers can take of this endpoint: one of them, all endpoints of one process, and all together.
  static constexpr uint32_t kPeerChunksMax = 1024;
  static constexpr uint64_t kPeerChunkBytesMax = uint64_t{64} << 30;  ///< of address space
  static constexpr uint32_t kProcessChunksMax = 4096;
  static constexpr uint64_t kProcessChunkBytesMax = uint64_t{1} << 40;
  static constexpr uint32_t kAllChunksMax = 16384;
  static constexpr uint64_t kAllChunkBytesMax = uint64_t{16} << 40;
  static constexpr size_t kPendingMax = 64;
  static constexpr size_t kProcessPendingMax = 16;  ///< a process beyond it pushes out its own oldest connection

  // What a round of housekeeping does at most; the rest stays in the kernel's queues for the next one.
  static constexpr uint32_t kAcceptsPerVisit = 16;
  static constexpr uint64_t kAcceptNs = 100'000;  ///< no further connection is accepted after this time
  static constexpr uint32_t kMessagesPerRound = 256;
  static constexpr uint32_t kMessagesPerPeer = 64;
  static constexpr uint32_t kMessagesPerLook = 16;  ///< for the sake of an unknown chunk
  /// Than the queue of a socket holds (277 of the shortest in 212 992 B).
  static constexpr uint32_t kMessagesMore = 512;
  static constexpr size_t kAttemptsPerRound = 16;
  /// An endpoint that has traffic keeps house for a quarter of its time at most: then it rests for so many times as
  /// long.
  static constexpr uint64_t kRestShare = 3;
  static constexpr uint32_t kCallsPerRest = 16;  ///< between two looks at the clock
  static constexpr uint32_t kQuietLooks = 64;    ///< without a packet, and there is no traffic: some 20 us of polling
  /// How many rounds of housekeeping what a closed peer has left in its ring is still read, before it is dropped.
  static constexpr uint32_t kLastRoundsMax = 4096;
  /// So many rounds the next one follows at once because a peer is connecting; one that takes longer wakes us by its
  /// socket.
  static constexpr uint32_t kConnectingRoundsMax = 4096;
  static constexpr uint64_t kRetryNs = 1'000'000;            ///< what waits for a peer is tried again
  static constexpr uint64_t kAttemptNsMax = 10'000'000'000;  ///< for a peer that does not accept; then it is dead
  static constexpr uint64_t kParkedNsMax = 1'000'000'000;    ///< for a connection that cannot be accepted yet
  /// A peer that closes orderly while we refer to it has not heard of that yet. An honest one has by the second time.
  static constexpr uint32_t kReconnectsMax = 8;

  /// A page that only this endpoint writes and all its peers see.
  struct Doorbell {
    std::atomic<uint32_t> sleep;  ///< counts up at falling asleep and at waking: odd while asleep
  };
  static constexpr size_t kDoorbellBytes = 4096;

  /// kFree -> kConnecting -> kReady -> kHungUp -> kDead -> kFree, each only in that order, but:
  /// kConnecting -> kHungUp, kFree (attempt failed); kHungUp -> kConnecting (the peer had closed an unneeded connection
  /// while we came to need it) and -> kFree (nobody refers to it).
  enum class Stage : uint8_t {
    kFree,
    kConnecting,  ///< no hello from the peer yet
    kReady,
    kHungUp,  ///< the peer is gone; what is left in its ring is still read
    kDead,    ///< nothing mapped any more; waits for disconnect()
  };

  /// A chunk of the peer's message arena.
  struct PeerChunk {
    const std::byte* base = nullptr;
    size_t bytes = 0;
    shm::Mapping mapping;  ///< empty if the peer is this endpoint itself
  };

  /// One connection: everything that ends with it.
  struct Link {
    shm::Descriptor socket;
    shm::Descriptor process;  ///< watched, as a forked child may keep the socket of a dead peer open
    shm::OwnMemory out;       ///< the ring that we write
    uint64_t out_start = 0;
    shm::Mapping in;  ///< the ring that we read
    shm::Mapping doorbell;
    std::vector<PeerChunk> chunks;   ///< by chunk id
    uint32_t chunk_count = 0;        ///< that are mapped
    uint64_t chunk_bytes = 0;        ///< sum
    uint64_t looked_at = 0;          ///< burst in which messages were read in vain for the sake of an unknown chunk
    std::vector<bool> is_announced;  ///< by our chunk ids
    uint32_t rounds = 0;             ///< of housekeeping since kHungUp
    bool is_initiator = false;       ///< we have connected; only this side closes an unneeded connection
    bool is_orderly = false;         ///< closed as unneeded, not by death
    bool is_broken = false;          ///< the peer broke the rules of its ring: it is not read any more
    bool told_hold = false;          ///< the last that the peer heard of our references
    bool peer_holds = false;         ///< the last that we heard of the peer's
  };

  struct alignas(64) Peer {
    shm::Outbound out;
    const std::atomic<uint32_t>* doorbell = nullptr;  ///< the peer's; never null
    uint32_t woken_sleep = 0;                         ///< its sleep that we have ended: one message suffices
    bool is_touched = false;                          ///< on touched_
    bool is_refused = false;                          ///< a send found the ring full; prepare_wait() looks for room
    bool is_unannounced = false;                      ///< a send waits until the peer can be told of a chunk
    bool is_unheard = false;                          ///< on unheard_
    bool is_active = false;                           ///< on active_, else on others_ (when kReady or kHungUp)
    bool is_recent = false;                           ///< has sent since the clock's hand last passed
    shm::Inbound in;
    uint32_t reference_bytes = 0;  ///< visited since it last ended a burst
    Stage stage = Stage::kFree;
    PeerId id = 0;
    uint32_t references = 0;  ///< connect() minus disconnect()
    uint32_t serial = 0;      ///< of the link's descriptors in the epoll set
    shm::Identity identity{};
    uint32_t process = kNoProcess;  ///< in processes_
    uint32_t reconnects = 0;        ///< since it was last connected to: the peer has closed orderly all the same
    uint64_t attempt_since_ns = 0;  ///< of the first attempt that is to be repeated; 0: none
    bool is_unsettled = false;      ///< on unsettled_
    bool is_deserted = false;       ///< on deserted_
    uint64_t deserted_until = 0;    ///< a number of accepted_
    uint64_t deserted_backlog = 0;  ///< backlogs_read_ at that time
    Link link;
  };

  /// An accepted connection before it belongs to a peer.
  struct Pending {
    shm::Descriptor socket;
    uint32_t serial = 0;
    shm::PeerProcess process;
    bool is_readable = false;
    bool has_hello = false;
    bool is_owner = false;   ///< of the identity in its hello
    uint64_t parked_ns = 0;  ///< since when it waits for its turn; 0: it does not
    uint64_t retry_ns = 0;
    shm::Message message;
  };

  /// Another process, and what its endpoints have of this one.
  struct Process {
    shm::PeerProcess name;
    uint32_t peers = 0;  ///< 0: the place is free
    uint32_t chunks = 0;
    uint64_t chunk_bytes = 0;
  };
  static constexpr uint32_t kNoProcess = UINT32_MAX;

  /// What an event of the epoll set is about.
  enum class Watched : uint8_t { kListener, kWake, kSocket, kProcess, kPending, kRetry };

  /// A record that is not simply one packet in one cell.
  struct Opened {
    Payload payload;        ///< without data: nothing to visit
    uint64_t record_bytes;  ///< 0: the ring cannot be read on
  };

  ShmImpl(const Options& options, memory::Arena& arena) : options_(options), arena_(arena) {}

  /// After a full fence behind whatever the peer is to find.
  void wake_if_asleep(Peer& peer) {
    const uint32_t sleep = peer.doorbell->load(std::memory_order_relaxed);
    if ((sleep & 1) != 0) [[unlikely]]
      wake_peer(peer, sleep);
  }
  void touch(Peer& peer) {
    if (peer.is_touched) return;
    peer.is_touched = true;
    touched_[touched_count_++] = &peer;
  }

  /// Reads about kPeerBurstPackets cells; there is at least one record.
  template <class Visit>
  [[gnu::always_inline]] size_t drain(Peer& peer, Visit visit) {
    shm::Inbound& in = peer.in;
    uint64_t position = in.position;
    const uint64_t until = position + kPeerBurstPackets * shm::kCellBytes;
    const std::byte* cell = in.cell_at(position);
    std::byte* const room = options_.trust_peers ? nullptr : scratch_.bytes + shm::kPayloadOffset;
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    uint64_t more_cells = 0;  // of records than one each
    do {
      const wire::Header header = shm::take_header(cell);
      const uint32_t bytes = header.length() - static_cast<uint32_t>(wire::kHeaderBytes);
      if (bytes <= shm::kCellPayloadBytes && shm::is_plain(header.w0)) [[likely]] {
        const Payload payload = {cell + shm::kPayloadOffset, bytes, nullptr, 0};
        position += shm::kCellBytes;
        if constexpr (BurstVisitor<Visit>) {
          visit.in_burst(header, payload, room);
        } else {
          visit(header, Payload{private_copy(payload, room), bytes, nullptr, 0});
        }
      } else {
        const uint64_t record = visit_unusual(peer, header.w0, header.w1, header.w2, position, visit);
        if (record == 0) break;
        position += record;
        more_cells += record / shm::kCellBytes - 1;
        if (peer.reference_bytes >= kBurstReferenceBytes) {
          peer.reference_bytes = 0;
          break;
        }
      }
      cell = in.cell_at(position);
    } while (position < until && shm::word_at(cell).load(std::memory_order_acquire) == position);
    const size_t records = (position - in.position) / shm::kCellBytes - more_cells;
    in.position = position;
    peer.is_recent = true;
    counters_.packets_received += records;
    if (in.is_publication_due()) [[unlikely]]
      publish(peer);
    return records;
  }

  /// A record that is not simply one packet in one cell; returns its length, 0: the ring cannot be read on.
  template <class Visit>
  [[gnu::noinline]] uint64_t visit_unusual(Peer& peer, uint64_t w0, uint64_t w1, uint64_t w2, uint64_t position,
                                           Visit visit) {
    const Opened opened = open_unusual(peer, w0, position);
    // What the visitor does may take microseconds, in which the next record can come near.
    __builtin_prefetch(peer.in.cell_at(position + opened.record_bytes));
    if (opened.payload.data != nullptr) visit(wire::Header{w0, w1, w2}, opened.payload);
    if (opened.payload.lease != nullptr) peer.reference_bytes += opened.payload.bytes;
    return opened.record_bytes;
  }

  // shm.cc
  Status open(const shm::Identity& identity);
  bool send_slow(Peer& peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);
  bool send_reference(Peer& peer, const wire::Header& header, const std::byte* data, size_t len,
                      detail::Buffer* buffer);
  bool announce(Peer& peer, const memory::Chunk& chunk);
  [[gnu::cold]] Opened open_unusual(Peer& peer, uint64_t w0, uint64_t position);
  bool open_reference(Peer& peer, const std::byte* descriptor, Payload& payload);
  void look_for_chunks(Peer& peer);
  void publish(Peer& peer);
  void wake_peer(Peer& peer, uint32_t sleep);
  void tell_later(Peer& peer);
  void poll_others();
  void promote(uint32_t other);
  void start_after(uint32_t active);
  void poll_from_now_on(Peer& peer);
  void poll_no_more(Peer& peer);

  // shm_link.cc: what happens between endpoints besides packets
  Result<Peer*> new_peer(const shm::Identity& identity);
  bool add_peer();
  void free_peer(Peer& peer);
  void set_stage(Peer& peer, Stage stage);
  void unsettle(Peer& peer);
  Status charge(Peer& peer, const shm::PeerProcess& process);
  void discharge(Peer& peer);
  bool may_map_chunk(const Peer& peer, uint64_t bytes) const;
  void count_chunks(const Peer& peer, int64_t chunks, int64_t bytes);
  Status prepare_ring(Peer& peer);
  Status start_attempt(Peer& peer);
  Status try_attempt(Peer& peer);
  Status link_to_self(Peer& peer);
  Status link_up(Peer& peer, shm::Message& hello);
  bool accept_as(Peer& peer, Pending& pending);
  void attach(Peer& peer, const shm::Hello& hello, const std::byte* in, const Doorbell* doorbell);
  bool watch(int fd, Watched what, uint32_t serial, PeerId id);
  void unwatch(shm::Descriptor& fd);
  void pump(const struct timespec* timeout, bool ends_wait);
  void accept_some();
  bool accept_one();
  void make_pending_room(const shm::PeerProcess& process);
  void serve_pending();
  bool is_settled(Pending& pending);
  bool park(Pending& pending, uint64_t retry_ns);
  bool is_owner_of(const Pending& pending, bool& is_busy) const;
  uint32_t read_messages(Peer& peer, uint32_t limit);
  bool handle_message(Peer& peer, shm::Message& message);
  bool map_chunk(Peer& peer, shm::Message& message);
  void hang_up(Peer& peer);
  void end_connection(Peer& peer);
  void close_link(Peer& peer);
  void settle_references(Peer& peer);
  void housekeep();
  void housekeep_or_rest();
  void close_ended();
  void take_from(std::vector<PeerId>& list, size_t count_max);
  bool has_to_retry() const;
  void housekeep_soon() {
    calls_until_housekeeping_ = 1;
    is_busy_ = true;
  }
  void retry_later();

  struct alignas(64) Scratch {
    std::byte bytes[shm::kRecordBytesMax];  ///< the private copy of the record that is being visited
  };

  // What every packet touches comes first.
  const Options options_;
  uint32_t calls_until_housekeeping_ = kCallsPerHousekeeping;
  uint32_t active_count_ = 0;
  uint32_t others_count_ = 0;
  uint32_t touched_count_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< by PeerId; objects are reused, never freed
  std::vector<Peer*> touched_;                ///< as long as peers_; sent to in this burst
  std::vector<Peer*> others_;                 ///< others_count_ of them
  uint32_t others_cursor_ = 0;
  uint32_t clock_hand_ = 0;
  TransportCounters counters_;
  Peer* active_[kActivePeersMax] = {};
  Scratch scratch_ = {};

  memory::Arena& arena_;
  shm::Identity identity_{};
  pid_t pid_ = 0;  ///< a forked child must not speak for its parent
  shm::OwnMemory doorbell_;
  shm::Descriptor epoll_, listener_, wake_;
  shm::Descriptor retry_;    ///< a timer, for a sleeper who has to try something again
  shm::Descriptor spare_;    ///< given up for a moment to refuse a connection when descriptors have run out
  bool has_pumped_ = false;  ///< since prepare_wait()

  uint32_t process_peers_max_ = 0;
  std::map<shm::Identity, PeerId> by_identity_;  ///< kConnecting, kReady, and kHungUp if orderly
  // All have room for all peers, since add_peer(): nothing that a peer does needs memory for them.
  std::vector<Process> processes_;
  std::vector<PeerId> free_ids_;
  std::vector<PeerId> attempts_;    ///< kConnecting, and still to be started
  std::vector<PeerId> deserted_;    ///< kConnecting, and the connection has ended
  std::vector<PeerId> closing_;     ///< kHungUp
  std::vector<PeerId> unsettled_;   ///< references have changed, or what the peer says of its own
  std::vector<PeerId> unheard_;     ///< the system was short of what a message to them takes
  std::vector<PeerId> taken_;       ///< of one of these, to be gone through now
  std::vector<Pending> pending_;    ///< has room for kPendingMax
  uint32_t connecting_ = 0;         ///< peers that are kConnecting
  uint32_t connecting_rounds_ = 0;  ///< of housekeeping since the last of them began
  uint32_t last_serial_ = 0;
  uint32_t messages_left_ = 0;     ///< that this round may still read
  uint32_t chunks_ = 0;            ///< of all peers, mapped
  uint64_t chunk_bytes_ = 0;       ///< sum
  uint64_t accepted_ = 0;          ///< connections, by the system
  uint64_t backlogs_read_ = 0;     ///< how often none was left
  uint64_t next_attempts_ns_ = 0;  ///< not before that
  bool has_backlog_ = false;       ///< the last look left some
  bool is_busy_ = false;           ///< the next round of housekeeping is not to wait
  uint64_t rest_until_ns_ = 0;     ///< of housekeeping, if there is traffic
  uint64_t packets_at_look_ = 0;   ///< counters_.packets_received at the last look at the clock
  uint32_t quiet_looks_ = 0;       ///< in a row, without a packet before
};

class ShmImpl::Sender {
 public:
  Sender(ShmImpl& transport, PeerId id)
      : transport_(transport), peer_(*transport.peers_[id]), position_(peer_.out.position), limit_(peer_.out.limit) {}
  [[gnu::always_inline]] ~Sender() { settle(); }  // in cold code, too: else the object has an address
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  [[gnu::always_inline]] bool send(const wire::Header& header, const std::byte* data, size_t len,
                                   detail::Buffer* buffer) {
    if (len > shm::kCellPayloadBytes || position_ == limit_) [[unlikely]] {
      settle();
      // A copy, made here and nowhere else: what has an address lives in memory, and the common case in registers.
      const wire::Header copy = {header.w0, header.w1, header.w2};
      const bool is_sent = transport_.send_slow(peer_, copy, data, len, buffer);
      position_ = peer_.out.position;
      limit_ = peer_.out.limit;
      return is_sent;
    }
    wire::Header sent = header;
    sent.add_length(wire::kHeaderBytes + len);
    peer_.out.put_cell(position_, sent, data, len);
    position_ += shm::kCellBytes;
    return true;
  }

 private:
  /// What the ring and the counters have to know of the packets of one cell each.
  [[gnu::always_inline]] void settle() {
    if (position_ == peer_.out.position) return;
    transport_.touch(peer_);
    transport_.counters_.packets_sent += (position_ - peer_.out.position) / shm::kCellBytes;
    peer_.out.position = position_;
  }
  ShmImpl& transport_;
  Peer& peer_;
  uint64_t position_;
  uint64_t limit_;
};

inline bool ShmImpl::send(PeerId id, const wire::Header& header, const std::byte* data, size_t len,
                          detail::Buffer* buffer) {
  return Sender(*this, id).send(header, data, len, buffer);
}

}  // namespace tern::transport
