// The management machine and a peer that leaves the address of its relation but lives on, as behind a NAT whose mapping
// has changed, or because it wants this side to send to somebody else. In virtual time.
#include "management_world.h"

namespace tern::nexus::test {
namespace {

using std::chrono::seconds;
using Kind = wire::ManagementKind;

constexpr uint16_t kServer = 1, kClient = 2;
constexpr size_t kA = 0, kB = 1;  // the hosts of the client and of the server
constexpr const char* kMovedTo = "10.9.9.9:1";
constexpr size_t kPingBytes = 32;
constexpr size_t kPingsBeforeMaxBytes = 32 * kPingBytes;  // to an address that answers none
constexpr Duration kTimeout = ManagementOptions{}.liveness_timeout;

class ManagementAddress : public ::testing::Test {
 protected:
  ManagementAddress() {
    world.add_endpoint(kA, kClient);
    world.add_endpoint(kB, kServer);
    first = connect();
  }
  uint32_t connect() {
    const uint32_t key = world.connect(kA, kClient, kB, kServer);
    world.run_for(milliseconds(10));
    EXPECT_TRUE(client().client.contains(key));
    return key;
  }
  void move() { world.host(kA).moved_to = kMovedTo; }
  /// The client moves, and the server sends as many pings in vain as it does before it takes the address for left.
  void move_and_wait() {
    move();
    world.run_for(2 * kTimeout);
  }
  /// A ping in the client's name, made of the server's answer to one.
  std::vector<std::byte> ping_of_client() {
    wire::ManagementMessage m;
    EXPECT_EQ(wire::parse_management(world.last_of_kind(Kind::kPong), m), wire::ManagementDrop::kNone);
    std::swap(m.sender_run, m.receiver_run);
    m.kind = Kind::kPing;
    wire::ManagementBytes bytes;
    wire::encode_management(m, bytes);
    return {bytes.view().begin(), bytes.view().end()};
  }
  size_t bytes_to_old_address() { return world.bytes_to[world.host(kA).address]; }
  ModelEndpoint& client() { return world.endpoint(kA, kClient); }
  ModelEndpoint& server() { return world.endpoint(kB, kServer); }
  Management& machine(size_t i) { return *world.host(i).machine; }
  World world{7, 2};
  uint32_t first = 0;
};

TEST_F(ManagementAddress, left_by_a_living_peer_gets_one_ping_in_a_timeout) {
  const size_t before = bytes_to_old_address();
  move();
  world.run_for(40 * kTimeout);
  EXPECT_LE(bytes_to_old_address() - before, kPingsBeforeMaxBytes + 40 * kPingBytes);
  EXPECT_EQ(client().client.size(), 1u);
  EXPECT_EQ(server().server.size(), 1u);
  machine(kB).check_invariants();
  world.crash(kA);
  world.run_for(kTimeout * 17 / 16);  // the bound of clause 7.5.2c
  EXPECT_TRUE(server().server.empty());
  EXPECT_EQ(machine(kB).sessions(), 0u);
}

TEST_F(ManagementAddress, left_gets_no_more_bytes_than_keep_the_peer_alive) {
  move_and_wait();
  const auto ping = ping_of_client();
  world.crash(kA);
  const size_t before = bytes_to_old_address(), spent_before = world.bytes_from[kMovedTo];
  for (int i = 0; i < 100; i++) {
    world.inject(kMovedTo, kB, ping);
    world.run_for(kTimeout * 9 / 10);
  }
  EXPECT_EQ(server().server.size(), 1u);
  EXPECT_LE(bytes_to_old_address() - before, world.bytes_from[kMovedTo] - spent_before);
}

TEST_F(ManagementAddress, left_does_not_keep_a_relation_without_sessions) {
  move_and_wait();
  const auto ping = ping_of_client();
  world.disconnect(kA, kClient, first, true);
  for (int i = 0; i < 30; i++) {  // the client's relation ends in this time
    world.inject(kMovedTo, kB, ping);
    world.run_for(kTimeout * 4 / 5);
  }
  EXPECT_EQ(machine(kB).sessions(), 0u);
  EXPECT_EQ(machine(kB).census().peers, 0u);
  const size_t before = bytes_to_old_address();
  world.inject(kMovedTo, kB, ping);
  world.run_for(seconds(20));
  EXPECT_EQ(bytes_to_old_address(), before);
}

TEST_F(ManagementAddress, left_gets_no_replies_and_no_questions_about_new_sessions) {
  move_and_wait();
  const size_t before = bytes_to_old_address();
  world.drops = {Kind::kConfirm};
  for (int i = 0; i < 50; i++) connect();  // the answer to a repeated request goes to where it came from
  EXPECT_EQ(client().client.size(), 51u);
  world.run_for(20 * kTimeout);
  EXPECT_LE(bytes_to_old_address() - before, 22 * kPingBytes);
  EXPECT_EQ(server().server.size(), 51u);
  machine(kB).check_invariants();
}

TEST_F(ManagementAddress, left_gets_no_disconnects_and_their_records_end) {
  move_and_wait();
  const uint32_t second = connect();
  const size_t before = bytes_to_old_address();
  const Duration began_at = world.now();
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  world.run_for(seconds(60));
  EXPECT_LE(bytes_to_old_address() - before, ((world.now() - began_at) / kTimeout + 1) * kPingBytes);
  EXPECT_EQ(machine(kB).sessions(), 1u);
  EXPECT_TRUE(client().client.contains(second));
}

TEST_F(ManagementAddress, that_answers_again_gets_all_messages_again) {
  move_and_wait();
  world.host(kA).moved_to.clear();
  world.run_for(kTimeout);
  world.disconnect(kB, kServer, server().server.begin()->first, false);
  world.run_for(milliseconds(5));  // the first disconnect arrives
  EXPECT_TRUE(client().client.empty());
  world.expect_settled();
}

/// Both sides take the other one's address for left, because only data gets through for a long time.
TEST_F(ManagementAddress, that_seems_left_to_both_sides_is_found_again) {
  client().hears_data = server().hears_data = true;
  world.cut = {{kA, kB}, {kB, kA}};
  world.run_for(seconds(10));
  world.cut.clear();
  world.run_for(kTimeout);
  client().hears_data = server().hears_data = false;
  world.run_for(seconds(10));
  EXPECT_EQ(client().client.size(), 1u);
  EXPECT_EQ(server().server.size(), 1u);
  world.expect_settled();
}

}  // namespace
}  // namespace tern::nexus::test
