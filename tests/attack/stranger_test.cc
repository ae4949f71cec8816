// Strangers forge and replay packets of a session. They may have sessions of their own with the same server.
// The honest client loses nothing: no call fails, no handler runs twice, and its credits stay.
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <tern/transport/udp.h>

#include "attack/honest.h"
#include "rpc/rpc_core.h"
#include "transport/udp/udp.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

/// The address of an endpoint's data path.
Address data_address(tern::Rpc<Udp>& rpc) {
  wire::ManagementTerms terms;
  const auto bytes = rpc.core().transport().address();
  terms.address_bytes = static_cast<uint8_t>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), terms.address.begin());
  return address_in(terms);
}

class Stranger : public testing::Test {
 protected:
  struct Keys {
    uint32_t server = 0, client = 0;
    uint32_t credits = 0;
  };
  void SetUp() override {
    ASSERT_TRUE(honest_.ask(kEcho, 32).status.ok());
    server_data_ = data_address(server_.rpc());
    client_data_ = data_address(honest_.rpc());
    before_ = keys();
    honest_.start_calls();
  }
  void TearDown() override {
    ASSERT_TRUE(honest_.reaches(honest_.ok() + 200));
    const auto losses = honest_.stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
    EXPECT_EQ(server_.handled(), losses.ok + 1) << "handlers run at most once";
    EXPECT_GE(2 * keys().credits, before_.credits);
  }
  Keys keys() {
    Keys keys;
    honest_.in_loop([&] {
      tern::rpc::EndpointCore::of(honest_.rpc())
          .for_each_client_session([&](const tern::session::ClientSession& session) {
            keys = {session.remote_key(), session.local_key(), session.credit_limit()};
          });
    });
    return keys;
  }
  /// A packet of any kind with random numbers.
  void forge_to_server(uint32_t key, uint32_t number, size_t payload_bytes = 0) {
    constexpr std::array kKinds = {Kind::kRequest, Kind::kRfr,    Kind::kProbe,
                                   Kind::kCancel,  Kind::kReport, Kind::kPathProbe};
    const uint64_t bits = hostile_.random.next();
    hostile_.send_header(server_data_,
                         wire::client_header(kKinds[bits % kKinds.size()], bits & 8 ? wire::kFirst : 0, key, number,
                                             static_cast<uint32_t>(bits >> 32), bits >> 5 & 1, kEcho,
                                             static_cast<uint32_t>(hostile_.random.next()) & wire::kTokenMask),
                         payload_bytes);
  }
  void forge_to_client(uint32_t key, uint32_t number) {
    constexpr std::array kKinds = {Kind::kResponse, Kind::kCr, Kind::kCancelled, Kind::kPathReply};
    const uint64_t bits = hostile_.random.next();
    const Kind kind = kKinds[bits % kKinds.size()];
    hostile_.send_header(
        client_data_,
        wire::server_header(kind, bits & 8 ? wire::kFirst : 0, key, number, static_cast<uint32_t>(bits >> 32),
                            static_cast<uint32_t>(hostile_.random.next()), 0, 1, 0),
        kind == Kind::kCr ? 32 : 0);
  }

  Server<Udp> server_;
  Honest<Udp> honest_{server_.uri()};
  Hostile hostile_{server_.uri(), Address::parse("127.0.0.3").ip};
  Address server_data_, client_data_;
  Keys before_;
};

/// A stranger guesses other sessions' keys from its own keys.
TEST_F(Stranger, forges_with_keys_near_its_own) {
  std::vector<uint32_t> own;
  for (int i = 0; i < 3; i++) own.push_back(hostile_.open().server_key());
  at_rate(4096, 20'000, [&](uint64_t round) {
    // It tries small indices with every generation, and the keys next to its own.
    const auto swept = static_cast<uint32_t>(round) / 4 << 22 | (static_cast<uint32_t>(round) & 3);
    const uint32_t near = own[round % own.size()] + static_cast<uint32_t>(round) - 2048;
    for (const uint32_t number : {60'000u, 120'000u, 180'000u}) {
      forge_to_server(swept, number);
      forge_to_client(swept, number);
      if (near != own[0] && near != own[1] && near != own[2]) forge_to_server(near, number);
    }
  });
}

/// If a key leaks, the other proofs in a packet still protect the session.
TEST_F(Stranger, forges_with_the_right_keys_and_nothing_else) {
  at_rate(2000, 10'000, [&](uint64_t round) {
    const auto number = static_cast<uint32_t>(round * 50'000);
    forge_to_server(before_.server, number);
    forge_to_client(before_.client, number);
  });
}

/// The stranger sends all recorded packets again from another address: in order, backwards, and late.
TEST_F(Stranger, replays_recorded_packets) {
  const int raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);
  if (raw < 0) GTEST_SKIP() << "recording packets needs root";
  ASSERT_TRUE(honest_.reaches(honest_.ok() + 500));
  struct Recorded {
    Address to;
    std::vector<std::byte> bytes;
  };
  std::vector<Recorded> recorded;
  std::array<std::byte, 65536> room;
  const uint16_t management_port = Address::parse(server_.uri()).port;
  for (ssize_t got; recorded.size() < 2000 && (got = recv(raw, room.data(), room.size(), 0)) > 0;) {
    iphdr ip;
    udphdr udp;
    if (static_cast<size_t>(got) < sizeof(ip) + sizeof(udp)) continue;
    std::memcpy(&ip, room.data(), sizeof(ip));
    const size_t ip_bytes = size_t{ip.ihl} * 4;
    std::memcpy(&udp, room.data() + ip_bytes, sizeof(udp));
    const uint16_t port = ntohs(udp.dest);
    if (port != server_data_.port && port != client_data_.port && port != management_port) continue;
    const std::byte* payload = room.data() + ip_bytes + sizeof(udp);
    recorded.push_back({{ntohl(ip.daddr), port}, std::vector<std::byte>(payload, std::as_const(room).data() + got)});
  }
  close(raw);
  ASSERT_GE(recorded.size(), 50u);
  for (int round = 0; round < 2; round++) {
    at_rate(recorded.size(), 20'000, [&](uint64_t i) { hostile_.data.send(recorded[i].to, recorded[i].bytes); });
    std::reverse(recorded.begin(), recorded.end());
  }
  ASSERT_TRUE(honest_.reaches(honest_.ok() + 500));
  at_rate(recorded.size(), 20'000, [&](uint64_t i) { hostile_.data.send(recorded[i].to, recorded[i].bytes); });
}

}  // namespace
}  // namespace attack
