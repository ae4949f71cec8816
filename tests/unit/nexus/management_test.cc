// The management machine, one situation in each test, in virtual time. management_random_test.cc has random faults.
#include <optional>

#include "management_world.h"

namespace tern::nexus::test {
namespace {

constexpr uint16_t kServer = 1, kClient = 2;
constexpr size_t kA = 0, kB = 1;  // the hosts of the client and of the server

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

TEST_F(ManagementTest, connect__opens_both_ends_in_five_datagrams) {
  const uint32_t key = connect_and_settle();
  ASSERT_EQ(count(client(), ControlEvent::Kind::kConnectResult), 1u);
  EXPECT_EQ(client().log.back().terms.transport, "udp");
  EXPECT_EQ(client().log.back().terms.session_key, server().server.begin()->first);
  EXPECT_EQ(server().server.begin()->second.remote_key, key);
  EXPECT_EQ(world.host(kA).datagrams_sent, 3u);  // request, request with the cookie, confirmation
  EXPECT_EQ(world.host(kB).datagrams_sent, 2u);  // cookie, reply
  connect_and_settle();
  EXPECT_EQ(world.host(kA).datagrams_sent, 5u);  // an existing relation needs no cookie
  EXPECT_EQ(world.host(kB).datagrams_sent, 3u);
}

TEST_F(ManagementTest, connect__duplicate_is_asked_once_and_gets_the_same_answer) {
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

TEST_F(ManagementTest, connect__a_repetition_is_answered_by_the_state_of_the_servers_session) {
  server().away_until = world.now() + milliseconds(10);
  world.drops = {wire::ManagementKind::kConfirm, wire::ManagementKind::kDisconnectAck};
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(5));
  const auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  const auto answer = [&] {
    const size_t before = world.sent_of_kind(wire::ManagementKind::kConnectReply);
    world.inject(world.host(kA).address, kB, request);
    world.run_for(milliseconds(1));
    const bool is_one = world.sent_of_kind(wire::ManagementKind::kConnectReply) == before + 1;
    return is_one ? world.last_of_kind(wire::ManagementKind::kConnectReply) : std::vector<std::byte>();
  };
  EXPECT_TRUE(answer().empty());  // the endpoint has not answered yet
  world.run_for(milliseconds(10));
  const auto accepted = world.last_of_kind(wire::ManagementKind::kConnectReply);
  ASSERT_TRUE(client().client.contains(key));
  EXPECT_EQ(answer(), accepted);  // not confirmed
  world.drops.erase(wire::ManagementKind::kConfirm);
  EXPECT_EQ(answer(), accepted);  // the client confirms this answer
  EXPECT_EQ(answer(), accepted);  // open
  world.run_for(milliseconds(100));
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kAsk), 0u);
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  const auto closed = answer();  // closing
  wire::ManagementMessage reply;
  ASSERT_EQ(wire::parse_management(closed, reply), wire::ManagementDrop::kNone);
  EXPECT_EQ(reply.refusal, wire::Refusal::kSessionClosed);
  world.drops.clear();
  world.run_for(milliseconds(10));
  EXPECT_EQ(answer(), closed);  // closed
  EXPECT_EQ(server().requests_seen, 1u);
  world.expect_settled();
}

// The client's NAT may have changed its address since the relation began.
TEST_F(ManagementTest, connect__a_repetition_is_answered_at_its_source) {
  connect_and_settle();
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(5));
  size_t answers = 0;
  world.on_stranger = [&](const std::string& to, std::span<const std::byte> bytes) {
    wire::ManagementMessage reply;
    ASSERT_EQ(wire::parse_management(bytes, reply), wire::ManagementDrop::kNone);
    answers += to == "10.9.9.9:1" && reply.kind == wire::ManagementKind::kConnectReply;
  };
  world.inject("10.9.9.9:1", kB, world.last_of_kind(wire::ManagementKind::kConnectRequest));
  world.run_for(milliseconds(5));
  EXPECT_EQ(answers, 1u);
  EXPECT_EQ(server().requests_seen, 2u);
  world.expect_settled();
}

TEST_F(ManagementTest, answer_connect__more_addresses_than_offers_is_refused) {
  server().moves = true;
  for (int i = 0; i < 4100; i++) world.connect(kA, kClient, kB, kServer);
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(client().client.size(), 4096u);
  EXPECT_EQ(client().log.back().refusal, wire::Refusal::kOther);
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
  world.inject(world.host(kA).address, kB, request);  // the server still remembers the request
  world.run_for(milliseconds(5));
  EXPECT_EQ(server().requests_seen, 1u);
  world.run_for(std::chrono::seconds(20));
  EXPECT_EQ(machine(kB).sessions(), 0u);
  world.inject(world.host(kA).address, kB, request);  // no host remembers the request, and its cookie has expired
  world.run_for(milliseconds(100));
  EXPECT_EQ(server().requests_seen, 1u);
  EXPECT_TRUE(server().server.empty());
  world.expect_settled();
}

TEST_F(ManagementTest, connect__acceptance_after_forget_is_undone) {
  world.weather.delay_min = world.weather.delay_max = milliseconds(10);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(35));
  EXPECT_EQ(server().server.size(), 1u);
  world.disconnect(kA, kClient, key, true);
  world.run_for(milliseconds(50));
  EXPECT_TRUE(server().server.empty());
  EXPECT_EQ(count(client(), ControlEvent::Kind::kConnectResult), 0u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__lost_acceptance_after_forget_is_undone_later) {
  world.drops = {wire::ManagementKind::kConnectReply};
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(5));
  world.disconnect(kA, kClient, key, true);
  EXPECT_EQ(server().server.size(), 1u);
  world.run_for(milliseconds(10));
  world.drops.clear();
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
  EXPECT_GE(sent, 8u);  // the interval doubles to 100 ms
  EXPECT_LE(sent, 20u);
  world.run_for(milliseconds(2));
  ASSERT_EQ(client().log.size(), 1u);
  EXPECT_EQ(client().log[0].status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(client().log[0].kind, ControlEvent::Kind::kConnectResult);
  world.run_for(std::chrono::seconds(10));
  EXPECT_EQ(client().log.size(), 1u);
  EXPECT_EQ(machine(kA).census().peers, 0u);
}

// A report of an error is a hint. It ends no attempt, and the last report before the timeout gives the reason.
TEST_F(ManagementTest, connect__a_hint_is_the_reason_of_the_timeout_only) {
  const std::pair<Unreachable, const char*> reasons[] = {
      {Unreachable::kSilent, "no answer from 10.0.0.2:31850 within"},
      {Unreachable::kPort, "nothing listens at 10.0.0.2"},
      {Unreachable::kHost, "no host answers at 10.0.0.2"},
      {Unreachable::kNetwork, "no route to 10.0.0.2"},
      {Unreachable::kForbidden, "a firewall refuses what is sent to 10.0.0.2"}};
  for (const auto& [why, text] : reasons) {
    client().log.clear();
    world.cut = {{kA, kB}};
    world.connect(kA, kClient, kB, kServer, milliseconds(700));
    for (int i = 0; i < 6; i++) {
      world.run_for(milliseconds(100));
      if (why != Unreachable::kSilent) world.hint(kA, world.host(kB).address, why);
    }
    EXPECT_TRUE(client().log.empty()) << text;
    world.run_for(milliseconds(110));
    ASSERT_EQ(client().log.size(), 1u) << text;
    EXPECT_EQ(client().log.back().status.code(), Code::kPeerUnreachable);
    EXPECT_TRUE(client().log.back().status.message().starts_with(text)) << client().log.back().status.message();
  }
  // The attempt succeeds if the server starts before the timeout.
  world.connect(kA, kClient, kB, kServer);
  world.hint(kA, world.host(kB).address, Unreachable::kPort);
  world.run_for(milliseconds(300));
  world.cut.clear();
  world.run_for(milliseconds(200));
  EXPECT_EQ(client().client.size(), 1u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__every_address_has_its_turn) {
  const AddressText dead("10.9.9.9:1"), other("10.9.9.8:1"), right(world.host(kB).address);
  world.connect(kA, kClient, {dead, other, right}, kServer);
  world.run_for(milliseconds(400));
  EXPECT_TRUE(client().client.empty());
  world.run_for(milliseconds(200));  // after two turns of 250 ms
  EXPECT_EQ(client().client.size(), 1u);
  EXPECT_EQ(client().client.begin()->second.peer.address, right.view());
  // The client tries the address that is known to answer first.
  const size_t sent = world.bytes_to[std::string(dead)];
  world.connect(kA, kClient, {dead, other, right}, kServer);
  world.run_for(milliseconds(5));
  EXPECT_EQ(client().client.size(), 2u);
  EXPECT_EQ(world.bytes_to[std::string(dead)], sent);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__a_hint_begins_the_next_addresss_turn_once) {
  const AddressText dead("10.9.9.9:1"), other("10.9.9.8:1");
  world.cut = {{kA, kB}};
  const AddressText right(world.host(kB).address);
  world.connect(kA, kClient, {dead, right, other}, kServer, milliseconds(3000));
  world.hint(kA, dead, Unreachable::kPort);
  world.hint(kA, right, Unreachable::kHost);
  const size_t sent = world.host(kA).datagrams_sent;
  for (int i = 0; i < 1000; i++) {  // a flood of reports does not advance the turns
    for (const AddressText& address : {dead, right, other}) world.hint(kA, std::string(address), Unreachable::kPort);
  }
  EXPECT_EQ(world.host(kA).datagrams_sent, sent);
  world.run_for(milliseconds(400));
  world.cut.clear();  // the second round of addresses
  world.run_for(milliseconds(1500));
  EXPECT_EQ(client().client.size(), 1u);
  world.expect_settled();
}

/// Requests that wait to be sent to a dead address do not wait for those that were sent.
TEST_F(ManagementTest, connect__those_that_wait_behind_a_dead_address_try_the_next_one) {
  const AddressText dead("10.9.9.9:1"), right(world.host(kB).address);
  constexpr size_t kSessions = 1000;
  for (size_t i = 0; i < kSessions; i++) world.connect(kA, kClient, {dead, right}, kServer);
  world.run_for(milliseconds(800));  // a turn of 250 ms, and a thousand handshakes
  EXPECT_EQ(client().client.size(), kSessions);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__hints_move_those_that_wait_to_the_next_address) {
  const AddressText dead("10.9.9.9:1"), right(world.host(kB).address);
  constexpr size_t kSessions = 500;
  for (size_t i = 0; i < kSessions; i++) world.connect(kA, kClient, {dead, right}, kServer);
  for (size_t i = 0; i < kSessions; i += 64) world.hint(kA, std::string(dead), Unreachable::kPort);
  world.run_for(milliseconds(240));  // less than a turn
  EXPECT_EQ(client().client.size(), kSessions);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__late_answers_of_an_earlier_turn_are_undone) {
  world.add_endpoint(kB, 7);
  // The endpoint answers during the turn of the next address.
  world.endpoint(kB, 7).away_until = world.now() + milliseconds(300);
  const AddressText other("10.9.9.8:1"), right(world.host(kB).address);
  world.connect(kA, kClient, {right, other}, 7);
  world.run_for(milliseconds(1500));
  EXPECT_EQ(client().client.size(), 1u);
  world.expect_settled();
}

TEST_F(ManagementTest, connect__failure_names_the_reason_of_each_address) {
  world.connect(kA, kClient, {AddressText("10.9.9.9:1"), AddressText("[fd77::9]:1")}, kServer, milliseconds(800));
  world.hint(kA, "10.9.9.9:1", Unreachable::kPort);
  world.run_for(milliseconds(100));
  world.hint(kA, "[fd77::9]:1", Unreachable::kNetwork);
  world.run_for(milliseconds(800));
  ASSERT_EQ(client().log.size(), 1u);
  EXPECT_EQ(client().log.back().status.message(),
            "no address of the server answers: 10.9.9.9:1 - nothing listens there, [fd77::9]:1 - no route");
}

TEST_F(ManagementTest, connect__an_own_pause_takes_nothing_of_its_time) {
  world.host(kA).away_until = world.now() + std::chrono::seconds(3);
  world.cut = {{kA, kB}};
  world.connect(kA, kClient, kB, kServer, std::chrono::seconds(1));
  world.run_for(milliseconds(3300));
  EXPECT_TRUE(client().log.empty());
  world.cut.clear();
  world.run_for(milliseconds(200));
  EXPECT_EQ(client().client.size(), 1u);
}

TEST_F(ManagementTest, connect__thousands_take_turns) {
  const uint32_t at_once = ManagementOptions{}.requests_at_once;
  constexpr size_t kSessions = 3000;
  for (size_t i = 0; i < kSessions; i++) world.connect(kA, kClient, kB, kServer);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kConnectRequest), at_once);
  machine(kA).check_invariants();
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(client().client.size(), kSessions);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kConnectRequest), kSessions + at_once)
      << "repeated in good weather, but for the cookies of the first ones";
  world.expect_settled();
}

TEST_F(ManagementTest, connect__waiting_for_a_turn_does_not_count_as_silence) {
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
  EXPECT_EQ(machine(kB).census().peers, 0u);  // a refusal leaves no record of the peer

  server().refuses = 1;
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(1));
  ASSERT_EQ(client().log.size(), 2u);
  EXPECT_EQ(client().log[1].status.code(), Code::kQueueFull);
  EXPECT_EQ(client().log[1].status.message(), wire::refusal_text(wire::Refusal::kNoCapacity));

  SessionTerms other = world.terms(client().next_key++);
  other.transport = "shm";
  machine(kA).connect(client().name, at(world.host(kB).address), kServer, other, std::chrono::seconds(1), world.now());
  client().connecting.insert(other.session_key);
  world.run_for(milliseconds(20));
  ASSERT_EQ(client().log.size(), 3u);
  EXPECT_EQ(client().log[2].status.message(), wire::refusal_text(wire::Refusal::kTransportMismatch));

  other.window = 65;
  client().connecting.insert(other.session_key);
  machine(kA).connect(client().name, at(world.host(kB).address), kServer, other, std::chrono::seconds(1), world.now());
  ASSERT_EQ(machine(kA).notices().size(), 1u);
  EXPECT_EQ(machine(kA).notices()[0].event.status.code(), Code::kMisuse);
}

TEST(ManagementStart, connect__before_the_server_has_an_endpoint_is_answered_when_it_has_one) {
  World world(7, 2);
  world.add_endpoint(kA, kClient);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(100));
  EXPECT_TRUE(world.endpoint(kA, kClient).log.empty());
  EXPECT_EQ(world.host(kB).datagrams_sent, 0u);
  world.add_endpoint(kB, kServer);
  world.run_for(milliseconds(300));
  EXPECT_TRUE(world.endpoint(kA, kClient).client.contains(key));
  world.expect_settled();
}

TEST_F(ManagementTest, answer_connect__each_refusal_reaches_the_client_by_its_number) {
  server().refuses = 1;
  for (uint8_t number = 1; number < wire::kRefusals; number++) {
    const auto refusal = static_cast<wire::Refusal>(number);
    // Only a Nexus sends these two. A client answers them with a ping and with a text that names both versions.
    if (refusal == wire::Refusal::kStaleRun || refusal == wire::Refusal::kNoCommonVersion) continue;
    server().refusal = refusal;
    client().log.clear();
    world.connect(kA, kClient, kB, kServer);
    world.run_for(milliseconds(5));
    ASSERT_EQ(client().log.size(), 1u) << int{number};
    const Status& status = client().log[0].status;
    EXPECT_NE(status.code(), Code::kOk) << int{number};
    EXPECT_EQ(status.code(), refusal_code(refusal)) << int{number};
    EXPECT_STREQ(status.message().data(), wire::refusal_text(refusal)) << int{number};
  }
  EXPECT_TRUE(client().client.empty());
  EXPECT_TRUE(server().server.empty());
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

TEST_F(ManagementTest, disconnect__is_not_repeated_for_ever) {
  connect_and_settle();
  world.drops = {wire::ManagementKind::kDisconnectAck};
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  connect_and_settle();  // so that both sides go on to ping
  world.run_for(std::chrono::seconds(8));
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kDisconnect), 32u);
  world.run_for(std::chrono::seconds(20));
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kDisconnect), 32u);
  EXPECT_EQ(machine(kB).sessions(), 1u);
  world.drops.clear();
  world.expect_settled();
}

TEST(ManagementLink, disconnect__outlasts_a_cut_that_the_relation_outlasts) {
  World world(7, 2, {.liveness_timeout = std::chrono::seconds(20)});
  world.add_endpoint(kA, kClient);
  world.add_endpoint(kB, kServer);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.connect(kA, kClient, kB, kServer);  // so that the relation goes on
  world.run_for(milliseconds(100));
  world.cut = {{kA, kB}, {kB, kA}};
  world.disconnect(kA, kClient, key, true);
  world.run_for(std::chrono::seconds(9));  // more than 32 disconnects take
  world.cut.clear();
  world.run_for(std::chrono::seconds(1));
  EXPECT_EQ(world.endpoint(kB, kServer).server.size(), 1u);
  world.expect_settled();
}

/// A peer that is heard every 5 s, and acknowledges nothing.
TEST(ManagementLink, disconnect__outlasts_one_silence_only) {
  World world(7, 2, {.liveness_timeout = std::chrono::seconds(20)});
  world.add_endpoint(kA, kClient);
  world.add_endpoint(kB, kServer);
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(100));
  world.drops = {wire::ManagementKind::kDisconnectAck};
  world.disconnect(kA, kClient, key, true);
  world.run_for(std::chrono::seconds(60));
  EXPECT_LE(world.sent_of_kind(wire::ManagementKind::kDisconnect), 32u + 5'000 / 200);
  world.drops.clear();
  world.expect_settled();
}

TEST_F(ManagementTest, disconnect__is_acknowledged_whether_the_session_is_known_or_not) {
  const uint32_t key = connect_and_settle();
  world.disconnect(kA, kClient, key, true);
  world.run_for(milliseconds(5));
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kDisconnectAck), 1u);
  const auto disconnect = world.last_of_kind(wire::ManagementKind::kDisconnect);
  world.run_for(std::chrono::seconds(20));
  EXPECT_EQ(machine(kB).sessions(), 0u);
  world.inject(world.host(kA).address, kB, disconnect);
  world.run_for(milliseconds(5));
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kDisconnectAck), 2u);
  world.expect_settled();
}

TEST_F(ManagementTest, relation__without_sessions_is_forgotten_after_five_seconds) {
  const uint32_t key = connect_and_settle();
  world.run_for(std::chrono::seconds(20));
  EXPECT_EQ(machine(kA).census().peers, 1u);  // the peer has a session
  EXPECT_EQ(machine(kB).census().peers, 1u);
  world.disconnect(kA, kClient, key, true);
  world.run_for(milliseconds(4900));
  EXPECT_EQ(machine(kA).census().peers, 1u);
  EXPECT_EQ(machine(kB).census().peers, 1u);
  world.run_for(milliseconds(200));
  EXPECT_EQ(machine(kA).census().peers, 0u);
  world.run_for(std::chrono::seconds(5));  // the server remembers the ended session for five seconds, too
  EXPECT_EQ(machine(kB).census().peers, 0u);
  world.expect_settled();
}

TEST_F(ManagementTest, endpoint__removal_tells_peers_and_refuses_waiting_clients) {
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

TEST_F(ManagementTest, endpoint__removal_ends_no_session_of_another_endpoint) {
  constexpr uint16_t kOther = 3;
  world.add_endpoint(kB, kOther);
  for (int i = 0; i < 10; i++) world.connect(kA, kClient, kB, i % 3 == 0 ? kOther : kServer);
  world.run_for(milliseconds(5));
  ASSERT_EQ(client().client.size(), 10u);
  world.remove_endpoint(kB, kServer);
  world.run_for(milliseconds(50));
  EXPECT_EQ(client().client.size(), 4u);
  EXPECT_EQ(world.endpoint(kB, kOther).server.size(), 4u);
  world.expect_settled();
}

TEST_F(ManagementTest, endpoint__removal_with_many_sessions_keeps_few_datagrams) {
  for (int i = 0; i < 1000; i++) world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(200));
  ASSERT_EQ(client().client.size(), 1000u);
  world.remove_endpoint(kB, kServer);
  world.run_for(milliseconds(5));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kDisconnected), 1000u);
  EXPECT_LE(world.host(kB).datagrams_at_once, Management::kDatagramsMax);
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
  world.add_endpoint(kA, 4);  // this endpoint has no sessions, and gets no event
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
  world.run_for(std::chrono::seconds(1));  // no datagram arrives from now on
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
}

TEST_F(ManagementTest, liveness__an_own_pause_is_not_the_peers_death) {
  connect_and_settle();
  // The machine does not run for three seconds. Then its late timer runs before the peer's answers are read.
  machine(kA).on_time(world.now() + std::chrono::seconds(3));
  EXPECT_TRUE(machine(kA).notices().empty());
}

// Two hosts are paused, and resume at slightly different times.
TEST_F(ManagementTest, liveness__a_paused_hosts_peers_are_given_up_neither_by_it_nor_by_each_other) {
  connect_and_settle();
  for (int i = 0; i < 300; i++) {
    const Duration pause(static_cast<int64_t>(world.random()() % 5'000'000'000));  // ten liveness timeouts
    for (const size_t host : {kA, kB}) {
      const Duration later(static_cast<int64_t>(world.random()() % 300'000'000));
      world.host(host).away_until = world.now() + pause + later;
    }
    world.run_for(pause + milliseconds(300) + Duration(static_cast<int64_t>(world.random()() % 600'000'000)));
    ASSERT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u) << "pause of " << pause / milliseconds(1) << " ms";
    ASSERT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u) << "pause of " << pause / milliseconds(1) << " ms";
  }
  world.run_for(std::chrono::seconds(5));
  world.expect_settled();
}

TEST_F(ManagementTest, liveness__many_pauses_one_after_the_other_are_no_silence) {
  connect_and_settle();
  for (int i = 0; i < 300; i++) {
    for (const size_t host : {kA, kB}) {
      if (world.now() < world.host(host).away_until) continue;
      world.host(host).away_until = world.now() + Duration(static_cast<int64_t>(world.random()() % 400'000'000));
    }
    world.run_for(Duration(static_cast<int64_t>(world.random()() % 200'000'000)));
    ASSERT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u) << i;
    ASSERT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u) << i;
  }
}

// Only one of the two hosts pauses. The other host rightly gives it up if the pause is too long.
TEST_F(ManagementTest, liveness__a_paused_side_never_finds_the_other_silent) {
  for (int i = 0; i < 200; i++) {
    const uint32_t key = connect_and_settle();
    const size_t away = i % 2 == 0 ? kA : kB;
    const Duration pause(static_cast<int64_t>(world.random()() % 5'000'000'000));
    const size_t gone_before = count(client(), ControlEvent::Kind::kPeerGone);
    world.host(away).away_until = world.now() + pause;
    world.run_for(pause + milliseconds(600));
    ModelEndpoint& paused = away == kA ? client() : server();
    for (const ControlEvent& event : paused.log) {
      if (event.kind != ControlEvent::Kind::kPeerGone) continue;
      ASSERT_EQ(event.status.code(), Code::kSessionReset) << "pause of " << pause / milliseconds(1) << " ms";
    }
    if (pause < milliseconds(370)) {
      ASSERT_EQ(count(client(), ControlEvent::Kind::kPeerGone), gone_before);
    }
    if (client().client.contains(key)) world.disconnect(kA, kClient, key, true);
    world.run_for(milliseconds(200));
    client().log.clear();
    server().log.clear();
    ASSERT_TRUE(client().client.empty());
  }
}

// Each thread runs for 100 us in 200 ms.
TEST_F(ManagementTest, liveness__starved_threads_find_each_other_alive) {
  for (const bool has_data : {false, true}) {
    connect_and_settle();
    client().hears_data = server().hears_data = has_data;
    for (const size_t host : {kA, kB}) {
      world.host(host).slice_period = milliseconds(200) + std::chrono::microseconds(host * 7);
      world.host(host).slice = std::chrono::microseconds(100);
    }
    // First management alone shows that the peer is alive, and then the data path alone.
    if (has_data) world.drops = {wire::ManagementKind::kPong};
    world.run_for(std::chrono::seconds(60));
    EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
    EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u);
    for (const size_t host : {kA, kB}) world.host(host).slice_period = Duration(0);
    world.run_for(milliseconds(500));
  }
}

// The bound of clause 7.5.2: the liveness timeout, or 16 turns and one more if the turns are far apart.
TEST_F(ManagementTest, liveness__a_starved_thread_finds_a_dead_peer) {
  for (const int64_t period_ms : {1, 10, 31, 60, 200, 350}) {
    connect_and_settle();
    const size_t before = count(client(), ControlEvent::Kind::kPeerGone);
    world.host(kA).slice_period = milliseconds(period_ms);
    world.host(kA).slice = std::chrono::microseconds(100);
    world.run_for(milliseconds(5000));
    ASSERT_EQ(count(client(), ControlEvent::Kind::kPeerGone), before);
    world.crash(kB);
    world.run_for(std::max(milliseconds(500), 16 * milliseconds(period_ms)) + 2 * milliseconds(period_ms) +
                  milliseconds(32));
    EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), before + 1) << period_ms << " ms";
    EXPECT_EQ(client().log.back().status.code(), Code::kPeerUnreachable);
    world.host(kA).slice_period = Duration(0);
    world.boot(kB);
    world.add_endpoint(kB, kServer);
    world.run_for(milliseconds(50));
  }
}

TEST_F(ManagementTest, liveness__an_endpoint_in_a_handler_may_say_later_that_it_hears_the_peer) {
  connect_and_settle();
  world.cut = {{kA, kB}, {kB, kA}};
  client().hears_data = server().hears_data = true;
  for (int i = 0; i < 10; i++) {
    client().away_until = server().away_until = world.now() + milliseconds(1500);
    world.run_for(milliseconds(1550));
    EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
    EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u);
  }
  // An endpoint that never comes back delays the end of a dead peer by at most four timeouts.
  client().away_until = world.now() + std::chrono::hours(1);
  world.run_for(milliseconds(4 * 500 + 200));
  EXPECT_EQ(machine(kA).census().peers, 1u);
  EXPECT_EQ(machine(kA).sessions(), 0u);
}

TEST_F(ManagementTest, liveness__an_endpoint_that_hears_nothing_does_not_delay_the_death) {
  connect_and_settle();
  world.crash(kB);
  client().lag_max = milliseconds(10);
  world.run_for(milliseconds(560));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
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

// B may learn of A's new run twice: from A's request, whose reply is lost, and from A's reply to a request of B after B
// has detected the end of the old run. A then knows one of B's two relations, and both ends must use that one.
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
  request[8] ^= std::byte{0xff};  // another run, from a forged address of the server
  const size_t pings = world.sent_of_kind(wire::ManagementKind::kPing);
  world.inject(world.host(kA).address, kB, request);
  world.run_for(milliseconds(5));
  EXPECT_EQ(machine(kB).counters().cookies, 2u);  // the forger does not receive the second cookie
  EXPECT_EQ(server().requests_seen, 1u);
  EXPECT_EQ(world.sent_of_kind(wire::ManagementKind::kPing), pings);
  world.run_for(milliseconds(500));
  EXPECT_EQ(client().client.size(), 1u);
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
  server().iteration = 41;  // the loop is in a callback and stays there
  EXPECT_EQ(ask(), PeerLiveness::kInCallback);
  EXPECT_EQ(ask(), PeerLiveness::kInCallback);
  server().iteration = 42;
  EXPECT_EQ(ask(), PeerLiveness::kIdle);

  // The first sample is in a callback and the second one elsewhere, so the loop turns.
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
  world.cut.insert({kB, kA});  // the server's disconnect is lost
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  world.run_for(milliseconds(10));
  world.cut.clear();
  machine(kA).ask_liveness(client().name, key, world.now());
  world.run_for(milliseconds(15));
  const bool told = count(client(), ControlEvent::Kind::kDisconnected) == 1 ||
                    client().log.back().liveness == PeerLiveness::kNoSession;
  EXPECT_TRUE(told);
}

TEST_F(ManagementTest, ask_liveness__repeats_at_growing_intervals_for_four_liveness_timeouts) {
  const uint32_t key = connect_and_settle();
  world.drops = {wire::ManagementKind::kAnswer};
  const Duration begin = world.now();
  machine(kA).ask_liveness(client().name, key, begin);
  const auto asked_after = [&](Duration time) {
    world.run_for(begin + time - world.now());
    return world.sent_of_kind(wire::ManagementKind::kAsk);
  };
  EXPECT_EQ(asked_after(milliseconds(12)), 2u);
  EXPECT_EQ(asked_after(milliseconds(29)), 2u);
  EXPECT_EQ(asked_after(milliseconds(35)), 3u);
  const size_t in_a_second = asked_after(milliseconds(1000));
  EXPECT_NEAR(static_cast<double>(in_a_second), 13, 1);  // in the end a question every 100 ms
  EXPECT_NEAR(static_cast<double>(asked_after(milliseconds(2000))), static_cast<double>(in_a_second) + 10, 1);
  const size_t in_all = asked_after(milliseconds(2200));
  EXPECT_EQ(asked_after(milliseconds(5000)), in_all);
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
  EXPECT_EQ(machine(kB).census().peers, 0u);
}

/// A hand-written peer of one machine.
class Stranger {
 public:
  Stranger(Management& machine, Duration now) : machine_(machine), now_(now) {}

  static wire::ManagementMessage request(uint64_t run, uint64_t token, uint8_t version = wire::kVersion) {
    wire::ManagementMessage m;
    m.kind = wire::ManagementKind::kConnectRequest;
    m.sender_run = run;
    m.token = token;
    m.version_min = m.version_max = version;
    m.to_endpoint = kServer;
    m.terms.transport = {'u', 'd', 'p'};
    m.terms.transport_bytes = 3;
    m.terms.window = 1;
    m.terms.payload_bytes_max = 512;
    m.terms.session_key = static_cast<uint32_t>(token);
    return m;
  }
  /// Sends a message to the machine and returns the answer. The machine sends at most one datagram, and none to other
  /// addresses.
  std::optional<wire::ManagementMessage> say(const std::string& from, const wire::ManagementMessage& m) {
    wire::ManagementBytes bytes;
    wire::encode_management(m, bytes);
    machine_.on_datagram(from, bytes.view(), now_);
    machine_.on_time(now_);
    std::optional<wire::ManagementMessage> answer;
    for (const Management::Datagram& datagram : machine_.datagrams()) {
      EXPECT_FALSE(answer.has_value());
      EXPECT_EQ(datagram.to, from);
      EXPECT_LE(datagram.content.size, bytes.size);
      EXPECT_EQ(wire::parse_management(datagram.content.view(), answer.emplace()), wire::ManagementDrop::kNone);
    }
    machine_.datagrams().clear();
    return answer;
  }
  /// Sends a request, and sends it again with the cookie from the answer.
  std::optional<wire::ManagementMessage> knock(const std::string& from, uint64_t run, uint64_t token) {
    auto m = request(run, token);
    const auto cookie = say(from, m);
    if (!cookie || cookie->kind != wire::ManagementKind::kCookie) return cookie;
    m.cookie = cookie->cookie;
    return say(from, m);
  }
  /// Accepts all requests that the endpoint has received, and returns their number.
  size_t accept_all() {
    size_t asked = 0;
    for (auto& notice : std::exchange(machine_.notices(), {})) {
      if (notice.event.kind != ControlEvent::Kind::kConnectRequest) continue;
      SessionTerms terms;
      terms.transport = "udp";
      terms.session_key = next_key_++;
      terms.payload_bytes_max = 512;
      terms.window = terms.credits = 1;
      EXPECT_TRUE(machine_.answer_connect(notice.to, notice.event.token, {}, terms, now_));
      asked++;
    }
    return asked;
  }
  void pass(Duration time) {
    now_ += time;
    machine_.on_time(now_);
    machine_.datagrams().clear();
  }

 private:
  Management& machine_;
  Duration now_;
  uint32_t next_key_ = 1000;
};

TEST_F(ManagementTest, cookie__before_its_echo_nothing_is_kept_and_no_endpoint_is_asked) {
  Stranger stranger(machine(kB), world.now());
  for (uint64_t i = 1; i <= 1000; i++) {
    const auto answer =
        stranger.say("10.9." + std::to_string(i / 250) + "." + std::to_string(i % 250) + ":1", Stranger::request(i, i));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->kind, wire::ManagementKind::kCookie);
    EXPECT_EQ(answer->receiver_run, i);
    EXPECT_EQ(answer->token, i);
  }
  EXPECT_EQ(machine(kB).counters().cookies, 1000u);
  EXPECT_EQ(machine(kB).census().peers, 0u);
  EXPECT_EQ(machine(kB).sessions(), 0u);
  EXPECT_TRUE(machine(kB).notices().empty());
  EXPECT_EQ(machine(kB).next_deadline(), Duration::max());
  machine(kB).check_invariants();
}

TEST_F(ManagementTest, cookie__is_bound_to_address_token_and_run_and_expires) {
  Stranger stranger(machine(kB), world.now());
  const std::string here = "10.9.9.9:1";
  auto request = Stranger::request(5, 6);
  request.cookie = stranger.say(here, request)->cookie;
  const auto is_refused = [&](const std::string& from, wire::ManagementMessage m) {
    const auto answer = stranger.say(from, m);
    return answer && answer->kind == wire::ManagementKind::kCookie && machine(kB).census().peers == 0;
  };
  EXPECT_TRUE(is_refused("10.9.9.9:2", request));
  EXPECT_TRUE(is_refused("10.9.9.8:1", request));
  auto other = request;
  other.token++;
  EXPECT_TRUE(is_refused(here, other));
  other = request;
  other.sender_run++;
  EXPECT_TRUE(is_refused(here, other));
  other = request;
  other.cookie ^= 1;
  EXPECT_TRUE(is_refused(here, other));
  stranger.pass(2 * Cookies::kKeyLife);
  EXPECT_TRUE(is_refused(here, request));
  request.cookie = stranger.say(here, request)->cookie;
  stranger.pass(Cookies::kKeyLife);  // the key has changed, and the previous one is still valid
  EXPECT_FALSE(stranger.say(here, request));
  EXPECT_EQ(stranger.accept_all(), 1u);
}

TEST(Cookies, expire_after_two_key_lives_at_the_latest_whenever_they_are_looked_at) {
  uint64_t randoms = 0;
  Cookies cookies([&randoms] { return ++randoms; });
  const Duration begin = std::chrono::seconds(100), instant = milliseconds(1);
  const uint64_t cookie = cookies.make("10.9.9.9:1", 2, 3, begin);
  const auto is_good = [&](Duration age) { return cookies.is_good(cookie, "10.9.9.9:1", 2, 3, begin + age); };
  EXPECT_TRUE(is_good(Cookies::kKeyLife - instant));
  EXPECT_TRUE(is_good(2 * Cookies::kKeyLife - instant));
  EXPECT_FALSE(is_good(2 * Cookies::kKeyLife));
}

TEST_F(ManagementTest, cookie__lost_or_late_delays_the_session_only) {
  world.drops = {wire::ManagementKind::kCookie};
  const uint32_t key = world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(30));
  EXPECT_EQ(server().requests_seen, 0u);
  world.drops.clear();
  world.run_for(milliseconds(100));
  EXPECT_TRUE(client().client.contains(key));
  world.expect_settled();
}

// A server that changes its cookies all the time must not make its client send faster than without them.
TEST_F(ManagementTest, cookie__floods_are_not_echoed) {
  world.drops = {wire::ManagementKind::kCookie};
  world.connect(kA, kClient, kB, kServer);
  world.run_for(milliseconds(1));
  wire::ManagementMessage cookie;
  ASSERT_EQ(wire::parse_management(world.last_of_kind(wire::ManagementKind::kCookie), cookie),
            wire::ManagementDrop::kNone);
  const size_t before = world.host(kA).datagrams_sent;
  for (int i = 0; i < 1000; i++) {
    cookie.cookie++;
    wire::ManagementBytes bytes;
    wire::encode_management(cookie, bytes);
    world.inject(world.host(kB).address, kA, {bytes.view().begin(), bytes.view().end()});
  }
  world.run_for(std::chrono::microseconds(1));
  EXPECT_LE(world.host(kA).datagrams_sent - before, 5u);
}

TEST_F(ManagementTest, bytes__no_address_is_sent_more_than_it_has_sent) {
  world.connect(kA, kClient, kB, kServer);
  connect_and_settle();
  machine(kA).ask_liveness(client().name, client().client.begin()->first, world.now());
  world.run_for(milliseconds(300));
  world.disconnect(kA, kClient, client().client.begin()->first, true);
  world.run_for(milliseconds(20));
  // All kinds of messages that were sent, unchanged and with other runs and tokens, to a server that accepts sessions,
  // from forged addresses. The machines also send their retransmissions meanwhile.
  using Kind = wire::ManagementKind;
  size_t kinds = 0;
  for (const Kind kind : {Kind::kConnectRequest, Kind::kConnectReply, Kind::kCookie, Kind::kConfirm, Kind::kDisconnect,
                          Kind::kDisconnectAck, Kind::kPing, Kind::kPong, Kind::kAsk, Kind::kAnswer}) {
    const auto sent = world.last_of_kind(kind);
    if (sent.empty()) continue;
    kinds++;
    for (const size_t to : {kA, kB}) {
      for (int change = 0; change < 4; change++) {
        auto bytes = sent;
        if (change & 1) bytes[8] ^= std::byte{0x55};   // sender's run
        if (change & 2) bytes[24] ^= std::byte{0x55};  // token
        world.inject("10.9.9.9:" + std::to_string(static_cast<int>(kind)), to, bytes);
        world.run_for(milliseconds(3));
      }
    }
  }
  EXPECT_EQ(kinds, 10u);
  world.run_for(std::chrono::seconds(20));
  size_t strangers = 0;
  for (const auto& [address, bytes] : world.bytes_to) {
    if (!address.starts_with("10.9.")) continue;
    strangers++;
    EXPECT_LE(bytes, world.bytes_from[address]) << address;
  }
  EXPECT_GT(strangers, 3u);
}

class ManyAtOneAddress : public ManagementTest {
 protected:
  static ManagementOptions options() {
    ManagementOptions o;
    o.peers_per_address_max = 100;
    o.sessions_per_address_max = 150;
    o.asked_per_address_max = 120;
    return o;
  }
  ManyAtOneAddress() : ManagementTest(options()), stranger(machine(kB), world.now()) {}
  Stranger stranger;
};

TEST_F(ManyAtOneAddress, limits__a_hundred_processes_connect_and_the_next_is_refused_with_the_reason) {
  for (uint64_t i = 1; i <= 100; i++) {
    EXPECT_FALSE(stranger.knock("10.9.9.9:" + std::to_string(i), i, i)) << i;
    EXPECT_EQ(stranger.accept_all(), 1u);
    machine(kB).datagrams().clear();
  }
  auto refusal = stranger.knock("10.9.9.9:101", 101, 101);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->refusal, wire::Refusal::kPeersPerAddress);
  EXPECT_EQ(refusal->code, Code::kQueueFull);
  EXPECT_FALSE(stranger.knock("10.9.9.10:1", 102, 102));  // a request from another address
  EXPECT_EQ(stranger.accept_all(), 1u);
  machine(kB).datagrams().clear();
  machine(kB).check_invariants();

  for (uint64_t i = 1; i <= 50; i++) {  // more sessions of the known processes
    EXPECT_FALSE(stranger.say("10.9.9.9:" + std::to_string(i), Stranger::request(i, 1000 + i))) << i;
    EXPECT_EQ(stranger.accept_all(), 1u);
    machine(kB).datagrams().clear();
  }
  refusal = stranger.say("10.9.9.9:1", Stranger::request(1, 2000));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->refusal, wire::Refusal::kSessionsPerAddress);
  EXPECT_EQ(refusal->code, Code::kQueueFull);
  EXPECT_EQ(machine(kB).counters().over_limit, 2u);

  for (int i = 0; i < 200; i++) {  // the processes are gone, and new ones are accepted
    stranger.pass(milliseconds(5));
    machine(kB).notices().clear();
  }
  machine(kB).check_invariants();
  EXPECT_EQ(machine(kB).sessions(), 0u);
  EXPECT_FALSE(stranger.knock("10.9.9.9:2000", 2000, 2000));
  EXPECT_EQ(stranger.accept_all(), 1u);
}

TEST_F(ManyAtOneAddress, limits__count_by_64_bits_of_an_ipv6_address) {
  const auto address = [](uint64_t net, uint64_t i) {
    char text[64];
    snprintf(text, sizeof(text), "[2001:db8:0:%x::%x]:1", static_cast<unsigned>(net), static_cast<unsigned>(i));
    return std::string(text);
  };
  for (uint64_t i = 1; i <= 100; i++) {
    EXPECT_FALSE(stranger.knock(address(1, i), i, i)) << i;
    EXPECT_EQ(stranger.accept_all(), 1u);
    machine(kB).datagrams().clear();
  }
  EXPECT_EQ(stranger.knock(address(1, 101), 101, 101)->refusal, wire::Refusal::kPeersPerAddress);
  EXPECT_FALSE(stranger.knock(address(2, 1), 102, 102));
}

TEST_F(ManyAtOneAddress, limits__requests_beyond_an_addresss_share_of_an_endpoint_wait) {
  // The endpoint answers no request.
  for (uint64_t i = 1; i <= 100; i++) EXPECT_FALSE(stranger.knock("10.9.9.9:" + std::to_string(i), i, i));
  for (uint64_t i = 1; i <= 30; i++) EXPECT_FALSE(stranger.say("10.9.9.9:1", Stranger::request(1, 1000 + i)));
  EXPECT_EQ(machine(kB).sessions(), 120u);
  EXPECT_EQ(machine(kB).counters().over_limit, 10u);
  EXPECT_EQ(stranger.accept_all(), 120u);
  machine(kB).datagrams().clear();
  machine(kB).check_invariants();
  EXPECT_FALSE(stranger.say("10.9.9.9:1", Stranger::request(1, 1030)));
  EXPECT_EQ(stranger.accept_all(), 1u);
}

TEST_F(ManagementTest, limits__a_port_begins_few_relations) {
  Stranger stranger(machine(kB), world.now());
  const size_t at_a_port = ManagementOptions{}.peers_per_port_max;
  for (uint64_t run = 1; run <= 100; run++) {
    auto m = Stranger::request(run, run);
    wire::ManagementBytes bytes;
    wire::encode_management(m, bytes);
    machine(kB).on_datagram("10.9.9.9:1", bytes.view(), world.now());
    machine(kB).on_time(world.now());
    for (const auto& datagram : machine(kB).datagrams()) {
      wire::ManagementMessage answer;
      ASSERT_EQ(wire::parse_management(datagram.content.view(), answer), wire::ManagementDrop::kNone);
      if (answer.kind == wire::ManagementKind::kCookie) m.cookie = answer.cookie;
    }
    machine(kB).datagrams().clear();
    wire::encode_management(m, bytes);
    machine(kB).on_datagram("10.9.9.9:1", bytes.view(), world.now());
    machine(kB).on_time(world.now());
    machine(kB).datagrams().clear();
  }
  EXPECT_EQ(machine(kB).census().peers, at_a_port);
  machine(kB).check_invariants();
}

class Versions : public ManagementTest {
 protected:
  static ManagementOptions options() {
    ManagementOptions o;
    o.version_min = o.version_max = 2;
    return o;
  }
  Versions() : ManagementTest(options()) {}
};

/// Returns the bytes that the first generation sends. Its terms end after 94 bytes, and the following bytes are
/// arbitrary.
std::vector<std::byte> request_of_version_1(uint16_t endpoint) {
  std::vector<std::byte> bytes(256, std::byte{0xaa});
  const uint8_t head[] = {0x74, 0x72, 0x6e, 0x4d, 1, 1, 0, 1};  // magic, message version, kind, 256 bytes
  for (size_t i = 0; i < sizeof(head); i++) bytes[i] = static_cast<std::byte>(head[i]);
  const auto put = [&](size_t at, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  put(8, 0x1122, 8);     // sender's run
  put(16, 0, 8);         // receiver's run
  put(24, 0x3344, 8);    // token
  put(32, 0x0101, 2);    // versions
  put(34, endpoint, 2);  // server endpoint
  put(36, 3, 1);         // terms
  put(37, 0x706475, 3);  // "udp"
  put(53, 0, 1);
  put(118, 77, 4);    // session key
  put(122, 9, 2);     // endpoint
  put(124, 1024, 4);  // payload bytes
  put(128, 8, 1);     // window
  put(129, 0, 1);     // credits
  return bytes;
}

TEST_F(Versions, connect__version_1_is_refused_in_its_own_layout_with_our_version) {
  machine(kB).on_datagram("10.9.9.9:1", request_of_version_1(kServer), world.now());
  machine(kB).on_time(world.now());
  ASSERT_EQ(machine(kB).datagrams().size(), 1u);
  const auto reply = machine(kB).datagrams()[0].content.view();
  ASSERT_EQ(reply.size(), 41u);
  const auto at = [&](size_t i) { return static_cast<int>(reply[i]); };
  EXPECT_EQ(at(5), 2);   // kind
  EXPECT_EQ(at(6), 41);  // length
  EXPECT_EQ(at(8), 0);   // no run of our Nexus
  EXPECT_EQ(at(16), 0x22);
  EXPECT_EQ(at(24), 0x44);
  EXPECT_EQ(at(32), 9);  // the client's endpoint and key
  EXPECT_EQ(at(34), 77);
  EXPECT_EQ(at(38), static_cast<int>(Code::kRefused));
  EXPECT_EQ(at(39), 3);  // no common version
  EXPECT_EQ(at(40), 2);  // our highest version
  EXPECT_EQ(machine(kB).census().peers, 0u);
}

TEST_F(Versions, connect__a_server_of_version_1_is_named_with_both_numbers) {
  world.connect(kA, kClient, kB, kServer);
  const auto request = world.last_of_kind(wire::ManagementKind::kConnectRequest);
  // The request has the form of the first generation in the fields that the first generation reads.
  EXPECT_EQ(request.size(), 256u);
  EXPECT_EQ(static_cast<int>(request[32]), 2);
  EXPECT_EQ(static_cast<int>(request[33]), 2);
  std::vector<std::byte> refusal(request.begin(), request.begin() + 41);
  refusal[5] = std::byte{2};  // kind
  refusal[6] = std::byte{41};
  refusal[7] = std::byte{0};
  std::fill(refusal.begin() + 8, refusal.begin() + 16, std::byte{0});
  std::copy_n(request.begin() + 8, 8, refusal.begin() + 16);
  std::copy_n(request.begin() + 122, 2, refusal.begin() + 32);
  std::copy_n(request.begin() + 118, 4, refusal.begin() + 34);
  refusal[38] = static_cast<std::byte>(Code::kRefused);
  refusal[39] = std::byte{3};
  refusal[40] = std::byte{0};
  world.crash(kB);
  world.inject(world.host(kB).address, kA, refusal);
  world.run_for(milliseconds(1));
  ASSERT_EQ(client().log.size(), 1u);
  EXPECT_EQ(client().log[0].status.code(), Code::kRefused);
  const std::string_view text = client().log[0].status.message();
  EXPECT_NE(text.find("this side speaks up to version 2"), std::string_view::npos) << text;
  EXPECT_NE(text.find("the server up to version 1"), std::string_view::npos) << text;
}

TEST_F(Versions, connect__later_versions_are_refused_whatever_their_terms_mean) {
  auto request = request_of_version_1(kServer);
  request[32] = std::byte{3};
  request[33] = std::byte{5};
  request[128] = std::byte{255};  // our version knows no such window
  machine(kB).on_datagram("10.9.9.9:1", request, world.now());
  machine(kB).on_time(world.now());
  ASSERT_EQ(machine(kB).datagrams().size(), 1u);
  wire::ManagementMessage reply;
  ASSERT_EQ(wire::parse_management(machine(kB).datagrams()[0].content.view(), reply), wire::ManagementDrop::kNone);
  EXPECT_EQ(reply.refusal, wire::Refusal::kNoCommonVersion);
  EXPECT_EQ(reply.version_min, 2);
  EXPECT_EQ(reply.to_key, 77u);
  EXPECT_EQ(machine(kB).census().peers, 0u);
}

TEST_F(ManagementTest, liveness__data_counts_when_management_is_silent) {
  connect_and_settle();
  world.cut = {{kA, kB}, {kB, kA}};
  client().hears_data = server().hears_data = true;
  world.run_for(std::chrono::seconds(5));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 0u);
  EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u);
  // A few questions in each liveness timeout, but none while pings are answered.
  EXPECT_GE(count(client(), ControlEvent::Kind::kAskLife), 10u);
  EXPECT_LE(count(client(), ControlEvent::Kind::kAskLife), 50u);
  client().hears_data = false;
  world.run_for(milliseconds(600));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kPeerGone), 1u);
  EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 0u);
  world.cut.clear();
  world.run_for(milliseconds(300));
  EXPECT_EQ(count(server(), ControlEvent::Kind::kPeerGone), 1u);
  world.expect_settled();
}

TEST_F(ManagementTest, liveness__endpoints_are_not_asked_while_pings_are_answered) {
  connect_and_settle();
  world.run_for(std::chrono::seconds(5));
  EXPECT_EQ(count(client(), ControlEvent::Kind::kAskLife), 0u);
  EXPECT_EQ(count(server(), ControlEvent::Kind::kAskLife), 0u);
}

TEST_F(ManagementTest, ask_liveness__no_session_ends_the_clients_record) {
  const uint32_t key = connect_and_settle();
  const auto ask = [&] { machine(kA).ask_liveness(client().name, key, world.now()); };
  // The server's endpoint ends, its disconnect messages are lost, and it does not come back.
  world.drops = {wire::ManagementKind::kDisconnect};
  world.remove_endpoint(kB, kServer);
  ask();
  world.run_for(milliseconds(50));
  EXPECT_EQ(client().log.back().kind, ControlEvent::Kind::kLiveness);
  EXPECT_EQ(client().log.back().liveness, PeerLiveness::kNoSession);
  EXPECT_EQ(machine(kA).sessions(), 0u);
  machine(kA).check_invariants();
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

TEST_F(FewAllowed, strangers__with_cookies_cannot_fill_the_tables) {
  Stranger stranger(machine(kB), world.now());
  size_t refused = 0;
  for (uint64_t i = 1; i <= 1000; i++) {
    // The endpoint answers only some of the requests.
    const auto answer = stranger.knock("10." + std::to_string(i / 250) + ".9." + std::to_string(i % 250) + ":1", i, i);
    if (answer && answer->refusal == wire::Refusal::kNexusFull) refused++;
    if (i == 5) {
      EXPECT_EQ(stranger.accept_all(), 5u);
      machine(kB).datagrams().clear();
    }
  }
  EXPECT_LE(machine(kB).census().peers, 20u);
  EXPECT_LE(machine(kB).sessions(), 15u);
  EXPECT_EQ(machine(kB).counters().over_limit, 1000 - machine(kB).sessions());
  EXPECT_EQ(refused, 0u) << "the endpoint's limit was hit first";
  machine(kB).check_invariants();
}

/// They wait in the endpoint's memory until its loop runs, whatever becomes of the clients meanwhile.
TEST_F(FewAllowed, limits__requests_of_clients_that_are_gone_still_wait_for_the_endpoint) {
  Stranger stranger(machine(kB), world.now());
  for (uint64_t run = 1; run <= 50; run += 10) {
    for (uint64_t i = run; i < run + 10; i++) (void)stranger.knock("10.9.9." + std::to_string(i) + ":1", i, i);
    for (int i = 0; i < 200; i++) stranger.pass(milliseconds(5));
    EXPECT_EQ(machine(kB).sessions(), 0u);
    machine(kB).check_invariants();
  }
  EXPECT_EQ(machine(kB).counters().over_limit, 40u);
  EXPECT_EQ(stranger.accept_all(), 10u);
  machine(kB).datagrams().clear();
  EXPECT_FALSE(stranger.knock("10.9.9.60:1", 60, 60));
  EXPECT_EQ(stranger.accept_all(), 1u);
  EXPECT_EQ(machine(kB).sessions(), 1u);
}

TEST_F(FewAllowed, strangers__full_nexus_refuses_with_the_reason) {
  Stranger stranger(machine(kB), world.now());
  for (uint64_t i = 1; i <= 20; i++) {
    EXPECT_FALSE(stranger.knock("10.9.9." + std::to_string(i) + ":1", i, i));
    EXPECT_EQ(stranger.accept_all(), 1u);
    machine(kB).datagrams().clear();
  }
  const auto answer = stranger.knock("10.9.9.21:1", 21, 21);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->refusal, wire::Refusal::kNexusFull);
  EXPECT_EQ(answer->code, Code::kQueueFull);
}

}  // namespace
}  // namespace tern::nexus::test
