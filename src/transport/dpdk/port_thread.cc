#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/threads.h"
#include "frames/parse.h"
#include "transport/dpdk/port_core.h"

namespace tern::transport {

namespace {

/// Interval between two polls; the longer one after a time without work.
constexpr uint64_t kLookNs = 1'000'000, kLongLookNs = 8'000'000;
/// Bounds of the interval while endpoints sleep that no interrupt would wake. The interval is a sixteenth of the time
/// since the last frame: after a long wait a frame waits a little longer, and wake-ups are rare (each costs 5 to 40 us
/// of CPU).
constexpr uint64_t kNapNs = 100'000, kLongNapNs = 2'000'000;
constexpr uint64_t kLinkNs = 100'000'000;
constexpr uint32_t kBurstsMax = 32;  ///< from one queue in a row

std::span<const std::byte> bytes_of(const rte_mbuf* frame) {
  return {rte_pktmbuf_mtod(frame, const std::byte*), rte_pktmbuf_data_len(frame)};
}

}  // namespace

// ---- Frames from one endpoint to another, or to the host. Any thread.

LaneSlot* PortCore::find(ethernet::LaneKey key) const {
  if (key == 0) return nullptr;
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    LaneSlot* const slot = slots_[i].load(std::memory_order_relaxed);
    if (slot->key.load(std::memory_order_relaxed) == key) return slot;
  }
  return nullptr;
}

void PortCore::hand_over(rte_mbuf* frame, LaneSlot& slot, Waking waking, uint32_t frames_max) {
  if (slot.inbox.count() >= frames_max || !slot.inbox.push(frame)) {
    rte_pktmbuf_free(frame);
    drops_.add_no_space();
    return;
  }
  if (waking == Waking::kLater) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with the one of DpdkLane::arm()
  if (slot.is_armed.load(std::memory_order_relaxed)) slot.wake.wake();
}

void PortCore::wake_sleepers() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with the one of DpdkLane::arm()
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    LaneSlot* const slot = slots_[i].load(std::memory_order_relaxed);
    if (slot->is_armed.load(std::memory_order_relaxed) && !slot->inbox.is_empty()) slot->wake.wake();
  }
}

/// Limits the received frames in an inbox, so that the inboxes of endpoints that do not run cannot take all frames of a
/// queue from other endpoints and the host. The only endpoint at a queue may have half of the frames that the device
/// does not need, because each look at a queue that its endpoint does not poll moves up to 1024 frames.
uint32_t PortCore::inbox_frames_max(const rte_mbuf* frame, const LaneSlot& slot) const {
  constexpr uint32_t kSharesMin = 16;  // so that the inboxes of the first endpoints do not fill before others attach
  const PortQueue& home = queues_[slot.queue.load(std::memory_order_relaxed)];
  const bool is_alone = frame->pool == home.pool.get() && home.lanes.load(std::memory_order_relaxed) == 1;
  const uint32_t shares = is_alone ? 2 : std::max(kSharesMin, slot_count_.load(std::memory_order_relaxed));
  return (plan_.mbufs - plan_.receive_descriptors) / shares;
}

bool PortCore::pass_on(rte_mbuf* frame, const LaneSlot* from, Waking waking) {
  const std::span<const std::byte> bytes = bytes_of(frame);
  LaneSlot* const slot = find(ethernet::lane_key_of_frame(bytes));
  if (slot != nullptr) {
    if (slot == from) return false;
    hand_over(frame, *slot, waking, inbox_frames_max(frame, *slot));
    return true;
  }
  if (!host_->wants(bytes)) return false;
  if (!host_inbox_.push(frame)) {
    rte_pktmbuf_free(frame);
    drops_.add_no_space();
  }
  return true;
}

void PortCore::drop(rte_mbuf* frame, frames::Drop why) {
  rte_pktmbuf_free(frame);
  drops_.add(why);
}

// ---- The port's thread

Status PortCore::start_thread() {
  if (!thread_event_.open() || !thread_wait_.open() || !thread_wait_.add(thread_event_.descriptor(), EPOLLIN, 0)) {
    return {Code::kUnavailable, "dpdk: no descriptors are left for the port's thread: raise ulimit -n"};
  }
  return base::start_thread(thread_, "tern-dpdk", [this] { run(); }) ? Status() : base::kNoThread;
}

void PortCore::stop_thread() {
  if (!thread_.joinable()) return;
  is_stopping_.store(true, std::memory_order_relaxed);
  thread_event_.wake();
  thread_.join();
}

void PortCore::run() {
  uint64_t pause_ns = kLookNs, nap_ns = kNapNs;
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    const uint64_t now_ns = base::monotonic_ns();
    pause_ns = look(now_ns) ? kLookNs : std::min(2 * pause_ns, kLongLookNs);
    nap_ns = std::exchange(has_received_, false) ? kNapNs : std::min(nap_ns + nap_ns / 16, kLongNapNs);
    const bool is_napping = napping_.load(std::memory_order_seq_cst) != 0;
    epoll_event event;
    thread_wait_.wait({&event, 1}, now_ns + (is_napping ? nap_ns : pause_ns));
    thread_event_.clear();
  }
}

/// True: there was work.
bool PortCore::look(uint64_t now_ns) {
  if (is_gone_.load(std::memory_order_relaxed) && !is_given_up_) give_up_device();
  look_at_link(now_ns);
  bool has_worked = serve_host(now_ns);
  if (is_given_up_) return has_worked;
  for (uint16_t i = 0; i < plan_.queues; ++i) has_worked |= look_at_queue(i);
  has_worked |= send_for_host();
  return has_worked;
}

bool PortCore::serve_host(uint64_t now_ns) {
  std::array<rte_mbuf*, kBurst> frames;
  const uint32_t count = host_inbox_.pop(frames);
  for (rte_mbuf* frame : std::span(frames).first(count)) {
    host_->on_frame(bytes_of(frame), now_ns);
    rte_pktmbuf_free(frame);
  }
  const bool is_due = host_->next_tick_ns() <= now_ns;
  if (is_due) host_->tick(now_ns);
  return count != 0 || is_due;
}

uint32_t PortCore::count_polls(uint16_t number) const {
  uint32_t polls = 0;
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const LaneSlot* const slot = slots_[i].load(std::memory_order_relaxed);
    if (slot->queue.load(std::memory_order_relaxed) == number) polls += slot->polls.load(std::memory_order_relaxed);
  }
  return polls;
}

/// Receives the frames of a queue that no endpoint has polled since the last time, unless all its endpoints sleep and
/// have its interrupt: one that is awake may be in a long handler after it took the interrupt of the others. A sleeping
/// endpoint is woken.
bool PortCore::look_at_queue(uint16_t number) {
  PortQueue& queue = queues_[number];
  const uint32_t polls = count_polls(number);
  const uint32_t armed = queue.armed.load(std::memory_order_relaxed);
  const bool is_polled = polls != queue.polls_seen;
  queue.polls_seen = polls;
  if (is_polled || (armed != 0 && armed == queue.lanes.load(std::memory_order_relaxed))) return false;
  claim(number);
  uint32_t bursts = 0;
  for (uint32_t count = kBurst; count == kBurst && bursts < kBurstsMax; ++bursts) {
    std::array<rte_mbuf*, kBurst> frames;
    queue.receive_gate.lock();
    count = rte_eth_rx_burst(id_, number, frames.data(), kBurst);
    const std::span<rte_mbuf*> unwanted = distribute(std::span(frames).first(count));
    queue.receive_gate.unlock();
    if (unwanted.size() != count) wake_sleepers();
    for (rte_mbuf* frame : unwanted) drop(frame, why_unwanted(bytes_of(frame)));
    if (count == 0) break;
    has_received_ = true;
  }
  unclaim(number);
  return true;
}

/// On return no thread is inside the gates of the queue without their locks.
void PortCore::claim(uint16_t number) {
  PortQueue& queue = queues_[number];
  queue.receive_gate.claim();
  queue.send_gate.claim();
  if (queue.lanes.load(std::memory_order_seq_cst) == 0) return;  // a new endpoint sees the claims
  QueueGate::order_memory();
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const LaneSlot* const slot = slots_[i].load(std::memory_order_relaxed);
    if (slot->queue.load(std::memory_order_relaxed) != number) continue;
    QueueGate::wait_for(slot->receiver);
    QueueGate::wait_for(slot->sender);
  }
}

void PortCore::unclaim(uint16_t number) {
  PortQueue& queue = queues_[number];
  queue.receive_gate.unclaim();
  queue.send_gate.unclaim();
}

void PortCore::lock_gates() {
  for (uint16_t i = 0; i < plan_.queues; ++i) {
    claim(i);
    queues_[i].receive_gate.lock();
    queues_[i].send_gate.lock();
  }
}

bool PortCore::lock_queues() {
  if (is_gone_.load(std::memory_order_relaxed)) return false;
  lock_gates();
  return true;
}

void PortCore::unlock_queues() {
  for (uint16_t i = 0; i < plan_.queues; ++i) {
    queues_[i].receive_gate.unlock();
    queues_[i].send_gate.unlock();
    unclaim(i);
  }
}

/// Passes the frames on, and returns those that nobody wants. Inside the receive gate of their queue, so that an
/// endpoint which then polls the queue finds them in its inbox first. Takes no lock, and wakes no endpoint.
std::span<rte_mbuf*> PortCore::distribute(std::span<rte_mbuf*> frames) {
  const auto unwanted = std::remove_if(frames.begin(), frames.end(),
                                       [this](auto* frame) { return pass_on(frame, nullptr, Waking::kLater); });
  return {frames.begin(), unwanted};
}

/// Returns the reason that an endpoint would give for dropping the frame.
frames::Drop PortCore::why_unwanted(std::span<const std::byte> frame) {
  const base::MutexLock lock(mutex_);
  base::SocketAddress own = own_ ? own_->ip : base::SocketAddress();
  if (!own_) {
    const auto one = std::find_if(owned_slots_.begin(), owned_slots_.end(), [](auto& slot) { return slot->is_used; });
    if (one != owned_slots_.end()) own = (*one)->own;
  }
  const frames::FrameParser parser({mac_, own, choice_.vlan});
  const frames::Drop why = parser.parse(frame, {}).drop;
  return why == frames::Drop::kNone ? frames::Drop::kOtherPort : why;  // it was for an endpoint that has just ended
}

// ---- Frames of the host

/// Called by every thread that calls the host, including its resolvers.
void PortCore::queue_for_host(std::span<const std::byte> frame) {
  rte_mbuf* const copy = rte_pktmbuf_alloc(queues_[0].pool.get());
  if (copy == nullptr) return;
  char* const to = rte_pktmbuf_append(
      copy, static_cast<uint16_t>(std::max<size_t>(frame.size(), RTE_ETHER_MIN_LEN - RTE_ETHER_CRC_LEN)));
  if (to == nullptr) {
    rte_pktmbuf_free(copy);
    return;
  }
  std::memcpy(to, frame.data(), frame.size());
  std::memset(to + frame.size(), 0, rte_pktmbuf_data_len(copy) - frame.size());
  if (!host_outbox_.push(copy)) rte_pktmbuf_free(copy);
}

bool PortCore::send_for_host() {
  if (host_outbox_.is_empty()) return false;
  std::array<rte_mbuf*, kBurst> frames;
  const uint32_t count = host_outbox_.pop(frames);
  PortQueue& queue = queues_[0];
  claim(0);
  queue.send_gate.lock();
  const uint32_t sent = rte_eth_tx_burst(id_, 0, frames.data(), static_cast<uint16_t>(count));
  queue.send_gate.unlock();
  unclaim(0);
  rte_pktmbuf_free_bulk(frames.data() + sent, count - sent);  // the host repeats its questions
  return true;
}

// ---- Events

int PortCore::on_event(uint16_t /*port*/, rte_eth_event_type event, void* self, void* /*detail*/) {
  auto* const core = static_cast<PortCore*>(self);
  if (event == RTE_ETH_EVENT_INTR_RMV) core->is_gone_.store(true, std::memory_order_relaxed);
  if (event == RTE_ETH_EVENT_INTR_LSC) core->is_link_due_.store(true, std::memory_order_relaxed);
  core->events_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

void PortCore::look_at_link(uint64_t now_ns) {
  const bool is_due = is_link_due_.exchange(false, std::memory_order_relaxed);
  if ((now_ns < link_due_ns_ && !is_due) || is_given_up_) return;
  link_due_ns_ = now_ns + kLinkNs;
  rte_eth_link link{};
  if (rte_eth_link_get_nowait(id_, &link) != 0) return;
  const bool is_up = link.link_status == RTE_ETH_LINK_UP;
  if (is_up == is_link_up_.exchange(is_up, std::memory_order_relaxed)) return;
  events_.fetch_add(1, std::memory_order_relaxed);
  host_->on_link(is_up, now_ns);
}

/// The device was removed: its gates stay locked, so that no thread calls the driver any more.
void PortCore::give_up_device() {
  is_given_up_ = true;
  is_link_up_.store(false, std::memory_order_relaxed);
  lock_gates();  // never again unlocked
}

}  // namespace tern::transport
