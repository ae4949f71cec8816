#include "transport/shm/shm.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/check.h"
#include "base/try.h"
#include "transport/options.h"
#include "transport/shm/shm_closer.h"

namespace tern::transport {

using shm::kCellBytes;
using shm::PeerChunk;

namespace {

/// Null: the peer has announced no such chunk.
const PeerChunk* find_chunk(const shm::Link& link, const shm::Reference& reference) {
  const bool is_known = reference.chunk_id < link.chunks.size() && link.chunks[reference.chunk_id].base != nullptr;
  return is_known ? &link.chunks[reference.chunk_id] : nullptr;
}

/// Null: the peer, which may have written anything to `reference`, refers to something outside of the chunk.
const detail::Buffer* find_buffer(const PeerChunk& chunk, const shm::Reference& reference) {
  const uint64_t offset = reference.buffer_offset;
  if (reference.bytes == 0 || reference.bytes > wire::kPayloadBytesMax || offset % alignof(detail::Buffer) != 0)
    return nullptr;
  const uint64_t after_buffer = sizeof(detail::Buffer) + uint64_t{reference.data_offset} + reference.bytes;
  if (offset > chunk.bytes || after_buffer > chunk.bytes - offset) return nullptr;
  return reinterpret_cast<const detail::Buffer*>(chunk.base + offset);
}

}  // namespace

Result<std::unique_ptr<ShmImpl>> ShmImpl::create(const Options& options, const Context& context) {
  memory::Arena& arena = context.arena;
  if (Status status = check_ranges<Shm>(options); !status.ok()) return status;
  if (!shm::is_valid_cell_count(options.ring_cells)) {
    return Status(Code::kMisuse, "shm: Shm::Options::ring_cells must be a power of two");
  }
  if (options.process_peers_max > options.peers_max) {
    return Status(Code::kMisuse, "shm: Shm::Options::process_peers_max must not be above peers_max");
  }
  if (arena.chunks().empty() || arena.chunks().front().fd < 0) {
    return Status(Code::kMisuse, "shm: the message arena must be a shared one (ArenaOptions::shared)");
  }
  auto identity = shm::make_identity();
  if (!identity.ok()) return identity.status();
  std::unique_ptr<ShmImpl> impl(new (std::nothrow) ShmImpl(options, arena));
  if (impl == nullptr) return Status(Code::kNoMemory, "shm: no memory for an endpoint: free some");
  if (Status status = impl->open(*identity); !status.ok()) return status;
  return impl;
}

Status ShmImpl::open(const shm::Identity& identity) {
  identity_ = identity;
  pid_ = ::getpid();
  if (!base::try_reserve(pending_, kPendingMax)) return {Code::kNoMemory, "shm: no memory for an endpoint: free some"};
  process_peers_max_ = options_.process_peers_max;
  if (process_peers_max_ == 0) {
    constexpr rlim_t kDescriptorsPerPeer = 2, kShare = 4, kLeast = 16;
    rlimit files{};
    const bool is_known = ::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
    const rlim_t affordable =
        is_known ? std::max<rlim_t>(files.rlim_cur / kShare / kDescriptorsPerPeer, kLeast) : UINT32_MAX;
    process_peers_max_ = static_cast<uint32_t>(std::min<rlim_t>(std::max(options_.peers_max / 4, 1u), affordable));
  }
  auto doorbell = shm::make_own_memory("tern-doorbell", shm::kDoorbellBytes);
  if (!doorbell.ok()) return doorbell.status();
  doorbell_ = std::move(*doorbell);
  auto listener = shm::listen_as(identity);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(*listener);
  spare_ = shm::Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!waits_.open() || !wake_.open() || !retry_.open() || !spare_) {
    return shm::shortage_or(errno, {Code::kUnavailable, "shm: epoll, eventfd or timerfd is refused here; use udp"});
  }
  if (!watch(listener_.get(), Watched::kListener, 0, 0) || !watch(wake_.descriptor(), Watched::kWake, 0, 0) ||
      !watch(retry_.descriptor(), Watched::kRetry, 0, 0)) {
    return shm::shortage_or(errno, {Code::kUnavailable, "shm: epoll is refused here; use udp"});
  }
  return {};
}

ShmImpl::~ShmImpl() {
  for (auto& peer : peers_) close_link(*peer);
  if (::getpid() != pid_) return;  // in a forked child, which shares the sockets with its parent
  for (Pending& pending : pending_) shm::close_elsewhere(std::move(pending.socket));
  shm::close_elsewhere(std::move(listener_));  // with the connections of its backlog
}

PeerState ShmImpl::peer_state(PeerId id) const {
  const Peer& peer = *peers_[id];
  switch (peer.stage) {
    case Stage::kConnecting:
      return PeerState::kConnecting;
    case Stage::kReady:
      return PeerState::kReady;
    case Stage::kHungUp:
      if (peer.link.is_orderly) return PeerState::kConnecting;
      return peer.out.cells != nullptr ? PeerState::kReady : PeerState::kDead;  // an attempt that has failed
    case Stage::kDead:
    case Stage::kFree:
      break;
  }
  return PeerState::kDead;
}

bool ShmImpl::send_slow(Peer& peer, const wire::Header& header, const std::byte* data, size_t len,
                        detail::Buffer* buffer) {
  if (peer.stage != Stage::kReady) return false;
  if (len > kReferenceBytesMax) {
    counters_.send_errors++;
    return true;  // counts as lost, because it would not fit later either
  }
  bool is_sent;
  if (len <= shm::kInlinePayloadBytes) {
    wire::Header sent = header;
    sent.set_length_and_flags(wire::kHeaderBytes + len, 0);
    is_sent = peer.out.try_put(sent, data, len);
  } else {
    is_sent = send_reference(peer, header, data, len, buffer);
  }
  if (!is_sent) {
    peer.is_refused = true;
    return false;
  }
  counters_.packets_sent++;
  touch(peer);
  return true;
}

bool ShmImpl::send_reference(Peer& peer, const wire::Header& header, const std::byte* data, size_t len,
                             detail::Buffer* buffer) {
  CHECK(buffer != nullptr);
  if (!peer.out.has_space(kCellBytes)) return false;
  const memory::Chunk& chunk = arena_.chunk_of(buffer);
  const auto& announced = peer.link.is_announced;
  if ((chunk.id >= announced.size() || !announced[chunk.id]) && !announce(peer, chunk)) return false;
  const shm::Reference reference = {chunk.id, buffer->lease.load(std::memory_order_relaxed),
                                    static_cast<uint64_t>(reinterpret_cast<std::byte*>(buffer) - chunk.base),
                                    static_cast<uint32_t>(data - buffer->data()), static_cast<uint32_t>(len)};
  buffer->exposed = true;
  wire::Header sent = header;
  sent.set_length_and_flags(wire::kHeaderBytes + shm::kReferenceBytes, wire::kByReference);
  peer.out.put_reference(sent, reference);
  shm::demote(reinterpret_cast<const std::byte*>(buffer));
  shm::demote(data, len);
  return true;
}

bool ShmImpl::announce(Peer& peer, const memory::Chunk& chunk) {
  Link& link = peer.link;
  if (chunk.id >= link.is_announced.size()) {
    if (!base::try_reserve(link.is_announced, chunk.id + 1)) return false;
    link.is_announced.resize(chunk.id + 1);
  }
  if (!link.socket) {
    if (chunk.id >= link.chunks.size()) {
      if (!base::try_reserve(link.chunks, chunk.id + 1)) return false;
      link.chunks.resize(chunk.id + 1);
    }
    link.chunks[chunk.id].base = chunk.base;
    link.chunks[chunk.id].bytes = chunk.bytes;
  } else {
    if (peer.is_unannounced) return false;  // housekeeping says when to try again
    counters_.system_calls++;
    const shm::SendResult sent = shm::send_chunk(link.socket.get(), chunk.id, chunk.bytes, chunk.fd);
    if (sent != shm::SendResult::kSent) {
      peer.is_unannounced = sent != shm::SendResult::kGone;
      if (peer.is_unannounced) tell_later(peer);
      return false;
    }
  }
  link.is_announced[chunk.id] = true;
  return true;
}

/// Opens a record that has no packet in its cells: a packet by reference, or padding. If the payload has been copied,
/// `header` becomes that of a packet in cells.
ShmImpl::Opened ShmImpl::open_unusual(Peer& peer, wire::Header& header, uint64_t position) {
  const std::byte* const cell = peer.in.cell_at(position);
  const uint64_t left = peer.in.bytes_to_end(position);
  if (header.w0 == 0) {
    counters_.packets_received--;  // drain() counts records
    return {{}, left};
  }
  const uint64_t used = shm::kWordBytes + header.length();
  const uint64_t record = (used + kCellBytes - 1) & ~(kCellBytes - 1);
  if (!wire::is_plausible(header, shm::kRecordBytesMax - shm::kWordBytes) || record > left) {
    counters_.dropped_unparsable++;
    peer.link.is_broken = true;
    peer.in.stop();
    hang_up(peer);
    return {{}, 0};
  }
  const shm::Reference reference = shm::take_reference(cell);
  const bool is_reference = shm::is_reference(header);
  const detail::Buffer* const buffer = is_reference ? open_reference(peer, reference) : nullptr;
  if (buffer == nullptr) {
    counters_.dropped_bad_reference++;
    counters_.packets_received--;
    return {{}, record};
  }
  peer.reference_bytes += reference.bytes;
  prefetch_reference(peer, position + record);
  const Payload payload = {buffer->data() + reference.data_offset, reference.bytes, &buffer->lease,
                           reference.lease_value};
  // If the copy fails, the visitor's copy counts the loss.
  if (payload.bytes > kCopiedReferenceBytesMax || !payload.copy_to(scratch_.bytes)) return {payload, record};
  shm::demote(reinterpret_cast<const std::byte*>(buffer));
  shm::demote(payload.data, payload.bytes);
  header.clear_flags(wire::kByReference);
  header.set_length_and_flags(wire::kHeaderBytes + payload.bytes, 0);
  return {{scratch_.bytes, payload.bytes, nullptr, 0}, record};
}

/// Reads the peer's messages, because a packet names an unknown chunk. It does so in vain at most once in a burst, so
/// that a peer that names chunks that do not exist does not cost a system call for each.
void ShmImpl::look_for_chunks(Peer& peer) {
  Link& link = peer.link;
  if (!link.socket || peer.stage != Stage::kReady || link.looked_at == peer.in.position) return;
  const uint32_t before = link.chunk_count;
  read_messages(peer, kMessagesPerLook);
  if (link.chunk_count == before) link.looked_at = peer.in.position;  // the beginning of the burst
}

/// Finds the buffer whose data a packet refers to. Null: there is none.
const detail::Buffer* ShmImpl::open_reference(Peer& peer, const shm::Reference& reference) {
  const PeerChunk* chunk = find_chunk(peer.link, reference);
  if (chunk == nullptr) {
    look_for_chunks(peer);
    chunk = find_chunk(peer.link, reference);
  }
  return chunk != nullptr ? find_buffer(*chunk, reference) : nullptr;
}

/// Prefetches the beginning of the payload of the packet at `position`, if it has come and is by reference: it is in
/// the peer's cache, and comes here while this endpoint handles the packet before.
void ShmImpl::prefetch_reference(const Peer& peer, uint64_t position) {
  const std::byte* const cell = peer.in.cell_at(position);
  if (shm::word_at(cell).load(std::memory_order_acquire) != position) return;
  if (!shm::is_reference(shm::take_header(cell))) return;
  const shm::Reference reference = shm::take_reference(cell);
  const PeerChunk* chunk = find_chunk(peer.link, reference);
  const detail::Buffer* buffer = chunk != nullptr ? find_buffer(*chunk, reference) : nullptr;
  if (buffer == nullptr) return;
  __builtin_prefetch(buffer);
  const std::byte* at = buffer->data() + reference.data_offset;
  const std::byte* const end = at + std::min(reference.bytes, kPrefetchedBytes);
  for (; at < end; at += kCellBytes) __builtin_prefetch(at);
}

/// Wakes the touched peers that flush() may have missed.
void ShmImpl::wake_rest() { wake_touched(); }

/// Tells the peer that its ring has been read up to `position`. The peer may sleep because it found the ring full.
/// Called once an eighth of the ring. While the loop is busy, flush() or before_pause() wakes it.
void ShmImpl::publish(Peer& peer, uint64_t position) {
  peer.in.publish(position);
  touch(peer);
  if (!may_miss_sleepers_) wake_touched();
}

void ShmImpl::wake_peer(Peer& peer, uint32_t sleep) {
  if (peer.woken_sleep == sleep || !peer.link.socket) return;
  counters_.system_calls++;
  switch (shm::send_plain(peer.link.socket.get(), shm::MessageType::kWake)) {
    case shm::SendResult::kSent:
    case shm::SendResult::kFull:  // the peer's queue is full and thus readable, so the peer does not sleep
      peer.woken_sleep = sleep;
      break;
    case shm::SendResult::kShort:
      tell_later(peer);
      break;
    case shm::SendResult::kGone:
      break;
  }
}

/// Makes housekeeping try again after kCallsPerRetry calls, or after kRetryNs if this endpoint sleeps.
void ShmImpl::tell_later(Peer& peer) {
  if (!peer.is_unheard) unheard_.push_back(peer.id);
  peer.is_unheard = true;
  calls_until_housekeeping_ = std::min(calls_until_housekeeping_, kCallsPerRetry);
}

/// Polls a few of the peers that are not polled at every call. A peer that has sent is polled at every call from now
/// on.
void ShmImpl::poll_others() {
  for (uint32_t left = kOthersPerCall; left != 0 && others_count_ != 0; --left) {
    if (++others_cursor_ >= others_count_) others_cursor_ = 0;
    if (others_[others_cursor_]->in.has_input()) promote(others_cursor_);
  }
}

/// Called when the burst is full. The next burst begins with the peer behind active_[active].
void ShmImpl::start_after(uint32_t active) { std::rotate(active_, active_ + active + 1, active_ + active_count_); }

/// Makes others_[other], which has input, an active peer. If there are kActivePeersMax already, it replaces a peer that
/// has sent nothing for a turn of the clock's hand.
void ShmImpl::promote(uint32_t other) {
  Peer& peer = *others_[other];
  peer.is_active = true;
  if (active_count_ < kActivePeersMax) {
    active_[active_count_++] = &peer;
    others_[other] = others_.back();
    others_.pop_back();
    others_count_--;
    return;
  }
  while (active_[clock_hand_]->is_recent) {
    active_[clock_hand_]->is_recent = false;
    clock_hand_ = (clock_hand_ + 1) % kActivePeersMax;
  }
  active_[clock_hand_]->is_active = false;
  others_[other] = active_[clock_hand_];
  active_[clock_hand_] = &peer;
  clock_hand_ = (clock_hand_ + 1) % kActivePeersMax;
}

void ShmImpl::poll_from_now_on(Peer& peer) {
  peer.is_recent = true;
  peer.is_active = active_count_ < kActivePeersMax;
  if (peer.is_active) {
    active_[active_count_++] = &peer;
  } else {
    others_.push_back(&peer);
    others_count_++;
  }
}

void ShmImpl::poll_no_more(Peer& peer) {
  if (peer.is_active) {
    Peer** const end = active_ + active_count_;
    Peer** const at = std::find(active_, end, &peer);
    if (at == end) return;
    *at = *(end - 1);
    active_count_--;
    clock_hand_ = 0;
    peer.is_active = false;
  } else if (const auto at = std::find(others_.begin(), others_.end(), &peer); at != others_.end()) {
    *at = others_.back();
    others_.pop_back();
    others_count_--;
  }
}

bool ShmImpl::prepare_wait() {
  before_pause();
  if (is_busy_) housekeep();
  retry_later();
  has_pumped_ = false;
  auto& sleep = reinterpret_cast<Doorbell*>(doorbell_.mapping.data())->sleep;
  const uint32_t value = sleep.load(std::memory_order_relaxed);
  sleep.store(value + 1 + (value & 1), std::memory_order_seq_cst);  // odd, and another value than for the last sleep
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool may_sleep = true;
  for (auto& peer : peers_) {
    if (peer->in.has_input()) may_sleep = false;
    if (!peer->is_refused || peer->stage != Stage::kReady || peer->is_unannounced) continue;
    if (peer->out.has_space(2 * shm::kRecordBytesMax)) {
      peer->is_refused = false;
      may_sleep = false;
    }
  }
  return may_sleep;
}

void ShmImpl::wait(uint64_t until_ns) { pump(until_ns, true); }

void ShmImpl::end_wait() {
  auto& sleep = reinterpret_cast<Doorbell*>(doorbell_.mapping.data())->sleep;
  const uint32_t value = sleep.load(std::memory_order_relaxed);
  if ((value & 1) != 0) sleep.store(value + 1, std::memory_order_release);
  if (has_pumped_) return;
  // The program has waited for descriptor() itself. The event that woke it must not wake it again.
  pump(0, true);
}

}  // namespace tern::transport
