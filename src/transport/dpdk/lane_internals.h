// What a DpdkLane has. Transport layer; the endpoint's thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

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

}  // namespace tern::transport
