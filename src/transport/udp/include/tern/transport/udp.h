// Kernel UDP on any interface. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

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
    static constexpr size_t kDatagramBytesMin = 576;    ///< smallest datagram_bytes
    static constexpr size_t kDatagramBytesMax = 65000;  ///< largest datagram_bytes

    /// Local address of the data path: "HOST" or "HOST:PORT", IPv6 in brackets. Default: the Nexus's listen
    /// address, any port. With a wildcard host, peers send to the address at which they reached the Nexus. Name the
    /// port if a firewall must let packets to it in (docs/network.md).
    std::string bind;
    /// Bytes of a datagram's UDP payload with which a session begins, 576 to 65000. Every message of one packet fits
    /// into one datagram. 1232 passes every IPv6 path (1280 - 48, RFC 8200). On a path with a smaller MTU, opening a
    /// session fails with a status that names the size.
    size_t datagram_bytes = 1232;
    /// Longest datagram, 576 to 65000, for messages of several packets. A session that has such messages finds by
    /// probes what its path carries (RFC 8899), beginning with the MTU of the route's interface, and goes back to
    /// datagram_bytes when longer datagrams do not pass any more. At most datagram_bytes: no probes.
    size_t probed_datagram_bytes = kDatagramBytesMax;
    /// Use GSO and GRO if the kernel has them. Switch it off to rule out a bug of a driver.
    bool offload = true;
    /// Size of the socket buffers. The kernel may limit it (net.core.rmem_max).
    size_t socket_buffer_bytes = 4u << 20;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(
          OptionField{"bind", &Options::bind},
          OptionField{"datagram_bytes", &Options::datagram_bytes, kDatagramBytesMin, kDatagramBytesMax},
          OptionField{"probed_datagram_bytes", &Options::probed_datagram_bytes, kDatagramBytesMin, kDatagramBytesMax},
          OptionField{"offload", &Options::offload}, OptionField{"socket_buffer_bytes", &Options::socket_buffer_bytes});
    }
  };
};

}  // namespace tern
