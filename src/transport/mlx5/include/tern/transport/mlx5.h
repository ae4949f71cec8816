// Mellanox NICs (ConnectX-4 and newer) by raw Ethernet frames. Standard library only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class Mlx5Impl;
}

/// UDP datagrams that the NIC reads from and writes to an endpoint's memory, past the kernel (eRPC, appendix A). The
/// NIC's state for an endpoint does not grow with the number of its sessions. Needs the permission to send raw packets
/// (CAP_NET_RAW: `setcap cap_net_raw+ep PROGRAM`), and to lock about ten megabytes an endpoint (ulimit -l). The peer
/// may be a plain UDP socket as far as the frames are concerned. Never run on hardware.
struct Mlx5 {
  static constexpr std::string_view kName = "mlx5";  ///< the peers' endpoints must have the same
  using Impl = transport::Mlx5Impl;                  ///< for the library

  /// For Rpc::create(). Out of range: kMisuse. No such device or address, no permission, a port that is taken:
  /// kUnavailable.
  struct Options {
    static constexpr uint32_t kDatagramBytesMin = 536;   ///< of datagram_bytes
    static constexpr uint32_t kDatagramBytesMax = 8142;  ///< of datagram_bytes

    /// The device's name as ibv_devices prints it, such as mlx5_0. Empty: the device whose network interface has the
    /// address of `bind`; else the first one whose interface is up and has an address.
    std::string device;
    /// Address of the data path: "HOST" or "HOST:PORT", IPv6 in brackets, an address of the device's network interface.
    /// Default: the Nexus's listen address if the interface has it, else the first global address of the interface;
    /// any free port. A wildcard stands for the default.
    std::string bind;
    /// Tag of all frames, 1 to 4094: the address is then that of a VLAN over the device's network interface. 0: frames
    /// have no tag.
    uint32_t vlan = 0;
    /// Bytes of a datagram's UDP payload, 536 to 8142; 0: as many as the MTU of the network interface allows. Lower it
    /// where a link on the path has a smaller MTU. Peers use the smaller of their values.
    uint32_t datagram_bytes = 0;
    /// Frames that wait to be received before further ones are lost; a power of two, 1024 to 65536. Takes 2 KiB of
    /// memory each, 4 KiB with an MTU above 2026, 8 KiB above 4074.
    uint32_t receive_buffers = 4096;
    /// Swift's target for a round trip (docs/congestion.md), in microseconds, 1 to 100000. Untested on hardware.
    uint32_t delay_target_us = 30;
    /// The traffic class of all packets, 0 to 255: the byte of the IP header that has the DSCP, times 4.
    uint32_t traffic_class = 0;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"device", &Options::device}, OptionField{"bind", &Options::bind},
                        OptionField{"vlan", &Options::vlan, 0, 4094},
                        OptionField{"datagram_bytes", &Options::datagram_bytes, 0, kDatagramBytesMax},
                        OptionField{"receive_buffers", &Options::receive_buffers, 1024, 65536},
                        OptionField{"delay_target_us", &Options::delay_target_us, 1, 100'000},
                        OptionField{"traffic_class", &Options::traffic_class, 0, 255});
    }
  };
};

}  // namespace tern
