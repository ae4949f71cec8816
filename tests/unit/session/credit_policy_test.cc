#include "session/credit_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace tern::session {
namespace {

constexpr uint64_t kLinkBytesPerSec = 3'125'000'000;
constexpr uint32_t kPacketBytes = 1048;
constexpr uint64_t kMs = 1'000'000;

constexpr Downlink kDownlink = {78'125, kPacketBytes};

TEST(Downlink, what_the_link_carries_in_the_time) {
  EXPECT_EQ(Downlink::of(0, kPacketBytes).bytes, 0u);
  EXPECT_EQ(Downlink::of(kLinkBytesPerSec, kPacketBytes).bytes, kDownlink.bytes);
  EXPECT_EQ(Downlink::of(kLinkBytesPerSec, kPacketBytes).packets(), 74u);
  EXPECT_EQ(Downlink::of(125'000'000, kPacketBytes).packets(), kDownlinkPacketsMin);
  EXPECT_GT(Downlink::of(UINT64_MAX, 1).packets(), 1000u);
}

TEST(Heard, each_session_once_an_epoch) {
  Heard heard;
  uint64_t a = 0, b = 0;
  EXPECT_EQ(heard.count(), 1u);
  EXPECT_TRUE(heard.hear(a));
  EXPECT_FALSE(heard.hear(a));
  EXPECT_TRUE(heard.hear(b));
  EXPECT_EQ(heard.count(), 2u);
  heard.start_epoch(false);
  EXPECT_FALSE(heard.has_grown());
  EXPECT_TRUE(heard.hear(a));
  EXPECT_EQ(heard.count(), 2u);  // the number in the last epoch
  heard.start_epoch(false);
  EXPECT_EQ(heard.count(), 1u);
  heard.hear(a);
  heard.hear(b);
  heard.start_epoch(true);
  EXPECT_EQ(heard.count(), 1u);  // more than one epoch ago
}

/// Hears this number of sessions in the current epoch.
void hear(CreditPolicy& policy, std::vector<uint32_t>& notes, size_t sessions) {
  notes.resize(std::max(notes.size(), sessions));
  for (size_t i = 0; i < sessions; i++) policy.hear(notes[i]);
}

uint32_t decode(const CreditPolicy& policy) { return wire::decode_credits(policy.limit(), policy.unit()); }

TEST(CreditPolicy, without_a_downlink_the_queue_is_divided_by_those_heard_in_the_last_epoch) {
  CreditPolicy policy({.queue_packets = 1000}, 0);
  std::vector<uint32_t> notes;
  EXPECT_EQ(policy.limit(), 128);
  EXPECT_EQ(policy.start_limit(1000), 128);
  EXPECT_EQ(policy.epoch_end_ns(), 10 * kMs);
  hear(policy, notes, 100);
  EXPECT_EQ(policy.limit(), 128);  // the limit changes only at the epoch's end
  policy.start_epoch(10 * kMs, {});
  EXPECT_EQ(policy.limit(), 10);
  EXPECT_EQ(policy.start_limit(1000), 10);
  hear(policy, notes, 2000);
  policy.start_epoch(50 * kMs, {});
  EXPECT_EQ(policy.limit(), 1);
  policy.start_epoch(60 * kMs, {});
  EXPECT_EQ(policy.limit(), 128);
}

// A note has 32 bits, and epochs go on for longer.
TEST(CreditPolicy, a_session_is_heard_whatever_the_age_of_its_note) {
  CreditPolicy policy({.queue_packets = 600}, 0);
  policy.start_epoch(10 * kMs, {});
  std::vector<uint32_t> notes;
  for (const uint32_t age : {1u, 2u, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu}) {
    notes.push_back(policy.epoch() - age);
  }
  const size_t sessions = notes.size();
  hear(policy, notes, sessions);
  hear(policy, notes, sessions);
  EXPECT_EQ(notes, std::vector<uint32_t>(sessions, policy.epoch()));
  policy.start_epoch(20 * kMs, {});
  EXPECT_EQ(policy.limit(), 600 / sessions) << "each of them counts once";
}

// A packet of 8 KiB takes four places, and a session may exceed its limit with its last packet.
TEST(CreditPolicy, packets_of_several_credits_share_the_queue) {
  CreditPolicy policy({.queue_packets = 25, .unit = 11, .packet_credits = 4}, 0);
  std::vector<uint32_t> notes;
  EXPECT_EQ(policy.limit(), 97);
  hear(policy, notes, 10);
  policy.start_epoch(10 * kMs, {});
  EXPECT_EQ(policy.limit(), 7);
  hear(policy, notes, 50);
  policy.start_epoch(20 * kMs, {});
  EXPECT_EQ(policy.limit(), 1);  // short packets must still be possible
}

TEST(CreditPolicy, limits_above_128_are_powers_of_two) {
  CreditPolicy policy({.queue_packets = 1000, .unit = 11, .packet_credits = 4}, 0);
  std::vector<uint32_t> notes;
  EXPECT_EQ(decode(policy), 512u);  // the limit for 128 packets
  EXPECT_EQ(policy.start_limit(1), 128);
  hear(policy, notes, 12);
  policy.start_epoch(10 * kMs, {});
  EXPECT_EQ(decode(policy), 256u);
  hear(policy, notes, 40);
  policy.start_epoch(20 * kMs, {});
  EXPECT_EQ(policy.limit(), 97);
}

TEST(CreditPolicy, a_fixed_limit_is_of_full_packets) {
  CreditPolicy policy({.queue_packets = 25, .unit = 11, .packet_credits = 4, .fixed_limit = 2}, 0);
  EXPECT_EQ(policy.limit(), 8);
  EXPECT_EQ(policy.start_limit(1000), 8);
  CreditPolicy large({.queue_packets = 25, .unit = 11, .packet_credits = 5, .fixed_limit = 400}, 0);
  EXPECT_EQ(decode(large), 2000u);
}

TEST(CreditPolicy, a_fixed_limit_is_always_that) {
  CreditPolicy policy({.queue_packets = 1000, .downlink = kDownlink, .fixed_limit = 32}, 0);
  std::vector<uint32_t> notes;
  EXPECT_EQ(policy.limit(), 32);
  EXPECT_EQ(policy.start_limit(1000), 32);
  hear(policy, notes, 1000);
  policy.start_epoch(10 * kMs, {});
  EXPECT_EQ(policy.limit(), 32);
}

TEST(CreditPolicy, more_that_are_heard_count_at_once_and_fewer_after_an_epoch) {
  CreditPolicy policy({.queue_packets = 4096, .downlink = kDownlink}, 0);
  uint64_t now = 0;
  std::vector<uint32_t> notes(20);
  std::vector<uint32_t> long_notes(20);
  const auto hear_long = [&](size_t sessions) {
    hear(policy, notes, sessions);
    policy.set_long_requests(sessions);
    for (size_t i = 0; i < sessions; i++) policy.hear_long(long_notes[i]);
  };
  EXPECT_EQ(policy.limit(), 74);
  hear_long(4);
  EXPECT_EQ(policy.limit(), 18);
  policy.start_epoch(now = policy.epoch_end_ns(), {});
  EXPECT_EQ(policy.limit(), 18);
  hear_long(20);
  EXPECT_EQ(policy.limit(), 3);
  policy.start_epoch(now = policy.epoch_end_ns(), {});
  hear_long(1);
  EXPECT_EQ(policy.limit(), 74);  // the other sessions have ended
  policy.set_long_requests(20);
  EXPECT_EQ(policy.limit(), 3);  // the other sessions have not ended: they were only slow
  policy.start_epoch(now = policy.epoch_end_ns(), {});
  EXPECT_EQ(policy.limit(), 74);
  hear_long(20);
  policy.start_epoch(now + kMs, {});  // nothing was received for a long time
  EXPECT_EQ(policy.limit(), 74);
}

TEST(CreditPolicy, sessions_that_rest_may_all_begin_at_once) {
  CreditPolicy policy({.queue_packets = 4096, .downlink = kDownlink}, 0);
  EXPECT_EQ(policy.start_limit(1), 8);
  EXPECT_EQ(policy.start_limit(256), 8);
  EXPECT_EQ(policy.start_limit(1000), 2);
  EXPECT_EQ(policy.start_limit(20'000), 1);
}

TEST(CreditPolicy, small_packets_are_more_on_the_same_link) {
  CreditPolicy policy({.queue_packets = 4096, .downlink = kDownlink}, 0);
  std::vector<uint32_t> notes;
  hear(policy, notes, 100);
  EXPECT_EQ(policy.limit(), 1);
  policy.start_epoch(policy.epoch_end_ns(), {.packets = 500, .bytes = 500 * 122});
  EXPECT_EQ(policy.limit(), 6);
  hear(policy, notes, 100);
  EXPECT_EQ(policy.limit(), 6);
  // A session with full packets gets the rest of the link.
  uint32_t last = 0;
  policy.set_long_requests(1);
  policy.hear_long(last);
  EXPECT_EQ(policy.limit(), (78'125 - 500 * 122 / 2) / kPacketBytes);
}

TEST(CreditPolicy, the_queue_bounds_what_the_downlink_would_take) {
  CreditPolicy policy({.queue_packets = 100, .downlink = kDownlink}, 0);
  std::vector<uint32_t> notes;
  // Each epoch hears ten other sessions, because a slow server needs 10 ms to hear a hundred clients.
  for (uint64_t epoch = 0; epoch < 400; epoch++) {
    notes.resize(100);
    for (size_t i = 0; i < 10; i++) policy.hear(notes[(10 * epoch + i) % 100]);
    policy.start_epoch(policy.epoch_end_ns(), {});
  }
  EXPECT_EQ(policy.limit(), 1);
}

// ---- The policy and a bottleneck: greedy clients, a FIFO downlink, a server that answers at once ----

constexpr uint64_t kPacketNs = kPacketBytes * 1'000'000'000ull / kLinkBytesPerSec;
constexpr uint64_t kOneWayNs = 3'000;

class Bottleneck {
 public:
  struct Client {
    uint32_t limit = 1;
    uint32_t in_flight = 0;
    bool is_active = false;
    bool is_long = true;
    uint64_t think_ns = 0;  ///< time between an answer and the next packet; such a client has one packet in flight
    uint64_t answered = 0;
    uint32_t heard = 0;
    uint32_t heard_long = 0;
  };

  explicit Bottleneck(size_t degree) : clients(degree), policy_({.queue_packets = 4096, .downlink = kDownlink}, 0) {
    for (size_t i = 0; i < degree; i++) clients[i].limit = policy_.start_limit(i + 1);
  }
  void start(size_t client) {
    clients[client].is_active = true;
    if (clients[client].is_long) policy_.set_long_requests(++long_requests_);
    send(client);
  }
  /// Stops a client without a message to the server, as a crash does.
  void stop(size_t client) { clients[client].is_active = false; }
  void run_for(uint64_t ns) {
    const uint64_t until = now_ + ns;
    while (!events_.empty() && events_.top().at_ns <= until) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at_ns;
      handle(event);
    }
    now_ = until;
  }
  void forget() {
    rtts.clear();
    for (Client& client : clients) client.answered = 0;
    measured_from_ = now_;
  }
  double share(size_t client) const {
    return static_cast<double>(clients[client].answered * kPacketNs) / static_cast<double>(now_ - measured_from_);
  }
  double utilization() const {
    double sum = 0;
    for (size_t i = 0; i < clients.size(); i++) sum += share(i);
    return sum;
  }
  uint64_t p99_rtt_ns() {
    std::sort(rtts.begin(), rtts.end());
    return rtts[rtts.size() * 99 / 100];
  }
  double jain() const {
    double sum = 0, squares = 0, n = 0;
    for (const Client& client : clients) {
      if (!client.is_active) continue;
      const auto x = static_cast<double>(client.answered);
      sum += x, squares += x * x, n += 1;
    }
    return sum * sum / (n * squares);
  }

  std::vector<Client> clients;
  std::vector<uint64_t> rtts;

 private:
  enum class Kind : uint8_t { kWakes, kArrives, kIsAnswered };
  struct Event {
    uint64_t at_ns, order;
    Kind kind;
    size_t client;
    uint64_t sent_ns;
    uint32_t limit;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  void send(size_t index) {
    Client& client = clients[index];
    const uint32_t limit = client.think_ns != 0 ? 1 : client.limit;
    while (client.is_active && client.in_flight < limit) {
      client.in_flight++;
      link_free_ns_ = std::max(link_free_ns_, now_ + kOneWayNs) + kPacketNs;
      add(link_free_ns_, Kind::kArrives, index, now_, 0);
    }
  }
  void add(uint64_t at_ns, Kind kind, size_t client, uint64_t sent_ns, uint32_t limit) {
    events_.push({at_ns, order_++, kind, client, sent_ns, limit});
  }
  void handle(const Event& event) {
    Client& client = clients[event.client];
    if (event.kind == Kind::kArrives) {
      if (now_ >= policy_.epoch_end_ns()) policy_.start_epoch(now_, arrivals_);
      arrivals_.packets++;
      arrivals_.bytes += kPacketBytes;
      if (client.is_long) policy_.hear_long(client.heard_long);
      policy_.hear(client.heard);
      return add(now_ + kOneWayNs, Kind::kIsAnswered, event.client, event.sent_ns, policy_.limit());
    }
    if (event.kind == Kind::kIsAnswered) {
      client.in_flight--;
      client.limit = event.limit;
      client.answered++;
      rtts.push_back(now_ - event.sent_ns);
      if (client.think_ns != 0) return add(now_ + client.think_ns, Kind::kWakes, event.client, 0, 0);
    }
    send(event.client);
  }

  CreditPolicy policy_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  size_t long_requests_ = 0;
  uint64_t now_ = 0;
  uint64_t order_ = 0;
  uint64_t link_free_ns_ = 0;
  uint64_t measured_from_ = 0;
  CreditPolicy::Arrivals arrivals_;
};

class Incast : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(clients, Incast, testing::Values(1, 2, 7, 20, 36, 50, 74, 100, 250),
                         [](const auto& degree) { return std::to_string(degree.param); });

TEST_P(Incast, a_busy_link_a_short_queue_and_fair_shares) {
  Bottleneck world(GetParam());
  for (size_t i = 0; i < GetParam(); i++) world.start(i);
  world.run_for(3 * kMs);
  // At first each client sends as many packets as a new session may.
  EXPECT_LE(*std::max_element(world.rtts.begin(), world.rtts.end()), 8 * GetParam() * kPacketNs + 100'000);
  world.forget();
  world.run_for(10 * kMs);
  EXPECT_GE(world.utilization(), 0.99);
  EXPECT_LE(world.p99_rtt_ns(), 100'000u);
  EXPECT_GE(world.jain(), 0.95);
}

// Many packets of one session in the queue, one behind the other, hide the other sessions for a while.
TEST_P(Incast, limits_that_are_far_too_high_come_down) {
  Bottleneck world(GetParam());
  for (auto& client : world.clients) client.limit = 128;
  for (size_t i = 0; i < GetParam(); i++) world.start(i);
  world.run_for(3 * 128 * GetParam() * kPacketNs + kMs);  // the excess halves whenever the whole queue has passed
  world.forget();
  world.run_for(10 * kMs);
  EXPECT_GE(world.utilization(), 0.99);
  EXPECT_LE(world.p99_rtt_ns(), 100'000u);
  EXPECT_GE(world.jain(), 0.95);
}

TEST(IncastChanges, a_newcomer_has_its_share_within_two_milliseconds) {
  Bottleneck world(50);
  for (size_t i = 0; i < 49; i++) world.start(i);
  world.run_for(5 * kMs);
  world.start(49);
  world.run_for(kMs);
  world.forget();
  world.run_for(kMs);
  EXPECT_GE(world.share(49), 0.9 / 50);
}

TEST(IncastChanges, the_last_one_has_the_link_within_a_millisecond) {
  Bottleneck world(100);
  for (size_t i = 0; i < 100; i++) world.start(i);
  world.run_for(5 * kMs);
  for (size_t i = 0; i < 99; i++) world.stop(i);
  world.run_for(kMs / 2);
  world.forget();
  world.run_for(kMs / 2);
  EXPECT_GE(world.share(99), 0.9);
}

TEST(IncastChanges, clients_that_want_one_packet_at_a_time_leave_the_link_to_others) {
  Bottleneck world(101);
  for (size_t i = 1; i <= 100; i++) {
    world.clients[i].is_long = false;
    world.clients[i].think_ns = kMs;
    world.start(i);
  }
  world.start(0);
  world.run_for(2 * kMs);
  world.forget();
  world.run_for(5 * kMs);
  EXPECT_GE(world.share(0), 0.9);
  EXPECT_LE(world.p99_rtt_ns(), 50'000u);
}

TEST(IncastChanges, a_flood_of_short_requests_is_an_incast_too) {
  Bottleneck world(100);
  for (size_t i = 0; i < 100; i++) {
    world.clients[i].is_long = false;
    world.start(i);
  }
  world.run_for(2 * kMs);
  world.forget();
  world.run_for(5 * kMs);
  EXPECT_GE(world.utilization(), 0.98);
  EXPECT_LE(world.p99_rtt_ns(), 100'000u);
}

}  // namespace
}  // namespace tern::session
