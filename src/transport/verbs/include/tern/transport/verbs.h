// RDMA NICs by unreliable datagrams: InfiniBand, RoCE v1 and v2, Soft-RoCE. Standard library only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport.h>

namespace tern {
namespace transport {
class VerbsImpl;
}

/// Unreliable datagrams over RDMA devices, by rdma-core's libibverbs. Each endpoint has one queue pair. Message memory
/// and queues are registered with the NIC, and cannot be swapped out: the process must be allowed to lock some tens of
/// megabytes for each endpoint (ulimit -l). A program that forks needs Linux 5.12 or newer.
struct Verbs {
  static constexpr std::string_view kName = "verbs";  ///< both endpoints of a session must have this transport
  using Impl = transport::VerbsImpl;                  ///< for the library

  /// For Rpc::create(). Out of range: kMisuse. No such device, port, GID or P_Key, or no permission: kUnavailable.
  struct Options {
    static constexpr uint32_t kAny = 65535;  ///< the value of an index that lets the transport choose

    /// The device's name as ibv_devices prints it, such as mlx5_0. Empty: the first device with an active port; one
    /// that has the address at which the Nexus listens comes before others.
    std::string device;
    /// The port's number, from 1. 0: the first active port.
    uint32_t port = 0;
    /// Index of the port's GID table, as ibv_devinfo -v prints it. Both sides must use the same version of RoCE. kAny:
    /// the GID of the address at which the Nexus listens; else the first of RoCE v2, routable ones before link-local
    /// ones; else RoCE v1.
    uint32_t gid_index = kAny;
    /// Index of the port's P_Key table: the InfiniBand partition. kAny: the first with full membership.
    uint32_t partition_index = kAny;
    /// Bytes of a packet's header and payload, 536 to 4096 and at most the port's MTU; 0: the port's MTU. Lower it
    /// where a switch on the path has a smaller MTU than the port. Peers use the smaller of their values.
    uint32_t packet_bytes = 0;
    /// Packets that wait to be received before further ones are lost; a power of two, 64 to 16384. Takes one MTU of
    /// memory each.
    uint32_t receive_buffers = 2048;
    /// Swift's target for a round trip (docs/congestion.md), in microseconds, 1 to 100000. Untested on hardware.
    uint32_t delay_target_us = 30;
    /// The service level of all packets, 0 to 15, for networks with a separate class for RDMA: on InfiniBand the
    /// service level, on RoCE the priority of tagged frames.
    uint32_t service_level = 0;
    /// The traffic class of all packets, 0 to 255: on RoCE v2 the byte of the IP header that has the DSCP, times 4.
    uint32_t traffic_class = 0;

    /// The options that a command line can set.
    static constexpr auto fields() {
      return std::tuple(OptionField{"device", &Options::device}, OptionField{"port", &Options::port, 0, 255},
                        OptionField{"gid_index", &Options::gid_index, 0, kAny},
                        OptionField{"partition_index", &Options::partition_index, 0, kAny},
                        OptionField{"packet_bytes", &Options::packet_bytes, 0, 4096},
                        OptionField{"receive_buffers", &Options::receive_buffers, 64, 16384},
                        OptionField{"delay_target_us", &Options::delay_target_us, 1, 100'000},
                        OptionField{"service_level", &Options::service_level, 0, 15},
                        OptionField{"traffic_class", &Options::traffic_class, 0, 255});
    }
  };
};

}  // namespace tern
