// A simulated network in virtual time: <tern/sim.h> makes it and runs it. Standard library only.
#pragma once

#include <cstdint>
#include <string_view>

namespace tern {
namespace transport {
class SimImpl;
class SimNic;
}  // namespace transport

/// Endpoints of a simulated host.
struct Sim {
  static constexpr std::string_view kName = "sim";  ///< the peers' endpoints must have the same
  using Impl = transport::SimImpl;                  ///< for the library

  /// For Rpc::create(): sim::Host::transport_options(). Out of range: kMisuse.
  struct Options {
    /// Of the host that the endpoint lives on.
    transport::SimNic* nic = nullptr;
    /// Packets that wait for the endpoint; more are dropped. 1 to 1048576.
    uint32_t receive_queue_packets = 4096;
    /// Packets of the endpoint that wait for the wire; more have to wait in its sessions. 1 to 65536.
    uint32_t send_queue_packets = 1024;
  };
};

}  // namespace tern
