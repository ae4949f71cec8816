// Floods of connect requests against a machine whose thread spends time on each datagram and whose socket is bounded,
// in virtual time. Relations of honest peers survive, and new honest clients can connect.
#include <functional>

#include "management_world.h"

namespace tern::nexus::test {
namespace {

constexpr uint16_t kServer = 1, kClient = 2;
constexpr size_t kHonest = 4, kVictim = kHonest;
/// A management thread takes 2 to 3 us to receive or send a datagram. This value is that of a slow machine.
constexpr Duration kDatagramTime = std::chrono::microseconds(6);

class Flood : public ::testing::Test {
 protected:
  Flood() : world(11, kHonest + 1) {
    world.add_endpoint(kVictim, kServer);
    for (size_t i = 0; i < kHonest; i++) world.add_endpoint(i, kClient);
    for (size_t i = 0; i + 1 < kHonest; i++) world.connect(i, kClient, kVictim, kServer);
    world.run_for(milliseconds(50));
    EXPECT_EQ(server().server.size(), kHonest - 1);
    world.host(kVictim).datagram_time = kDatagramTime;
  }
  ModelEndpoint& server() { return world.endpoint(kVictim, kServer); }

  wire::ManagementMessage request() {
    wire::ManagementMessage m;
    m.kind = wire::ManagementKind::kConnectRequest;
    m.sender_run = world.random()() | 1;
    m.token = world.random()();
    m.version_min = m.version_max = wire::kVersion;
    m.to_endpoint = kServer;
    m.terms.transport = {'u', 'd', 'p'};
    m.terms.transport_bytes = 3;
    m.terms.window = 1;
    m.terms.payload_bytes_max = 512;
    m.terms.session_key = static_cast<uint32_t>(world.random()());
    return m;
  }
  void send(const std::string& from, const wire::ManagementMessage& m) {
    wire::ManagementBytes bytes;
    wire::encode_management(m, bytes);
    world.inject(from, kVictim, {bytes.view().begin(), bytes.view().end()});
  }
  /// Sends 10 000 requests a second from `from(i)` for 1.5 s. Another honest client connects meanwhile.
  void run(const std::function<std::string(size_t)>& from) {
    constexpr size_t kRequests = 15'000;
    for (size_t i = 0; i < kRequests; i++) {
      sent_++;
      send(from(i), request());
      world.run_for(std::chrono::microseconds(100));
      if (i == kRequests / 3) late_ = world.connect(kHonest - 1, kClient, kVictim, kServer);
    }
  }
  void expect_honest_peers_unharmed() {
    for (size_t i = 0; i < kHonest; i++) {
      const ModelEndpoint& client = world.endpoint(i, kClient);
      EXPECT_EQ(client.client.size(), 1u) << i;
      EXPECT_TRUE(client.gone.empty()) << i;
    }
    EXPECT_TRUE(world.endpoint(kHonest - 1, kClient).client.contains(late_));
    EXPECT_EQ(world.host(kVictim).lost_at_socket, 0u);
    world.host(kVictim).machine->check_invariants();
  }
  /// Makes the strangers echo cookies. `confirms`: they also confirm their sessions.
  void echo_cookies(bool confirms) {
    world.on_stranger = [this, confirms](const std::string& to, std::span<const std::byte> bytes) {
      wire::ManagementMessage m;
      ASSERT_EQ(wire::parse_management(bytes, m), wire::ManagementDrop::kNone);
      if (m.kind == wire::ManagementKind::kCookie) {
        wire::ManagementMessage again = request();
        again.sender_run = m.receiver_run;
        again.token = m.token;
        again.terms.session_key = m.to_key;
        again.cookie = m.cookie;
        echoed_++;
        send(to, again);
      }
      if (m.kind == wire::ManagementKind::kConnectReply && m.code == Code::kOk) {
        accepted_++;
        if (!confirms) return;
        wire::ManagementMessage confirm;
        confirm.kind = wire::ManagementKind::kConfirm;
        confirm.sender_run = m.receiver_run;
        confirm.receiver_run = m.sender_run;
        confirm.token = m.token;
        confirm.to_endpoint = m.terms.endpoint_id;
        confirm.to_key = m.terms.session_key;
        confirm.from_key = m.to_key;
        confirm.from_client = true;
        send(to, confirm);
      }
    };
  }

  World world;
  size_t sent_ = 0, echoed_ = 0, accepted_ = 0;
  uint32_t late_ = 0;
};

TEST_F(Flood, of_forged_addresses_costs_one_small_answer_each) {
  const size_t before = world.host(kVictim).datagrams_sent;
  run([this](size_t) {
    const uint64_t random = world.random()();
    return "10." + std::to_string(100 + random % 100) + "." + std::to_string(random >> 8 & 255) + "." +
           std::to_string(random >> 16 & 255) + ":31850";
  });
  expect_honest_peers_unharmed();
  // One datagram for each request, and the datagrams that honest peers get meanwhile.
  EXPECT_LE(world.host(kVictim).datagrams_sent - before, sent_ + 1000);
  EXPECT_EQ(server().server.size(), kHonest);
  EXPECT_EQ(world.host(kVictim).machine->census().peers, kHonest);
  for (const auto& [address, bytes] : world.bytes_to) {
    if (!world.bytes_from.contains(address)) continue;
    EXPECT_LE(bytes, world.bytes_from[address]) << address;
  }
}

TEST_F(Flood, of_a_thousand_addresses_that_echo_cookies_resets_no_session) {
  echo_cookies(false);
  run([](size_t i) {
    return "10.200." + std::to_string(i / 250 % 4) + "." + std::to_string(i % 250) + ":" + std::to_string(1 + i / 1000);
  });
  EXPECT_GT(echoed_, sent_ / 2);
  EXPECT_GT(accepted_, 1000u);
  expect_honest_peers_unharmed();
}

TEST_F(Flood, of_one_address_that_confirms_takes_its_share_only) {
  echo_cookies(true);
  run([](size_t i) { return "10.200.0.1:" + std::to_string(1 + i % 60000); });
  EXPECT_GT(accepted_, 500u);
  expect_honest_peers_unharmed();
  EXPECT_LE(world.host(kVictim).machine->census().peers, kHonest + ManagementOptions{}.peers_per_address_max);
  EXPECT_GT(world.host(kVictim).machine->counters().refused, 1000u);
}

}  // namespace
}  // namespace tern::nexus::test
