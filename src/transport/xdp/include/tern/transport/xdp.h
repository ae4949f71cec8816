// Any NIC that Linux has a driver for, by AF_XDP sockets. Standard library only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class XdpImpl;
}

/// UDP datagrams that the kernel's driver puts into an endpoint's memory before the network stack sees them. The kernel
/// keeps the interface: an XDP program gives this process the datagrams to its own UDP ports, and all other frames go
/// to the kernel as before. Endpoints of a process at one interface share its queues and memory.
///
/// Needs the permission to open the sockets (CAP_NET_RAW), to attach an XDP program (CAP_NET_ADMIN, CAP_BPF), and to
/// join the program that another process has attached (CAP_SYS_ADMIN); and Linux 5.9: with an older kernel a program
/// stays behind at the interface, until another process finds it. The peer may be a plain UDP socket as far as the
/// frames are concerned, if its NIC or `ethtool -K` makes its checksums complete.
///
/// An endpoint at an interface without a VLAN also receives datagrams to its address and port from VLANs whose tags the
/// NIC takes out of the frames. Where VLANs are to be separate, `ethtool -K eth0 rxvlan off` leaves the tags in the
/// frames, which then go to the kernel.
struct Xdp {
  static constexpr std::string_view kName = "xdp";  ///< the peers' endpoints must have the same
  using Impl = transport::XdpImpl;                  ///< for the library

  /// For Rpc::create(). Out of range, malformed: kMisuse. No such interface or address, no permission, no free queue,
  /// another program's XDP, a port that is taken: kUnavailable. Endpoints of a process at one interface must agree in
  /// `mode`, `queues` and `receive_buffers`: a later one that differs is kMisuse.
  struct Options {
    static constexpr uint32_t kDatagramBytesMin = 536;   ///< of datagram_bytes
    static constexpr uint32_t kDatagramBytesMax = 3774;  ///< of datagram_bytes: the space of a page beside the headers

    /// A network interface, as `ip link` names it. Empty: the interface that has the address of `bind`, or the Nexus's
    /// listen address; else the only Ethernet interface that is up and has an address.
    std::string interface;
    /// The network namespace that has the interface, a path such as /run/netns/NAME; entering it takes CAP_SYS_ADMIN.
    /// Empty: the namespace of the thread that makes the endpoint. The option does not change the namespace of the
    /// Nexus.
    std::string netns;
    /// Address of the data path: "HOST" or "HOST:PORT", IPv6 in brackets, an address of the interface. Default: the
    /// Nexus's listen address if the interface has it, else the first global address of the interface; any free port.
    /// A wildcard stands for the default.
    std::string bind;
    /// How frames reach this process: "zero_copy", the driver writes them into its memory; "native", the driver runs
    /// the program and the kernel copies; "generic", for every driver, after the kernel has made a packet of its own.
    /// Empty: the first of these that the driver supports. A named mode that is not supported is an error.
    std::string mode;
    /// Queues of the interface that this process takes, 1 to 64; each receives and sends. 0: one free queue for each
    /// endpoint; if none is free, endpoints share queues. Other processes cannot use these queues. Datagrams that
    /// arrive at other queues come through the kernel's network stack.
    uint32_t queues = 0;
    /// Bytes of a datagram's UDP payload, 536 to 3774; 0: as many as the interface's MTU allows. Lower it where a link
    /// on the path has a smaller MTU. Peers use the smaller of their values.
    uint32_t datagram_bytes = 0;
    /// Frames of a queue that wait to be received before further ones are lost; a power of two, 512 to 32768. Each
    /// takes 2 KiB of locked memory, 4 KiB with an MTU above 1774. A queue takes the same for 2048 more frames, which
    /// it sends.
    uint32_t receive_buffers = 2048;
    /// Swift's target for a round trip (docs/congestion.md), in microseconds, 1 to 100000.
    uint32_t delay_target_us = 100;
    /// The traffic class of all packets, 0 to 255: the byte of the IP header that has the DSCP, times 4.
    uint32_t traffic_class = 0;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"interface", &Options::interface}, OptionField{"netns", &Options::netns},
                        OptionField{"bind", &Options::bind}, OptionField{"mode", &Options::mode},
                        OptionField{"queues", &Options::queues, 0, 64},
                        OptionField{"datagram_bytes", &Options::datagram_bytes, 0, kDatagramBytesMax},
                        OptionField{"receive_buffers", &Options::receive_buffers, 512, 32768},
                        OptionField{"delay_target_us", &Options::delay_target_us, 1, 100'000},
                        OptionField{"traffic_class", &Options::traffic_class, 0, 255});
    }
  };
};

}  // namespace tern
