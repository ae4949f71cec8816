// Finds and opens an mlx5 device, with the network interface and the address of an endpoint. Transport layer; called
// when endpoints are made, in any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tern/status.h>
#include <tern/transport/mlx5.h>

#include "base/address.h"
#include "ethernet/names.h"
#include "frames/layout.h"
#include "neighbours/interface.h"
#include "rdma/handles.h"

namespace tern::transport {

inline constexpr ethernet::Names kMlx5Names{Mlx5::kName, "Mlx5"};

/// An endpoint's choice of a device.
struct Mlx5Choice {
  std::string device;            ///< empty: any
  base::SocketAddress bind;      ///< a wildcard: the listen host if the interface has it, else a global address
  std::string_view listen_host;  ///< a numeric IP address, or empty
  uint16_t vlan = 0;             ///< 0: no tag
};

/// The context's asynchronous events are read without blocking.
struct Mlx5Device {
  static constexpr uint32_t kTagsBytes = frames::kEthernetBytes + 2 * frames::kVlanTagBytes;  ///< before an IP packet
  static constexpr uint32_t kStrideBytesMin = 2048;  ///< one size for the usual MTU and smaller ones

  /// The size of strides. They hold the longest frame that the port takes, if the device has such strides, because each
  /// frame that is too long for a stride costs a new receive queue.
  uint32_t stride_bytes() const;

  rdma::Context context;
  rdma::ProtectionDomain domain;
  uint8_t port = 0;                 ///< from 1
  neighbours::Interface interface;  ///< with a VLAN: the VLAN's interface
  uint32_t port_mtu_bytes = 0;      ///< of the port's own interface; a VLAN's interface may have a smaller MTU
  base::SocketAddress address;      ///< of the interface; its port is that of the choice
  uint64_t bytes_per_sec = 0;       ///< of the link
  bool has_checksums = false;       ///< the device makes and checks those of IP and UDP
  uint32_t stride_bytes_min = 0;
  uint32_t stride_bytes_max = 0;
};

/// kUnavailable: there is no such device or address, the device is not an mlx5 device or lacks a feature that the
/// transport needs, the interface is down, or this user may not open the device; the text names the case. kNoMemory.
Result<Mlx5Device> open_mlx5_device(const Mlx5Choice& choice);

}  // namespace tern::transport
