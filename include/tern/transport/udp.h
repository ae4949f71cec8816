// Kernel UDP on any interface. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern {
namespace transport {
class UdpImpl;
}

/// Kernel UDP sockets, batched; segmentation offload (GSO, GRO) where the kernel has it, tested when the
/// endpoint is created.
struct Udp {
  static constexpr std::string_view kName = "udp";  ///< the peers' endpoints must have the same
  using Impl = transport::UdpImpl;                  ///< for the library

  /// For Rpc::create(). Out of range: kMisuse.
  struct Options {
    /// Local address of the data path: "HOST" or "HOST:PORT", IPv6 in brackets. Default: the Nexus's listen
    /// address, any port. A wildcard host works; peers then send to the address at which they found the Nexus. Name the
    /// port where a firewall is to let it in (docs/network.md).
    std::string bind;
    /// Bytes of a datagram's UDP payload; every packet fits into one. 1232 passes every IPv6 path (1280 - 48, RFC
    /// 8200); raise it where the path is known (1452 on plain Ethernet, 8900 with jumbo frames). 576 to 65000. A
    /// session whose path is narrower is refused, and names the size and the MTU.
    size_t datagram_bytes = 1232;
    /// Use GSO and GRO where the kernel has them. Off: to rule them out when hunting a driver's bug.
    bool offload = true;
    /// Socket buffers asked for; the kernel may cap them (net.core.rmem_max).
    size_t socket_buffer_bytes = 4u << 20;
  };
};

}  // namespace tern
