// The address of an endpoint of the verbs transport, and its bytes in the handshake. Transport layer; any thread, no
// state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "rdma/port.h"

namespace tern::transport {

struct VerbsAddress {
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<std::byte, kBytes>;
  // Queue pairs 0 and 1 belong to the subnet's management, and the highest number stands for a multicast group.
  static constexpr uint32_t kQueuePairMin = 2;
  static constexpr uint32_t kQueuePairMax = (1u << 24) - 2;
  /// In a packet with a higher Q_Key the device would put its sender's Q_Key.
  static constexpr uint32_t kKeyMax = (1u << 31) - 1;

  rdma::Fabric fabric = rdma::Fabric::kInfiniband;
  uint16_t lid = 0;
  uint32_t queue_pair = 0;  ///< number, 24 bits
  uint32_t key = 0;         ///< Q_Key
  uint16_t partition = 0;   ///< P_Key
  uint16_t packet_bytes = 0;
  rdma::Gid gid{};

  bool operator==(const VerbsAddress&) const = default;
};

VerbsAddress::Bytes encode_address(const VerbsAddress& address);
/// Reads untrusted bytes. False: they are not the address of one endpoint. It does not check whether the endpoint can
/// be reached, nor the length of its packets.
bool decode_address(std::span<const std::byte> bytes, VerbsAddress* address);

/// Two P_Keys can communicate if they are of one partition and one of them is a full member (InfiniBand Architecture
/// 10.9.3).
bool partitions_meet(uint16_t a, uint16_t b);

}  // namespace tern::transport
