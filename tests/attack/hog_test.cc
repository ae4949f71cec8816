// Clients that take shared resources of a server and do not give them back. Each case says what an honest client beside
// them may lose.
#include <future>

#include <tern/transport/udp.h>

#include "attack/honest.h"
#include "wire/credits.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

const uint32_t kHostileIp = Address::parse("127.0.0.3").ip;

/// Runs `f` beside a hostile peer that answers all pings and questions, so that the server keeps the peer's sessions.
template <class F>
auto beside(Hostile& hostile, F f) {
  auto result = std::async(std::launch::async, std::move(f));
  while (result.wait_for(milliseconds(1)) != std::future_status::ready) hostile.serve_management();
  return result.get();
}

tern::RpcOptions with(size_t tern::RpcOptions::*field, size_t value) {
  tern::RpcOptions options;
  options.*field = value;
  return options;
}

/// An honest client connects, and tries again when the server refuses it. The loss is the time of a few attempts.
bool connects(const Server<Udp>& server) {
  const auto until = Clock::now() + kPatience;
  while (Clock::now() < until) {
    Honest<Udp> honest(server.uri());
    if (honest.ask(kEcho, 32).status.ok()) return true;
    std::this_thread::sleep_for(milliseconds(200));
  }
  return false;
}

/// Loss: a few attempts to connect.
TEST(Hog, sessions_that_never_prove_their_path) {
  tern::RpcOptions options;
  options.server_sessions_max = 64;
  Server<Udp> server(options);
  Hostile hostile(server.uri(), kHostileIp);
  uint32_t taken = 0;
  while (taken < options.server_sessions_max && hostile.connect().has_value()) taken++;
  EXPECT_GE(taken, options.server_sessions_max / 2);  // the share of one address
  EXPECT_TRUE(beside(hostile, [&] { return connects(server); }));
}

/// Loss: a few attempts to connect.
TEST(Hog, all_sessions_of_one_address) {
  tern::RpcOptions options;
  options.server_sessions_max = 64;
  Server<Udp> server(options);
  Hostile hostile(server.uri(), kHostileIp);
  uint32_t taken = 0;
  for (; taken <= options.server_sessions_max; taken++) {
    auto session = hostile.connect();
    if (!session.has_value()) break;
    EXPECT_TRUE(hostile.prove_path(*session));
  }
  EXPECT_EQ(taken, options.server_sessions_max / 2);
  EXPECT_TRUE(beside(hostile, [&] { return connects(server); }));
}

/// Loss: none. A request of several packets needs memory of the server and gets it.
TEST(Hog, receive_budget_by_requests_that_never_go_on) {
  Server<Udp> server(with(&tern::RpcOptions::receive_budget_bytes, 64u << 20));
  Honest<Udp> honest(server.uri());
  ASSERT_TRUE(honest.ask(kEcho, 100'000).status.ok());
  Hostile hostile(server.uri(), kHostileIp);
  constexpr uint32_t kBytes = 8u << 20;  // the default of HandlerOptions::max_request_bytes
  for (int i = 0; i < 4; i++) {
    HostileSession session = hostile.open();
    for (uint32_t slot = 0; slot < 8; slot++) {
      hostile.send(session, Kind::kRequest, wire::kFirst, session.first_request + slot, wire::kNoDeadline, kEcho,
                   kBytes, session.reply.terms.payload_bytes_max);
    }
  }
  const Outcome outcome = beside(hostile, [&] { return honest.ask(kEcho, 100'000); });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
}

/// Loss: none. A response of several packets needs memory of the server and gets it.
TEST(Hog, responses_that_are_never_read) {
  constexpr size_t kLimit = 64u << 20;
  constexpr uint32_t kBytes = 4u << 20;
  Server<Udp> server(with(&tern::RpcOptions::memory_limit_bytes, kLimit));
  Honest<Udp> honest(server.uri());
  ASSERT_TRUE(honest.ask(kReply, 4, 1u << 20).status.ok());
  Hostile hostile(server.uri(), kHostileIp);
  // Large responses come first; smaller and smaller ones then take the rest of the memory.
  for (uint32_t bytes = kBytes; bytes >= 64u << 10; bytes /= 4) {
    HostileSession session = hostile.open([](ManagementMessage& request) { request.terms.window = wire::kSlotsMax; });
    for (uint32_t slot = 0; slot < wire::kSlotsMax; slot++) {
      Header header = wire::client_header(Kind::kRequest, wire::kFirst, session.server_key(), session.client_number++,
                                          session.first_request + slot, wire::kNoDeadline, kReply, sizeof(bytes));
      std::array<std::byte, wire::kHeaderBytes + sizeof(bytes)> packet;
      header.set_length_and_flags(packet.size(), 0);
      wire::store_header(packet.data(), header);
      std::memcpy(packet.data() + wire::kHeaderBytes, &bytes, sizeof(bytes));
      hostile.data.send(session.server_data, packet);
    }
  }
  // The honest client has reported its first response by then, and the server has freed that response's memory.
  std::this_thread::sleep_for(milliseconds(300));
  const Outcome outcome = beside(hostile, [&] { return honest.ask(kReply, 4, 1u << 20); });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message() << ", application's code " << outcome.app_code;
}

/// The credits that the server grants to `session`, which must have a request under way.
uint32_t granted_credits(Hostile& witness, HostileSession& session, uint32_t count) {
  uint32_t credits = 0;
  const uint32_t request = session.first_request + count * wire::kSlotsMax;
  const auto until = Clock::now() + kPatience;
  while (credits == 0 && Clock::now() < until) {
    witness.send(session, Kind::kRequest, wire::kFirst, request, wire::kNoDeadline, kEcho, 32, 32);
    witness.receive(milliseconds(20), [&](const Header& header, std::span<const std::byte>) {
      if (header.session_key() != session.client_key()) return;
      credits = wire::decode_credits(header.credit_limit(), wire::kPacketCredits);
    });
  }
  return credits;
}

/// Loss: at most half of the credits.
TEST(Hog, credits_by_idle_sessions_that_only_probe) {
  Server<Udp> server;
  Hostile witness(server.uri(), Address::parse("127.0.0.2").ip, 2);
  HostileSession honest = witness.open();
  uint32_t count = 0, before = 0, during = UINT32_MAX;
  for (; count < 10; count++) {
    std::this_thread::sleep_for(milliseconds(4));
    before = std::max(before, granted_credits(witness, honest, count));
  }
  Hostile hostile(server.uri(), kHostileIp);
  std::vector<HostileSession> idle;
  for (int i = 0; i < 400; i++) {
    idle.push_back(hostile.open());
    witness.serve_management();
  }
  // The server counts credits in epochs of 10 ms: this waits for a few of them.
  for (int round = 0; round < 20; round++, count++) {
    for (HostileSession& session : idle) hostile.send_proved(session, Kind::kProbe, session.first_request - 64, 0);
    std::this_thread::sleep_for(milliseconds(4));
    during = std::min(during, granted_credits(witness, honest, count));
    hostile.data.drain();
    hostile.serve_management();
    witness.serve_management();
  }
  EXPECT_GT(before, 1u);
  EXPECT_GE(2 * during, before);
}

}  // namespace
}  // namespace attack
