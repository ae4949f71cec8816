// Processes that die, stop or hang, over every transport. The bounds on times are generous, because these tests do not
// measure speed.

#include <algorithm>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;

namespace {

/// The liveness timeout where a live process must not count as dead: a busy machine may pause one for 200 ms.
const unsigned kLivenessMs = 500 * tern::patience();

/// The status of every call to a dead peer that had not completed before.
bool is_peers_death(Code code) { return code == Code::kPeerUnreachable || code == Code::kSessionReset; }

/// Waits until a process has at most `descriptors` descriptors and `mappings` shared mappings.
void expect_no_more_than(pid_t pid, size_t descriptors, size_t mappings, Caller* busy = nullptr) {
  auto is_clean = [&] {
    const size_t open = descriptors_of(pid);  // 0: the process is gone
    return open != 0 && open <= descriptors && mappings_of(pid, "memfd:") <= mappings;
  };
  EXPECT_TRUE(busy != nullptr ? busy->run_until(is_clean) : wait_for(is_clean))
      << descriptors_of(pid) << " descriptors instead of " << descriptors << ", " << mappings_of(pid, "memfd:")
      << " mappings instead of " << mappings;
}

}  // namespace

class Kill : public OverTransports {};
E2E_OVER_TRANSPORTS(Kill);

TEST_P(Kill, killed_idle_server_resets_its_session_and_a_successor_serves) {
  auto server = std::make_unique<Peer>(settings());
  const std::string listen = server->listen_uri();
  const std::string uri = server->uri();
  Caller caller(settings());
  for (int round = 0; round < 3; round++) {
    const tern::Session session = caller.open(uri);
    ASSERT_EQ(caller.end_of(caller.send_order(session, kWork, {1, 100, 0})), Code::kOk);
    server->kill();
    Call* call = caller.send_order(session, kWork, {2, 100, 0});
    EXPECT_TRUE(is_peers_death(caller.end_of(call))) << (call != nullptr ? call->status.message() : "");
    EXPECT_FALSE(caller.endpoint().is_open(session));
    EXPECT_EQ(caller.send_order(session, kWork, {3, 100, 0}), nullptr);
    EXPECT_EQ(caller.refusal.code(), Code::kSessionReset);
    server = std::make_unique<Peer>(settings().with("listen", listen));
    ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
  }
  EXPECT_EQ(caller.end_of(caller.send_order(caller.open(uri), kWork, {4, 100, 0})), Code::kOk);
}

/// The successor starts before the client has noticed the death. It does not know the session.
TEST_P(Kill, server_replaced_at_once_ends_calls_of_the_old_session) {
  auto server = std::make_unique<Peer>(settings());
  const std::string listen = server->listen_uri();
  Caller caller(settings());
  const tern::Session session = caller.open(server->uri());
  for (int i = 0; i < 20; i++) caller.send_pattern(session, kHold, 1000, 1);
  ASSERT_TRUE(caller.run_until([&] { return server->board().held == 8; }));
  server->kill();
  server = std::make_unique<Peer>(settings().with("listen", listen));
  ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(is_peers_death(call->code())) << call->status.message();
  EXPECT_EQ(server->board().handled, 0u) << "a request of the old session has reached a handler of the new server";
  EXPECT_EQ(caller.end_of(caller.send_order(caller.open(server->uri()), kWork, {4, 100, 0})), Code::kOk);
}

TEST_P(Kill, killed_server_ends_a_hundred_calls) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session sessions[] = {caller.open(server.uri()), caller.open(server.uri(), {.window = 32})};
  for (uint64_t i = 0; i < 100; i++) caller.send_pattern(sessions[i % 2], kHold, i * 100, i);
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 40; }));
  server.kill();
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(is_peers_death(call->code())) << call->status.message();
}

TEST_P(Kill, server_killed_amid_large_messages_ends_their_calls) {
  const auto files = files_in_dev_shm();
  constexpr uint32_t kBytes = 64 << 20;
  Caller caller(settings().with("liveness_ms", 200 * tern::patience()));  // a call may end before its server, too
  int died = 0;
  for (uint64_t round = 0; round < 6; round++) {
    const bool is_upload = round % 2 == 0;
    Peer server(settings());
    const tern::Session session = caller.open(server.uri());
    std::vector<Call*> calls;
    for (uint64_t i = 0; i < 3; i++) {
      calls.push_back(is_upload ? caller.send_order(session, kWork, {i, 8, 0}, kBytes)
                                : caller.send_order(session, kWork, {i, kBytes, 0}));
    }
    // The server dies after some bytes have moved; the rounds differ in how many.
    caller.run_until([&] { return server.board().packets_received >= 4 || caller.ended() == caller.calls().size(); });
    caller.run_for(std::chrono::milliseconds(2 * round));
    server.kill();
    ASSERT_TRUE(caller.finish());
    for (Call* call : calls) {
      if (call->status.ok()) {
        EXPECT_TRUE(Caller::is_right(*call));
      } else {
        EXPECT_TRUE(is_peers_death(call->code())) << call->status.message();
        died++;
      }
      EXPECT_TRUE(is_filled(call->request.bytes().subspan(sizeof(Order)), call->order_id));
      call->forget();
    }
  }
  EXPECT_GT(died, 0) << "no message was under way when its server died";
  EXPECT_TRUE(leaves_nothing_in_dev_shm(files));
}

TEST_P(Kill, clients_killed_amid_messages_leave_nothing_behind) {
  const int rounds = is_shm() ? 20 : 6;
  const auto files = files_in_dev_shm();
  // Over shm a death is seen at once, and what the server's arena takes for a dead client's messages must not add up.
  Peer server(settings().with("liveness_ms", is_shm() ? 200 * tern::patience() : kLivenessMs));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  size_t descriptors = 0, mappings = 0;
  for (int round = 0; round < rounds; round++) {
    {
      const Settings busy = settings().with("server", server.uri()).with("outstanding", 4);
      Peer client(round % 2 == 0 ? busy.with("request_bytes", 8 << 20) : busy.with("reply_bytes", 8 << 20));
      ASSERT_TRUE(caller.run_until([&] { return client.board().completed >= 2; }));
      EXPECT_EQ(client.board().damaged, 0u);
      client.kill();
    }
    EXPECT_EQ(caller.end_of(caller.send_order(session, kWork, {1, 5000, 0}, 5000)), Code::kOk);
    if (round == 1) {
      // After one round of each kind of traffic the endpoint has the memory that it keeps for itself.
      ASSERT_TRUE(caller.run_until([&] { return server.board().sessions_failed >= 2; }));
      caller.run_for(std::chrono::milliseconds(100));
      descriptors = descriptors_of(server.pid());
      mappings = mappings_of(server.pid(), "memfd:");
    }
  }
  EXPECT_TRUE(caller.run_until([&] { return server.board().sessions_failed >= static_cast<uint64_t>(rounds); }))
      << server.board().sessions_failed << " of " << rounds << " dead clients noticed";
  // The server's own arena may grow with clients that are there at the same time. A leak in each round would be more.
  const auto slack = static_cast<size_t>(rounds / 4);
  expect_no_more_than(server.pid(), descriptors + slack, mappings + slack, &caller);
  EXPECT_EQ(server.board().damaged, 0u);
  EXPECT_EQ(caller.end_of(caller.send_order(session, kWork, {2, 100, 0})), Code::kOk);
  EXPECT_TRUE(leaves_nothing_in_dev_shm(files));
}

TEST_P(Kill, dead_servers_leave_nothing_behind_in_their_client) {
  Caller caller(settings().with("liveness_ms", kLivenessMs));
  size_t descriptors = 0, mappings = 0;
  for (int round = 0; round < 10; round++) {
    Peer server(settings());
    const tern::Session session = caller.open(server.uri());
    Call* call = caller.send_order(session, kWork, {1, 1 << 20, 0}, 1 << 20);
    EXPECT_EQ(caller.end_of(call), Code::kOk);
    call->forget();
    Call* held = caller.send_pattern(session, kHold, 100000, 1);
    ASSERT_TRUE(caller.run_until([&] { return server.board().held == 1; }));
    server.kill();
    EXPECT_TRUE(is_peers_death(caller.end_of(held)));
    held->forget();
    if (round == 1) {
      caller.run_for(std::chrono::milliseconds(100));
      descriptors = descriptors_of(getpid());
      mappings = mappings_of(getpid(), "memfd:");
    }
  }
  expect_no_more_than(getpid(), descriptors, mappings, &caller);
}

TEST_P(Kill, a_forked_child_does_not_hide_a_servers_death) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  ASSERT_EQ(caller.end_of(caller.send_order(session, kWork, {1, 100000, 0})), Code::kOk);
  for (int i = 0; i < 20; i++) caller.send_pattern(session, kHold, 1000, 1);
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 8; }));
  server.fork_child();
  EXPECT_EQ(caller.end_of(caller.send_order(caller.open(server.uri()), kWork, {2, 100000, 0})), Code::kOk);
  server.kill();
  EXPECT_TRUE(caller.finish());
  for (size_t i = 1; i < 21; i++) EXPECT_TRUE(is_peers_death(caller.calls()[i]->code()));
  server.kill_child();
}

TEST_P(Kill, a_forked_child_does_not_hide_a_clients_death) {
  Peer server(settings());
  Peer client(settings().with("server", server.uri()).with("outstanding", 4).with("request_bytes", 100000));
  ASSERT_TRUE(wait_for([&] { return client.board().completed >= 10; }));
  client.fork_child();
  client.kill();
  EXPECT_TRUE(wait_for([&] { return server.board().sessions_failed == 1; }));
  client.kill_child();
}

TEST_P(Kill, a_stopped_server_is_unreachable_and_harmless_when_it_goes_on) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 8; id++) caller.send_order(session, kWork, {id, 100, 0});
  ASSERT_TRUE(caller.finish());
  server.signal(SIGSTOP);
  std::vector<Call*> calls;
  for (uint64_t id = 100; id < 120; id++) calls.push_back(caller.send_order(session, kWork, {id, 20000, 0}, id * 100));
  ASSERT_TRUE(caller.finish());
  for (Call* call : calls) EXPECT_EQ(call->code(), Code::kPeerUnreachable) << call->status.message();
  // All returned buffers may be used again, although packets still wait for the server.
  for (Call* call : calls) fill(call->request.bytes(), 4242);
  server.signal(SIGCONT);
  const tern::Session next = caller.open(server.uri());
  for (uint64_t id = 200; id < 260; id++) caller.send_order(next, kWork, {id, 20000, 0}, id * 100);
  ASSERT_TRUE(caller.finish());
  for (size_t i = 28; i < caller.calls().size(); i++) EXPECT_TRUE(Caller::is_right(*caller.calls()[i]));
  for (uint64_t id = 0; id < 300; id++) EXPECT_LE(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u) << "a handler has seen a request whose buffer its client had back";
}

TEST_P(Kill, stopped_client_is_forgotten_and_its_calls_fail) {
  Peer server(settings());
  Peer client(settings().with("server", server.uri()).with("outstanding", 4).with("request_bytes", 10000));
  ASSERT_TRUE(wait_for([&] { return client.board().completed >= 10; }));
  client.signal(SIGSTOP);
  EXPECT_TRUE(wait_for([&] { return server.board().sessions_failed == 1; }));
  client.signal(SIGCONT);
  EXPECT_TRUE(wait_for([&] { return client.board().failed == 4; }));
  EXPECT_EQ(client.board().damaged, 0u);
}

TEST_P(Kill, callback_longer_than_the_liveness_timeout_ends_no_session) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  Call* sleeper = caller.send_order(session, kSleep, {1, 100, 1'200'000});
  ASSERT_TRUE(caller.run_until([&] { return server.board().in_sleep == 1; }));
  for (uint64_t id = 2; id < 20; id++) caller.send_order(session, kWork, {id, 5000, 0}, 5000);
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  EXPECT_TRUE(Caller::is_right(*sleeper));
  for (uint64_t id = 1; id < 20; id++) EXPECT_EQ(server.board().handled_by_id[id], 1);
}

TEST_P(Kill, a_client_in_a_long_callback_keeps_its_sessions) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 20; id++) caller.send_order(session, kWork, {id, 50000, 100'000}, 50000);
  EXPECT_TRUE(
      caller.endpoint()
          .after(std::chrono::milliseconds(20), [] { std::this_thread::sleep_for(std::chrono::milliseconds(1200)); })
          .ok());
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
}
