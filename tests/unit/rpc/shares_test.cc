// One client's share of a server: the receive budget, the memory of responses, sessions, credits.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kPut = 1;         ///< the response is empty
constexpr uint16_t kFetch = 2;       ///< the response has kLongBytes in the library's buffer
constexpr uint16_t kFetchOwned = 3;  ///< the response has kLongBytes in a MsgBuf
constexpr uint16_t kEcho = 4;
constexpr uint16_t kKeep = 5;  ///< each test has its own handler
constexpr size_t kLongBytes = 40 * 512;
constexpr size_t kBudgetBytes = 12 * kLongBytes;

/// Filters packets so that only the first packet of each request leaves.
bool lets_first_packets_pass(const wire::Header& header, size_t) {
  return header.kind() != wire::Kind::kRequest || (header.flags() & wire::kFirst) != 0;
}
/// Filters packets so that the client never asks for the rest of a response.
bool never_reads_on(const wire::Header& header, size_t) {
  return header.kind() != wire::Kind::kRfr && header.kind() != wire::Kind::kReport;
}
bool never_probes_a_path(const wire::Header& header, size_t) { return header.kind() != wire::Kind::kPathProbe; }

class Shares : public VirtualWorld {
 protected:
  ~Shares() override { hosts_.clear(); }  // ends calls

  void make_server(RpcOptions options = {}, Filter filter = {}) {
    auto& rpc = *add("10.0.0.1:1", options, std::move(filter)).rpc;
    ASSERT_TRUE(rpc.on_request(kPut, [](Request request) { request.respond(); }).ok());
    ASSERT_TRUE(rpc.on_request(kFetch,
                               [](Request request) {
                                 ASSERT_TRUE(request.response(kLongBytes).ok());
                                 request.respond();
                               })
                    .ok());
    ASSERT_TRUE(
        rpc.on_request(kFetchOwned, [&rpc](Request request) { request.respond(rpc.alloc_msgbuf(kLongBytes)); }).ok());
    ASSERT_TRUE(rpc.on_request(kEcho,
                               [](Request request) {
                                 auto room = request.response(request.bytes().size());
                                 ASSERT_TRUE(room.ok());
                                 std::copy(request.bytes().begin(), request.bytes().end(), room->begin());
                                 request.respond();
                               })
                    .ok());
  }
  void call(VirtualHost& client, Session session, uint16_t type, size_t request_bytes, size_t room_bytes) {
    auto started = client.rpc->enqueue_request(session, type, client.rpc->alloc_msgbuf(request_bytes),
                                               client.rpc->alloc_msgbuf(room_bytes), [this](Completion& done) {
                                                 last_ = done.status;
                                                 ended_[done.status.code()]++;
                                               });
    ASSERT_TRUE(started.ok()) << started.status().message();
  }
  /// Makes calls one after the other, all of which must succeed.
  void expect_calls_succeed(VirtualHost& client, Session session, uint16_t type, size_t request_bytes,
                            size_t room_bytes, int count = 50) {
    for (int i = 0; i < count; i++) {
      Status status;
      bool has_ended = false;
      auto started =
          client.rpc->enqueue_request(session, type, client.rpc->alloc_msgbuf(request_bytes),
                                      client.rpc->alloc_msgbuf(room_bytes), [&status, &has_ended](Completion& done) {
                                        status = done.status;
                                        has_ended = true;
                                      });
      ASSERT_TRUE(started.ok()) << started.status().message();
      ASSERT_TRUE(run_until([&] { return has_ended; }));
      ASSERT_TRUE(status.ok()) << "call " << i << ": " << status.message();
    }
  }
  /// Adds a hog at `address` that sends the first packets of 32 long requests.
  VirtualHost& add_hog(const std::string& address) {
    VirtualHost& hog = add(address, {}, lets_first_packets_pass);
    const Session session = open(hog, {.window = 32});
    for (int i = 0; i < 32; i++) call(hog, session, kPut, kLongBytes, 1);
    run_for(1'000'000);
    return hog;
  }
  const EndpointCounters& counters() { return server().rpc->counters(); }
  size_t arriving_bytes() { return server().core().census().arriving_bytes; }
  size_t response_bytes() { return server().core().census().response_bytes; }

  std::map<Code, int> ended_;
  Status last_;
};

// ---- Requests that arrive ----

TEST_F(Shares, requests_that_never_go_on_give_way_to_another_address) {
  make_server({.receive_budget_bytes = kBudgetBytes});
  VirtualHost& honest = add("10.0.0.2:1");
  const Session session = open(honest);
  add_hog("10.0.0.3:1");
  EXPECT_GT(arriving_bytes(), kBudgetBytes - kLongBytes);
  expect_calls_succeed(honest, session, kPut, kLongBytes, 1);
  EXPECT_GT(counters().gave_way_arriving, 0u);
  EXPECT_GT(ended_[Code::kNoMemory], 0) << "the hog is told";
}

TEST_F(Shares, requests_that_never_go_on_give_way_to_another_nexus_of_their_address) {
  make_server({.receive_budget_bytes = kBudgetBytes});
  VirtualHost& honest = add("10.0.0.3:2");
  const Session session = open(honest);
  add_hog("10.0.0.3:1");
  expect_calls_succeed(honest, session, kPut, kLongBytes, 1);
  EXPECT_GT(counters().gave_way_arriving, 0u);
}

/// Each takes a block that is twice as large as itself.
TEST_F(Shares, requests_that_never_go_on_leave_the_endpoint_memory_within_its_limit) {
  constexpr size_t kLimit = 8u << 20;
  constexpr size_t kBytes = (32u << 10) - 63;
  make_server({.memory_limit_bytes = kLimit});
  VirtualHost& hog = add("10.0.0.3:1", {}, lets_first_packets_pass);
  for (int i = 0; i < 5; i++) {
    const Session session = open(hog, {.window = 64});
    for (int j = 0; j < 64; j++) call(hog, session, kPut, kBytes, 1);
  }
  run_for(1'000'000);
  EXPECT_GT(arriving_bytes(), kLimit / 4 - kBytes) << "else this test measures nothing";
  std::vector<MsgBuf> own;
  for (size_t bytes = 0; bytes < kLimit / 8; bytes += kBytes) own.push_back(server().rpc->alloc_msgbuf(kBytes));
  for (const MsgBuf& buffer : own) EXPECT_TRUE(buffer);
}

TEST_F(Shares, requests_without_progress_for_a_second_give_way_to_their_own_nexus) {
  make_server({.receive_budget_bytes = kBudgetBytes});
  bool is_hog = true;
  VirtualHost& client = add("10.0.0.3:1", {}, [&](const wire::Header& header, size_t bytes) {
    return !is_hog || lets_first_packets_pass(header, bytes);
  });
  const Session stalled = open(client, {.window = 12});
  for (int i = 0; i < 12; i++) call(client, stalled, kPut, kLongBytes, 1);
  run_for(1'000'000);
  EXPECT_EQ(arriving_bytes(), kBudgetBytes);
  is_hog = false;
  const Session session = open(client);
  // The lost packets are retransmitted, so those requests continue.
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 12; }));
  is_hog = true;
  for (int i = 0; i < 12; i++) call(client, stalled, kPut, kLongBytes, 1);
  run_for(2 * tern::rpc::Peers::kStalledNs, 1'000'000);
  EXPECT_EQ(counters().gave_way_arriving, 0u);
  // The first packet of this request suffices to show which request gives way.
  call(client, session, kPut, kLongBytes, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kNoMemory] == 1; }));
  EXPECT_EQ(counters().gave_way_arriving, 1u);
  EXPECT_EQ(counters().refused_no_memory, 0u);
}

TEST_F(Shares, one_peer_alone_has_the_whole_receive_budget) {
  make_server({.receive_budget_bytes = kBudgetBytes});
  VirtualHost& client = add("10.0.0.2:1");
  const Session session = open(client, {.window = 12});
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 12; i++) call(client, session, kPut, kLongBytes, 1);
    size_t most = 0;
    ASSERT_TRUE(run_until([&] {
      most = std::max(most, arriving_bytes());
      return ended_[Code::kOk] == 12 * (round + 1);
    }));
    EXPECT_GT(most, kBudgetBytes / 2);
  }
  EXPECT_EQ(counters().gave_way_arriving, 0u);
  call(client, session, kPut, kBudgetBytes + 1, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kNoMemory] == 1; }));
}

TEST_F(Shares, equal_peers_do_not_take_from_each_other) {
  make_server({.receive_budget_bytes = 2 * kLongBytes});
  const Filter only_first = lets_first_packets_pass;
  for (const char* address : {"10.0.0.2:1", "10.0.0.3:1"}) {
    VirtualHost& client = add(address, {}, only_first);
    call(client, open(client), kPut, kLongBytes, 1);
  }
  run_for(1'000'000);
  VirtualHost& late = add("10.0.0.4:1");
  const Session session = open(late);
  call(late, session, kPut, kLongBytes, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kNoMemory] == 1; }));
  EXPECT_EQ(counters().gave_way_arriving, 0u);
  EXPECT_EQ(counters().refused_no_memory, 1u);
}

// ---- Responses that wait ----

class UnreadResponses : public Shares, public testing::WithParamInterface<uint16_t> {};
INSTANTIATE_TEST_SUITE_P(types, UnreadResponses, testing::Values(kFetch, kFetchOwned));

TEST_P(UnreadResponses, stay_within_the_budget) {
  make_server({.response_budget_bytes = kBudgetBytes});
  VirtualHost& honest = add("10.0.0.2:1");
  const Session session = open(honest);
  VirtualHost& hog = add("10.0.0.3:1", {}, never_reads_on);
  for (int i = 0; i < 4; i++) {
    const Session greedy = open(hog, {.window = 32});
    for (int j = 0; j < 32; j++) call(hog, greedy, GetParam(), 1, kLongBytes);
    run_for(1'000'000);
    EXPECT_LE(response_bytes(), kBudgetBytes);
    EXPECT_LE(server().core().census().buffers_out, kBudgetBytes / kLongBytes + 2);
  }
  EXPECT_GT(response_bytes(), kBudgetBytes / 2);
  EXPECT_GT(counters().gave_way_response, 0u);
  expect_calls_succeed(honest, session, GetParam(), 1, kLongBytes);
  EXPECT_LE(response_bytes(), kBudgetBytes);
}

TEST_P(UnreadResponses, that_gave_way_are_lost_to_their_client_only) {
  bool is_deaf = true;
  make_server({.response_budget_bytes = kBudgetBytes});
  VirtualHost& client = add("10.0.0.3:1", {}, [&](const wire::Header& header, size_t bytes) {
    return !is_deaf || never_reads_on(header, bytes);
  });
  const Session session = open(client, {.window = 24});
  for (int j = 0; j < 24; j++) call(client, session, GetParam(), 1, kLongBytes);
  run_for(1'000'000);
  is_deaf = false;
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] + ended_[Code::kNoMemory] == 24; }));
  EXPECT_GE(ended_[Code::kOk], 6);
  EXPECT_EQ(static_cast<uint64_t>(ended_[Code::kNoMemory]), counters().gave_way_response);
  run_for(300'000'000, 1'000'000);  // lets the report leave
  EXPECT_EQ(response_bytes(), 0u);
  expect_calls_succeed(client, session, GetParam(), 1, kLongBytes);
}

TEST_F(Shares, one_response_may_be_larger_than_the_budget) {
  make_server({.response_budget_bytes = 1000});
  VirtualHost& client = add("10.0.0.2:1");
  expect_calls_succeed(client, open(client), kFetch, 1, kLongBytes, 3);
}

// The older responses were written into the memory of others before them, so that their claims are as old as those.
TEST_F(Shares, a_new_response_stays_while_older_ones_are_there) {
  constexpr int kWindow = 32;
  payload_bytes_ = 4000;
  make_server({.response_budget_bytes = 64u << 10});
  VirtualHost& client = add("10.0.0.2:1", {.report_delay = std::chrono::seconds(10)});
  const Session old_ones = open(client, {.window = kWindow});
  const Session new_one = open(client, {.window = kWindow});
  for (int round = 0; round < 10; round++) {
    for (int turn = 0; turn < 2; turn++) {
      ended_.clear();
      for (int i = 0; i < kWindow; i++) call(client, old_ones, kEcho, 1300, 1300);
      ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == kWindow; }));
    }
    ended_.clear();
    call(client, new_one, kEcho, 8000, 8000);
    ASSERT_TRUE(run_until([&] { return !ended_.empty(); }));
    ASSERT_EQ(ended_[Code::kOk], 1) << "round " << round << ": " << last_.message();
  }
}

// The other response is the one that the handler may overwrite, so that neither of the two gives way.
TEST_F(Shares, a_response_that_a_handler_sends_to_an_earlier_request_does_not_wait_for_that_handlers_own) {
  constexpr uint16_t kPublish = 6;
  payload_bytes_ = 4000;
  std::optional<Request> kept;
  make_server({.response_budget_bytes = 64u << 10});
  ASSERT_TRUE(server().rpc->on_request(kKeep, [&](Request request) { kept = std::move(request); }).ok());
  ASSERT_TRUE(server()
                  .rpc
                  ->on_request(kPublish,
                               [&](Request request) {
                                 ASSERT_TRUE(kept->response(40'000).ok());
                                 kept->respond();
                                 request.respond();
                               })
                  .ok());
  VirtualHost& client = add("10.0.0.2:1", {.report_delay = std::chrono::seconds(10)});
  const Session session = open(client, {.window = 2});
  call(client, session, kKeep, 1, 40'000);
  ASSERT_TRUE(run_until([&] { return kept.has_value(); }));
  call(client, session, kEcho, 40'000, 40'000);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 1; }));
  call(client, session, kPublish, 1, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] + ended_[Code::kNoMemory] == 3; }));
  kept.reset();
}

TEST_F(Shares, memory_kept_for_the_next_response_gives_way) {
  make_server({.response_budget_bytes = kBudgetBytes});
  VirtualHost& honest = add("10.0.0.2:1");
  const Session session = open(honest);
  bool is_hog = false;
  VirtualHost& hog = add("10.0.0.3:1", {}, [&](const wire::Header& header, size_t bytes) {
    return header.kind() != wire::Kind::kReport && (!is_hog || lets_first_packets_pass(header, bytes));
  });
  const Session greedy = open(hog, {.window = 12});
  for (int i = 0; i < 6; i++) call(hog, greedy, kFetch, 1, kLongBytes);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 6; }));
  is_hog = true;
  for (int i = 0; i < 6; i++) call(hog, greedy, kPut, kLongBytes, 1);
  run_for(1'000'000);
  EXPECT_GT(arriving_bytes(), 0u);
  EXPECT_GT(response_bytes(), kBudgetBytes / 2) << "else this test measures nothing";
  for (int i = 0; i < 4; i++) call(honest, session, kFetch, 1, kLongBytes);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 10; }));
  EXPECT_EQ(counters().gave_way_response, 0u);
  EXPECT_LE(response_bytes(), kBudgetBytes);
}

TEST_F(Shares, responses_that_are_never_reported_go_in_time) {
  make_server();
  bool is_cut_off = false;
  VirtualHost& client = add("10.0.0.2:1", {}, [&](const wire::Header& header, size_t) {
    return header.kind() != wire::Kind::kReport && !is_cut_off;
  });
  const Session session = open(client, {.window = 4});
  for (int i = 0; i < 4; i++) call(client, session, kFetch, 1, kLongBytes);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 4; }));
  EXPECT_GE(response_bytes(), 4 * kLongBytes);
  run_for(10'000'000'000, 1'000'000);
  EXPECT_GE(response_bytes(), 4 * kLongBytes) << "else this test measures nothing";
  run_for(20'000'000'000, 1'000'000);
  EXPECT_EQ(response_bytes(), 0u);
  EXPECT_TRUE(client.rpc->is_open(session));
  expect_calls_succeed(client, session, kFetch, 1, kLongBytes, 4);
}

/// The sweep that was planned when the session came has passed it.
TEST_F(Shares, responses_of_a_session_that_came_during_a_sweep_go_in_time) {
  make_server();
  VirtualHost& first = add("10.0.0.2:1");
  expect_calls_succeed(first, open(first), kPut, 1, 1, 1);
  run_for(1'000'000'000, 1'000'000);
  VirtualHost& silent =
      add("10.0.0.3:1", {}, [](const wire::Header& header, size_t) { return header.kind() != wire::Kind::kReport; });
  const Session session = open(silent, {.window = 4});
  for (int i = 0; i < 4; i++) call(silent, session, kFetch, 1, kLongBytes);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 4; }));
  EXPECT_GE(response_bytes(), 4 * kLongBytes);
  run_for(30'000'000'000, 1'000'000);
  EXPECT_EQ(response_bytes(), 0u);
}

/// A check of the responses of many sessions takes some time itself.
TEST_F(Shares, responses_of_many_sessions_go_within_25_s) {
  constexpr size_t kSessions = 300, kCalls = 100;
  make_server();
  VirtualHost& silent =
      add("10.0.0.2:1", {}, [](const wire::Header& header, size_t) { return header.kind() != wire::Kind::kReport; });
  std::vector<Session> sessions;
  for (size_t i = 0; i < kSessions; i++) sessions.push_back(begin_session(silent, {}));
  ASSERT_TRUE(run_until([&] {
    return std::all_of(sessions.begin(), sessions.end(), [&](Session s) { return silent.rpc->is_open(s); });
  }));
  size_t each = 0;
  for (size_t step = 0; step < 400; step++) {  // of 0.1 s
    if (step < kCalls) call(silent, sessions[step * kSessions / kCalls], kFetch, 1, kLongBytes);
    run_for(100'000'000, 5'000'000);
    if (step == 0) each = response_bytes();
    const size_t begun = std::min(step + 1, kCalls);
    const size_t old = std::min(step - std::min<size_t>(step, 251), kCalls);  // those that began 25.2 s ago
    ASSERT_LE(response_bytes(), each * (begun - old)) << "after " << step << " steps";
  }
  EXPECT_GT(each, 0u);
  EXPECT_EQ(response_bytes(), 0u);
}

TEST_F(Shares, responses_go_while_their_session_never_rests) {
  make_server();
  std::vector<Request> kept;
  ASSERT_TRUE(server().rpc->on_request(kKeep, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  VirtualHost& client = add("10.0.0.2:1");
  const Session session = open(client);
  call(client, session, kKeep, 1, 1);
  for (int i = 0; i < 4; i++) call(client, session, kFetch, 1, kLongBytes);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 4; }));
  EXPECT_GE(response_bytes(), 4 * kLongBytes);
  run_for(300'000'000, 100'000);
  EXPECT_EQ(response_bytes(), 0u) << "its other slot is busy still";
  EXPECT_EQ(kept.size(), 1u);
  kept.clear();
}

// ---- Requests that the application keeps ----

class KeptAfterCancels : public Shares, public ::testing::WithParamInterface<bool> {};

TEST_P(KeptAfterCancels, are_bounded) {
  const bool is_hostile = GetParam();
  std::vector<Request> kept;
  make_server();
  ASSERT_TRUE(server().rpc->on_request(kKeep, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  VirtualHost& client = add("10.0.0.2:1");
  VirtualHost& honest = add("10.0.0.3:1");
  const Session session = open(client, {.window = 4});
  const Session other = open(honest, {.window = 4});
  for (int round = 0; round < 50; round++) {
    std::vector<CallId> calls;
    for (int i = 0; i < 4; i++) {
      auto started = client.rpc->enqueue_request(session, kKeep, client.rpc->alloc_msgbuf(1),
                                                 client.rpc->alloc_msgbuf(1), [](Completion&) {});
      ASSERT_TRUE(started.ok());
      calls.push_back(*started);
    }
    run_for(1'000'000);
    for (const CallId call : calls) ASSERT_TRUE(client.rpc->cancel(call).ok() || is_hostile);
    run_for(1'000'000);
    if (!is_hostile) continue;
    // The hostile client reuses its slots as if the cancels had been acknowledged.
    client.core().for_each_client_session([](const session::ClientSession& its) {
      auto& mine = const_cast<session::ClientSession&>(its);
      for (uint32_t i = 0; i < mine.window(); i++) {
        session::ClientSlot* slot = mine.slot(i);  // null: the session rests
        if (slot != nullptr && slot->phase == session::ClientSlot::Phase::kEnded) mine.release_slot(slot);
      }
    });
  }
  EXPECT_EQ(kept.size(), 5u * 4u) << "four that were given up, and one that runs, a slot";
  call(honest, other, kPut, 1, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kOk] == 1; }));
  // The application returns its requests, which makes room.
  kept.clear();
  run_for(2'000'000'000, 100'000);
  if (!is_hostile) expect_calls_succeed(client, session, kPut, 1, 1, 10);
  EXPECT_EQ(server().core().census().requests_open, 0u);
}

INSTANTIATE_TEST_SUITE_P(Clients, KeptAfterCancels, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "hostile" : "honest"; });

TEST_F(Shares, requests_kept_beyond_the_end_of_their_session_find_home) {
  make_server();
  std::vector<Request> kept;
  ASSERT_TRUE(server().rpc->on_request(kKeep, [&](Request request) { kept.push_back(std::move(request)); }).ok());
  VirtualHost& client = add("10.0.0.2:1");
  const Session session = open(client);
  for (int i = 0; i < 8; i++) call(client, session, kKeep, 1, 1);
  run_for(1'000'000);
  EXPECT_EQ(kept.size(), 8u);
  ASSERT_TRUE(client.rpc->destroy_session(session).ok());
  run_for(10'000'000);
  EXPECT_EQ(server().core().census().server_sessions, 0u);
  kept.clear();
  run_for(1'000'000);
  expect_calls_succeed(client, open(client), kPut, 1, 1, 1);
}

// ---- Sessions ----

TEST_F(Shares, sessions_of_one_address_are_limited_together) {
  make_server({.server_sessions_per_peer_max = 3});
  VirtualHost& first = add("10.0.0.2:1");
  VirtualHost& second = add("10.0.0.2:2");
  VirtualHost& other = add("10.0.0.3:1");
  open(first);
  const Session last = open(first);
  open(second);
  call(second, begin_session(second), kPut, 1, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kQueueFull] == 1; }));
  EXPECT_NE(std::string_view(last_.message()).find("server_sessions_per_peer_max"), std::string_view::npos);
  open(other);
  ASSERT_TRUE(first.rpc->destroy_session(last).ok());
  run_for(1'000'000);
  open(second);
}

TEST_F(Shares, sessions_without_a_path_end_in_time) {
  make_server();
  VirtualHost& hog = add("10.0.0.3:1", {}, never_probes_a_path);
  const Session session = begin_session(hog, {.connect_timeout = std::chrono::seconds(60)});
  // The client starts again with a longer timeout each time, until its timeout exceeds the server's.
  ASSERT_TRUE(run_until([&] { return counters().sessions_without_path == 1; }, 20'000'000'000, 1'000'000));
  EXPECT_EQ(server().core().census().server_sessions, 0u);
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 1; })) << "its client was told";
  call(hog, session, kPut, 1, 1);
  ASSERT_TRUE(run_until([&] { return ended_[Code::kPeerUnreachable] == 1; }, 70'000'000'000, 1'000'000));
}

TEST_F(Shares, sessions_with_a_path_stay) {
  make_server();
  VirtualHost& client = add("10.0.0.2:1");
  const Session session = open(client);
  run_for(12'000'000'000, 1'000'000);
  EXPECT_EQ(counters().sessions_without_path, 0u);
  expect_calls_succeed(client, session, kPut, 1, 1, 1);
}

TEST_F(Shares, sessions_without_a_path_make_room) {
  make_server({.server_sessions_max = 100});
  VirtualHost& honest = add("10.0.0.2:1");
  std::vector<VirtualHost*> hogs;
  for (int i = 3; i < 6; i++) {
    hogs.push_back(&add("10.0.0." + std::to_string(i) + ":1", {}, never_probes_a_path));
    for (int j = 0; j < 70; j++) begin_session(*hogs.back());
    run_for(2'000'000);
  }
  EXPECT_EQ(server().core().census().server_sessions, 100u);
  const Session session = open(honest);
  expect_calls_succeed(honest, session, kPut, 1, 1);
  EXPECT_GT(counters().sessions_without_path, 0u);
}

/// An older session of another host, also without a path, does not keep a host's own from making room.
TEST_F(Shares, a_hosts_own_session_without_a_path_makes_room_for_its_next_one) {
  make_server({.server_sessions_per_peer_max = 1});
  VirtualHost& other = add("10.0.0.3:1", {}, never_probes_a_path);
  begin_session(other);
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 1; }));
  VirtualHost& hog = add("10.0.0.2:1", {}, never_probes_a_path);
  begin_session(hog);
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 2; }));
  run_for(300'000'000, 1'000'000);  // the sessions are now old enough to make room, also those of repeated handshakes
  VirtualHost& honest = add("10.0.0.2:2");
  const Session session = open(honest);
  EXPECT_EQ(counters().sessions_without_path, 1u);
  expect_calls_succeed(honest, session, kPut, 1, 1);
}

TEST_F(Shares, a_session_that_made_room_before_its_client_had_the_answer_is_asked_for_anew) {
  make_server({.server_sessions_max = 1});
  VirtualHost& late = add("10.0.0.2:1");
  VirtualHost& other = add("10.0.0.3:1");
  environment_.lose("10.0.0.2:1", [](const wire::ManagementMessage& message) {
    return message.kind == wire::ManagementKind::kConnectReply || message.kind == wire::ManagementKind::kDisconnect;
  });
  const Session session = begin_session(late, {.connect_timeout = std::chrono::seconds(20)});
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 1; }));
  run_for(200'000'000, 1'000'000);  // the session is now old enough to make room
  const Session short_one = open(other);
  ASSERT_TRUE(other.rpc->is_open(short_one));
  EXPECT_EQ(counters().sessions_without_path, 1u);
  ASSERT_TRUE(other.rpc->destroy_session(short_one).ok());
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 0; }));
  environment_.lose("", {});
  EXPECT_TRUE(run_until([&] { return late.rpc->is_open(session); }));
  expect_calls_succeed(late, session, kPut, 1, 1);
}

TEST_F(Shares, sessions_get_their_time_again_after_the_server_was_absent) {
  make_server();
  VirtualHost& client = add("10.0.0.2:1");
  const Session session = begin_session(client, {.connect_timeout = std::chrono::seconds(60)});
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 1; }));
  network_.now_ns += 7'000'000'000;  // nobody's loop ran
  ASSERT_TRUE(run_until([&] { return client.rpc->is_open(session); }));
  EXPECT_EQ(counters().sessions_without_path, 0u);
}

// ---- Deaths ----

TEST_F(Shares, death_of_a_peer_ends_its_sessions_only) {
  make_server();
  VirtualHost& first = add("10.0.0.2:1");
  VirtualHost& second = add("10.0.0.2:2");
  for (int i = 0; i < 5; i++) open(first);
  const Session other = open(second);
  EXPECT_EQ(server().core().census().server_sessions, 6u);
  environment_.cut_off("10.0.0.2:1");
  ASSERT_TRUE(run_until([&] { return server().core().census().server_sessions == 1; }, 60'000'000'000, 10'000'000));
  EXPECT_EQ(counters().sessions_failed, 5u);
  ASSERT_TRUE(run_until([&] { return first.core().census().client_sessions == 0; }, 60'000'000'000, 10'000'000));
  expect_calls_succeed(second, other, kPut, 1, 1, 1);
}

// ---- Credits ----

TEST_F(Shares, sessions_that_only_probe_do_not_lower_the_limit_of_others) {
  struct Known {
    uint32_t key, number, token, request_number;
  };
  std::vector<Known> idle;
  uint32_t limit_min = UINT32_MAX;
  make_server({}, [&](const wire::Header& header, size_t) {
    if (header.kind() == wire::Kind::kResponse) limit_min = std::min<uint32_t>(limit_min, header.credit_limit());
    return true;
  });
  VirtualHost& active = add("10.0.0.2:1");
  VirtualHost& prober = add("10.0.0.3:1", {}, [&](const wire::Header& header, size_t bytes) {
    if (header.kind() == wire::Kind::kPathProbe && bytes != 0) {
      idle.push_back({header.session_key(), header.number(), header.token(), header.request_number()});
    }
    return true;
  });
  for (int i = 0; i < 60; i++) open(prober);
  ASSERT_GE(idle.size(), 60u);
  const Session session = open(active);
  run_for(50'000'000);  // the epochs in which these sessions opened are over
  auto* transport = network_.endpoints.begin()->second;
  limit_min = UINT32_MAX;
  for (int i = 0; i < 400; i++) {
    for (Known& known : idle) {
      transport->inject(wire::client_header(wire::Kind::kProbe, 0, known.key, ++known.number, known.request_number, 0,
                                            0, known.token),
                        {});
    }
    expect_calls_succeed(active, session, kEcho, 32, 32, 1);
    for (int j = 0; j < 4; j++) turn();
  }
  EXPECT_EQ(limit_min, 128u);
}

}  // namespace
}  // namespace tern::rpc_test
