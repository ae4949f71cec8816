// Steering rules against a simulated device, and the reports of real interfaces.
#include "transport/xdp/flow_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>

#include "unit/transport/xdp/network.h"

using namespace tern::transport::xdp;
using tern::base::SocketAddress;

namespace {

const SocketAddress kIpv4 = *SocketAddress::parse("10.1.2.3:5000");
const SocketAddress kIpv6 = *SocketAddress::parse("[fd77::9]:5000");

/// A device's table of rules, which answers ethtool's commands as drivers do.
struct Device {
  uint32_t places = 8;
  bool chooses = false;  ///< true: the device chooses the place of a rule
  bool takes_rules = true;
  int error_of_insert = 0;
  std::map<uint32_t, ethtool_rx_flow_spec> rules{};

  int answer(void* bytes) {
    auto* const command = static_cast<ethtool_rxnfc*>(bytes);
    if (!takes_rules) return EOPNOTSUPP;
    switch (command->cmd) {
      case ETHTOOL_GRXCLSRLCNT:
        command->rule_cnt = static_cast<uint32_t>(rules.size());
        command->data = places | (chooses ? RX_CLS_LOC_SPECIAL : 0);
        return 0;
      case ETHTOOL_GRXCLSRLALL: {
        if (command->rule_cnt < rules.size()) return EMSGSIZE;
        size_t i = 0;
        for (const auto& [place, rule] : rules) command->rule_locs[i++] = place;
        command->rule_cnt = static_cast<uint32_t>(i);
        command->data = places;
        return 0;
      }
      case ETHTOOL_GRXCLSRULE:
        if (!rules.contains(command->fs.location)) return ENOENT;
        command->fs = rules[command->fs.location];
        return 0;
      case ETHTOOL_SRXCLSRLINS: {
        if (error_of_insert != 0) return error_of_insert;
        const auto is_same = [&](const auto& rule) { return is_same_flow(rule.second, command->fs); };
        if (std::ranges::any_of(rules, is_same)) return EEXIST;
        if (chooses != (command->fs.location == RX_CLS_LOC_ANY)) return EINVAL;
        if (chooses) {
          command->fs.location = 0;
          while (rules.contains(command->fs.location)) command->fs.location++;
        }
        if (command->fs.location >= places) return ENOSPC;
        rules[command->fs.location] = command->fs;
        return 0;
      }
      case ETHTOOL_SRXCLSRLDEL:
        return rules.erase(command->fs.location) == 1 ? 0 : ENOENT;
      default:
        return EOPNOTSUPP;
    }
  }
  FlowRules make_rules() {
    return FlowRules([this](void* command) { return answer(command); });
  }
};

/// The bytes are those that drivers read (linux/ethtool.h). A set bit of the mask means that the bit is compared.
TEST(XdpFlowRules, rule_names_destination_and_queue_only) {
  const ethtool_rx_flow_spec rule = rule_for(kIpv4, 3, 7);
  EXPECT_EQ(rule.flow_type, uint32_t{UDP_V4_FLOW});
  EXPECT_EQ(rule.ring_cookie, 3u);
  EXPECT_EQ(rule.location, 7u);
  const uint8_t fields[] = {0, 0, 0, 0, 10, 1, 2, 3, 0, 0, 0x13, 0x88, 0};
  const uint8_t masks[] = {0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 0};
  EXPECT_EQ(std::memcmp(&rule.h_u, fields, sizeof(fields)), 0);
  EXPECT_EQ(std::memcmp(&rule.m_u, masks, sizeof(masks)), 0);

  const ethtool_rx_flow_spec rule6 = rule_for(kIpv6, 3, 7);
  EXPECT_EQ(rule6.flow_type, uint32_t{UDP_V6_FLOW});
  uint8_t fields6[37] = {}, masks6[37] = {};
  std::memcpy(fields6 + 16, kIpv6.ip().data(), 16);
  std::memset(masks6 + 16, 0xff, 16);
  fields6[34] = 0x13;
  fields6[35] = 0x88;
  masks6[34] = masks6[35] = 0xff;
  EXPECT_EQ(std::memcmp(&rule6.h_u, fields6, sizeof(fields6)), 0);
  EXPECT_EQ(std::memcmp(&rule6.m_u, masks6, sizeof(masks6)), 0);
}

TEST(XdpFlowRules, rules_come_and_go) {
  for (const bool chooses : {false, true}) {
    Device device{.chooses = chooses};
    FlowRules rules = device.make_rules();
    const auto first = rules.add(kIpv4, 1), second = rules.add(kIpv6, 2);
    ASSERT_TRUE(first && second);
    EXPECT_NE(*first, *second);
    EXPECT_EQ(device.rules.size(), 2u);
    EXPECT_EQ(device.rules[*second].ring_cookie, 2u);
    rules.remove(*first);
    EXPECT_FALSE(device.rules.contains(*first));
    EXPECT_TRUE(device.rules.contains(*second));
  }
}

TEST(XdpFlowRules, equal_rule_that_was_left_behind_is_replaced) {
  for (const bool chooses : {false, true}) {
    Device device{.chooses = chooses};
    FlowRules rules = device.make_rules();
    ASSERT_TRUE(rules.add(kIpv4, 1));
    const auto place = rules.add(kIpv4, 2);
    ASSERT_TRUE(place);
    EXPECT_EQ(device.rules.size(), 1u);
    EXPECT_EQ(device.rules[*place].ring_cookie, 2u);
  }
}

TEST(XdpFlowRules, rules_of_an_administrator_stay_and_come_first) {
  Device device;
  device.rules[0] = rule_for(kIpv6, 0, 0);
  FlowRules rules = device.make_rules();
  const auto place = rules.add(kIpv4, 1);
  ASSERT_TRUE(place);
  EXPECT_GT(*place, 0u);
  EXPECT_TRUE(device.rules.contains(0));
}

TEST(XdpFlowRules, device_that_refuses_has_no_rules) {
  Device without{.takes_rules = false};
  EXPECT_EQ(without.make_rules().add(kIpv4, 1), std::nullopt);
  Device refuses{.error_of_insert = EINVAL};
  EXPECT_EQ(refuses.make_rules().add(kIpv4, 1), std::nullopt);
  Device full{.places = 1};
  FlowRules rules = full.make_rules();
  EXPECT_TRUE(rules.add(kIpv4, 1));
  EXPECT_EQ(rules.add(kIpv6, 1), std::nullopt);
}

/// Frames of an endpoint leave by the send queue that has the number of its receive queue.
TEST(XdpFlowRules, queues_are_counted_that_receive_and_send) {
  const auto pairs = [](uint32_t receive, uint32_t send, uint32_t both) {
    return queue_pairs(
        [&](void* bytes) {
          auto* const channels = static_cast<ethtool_channels*>(bytes);
          if (channels->cmd != ETHTOOL_GCHANNELS) return EOPNOTSUPP;
          channels->rx_count = receive;
          channels->tx_count = send;
          channels->combined_count = both;
          return 0;
        },
        64);
  };
  EXPECT_EQ(pairs(0, 0, 8), 8u);
  EXPECT_EQ(pairs(4, 1, 0), 1u);
  EXPECT_EQ(pairs(1, 4, 0), 1u);
  EXPECT_EQ(pairs(4, 0, 0), 1u);
  EXPECT_EQ(pairs(2, 3, 4), 6u);

  const auto without_channels = [](uint64_t rings, uint32_t send_queues_max) {
    return queue_pairs(
        [&](void* bytes) {
          auto* const command = static_cast<ethtool_rxnfc*>(bytes);
          if (command->cmd != ETHTOOL_GRXRINGS) return EOPNOTSUPP;
          command->data = rings;
          return 0;
        },
        send_queues_max);
  };
  EXPECT_EQ(without_channels(4, 8), 4u);
  EXPECT_EQ(without_channels(4, 2), 2u);
  EXPECT_EQ(without_channels(0, 2), 1u);
  EXPECT_EQ(without_channels(4, 0), 1u);
  EXPECT_EQ(queue_pairs([](void*) { return EOPNOTSUPP; }, 8), 1u);
}

class XdpInterfaces : public tern::test::XdpNetworkTest {
 protected:
  static uint32_t pairs(const char* name) {
    const auto interface = tern::test::XdpNetwork::interface(name);
    return queue_pairs(ask_interface(interface.index), interface.send_queues);
  }
};

TEST_F(XdpInterfaces, veth_takes_no_rules_and_tells_its_queues) {
  const auto xdp0 = tern::test::XdpNetwork::interface("xdp0");
  EXPECT_EQ(xdp0.send_queues, tern::test::XdpNetwork::kQueues);
  EXPECT_EQ(FlowRules(xdp0.index).add(kIpv4, 1), std::nullopt);
  EXPECT_EQ(pairs("xdp0"), tern::test::XdpNetwork::kQueues);
  EXPECT_EQ(pairs("lo"), 1u);
  EXPECT_EQ(queue_pairs(ask_interface(999), 4), 1u);
}

TEST_F(XdpInterfaces, interface_is_asked_by_whatever_name_it_has) {
  const auto xdp0 = tern::test::XdpNetwork::interface("xdp0");
  const Ask ask = ask_interface(xdp0.index);
  ASSERT_TRUE(tern::test::run("ip link set xdp0 down && ip link set xdp0 name other0"));
  EXPECT_EQ(xdp0.present_name(), "other0");
  EXPECT_EQ(queue_pairs(ask, 4), tern::test::XdpNetwork::kQueues);
  ASSERT_TRUE(tern::test::run("ip link del other0"));
  EXPECT_EQ(xdp0.present_name(), "xdp0");
}

}  // namespace
