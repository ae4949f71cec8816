// Finds and opens a port of an RDMA device. RDMA layer; used when endpoints are made, in any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tern/status.h>

#include "rdma/handles.h"

namespace tern::rdma {

/// InfiniBand uses LIDs as addresses, RoCE GIDs. Two peers must have the same RoCE version.
enum class Fabric : uint8_t { kInfiniband = 1, kRoce1 = 2, kRoce2 = 3 };
std::string_view name_of(Fabric fabric);

using Gid = std::array<std::byte, 16>;

/// The bit of a P_Key for a full member of the partition, which may send to limited members.
inline constexpr uint16_t kFullMember = 0x8000;

/// The properties of an active port, and of packets that this process sends from it.
struct Port {
  uint8_t number;  ///< from 1
  Fabric fabric;
  uint16_t lid;  ///< InfiniBand
  uint16_t gid_index;
  Gid gid;
  uint16_t partition_index;
  uint16_t partition;       ///< P_Key
  uint32_t mtu_bytes;       ///< the active MTU, 256 to 4096
  uint64_t bytes_per_sec;   ///< of the link
  bool needs_global_route;  ///< InfiniBand: every packet has a GRH
};

/// The port that an endpoint wants.
struct PortChoice {
  static constexpr uint32_t kAny = 65535;

  std::string device;               ///< empty: any device that has unreliable datagrams and an active port
  uint32_t port = 0;                ///< 0: the first active port
  uint32_t gid_index = kAny;        ///< kAny: that of `host`; otherwise RoCE v2 before v1, routable before link-local
  uint32_t partition_index = kAny;  ///< kAny: the first P_Key with full membership
  std::string_view host;            ///< a numeric IP address, or empty; a port with this address is preferred
};

/// An open port. The context's asynchronous events are read without blocking.
struct OpenedPort {
  Context context;
  ProtectionDomain domain;
  Port port;
};

/// `transport` begins the texts of errors. kUnavailable: the device, port, GID or P_Key does not exist, or is not
/// active, or this user may not open it; the text says which. kNoMemory.
Result<OpenedPort> open_port(std::string_view transport, const PortChoice& choice);

/// The speed of an active port's link.
uint64_t bytes_per_sec_of(const ibv_port_attr& attributes);

/// Returns whether the active port has another address than the one that peers were told. Returns false for an address
/// that is gone, because it may come back.
bool has_other_address(ibv_context* context, const Port& port);

}  // namespace tern::rdma
