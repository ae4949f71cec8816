// The table of destinations against a kernel that the test simulates.
#include "neighbours/table.h"

#include <gtest/gtest.h>
#include <linux/rtnetlink.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tern::neighbours {
namespace {

constexpr uint32_t kInterface = 7;
constexpr uint64_t kSecond = 1'000'000'000;

base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }
std::string text_of(const base::SocketAddress& address) { return std::string(base::host_of(address.to_text())); }
frames::MacAddress mac(uint8_t last) { return frames::MacAddress({2, 0, 0, 0, 0, last}); }

class TableTest : public testing::Test {
 protected:
  struct Route {
    std::string gateway;
    uint8_t type = RTN_UNICAST;
  };
  struct Neighbour {
    uint16_t state;
    frames::MacAddress mac{};
  };

  Id find(std::string_view destination) {
    const auto id = table.find(ip(destination));
    EXPECT_TRUE(id);
    table.check_invariants();
    return *id;
  }
  /// Answers all pending requests as the kernel.
  void answer() {
    while (true) {
      const Table::Action action = table.next_action(now_ns);
      if (action.destination != nullptr) {
        route_requests++;
        const auto found = routes.find(text_of(action.ip));
        if (found == routes.end()) {
          table.on_no_route(action.destination, Reason::kNoRoute, now_ns);
        } else {
          RouteMessage route{found->second.type, RT_TABLE_MAIN, kInterface, {}, {action.ip, 0}};
          if (!found->second.gateway.empty()) route.gateway = ip(found->second.gateway);
          table.on_route(action.destination, route, now_ns);
        }
      } else if (action.hop != nullptr) {
        neighbour_requests++;
        const auto found = neighbours.find(text_of(action.ip));
        std::optional<base::SocketAddress> asked;
        if (found == neighbours.end()) {
          asked = table.on_neighbour(action.hop, nullptr, now_ns);
        } else {
          const NeighbourMessage entry{kInterface, action.ip, found->second.state, found->second.mac};
          asked = table.on_neighbour(action.hop, &entry, now_ns);
        }
        if (asked && is_full) table.on_postponed(action.hop);
        if (asked && !is_full) datagrams.push_back(text_of(*asked));
      } else {
        break;
      }
      table.check_invariants();
    }
  }
  void set_neighbour(const std::string& host, Neighbour entry) {
    neighbours[host] = entry;
    table.on_neighbour_change(ip(host));
    answer();
  }
  std::set<Id> changes() {
    const auto ids = table.take_changes();
    return {ids.begin(), ids.end()};
  }

  Table table{kInterface, mac(1), 0x1234567};
  uint64_t now_ns = 1000 * kSecond;
  std::map<std::string, Route> routes;
  std::map<std::string, Neighbour> neighbours;
  bool is_full = false;  ///< datagrams cannot be sent
  std::vector<std::string> datagrams;
  size_t route_requests = 0, neighbour_requests = 0;
};

TEST_F(TableTest, unknown_neighbour_is_asked_for_until_it_is_known) {
  routes["10.0.0.2"] = {};
  const Id id = find("10.0.0.2");
  answer();
  EXPECT_EQ(table.state(id), State::kAsking);
  EXPECT_EQ(datagrams, std::vector<std::string>{"10.0.0.2"});
  EXPECT_EQ(table.next_action_ns(), now_ns + Table::kAskAgainNs);
  set_neighbour("10.0.0.2", {NUD_REACHABLE, mac(2)});
  EXPECT_EQ(table.state(id), State::kKnown);
  EXPECT_EQ(table.mac(id), mac(2));
  EXPECT_EQ(changes(), std::set<Id>{id});
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);
}

TEST_F(TableTest, gateway_is_asked_for_by_a_datagram_to_the_destination) {
  routes["10.1.2.3"] = {"10.0.0.2"};
  const Id id = find("10.1.2.3");
  answer();
  EXPECT_EQ(datagrams, std::vector<std::string>{"10.1.2.3"});
  EXPECT_EQ(*table.next_hop(id), ip("10.0.0.2"));
}

TEST_F(TableTest, many_destinations_behind_one_gateway_cost_one_look_up_of_it) {
  neighbours["10.0.0.2"] = {NUD_REACHABLE, mac(2)};
  std::vector<Id> ids;
  for (int i = 0; i < 20'000; i++) {
    const std::string host = "10.1." + std::to_string(i / 200) + "." + std::to_string(1 + i % 200);
    routes[host] = {"10.0.0.2"};
    ids.push_back(*table.find(ip(host)));
  }
  while (true) {  // as answer(), but without the checks, which take too long for 20 000 destinations
    const Table::Action action = table.next_action(now_ns);
    if (action.destination != nullptr) {
      table.on_route(action.destination, {RTN_UNICAST, RT_TABLE_MAIN, kInterface, ip("10.0.0.2"), {action.ip, 0}},
                     now_ns);
    } else if (action.hop != nullptr) {
      neighbour_requests++;
      const NeighbourMessage entry{kInterface, action.ip, NUD_REACHABLE, mac(2)};
      EXPECT_FALSE(table.on_neighbour(action.hop, &entry, now_ns));
    } else {
      break;
    }
  }
  EXPECT_EQ(neighbour_requests, 1u);
  EXPECT_EQ(table.hops(), 1u);
  set_neighbour("10.0.0.2", {NUD_REACHABLE, mac(3)});
  EXPECT_EQ(neighbour_requests, 2u);
  std::set<Id> changed;
  for (size_t i = 0; i < ids.size(); i += Table::kChangesMax) {
    EXPECT_EQ(table.next_action_ns(), 0u);
    changed.merge(changes());
  }
  EXPECT_EQ(changed.size(), ids.size());
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);
  for (const Id id : ids) ASSERT_EQ(table.mac(id), mac(3));
}

TEST_F(TableTest, changed_route_asks_for_the_destinations_it_covers) {
  for (const char* host : {"10.1.0.1", "10.1.0.2", "10.2.0.1", "fd00::1"}) {
    routes[host] = {};
    find(host);
  }
  answer();
  route_requests = 0;
  table.on_route_change({ip("10.1.0.0"), 16});
  answer();
  EXPECT_EQ(route_requests, 2u);
  table.on_route_change({ip("0.0.0.0"), 0});
  answer();
  EXPECT_EQ(route_requests, 5u);
  table.on_routes_change();
  answer();
  EXPECT_EQ(route_requests, 9u);
}

TEST_F(TableTest, failure_before_the_first_ask_does_not_count) {
  routes["10.0.0.2"] = {};
  neighbours["10.0.0.2"] = {NUD_FAILED};
  const Id id = find("10.0.0.2");
  answer();
  EXPECT_EQ(table.state(id), State::kAsking);
  EXPECT_EQ(datagrams.size(), 1u);
  set_neighbour("10.0.0.2", {NUD_INCOMPLETE});
  EXPECT_EQ(table.state(id), State::kAsking);
  set_neighbour("10.0.0.2", {NUD_FAILED});
  EXPECT_EQ(table.state(id), State::kFailed);
  EXPECT_EQ(table.reason(id), Reason::kSilent);
  EXPECT_EQ(changes(), std::set<Id>{id});
}

TEST_F(TableTest, silent_neighbour_is_given_up_and_tried_again) {
  routes["10.0.0.2"] = {};
  const Id id = find("10.0.0.2");
  for (uint64_t asked_ns = 0; asked_ns < Table::kGiveUpNs; asked_ns += Table::kAskAgainNs) {
    answer();
    EXPECT_EQ(table.state(id), State::kAsking);
    now_ns += Table::kAskAgainNs;
  }
  EXPECT_EQ(datagrams.size(), 3u);
  answer();
  EXPECT_EQ(table.state(id), State::kFailed);
  changes();
  EXPECT_EQ(table.next_action_ns(), now_ns + Table::kRetryNs);
  now_ns += Table::kRetryNs;
  answer();
  EXPECT_EQ(datagrams.size(), 4u);
  EXPECT_EQ(table.state(id), State::kFailed);  // the state lasts until the neighbour is known
  set_neighbour("10.0.0.2", {NUD_REACHABLE, mac(2)});
  EXPECT_EQ(table.state(id), State::kKnown);
}

TEST_F(TableTest, number_of_questions_at_one_time_is_limited) {
  constexpr size_t kHosts = Table::kAskedMax + 10;
  std::vector<Id> ids;
  for (size_t i = 0; i < kHosts; i++) {
    const std::string host = "10.0." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250);
    routes[host] = {};
    ids.push_back(find(host));
  }
  answer();
  EXPECT_EQ(datagrams.size(), Table::kAskedMax);
  table.release(ids[0]);  // another destination gets the place of this one
  now_ns += Table::kAskAgainNs;
  answer();
  EXPECT_EQ(std::set<std::string>(datagrams.begin(), datagrams.end()).size(), Table::kAskedMax + 1);
  for (int i = 0; i < 3; i++, now_ns += Table::kAskAgainNs) answer();
  EXPECT_EQ(table.state(ids[1]), State::kFailed);
  EXPECT_EQ(table.state(ids.back()), State::kAsking);
  for (int i = 0; i < 4; i++, now_ns += Table::kAskAgainNs) answer();
  EXPECT_EQ(table.state(ids.back()), State::kFailed);
}

TEST_F(TableTest, datagrams_that_could_not_be_sent_do_not_count) {
  routes["10.0.0.2"] = {};
  is_full = true;
  const Id id = find("10.0.0.2");
  for (int i = 0; i < 10; i++) {
    answer();
    EXPECT_EQ(table.state(id), State::kAsking);
    now_ns += Table::kAskAgainNs;
  }
  is_full = false;
  answer();
  EXPECT_EQ(table.state(id), State::kAsking);
  now_ns += Table::kGiveUpNs;
  answer();
  EXPECT_EQ(table.state(id), State::kFailed);
}

TEST_F(TableTest, known_destination_keeps_its_mac_until_asking_has_failed) {
  routes["10.0.0.2"] = {};
  neighbours["10.0.0.2"] = {NUD_REACHABLE, mac(2)};
  const Id id = find("10.0.0.2");
  answer();
  changes();
  set_neighbour("10.0.0.2", {NUD_FAILED});  // an administrator has deleted the entry
  EXPECT_EQ(table.state(id), State::kKnown);
  EXPECT_EQ(table.mac(id), mac(2));
  EXPECT_EQ(datagrams.size(), 1u);
  EXPECT_TRUE(changes().empty());
  set_neighbour("10.0.0.2", {NUD_FAILED});
  EXPECT_EQ(table.state(id), State::kFailed);
  EXPECT_EQ(changes(), std::set<Id>{id});
}

TEST_F(TableTest, stale_neighbour_is_known_and_checked) {
  routes["10.0.0.2"] = {};
  neighbours["10.0.0.2"] = {NUD_STALE, mac(2)};
  const Id id = find("10.0.0.2");
  answer();
  EXPECT_EQ(table.state(id), State::kKnown);
  EXPECT_EQ(datagrams.size(), 1u);
  neighbours["10.0.0.2"] = {NUD_DELAY, mac(2)};
  now_ns += Table::kAskAgainNs;
  answer();
  EXPECT_EQ(datagrams.size(), 1u);
  changes();
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);  // the kernel reports the end of its own check
}

TEST_F(TableTest, lost_route_keeps_the_mac_for_a_while) {
  routes["10.0.0.2"] = {};
  neighbours["10.0.0.2"] = {NUD_REACHABLE, mac(2)};
  const Id id = find("10.0.0.2");
  answer();
  changes();
  const auto lose = [&] {
    routes.clear();
    table.on_routes_change();
    answer();
    EXPECT_EQ(table.state(id), State::kKnown);
    EXPECT_EQ(table.mac(id), mac(2));
  };
  lose();
  routes["10.0.0.2"] = {};
  now_ns += Table::kAskAgainNs;
  answer();
  EXPECT_TRUE(changes().empty());
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);

  lose();
  now_ns += Table::kGiveUpNs;
  answer();
  EXPECT_EQ(table.state(id), State::kFailed);
  EXPECT_EQ(table.reason(id), Reason::kNoRoute);
  changes();
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);
}

TEST_F(TableTest, failure_has_the_reason_of_its_route) {
  const std::map<uint8_t, Reason> reasons = {
      {RTN_BLACKHOLE, Reason::kBlackhole},  {RTN_UNREACHABLE, Reason::kUnreachable},
      {RTN_PROHIBIT, Reason::kProhibited},  {RTN_BROADCAST, Reason::kNotOneHost},
      {RTN_MULTICAST, Reason::kNotOneHost}, {RTN_ANYCAST, Reason::kNotOneHost}};
  for (const auto& [type, reason] : reasons) {
    routes["10.0.0.2"] = {"", type};
    const Id id = find("10.0.0.2");
    answer();
    EXPECT_EQ(table.state(id), State::kFailed);
    EXPECT_EQ(table.reason(id), reason);
    table.release(id);
  }
  const auto answer_by = [&](uint32_t interface, uint32_t route_table) {
    const Id id = find("10.0.0.2");
    const Table::Action action = table.next_action(now_ns);
    table.on_route(action.destination, {RTN_UNICAST, route_table, interface, {}, {action.ip, 0}}, now_ns);
    const Reason reason = table.reason(id);
    table.release(id);
    return reason;
  };
  EXPECT_EQ(answer_by(kInterface + 1, RT_TABLE_MAIN), Reason::kOtherInterface);
  EXPECT_EQ(answer_by(kInterface, RT_TABLE_UNSPEC), Reason::kNoRoute);  // the destination is assumed to be on the link
  EXPECT_EQ(answer_by(kInterface, 100), Reason::kNone);
}

TEST_F(TableTest, own_addresses_follow_the_own_mac) {
  routes["10.0.0.1"] = {"", RTN_LOCAL};
  const Id id = find("10.0.0.1");
  answer();
  EXPECT_EQ(table.mac(id), mac(1));
  changes();
  table.set_own_mac(mac(9));
  EXPECT_EQ(table.mac(id), mac(9));
  EXPECT_EQ(changes(), std::set<Id>{id});
  routes["10.0.0.1"] = {"10.0.0.2"};  // the address is another host's now
  table.on_routes_change();
  answer();
  EXPECT_EQ(table.state(id), State::kKnown);
  set_neighbour("10.0.0.2", {NUD_REACHABLE, mac(2)});
  EXPECT_EQ(table.mac(id), mac(2));
}

TEST_F(TableTest, released_destinations_leave_nothing) {
  routes["10.1.2.3"] = {"10.0.0.2"};
  const Id id = find("10.1.2.3");
  EXPECT_EQ(find("10.1.2.3"), id);
  answer();
  table.release(id);
  EXPECT_EQ(table.size(), 1u);
  set_neighbour("10.0.0.2", {NUD_REACHABLE, mac(2)});  // the table reports no change of a released destination
  table.release(id);
  table.check_invariants();
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.hops(), 0u);
  EXPECT_TRUE(changes().empty());
  EXPECT_EQ(table.next_action_ns(), UINT64_MAX);
  EXPECT_EQ(find("10.1.2.4"), id);  // the id is free again
}

TEST_F(TableTest, overrun_asks_for_everything_again) {
  routes["10.0.0.2"] = routes["10.0.0.3"] = {};
  neighbours["10.0.0.2"] = neighbours["10.0.0.3"] = {NUD_REACHABLE, mac(2)};
  find("10.0.0.2");
  find("10.0.0.3");
  answer();
  neighbours["10.0.0.3"].mac = mac(3);
  route_requests = neighbour_requests = 0;
  table.on_overrun();
  answer();
  EXPECT_EQ(route_requests, 2u);
  EXPECT_EQ(neighbour_requests, 2u);
  EXPECT_EQ(table.mac(find("10.0.0.3")), mac(3));
}

TEST_F(TableTest, any_order_of_events_ends_in_the_kernels_state) {
  constexpr uint16_t kStates[] = {NUD_INCOMPLETE, NUD_REACHABLE, NUD_STALE, NUD_PROBE, NUD_FAILED, NUD_PERMANENT};
  const std::vector<std::string> hosts = {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "fe80::5", "fd00::6"};
  std::mt19937 random(14);
  std::vector<std::pair<Id, std::string>> held;
  const auto any_host = [&] { return hosts[random() % hosts.size()]; };
  for (int i = 0; i < 20'000; i++) {
    const std::string host = any_host();
    switch (random() % 9) {
      case 0:
        if (held.size() < 20) held.emplace_back(find(host), host);
        break;
      case 1:
        if (held.empty()) break;
        std::swap(held[random() % held.size()], held.back());
        table.release(held.back().first);
        held.pop_back();
        break;
      case 2:
        routes[host] = {random() % 2 == 0 ? any_host() : "",
                        static_cast<uint8_t>(random() % 4 == 0 ? RTN_LOCAL : RTN_UNICAST)};
        table.on_route_change({ip(host), static_cast<uint8_t>(8 * ip(host).ip().size())});
        break;
      case 3:
        routes.erase(host);
        table.on_routes_change();
        break;
      case 4:
        neighbours[host] = {kStates[random() % std::size(kStates)], mac(static_cast<uint8_t>(random() % 100 + 1))};
        table.on_neighbour_change(ip(host));
        break;
      case 5:
        neighbours.erase(host);
        table.on_neighbour_change(ip(host));
        break;
      case 6:
        table.on_overrun();
        break;
      case 7:
        now_ns += random() % (2 * kSecond);
        changes();
        break;
      default:
        is_full = random() % 4 == 0;
        answer();
        break;
    }
    table.check_invariants();
  }
  is_full = false;
  for (int i = 0; i < 20; i++, now_ns += kSecond) answer();
  for (const auto& [id, host] : held) {
    const auto route = routes.find(host);
    if (route == routes.end()) {
      EXPECT_EQ(table.state(id), State::kFailed);
    } else if (route->second.type == RTN_LOCAL) {
      EXPECT_EQ(table.mac(id), mac(1));
    } else {
      const auto entry = neighbours.find(route->second.gateway.empty() ? host : route->second.gateway);
      const bool is_valid = entry != neighbours.end() && (entry->second.state & (NUD_INCOMPLETE | NUD_FAILED)) == 0;
      ASSERT_EQ(table.state(id), is_valid ? State::kKnown : State::kFailed);
      ASSERT_TRUE(!is_valid || table.mac(id) == entry->second.mac);
    }
  }
}

}  // namespace
}  // namespace tern::neighbours
