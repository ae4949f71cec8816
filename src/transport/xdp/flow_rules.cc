#include "transport/xdp/flow_rules.h"

#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/descriptor.h"

namespace tern::transport::xdp {

namespace {

constexpr uint32_t kRulesMax = 1u << 16;  ///< a larger number from a device is not trusted

}  // namespace

ethtool_rx_flow_spec rule_for(const base::SocketAddress& address, uint32_t queue, uint32_t location) {
  ethtool_rx_flow_spec rule{};
  const auto ip = address.ip();
  if (address.family() == AF_INET6) {
    rule.flow_type = UDP_V6_FLOW;
    std::memcpy(rule.h_u.udp_ip6_spec.ip6dst, ip.data(), ip.size());
    std::memset(rule.m_u.udp_ip6_spec.ip6dst, 0xff, ip.size());
    rule.h_u.udp_ip6_spec.pdst = htons(address.port());
    rule.m_u.udp_ip6_spec.pdst = UINT16_MAX;
  } else {
    rule.flow_type = UDP_V4_FLOW;
    std::memcpy(&rule.h_u.udp_ip4_spec.ip4dst, ip.data(), ip.size());
    rule.m_u.udp_ip4_spec.ip4dst = UINT32_MAX;
    rule.h_u.udp_ip4_spec.pdst = htons(address.port());
    rule.m_u.udp_ip4_spec.pdst = UINT16_MAX;
  }
  rule.ring_cookie = queue;
  rule.location = location;
  return rule;
}

bool is_same_flow(const ethtool_rx_flow_spec& one, const ethtool_rx_flow_spec& other) {
  return one.flow_type == other.flow_type && std::ranges::equal(one.h_u.hdata, other.h_u.hdata) &&
         std::ranges::equal(one.m_u.hdata, other.m_u.hdata);
}

Ask ask_interface(uint32_t index) {
  auto own = std::make_shared<base::Descriptor>(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return [index, own = std::move(own)](void* command) {
    ifreq request{};
    request.ifr_ifindex = static_cast<int>(index);
    if (ioctl(own->get(), SIOCGIFNAME, &request) != 0) return errno;
    request.ifr_data = static_cast<char*>(command);
    return ioctl(own->get(), SIOCETHTOOL, &request) == 0 ? 0 : errno;
  };
}

std::optional<uint32_t> FlowRules::place_for(const ethtool_rx_flow_spec& rule) {
  ethtool_rxnfc count{};
  count.cmd = ETHTOOL_GRXCLSRLCNT;
  if (ask_(&count) != 0 || count.rule_cnt > kRulesMax) return std::nullopt;
  const bool chooses = (count.data & RX_CLS_LOC_SPECIAL) != 0;

  // The list follows the command in memory.
  const size_t bytes = sizeof(ethtool_rxnfc) + count.rule_cnt * sizeof(uint32_t);
  const auto memory = std::make_unique<uint64_t[]>((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  auto* const list = new (memory.get()) ethtool_rxnfc{};
  list->cmd = ETHTOOL_GRXCLSRLALL;
  list->rule_cnt = count.rule_cnt;
  if (ask_(list) != 0) return std::nullopt;
  const std::span<const uint32_t> taken(list->rule_locs, std::min(list->rule_cnt, count.rule_cnt));

  for (const uint32_t location : taken) {
    ethtool_rxnfc old{};
    old.cmd = ETHTOOL_GRXCLSRULE;
    old.fs.location = location;
    if (ask_(&old) != 0 || !is_same_flow(old.fs, rule)) continue;
    remove(location);
    return chooses ? uint32_t{RX_CLS_LOC_ANY} : location;
  }
  if (chooses) return uint32_t{RX_CLS_LOC_ANY};
  // From the end, because rules at the beginning have precedence and belong to an administrator.
  for (uint64_t location = std::min<uint64_t>(list->data, kRulesMax); location-- > 0;) {
    if (std::ranges::find(taken, location) == taken.end()) return static_cast<uint32_t>(location);
  }
  return std::nullopt;
}

std::optional<uint32_t> FlowRules::add(const base::SocketAddress& address, uint32_t queue) {
  ethtool_rxnfc command{};
  command.cmd = ETHTOOL_SRXCLSRLINS;
  command.fs = rule_for(address, queue, 0);
  const auto place = place_for(command.fs);
  if (!place) return std::nullopt;
  command.fs.location = *place;
  if (ask_(&command) != 0) return std::nullopt;
  return command.fs.location;  // set by a device that chooses the location itself
}

void FlowRules::remove(uint32_t location) {
  ethtool_rxnfc command{};
  command.cmd = ETHTOOL_SRXCLSRLDEL;
  command.fs.location = location;
  (void)ask_(&command);
}

uint32_t queue_pairs(const Ask& ask, uint32_t send_queues_max) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  if (ask(&channels) == 0)
    return std::max(1u, channels.combined_count + std::min(channels.rx_count, channels.tx_count));
  // A device without channels may report the number of queues that its rules can choose.
  ethtool_rxnfc rings{};
  rings.cmd = ETHTOOL_GRXRINGS;
  if (ask(&rings) == 0 && rings.data <= kRulesMax)
    return std::clamp(static_cast<uint32_t>(rings.data), 1u, std::max(send_queues_max, 1u));
  return 1;
}

}  // namespace tern::transport::xdp
