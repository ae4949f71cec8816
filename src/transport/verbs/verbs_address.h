// Where an endpoint of the verbs transport is reached: its bytes in the handshake. Transport layer; any thread, no
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
  /// A packet with a higher Q_Key would leave with that of its sender.
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
/// Reads a stranger's bytes. False: they are no address of one endpoint. Whether it can be reached, and how long its
/// packets are, is not looked at.
bool decode_address(std::span<const std::byte> bytes, VerbsAddress* address);

/// Two P_Keys meet if they are of one partition and one of the two is a full member (InfiniBand Architecture 10.9.3).
bool partitions_meet(uint16_t a, uint16_t b);

}  // namespace tern::transport
