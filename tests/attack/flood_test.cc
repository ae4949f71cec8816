// Floods from outside: connect requests and data packets of strangers.
// The largest loss of an honest client beside them: no call fails, no session ends, and a new one opens.
#include <tern/transport/udp.h>

#include "attack/honest.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

/// More than a server can answer: its management socket overflows and drops pings of honest peers, too.
constexpr uint64_t kFloodPerSecond = 200'000;
constexpr uint64_t kFloodDatagrams = 2 * kFloodPerSecond;

class Flood : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(honest_.ask(kEcho, 32).status.ok());
    honest_.start_calls();
  }
  void TearDown() override {
    ASSERT_TRUE(honest_.reaches(honest_.ok() + 200));
    const auto losses = honest_.stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
  }
  Server<Udp> server_;
  Honest<Udp> honest_{server_.uri()};
  const Address management_ = Address::parse(server_.uri());
  Random random_{1};
};

/// All requests look as if they came from one process that opens many sessions.
TEST_F(Flood, connect_requests_of_one_process) {
  Socket stranger({Address::parse("127.0.0.3").ip, 0});
  const uint64_t run = random_.next();
  std::unique_ptr<Honest<Udp>> newcomer;
  at_rate(kFloodDatagrams, kFloodPerSecond, [&](uint64_t round) {
    ManagementMessage request = connect_request(random_, stranger.address());
    request.sender_run = run;
    stranger.send(management_, encoded(request));
    if (round % 16 == 0) stranger.drain();
    if (round == kFloodDatagrams / 2) newcomer = std::make_unique<Honest<Udp>>(server_.uri(), "tern://127.0.0.4:0");
  });
  EXPECT_TRUE(newcomer->ask(kEcho, 32).status.ok());
}

/// The requests look as if they came from many processes behind one address.
TEST_F(Flood, connect_requests_of_one_address) {
  Socket stranger({Address::parse("127.0.0.3").ip, 0});
  std::unique_ptr<Honest<Udp>> newcomer;
  at_rate(kFloodDatagrams, kFloodPerSecond, [&](uint64_t round) {
    stranger.send(management_, encoded(connect_request(random_, stranger.address())));
    if (round % 16 == 0) stranger.drain();
    if (round == kFloodDatagrams / 2) newcomer = std::make_unique<Honest<Udp>>(server_.uri(), "tern://127.0.0.4:0");
  });
  EXPECT_TRUE(newcomer->ask(kEcho, 32).status.ok());
}

TEST_F(Flood, connect_requests_of_forged_addresses) {
  Socket stranger({INADDR_ANY, 0});
  std::unique_ptr<Honest<Udp>> newcomer;
  at_rate(kFloodDatagrams, kFloodPerSecond, [&](uint64_t round) {
    const uint32_t source = 0x7f000000 | (0x10000 + random_.below(0xe00000));
    stranger.send_as(source, management_, encoded(connect_request(random_, {source, 9})));
    if (round == kFloodDatagrams / 2) newcomer = std::make_unique<Honest<Udp>>(server_.uri(), "tern://127.0.0.4:0");
  });
  EXPECT_TRUE(newcomer->ask(kEcho, 32).status.ok());
}

/// The stranger returns the server's cookie, which proves its address, and then starts again.
TEST_F(Flood, connect_requests_with_cookies) {
  Socket stranger({Address::parse("127.0.0.3").ip, 0});
  constexpr uint32_t kAtOnce = 64;
  std::vector<ManagementMessage> requests;
  for (uint32_t i = 0; i < kAtOnce; i++) requests.push_back(connect_request(random_, stranger.address()));
  at_rate(kFloodDatagrams, kFloodPerSecond, [&](uint64_t round) {
    for (auto bytes = stranger.receive(); !bytes.empty(); bytes = stranger.receive()) {
      ManagementMessage answer;
      if (wire::parse_management(bytes, answer) != wire::ManagementDrop::kNone) continue;
      for (ManagementMessage& request : requests) {
        if (request.token != answer.token) continue;
        if (answer.kind == ManagementKind::kConnectReply) request = connect_request(random_, stranger.address());
        if (answer.kind == static_cast<ManagementKind>(10)) request.cookie = answer.cookie;
      }
    }
    stranger.send(management_, encoded(requests[round % kAtOnce]));
  });
  Honest<Udp> newcomer(server_.uri(), "tern://127.0.0.4:0");
  EXPECT_TRUE(newcomer.ask(kEcho, 32).status.ok());
}

TEST_F(Flood, data_packets_with_random_keys) {
  Hostile hostile(server_.uri(), Address::parse("127.0.0.3").ip);
  const HostileSession session = *hostile.connect();  // names the data address
  constexpr std::array kKinds = {Kind::kRequest, Kind::kRfr,    Kind::kProbe,
                                 Kind::kCancel,  Kind::kReport, Kind::kPathProbe};
  at_rate(50'000, 50'000, [&](uint64_t) {
    const uint64_t bits = random_.next(), more = random_.next();
    hostile.send_header(session.server_data,
                        wire::client_header(kKinds[bits % kKinds.size()], wire::kFirst, static_cast<uint32_t>(more),
                                            static_cast<uint32_t>(more >> 32), static_cast<uint32_t>(bits >> 32),
                                            wire::kNoDeadline, kEcho, 32),
                        32);
  });
}

TEST_F(Flood, garbage_datagrams_to_both_ports) {
  Hostile hostile(server_.uri(), Address::parse("127.0.0.3").ip);
  const HostileSession session = *hostile.connect();
  std::vector<std::byte> bytes(1400);
  at_rate(20'000, 40'000, [&](uint64_t round) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t word = random_.next();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    const auto part = std::span(bytes).first(random_.below(1400));
    hostile.data.send(round % 2 == 0 ? session.server_data : management_, part);
  });
}

}  // namespace
}  // namespace attack
