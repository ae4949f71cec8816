// The members of a DpdkLane, and its two inline functions of the common path. Transport layer; the endpoint's thread.
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

inline uint32_t DpdkLane::receive(rte_mbuf** frames, uint32_t max) {
  Internals& in = *internals_;
  in.slot.polls.store(in.slot.polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!in.queue.receive_gate.try_enter(in.slot.receiver)) [[unlikely]]
    return 0;
  // Inside, because what is in the inbox came before what is in the queue: who moves it holds the gate.
  const uint32_t count = in.slot.inbox.is_empty()
                             ? rte_eth_rx_burst(in.port_id, in.queue_id, frames, static_cast<uint16_t>(max))
                             : in.slot.inbox.pop({frames, max});
  in.queue.receive_gate.leave(in.slot.receiver);
  return count;
}

inline uint32_t DpdkLane::transmit(rte_mbuf** frames, uint32_t count) {
  Internals& in = *internals_;
  if (!in.queue.send_gate.enter(in.slot.sender)) [[unlikely]]
    return 0;
  const uint32_t taken = rte_eth_tx_burst(in.port_id, in.queue_id, frames, static_cast<uint16_t>(count));
  in.queue.send_gate.leave(in.slot.sender);
  return taken;
}

}  // namespace tern::transport
