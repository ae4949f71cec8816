// Any NIC with a poll-mode driver of DPDK, by raw Ethernet frames. Standard library only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class DpdkImpl;
}

/// UDP datagrams by a port of DPDK, past the kernel. All endpoints of a process at one device share its port. If the
/// device cannot steer frames to endpoints, compute checksums or gather, software does so. EAL is started once in a
/// process, by the first endpoint unless the program has started it, and stays until the process ends.
///
/// A device that keeps a network interface in the kernel (af_packet, af_xdp, bifurcated NICs) has that interface's
/// addresses, routes and neighbours. Any other device needs `address`, and so does tap, whose interface is the kernel's
/// end of a cable; the process answers ARP and neighbour discovery for it. The peer may be a plain UDP socket as far as
/// the frames are concerned. Never run on hardware.
struct Dpdk {
  static constexpr std::string_view kName = "dpdk";  ///< the peers' endpoints must have the same
  using Impl = transport::DpdkImpl;                  ///< for the library

  /// For Rpc::create(). Out of range, malformed: kMisuse. EAL refuses its arguments, no such device or address, no
  /// queue or UDP port left: kUnavailable. Endpoints at one device must agree in all options of the device: `eal`,
  /// `address`, `gateway`, `vlan`, `queues`, `mtu` and `receive_buffers`; the first one's settings hold, and a later
  /// endpoint that differs is kMisuse.
  struct Options {
    static constexpr uint32_t kDatagramBytesMin = 536;        ///< of datagram_bytes
    static constexpr uint32_t kDatagramBytesMax = 8972;       ///< of datagram_bytes
    static constexpr uint32_t kMtuMin = 576;                  ///< of mtu
    static constexpr uint32_t kMtuMax = 9000;                 ///< of mtu
    static constexpr uint32_t kReceiveBuffersDefault = 4096;  ///< of receive_buffers

    /// A PCI address (0000:03:00.0), the name of a port that EAL has, or a virtual device with its arguments, ';'
    /// between them: "net_memif0;role=server;socket=/run/a.sock". A device that EAL has already, because the program or
    /// `eal` names it, keeps its arguments: others are kUnavailable. Empty: the only port that EAL has found.
    std::string device;
    /// Arguments of EAL, blanks between them. Empty: hugepages if enough are free, else ordinary pages; no files that
    /// other processes share. They hold for the whole process; those of the first endpoint are used.
    std::string eal;
    /// IP address and prefix length, "10.0.0.1/24" or "2001:db8::1/64", of a device without an interface in the kernel;
    /// no link-local IPv6 address, and no other host may have it. Empty: the kernel's interface has the address.
    std::string address;
    /// The next hop to addresses outside of the prefix of `address`. Empty: there are no such peers.
    std::string gateway;
    /// "HOST" or "HOST:PORT", IPv6 in brackets, or ":PORT". HOST is an address of the kernel's interface; with
    /// `address` it is empty or the same. Default: the Nexus's listen address if the interface has it, else the first
    /// global address of the interface; any free port. A wildcard stands for the default.
    std::string bind;
    /// Tag of all frames, 1 to 4094. 0: frames have no tag. With an interface in the kernel, the address is that of a
    /// VLAN over it.
    uint32_t vlan = 0;
    /// Queues of the device, 1 to 64: one for each endpoint of the process, where the device steers frames to queues.
    /// 0: as many as endpoints can use, at most 16. A device that cannot steer has one queue for any number of
    /// endpoints.
    uint32_t queues = 0;
    /// The MTU to which the device is set, in bytes of an IP packet, 576 to 9000; 0: its present MTU. If the kernel has
    /// an interface of the device, that one's MTU changes, too, and stays.
    uint32_t mtu = 0;
    /// Bytes of a datagram's UDP payload, 536 to 8972; 0: as many as the MTU allows. Lower it where a link on the path
    /// has a smaller MTU. Peers use the smaller of their values.
    uint32_t datagram_bytes = 0;
    /// Frames of a queue that wait to be received before further ones are lost; a power of two, 512 to 65536. A device
    /// may have fewer. Takes 2 KiB of memory each, more with an MTU above 1500. The driver of virtio does not tell how
    /// many its device has: with the default, 256 are assumed.
    uint32_t receive_buffers = kReceiveBuffersDefault;
    /// Swift's target for a round trip (docs/congestion.md), in microseconds, 1 to 100000. Untested on hardware.
    uint32_t delay_target_us = 30;
    /// The traffic class of all packets, 0 to 255: the byte of the IP header that has the DSCP, times 4.
    uint32_t traffic_class = 0;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"device", &Options::device}, OptionField{"eal", &Options::eal},
                        OptionField{"address", &Options::address}, OptionField{"gateway", &Options::gateway},
                        OptionField{"bind", &Options::bind}, OptionField{"vlan", &Options::vlan, 0, 4094},
                        OptionField{"queues", &Options::queues, 0, 64}, OptionField{"mtu", &Options::mtu, 0, kMtuMax},
                        OptionField{"datagram_bytes", &Options::datagram_bytes, 0, kDatagramBytesMax},
                        OptionField{"receive_buffers", &Options::receive_buffers, 512, 65536},
                        OptionField{"delay_target_us", &Options::delay_target_us, 1, 100'000},
                        OptionField{"traffic_class", &Options::traffic_class, 0, 255});
    }
  };
};

}  // namespace tern
