#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_mbuf.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <new>
#include <span>
#include <utility>

#include "transport/dpdk/dpdk_port.h"
#include "transport/dpdk/eal.h"
#include "transport/dpdk/lane_internals.h"
#include "transport/dpdk/port_core.h"

namespace tern::transport {

DpdkLane::DpdkLane(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}

DpdkLane::~DpdkLane() {
  if (internals_->pid != getpid()) {
    (void)internals_.release();  // in a forked child they are the parent's
    return;
  }
  disarm();
  internals_->core.detach(internals_->slot);
}

bool DpdkLane::pass_on(rte_mbuf* frame) {
  return internals_->core.pass_on(frame, &internals_->slot, PortCore::Waking::kAtOnce);
}

bool DpdkLane::is_local(const base::SocketAddress& address) const { return internals_->core.has_address(address); }

void DpdkLane::loop_back(rte_mbuf* frame) {
  constexpr uint64_t kMemory = RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT;
  frame->ol_flags = (frame->ol_flags & kMemory) | RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
  LaneSlot* const slot = internals_->core.find(
      ethernet::lane_key_of_frame({rte_pktmbuf_mtod(frame, const std::byte*), rte_pktmbuf_data_len(frame)}));
  if (slot == nullptr) {
    internals_->core.drop(frame, frames::Drop::kOtherPort);
  } else {
    internals_->core.hand_over(frame, *slot, PortCore::Waking::kAtOnce);
  }
}

Status DpdkLane::follow_mac(const frames::MacAddress& mac) {
  return internals_->core.follow_mac(internals_->slot, mac);
}

void DpdkLane::clean_up() {
  Internals& in = *internals_;
  if (!in.queue.send_gate.enter(in.slot.sender)) return;
  if (in.can_clean_up) in.can_clean_up = rte_eth_tx_done_cleanup(in.port_id, in.queue_id, 0) >= 0;
  if (!in.can_clean_up) (void)rte_eth_tx_burst(in.port_id, in.queue_id, nullptr, 0);  // most drivers then free mbufs
  in.queue.send_gate.leave(in.slot.sender);
}

void DpdkLane::take_back() {
  Internals& in = *internals_;
  while (!in.queue.send_gate.enter(in.slot.sender)) {
    if (!in.core.failure().ok()) return;
    sched_yield();
  }
  if (rte_eth_dev_tx_queue_stop(in.port_id, in.queue_id) == 0) {
    (void)rte_eth_dev_tx_queue_start(in.port_id, in.queue_id);
  }
  in.queue.send_gate.leave(in.slot.sender);
}

// ---- Sleeping

Status DpdkLane::add_to(base::WaitSet& waits, uint64_t name) {
  Internals& in = *internals_;
  const bool is_added = waits.add(in.slot.wake.descriptor(), EPOLLIN, name);
  if (is_added && (!in.has_interrupts || waits.add(in.queue.interrupts.get(), EPOLLIN, name))) return {};
  return {Code::kUnavailable, "dpdk: no descriptors are left for an endpoint's wait: raise ulimit -n"};
}

bool DpdkLane::arm() {
  Internals& in = *internals_;
  in.is_armed = true;
  if (in.has_interrupts) {
    in.queue.armed.fetch_add(1, std::memory_order_relaxed);
  } else {
    in.core.begin_nap();
  }
  in.slot.is_armed.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with those of hand_over() and wake_sleepers()
  if (in.has_interrupts) in.set_interrupts(true);
  if (in.slot.inbox.is_empty() && !in.fetch()) return true;
  disarm();
  return false;
}

void DpdkLane::disarm() {
  Internals& in = *internals_;
  if (!in.is_armed) return;
  in.is_armed = false;
  in.slot.is_armed.store(false, std::memory_order_relaxed);
  in.slot.wake.clear();
  if (!in.has_interrupts) {
    in.core.end_nap();
    return;
  }
  in.queue.armed.fetch_sub(1, std::memory_order_relaxed);
  std::array<rte_epoll_event, 2> events;
  (void)rte_epoll_wait(in.queue.interrupts.get(), events.data(), static_cast<int>(events.size()), 0);
  in.set_interrupts(false);
}

/// Turns the queue's interrupt on, or off unless another lane is armed. Under the queue's lock, because some drivers
/// change what rte_eth_rx_burst() reads, and because a lane that arms between the check and the call must not lose its
/// interrupt: arm() counts itself before it takes the lock.
void DpdkLane::Internals::set_interrupts(bool is_on) {
  while (!queue.receive_gate.enter(slot.receiver)) {
    if (!core.failure().ok()) return;
    sched_yield();
  }
  if (is_on) {
    (void)rte_eth_dev_rx_intr_enable(port_id, queue_id);
  } else if (queue.armed.load(std::memory_order_relaxed) == 0) {
    (void)rte_eth_dev_rx_intr_disable(port_id, queue_id);
  }
  queue.receive_gate.leave(slot.receiver);
}

/// Puts frames for this endpoint that arrived before the interrupt was on into the inbox. False: there are none. True
/// also after a full burst, because more frames may wait behind it.
bool DpdkLane::Internals::fetch() {
  std::array<rte_mbuf*, kBurstMax> frames;
  slot.polls.store(slot.polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!queue.receive_gate.try_enter(slot.receiver)) return false;
  const uint32_t count = rte_eth_rx_burst(port_id, queue_id, frames.data(), kBurstMax);
  for (rte_mbuf* frame : std::span(frames).first(count)) {
    if (!core.pass_on(frame, nullptr, PortCore::Waking::kLater)) {
      core.hand_over(frame, slot, PortCore::Waking::kLater);
    }
  }
  queue.receive_gate.leave(slot.receiver);
  if (count != 0) core.wake_sleepers();
  return count == kBurstMax || !slot.inbox.is_empty();
}

}  // namespace tern::transport
