#include "transport/verbs/verbs_address.h"

#include "base/address.h"
#include "wire/fields.h"

namespace tern::transport {

namespace {

constexpr uint8_t kVersion = 1;

/// Packets to a group would reach other endpoints than the peer.
bool is_of_one_port(const VerbsAddress& address) {
  constexpr uint16_t kLidMax = 0xbfff;
  if (address.fabric == rdma::Fabric::kInfiniband) return address.lid != 0 && address.lid <= kLidMax;
  const auto ip = base::SocketAddress::from_ip(address.gid);  // of IPv4, if that is what is mapped
  return !ip.is_wildcard() && !ip.is_group();
}

}  // namespace

VerbsAddress::Bytes encode_address(const VerbsAddress& address) {
  VerbsAddress::Bytes bytes{};
  wire::FieldWriter to(bytes);
  to.number(kVersion);
  to.number(static_cast<uint8_t>(address.fabric));
  to.number(address.lid);
  to.number(address.queue_pair);
  to.number(address.key);
  to.number(address.partition);
  to.number(address.packet_bytes);
  to.raw(address.gid.data(), address.gid.size());
  return bytes;
}

bool decode_address(std::span<const std::byte> bytes, VerbsAddress* address) {
  wire::FieldReader from(bytes);
  const auto version = from.number<uint8_t>();
  const auto fabric = from.number<uint8_t>();
  address->fabric = static_cast<rdma::Fabric>(fabric);
  address->lid = from.number<uint16_t>();
  address->queue_pair = from.number<uint32_t>();
  address->key = from.number<uint32_t>();
  address->partition = from.number<uint16_t>();
  address->packet_bytes = from.number<uint16_t>();
  from.raw(address->gid.data(), address->gid.size());
  return from.is_exact() && version == kVersion && fabric >= static_cast<uint8_t>(rdma::Fabric::kInfiniband) &&
         fabric <= static_cast<uint8_t>(rdma::Fabric::kRoce2) && address->queue_pair >= VerbsAddress::kQueuePairMin &&
         address->queue_pair <= VerbsAddress::kQueuePairMax && address->key <= VerbsAddress::kKeyMax &&
         is_of_one_port(*address);
}

bool partitions_meet(uint16_t a, uint16_t b) {
  return ((a ^ b) & ~rdma::kFullMember & 0xffff) == 0 && ((a | b) & rdma::kFullMember) != 0;
}

}  // namespace tern::transport
