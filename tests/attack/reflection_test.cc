// An attacker tries to make servers and clients send to a third party, which has not asked for it.
// The third party gets no more bytes than the attacker has sent (management), and at most three header-only packets for
// each handshake (data).
#include <tern/transport/udp.h>

#include "attack/honest.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

constexpr size_t kDataBytesMax = 3 * wire::kHeaderBytes;
/// The time that the third party listens. A longer time could only show more.
constexpr auto kListening = milliseconds(1500);

/// The attacker sends requests in the name of a third party, which never answers.
TEST(Reflection, connect_request_with_a_forged_source) {
  Server<Udp> server;
  Random random(1);
  Socket third;  // the server cannot know whether a source address is forged
  third.send(Address::parse(server.uri()), encoded(connect_request(random, third.address())));
  const auto until = Clock::now() + kListening;
  while (Clock::now() < until) (void)third.receive(milliseconds(10));
  EXPECT_LE(third.bytes_received(), third.bytes_sent());
}

TEST(Reflection, other_management_messages_with_a_forged_source) {
  Server<Udp> server;
  Random random(1);
  Socket third;
  for (uint8_t kind = 1; kind < 12; kind++) {
    ManagementMessage message = connect_request(random, third.address());
    message.kind = static_cast<ManagementKind>(kind);
    message.receiver_run = random.next() | 1;
    message.cookie = random.next();
    if (message.kind == ManagementKind::kConnectReply) message.code = tern::Code::kOk;
    third.send(Address::parse(server.uri()), encoded(message));
  }
  const auto until = Clock::now() + kListening;
  while (Clock::now() < until) (void)third.receive(milliseconds(10));
  EXPECT_LE(third.bytes_received(), third.bytes_sent());
}

/// A client opens a session from an address, leaves the address to a third party, and lives on at another address.
TEST(Reflection, client_leaves_its_address_and_lives_on_at_another) {
  Server<Udp> server;
  Hostile hostile(server.uri(), Address::parse("127.0.0.3").ip);
  const HostileSession session = hostile.open();
  Socket other;
  const auto ping = encoded(about(session, ManagementKind::kPing));
  size_t signs_of_life = 0;
  const size_t sent_before = hostile.management.bytes_sent(), got_before = hostile.management.bytes_received();
  const auto until = Clock::now() + 2 * kListening;
  while (Clock::now() < until) {
    other.send(session.server_management, ping);
    const auto again = Clock::now() + milliseconds(250);
    while (Clock::now() < again) (void)hostile.management.receive(milliseconds(5));
    ManagementMessage pong;
    for (auto bytes = other.receive(); !bytes.empty(); bytes = other.receive()) {
      const bool is_valid = wire::parse_management(bytes, pong) == wire::ManagementDrop::kNone;
      signs_of_life += is_valid && pong.sender_run == session.reply.sender_run;
    }
  }
  EXPECT_GT(signs_of_life, 2u);
  EXPECT_EQ(hostile.management.bytes_sent(), sent_before);
  constexpr size_t kPingsBefore = 32;
  EXPECT_LE(hostile.management.bytes_received() - got_before, other.bytes_sent() + kPingsBefore * ping.size());
}

/// A client that names a third party's address as its own data path.
TEST(Reflection, hostile_client_names_a_third_party) {
  Server<Udp> server;
  Socket third;
  Hostile hostile(server.uri(), Address::parse("127.0.0.3").ip);
  auto session = hostile.connect([&](ManagementMessage& request) { set_address(request.terms, third.address()); });
  ASSERT_TRUE(session.has_value());
  // All kinds of packets that a server might answer, many times: short and full path probes, probes, requests.
  for (int round = 0; round < 200; round++) {
    hostile.send_path_probe(*session, false);
    hostile.send_path_probe(*session, true);
    hostile.send_proved(*session, Kind::kProbe, 0, 1);
    hostile.send_proved(*session, Kind::kCancel, 0, 0);
    hostile.send(*session, Kind::kRequest, wire::kFirst, 0, wire::kNoDeadline, kEcho, 32, 32);
    if (round % 20 == 0) hostile.serve_management();
  }
  const auto until = Clock::now() + kListening;
  while (Clock::now() < until) {
    (void)third.receive(milliseconds(10));
    hostile.serve_management();
  }
  EXPECT_LE(third.bytes_received(), kDataBytesMax);
}

/// A client whose session follows its packets (clause 7.7.4) lets some seem to come from a third party. In between it
/// proves its own address again and again, and asks for responses.
void point_at(Server<Udp>& server, Hostile& hostile, HostileSession& session, Socket& third) {
  const uint32_t path_token = session.reply.terms.path_token;
  const uint32_t bytes = session.reply.terms.payload_bytes_max;
  std::vector<uint32_t> tokens = {path_token, session.token};
  uint64_t responses = 0, proofs = 0;
  const auto began = Clock::now();
  const auto listen = [&] {
    hostile.receive(milliseconds(2), [&](const Header& header, std::span<const std::byte> payload) {
      responses += header.kind() == Kind::kResponse;
      if (header.kind() != Kind::kPathReply || (header.flags() & wire::kPaired) == 0) return;
      session.first_request = header.request_number();
      if (payload.empty()) {
        tokens.push_back(header.size_or_index());
      } else {
        session.token = header.size_or_index();
        proofs++;
      }
    });
    hostile.serve_management();
    (void)third.receive();
  };
  const auto probe = [&](uint32_t token, bool is_full) {
    return wire::client_header(Kind::kPathProbe, wire::kPaired, session.server_key(), session.client_number++,
                               is_full ? session.first_request : 0, 0, 0, token);
  };
  const auto until_open = Clock::now() + kPatience;
  hostile.send_header(session.server_data, probe(path_token, false));
  while (tokens.size() < 3 && Clock::now() < until_open) listen();
  while (proofs == 0 && Clock::now() < until_open) {
    hostile.send_header(session.server_data, probe(tokens.back(), true), bytes);
    listen();
  }
  uint32_t calls = 0;
  for (int round = 0; round < 100; round++) {
    // Its own address, with all tokens that it has ever been told.
    hostile.send_header(session.server_data, probe(path_token, false));
    listen();
    for (const uint32_t token : tokens) hostile.send_header(session.server_data, probe(token, true), bytes);
    listen();
    // The third party's, who knows none.
    std::array<std::byte, wire::kHeaderBytes> packet;
    Header forged = probe(path_token, false);
    forged.set_length_and_flags(packet.size(), 0);
    wire::store_header(packet.data(), forged);
    third.send(session.server_data, packet);
    for (const uint32_t token : tokens) hostile.send_header(session.server_data, probe(token, true), bytes);
    hostile.send(session, Kind::kRequest, wire::kFirst, session.first_request + (calls++ << wire::kSlotBits),
                 wire::kNoDeadline, kEcho, 32, 32);
    listen();
  }
  const auto until = Clock::now() + kListening;
  while (Clock::now() < until) listen();
  EXPECT_GT(proofs, 0u);
  EXPECT_GT(responses, 50u);
  EXPECT_EQ(responses, server.handled());
  // The server sends three in five seconds. This loop takes less time than that unless the machine is busy.
  EXPECT_LE(third.bytes_received(),
            kDataBytesMax * static_cast<size_t>(1 + (Clock::now() - began) / std::chrono::seconds(5)));
}

TEST(Reflection, client_with_a_session_points_it_at_a_third_party) {
  Server<Udp> server;
  Socket third;
  Hostile hostile(server.uri(), Address::parse("127.0.0.3").ip);
  HostileSession session = hostile.open();
  point_at(server, hostile, session, third);
}

TEST(Reflection, client_names_a_third_party_and_points_its_session_there) {
  Server<Udp> server;
  Socket third;
  Hostile hostile(server.uri(), Address::parse("127.0.0.3").ip);
  auto session = hostile.connect([&](ManagementMessage& request) { set_address(request.terms, third.address()); });
  ASSERT_TRUE(session.has_value());
  hostile.send_path_probe(*session, false);
  point_at(server, hostile, *session, third);
}

/// A server that names a third party's address as its own data path.
TEST(Reflection, hostile_server_names_a_third_party) {
  Socket management, third;
  Honest<Udp> client("tern://127.0.0.1:" + std::to_string(management.address().port));
  Random random(3);
  const uint64_t run = random.next() | 1;
  const auto until = Clock::now() + kListening;
  uint32_t handshakes = 0;
  uint64_t last_token = 0;
  while (Clock::now() < until) {
    (void)third.receive();
    Address from;
    ManagementMessage message;
    const auto bytes = management.receive(milliseconds(5), &from);
    if (bytes.empty() || wire::parse_management(bytes, message) != wire::ManagementDrop::kNone) continue;
    if (message.kind == ManagementKind::kPing) {
      std::swap(message.sender_run, message.receiver_run);
      message.kind = ManagementKind::kPong;
      management.send(from, encoded(message));
    }
    if (message.kind != ManagementKind::kConnectRequest) continue;
    handshakes += message.token != last_token;
    last_token = message.token;
    ManagementMessage reply;
    reply.kind = ManagementKind::kConnectReply;
    reply.sender_run = run;
    reply.receiver_run = message.sender_run;
    reply.token = message.token;
    reply.to_endpoint = message.terms.endpoint_id;
    reply.to_key = message.terms.session_key;
    reply.version_min = message.version_max;
    reply.terms = message.terms;
    set_address(reply.terms, third.address());
    reply.terms.credits = 8;
    management.send(from, encoded(reply));
  }
  EXPECT_GT(handshakes, 0u);
  EXPECT_LE(third.bytes_received(), handshakes * kDataBytesMax);
  EXPECT_LE(third.bytes_received(), management.bytes_sent());
}

}  // namespace
}  // namespace attack
