#include "transport/dpdk/dpdk_steering.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace tern::transport {

namespace {

constexpr uint64_t kUdpPackets = RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP;
constexpr uint32_t kHashBits = 32, kPortBits = 16;

/// The length of the RSS key; kHashKeyBytes if the driver does not report it.
uint8_t key_bytes(const rte_eth_dev_info& info) {
  return info.hash_key_size == 0 ? static_cast<uint8_t>(kHashKeyBytes) : info.hash_key_size;
}

/// The number of bits of the hash's input: source and destination IP, source and destination port.
uint32_t input_bits(sa_family_t family) {
  const uint32_t address_bits = family == AF_INET6 ? 128 : 32;
  return 2 * address_bits + 2 * kPortBits;
}

}  // namespace

// ---- RSS

bool can_hash_ports(const rte_eth_dev_info& info) {
  return info.reta_size >= 2 && std::has_single_bit(info.reta_size) && key_bytes(info) >= kHashKeyBytes &&
         hashed_packets(info) != 0;
}

uint64_t hashed_packets(const rte_eth_dev_info& info) { return info.flow_type_rss_offloads & kUdpPackets; }

std::array<uint8_t, kHashKeyBytes> port_hash_key(sa_family_t family, uint32_t log_entries) {
  // Bit j of the hash, from the lowest, is input bit k - 31 + j for a key whose only 1 is bit k. Bit log_entries - 1
  // must come from the input's last bit.
  const uint32_t k = input_bits(family) - 1 + (kHashBits - 1) - (log_entries - 1);
  std::array<uint8_t, kHashKeyBytes> key{};
  key[k / 8] = static_cast<uint8_t>(0x80u >> k % 8);
  return key;
}

uint32_t hash_entry_of(uint16_t port, uint32_t log_entries) {
  uint32_t entry = 0;
  for (uint32_t bit = 0; bit < log_entries; ++bit) entry |= (uint32_t{port} >> bit & 1) << (log_entries - 1 - bit);
  return entry;
}

std::unique_ptr<HashTable> HashTable::create(uint16_t port_id, const rte_eth_dev_info& info, sa_family_t family) {
  std::unique_ptr<HashTable> table(new (std::nothrow) HashTable(port_id, info.reta_size));
  if (table == nullptr) return nullptr;
  const auto short_key = port_hash_key(family, table->log_entries());
  std::vector<uint8_t> key(key_bytes(info), 0);
  std::copy(short_key.begin(), short_key.end(), key.begin());
  rte_eth_rss_conf wanted{};
  wanted.rss_key = key.data();
  wanted.rss_key_len = key_bytes(info);
  wanted.rss_hf = hashed_packets(info);
  if (rte_eth_dev_rss_hash_update(port_id, &wanted) != 0) return nullptr;
  std::vector<uint8_t> taken_key(key_bytes(info), 0xff);
  rte_eth_rss_conf taken{};
  taken.rss_key = taken_key.data();
  taken.rss_key_len = key_bytes(info);
  if (rte_eth_dev_rss_hash_conf_get(port_id, &taken) != 0 || taken_key != key) return nullptr;
  const uint64_t family_packets = family == AF_INET6 ? RTE_ETH_RSS_NONFRAG_IPV6_UDP : RTE_ETH_RSS_NONFRAG_IPV4_UDP;
  if ((taken.rss_hf & family_packets) == 0) return nullptr;
  for (uint32_t entry = 0; entry < info.reta_size; ++entry) {
    if (!table->write(entry, 0)) return nullptr;
  }
  return table;
}

uint32_t HashTable::log_entries() const { return static_cast<uint32_t>(std::countr_zero(queues_.size())); }

bool HashTable::is_free(uint16_t udp_port) const {
  const uint32_t entry = hash_entry_of(udp_port, log_entries());
  return entry != 0 && queues_[entry] == 0;
}

bool HashTable::lead(uint16_t udp_port, uint16_t queue) { return write(hash_entry_of(udp_port, log_entries()), queue); }

void HashTable::free(uint16_t udp_port) { write(hash_entry_of(udp_port, log_entries()), 0); }

bool HashTable::write(uint32_t entry, uint16_t queue) {
  rte_eth_rss_reta_entry64& group = changes_[entry / RTE_ETH_RETA_GROUP_SIZE];
  group.mask = uint64_t{1} << entry % RTE_ETH_RETA_GROUP_SIZE;
  group.reta[entry % RTE_ETH_RETA_GROUP_SIZE] = queue;
  const int error = rte_eth_dev_rss_reta_update(port_id_, changes_.data(), static_cast<uint16_t>(queues_.size()));
  group.mask = 0;
  if (error != 0) return false;
  queues_[entry] = queue;
  return true;
}

// ---- Flow rules

/// Items of a rule, and what they point to.
struct FlowRules::Pattern {
  Pattern(const FlowTarget& target, Shape shape, uint16_t to_queue) : queue{to_queue} {
    const bool is_ipv6 = target.address.family() == AF_INET6;
    const bool has_ip = shape != Shape::kPortOnly;
    attributes.ingress = 1;
    std::memcpy(ethernet.dst.addr_bytes, target.mac.bytes().data(), sizeof(ethernet.dst.addr_bytes));
    std::memset(ethernet_mask.dst.addr_bytes, 0xff, sizeof(ethernet_mask.dst.addr_bytes));
    vlan.tci = rte_cpu_to_be_16(target.vlan);
    vlan_mask.tci = rte_cpu_to_be_16(0x0fff);
    const auto ip = target.address.ip();
    std::memcpy(is_ipv6 ? static_cast<void*>(ipv6.hdr.dst_addr) : &ipv4.hdr.dst_addr, ip.data(), ip.size());
    std::memset(ipv6_mask.hdr.dst_addr, 0xff, sizeof(ipv6_mask.hdr.dst_addr));
    ipv4_mask.hdr.dst_addr = UINT32_MAX;
    udp.hdr.dst_port = rte_cpu_to_be_16(target.address.port());
    udp_mask.hdr.dst_port = UINT16_MAX;

    add(RTE_FLOW_ITEM_TYPE_ETH, shape == Shape::kMacAndIp, &ethernet, &ethernet_mask);
    if (target.vlan != 0) add(RTE_FLOW_ITEM_TYPE_VLAN, true, &vlan, &vlan_mask);
    if (is_ipv6) {
      add(RTE_FLOW_ITEM_TYPE_IPV6, has_ip, &ipv6, &ipv6_mask);
    } else {
      add(RTE_FLOW_ITEM_TYPE_IPV4, has_ip, &ipv4, &ipv4_mask);
    }
    add(RTE_FLOW_ITEM_TYPE_UDP, true, &udp, &udp_mask);
    add(RTE_FLOW_ITEM_TYPE_END, false, nullptr, nullptr);
    actions[0].type = RTE_FLOW_ACTION_TYPE_QUEUE;
    actions[0].conf = &queue;
    actions[1].type = RTE_FLOW_ACTION_TYPE_END;
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  void add(rte_flow_item_type type, bool is_named, const void* spec, const void* mask) {
    rte_flow_item& item = items[count++];
    item.type = type;
    item.spec = is_named ? spec : nullptr;
    item.mask = is_named ? mask : nullptr;
  }

  rte_flow_attr attributes{};
  rte_flow_item_eth ethernet{}, ethernet_mask{};
  rte_flow_item_vlan vlan{}, vlan_mask{};
  rte_flow_item_ipv4 ipv4{}, ipv4_mask{};
  rte_flow_item_ipv6 ipv6{}, ipv6_mask{};
  rte_flow_item_udp udp{}, udp_mask{};
  std::array<rte_flow_item, 5> items{};
  size_t count = 0;
  rte_flow_action_queue queue;
  std::array<rte_flow_action, 2> actions{};
};

std::optional<FlowRules> FlowRules::probe(uint16_t port_id, const FlowTarget& target, bool is_exact, bool is_running) {
  for (const Shape shape : {Shape::kMacAndIp, Shape::kIp, Shape::kPortOnly}) {
    if (is_exact && shape == Shape::kPortOnly) break;
    const Pattern pattern(target, shape, 1);
    rte_flow_error error{};
    if (rte_flow_validate(port_id, &pattern.attributes, pattern.items.data(), pattern.actions.data(), &error) != 0) {
      continue;
    }
    const FlowRules rules(port_id, shape);
    if (!is_running) return rules;
    rte_flow* const rule = rules.add(target, 1, &error);
    if (rule == nullptr) continue;
    rules.remove(rule);
    return rules;
  }
  return std::nullopt;
}

rte_flow* FlowRules::add(const FlowTarget& target, uint16_t queue, rte_flow_error* error) const {
  const Pattern pattern(target, shape_, queue);
  return rte_flow_create(port_id_, &pattern.attributes, pattern.items.data(), pattern.actions.data(), error);
}

void FlowRules::remove(rte_flow* rule) const {
  rte_flow_error error{};
  rte_flow_destroy(port_id_, rule, &error);
}

}  // namespace tern::transport
