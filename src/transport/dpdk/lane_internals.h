// What a DpdkLane has, and its two calls of the common path, which DpdkBurst and DpdkSends have inline. Transport
// layer; the endpoint's thread.
#pragma once

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "transport/dpdk/dpdk_port.h"
#include "transport/dpdk/port_core.h"

namespace tern::transport {

struct DpdkLane::Internals {
  uint32_t receive(rte_mbuf** frames, uint32_t max);
  uint32_t transmit(rte_mbuf** frames, uint32_t count);
  void set_interrupts(bool is_on);
  bool fetch();

  PortCore& core;
  LaneSlot& slot;
  PortQueue& queue;
  uint16_t port_id;
  uint16_t queue_id;
  bool has_interrupts;
  bool is_armed = false;
  bool can_clean_up = true;  ///< the driver has rte_eth_tx_done_cleanup()
  std::shared_ptr<DpdkPort> port;
  pid_t pid = getpid();
};

inline uint32_t DpdkLane::Internals::receive(rte_mbuf** frames, uint32_t max) {
  slot.polls.store(slot.polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!slot.inbox.is_empty()) [[unlikely]]
    return slot.inbox.pop({frames, max});
  if (!queue.receive_gate.try_enter(slot.receiver)) [[unlikely]]
    return 0;
  const uint32_t count = rte_eth_rx_burst(port_id, queue_id, frames, static_cast<uint16_t>(max));
  queue.receive_gate.leave(slot.receiver);
  return count;
}

inline uint32_t DpdkLane::Internals::transmit(rte_mbuf** frames, uint32_t count) {
  if (!queue.send_gate.enter(slot.sender)) [[unlikely]]
    return 0;
  const uint32_t taken = rte_eth_tx_burst(port_id, queue_id, frames, static_cast<uint16_t>(count));
  queue.send_gate.leave(slot.sender);
  return taken;
}

}  // namespace tern::transport
