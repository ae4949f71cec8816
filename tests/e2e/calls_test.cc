// Calls between processes over every transport: contents, order, handlers of every kind, limits, errors.

#include <gmock/gmock.h>

#include <algorithm>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::HasSubstr;

class Calls : public OverTransports {};
E2E_OVER_TRANSPORTS(Calls);

TEST_P(Calls, echo_around_each_size_limit_keeps_all_bytes) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  std::vector<size_t> sizes;
  // Sizes around cells of 64 B, around payloads of a 1400 B datagram, of pages and of packets by reference.
  for (size_t size = 0; size <= 130; size++) sizes.push_back(size);
  for (size_t edge : {512, 1024, 1376, 1400, 2016, 2 * 1376, 4096, 8192, 8 * 1376, 65536, 2 * 65536}) {
    for (size_t size = edge - 9; size <= edge + 9; size++) sizes.push_back(size);
  }
  for (size_t size : {1u << 20, (1u << 20) + 1, 8u << 20}) sizes.push_back(size);
  for (size_t size : sizes) {
    Call* call = caller.send_pattern(session, kEcho, size, size);
    ASSERT_EQ(caller.end_of(call), Code::kOk) << size << " B: " << call->status.message();
    ASSERT_EQ(call->response.bytes().size(), size);
    ASSERT_TRUE(is_filled(call->response.bytes(), size)) << size << " B";
    ASSERT_TRUE(is_filled(call->request.bytes(), size)) << size << " B: the request has changed";
    call->forget();
  }
  EXPECT_EQ(server.board().handled, sizes.size());
}

TEST_P(Calls, unequal_sizes_in_both_directions_arrive_whole) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  const size_t sizes[] = {sizeof(Order), 1000, 1377, 5000, 70000, 300000, 3000000};
  uint64_t id = 1;
  for (size_t request_bytes : sizes) {
    for (size_t reply_bytes : sizes) {
      caller.send_order(session, kWork, {id++, static_cast<uint32_t>(reply_bytes), 0}, request_bytes);
    }
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) {
    EXPECT_TRUE(Caller::is_right(*call)) << call->order_id << ": " << call->status.message();
  }
  EXPECT_EQ(server.board().damaged, 0u);
  for (uint64_t i = 1; i < id; i++) EXPECT_EQ(server.board().handled_by_id[i], 1);
}

/// The largest message. Over the network and under a sanitizer, 64 MiB take its place unless TERN_E2E_LARGE is set,
/// because a kernel socket takes seconds for 1 GiB, and ThreadSanitizer takes a minute.
TEST_P(Calls, largest_message_arrives_whole_in_both_directions) {
#ifdef TERN_IS_SANITIZED
  constexpr bool kIsSlow = true;
#else
  constexpr bool kIsSlow = false;
#endif
  const bool is_whole = (is_shm() && !kIsSlow) || std::getenv("TERN_E2E_LARGE") != nullptr;
  const size_t bytes = is_whole ? size_t{1} << 30 : size_t{64} << 20;
  Peer server(settings().with("receive_budget", size_t{1} << 30));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  Call* up = caller.send_order(session, kWork, {1, 8, 0}, bytes);
  ASSERT_EQ(caller.end_of(up), Code::kOk) << up->status.message();
  EXPECT_TRUE(Caller::is_right(*up));
  EXPECT_EQ(server.board().damaged, 0u);
  up->forget();
  Call* down = caller.send_order(session, kWork, {2, static_cast<uint32_t>(bytes), 0});
  ASSERT_EQ(caller.end_of(down), Code::kOk) << down->status.message();
  EXPECT_TRUE(Caller::is_right(*down));
}

TEST_P(Calls, a_slow_request_does_not_hold_up_the_others) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri(), {.window = 8});
  Call* slow = caller.send_pattern(session, kHold, 100, 1);
  for (uint64_t id = 1; id < 60; id++) ASSERT_NE(caller.send_order(session, kWork, {id, 64, 0}, 200), nullptr);
  ASSERT_TRUE(caller.run_until([&] { return caller.ended() == 59; }));
  EXPECT_EQ(slow->ends, 0);
  server.board().release = 1;
  ASSERT_EQ(caller.end_of(slow), Code::kOk);
  EXPECT_TRUE(is_filled(slow->response.bytes(), 1));
  for (size_t i = 1; i < 60; i++) EXPECT_TRUE(Caller::is_right(*caller.calls()[i]));
}

TEST_P(Calls, sixty_outstanding_complete_out_of_order) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri(), {.window = 8});
  // The first of every eight requests waits longest at the server.
  for (uint64_t id = 0; id < 60; id++) {
    caller.send_order(session, kWork, {id, 40, static_cast<uint32_t>(8 - id % 8) * 2000}, 500);
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call));
  const bool is_in_order =
      std::is_sorted(caller.calls().begin(), caller.calls().end(),
                     [](const auto& a, const auto& b) { return a->ended_as_nth < b->ended_as_nth; });
  EXPECT_FALSE(is_in_order);
}

TEST_P(Calls, nested_calls_through_a_third_process_are_answered) {
  Peer backend(settings());
  Peer middle(settings().with("backend", backend.uri()));
  Caller caller(settings());
  const tern::Session session = caller.open(middle.uri());
  for (uint64_t id = 0; id < 100; id++) {
    caller.send_order(session, kNested, {id, static_cast<uint32_t>(id * 97), id % 3 == 0 ? 500u : 0u}, 24 + id * 131);
  }
  Call* large = caller.send_order(session, kNested, {100, 2000000, 0}, 1000000);
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  EXPECT_TRUE(Caller::is_right(*large));
  for (uint64_t id = 0; id <= 100; id++) EXPECT_EQ(backend.board().handled_by_id[id], 1);
  EXPECT_EQ(backend.board().damaged, 0u);
}

TEST_P(Calls, dead_backend_fails_the_nested_call) {
  Peer backend(settings());
  Peer middle(settings().with("backend", backend.uri()));
  Caller caller(settings());
  const tern::Session session = caller.open(middle.uri());
  ASSERT_EQ(caller.end_of(caller.send_order(session, kNested, {1, 8, 0})), Code::kOk);
  Call* call = caller.send_order(session, kNested, {2, 8, 60'000'000});
  ASSERT_TRUE(caller.run_until([&] { return backend.board().handled_by_id[2] == 1; }));
  backend.kill();
  EXPECT_EQ(caller.end_of(call), Code::kRefused);
  EXPECT_EQ(call->app_code, static_cast<uint16_t>(Code::kPeerUnreachable));
}

TEST_P(Calls, worker_handlers_answer_and_leave_the_loop_free) {
  Peer server(settings().with("workers", 2));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  // Both workers are busy until the board releases them. Calls in the loop go on.
  Call* slow[] = {caller.send_order(session, kWorker, {1, 100, kUntilRelease}, 5000),
                  caller.send_order(session, kWorker, {2, 5000, kUntilRelease})};
  ASSERT_TRUE(caller.run_until([&] { return server.board().handled == 2; }));
  for (uint64_t id = 3; id < 50; id++) caller.send_order(session, kWork, {id, 5000, 0}, 5000);
  ASSERT_TRUE(caller.run_until([&] { return caller.ended_ok() == 47; }));
  EXPECT_EQ(slow[0]->ends + slow[1]->ends, 0);
  server.board().release = 1;
  for (uint64_t id = 50; id < 250; id++)
    caller.send_order(session, kWorker, {id, static_cast<uint32_t>(id * 20), 0}, id * 30);
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->order_id;
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(Calls, threads_on_both_sides_answer_all_calls) {
  Peer server(settings().with("endpoints", 2));
  auto nexus = create_nexus();
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (uint16_t id = 0; id < 3; id++) {
    threads.emplace_back([&, id] {
      Caller caller(*nexus, settings(), id);
      const tern::Session sessions[] = {caller.open(server.uri(0)), caller.open(server.uri(1))};
      for (uint64_t i = 0; i < 300; i++) {
        caller.send_order(sessions[i % 2], kWork, {id * 1000u + i, static_cast<uint32_t>(i % 50 * 200), 0},
                          24 + i % 70 * 99);
      }
      EXPECT_TRUE(caller.finish());
      for (const auto& call : caller.calls()) right += Caller::is_right(*call);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 900);
  EXPECT_EQ(server.board().handled, 900u);
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(Calls, two_hundred_sessions_answer_all_calls) {
  Peer server(settings());
  Caller caller(settings());
  std::vector<tern::Session> sessions;
  for (int i = 0; i < 200; i++) sessions.push_back(caller.connect(server.uri(), {.connect_timeout = kBound}));
  // Calls made before the session is open wait for it.
  for (uint64_t id = 0; id < 800; id++) {
    caller.send_order(sessions[id % sessions.size()], kWork, {id, 100, 0}, id % 5 == 0 ? 4000 : 100);
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) ASSERT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (size_t i = 0; i < sessions.size(); i += 2) EXPECT_TRUE(caller.endpoint().destroy_session(sessions[i]).ok());
  caller.run_for(std::chrono::milliseconds(5));
  Call* gone = caller.send_order(sessions[0], kWork, {900, 8, 0});
  EXPECT_EQ(gone, nullptr);
  EXPECT_EQ(caller.refusal.code(), Code::kSessionReset);
  EXPECT_EQ(caller.end_of(caller.send_order(sessions[1], kWork, {901, 8, 0})), Code::kOk);
}

TEST_P(Calls, deadline_and_cancel_reach_the_server) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  Call* late = caller.send_pattern(session, kHold, 64, 1, {.deadline = std::chrono::milliseconds(2000)});
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 1 || late->ends == 1; }));
  const int64_t left_ns = server.board().time_left_ns;
  EXPECT_GT(left_ns, 0);
  EXPECT_LE(left_ns, 2'040'000'000);  // the code on the wire is coarse
  EXPECT_EQ(caller.end_of(late), Code::kDeadline);
  EXPECT_TRUE(caller.run_until([&] { return server.board().cancels_seen == 1; }));

  for (size_t bytes : {64, 100000}) {
    const uint64_t seen = server.board().cancels_seen;
    Call* call = caller.send_pattern(session, kHold, bytes, 2);
    ASSERT_TRUE(caller.run_until([&] { return server.board().held == 1; }));
    EXPECT_EQ(server.board().time_left_ns, INT64_MAX);
    EXPECT_TRUE(caller.endpoint().cancel(call->id).ok());
    EXPECT_EQ(caller.end_of(call), Code::kCancelled);
    EXPECT_TRUE(caller.run_until([&] { return server.board().cancels_seen == seen + 1; }));
    EXPECT_EQ(caller.endpoint().cancel(call->id).code(), Code::kMisuse);
  }
  // The slots of all these calls can be used again.
  for (uint64_t id = 0; id < 32; id++) caller.send_order(session, kWork, {id, 64, 0});
  ASSERT_TRUE(caller.finish());
  for (size_t i = 3; i < caller.calls().size(); i++) EXPECT_TRUE(Caller::is_right(*caller.calls()[i]));
}

TEST_P(Calls, cancel_amid_a_large_message_releases_its_buffers) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint64_t round = 0; round < 10; round++) {
    Call* up = caller.send_order(session, kWork, {1000 + round, 8, 0}, 16 << 20);
    Call* down = caller.send_order(session, kWork, {2000 + round, 16 << 20, 0});
    caller.run_for(std::chrono::microseconds(200 * round));
    for (Call* call : {up, down}) {
      caller.cancel(call);
    }
    ASSERT_TRUE(caller.finish());
    for (Call* call : {up, down}) {
      EXPECT_TRUE(call->code() == Code::kCancelled || Caller::is_right(*call)) << call->status.message();
      // The library has released the buffers: changing their bytes now must harm nothing.
      fill(call->request.bytes(), 12345);
      call->forget();
    }
    ASSERT_EQ(caller.end_of(caller.send_order(session, kWork, {round, 100, 0})), Code::kOk);
  }
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(Calls, destroying_a_session_cancels_its_calls) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri(), {.window = 4});
  for (int i = 0; i < 20; i++) caller.send_pattern(session, kHold, 64, 1);
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 4; }));
  EXPECT_TRUE(caller.endpoint().destroy_session(session).ok());
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_EQ(call->code(), Code::kCancelled);
  EXPECT_TRUE(caller.run_until([&] { return server.board().cancels_seen == 4; }));
  const tern::Session next = caller.open(server.uri());
  EXPECT_EQ(caller.end_of(caller.send_order(next, kWork, {1, 64, 0})), Code::kOk);
}

TEST_P(Calls, each_failure_at_the_server_has_its_own_status) {
  Peer server(settings().with("receive_budget", 1 << 20));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (int round = 0; round < 3; round++) {
    EXPECT_EQ(caller.end_of(caller.send_pattern(session, kDrop, 10, 1)), Code::kNoResponse);
    EXPECT_EQ(caller.end_of(caller.send_pattern(session, kDrop, 10000, 1)), Code::kNoResponse);

    Call* failed = caller.send_order(session, kFail, {1, 4711, 0}, 5000);
    EXPECT_EQ(caller.end_of(failed), Code::kRefused);
    EXPECT_EQ(failed->app_code, 4711);

    for (size_t bytes : {10, 10000}) {
      Call* unknown = caller.send_pattern(session, kUnknown, bytes, 1);
      EXPECT_EQ(caller.end_of(unknown), Code::kRefused);
      EXPECT_THAT(std::string(unknown->status.message()), HasSubstr("type"));
      EXPECT_EQ(unknown->app_code, 0);
    }

    EXPECT_EQ(caller.end_of(caller.send_pattern(session, kSmall, kSmallLimitBytes, 1)), Code::kOk);
    for (size_t bytes : {kSmallLimitBytes + 1, size_t{100000}}) {
      Call* large = caller.send_pattern(session, kSmall, bytes, 1);
      EXPECT_EQ(caller.end_of(large), Code::kTooLarge);
      EXPECT_THAT(std::string(large->status.message()), HasSubstr("max_request_bytes"));
    }
    Call* beyond = caller.send_pattern(session, kEcho, (1 << 20) + 1, 1);
    EXPECT_EQ(caller.end_of(beyond), Code::kNoMemory);
    EXPECT_THAT(std::string(beyond->status.message()), HasSubstr("receive_budget_bytes"));
    EXPECT_EQ(caller.end_of(caller.send_pattern(session, kEcho, 1 << 19, 1)), Code::kOk);
  }
}

TEST_P(Calls, response_larger_than_its_buffer_is_too_large) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  for (uint32_t reply_bytes : {200u, 5000u, 1000000u}) {
    tern::MsgBuf request = caller.endpoint().alloc_msgbuf(sizeof(Order));
    write_order(request.bytes(), {reply_bytes, reply_bytes, 0});
    tern::MsgBuf room = caller.endpoint().alloc_msgbuf(100);
    ASSERT_LT(room.capacity(), reply_bytes);
    Call* call = caller.send(session, kWork, std::move(request), 100);
    EXPECT_EQ(caller.end_of(call), Code::kTooLarge) << reply_bytes;
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("response"));
  }
  EXPECT_EQ(caller.end_of(caller.send_order(session, kWork, {1, 5000, 0})), Code::kOk);
}

TEST_P(Calls, enqueue_refuses_a_full_queue_and_wrong_arguments) {
  Peer server(settings());
  Caller caller(settings().with("queue_limit", 4));
  const tern::Session session = caller.open(server.uri(), {.window = 2});
  for (int i = 0; i < 6; i++) ASSERT_NE(caller.send_pattern(session, kHold, 32, 1), nullptr) << i;
  EXPECT_EQ(caller.send_pattern(session, kHold, 32, 1), nullptr);
  EXPECT_EQ(caller.refusal.code(), Code::kQueueFull);
  // Both slots are taken at the server. A waiting call can be cancelled, too, which makes room.
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 2; }));
  EXPECT_TRUE(caller.endpoint().cancel(caller.calls()[4]->id).ok());
  EXPECT_EQ(caller.end_of(caller.calls()[4].get()), Code::kCancelled);
  EXPECT_NE(caller.send_pattern(session, kHold, 32, 1), nullptr);
  server.board().release = 1;
  ASSERT_TRUE(caller.finish());
  EXPECT_EQ(caller.ended_ok(), 6u);

  EXPECT_EQ(caller.send_pattern(session, 4096, 32, 1), nullptr);
  EXPECT_EQ(caller.refusal.code(), Code::kMisuse);
  EXPECT_FALSE(caller.endpoint().alloc_msgbuf(size_t{2} << 30));
  tern::MsgBuf none, room = caller.endpoint().alloc_msgbuf(10);
  auto refused = caller.endpoint().enqueue_request(session, kEcho, std::move(none), std::move(room),
                                                   [](tern::Completion&) { FAIL(); });
  EXPECT_EQ(refused.status().code(), Code::kMisuse);
  EXPECT_TRUE(room);
}

TEST_P(Calls, full_worker_queue_refuses_requests) {
  Peer server(settings().with("workers", 1).with("worker_queue", 2));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri(), {.window = 16});
  // One request runs and two wait.
  Call* busy = caller.send_order(session, kWorker, {0, 8, kUntilRelease});
  ASSERT_TRUE(caller.run_until([&] { return server.board().handled == 1; }));
  for (uint64_t id = 1; id < 16; id++) caller.send_order(session, kWorker, {id, 8, 0});
  ASSERT_TRUE(caller.run_until([&] { return caller.ended() == 13; }));
  for (const auto& call : caller.calls()) {
    if (call->ends == 0) continue;
    EXPECT_EQ(call->code(), Code::kQueueFull);
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("worker queue"));
  }
  server.board().release = 1;
  ASSERT_TRUE(caller.finish());
  EXPECT_TRUE(Caller::is_right(*busy));
  EXPECT_EQ(caller.ended_ok(), 3u);
  EXPECT_EQ(server.board().handled, 3u);
}

TEST_P(Calls, many_random_calls_are_answered) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session sessions[] = {caller.open(server.uri(), {.window = 1}), caller.open(server.uri(), {.window = 64}),
                                    caller.open(server.uri())};
  for (uint64_t id = 0; id < 4000; id++) {
    const uint64_t random = pattern_word(77, id);
    const size_t size_max = random % 100 == 0 ? 500'000 : random % 10 == 0 ? 20'000 : 1500;
    const size_t request_bytes = sizeof(Order) + (random >> 8) % size_max;
    const auto reply_bytes = static_cast<uint32_t>((random >> 32) % size_max);
    const uint32_t delay_us = random % 7 == 0 ? 300 : 0;
    caller.send_order(sessions[id % 3], id % 11 == 0 ? kWorker : kWork, {id, reply_bytes, delay_us}, request_bytes);
    ASSERT_TRUE(caller.run_until([&] { return caller.ended() + 200 > id; }));
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls())
    ASSERT_TRUE(Caller::is_right(*call)) << call->order_id << call->status.message();
  for (uint64_t id = 0; id < 4000; id++) ASSERT_EQ(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u);
}
