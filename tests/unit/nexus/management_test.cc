// The management machine case by case, in virtual time. See management_random_test.cc for the bad weather.
#include "management_world.h"

namespace tern::nexus::test {
namespace {

constexpr uint16_t kServer = 1, kClient = 2;
constexpr size_t kA = 0, kB = 1;  // the client's host, the server's

class ManagementTest : public ::testing::Test {
 protected:
  explicit ManagementTest(ManagementOptions options = {}, size_t hosts = 2) : world(7, hosts, options) {
    world.add_endpoint(kA, kClient);
    world.add_endpoint(kB, kServer);
  }
  ModelEndpoint& client() { return world.endpoint(kA, kClient); }
  ModelEndpoint& server() { return world.endpoint(kB, kServer); }
  Management& machine(size_t i) { return *world.host(i).machine; }
  uint32_t connect_and_settle() {
    const uint32_t key = world.connect(kA, kClient, kB, kServer);
    world.run_for(milliseconds(5));
    EXPECT_TRUE(client().client.contains(key));
    world.expect_settled();
    return key;
  }
  static size_t count(const ModelEndpoint& e, ControlEvent::Kind kind) {
    size_t n = 0;
    for (const ControlEvent& event : e.log) n += event.kind == kind;
    return n;
  }
  World world;
};

TEST_F(ManagementTest, connect__opens_both_ends_in_three_datagrams) {
  const uint32_t key = connect_and_settle();
  ASSERT_EQ(count(client(), ControlEvent::Kind::kConnectResult), 1u);
  EXPECT_EQ(client().log.back().terms.transport, "udp");
  EXPECT_EQ(client().log.back().terms.session_key, server().server.begin()->first);
  EXPECT_EQ(server().server.begin()->second.remote_key, key);
  EXPECT_EQ(world.host(kA).datagrams_sent, 2u);  // request, confirmation
  EXPECT_EQ(world.host(kB).datagrams_sent, 1u);  // reply
}

TEST_F(ManagementTest, connect__twice_is_asked_once_and_answered_alike) {
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(1));
  const auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  const auto reply = world.last_of_kind(wire::ManagementKind::kConnectReply);
  world.inject(world.host(kA).address, kB, request);
  world.run_for(milliseconds(1));
  EXPECT_EQ(world.last_of_kind(wire::ManagementKind::kConnectReply), reply);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kConnectReply), 2u);
  EXPECT_EQ(server().requests_seen, 1u);
  EXPECT_EQ(machine(kB).counters().repeated, 1u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__waits_for_a_slow_endpoint_and_asks_it_once) {
  server().lag_max = milliseconds(300);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(400));
  EXPECT_TRUE(client().client.contains(key));
  EXPECT_EQ(server().requests_seen, 1u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__late_after_disconnect_leaves_nothing) {
  const uint32_t key = connect_and_settle();
  const auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  world.disconnect(kA, kClient, key, true);
  world.run_for(milliseconds(5));
  EXPECT_TRUE(server().server.empty());
  world.inject(world.host(kA).address, kB, request);  // while the server remembers it
  world.run_for(milliseconds(5));
  EXPECT_EQ(server().requests_seen, 1u);
  world.run_for(std::chrono::seconds(20));
  EXPECT_EQ(machine(kB).sessions(), 0u);
  world.inject(world.host(kA).address, kB, request);  // when nobody does any more
  world.run_for(milliseconds(100));
  EXPECT_EQ(server().requests_seen, 2u);
  EXPECT_TRUE(server().server.empty());
  world.expect_settled();
}

TEST_F(ManagementTest, connect__yes_after_forget_is_undone) {
  world.weather.delay_min = world.weather.delay_max = milliseconds(10);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(15));
  EXPECT_EQ(server().server.size(), 1u);
  world.disconnect(kA, kClient, key, true);
  world.run_for(milliseconds(50));
  EXPECT_TRUE(server().server.empty());
  EXPECT_EQ(count(client(), ControlEvent::Kind::kConnectResult), 0u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__lost_yes_after_forget_is_found_out) {
  world.cut.insert({kB, kA});
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(5));
  world.disconnect(kA, kClient, key, true);
  EXPECT_EQ(server().server.size(), 1u);
  world.run_for(milliseconds(10));
  world.cut.clear();
  world.run_for(milliseconds(200));
  EXPECT_TRUE(server().server.empty());
  world.expect_settled();
}

TEST_F(ManagementTest, connect__silence_is_unreachable_once_at_the_timeout) {
  world.crash(kB);
  world.connect(kA, kClient, kB, kServer, milliseconds(700));
  world.run_for(milliseconds(699));
  EXPECT_TRUE(client().log.empty());
  const size_t sent = world.host(kA).datagrams_sent;
  EXPECT_GE(sent, 8u);  // doubling to 100 ms
  EXPECT_LE(sent, 20u);
  world.run_for(milliseconds(2));
  ASSERT_EQ(client().log.size(), 1u);
  EXPECT_EQ(client().log[0].status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(client().log[0].kind, ControlEvent::Kind::kConnectResult);
  world.run_for(std::chrono::seconds(10));
  EXPECT_EQ(client().log.size(), 1u);
  EXPECT_EQ(machine(kA).peers(), 0u);
}

TEST_F(ManagementTest, connect__thousands_take_turns) {
  const uint32_t at_once = ManagementOptions{}.requests_at_once;
  constexpr size_t kSessions = 3000;
  for (size_t i = 0; i < kSessions; i++) world.connect(kA, kClient, kB, kServer);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kConnectRequest), at_once);
  machine(kA).check_invariants();
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(client().client.size(), kSessions);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kConnectRequest), kSessions) << "repeated in good weather";
  world.expect_settled();
}

TEST_F(ManagementTest, connect__who_waits_for_a_turn_is_not_late_while_others_are_answered) {
  server().lag_max = milliseconds(20);
  constexpr size_t kSessions = 1000;
  for (size_t i = 0; i < kSessions; i++) world.connect(kA, kClient, kB, kServer, milliseconds(100));
  world.run_for(milliseconds(150));
  ASSERT_LT(client().client.size(), kSessions) << "all were served within the timeout of one";
  world.run_for(std::chrono::seconds(30));
  EXPECT_EQ(client().client.size(), kSessions);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__thousands_to_a_dead_peer_end_with_the_first) {
  world.crash(kB);
  for (size_t i = 0; i < 3000; i++) world.connect(kA, kClient, kB, kServer, milliseconds(300));
  world.run_for(milliseconds(700));
  ASSERT_EQ(client().log.size(), 3000u);
  for (const ControlEvent& event : client().log) ASSERT_EQ(event.status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(machine(kA).sessions(), 0u);
  machine(kA).check_invariants();
}

TEST_F(ManagementTest, connect__an_endpoint_that_hangs_delays_the_others_of_its_nexus_only_shortly) {
  constexpr uint16_t kHangs = 3;
  world.add_endpoint(kB, kHangs);
  world.endpoint(kB, kHangs).lag_max = std::chrono::hours(1);
  for (size_t i = 0; i < 100; i++) world.connect(kA, kClient, kB, kHangs, std::chrono::seconds(10));
  world.connect(kA, kClient, kB, kServer);
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(server().server.size(), 1u);
}

TEST_F(ManagementTest, connect__forgotten_while_waiting_lets_the_next_go) {
  std::vector<uint32_t> keys;
  for (size_t i = 0; i < 200; i++) keys.push_back(world.connect(kA, kClient, kB, kServer));
  for (size_t i = 0; i < 200; i += 2) world.disconnect(kA, kClient, keys[i], true);
  machine(kA).check_invariants();
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(client().client.size(), 100u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__forgotten_has_no_result) {
  world.crash(kB);
  world.disconnect(kA, kClient, world.connect(kA, kClient, kB, kServer), true);
  world.run_for(std::chrono::seconds(10));
  EXPECT_TRUE(client().log.empty());
}

TEST_F(ManagementTest, connect__refusals_name_the_reason) {
  world.connect(kA, kClient, kB, 9);
  world.run_for(milliseconds(1));
  ASSERT_EQ(client().log.size(), 1u);
  EXPECT_EQ(client().log[0].status.code(), Code::kRefused);
  EXPECT_EQ(client().log[0].status.message(), wire::refusal_text(wire::Refusal::kNoSuchEndpoint));
  EXPECT_EQ(machine(kB).peers(), 0u);  // nothing is kept for it

  server().refuses = 1;
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(1));
  ASSERT_EQ(client().log.size(), 2u);
  EXPECT_EQ(client().log[1].status.code(), Code::kQueueFull);
  EXPECT_EQ(client().log[1].status.message(), wire::refusal_text(wire::Refusal::kNoCapacity));

  SessionTerms other = world.terms(client().next_key++);
  other.transport = "shm";
  machine(kA).connect(client().name, world.host(kB).address, kServer, other, std::chrono::seconds(1), world.now());
  client().connecting.insert(other.session_key);
  world.run_for(milliseconds(20));
  ASSERT_EQ(client().log.size(), 3u);
  EXPECT_EQ(client().log[2].status.message(), wire::refusal_text(wire::Refusal::kTransportMismatch));

  other.window = 65;
  client().connecting.insert(other.session_key);
  machine(kA).connect(client().name, world.host(kB).address, kServer, other, std::chrono::seconds(1), world.now());
  ASSERT_EQ(machine(kA).notices().size(), 1u);
  EXPECT_EQ(machine(kA).notices()[0].event.status.code(), Code::kMisuse);
}

TEST_F(ManagementTest, connect__no_common_version) {
  {
    wire::ManagementMessage m;
    m.kind = wire::ManagementKind::kConnectRequest;
    m.sender_run = 5;
    m.token = 6;
    m.version_min = 2;
    m.version_max = 9;
    m.to_endpoint = kServer;
    m.terms.transport = {'u', 'd', 'p'};
    m.terms.transport_bytes = 3;
    m.terms.window = 1;
    m.terms.payload_bytes_max = 512;
    wire::ManagementBytes bytes;
    wire::encode_management(m, bytes);
    machine(kB).on_datagram("10.9.9.9:1", bytes.view(), world.now());
  }
  ASSERT_EQ(machine(kB).datagrams().size(), 1u);
  wire::ManagementMessage reply;
  ASSERT_EQ(wire::parse_management(machine(kB).datagrams()[0].content.view(), reply), wire::ManagementDrop::kNone);
  EXPECT_EQ(reply.refusal, wire::Refusal::kNoCommonVersion);
  EXPECT_EQ(machine(kB).peers(), 0u);
}

TEST_F(ManagementTest, disconnect__either_side_ends_both_even_through_loss) {
  world.weather.drop = 0.5;
  for (const bool by_client : {true, false}) {
    const uint32_t key = world.connect(kA, kClient, kB, kServer);
    world.run_for(std::chrono::seconds(1));
    ASSERT_TRUE(client().client.contains(key));
    if (by_client) {
      world.disconnect(kA, kClient, key, true);
    } else {
      world.disconnect(kB, kServer, server().server.begin()->first, false);
    }
    world.run_for(std::chrono::seconds(2));
    EXPECT_TRUE(client().client.empty());
    EXPECT_TRUE(server().server.empty());
    world.expect_settled();
  }
  EXPECT_EQ(count(client(), ControlEvent::Kind::kDisconnected), 1u);
  EXPECT_EQ(count(server(), ControlEvent::Kind::kDisconnected), 1u);
}

TEST_F(ManagementTest, endpoint__removal_tells_peers_and_refuses_who_waits) {
  connect_and_settle();
  server().lag_max = milliseconds(500);
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(1));
  world.remove_endpoint(kB, kServer);
  world.run_for(milliseconds(5));
  EXPECT_TRUE(client().client.empty());
  EXPECT_EQ(count(client(), ControlEvent::Kind::kDisconnected), 1u);
  EXPECT_EQ(count(client(), ControlEvent::Kind::kConnectResult), 2u);
  EXPECT_TRUE(client().connecting.empty());
  world.expect_settled();
}

TEST_F(ManagementTest, liveness__one_ping_for_a_thousand_sessions) {
  for (int i = 0; i < 1000; i++) world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(200));
  ASSERT_EQ(client().client.size(), 1000u);
  const size_t before = world.host(kA).datagrams_sent + world.host(kB).datagrams_sent;
  world.run_for(std::chrono::seconds(10));
  const size_t pings = world.host(kA).datagrams_sent + world.host(kB).datagrams_sent - before;
  EXPECT_LE(pings, 4 * 10 * 1000 / 125u + 8);  // ping and pong from either side, every 125 ms
  EXPECT_GE(pings, 4 * 10 * 1000 / 150u);
}

TEST_F(ManagementTest, liveness__a_dead_peer_is_gone_once_for_each_endpoint) {
  world.add_endpoint(kA, 3);
  world.add_endpoint(kA, 4);  // without sessions: hears nothing
  connect_and_settle();
  connect_and_settle();
  world.connect(kA, 3, kB, kServer);
  world.run_for(milliseconds(5));
  world.crash(kB);
  world.run_for(milliseconds(350));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
  world.run_for(milliseconds(200));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_EQ(client().log.back().status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(count(world.endpoint(kA, 3), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_TRUE(world.endpoint(kA, 4).log.empty());
  EXPECT_TRUE(client().client.empty());
  EXPECT_EQ(machine(kA).sessions(), 0u);
  world.run_for(std::chrono::seconds(10));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
}

TEST_F(ManagementTest, liveness__answers_count_when_pings_are_lost) {
  connect_and_settle();
  world.drops = {wire::ManagementKind::kPing, wire::ManagementKind::kPong};
  for (int i = 0; i < 20; i++) {
    world.connect(kA, kClient, kB, kServer);
    world.run_for(milliseconds(100));
  }
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
  EXPECT_EQ(client().client.size(), 21u);
  world.run_for(std::chrono::seconds(1));  // and now nothing comes any more
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
}

TEST_F(ManagementTest, liveness__an_own_pause_is_not_the_peers_death) {
  connect_and_settle();
  // Nothing runs here for three seconds, then the late timer comes before the peer's answers.
  machine(kA).on_time(world.now() + std::chrono::seconds(3));
  EXPECT_TRUE(machine(kA).notices().empty());
}

TEST_F(ManagementTest, restart__is_a_reset_and_new_sessions_work) {
  connect_and_settle();
  world.boot(kB);
  world.add_endpoint(kB, kServer);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(10));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_EQ(client().client.size(), 1u);
  EXPECT_TRUE(client().client.contains(key));
  EXPECT_EQ(server().requests_seen, 1u);
  world.run_for(std::chrono::seconds(2));
  world.expect_settled();
  EXPECT_EQ(client().client.size(), 1u);
}

TEST_F(ManagementTest, restart__of_a_client_resets_the_servers_sessions) {
  connect_and_settle();
  world.boot(kA);
  world.add_endpoint(kA, kClient);
  client().next_key = 77;
  connect_and_settle();
  EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_EQ(server().server.size(), 1u);
}

TEST_F(ManagementTest, restart__unasked_is_noticed_by_the_next_ping) {
  connect_and_settle();
  world.boot(kB);
  world.run_for(milliseconds(140));
  ASSERT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_EQ(client().log.back().status.code(), Code::kSessionReset);
}

// B may hear of A's new run twice: from A's request, whose reply is lost, and, once it has found out that the old run
// is gone, from A's reply to a request of its own. A then knows one of B's two relations, and means that one.
TEST(ManagementRestart, with_requests_from_both_sides_leaves_one_relation_to_speak_in) {
  for (uint64_t seed = 0; seed < 100; seed++) {
    World world(seed, 2);
    for (const size_t host : {kA, kB}) {
      for (const uint16_t id : {kServer, kClient}) world.add_endpoint(host, id);
    }
    world.connect(kB, kClient, kA, kServer);
    world.run_for(milliseconds(5));
    world.boot(kA);
    for (const uint16_t id : {kServer, kClient}) world.add_endpoint(kA, id);
    world.cut.insert({kB, kA});
    const uint32_t from_b = world.connect(kB, kClient, kA, kServer);
    world.run_for(std::chrono::microseconds(4200));
    const uint32_t from_a = world.connect(kA, kClient, kB, kServer);
    world.run_for(std::chrono::microseconds(100));
    world.cut.clear();
    world.run_for(milliseconds(30));
    EXPECT_TRUE(world.endpoint(kA, kClient).client.contains(from_a)) << seed;
    EXPECT_TRUE(world.endpoint(kB, kClient).client.contains(from_b)) << seed;
    world.run_for(std::chrono::seconds(1));
    world.expect_settled();
  }
}

TEST_F(ManagementTest, restart__is_not_believed_from_a_stranger) {
  connect_and_settle();
  auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  request[8] ^= std::byte{0xff};  // another run, as the server's address may be forged
  world.inject(world.host(kA).address, kB, request);
  world.run_for(milliseconds(500));
  EXPECT_EQ(server().requests_seen, 2u);
  EXPECT_EQ(client().client.size(), 1u);  // the true one; the forged one was found out
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
  world.expect_settled();
}

TEST_F(ManagementTest, ask_liveness__tells_callback_from_idle_and_gone) {
  const uint32_t key = connect_and_settle();
  const auto ask = [&] {
    const size_t before = count(client(), ControlEvent::Kind::kLiveness);
    machine(kA).ask_liveness(client().name, key, world.now());
    world.run_for(milliseconds(30));
    EXPECT_EQ(count(client(), ControlEvent::Kind::kLiveness), before + 1);
    EXPECT_EQ(client().log.back().local_key, key);
    return client().log.back().liveness;
  };
  EXPECT_EQ(ask(), PeerLiveness::kIdle);
  server().iteration = 41;  // inside, and stays
  EXPECT_EQ(ask(), PeerLiveness::kInCallback);
  EXPECT_EQ(ask(), PeerLiveness::kInCallback);
  server().iteration = 42;
  EXPECT_EQ(ask(), PeerLiveness::kIdle);

  // Inside at the first look, elsewhere at the second: a loop that turns.
  server().iteration = 43;
  machine(kA).ask_liveness(client().name, key, world.now());
  world.run_for(std::chrono::microseconds(300));
  server().iteration = 45;
  world.run_for(milliseconds(30));
  EXPECT_EQ(client().log.back().liveness, PeerLiveness::kIdle);
  EXPECT_EQ(count(client(), ControlEvent::Kind::kLiveness), 5u);
}

TEST_F(ManagementTest, ask_liveness__no_session_when_the_servers_end_is_gone) {
  const uint32_t key = connect_and_settle();
  world.cut.insert({kB, kA});  // its disconnect does not arrive
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  world.run_for(milliseconds(10));
  world.cut.clear();
  machine(kA).ask_liveness(client().name, key, world.now());
  world.run_for(milliseconds(15));
  const bool told = count(client(), ControlEvent::Kind::kDisconnected) == 1 ||
                    client().log.back().liveness == PeerLiveness::kNoSession;
  EXPECT_TRUE(told);
}

TEST_F(ManagementTest, strangers__leave_nothing_behind) {
  std::mt19937_64 random(3);
  std::vector<std::byte> junk(300);
  for (int i = 0; i < 1000; i++) {
    for (auto& byte : junk) byte = static_cast<std::byte>(random());
    machine(kB).on_datagram("10.9.9.9:1", std::span(junk).first(random() % 300), world.now());
  }
  const auto& dropped = machine(kB).counters().dropped;
  EXPECT_EQ(dropped[static_cast<size_t>(wire::ManagementDrop::kShort)] +
                dropped[static_cast<size_t>(wire::ManagementDrop::kForeign)],
            1000u);
  EXPECT_TRUE(machine(kB).datagrams().empty());
  EXPECT_EQ(machine(kB).peers(), 0u);
}

class FewAllowed : public ManagementTest {
 protected:
  static ManagementOptions options() {
    ManagementOptions o;
    o.asked_max = 10;
    o.peers_max = 20;
    return o;
  }
  FewAllowed() : ManagementTest(options()) {}
};

TEST_F(FewAllowed, strangers__cannot_fill_the_tables) {
  server().lag_max = std::chrono::hours(1);  // never answers
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  for (int i = 0; i < 1000; i++) {
    request[8] = static_cast<std::byte>(i);
    request[9] = static_cast<std::byte>(i >> 8);
    request[24] = static_cast<std::byte>(i);
    machine(kB).on_datagram("10.9." + std::to_string(i / 250) + "." + std::to_string(i % 250) + ":1", request,
                            world.now());
    machine(kB).on_datagram("10.8.8.8:1", request, world.now());  // and many runs at one address
  }
  EXPECT_LE(machine(kB).peers(), 20u);
  EXPECT_LE(machine(kB).sessions(), 10u);
  EXPECT_GT(machine(kB).counters().over_limit, 900u);
  size_t answered_bytes = 0;
  for (const auto& datagram : machine(kB).datagrams()) answered_bytes += datagram.content.size;
  EXPECT_LT(answered_bytes, 2000 * wire::kConnectRequestBytes);
  machine(kB).check_invariants();
  machine(kB).datagrams().clear();
  world.disconnect(kA, kClient, key, true);
}

}  // namespace
}  // namespace tern::nexus::test
