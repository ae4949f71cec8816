// The plan for a DPDK port, which is derived from the properties that its driver reports. Transport layer: pure
// functions.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tern/status.h>
#include <tern/transport/dpdk.h>

namespace tern::transport {

/// The properties of a device before its configuration.
struct DpdkDevice {
  std::string name;          ///< for texts
  std::string arguments;     ///< the driver's arguments after the name; may be empty
  bool has_dma = false;      ///< it is on a bus whose devices read memory themselves
  bool has_iova_va = false;  ///< EAL gives devices virtual addresses
  uint16_t mtu_bytes = 0;    ///< the present MTU
  rte_eth_dev_info info{};
};

/// The endpoints' requirements for the device.
struct DpdkWishes {
  uint32_t queues = 0;     ///< of endpoints; 0: as many as they can use
  uint32_t mtu_bytes = 0;  ///< 0: the present MTU
  uint32_t receive_buffers = Dpdk::Options::kReceiveBuffersDefault;
  bool is_own_mode = false;
  uint32_t cpus = 1;
};

/// The way in which frames are distributed to endpoints.
enum class DpdkSteering : uint8_t {
  kFlows,   ///< by the device: a rule of rte_flow for each endpoint
  kHashes,  ///< by the device: RSS over the UDP port, see dpdk_steering.h
  kShared,  ///< by the endpoints, which share a queue
};

struct DpdkPlan {
  DpdkSteering steering = DpdkSteering::kShared;
  /// The number of receive queues and of send queues, which are equal because several drivers require that (net_tap,
  /// virtio, memif). With steering, queue 0 gets the frames that are for no endpoint, and each other queue is one
  /// endpoint's.
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

/// The largest number of endpoints' queues that is made by default.
inline constexpr uint32_t kDpdkQueuesMin = 4, kDpdkQueuesMax = 16;
inline constexpr uint32_t kDpdkMtuMax = 9216;

/// The kinds of steering that the device may support, the best first, kShared last. Only an attempt shows whether it
/// does.
std::vector<DpdkSteering> possible_steerings(const DpdkDevice& device, const DpdkWishes& wishes);

/// kUnavailable: the device has too few queues, or does not support the MTU or steering; the text names the case.
Result<DpdkPlan> plan_dpdk(const DpdkDevice& device, const DpdkWishes& wishes, DpdkSteering steering);

/// An estimate of the hugepage memory for a port with these requirements, before the device is known.
uint64_t guess_memory_bytes(const DpdkWishes& wishes);

}  // namespace tern::transport
