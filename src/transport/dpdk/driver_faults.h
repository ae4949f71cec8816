// Faults of drivers that contradict their reported properties, and that no harmless call shows. Transport layer: plain
// values. All other decisions of a port follow from the driver's reported properties, or from an attempt. Each entry
// describes the fault that was observed with DPDK 22.11.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace tern::transport {

struct DriverFaults {
  std::string_view driver;  ///< rte_eth_dev_info::driver_name
  uint32_t queues_max = UINT32_MAX;
  /// The length of a receive ring in frames, which the driver does not report. 0: a ring has the length with which its
  /// queue is set up.
  uint32_t ring_default = 0;
  std::string_view ring_argument{};  ///< the argument whose value is another length; empty: there is none
  bool is_ring_log = false;          ///< the argument's value is the binary logarithm of the length
  bool is_kept_plugged = false;      ///< the device is not unplugged at its end
  bool unmaps_peers_rings = false;   ///< the stop of a port unmaps the rings at its other end, even while they are used
  bool has_far_buffers = false;      ///< the reader of frames can access only EAL's memory
  bool has_buffers_of_page = false;  ///< an mbuf must not cross from one page to another
};

inline constexpr DriverFaults kNoFaults{};
inline constexpr std::array<DriverFaults, 6> kDriverFaults = {{
    // The driver reports 16 queues, but writes the descriptors of more than 4 beyond an array of 8 on its stack
    // (tap_mp_req_on_rxtx()).
    {.driver = "net_tap", .queues_max = 4},
    // Its rings have the length of its argument, not that of the queues' setup, and it has no rxq_info_get() to report
    // it. After it was unplugged, its socket stays open, and it reads freed memory when a peer connects. When a peer
    // disconnects, EAL's thread unmaps the rings, and a thread inside a burst crashes (memif_disconnect()).
    {.driver = "net_memif",
     .ring_default = 1024,
     .ring_argument = "rsize=",
     .is_ring_log = true,
     .is_kept_plugged = true,
     .unmaps_peers_rings = true},
    // Its rings have the length of its argument, and it ignores that of the queues' setup.
    {.driver = "net_af_packet", .ring_default = 512, .ring_argument = "framecnt="},
    // A queue that is set up with more descriptors than the device's ring has gets as many as the ring has, and the
    // driver cannot be asked for their number. QEMU's rings have 256 unless it was told otherwise. A user who sets
    // receive_buffers knows the ring.
    {.driver = "net_virtio", .ring_default = 256},
    // Its rings, too, have no more than its argument. It accepts external buffers like a NIC, but its backend is
    // another process, which cannot access them.
    {.driver = "net_virtio_user", .ring_default = 256, .ring_argument = "queue_size=", .has_far_buffers = true},
    // The kernel drops what an AF_XDP socket sends and receives in a buffer that crosses pages which do not follow each
    // other in physical memory. Two buffers a page were tried, too: with --no-huge no frames arrive in them.
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
