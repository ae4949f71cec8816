// The transport in a simulated network, which <tern/sim.h> makes and runs in virtual time. Standard library only.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class SimImpl;
class SimNic;
}  // namespace transport

/// The network interface of a simulated host.
struct Sim {
  static constexpr std::string_view kName = "sim";  ///< the peers' endpoints must have the same
  using Impl = transport::SimImpl;                  ///< for the library

  /// For Rpc::create(). sim::Host::transport_options() returns them. Out of range: kMisuse.
  struct Options {
    /// The network interface of the endpoint's host.
    transport::SimNic* nic = nullptr;
    /// Limit of the received packets that wait for the endpoint. Further packets are dropped. 1 to 1048576.
    uint32_t receive_queue_packets = 4096;
    /// Limit of the endpoint's packets that wait for the wire. Further packets wait in its sessions. 1 to 65536.
    uint32_t send_queue_packets = 1024;
    /// Bytes of the frames (with Ethernet, IP and UDP headers) with which a session begins; at least 578 are taken. It
    /// finds by probes whether longer ones pass, up to the network's frames. 0: it begins with the network's frames.
    uint32_t safe_frame_bytes = 0;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"receive_queue_packets", &Options::receive_queue_packets, 1, 1u << 20},
                        OptionField{"send_queue_packets", &Options::send_queue_packets, 1, 1u << 16},
                        OptionField{"safe_frame_bytes", &Options::safe_frame_bytes, 0, 65535});
    }
  };
};

}  // namespace tern
