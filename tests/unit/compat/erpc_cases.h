// Behaviour of eRPC that programs rely on. One test for each transport includes this file.
#pragma once

#include "erpc_face.h"

namespace {

TEST_F(Erpc, preallocated_response_answers_a_request) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  EXPECT_EQ(session, 0) << "numbers count from 0";
  ASSERT_EQ(at_client.events.size(), 1u);
  EXPECT_EQ(at_client.events[0].session, session);
  EXPECT_EQ(at_client.events[0].type, erpc::SmEventType::kConnected);
  EXPECT_EQ(at_client.events[0].error, erpc::SmErrType::kNoError);
  EXPECT_TRUE(at_server.events.empty()) << "only clients hear of sessions";
  erpc::MsgBuffer request = message("hello"), response = client->alloc_msg_buffer_or_die(1024);
  const uint8_t* const memory = response.buf_;
  ask(session, kEcho, request, response, 17);
  EXPECT_EQ(text_of(response), "hello");
  EXPECT_EQ(response.buf_, memory);
  EXPECT_EQ(text_of(request), "hello");
  EXPECT_EQ(at_client.tags, std::vector<size_t>{17});
  // The buffers are used again with other sizes.
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{1024}}) {
    erpc::MsgBuffer sized = client->alloc_msg_buffer_or_die(1024);
    CRpc::resize_msg_buffer(&sized, bytes);
    std::memset(sized.buf_, 'x', bytes);
    ask(session, kEcho, sized, response);
    EXPECT_EQ(text_of(response), std::string(bytes, 'x'));
    client->free_msg_buffer(sized);
  }
}

TEST_F(Erpc, dynamic_responses_of_all_sizes_arrive_whole) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = client->alloc_msg_buffer_or_die(sizeof(size_t));
  erpc::MsgBuffer response = client->alloc_msg_buffer_or_die(3'000'000);
  for (size_t bytes : {size_t{1}, size_t{1024}, size_t{100'000}, size_t{3'000'000}}) {
    std::memcpy(request.buf_, &bytes, sizeof(bytes));
    ask(session, kDynamic, request, response);
    EXPECT_EQ(text_of(response), std::string(bytes, 'd'));
  }
  EXPECT_EQ(server->get_stat_user_alloc_tot(), 0u) << "the library frees responses";
  // A response longer than the buffer is a failure, and the session goes on.
  const size_t bytes = 100'000;
  std::memcpy(request.buf_, &bytes, sizeof(bytes));
  erpc::MsgBuffer small = client->alloc_msg_buffer_or_die(100);
  ask(session, kDynamic, request, small);
  EXPECT_EQ(small.get_data_size(), 0u);
  EXPECT_TRUE(client->is_connected(session));
}

TEST_F(Erpc, a_message_buffer_is_a_view) {
  ASSERT_NO_FATAL_FAILURE(start());
  erpc::MsgBuffer buffer = client->alloc_msg_buffer(100);
  EXPECT_EQ(buffer.get_data_size(), 100u);
  erpc::MsgBuffer copy = buffer;
  CRpc::resize_msg_buffer(&copy, 10);
  EXPECT_EQ(buffer.get_data_size(), 100u);
  EXPECT_EQ(copy.buf_, buffer.buf_);
  // One copy of a buffer may send it, and another copy may free it.
  std::memset(buffer.buf_, 'v', 100);
  const int session = open();
  erpc::MsgBuffer response = client->alloc_msg_buffer_or_die(100);
  ask(session, kEcho, copy, response);
  EXPECT_EQ(text_of(response), std::string(10, 'v'));
  EXPECT_GT(client->get_stat_user_alloc_tot(), 0u);
  client->free_msg_buffer(buffer);
  client->free_msg_buffer(response);
  EXPECT_EQ(client->get_stat_user_alloc_tot(), 0u);
  EXPECT_THROW((void)client->alloc_msg_buffer(CRpc::get_max_msg_size() + 1), std::runtime_error);
  EXPECT_EQ(erpc::MsgBuffer().buf_, nullptr);
}

TEST_F(Erpc, responses_after_the_handler_arrive_in_any_order) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  constexpr size_t kRequests = 6;
  std::vector<erpc::MsgBuffer> requests, responses;
  for (size_t i = 0; i < kRequests; i++) {
    requests.push_back(message("request " + std::to_string(i)));
    responses.push_back(client->alloc_msg_buffer_or_die(100));
  }
  for (size_t i = 0; i < kRequests; i++) {
    client->enqueue_request(session, kLater, &requests[i], &responses[i], on_done, reinterpret_cast<void*>(i));
  }
  ASSERT_TRUE(run_until([&] { return at_server.kept.size() == kRequests; }));
  while (!at_server.kept.empty()) {
    erpc::ReqHandle* const handle = at_server.kept.back();
    at_server.kept.pop_back();
    EXPECT_EQ(handle->get_server_rpc_id(), 0);
    echo(handle, &at_server);
  }
  ASSERT_TRUE(run_until([&] { return at_client.continuations == kRequests; }));
  for (size_t i = 0; i < kRequests; i++) EXPECT_EQ(text_of(responses[i]), "request " + std::to_string(i));
}

TEST_F(Erpc, requests_beyond_the_window_wait_and_are_answered) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  constexpr size_t kRequests = 6000;
  std::vector<erpc::MsgBuffer> requests(kRequests), responses(kRequests);
  for (size_t i = 0; i < kRequests; i++) {
    requests[i] = message(std::to_string(i));
    responses[i] = client->alloc_msg_buffer_or_die(10);
    client->enqueue_request(session, kEcho, &requests[i], &responses[i], on_done, nullptr);
  }
  ASSERT_TRUE(run_until([&] { return at_client.continuations == kRequests; }));
  for (size_t i = 0; i < kRequests; i++) ASSERT_EQ(text_of(responses[i]), std::to_string(i));
}

TEST_F(Erpc, background_handlers_answer_requests) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = message("from the foreground"), response = client->alloc_msg_buffer_or_die(100);
  ask(session, kBackground, request, response);
  EXPECT_EQ(text_of(response), "from the foreground");
  EXPECT_LT(at_server.background_etid, 2u) << "background threads have the lowest ids";
  EXPECT_EQ(server->get_etid(), 2u);
  EXPECT_FALSE(server->in_background());
  // A background thread keeps the request, and the foreground answers it.
  client->enqueue_request(session, kBackgroundLater, &request, &response, on_done, nullptr);
  ASSERT_TRUE(run_until([&] { return at_server.kept_in_background != nullptr; }));
  const size_t before = at_client.continuations;
  echo(at_server.kept_in_background, &at_server);
  ASSERT_TRUE(run_until([&] { return at_client.continuations == before + 1; }));
  EXPECT_EQ(text_of(response), "from the foreground");
}

// One session after the other fills its window; the last request of each is answered at once.
TEST_F(Erpc, any_number_of_background_requests_may_wait) {
  ASSERT_NO_FATAL_FAILURE(start());
  constexpr size_t kSessions = 600, kBlockedEach = 7;
  std::vector<int> sessions;
  for (size_t i = 0; i < kSessions; i++) sessions.push_back(client->create_session(server_uri, 0));
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == kSessions; }));
  std::deque<erpc::MsgBuffer> requests, responses;
  const auto enqueue = [&](int session, uint8_t type) {
    requests.push_back(message("x"));
    responses.push_back(client->alloc_msg_buffer_or_die(8));
    client->enqueue_request(session, type, &requests.back(), &responses.back(), on_done, nullptr);
  };
  for (const int session : sessions) {
    for (size_t i = 0; i < kBlockedEach; i++) enqueue(session, kBlocked);
    enqueue(session, kEcho);
  }
  EXPECT_TRUE(run_until([&] { return at_client.continuations >= kSessions; }));
  EXPECT_EQ(at_client.continuations, kSessions);
  at_server.may_answer = true;
  at_server.may_answer.notify_all();
  ASSERT_TRUE(run_until([&] { return at_client.continuations == requests.size(); }));
  for (const erpc::MsgBuffer& response : responses) ASSERT_EQ(text_of(response), "x");
}

TEST_F(Erpc, background_threads_may_send_requests) {
  ASSERT_NO_FATAL_FAILURE(start());
  // The server has a session, too, with another Rpc of the client's Nexus.
  const std::string uri = free_uri();
  erpc::Nexus third_nexus(uri, 0, 1);
  register_all(third_nexus);
  Context at_third;
  CRpc third(&third_nexus, &at_third, 3, nullptr);
  at_third.rpc = &third;
  at_server.session = server->create_session(uri, 3);
  ASSERT_TRUE(run_until([&] {
    third.run_event_loop_once();
    return server->is_connected(at_server.session);
  }));
  const int session = open();
  erpc::MsgBuffer request = message("?"), response = client->alloc_msg_buffer_or_die(1);
  ask(session, kAsk, request, response);
  ASSERT_TRUE(run_until([&] {
    third.run_event_loop_once();
    return at_server.continuations == 1;
  }));
  EXPECT_EQ(text_of(at_server.buffers.back()), "bang");
  EXPECT_EQ(server->num_active_sessions(), 2u) << "one as a client, one as a server";
  EXPECT_EQ(third.num_active_sessions(), 1u);
}

TEST_F(Erpc, sessions_end_with_the_event_that_a_program_expects) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int first = open(), second = open();
  EXPECT_EQ(second, 1);
  EXPECT_EQ(client->num_active_sessions(), 2u);
  EXPECT_EQ(client->get_remote_hostname(first), tern::test::own_loopback());
  EXPECT_EQ(client->destroy_session(99), -EINVAL);
  EXPECT_EQ(client->destroy_session(-1), -EINVAL);
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  client->enqueue_request(first, kLater, &request, &response, on_done, nullptr);
  EXPECT_EQ(client->destroy_session(first), -EBUSY);
  ASSERT_TRUE(run_until([&] { return at_server.kept.size() == 1; }));
  echo(at_server.kept[0], &at_server);
  ASSERT_TRUE(run_until([&] { return at_client.continuations == 1; }));
  EXPECT_EQ(client->destroy_session(first), 0);
  EXPECT_EQ(client->destroy_session(first), -EALREADY);
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == 3; }));
  EXPECT_EQ(at_client.events[2].session, first);
  EXPECT_EQ(at_client.events[2].type, erpc::SmEventType::kDisconnected);
  EXPECT_EQ(at_client.events[2].error, erpc::SmErrType::kNoError);
  EXPECT_EQ(client->destroy_session(first), -EPERM);
  EXPECT_FALSE(client->is_connected(first));
  EXPECT_EQ(client->num_active_sessions(), 1u);
  ASSERT_TRUE(run_until([&] { return server->num_active_sessions() == 1; }));
}

TEST_F(Erpc, create_session_refuses_at_once) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(server->create_session(server_uri, 0), -EINVAL) << "itself";
  EXPECT_EQ(client->create_session("nonsense", 0), -EINVAL);
  EXPECT_EQ(client->create_session("127.0.0.1:0", 0), -EINVAL);
  std::thread([&] { EXPECT_EQ(client->create_session(server_uri, 0), -EPERM); }).join();
  EXPECT_EQ(client->create_session(server_uri, 0), 0) << "what was refused takes no number";
}

TEST_F(Erpc, wrong_rpc_id_fails_or_is_tried_again) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int wrong = client->create_session(server_uri, 9);
  ASSERT_TRUE(run_until([&] { return !at_client.events.empty(); }));
  EXPECT_EQ(at_client.events[0].session, wrong);
  EXPECT_EQ(at_client.events[0].type, erpc::SmEventType::kConnectFailed);
  EXPECT_EQ(at_client.events[0].error, erpc::SmErrType::kInvalidRemoteRpcId);
  EXPECT_EQ(client->num_active_sessions(), 0u);

  client->retry_connect_on_invalid_rpc_id_ = true;
  const int early = client->create_session(server_uri, 9);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  run_until([&] { return std::chrono::steady_clock::now() > until; });
  EXPECT_EQ(at_client.events.size(), 1u) << "nothing is told of the attempts";
  Context at_late;
  CRpc late(server_nexus.get(), &at_late, 9, nullptr);
  at_late.rpc = &late;
  ASSERT_TRUE(run_until([&] {
    late.run_event_loop_once();
    return client->is_connected(early);
  }));
  EXPECT_EQ(at_client.events.back().type, erpc::SmEventType::kConnected);
}

TEST_F(Erpc, server_may_start_after_its_client) {
  ASSERT_NO_FATAL_FAILURE(start_client());
  const int session = client->create_session(server_uri, 0);
  ASSERT_GE(session, 0);
  client->run_event_loop(200);
  EXPECT_TRUE(at_client.events.empty());
  ASSERT_NO_FATAL_FAILURE(start_server());
  ASSERT_TRUE(run_until([&] { return client->is_connected(session); }));
}

TEST_F(Erpc, requests_of_a_session_that_ends_have_empty_responses) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  constexpr size_t kRequests = 20;  // more than a window
  std::vector<erpc::MsgBuffer> requests, responses;
  for (size_t i = 0; i < kRequests; i++) {
    requests.push_back(message("x"));
    responses.push_back(client->alloc_msg_buffer_or_die(8));
  }
  for (size_t i = 0; i < kRequests; i++) {
    client->enqueue_request(session, kLater, &requests[i], &responses[i], on_done, nullptr);
  }
  ASSERT_TRUE(run_until([&] { return !at_server.kept.empty(); }));
  server.reset();  // the program still holds requests of this server
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == 2; }));
  EXPECT_EQ(at_client.continuations, kRequests) << "all of them before the event";
  for (const erpc::MsgBuffer& response : responses) EXPECT_EQ(response.get_data_size(), 0u);
  EXPECT_EQ(at_client.events[1].type, erpc::SmEventType::kDisconnected);
  EXPECT_EQ(at_client.events[1].error, erpc::SmErrType::kSrvDisconnected);
  // A later request fails in the same way, and not within the call.
  client->enqueue_request(session, kEcho, &requests[0], &responses[0], on_done, nullptr);
  EXPECT_EQ(at_client.continuations, kRequests);
  ASSERT_TRUE(run_until([&] { return at_client.continuations == kRequests + 1; }));
  EXPECT_EQ(responses[0].get_data_size(), 0u);
}

TEST_F(Erpc, pending_continuations_do_not_run_in_the_destructor) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  client->enqueue_request(session, kLater, &request, &response, on_done, nullptr);
  ASSERT_TRUE(run_until([&] { return at_server.kept.size() == 1; }));
  client.reset();
  EXPECT_EQ(at_client.continuations, 0u);
  EXPECT_EQ(at_client.events.size(), 1u);
  ASSERT_TRUE(run_until([&] { return server->num_active_sessions() == 0; }));
  echo(at_server.kept[0], &at_server);  // the client is gone, so the answer has no effect
  server->run_event_loop_once();
}

TEST_F(Erpc, wrong_calls_throw_or_return_erpcs_errors) {
  EXPECT_THROW(erpc::Nexus("no uri"), std::runtime_error);
  ASSERT_NO_FATAL_FAILURE(start_client());
  EXPECT_EQ(client_nexus->register_req_func(9, echo), -EPERM) << "an Rpc has them already";
  erpc::Nexus other(free_uri());
  EXPECT_EQ(other.register_req_func(1, nullptr), -EINVAL);
  EXPECT_EQ(other.register_req_func(1, echo, erpc::ReqFuncType::kBackground), -EPERM) << "it has no such threads";
  EXPECT_EQ(other.register_req_func(1, echo), 0);
  EXPECT_EQ(other.register_req_func(1, echo), -EEXIST);
  EXPECT_THROW(CRpc(client_nexus.get(), nullptr, 7, nullptr), std::runtime_error) << "the id is taken";
  EXPECT_THROW(client->set_context(nullptr), std::runtime_error) << "it has one";
  EXPECT_THROW(client->fault_inject_set_pkt_drop_prob_st(0.1), std::runtime_error);
  ASSERT_NO_FATAL_FAILURE(start_server());
  const int session = open();
  erpc::MsgBuffer nothing, response = client->alloc_msg_buffer_or_die(8);
  EXPECT_THROW(client->enqueue_request(session, kEcho, &nothing, &response, on_done, nullptr), std::runtime_error);
  EXPECT_EQ(client->destroy_session(session), 0) << "the refused request does not count";
  setenv("TERN_ERPC_OPTIONS", "no_such_option=1", 1);
  EXPECT_THROW(CRpc(client_nexus.get(), nullptr, 8, nullptr), std::runtime_error);
  unsetenv("TERN_ERPC_OPTIONS");
}

TEST_F(Erpc, a_wrong_failure_time_is_refused) {
  for (const char* wrong : {"", "5s", " 100", "-1", "3600001", "5000000000", "0x10"}) {
    setenv("TERN_ERPC_FAILURE_MS", wrong, 1);
    EXPECT_THROW(erpc::Nexus{free_uri()}, std::runtime_error) << wrong;
  }
  for (const char* right : {"0", "3600000"}) {
    setenv("TERN_ERPC_FAILURE_MS", right, 1);
    EXPECT_NO_THROW(erpc::Nexus{free_uri()}) << right;
  }
}

TEST_F(Erpc, rtt_rate_and_retransmission_figures_are_plausible) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  for (int i = 0; i < 100; i++) ask(session, kEcho, request, response);
  erpc::Timely* timely = client->get_timely(session);
  EXPECT_GT(timely->get_rtt_perc(0.5), 0.0);
  EXPECT_LT(timely->get_rtt_perc(0.99), 1e6);
  EXPECT_GT(timely->get_rate_gbps(), 0.0);
  EXPECT_EQ(static_cast<double>(timely->rate_), static_cast<double>(client->get_bandwidth()));
  EXPECT_THROW(timely->rate_ = 1e6, std::runtime_error);
  timely->reset_rtt_stats();
  EXPECT_EQ(client->get_num_re_tx(session), 0u);
  client->reset_num_re_tx(session);
  EXPECT_EQ(client->get_wheel(), nullptr);
  EXPECT_EQ(client->get_rpc_id(), 7);
  EXPECT_GT(client->get_freq_ghz(), 0.1);
  EXPECT_GT(client->sec_since_creation(), 0.0);
  EXPECT_EQ(client->get_avg_rx_batch(), -1.0);
  EXPECT_EQ(client->get_avg_tx_batch(), -1.0);
  client->reset_dpath_stats();
  EXPECT_GT(CRpc::get_max_num_sessions(), 1000u);
  EXPECT_EQ(CRpc::get_max_data_per_pkt(), 1024u);
}

}  // namespace
