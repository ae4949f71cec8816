// Steering: a DPDK device brings the frames of each endpoint to the endpoint's own queue, by rules of rte_flow or by
// RSS. Transport layer; control events only.
//
// RSS: the Toeplitz hash is the exclusive or of those windows of 32 bits of the key that begin where the input (source
// and destination IP, source and destination port) has a 1. A key with a single 1 makes a hash whose low bits are low
// bits of the destination port in reverse order, and depend on nothing else. The device looks up the queue by the
// hash's low bits in its table (RETA).
#pragma once

#include <rte_ethdev.h>
#include <rte_flow.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"

namespace tern::transport {

// ---- RSS: pure functions

inline constexpr size_t kHashKeyBytes = 40;  ///< of IPv6; devices with longer keys hash no more fields of UDP

/// True if the device may hash UDP ports by a key of tern's, and has a table of 2^n queues.
bool can_hash_ports(const rte_eth_dev_info& info);
/// The kinds of UDP packets that the device hashes.
uint64_t hashed_packets(const rte_eth_dev_info& info);
/// The key of an IP family by which the hash's lowest `log_entries` bits (1 to 16) come from the destination port.
std::array<uint8_t, kHashKeyBytes> port_hash_key(sa_family_t family, uint32_t log_entries);
/// The entry of a table of 2^log_entries that the key chooses for packets to this UDP port.
uint32_t hash_entry_of(uint16_t port, uint32_t log_entries);

/// The table of a running port. An entry belongs to at most one endpoint; all others lead to queue 0.
class HashTable {
 public:
  /// Sets the key, and a table that leads all frames to queue 0. Returns nothing if the device refuses, or does not
  /// report that it has taken both.
  static std::unique_ptr<HashTable> create(uint16_t port_id, const rte_eth_dev_info& info, sa_family_t family);

  /// True if an endpoint with this UDP port can have a queue. No endpoint gets entry 0, because devices use it for
  /// packets that they do not hash.
  bool is_free(uint16_t udp_port) const;
  bool lead(uint16_t udp_port, uint16_t queue);
  void free(uint16_t udp_port);

 private:
  HashTable(uint16_t port_id, uint32_t entries)
      : port_id_(port_id),
        queues_(entries, 0),
        changes_((entries + RTE_ETH_RETA_GROUP_SIZE - 1) / RTE_ETH_RETA_GROUP_SIZE) {}
  bool write(uint32_t entry, uint16_t queue);
  uint32_t log_entries() const;

  const uint16_t port_id_;
  std::vector<uint16_t> queues_;                   ///< of each entry
  std::vector<rte_eth_rss_reta_entry64> changes_;  ///< of write(), which must not allocate
};

// ---- Flow rules

/// The datagrams of an endpoint.
struct FlowTarget {
  frames::MacAddress mac;
  base::SocketAddress address;  ///< IP and UDP port
  uint16_t vlan = 0;            ///< 0: no tag
};

/// Rules of one port. A driver may take only rules that name certain fields.
class FlowRules {
 public:
  /// Returns nothing if the device accepts none of tern's rules. `is_exact`: a rule must name the IP address, because
  /// the kernel has other traffic on the device. A running device gets a rule as a test, because net_tap accepts rules
  /// for which its kernel has no filters.
  static std::optional<FlowRules> probe(uint16_t port_id, const FlowTarget& target, bool is_exact, bool is_running);

  /// Leads the endpoint's frames to a queue. Null: `error` has the reason.
  rte_flow* add(const FlowTarget& target, uint16_t queue, rte_flow_error* error) const;
  void remove(rte_flow* rule) const;
  /// True if the rules name a MAC address.
  bool has_mac() const { return shape_ == Shape::kMacAndIp; }

 private:
  /// The fields that a rule names besides the UDP port.
  enum class Shape : uint8_t { kMacAndIp, kIp, kPortOnly };
  FlowRules(uint16_t port_id, Shape shape) : port_id_(port_id), shape_(shape) {}

  struct Pattern;
  uint16_t port_id_;
  Shape shape_;
};

}  // namespace tern::transport
