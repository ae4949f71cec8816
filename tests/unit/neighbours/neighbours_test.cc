// Neighbours of a real interface: one end of a veth pair between two network namespaces.
#include "neighbours/neighbours.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "network.h"
#include "patience.h"

namespace tern::neighbours {
namespace {

using testing::HasSubstr;

class NeighboursTest : public NetworkTest {
 protected:
  void SetUp() override {
    NetworkTest::SetUp();
    if (IsSkipped()) return;
    for (const std::string family : {"ipv4", "ipv6"}) {  // the kernel gives up a neighbour after 150 ms
      Network::set(family + "/neigh/eth0/retrans_time_ms", 50);
    }
    make();
  }
  void make(const base::SocketAddress& source = {}) {
    neighbours_.reset();
    const auto interface = interface_by_name("eth0");
    ASSERT_TRUE(interface.ok()) << interface.status().message();
    auto made = Neighbours::create((*interface).index, source);
    ASSERT_TRUE(made.ok()) << made.status().message();
    neighbours_ = std::move(*made);
    update();
  }

  uint64_t now() const { return (stopped_ns_ != 0 ? stopped_ns_ : real_now()) + skipped_ns_; }
  static uint64_t real_now() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
  }
  /// From now on only skip() advances the clock of neighbours_.
  void stop_clock() { stopped_ns_ = real_now(); }
  void skip(uint64_t ns) { skipped_ns_ += ns; }
  void update() {
    const auto changes = neighbours_->update(now());
    changed_.insert(changes.ids.begin(), changes.ids.end());
    if (changes.is_interface) interface_changes_++;
  }
  /// Sleeps as an endpoint does until `is_done()`. False: the time limit has passed.
  template <class F>
  bool wait_until(F&& is_done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20 * patience());
    while (true) {
      update();
      if (is_done()) return true;
      if (std::chrono::steady_clock::now() > end) return false;
      const uint64_t time = now();
      const uint64_t due = neighbours_->next_update_ns();
      const uint64_t wait_ns = due <= time ? 0 : std::min<uint64_t>(due - time, 1'000'000'000);
      pollfd events{neighbours_->descriptor(), POLLIN, 0};
      poll(&events, 1, static_cast<int>((wait_ns + 999'999) / 1'000'000));
    }
  }
  Id find(std::string_view destination) {
    auto id = neighbours_->find(ip(destination), now());
    EXPECT_TRUE(id.ok());
    return *id;
  }
  bool becomes_known(Id id, std::string_view mac) {
    const auto wanted = frames::MacAddress::parse(mac);
    return wait_until([&] { return neighbours_->state(id) == State::kKnown && neighbours_->mac(id) == wanted; });
  }
  bool becomes_failed(Id id) {
    return wait_until([&] { return neighbours_->state(id) == State::kFailed; });
  }
  std::string failure(Id id) { return std::string(neighbours_->failure(id).message()); }
  /// Adds another host to the link, with 10.0.0.`host` and fe80::`host`.
  void add_peer(const std::string& host, const std::string& mac) {
    network_->at_peer([&] {
      const std::string name = "host" + host;
      EXPECT_TRUE(run("ip link add link eth1 name " + name + " address " + mac + " type macvlan mode bridge"));
      EXPECT_TRUE(run("ip link set " + name + " up"));
      EXPECT_TRUE(run("ip address add 10.0.0." + host + "/32 dev " + name));
      EXPECT_TRUE(run("ip address add fe80::" + host + "/64 dev " + name));
      Network::set("ipv4/conf/all/arp_ignore", 1);  // each interface answers for its own addresses only
    });
  }

  std::unique_ptr<Neighbours> neighbours_;
  std::set<Id> changed_;
  int interface_changes_ = 0;
  uint64_t stopped_ns_ = 0;  ///< time at which the clock was stopped; 0: it runs
  uint64_t skipped_ns_ = 0;
};

TEST_F(NeighboursTest, hosts_on_the_link_are_found) {
  const Id v4 = find("10.0.0.2");
  const Id v6 = find("fd00::2");
  const Id link_local = find("fe80::2");
  EXPECT_TRUE(becomes_known(v4, Network::kPeerMac));
  EXPECT_TRUE(becomes_known(v6, Network::kPeerMac));
  EXPECT_TRUE(becomes_known(link_local, Network::kPeerMac));
  EXPECT_TRUE(neighbours_->failure(v4).ok());
  EXPECT_EQ(changed_.count(v4), 1u);
}

TEST_F(NeighboursTest, entry_that_the_kernel_has_is_known_at_once) {
  ASSERT_TRUE(becomes_known(find("10.0.0.2"), Network::kPeerMac));
  make();
  const Id id = find("10.0.0.2");
  ASSERT_EQ(neighbours_->state(id), State::kKnown);
  EXPECT_EQ(neighbours_->mac(id).to_text(), Network::kPeerMac);
}

TEST_F(NeighboursTest, two_finds_share_one_id_whatever_the_port) {
  const Id id = find("10.0.0.2");
  base::SocketAddress again = ip("10.0.0.2");
  again.set_port(31850);
  EXPECT_EQ(*neighbours_->find(again, now()), id);
  neighbours_->release(id);
  EXPECT_TRUE(becomes_known(id, Network::kPeerMac));
  neighbours_->release(id);
}

TEST_F(NeighboursTest, no_privilege_is_needed) {
  ASSERT_EQ(seteuid(65534), 0);
  make();
  const bool is_known = becomes_known(find("10.0.0.2"), Network::kPeerMac);
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_TRUE(is_known);
}

TEST_F(NeighboursTest, own_addresses_have_the_own_mac) {
  for (const char* own : {"10.0.0.1", "fd00::1", "fe80::1"}) {
    const Id id = find(own);
    ASSERT_EQ(neighbours_->state(id), State::kKnown) << own;
    EXPECT_EQ(neighbours_->mac(id).to_text(), Network::kOwnMac);
  }
  const Id id = find("10.0.0.1");
  ASSERT_TRUE(run("ip link set eth0 address 02:00:00:00:00:11"));
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:11"));
  EXPECT_EQ(neighbours_->interface().mac.to_text(), "02:00:00:00:00:11");
}

TEST_F(NeighboursTest, static_entries_are_used_without_asking) {
  ASSERT_TRUE(run("ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 nud permanent dev eth0"));
  ASSERT_TRUE(run("ip neigh add 10.0.0.78 lladdr 02:00:00:00:00:78 nud noarp dev eth0"));
  for (const std::string host : {"77", "78"}) {
    const Id id = find("10.0.0." + host);
    ASSERT_EQ(neighbours_->state(id), State::kKnown);
    EXPECT_EQ(neighbours_->mac(id).to_text(), "02:00:00:00:00:" + host);
  }
  update();
  EXPECT_EQ(neighbours_->next_update_ns(), UINT64_MAX);
}

TEST_F(NeighboursTest, gateway_is_resolved_for_destinations_behind_it) {
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.2"));
  ASSERT_TRUE(run("ip route add fd01::/64 via fe80::2 dev eth0"));
  ASSERT_TRUE(run("ip route add 10.2.0.0/16 via inet6 fe80::2 dev eth0"));
  EXPECT_TRUE(becomes_known(find("10.1.2.3"), Network::kPeerMac));
  EXPECT_TRUE(becomes_known(find("fd01::5"), Network::kPeerMac));
  EXPECT_TRUE(becomes_known(find("10.2.2.3"), Network::kPeerMac));
}

TEST_F(NeighboursTest, replaced_gateway_is_followed) {
  add_peer("3", "02:00:00:00:00:03");
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.2"));
  ASSERT_TRUE(run("ip route add fd01::/64 via fe80::2 dev eth0"));
  const Id v4 = find("10.1.2.3");
  const Id v6 = find("fd01::5");
  ASSERT_TRUE(becomes_known(v4, Network::kPeerMac));
  ASSERT_TRUE(becomes_known(v6, Network::kPeerMac));
  ASSERT_TRUE(run("ip route replace 10.1.0.0/16 via 10.0.0.3"));
  ASSERT_TRUE(run("ip route replace fd01::/64 via fe80::3 dev eth0"));
  EXPECT_TRUE(wait_until([&] {
    EXPECT_EQ(neighbours_->state(v4), State::kKnown);  // the old gateway is used until the new one is known
    return neighbours_->mac(v4).to_text() == "02:00:00:00:00:03";
  }));
  EXPECT_TRUE(becomes_known(v6, "02:00:00:00:00:03"));
}

TEST_F(NeighboursTest, replaced_nexthop_object_is_followed) {
  add_peer("3", "02:00:00:00:00:03");
  ASSERT_TRUE(run("ip nexthop add id 1 via 10.0.0.2 dev eth0"));
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 nhid 1"));
  const Id id = find("10.1.2.3");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  ASSERT_TRUE(run("ip nexthop replace id 1 via 10.0.0.3 dev eth0"));
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:03"));
}

TEST_F(NeighboursTest, rules_by_source_are_followed) {
  add_peer("3", "02:00:00:00:00:03");
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.2"));
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.3 table 100"));
  make(ip("10.0.0.1"));
  const Id id = find("10.1.2.3");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  ASSERT_TRUE(run("ip rule add from 10.0.0.1 table 100"));
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:03"));
}

TEST_F(NeighboursTest, announced_new_mac_is_taken) {
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  changed_.clear();
  network_->at_peer([] { Network::set("ipv4/conf/eth1/arp_notify", 1); });
  network_->run_at_peer("ip link set eth1 address 02:00:00:00:00:22");
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:22"));
  EXPECT_EQ(changed_.count(id), 1u);
}

TEST_F(NeighboursTest, silent_new_mac_is_found_when_the_old_one_gets_stale) {
  Network::set("ipv4/neigh/eth0/base_reachable_time_ms", 200);
  Network::set("ipv4/neigh/eth0/delay_first_probe_time", 1);
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  network_->run_at_peer("ip link set eth1 address 02:00:00:00:00:22");
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:22"));
}

TEST_F(NeighboursTest, host_that_does_not_answer_fails_and_is_asked_for_again) {
  const Id v4 = find("10.0.0.9");
  const Id v6 = find("fd00::9");
  EXPECT_EQ(neighbours_->state(v4), State::kAsking);
  EXPECT_TRUE(becomes_failed(v4));
  EXPECT_TRUE(becomes_failed(v6));
  EXPECT_EQ(failure(v4), "10.0.0.9 does not answer on the link of eth0: check that it is up, and check the cable");
  network_->run_at_peer("ip address add 10.0.0.9/24 dev eth1");
  skip(Table::kRetryNs);
  EXPECT_TRUE(becomes_known(v4, Network::kPeerMac));
}

TEST_F(NeighboursTest, gateway_that_does_not_answer_is_named) {
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.9"));
  const Id id = find("10.1.2.3");
  EXPECT_TRUE(becomes_failed(id));
  EXPECT_THAT(failure(id), HasSubstr("the gateway 10.0.0.9 to 10.1.2.3 does not answer on the link of eth0"));
}

TEST_F(NeighboursTest, kernel_that_goes_on_asking_is_given_up) {
  Network::set("ipv4/neigh/eth0/retrans_time_ms", 600'000);
  stop_clock();
  const Id id = find("10.0.0.9");
  for (int i = 0; i < 2; i++) {
    skip(Table::kAskAgainNs);
    update();
    EXPECT_EQ(neighbours_->state(id), State::kAsking);
  }
  skip(Table::kAskAgainNs);
  EXPECT_TRUE(becomes_failed(id));
}

TEST_F(NeighboursTest, deleted_entry_is_asked_for_and_stays_known) {
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  changed_.clear();
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(run("ip neigh del 10.0.0.2 dev eth0"));
    EXPECT_TRUE(wait_until([&] { return run("ip neigh show to 10.0.0.2 dev eth0 nud reachable | grep -q lladdr"); }));
  }
  EXPECT_EQ(neighbours_->state(id), State::kKnown);
  EXPECT_EQ(changed_.count(id), 0u);
}

TEST_F(NeighboursTest, host_that_goes_away_fails) {
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  network_->run_at_peer("ip address del 10.0.0.2/24 dev eth1");
  ASSERT_TRUE(run("ip neigh del 10.0.0.2 dev eth0"));
  EXPECT_TRUE(becomes_failed(id));
}

TEST_F(NeighboursTest, interface_may_go_down_for_a_short_time) {
  const Id v4 = find("10.0.0.2");
  const Id v6 = find("fe80::2");
  ASSERT_TRUE(becomes_known(v4, Network::kPeerMac));
  ASSERT_TRUE(becomes_known(v6, Network::kPeerMac));
  changed_.clear();
  ASSERT_TRUE(run("ip link set eth0 down"));
  EXPECT_TRUE(wait_until([&] { return !neighbours_->interface().is_up; }));
  EXPECT_EQ(neighbours_->state(v4), State::kKnown);
  ASSERT_TRUE(run("ip link set eth0 up && ip address add fe80::1/64 dev eth0"));
  EXPECT_TRUE(wait_until([&] { return run("ip neigh show to 10.0.0.2 dev eth0 | grep -q lladdr"); }));
  EXPECT_TRUE(wait_until([&] { return run("ip neigh show to fe80::2 dev eth0 | grep -q lladdr"); }));
  EXPECT_TRUE(changed_.empty());
  EXPECT_GE(interface_changes_, 2);
}

TEST_F(NeighboursTest, interface_that_stays_down_fails_destinations_until_it_is_up) {
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  ASSERT_TRUE(run("ip link set eth0 down"));
  EXPECT_TRUE(wait_until([&] { return !neighbours_->interface().is_up; }));
  skip(Table::kGiveUpNs);
  EXPECT_TRUE(becomes_failed(id));
  EXPECT_EQ(failure(id), "the network interface eth0 is down: ip link set eth0 up");
  ASSERT_TRUE(run("ip link set eth0 up"));
  EXPECT_TRUE(becomes_known(id, Network::kPeerMac));
}

TEST_F(NeighboursTest, interface_may_be_deleted) {
  const Id id = find("10.0.0.2");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  ASSERT_TRUE(run("ip link del eth0"));
  EXPECT_TRUE(wait_until([&] { return neighbours_->interface().index == 0; }));
  skip(Table::kGiveUpNs);
  EXPECT_TRUE(becomes_failed(id));
  EXPECT_EQ(failure(id), "the network interface eth0 is gone");
}

TEST_F(NeighboursTest, removed_own_address_is_reported) {
  make(ip("10.0.0.1"));
  const Id peer = find("10.0.0.2");
  const Id own = find("10.0.0.1");
  ASSERT_TRUE(becomes_known(peer, Network::kPeerMac));
  ASSERT_TRUE(run("ip address add 10.0.0.5/24 dev eth0 && ip address del 10.0.0.1/24 dev eth0"));
  EXPECT_TRUE(wait_until([&] { return !neighbours_->interface().has_address(ip("10.0.0.1")); }));
  EXPECT_GE(interface_changes_, 1);
  skip(Table::kGiveUpNs);
  EXPECT_TRUE(becomes_failed(peer));
  EXPECT_TRUE(becomes_failed(own));
  EXPECT_EQ(failure(peer), "the network interface eth0 has lost the address 10.0.0.1: add it again");
  ASSERT_TRUE(run("ip address add 10.0.0.1/24 dev eth0"));
  EXPECT_TRUE(becomes_known(own, Network::kOwnMac));
}

TEST_F(NeighboursTest, own_address_is_gone_after_some_seconds_without_it) {
  stop_clock();
  make(ip("10.0.0.1"));
  ASSERT_TRUE(run("ip address del 10.0.0.1/24 dev eth0"));
  EXPECT_TRUE(wait_until([&] { return !neighbours_->interface().has_address(ip("10.0.0.1")); }));
  EXPECT_LE(neighbours_->next_update_ns(), now() + Table::kGiveUpNs);
  skip(Table::kGiveUpNs - 1);
  update();
  EXPECT_TRUE(neighbours_->own_failure().ok());
  interface_changes_ = 0;
  skip(1);
  update();
  EXPECT_EQ(interface_changes_, 1);
  EXPECT_EQ(neighbours_->own_failure().message(),
            "the network interface eth0 has lost the address 10.0.0.1: add it again");
  EXPECT_EQ(neighbours_->next_update_ns(), UINT64_MAX);
}

TEST_F(NeighboursTest, own_address_that_returns_after_the_interface_was_down_is_not_gone) {
  stop_clock();
  make(ip("fd00::1"));
  ASSERT_TRUE(run("ip link set eth0 down"));
  EXPECT_TRUE(wait_until([&] { return !neighbours_->interface().is_up; }));
  skip(Table::kGiveUpNs);
  ASSERT_TRUE(run("ip link set eth0 up"));
  EXPECT_TRUE(wait_until([&] { return neighbours_->interface().is_running; }));
  EXPECT_FALSE(neighbours_->interface().has_address(ip("fd00::1")));
  skip(Table::kGiveUpNs - 1);
  update();
  EXPECT_TRUE(neighbours_->own_failure().ok());
  ASSERT_TRUE(run("ip address add fd00::1/64 dev eth0"));
  EXPECT_TRUE(wait_until([&] { return neighbours_->interface().has_address(ip("fd00::1")); }));
  skip(Table::kGiveUpNs);
  update();
  EXPECT_TRUE(neighbours_->own_failure().ok());
}

TEST_F(NeighboursTest, own_address_that_the_kernel_tests_again_is_not_gone) {
  Network::set("ipv6/conf/eth0/keep_addr_on_down", 1);
  Network::set("ipv6/conf/eth0/accept_dad", 1);
  Network::set("ipv6/conf/eth0/dad_transmits", 100);
  stop_clock();
  make(ip("fd00::1"));
  ASSERT_TRUE(run("ip link set eth0 down && ip link set eth0 up"));
  EXPECT_TRUE(wait_until(
      [&] { return neighbours_->interface().is_running && neighbours_->interface().is_tentative(ip("fd00::1")); }));
  skip(Table::kGiveUpNs);
  update();
  EXPECT_TRUE(neighbours_->own_failure().ok()) << neighbours_->own_failure().message();
}

TEST_F(NeighboursTest, lost_reports_do_not_matter) {
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.2"));
  const Id id = find("10.0.0.2");
  const Id behind = find("10.1.2.3");
  ASSERT_TRUE(becomes_known(id, Network::kPeerMac));
  ASSERT_TRUE(becomes_known(behind, Network::kPeerMac));
  const int bytes = 1;  // the kernel raises it to 2 kB
  ASSERT_EQ(setsockopt(neighbours_->descriptor(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
  const auto lost = [] {  // the column "Drops", summed over the sockets of the namespace
    std::ifstream list("/proc/net/netlink");
    std::string line;
    std::getline(list, line);
    uint64_t sum = 0;
    while (std::getline(list, line)) {
      std::istringstream columns(line);
      std::string column;
      for (int i = 0; i < 8; i++) columns >> column;
      uint64_t drops = 0;
      if (columns >> drops) sum += drops;
    }
    return sum;
  };
  std::string commands;
  for (int i = 10; i < 50; i++) {
    commands += "neigh replace 10.0.0." + std::to_string(i) + " lladdr 02:00:00:00:00:99 nud permanent dev eth0\\n";
  }
  commands += "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:33 nud permanent dev eth0\\n";
  commands += "neigh replace 10.0.0.3 lladdr 02:00:00:00:00:44 nud permanent dev eth0\\n";
  commands += "route replace 10.1.0.0/16 via 10.0.0.3\\n";
  ASSERT_TRUE(run("printf '" + commands + "' | ip -batch -"));
  ASSERT_GT(lost(), 0u);
  EXPECT_TRUE(becomes_known(id, "02:00:00:00:00:33"));
  EXPECT_TRUE(becomes_known(behind, "02:00:00:00:00:44"));
}

TEST_F(NeighboursTest, destination_without_a_route_fails_at_once_until_there_is_one) {
  const Id v4 = find("10.1.2.3");
  const Id v6 = find("fd01::5");
  for (const Id id : {v4, v6}) EXPECT_EQ(neighbours_->state(id), State::kFailed);
  EXPECT_EQ(failure(v4), "no route to 10.1.2.3 through eth0: add one, or choose another interface");
  EXPECT_EQ(failure(v6), "no route to fd01::5 through eth0: add one, or choose another interface");
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 via 10.0.0.2 && ip route add fd01::/64 via fe80::2 dev eth0"));
  EXPECT_TRUE(becomes_known(v4, Network::kPeerMac));
  EXPECT_TRUE(becomes_known(v6, Network::kPeerMac));
}

TEST_F(NeighboursTest, route_by_another_interface_is_none) {
  ASSERT_TRUE(run("ip link add eth9 type veth peer name eth8 && ip link set eth8 up && ip link set eth9 up"));
  ASSERT_TRUE(run("ip route add 10.1.0.0/16 dev eth9 && ip route add fd01::/64 dev eth9"));
  for (const char* destination : {"10.1.2.3", "fd01::5"}) {
    const Id id = find(destination);
    ASSERT_EQ(neighbours_->state(id), State::kFailed) << destination;
    EXPECT_THAT(failure(id), HasSubstr(std::string("no route to ") + destination + " through eth0"));
  }
  const Id id = find("fe80::2%eth9");
  ASSERT_EQ(neighbours_->state(id), State::kFailed);
  EXPECT_THAT(failure(id), HasSubstr("does not go through eth0"));
  EXPECT_NE(find("fe80::2"), id);
}

TEST_F(NeighboursTest, forbidding_routes_fail) {
  for (const std::string type : {"blackhole", "unreachable", "prohibit"}) {
    ASSERT_TRUE(run("ip route replace " + type + " 10.1.2.3"));
    ASSERT_TRUE(
        run("ip -6 route del fd01::5"  // `replace` with another type would leave the old route
            "; ip route add " +
            type + " fd01::5"));
    for (const char* destination : {"10.1.2.3", "fd01::5"}) {
      const Id id = find(destination);
      ASSERT_EQ(neighbours_->state(id), State::kFailed) << type << " " << destination;
      EXPECT_THAT(failure(id), HasSubstr(destination)) << type;
      neighbours_->release(id);
    }
  }
}

TEST_F(NeighboursTest, destination_that_is_not_one_host_fails) {
  for (const char* destination :
       {"10.0.0.255", "255.255.255.255", "224.0.0.1", "ff02::1", "127.0.0.1", "::1", "0.0.0.0", "::"}) {
    const Id id = find(destination);
    ASSERT_EQ(neighbours_->state(id), State::kFailed) << destination;
    EXPECT_THAT(failure(id), HasSubstr("is not the address of one host")) << destination;
  }
}

TEST_F(NeighboursTest, refusals_say_what_to_do) {
  EXPECT_THAT(Neighbours::create(12345).status().message(), HasSubstr("no network interface with index 12345"));
  EXPECT_THAT(Neighbours::create(1).status().message(), HasSubstr("lo has no Ethernet address"));
  const uint32_t index = neighbours_->interface().index;
  EXPECT_THAT(Neighbours::create(index, ip("10.0.0.7")).status().message(),
              HasSubstr("eth0 does not have the address 10.0.0.7: add it (ip address add 10.0.0.7 dev eth0)"));
}

}  // namespace
}  // namespace tern::neighbours
