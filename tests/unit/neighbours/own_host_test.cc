// Hosts with their own addresses on one link, in virtual time, and a stranger whose frames the test makes.
#include "neighbours/own_host.h"

#include <gmock/gmock.h>
#include <linux/neighbour.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "frames/neighbour_frame.h"
#include "neighbours/own_neighbours.h"

namespace tern::neighbours {
namespace {

using frames::MacAddress;
using frames::NeighbourFrame;
using testing::HasSubstr;
using Kind = NeighbourFrame::Kind;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;
const MacAddress kStranger({2, 0, 0, 0, 0, 0x99});

base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }
MacAddress mac(uint8_t number) { return MacAddress({2, 0, 0, 0, 0, number}); }
bool has_news(const Resolver& resolver) {
  pollfd event{resolver.descriptor(), POLLIN, 0};
  return poll(&event, 1, 0) == 1;
}

/// A link that delivers every frame to every other host at once, whatever its Ethernet destination.
class Link {
 public:
  struct Station {
    std::unique_ptr<OwnHost> host;
    bool is_away = false;  ///< receives and sends nothing
  };

  OwnHost* add(uint8_t number, std::string_view address, std::string_view gateway = "", uint16_t vlan = 0) {
    auto own = OwnAddress::parse(address, gateway);
    EXPECT_TRUE(own.ok()) << own.status().message();
    const size_t index = stations_.size();
    stations_.emplace_back();
    const OwnHost::Options options{
        .name = "port" + std::to_string(number), .mac = mac(number), .address = *own, .vlan = vlan};
    auto host = OwnHost::create(
        options, [this, index](auto frame) { on_sent(index, frame); }, now_);
    EXPECT_TRUE(host.ok());
    stations_[index].host = std::move(*host);
    deliver();
    return stations_[index].host.get();
  }
  /// Delivers a frame that comes from none of the hosts.
  void inject(const NeighbourFrame& frame, uint16_t vlan = 0) {
    const frames::NeighbourFrameBytes bytes(frame, vlan);
    on_sent(SIZE_MAX, bytes.bytes());
    deliver();
  }
  void set_away(const OwnHost* host, bool is_away) {
    for (Station& station : stations_) {
      if (station.host.get() == host) station.is_away = is_away;
    }
  }

  /// Advances the time in steps of 10 ms, and calls each resolver at the time that it requested.
  void run(uint64_t ns, const std::vector<Resolver*>& resolvers = {}) {
    const uint64_t end = now_ + ns;
    while (true) {
      for (const Station& station : stations_) {
        if (station.host->next_tick_ns() <= now_) station.host->tick(now_);
        station.host->check_invariants();
      }
      deliver();
      for (Resolver* const resolver : resolvers) {
        if (has_news(*resolver) || resolver->next_update_ns() <= now_) resolver->update(now_);
      }
      deliver();
      if (now_ >= end) return;
      now_ += 10 * kMs;
    }
  }
  void settle() { run(400 * kMs); }
  uint64_t now() const { return now_; }

  struct Sent {
    size_t station;
    NeighbourFrame frame;
  };
  /// Returns the frames since the last call.
  std::vector<Sent> take_sent() { return std::exchange(sent_, {}); }

 private:
  void on_sent(size_t station, std::span<const std::byte> bytes) {
    if (station < stations_.size() && stations_[station].is_away) return;
    flying_.push_back({station, {bytes.begin(), bytes.end()}});
    for (const uint16_t vlan : {0, 5}) {
      const auto frame = frames::parse_neighbour_frame(bytes, vlan);
      if (frame) sent_.push_back({station, *frame});
    }
  }
  void deliver() {
    while (!flying_.empty()) {
      const auto [from, bytes] = std::move(flying_.front());
      flying_.pop_front();
      for (size_t i = 0; i < stations_.size(); i++) {
        if (i != from && !stations_[i].is_away && stations_[i].host) stations_[i].host->on_frame(bytes, now_);
      }
    }
  }

  struct Flying {
    size_t from;
    std::vector<std::byte> bytes;
  };
  std::vector<Station> stations_;
  std::deque<Flying> flying_;
  std::vector<Sent> sent_;
  uint64_t now_ = 100 * kSecond;
};

/// Runs over IPv4 and IPv6.
class OwnHostTest : public testing::TestWithParam<bool> {
 protected:
  bool is_ipv6() const { return GetParam(); }
  std::string text(int host) const { return (is_ipv6() ? "fd00::" : "10.0.0.") + std::to_string(host); }
  base::SocketAddress address(int host) const { return ip(text(host)); }
  std::string with_prefix(int host) const { return text(host) + (is_ipv6() ? "/64" : "/24"); }
  base::SocketAddress far_address() const { return ip(is_ipv6() ? "fd01::1" : "10.9.0.1"); }
  OwnHost* add(uint8_t host, std::string_view gateway = "") { return link_.add(host, with_prefix(host), gateway); }
  static std::unique_ptr<Resolver> resolver(OwnHost* host) {
    auto made = host->resolver({});
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  Id find(Resolver& resolver, const base::SocketAddress& destination) {
    auto id = resolver.find(destination, link_.now());
    EXPECT_TRUE(id.ok());
    return *id;
  }
  size_t questions_for(const base::SocketAddress& target, bool is_unicast = false) {
    const auto sent = link_.take_sent();
    return static_cast<size_t>(std::ranges::count_if(sent, [&](const Link::Sent& one) {
      return one.frame.kind == Kind::kSolicitation && one.frame.target == target && !one.frame.source.is_wildcard() &&
             one.frame.destination_mac.is_group() != is_unicast;
    }));
  }

  Link link_;
};
INSTANTIATE_TEST_SUITE_P(Families, OwnHostTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "IPv6" : "IPv4"; });

TEST_P(OwnHostTest, host_sends_only_probes_until_they_succeed) {
  OwnHost* const host = add(1);
  link_.inject(NeighbourFrame::question(address(1), std::nullopt, address(9), kStranger));
  link_.run(200 * kMs);
  EXPECT_FALSE(host->is_settled());
  for (const auto& [station, frame] : link_.take_sent()) {
    if (station == 0) {
      EXPECT_EQ(frame, NeighbourFrame::probe(address(1), mac(1)));
    }
  }
  link_.settle();
  EXPECT_TRUE(host->is_settled());
  EXPECT_TRUE(host->failure().ok());
  const auto sent = link_.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent.back().frame, NeighbourFrame::announcement(address(1), mac(1)));
  const NeighbourFrame asked = NeighbourFrame::question(address(1), std::nullopt, address(9), kStranger);
  link_.inject(asked);
  EXPECT_EQ(link_.take_sent().back().frame, NeighbourFrame::answer_to(asked, mac(1)));
}

TEST_P(OwnHostTest, hosts_find_each_other) {
  OwnHost* const one = add(1);
  OwnHost* const two = add(2);
  link_.settle();
  const auto neighbours = resolver(one);
  const Id id = find(*neighbours, address(2));
  link_.run(0, {neighbours.get()});
  ASSERT_EQ(neighbours->state(id), State::kKnown);
  EXPECT_EQ(neighbours->mac(id), mac(2));
  EXPECT_TRUE(neighbours->failure(id).ok());
  EXPECT_EQ(one->neighbours(), 1u);
  EXPECT_EQ(two->neighbours(), 0u);  // a question makes no entry for its sender
  // A second endpoint of the port has the entry at once.
  const auto others = resolver(one);
  EXPECT_EQ(others->state(find(*others, address(2))), State::kKnown);
  EXPECT_EQ(neighbours->state(find(*neighbours, address(1))), State::kKnown);
  EXPECT_EQ(neighbours->mac(find(*neighbours, address(1))), mac(1));
}

TEST_P(OwnHostTest, look_up_that_began_while_probing_succeeds_after_it) {
  OwnHost* const one = add(1);
  const auto neighbours = resolver(one);
  const Id id = find(*neighbours, address(2));
  add(2);
  link_.run(600 * kMs, {neighbours.get()});
  EXPECT_EQ(neighbours->state(id), State::kKnown);
}

TEST_P(OwnHostTest, silent_neighbour_has_failed_after_three_questions) {
  const auto neighbours = [&] {
    OwnHost* const one = add(1);
    link_.settle();
    return resolver(one);
  }();
  const Id id = find(*neighbours, address(2));
  link_.run(2900 * kMs, {neighbours.get()});
  EXPECT_EQ(neighbours->state(id), State::kAsking);
  link_.run(300 * kMs, {neighbours.get()});
  EXPECT_EQ(neighbours->state(id), State::kFailed);
  EXPECT_EQ(questions_for(address(2)), 3u);
  EXPECT_THAT(std::string(neighbours->failure(id).message()),
              HasSubstr(text(2) + " does not answer on the link of port1"));
  // The resolver asks again, and finds the host once it is there.
  add(2);
  link_.run(10 * kSecond, {neighbours.get()});
  EXPECT_EQ(neighbours->state(id), State::kKnown);
}

TEST_P(OwnHostTest, neighbour_in_use_is_confirmed_by_unicast) {
  OwnHost* const one = add(1);
  OwnHost* const two = add(2);
  link_.settle();
  const auto neighbours = resolver(one);
  const Id id = find(*neighbours, address(2));
  link_.run(kSecond, {neighbours.get()});
  link_.take_sent();
  link_.run(31 * kSecond, {neighbours.get()});
  EXPECT_EQ(questions_for(address(2), true), 1u);
  EXPECT_EQ(neighbours->state(id), State::kKnown);
  // The host does not confirm a released entry, and forgets it.
  neighbours->release(id);
  link_.run(100 * kSecond, {neighbours.get()});
  EXPECT_EQ(questions_for(address(2), true), 0u);
  EXPECT_EQ(one->neighbours(), 0u);
  // An absent host fails after three unicast and three broadcast questions.
  const Id again = find(*neighbours, address(2));
  link_.run(kSecond, {neighbours.get()});
  ASSERT_EQ(neighbours->state(again), State::kKnown);
  link_.set_away(two, true);
  link_.run(33 * kSecond, {neighbours.get()});
  EXPECT_EQ(neighbours->state(again), State::kKnown);
  link_.run(5 * kSecond, {neighbours.get()});
  EXPECT_EQ(neighbours->state(again), State::kFailed);
}

TEST_P(OwnHostTest, destination_off_the_prefix_goes_to_the_gateway) {
  OwnHost* const one = add(1, text(2));
  OwnHost* const gateway = add(2);
  link_.settle();
  const auto neighbours = resolver(one);
  const Id id = find(*neighbours, far_address());
  link_.run(kSecond, {neighbours.get()});
  ASSERT_EQ(neighbours->state(id), State::kKnown);
  EXPECT_EQ(neighbours->mac(id), mac(2));
  // Another gateway takes over the address.
  link_.set_away(gateway, true);
  link_.inject(NeighbourFrame::announcement(address(2), kStranger));
  link_.run(0, {neighbours.get()});
  EXPECT_EQ(neighbours->mac(id), kStranger);
  // The new gateway disappears.
  link_.run(40 * kSecond, {neighbours.get()});
  EXPECT_EQ(neighbours->state(id), State::kFailed);
  EXPECT_THAT(std::string(neighbours->failure(id).message()), HasSubstr("the gateway " + text(2)));
}

TEST_P(OwnHostTest, destination_off_the_prefix_without_a_gateway_names_the_option) {
  OwnHost* const one = add(1);
  link_.settle();
  const auto neighbours = resolver(one);
  const Id id = find(*neighbours, far_address());
  EXPECT_EQ(neighbours->state(id), State::kFailed);
  EXPECT_THAT(std::string(neighbours->failure(id).message()), HasSubstr("set the option gateway"));
  const Id other = find(*neighbours, ip(is_ipv6() ? "10.0.0.7" : "fd00::7"));
  EXPECT_EQ(neighbours->state(other), State::kFailed);
  EXPECT_THAT(std::string(neighbours->failure(other).message()), HasSubstr("not of the same IP family"));
  const Id group = find(*neighbours, ip(is_ipv6() ? "ff02::1" : "10.0.0.255"));
  EXPECT_EQ(neighbours->state(group), State::kFailed);
  EXPECT_THAT(std::string(neighbours->failure(group).message()), HasSubstr("not the address of one host"));
}

TEST_P(OwnHostTest, address_that_another_host_has_is_refused_with_its_mac_address) {
  OwnHost* const first = add(1);
  link_.settle();
  OwnHost* const second = link_.add(2, with_prefix(1));
  const auto neighbours = resolver(second);
  link_.run(kSecond, {neighbours.get()});
  EXPECT_TRUE(first->failure().ok());
  ASSERT_TRUE(second->is_settled());
  EXPECT_THAT(std::string(second->failure().message()), HasSubstr("02:00:00:00:00:01, has the address " + text(1)));
  EXPECT_EQ(second->failure().code(), Code::kUnavailable);
  EXPECT_FALSE(neighbours->own_failure().ok());
  EXPECT_TRUE(neighbours->interface().addresses.empty());
  // The second host sends nothing from now on.
  link_.take_sent();
  link_.inject(NeighbourFrame::question(address(1), std::nullopt, address(9), kStranger));
  find(*neighbours, address(3));
  link_.run(10 * kSecond, {neighbours.get()});
  for (const auto& [station, frame] : link_.take_sent()) EXPECT_NE(station, 1u);
}

TEST_P(OwnHostTest, resolver_made_after_the_loss_reports_it) {
  add(1);
  link_.settle();
  OwnHost* const second = link_.add(2, with_prefix(1));
  link_.settle();
  ASSERT_FALSE(second->failure().ok());
  const auto late = resolver(second);
  EXPECT_TRUE(has_news(*late));
  EXPECT_TRUE(late->update(link_.now()).is_interface);
  EXPECT_FALSE(late->own_failure().ok());
  EXPECT_FALSE(late->update(link_.now()).is_interface);
}

TEST_P(OwnHostTest, address_is_defended_once_and_then_lost) {
  OwnHost* const host = add(1);
  const auto neighbours = resolver(host);
  link_.settle();
  link_.run(10 * kSecond, {neighbours.get()});
  link_.take_sent();
  const NeighbourFrame claim = NeighbourFrame::announcement(address(1), kStranger);
  link_.inject(claim);
  EXPECT_EQ(link_.take_sent().back().frame, NeighbourFrame::announcement(address(1), mac(1)));
  EXPECT_TRUE(host->failure().ok());
  link_.run(11 * kSecond, {neighbours.get()});
  link_.inject(claim);
  EXPECT_TRUE(host->failure().ok());
  EXPECT_TRUE(neighbours->own_failure().ok());
  link_.inject(NeighbourFrame::question(address(7), std::nullopt, address(1), kStranger));
  EXPECT_THAT(std::string(host->failure().message()), HasSubstr(kStranger.to_text()));
  EXPECT_TRUE(neighbours->update(link_.now()).is_interface);
  EXPECT_THAT(std::string(neighbours->own_failure().message()), HasSubstr(kStranger.to_text()));
}

TEST_P(OwnHostTest, of_two_hosts_that_probe_at_one_time_the_first_gives_up) {
  OwnHost* const one = link_.add(1, with_prefix(1));
  OwnHost* const two = link_.add(2, with_prefix(1));
  link_.settle();
  EXPECT_FALSE(one->failure().ok());  // this host has received the other one's first probe
  EXPECT_TRUE(two->failure().ok());   // this host began when the first one had sent its own probe
}

TEST_P(OwnHostTest, own_frames_that_come_back_are_no_conflict) {
  OwnHost* const host = add(1);
  link_.inject(NeighbourFrame::probe(address(1), mac(1)));
  link_.settle();
  for (int i = 0; i < 5; i++) link_.inject(NeighbourFrame::announcement(address(1), mac(1)));
  EXPECT_TRUE(host->failure().ok());
}

TEST_P(OwnHostTest, probe_for_a_taken_address_is_answered) {
  OwnHost* const host = add(1);
  link_.settle();
  link_.take_sent();
  const NeighbourFrame probe = NeighbourFrame::probe(address(1), kStranger);
  link_.inject(probe);
  EXPECT_EQ(link_.take_sent().back().frame, NeighbourFrame::answer_to(probe, mac(1)));
  EXPECT_TRUE(host->failure().ok());
}

TEST_P(OwnHostTest, link_that_comes_up_is_probed_again) {
  OwnHost* const host = add(1);
  const auto neighbours = resolver(host);
  link_.settle();
  neighbours->update(link_.now());
  EXPECT_TRUE(neighbours->interface().is_running);
  host->on_link(false, link_.now());
  EXPECT_TRUE(neighbours->update(link_.now()).is_interface);
  EXPECT_FALSE(neighbours->interface().is_running);
  link_.take_sent();
  host->on_link(true, link_.now());
  EXPECT_FALSE(host->is_settled());
  EXPECT_EQ(link_.take_sent().back().frame, NeighbourFrame::probe(address(1), mac(1)));
  link_.settle();
  EXPECT_TRUE(host->is_settled());
  EXPECT_TRUE(neighbours->update(link_.now()).is_interface);
  EXPECT_TRUE(neighbours->interface().is_running);
}

TEST_P(OwnHostTest, host_that_began_before_its_link_was_up_probes_when_it_is) {
  OwnHost* const host = add(1);
  link_.settle();
  host->on_link(true, link_.now());  // the first report about the link's state
  EXPECT_FALSE(host->is_settled());
  link_.inject(NeighbourFrame::announcement(address(1), kStranger));
  EXPECT_FALSE(host->failure().ok());
}

TEST_P(OwnHostTest, strangers_make_no_entries_and_get_a_limited_number_of_answers) {
  OwnHost* const host = add(1);
  link_.settle();
  link_.take_sent();
  for (uint32_t i = 0; i < OwnHost::kAnswersPerSecondMax + 500; i++) {
    const int other = 2 + static_cast<int>(i % 200);
    link_.inject(NeighbourFrame::question(address(1), std::nullopt, address(other), kStranger));
  }
  const auto sent = link_.take_sent();
  const auto answers = std::ranges::count_if(sent, [](const Link::Sent& one) { return one.station == 0; });
  EXPECT_EQ(answers, OwnHost::kAnswersPerSecondMax);
  for (int other = 2; other < 200; other++) {
    link_.inject(NeighbourFrame::announcement(address(other), kStranger));
    link_.inject(NeighbourFrame::answer_to(NeighbourFrame::question(address(other), std::nullopt, address(1), mac(1)),
                                           kStranger));
  }
  EXPECT_EQ(host->neighbours(), 0u);
}

TEST_P(OwnHostTest, flood_of_news_about_a_neighbour_is_limited) {
  OwnHost* const host = add(1);
  OwnHost* const two = add(2);
  link_.settle();
  const auto neighbours = resolver(host);
  const Id id = find(*neighbours, address(2));
  link_.run(kSecond, {neighbours.get()});
  link_.set_away(two, true);
  uint32_t changes = 0;
  MacAddress last = neighbours->mac(id);
  for (uint32_t i = 0; i < 1000; i++) {
    link_.inject(NeighbourFrame::announcement(address(2), mac(static_cast<uint8_t>(3 + i % 2))));
    const auto entry = host->neighbour(address(2));
    changes += entry->mac != last ? 1 : 0;
    last = *entry->mac;
  }
  EXPECT_EQ(changes, OwnHost::kNewsPerSecondMax);
}

TEST_P(OwnHostTest, answer_to_another_host_confirms_nothing) {
  OwnHost* const host = add(1);
  link_.settle();
  ASSERT_TRUE(host->ask(address(2), link_.now()));
  const auto answer_to = [&](int asker) {
    const NeighbourFrame asked = NeighbourFrame::question(address(2), std::nullopt, address(asker), mac(1));
    link_.inject(NeighbourFrame::answer_to(asked, kStranger));
    return host->neighbour(address(2))->state;
  };
  EXPECT_EQ(answer_to(9), NUD_STALE);
  ASSERT_TRUE(host->ask(address(2), link_.now()));
  EXPECT_EQ(answer_to(9), NUD_PROBE);
  EXPECT_EQ(answer_to(1), NUD_REACHABLE);
}

TEST_P(OwnHostTest, more_changes_than_a_listener_keeps_are_all_seen) {
  constexpr int kHosts = 100;
  OwnHost* const host = add(1);
  link_.settle();
  const auto neighbours = resolver(host);
  std::vector<Id> ids;
  for (int other = 2; other < 2 + kHosts; other++) ids.push_back(find(*neighbours, address(other)));
  for (int other = 2; other < 2 + kHosts; other++) {  // before the resolver processes the answers
    link_.inject(NeighbourFrame::answer_to(NeighbourFrame::question(address(other), std::nullopt, address(1), mac(1)),
                                           kStranger));
  }
  link_.run(0, {neighbours.get()});
  for (const Id id : ids) EXPECT_EQ(neighbours->state(id), State::kKnown);
}

TEST_P(OwnHostTest, frames_have_the_vlan_and_others_are_ignored) {
  OwnHost* const host = link_.add(1, with_prefix(1), "", 5);
  link_.settle();
  const auto sent = link_.take_sent();
  EXPECT_EQ(sent.size(), 4u);
  const NeighbourFrame asked = NeighbourFrame::question(address(1), std::nullopt, address(9), kStranger);
  EXPECT_TRUE(host->wants(frames::NeighbourFrameBytes(asked, 5).bytes()));
  EXPECT_FALSE(host->wants(frames::NeighbourFrameBytes(asked, 0).bytes()));
  link_.inject(asked);
  EXPECT_EQ(link_.take_sent().size(), 1u);
  link_.inject(asked, 5);
  EXPECT_EQ(link_.take_sent().size(), 2u);
}

TEST_P(OwnHostTest, host_joins_the_groups_of_questions_for_its_address) {
  const auto groups = add(0x12)->groups();
  if (!is_ipv6()) {
    EXPECT_TRUE(groups.empty());
  } else {
    EXPECT_THAT(groups, testing::UnorderedElementsAre(MacAddress({0x33, 0x33, 0, 0, 0, 1}),
                                                      MacAddress({0x33, 0x33, 0xff, 0, 0, 0x18})));
  }
}

TEST_P(OwnHostTest, threads_share_a_host) {
  std::atomic<bool> is_over{false};
  const uint64_t now = link_.now();
  std::atomic<int> frames_sent{0};
  auto own = OwnAddress::parse(with_prefix(1), "");
  auto made = OwnHost::create(
      {.name = "port", .mac = mac(1), .address = *own, .probe_interval_ns = 0}, [&](auto) { frames_sent++; }, now);
  ASSERT_TRUE(made.ok());
  OwnHost& shared = **made;
  shared.tick(now);
  std::thread port([&] {
    for (int i = 0; !is_over; i++) {
      const auto asked = NeighbourFrame::question(address(2 + i % 50), std::nullopt, address(1), mac(1));
      shared.on_frame(frames::NeighbourFrameBytes(NeighbourFrame::answer_to(asked, kStranger), 0).bytes(), now);
      shared.tick(now);
      (void)shared.next_tick_ns();
    }
  });
  std::vector<std::thread> endpoints;
  for (int thread = 0; thread < 2; thread++) {
    endpoints.emplace_back([&] {
      for (int round = 0; round < 20; round++) {
        const auto neighbours = resolver(&shared);
        std::vector<Id> ids;
        for (int other = 2; other < 52; other++) ids.push_back(find(*neighbours, address(other)));
        for (const Id id : ids) {
          while (neighbours->state(id) != State::kKnown) neighbours->update(now);
          EXPECT_EQ(neighbours->mac(id), kStranger);
        }
      }
    });
  }
  for (std::thread& endpoint : endpoints) endpoint.join();
  is_over = true;
  port.join();
  shared.check_invariants();
}

}  // namespace
}  // namespace tern::neighbours
