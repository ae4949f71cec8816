// How a DPDK port is used, decided from what its driver says of it. Transport layer: pure functions.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tern/status.h>

namespace tern::transport {

/// What is known of a device before it is configured.
struct DpdkDevice {
  std::string name;          ///< for texts
  std::string arguments;     ///< of the driver, behind the name; may be empty
  bool has_dma = false;      ///< it is on a bus whose devices read memory themselves
  bool has_iova_va = false;  ///< EAL gives devices virtual addresses
  uint16_t mtu_bytes = 0;    ///< as it is
  rte_eth_dev_info info{};
};

/// What endpoints want of it.
struct DpdkWishes {
  uint32_t queues = 0;     ///< of endpoints; 0: as many as they can use
  uint32_t mtu_bytes = 0;  ///< 0: as it is
  uint32_t receive_buffers = 4096;
  bool is_own_mode = false;
  uint32_t cpus = 1;
};

/// How the endpoints' frames are told apart.
enum class DpdkSteering : uint8_t {
  kFlows,   ///< by the device: a rule of rte_flow for each endpoint
  kHashes,  ///< by the device: RSS over the UDP port, see dpdk_steering.h
  kShared,  ///< by the endpoints, which share a queue
};

struct DpdkPlan {
  DpdkSteering steering = DpdkSteering::kShared;
  /// Of either kind, because several drivers want as many of one as of the other (net_tap, virtio, memif). With
  /// steering, queue 0 gets what no endpoint does, and the others are endpoints'.
  uint16_t queues = 1;
  uint16_t receive_descriptors = 0;
  uint16_t send_descriptors = 0;
  uint32_t mbufs = 0;       ///< of a queue
  uint16_t mbuf_bytes = 0;  ///< of each mbuf's data, headroom included
  bool fits_pages = false;  ///< an mbuf with its headers is as long as a page, and in one
  uint32_t mtu_bytes = 0;
  bool makes_checksums = false;
  bool checks_checksums = false;
  bool gathers = false;
  rte_eth_conf conf{};  ///< for rte_eth_dev_configure(), but for the key of RSS
};

/// So many queues of endpoints are made without being asked for.
inline constexpr uint32_t kDpdkQueuesMin = 4, kDpdkQueuesMax = 16;
inline constexpr uint32_t kDpdkMtuMax = 9216;

/// What the device may be able to do, the best first, and kShared last. Only a try shows whether it can.
std::vector<DpdkSteering> possible_steerings(const DpdkDevice& device, const DpdkWishes& wishes);

/// kUnavailable: the device has not so many queues, or not this MTU, or cannot steer; the text says which.
Result<DpdkPlan> plan_dpdk(const DpdkDevice& device, const DpdkWishes& wishes, DpdkSteering steering);

/// Of hugepages, for a port that is planned by these wishes; a guess before the device is known.
uint64_t guess_memory_bytes(const DpdkWishes& wishes);

}  // namespace tern::transport
