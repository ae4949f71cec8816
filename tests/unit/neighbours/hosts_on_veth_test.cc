// Hosts against the kernel at the other end of a veth pair. An OwnHost has an address that no kernel has. A KernelHost
// stands in for the local kernel, which receives neither ARP nor neighbour discovery.
#include <gmock/gmock.h>
#include <linux/neighbour.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "frames/neighbour_frame.h"
#include "neighbours/interface.h"
#include "neighbours/kernel_host.h"
#include "neighbours/own_host.h"
#include "network.h"
#include "packets.h"
#include "patience.h"

namespace tern::neighbours {
namespace {

using frames::MacAddress;
using frames::NeighbourFrame;
using testing::HasSubstr;

constexpr uint64_t kSecond = 1'000'000'000;
const MacAddress kMac({2, 0, 0, 0, 0, 7});
const MacAddress kPeer = MacAddress::parse(Network::kPeerMac).value();

/// Runs over IPv4 and IPv6.
class HostsOnVethTest : public NetworkTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    NetworkTest::SetUp();
    if (IsSkipped()) return;
    packets_.emplace("eth0");
    network_->at_peer([] {  // the peer's kernel confirms a new entry at once
      for (const std::string family : {"ipv4", "ipv6"}) Network::set(family + "/neigh/eth1/delay_first_probe_time", 0);
    });
  }
  bool is_ipv6() const { return GetParam(); }
  std::string text(int host) const { return (is_ipv6() ? "fd00::" : "10.0.0.") + std::to_string(host); }
  std::string with_prefix(int host) const { return text(host) + (is_ipv6() ? "/64" : "/24"); }

  uint64_t now() const {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(time).count()) + skipped_ns_;
  }
  Host::Send sender() {
    return [this](std::span<const std::byte> frame) { packets_->send(frame); };
  }
  void make_own(int address, std::string_view gateway = "") {
    auto own = OwnAddress::parse(with_prefix(address), gateway);
    ASSERT_TRUE(own.ok()) << own.status().message();
    auto made = OwnHost::create({.name = "port", .mac = kMac, .address = *own}, sender(), now());
    ASSERT_TRUE(made.ok());
    own_ = made->get();
    host_ = std::move(*made);
  }
  void make_resolver() {
    auto made = host_->resolver({});
    ASSERT_TRUE(made.ok()) << made.status().message();
    resolver_ = std::move(*made);
  }
  /// Drives the host as a port does until `is_done()`. False: the time limit has passed.
  template <class F>
  bool run_until(F&& is_done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20 * patience());
    while (std::chrono::steady_clock::now() < end) {
      for (auto frame = packets_->receive(); !frame.empty(); frame = packets_->receive()) {
        if (host_->wants(frame)) host_->on_frame(frame, now());
      }
      host_->tick(now());
      if (resolver_) resolver_->update(now());
      if (is_done()) return true;
      packets_->wait(1);
    }
    return false;
  }
  bool becomes_settled() {
    return run_until([&] { return own_->is_settled(); });
  }
  Id find(std::string_view destination) {
    auto id = resolver_->find(ip(destination), now());
    EXPECT_TRUE(id.ok());
    return *id;
  }
  bool becomes_known(Id id, const MacAddress& mac) {
    return run_until([&] { return resolver_->state(id) == State::kKnown && resolver_->mac(id) == mac; });
  }
  /// Sends an empty datagram, so that the kernel of this namespace asks for the address or confirms it.
  void make_kernel_ask(int host, std::string_view source = "") {
    const base::Descriptor any_socket(socket(is_ipv6() ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    base::SocketAddress destination = ip(text(host));
    destination.set_port(9);
    if (!source.empty()) {
      const base::SocketAddress from = ip(source);
      EXPECT_EQ(bind(any_socket.get(), from.sockaddr_data(), from.sockaddr_bytes()), 0);
    }
    EXPECT_EQ(sendto(any_socket.get(), nullptr, 0, 0, destination.sockaddr_data(), destination.sockaddr_bytes()), 0);
  }
  /// True: the kernel of this namespace has this entry. Asks iproute2.
  bool kernel_knows(int host, const char* interface, const MacAddress& mac, const char* state = "") const {
    return run("ip neighbour show " + text(host) + " dev " + interface + " | grep '" + mac.to_text() + ".*" + state +
               "'");
  }
  bool peer_knows(int host, const MacAddress& mac, const char* state = "") {
    bool is_known = false;
    network_->at_peer([&] { is_known = kernel_knows(host, "eth1", mac, state); });
    return is_known;
  }

  std::optional<Packets> packets_;
  std::unique_ptr<Host> host_;
  OwnHost* own_ = nullptr;
  std::unique_ptr<Resolver> resolver_;
  uint64_t skipped_ns_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Families, HostsOnVethTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "IPv6" : "IPv4"; });

TEST_P(HostsOnVethTest, own_host_and_kernel_resolve_each_other) {
  make_own(7);
  ASSERT_TRUE(becomes_settled());
  ASSERT_TRUE(own_->failure().ok());
  make_resolver();
  const Id id = find(text(2));
  EXPECT_TRUE(becomes_known(id, kPeer));
  network_->at_peer([&] { make_kernel_ask(7); });
  EXPECT_TRUE(run_until([&] { return peer_knows(7, kMac, "REACHABLE"); }));
}

TEST_P(HostsOnVethTest, kernel_confirms_known_addresses_by_unicast_both_ways) {
  make_own(7);
  ASSERT_TRUE(becomes_settled());
  make_resolver();
  const Id id = find(text(2));
  ASSERT_TRUE(becomes_known(id, kPeer));
  // The kernel answers our unicast question.
  skipped_ns_ += NeighbourCache::kReachableNs;
  ASSERT_TRUE(run_until([&] { return own_->neighbour(ip(text(2)))->state == NUD_PROBE; }));
  EXPECT_TRUE(run_until([&] { return own_->neighbour(ip(text(2)))->state == NUD_REACHABLE; }));
  // Our host answers the kernel's unicast question.
  network_->run_at_peer("ip neighbour replace " + text(7) + " dev eth1 lladdr " + kMac.to_text() + " nud probe");
  EXPECT_TRUE(run_until([&] { return peer_knows(7, kMac, "REACHABLE"); }));
}

TEST_P(HostsOnVethTest, announcement_at_the_start_corrects_the_kernels_entry) {
  const MacAddress old({2, 0, 0, 0, 0, 8});
  network_->run_at_peer("ip neighbour add " + text(7) + " dev eth1 lladdr " + old.to_text() + " nud stale");
  make_own(7);
  ASSERT_TRUE(becomes_settled());
  EXPECT_TRUE(run_until([&] { return peer_knows(7, kMac); }));
}

TEST_P(HostsOnVethTest, gateway_that_changes_its_mac_address_is_followed) {
  make_own(7, text(2));
  ASSERT_TRUE(becomes_settled());
  make_resolver();
  const Id id = find(is_ipv6() ? "fd99::1" : "10.99.0.1");
  ASSERT_TRUE(becomes_known(id, kPeer));
  // The gateway gets another MAC address, which the kernel announces, as keepalived and restarted routers do.
  const MacAddress other({2, 0, 0, 0, 0, 0x22});
  network_->at_peer([&] {
    Network::set(std::string(is_ipv6() ? "ipv6/conf/eth1/ndisc_notify" : "ipv4/conf/eth1/arp_notify"), 1);
    EXPECT_TRUE(run("ip link set eth1 address " + other.to_text()));
  });
  EXPECT_TRUE(becomes_known(id, other));
}

TEST_P(HostsOnVethTest, silent_change_of_the_gateway_is_found_when_it_is_confirmed) {
  make_own(7, text(2));
  ASSERT_TRUE(becomes_settled());
  make_resolver();
  const Id id = find(is_ipv6() ? "fd99::1" : "10.99.0.1");
  ASSERT_TRUE(becomes_known(id, kPeer));
  const MacAddress other({2, 0, 0, 0, 0, 0x22});
  network_->run_at_peer("ip link set eth1 address " + other.to_text());
  skipped_ns_ += NeighbourCache::kReachableNs;
  // The first three seconds have questions to the old MAC address only.
  for (int i = 0; i < 5 && resolver_->mac(id) != other; i++) {
    run_until([&, begin = std::chrono::steady_clock::now()] {
      return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(20);
    });
    skipped_ns_ += kSecond;
  }
  EXPECT_TRUE(becomes_known(id, other));
}

TEST_P(HostsOnVethTest, address_of_the_kernel_is_refused) {
  make_own(2);
  ASSERT_TRUE(becomes_settled());
  EXPECT_THAT(std::string(own_->failure().message()), HasSubstr(std::string(Network::kPeerMac)));
  EXPECT_THAT(std::string(own_->failure().message()), HasSubstr(text(2)));
}

TEST_P(HostsOnVethTest, address_that_the_kernel_takes_later_is_a_conflict) {
  make_own(7);
  ASSERT_TRUE(becomes_settled());
  if (is_ipv6()) {  // the kernel probes the address, and gives it up because our host answers
    network_->at_peer([&] {
      for (const char* where : {"all", "default", "eth1"}) {
        Network::set(std::string("ipv6/conf/") + where + "/accept_dad", 1);
      }
      EXPECT_TRUE(run("ip address add fd00::7/64 dev eth1"));
    });
    const auto has_failed = [&] {
      bool is_so = false;
      network_->at_peer([&] { is_so = run("ip address show dev eth1 dadfailed | grep fd00::7"); });
      return is_so;
    };
    EXPECT_TRUE(run_until(has_failed));
    EXPECT_TRUE(own_->failure().ok());
    return;
  }
  // The kernel takes IPv4 addresses without a probe.
  network_->run_at_peer("ip address add 10.0.0.7/24 dev eth1");
  EXPECT_TRUE(run_until([&, other = 90]() mutable {
    network_->at_peer([&] { make_kernel_ask(++other % 100 + 100, "10.0.0.7"); });
    return !own_->failure().ok();
  }));
  EXPECT_THAT(std::string(own_->failure().message()), HasSubstr(std::string(Network::kPeerMac)));
}

/// The peer's end is a port of a switch that forwards the frames of a group only to ports that have reported the group.
class SnoopingSwitchTest : public HostsOnVethTest {
 protected:
  void SetUp() override {
    HostsOnVethTest::SetUp();
    if (IsSkipped()) return;
    network_->at_peer([] {
      ASSERT_TRUE(
          run("ip link add br0 type bridge mcast_snooping 1 mcast_querier 1 mcast_mld_version 2 "
              "mcast_query_response_interval 20 mcast_query_interval 100 mcast_startup_query_interval 100 "
              "mcast_membership_interval 300"));
      ASSERT_TRUE(
          run("ip address flush dev eth1 && ip link set eth1 master br0 && ip link set br0 up && "
              "ip address add fd00::2/64 dev br0 nodad && ip address add fe80::2/64 dev br0 nodad"));
    });
  }
  bool switch_has_group() {
    bool has = false;
    network_->at_peer([&] { has = run("bridge mdb show dev br0 | grep -i 'port eth1 grp ff02::1:ff00:7 '"); });
    return has;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, SnoopingSwitchTest, testing::Values(true), [](const auto&) { return "IPv6"; });

TEST_P(SnoopingSwitchTest, own_host_reports_its_group_and_answers_queries) {
  make_own(7);
  ASSERT_TRUE(run_until([&] { return switch_has_group(); }));
  // The switch sends a query each second, and forgets a group three seconds after its last report.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(run_until([&] { return std::chrono::steady_clock::now() - begin > std::chrono::seconds(6); }));
  EXPECT_TRUE(switch_has_group());
  // The question of the kernel there goes to the group, and the switch forwards it.
  network_->at_peer([&] { make_kernel_ask(7); });
  EXPECT_TRUE(run_until([&] {
    bool is_known = false;
    network_->at_peer([&] { is_known = kernel_knows(7, "br0", kMac); });
    return is_known;
  }));
}

/// The kernel of eth0 receives neither ARP nor neighbour discovery, as if a driver consumed them.
class KernelHostTest : public HostsOnVethTest {
 protected:
  void SetUp() override {
    HostsOnVethTest::SetUp();
    if (IsSkipped()) return;
    if (!run("nft add table netdev t; nft 'add chain netdev t c { type filter hook ingress device eth0 priority 0; }' "
             "&& "
             "nft add rule netdev t c ether type arp drop && "
             "nft 'add rule netdev t c icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } drop'")) {
      GTEST_SKIP() << "this machine has no nftables";
    }
    auto made = KernelHost::create((*interface_by_name("eth0")).index, 0, sender());
    ASSERT_TRUE(made.ok()) << made.status().message();
    host_ = std::move(*made);
  }
};
INSTANTIATE_TEST_SUITE_P(Families, KernelHostTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "IPv6" : "IPv4"; });

TEST_P(KernelHostTest, kernel_host_answers_for_the_kernel_and_teaches_it) {
  network_->at_peer([&] { make_kernel_ask(1); });
  const MacAddress own = MacAddress::parse(Network::kOwnMac).value();
  EXPECT_TRUE(run_until([&] { return peer_knows(1, own, "REACHABLE"); }));
  make_kernel_ask(2);
  EXPECT_TRUE(run_until([&] { return kernel_knows(2, "eth0", kPeer, "REACHABLE"); }));
  make_resolver();
  EXPECT_TRUE(becomes_known(find(text(2)), kPeer));
}

TEST_P(KernelHostTest, resolver_of_the_kernel_finds_neighbours_by_the_host) {
  make_resolver();
  EXPECT_TRUE(becomes_known(find(text(2)), kPeer));
}

TEST_P(KernelHostTest, addresses_that_the_interface_gets_later_are_answered_for) {
  host_->tick(now());  // reads the addresses that the interface has now
  skipped_ns_ += KernelHost::kLookNs;
  ASSERT_TRUE(run("ip address add " + with_prefix(9) + " dev eth0" + (is_ipv6() ? " nodad" : "")));
  const MacAddress own = MacAddress::parse(Network::kOwnMac).value();
  EXPECT_TRUE(run_until([&] {
    network_->at_peer([&] { make_kernel_ask(9); });
    return peer_knows(9, own);
  }));
}

TEST_P(KernelHostTest, strangers_make_no_entry_and_change_no_fixed_one) {
  const MacAddress stranger({2, 0, 0, 0, 0, 0x99});
  const auto put = [&](const NeighbourFrame& frame) {
    host_->on_frame(frames::NeighbourFrameBytes(frame, 0).bytes(), now());
  };
  const auto answer_of = [&](int other) {
    const MacAddress own = MacAddress::parse(Network::kOwnMac).value();
    return NeighbourFrame::answer_to(NeighbourFrame::question(ip(text(other)), std::nullopt, ip(text(1)), own),
                                     stranger);
  };
  ASSERT_TRUE(run("ip neighbour add " + text(5) + " dev eth0 lladdr " + kPeer.to_text() + " nud permanent"));
  ASSERT_TRUE(run("ip neighbour add " + text(6) + " dev eth0 lladdr " + kPeer.to_text() + " nud stale"));
  for (const int other : {4, 5, 6}) {
    put(answer_of(other));
    put(NeighbourFrame::announcement(ip(text(other)), stranger));
  }
  EXPECT_FALSE(run("ip neighbour show dev eth0 | grep '" + text(4) + " '"));
  EXPECT_TRUE(kernel_knows(5, "eth0", kPeer, "PERMANENT"));
  EXPECT_TRUE(kernel_knows(6, "eth0", stranger));  // the kernel itself accepts announcements, too
}

}  // namespace
}  // namespace tern::neighbours
