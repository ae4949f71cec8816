// What drivers do otherwise than they tell, and no call shows before it is too late. Transport layer: plain values. All
// else that a port decides is what the driver tells of itself, or a try. An entry names what was seen, with DPDK 22.11.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace tern::transport {

struct DriverFaults {
  std::string_view driver;  ///< rte_eth_dev_info::driver_name
  uint32_t queues_max = UINT32_MAX;
  /// The argument whose value is the binary logarithm of a ring's length; empty: a ring is as long as a queue is set
  /// up.
  std::string_view ring_log_argument{};
  uint16_t ring_log_default = 0;
  bool is_kept_plugged = false;      ///< the device is not unplugged at its end
  bool unmaps_peers_rings = false;   ///< a port that stops has the rings at its other end unmapped, even while in use
  bool has_far_buffers = false;      ///< who reads frames reaches EAL's memory only
  bool has_buffers_of_page = false;  ///< an mbuf must not cross from one page to another
};

inline constexpr DriverFaults kNoFaults{};
inline constexpr std::array<DriverFaults, 4> kDriverFaults = {{
    // It tells of 16 queues, and writes the descriptors of more than 4 past an array of 8 on its stack
    // (tap_mp_req_on_rxtx()).
    {.driver = "net_tap", .queues_max = 4},
    // Its rings have the length of its argument, whatever queues are set up with, and it has no rxq_info_get() to tell.
    // Unplugged, it leaves its socket open, and reads freed memory when a peer connects. When a peer disconnects, EAL's
    // thread unmaps the rings, and a thread that is in a burst crashes (memif_disconnect()).
    {.driver = "net_memif",
     .ring_log_argument = "rsize=",
     .ring_log_default = 10,
     .is_kept_plugged = true,
     .unmaps_peers_rings = true},
    // It takes external buffers like a NIC, but its backend is another process, to which they lie nowhere.
    {.driver = "net_virtio_user", .has_far_buffers = true},
    // The kernel drops what an AF_XDP socket sends and receives in a buffer that crosses pages which do not follow each
    // other in physical memory. Two buffers a page were tried, too: nothing arrives in them with --no-huge.
    {.driver = "net_af_xdp", .has_buffers_of_page = true},
}};

/// `driver` may be null.
constexpr const DriverFaults& faults_of(const char* driver) {
  if (driver == nullptr) return kNoFaults;
  const auto one = std::find_if(kDriverFaults.begin(), kDriverFaults.end(),
                                [driver](const DriverFaults& faults) { return faults.driver == driver; });
  return one == kDriverFaults.end() ? kNoFaults : *one;
}

}  // namespace tern::transport
