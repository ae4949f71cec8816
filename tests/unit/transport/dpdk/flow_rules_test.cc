// The flow rules of endpoints at a device that keeps its interface in the kernel. DPDK's virtual devices have no rules
// of rte_flow beside such an interface, so this test replaces DPDK's functions for them.
#include <gmock/gmock.h>
#include <rte_errno.h>
#include <rte_flow.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "frames/mac_address.h"
#include "unit/neighbours/packets.h"
#include "unit/transport/dpdk/af_packet_fixture.h"
#include "unit/transport/dpdk/dpdk_fixture.h"

namespace {

/// A device's rules. `rte_flow` is an opaque type, so a rule's pointer is that of its number here.
struct Rules {
  std::mutex mutex;
  bool takes_mac = true;
  size_t places = SIZE_MAX;
  uintptr_t last = 0;
  std::map<rte_flow*, tern::frames::MacAddress> macs;

  std::vector<tern::frames::MacAddress> all() {
    const std::lock_guard lock(mutex);
    std::vector<tern::frames::MacAddress> list;
    for (const auto& [rule, mac] : macs) list.push_back(mac);
    return list;
  }
} rules;

bool names_mac(const rte_flow_item* pattern) {
  return pattern->type == RTE_FLOW_ITEM_TYPE_ETH && pattern->spec != nullptr;
}

}  // namespace

extern "C" {

int rte_flow_isolate(uint16_t, int, rte_flow_error*) { return 0; }

int rte_flow_validate(uint16_t, const rte_flow_attr*, const rte_flow_item* pattern, const rte_flow_action*,
                      rte_flow_error*) {
  return names_mac(pattern) && !rules.takes_mac ? -ENOTSUP : 0;
}

rte_flow* rte_flow_create(uint16_t, const rte_flow_attr*, const rte_flow_item* pattern, const rte_flow_action*,
                          rte_flow_error* error) {
  const std::lock_guard lock(rules.mutex);
  if (rules.macs.size() >= rules.places) {
    error->message = "the table is full";
    rte_errno = ENOSPC;
    return nullptr;
  }
  auto* const rule = reinterpret_cast<rte_flow*>(++rules.last);
  auto& mac = rules.macs[rule];
  if (names_mac(pattern)) {
    const auto& spec = *static_cast<const rte_flow_item_eth*>(pattern->spec);
    mac = tern::frames::MacAddress::from_bytes(std::as_bytes(std::span(spec.dst.addr_bytes)));
  }
  return rule;
}

int rte_flow_destroy(uint16_t, rte_flow* rule, rte_flow_error*) {
  const std::lock_guard lock(rules.mutex);
  return rules.macs.erase(rule) == 1 ? 0 : -ENOENT;
}

}  // extern "C"

namespace tern::transport::dpdk_test {
namespace {

using frames::MacAddress;
using ::testing::HasSubstr;
using Macs = std::vector<MacAddress>;

class DpdkFlowRules : public DpdkAfPacket {
 protected:
  void TearDown() override {
    DpdkAfPacket::TearDown();
    EXPECT_EQ(rules.all(), Macs());
    rules.takes_mac = true;
    rules.places = SIZE_MAX;
  }
  static Dpdk::Options options() {
    Dpdk::Options options;
    options.device = "net_af_packet0;iface=tern0;qpairs=3";
    options.eal = test::memif_eal();
    options.queues = 2;
    return options;
  }
  static MacAddress change_mac() {
    EXPECT_TRUE(test::run("ip link set tern0 address 02:00:00:00:00:77"));
    const MacAddress mac({2, 0, 0, 0, 0, 0x77});
    EXPECT_EQ(interface().mac, mac);
    return mac;
  }
};

TEST_F(DpdkFlowRules, rule__follows_the_interface_s_mac_address) {
  const MacAddress before = interface().mac;
  End end(options());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  ASSERT_EQ(rules.all(), Macs{before});
  const MacAddress mac = change_mac();
  EXPECT_TRUE(run_until({&end}, [&] { return rules.all() == Macs{mac}; }));
  const End later(options());  // the port has begun with the other address
  ASSERT_TRUE(later.status.ok()) << later.status.message();
  EXPECT_EQ(rules.all(), (Macs{mac, mac}));
}

TEST_F(DpdkFlowRules, rule_without_mac_address__stays) {
  rules.takes_mac = false;
  End end(options());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  ASSERT_EQ(rules.all(), Macs{MacAddress()});
  const uintptr_t last = rules.last;
  const std::vector<std::byte> frame = frame_to(end, 1, change_mac());
  neighbours::Packets far("tern1");
  // The endpoint takes the frame only if it knows the new address, for which it looks when it has received nothing for
  // many turns.
  EXPECT_TRUE(run_until({&end}, [&, turn = 0u]() mutable {
    if (turn++ % 10'000 == 0) far.send(frame);
    return !end.got.empty();
  }));
  EXPECT_EQ(rules.last, last);
}

TEST_F(DpdkFlowRules, full_table__gets_the_new_rule_in_place_of_the_old_one) {
  End end(options());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  rules.places = 1;
  const MacAddress mac = change_mac();
  EXPECT_TRUE(run_until({&end}, [&] { return rules.all() == Macs{mac} || !end->failure().ok(); }));
  EXPECT_TRUE(end->failure().ok()) << end->failure().message();
}

TEST_F(DpdkFlowRules, refused_rule__ends_the_endpoint) {
  End end(options());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  rules.places = 0;
  change_mac();
  EXPECT_TRUE(run_until({&end}, [&] { return !end->failure().ok(); }));
  EXPECT_THAT(std::string(end->failure().message()),
              HasSubstr("refuses a flow rule: the table is full (No space left on device)"));
  EXPECT_EQ(rules.all(), Macs());
}

}  // namespace
}  // namespace tern::transport::dpdk_test
