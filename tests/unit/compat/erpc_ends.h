// The ends of requests, sessions and Rpcs, as a program written for eRPC sees them. One test for each transport
// includes this file.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "erpc_face.h"

namespace {

/// Starts a process that runs `main`, which must not return. The process is killed when this one ends.
template <class F>
pid_t start_process(F&& main) {
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    main();
    _exit(1);
  }
  EXPECT_GT(process, 0);
  return process;
}
void kill_process(pid_t process) {
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

TEST_F(Erpc, killed_server_ends_waiting_requests_and_a_successor_serves) {
  const auto serve = [&] {
    start_server();
    while (true) server->run_event_loop(1000);
  };
  const pid_t first = start_process(serve);
  const pid_t waiting = start_process([&] {  // the successor, forked before this process has threads
    raise(SIGSTOP);
    serve();
  });
  ASSERT_NO_FATAL_FAILURE(start_client());
  const int session = open();
  constexpr size_t kRequests = 20;  // more than a window
  std::vector<erpc::MsgBuffer> requests, responses;
  for (size_t i = 0; i < kRequests; i++) {
    requests.push_back(message("x"));
    responses.push_back(client->alloc_msg_buffer_or_die(8));
  }
  ask(session, kEcho, requests[0], responses[0]);
  EXPECT_EQ(text_of(responses[0]), "x");
  for (size_t i = 0; i < kRequests; i++) {
    client->enqueue_request(session, kLater, &requests[i], &responses[i], on_done, nullptr);
  }
  kill_process(first);
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == 2; }));
  EXPECT_EQ(at_client.continuations, 1 + kRequests) << "all of them before the event";
  for (const erpc::MsgBuffer& response : responses) EXPECT_EQ(response.get_data_size(), 0u);
  EXPECT_EQ(at_client.events[1].type, erpc::SmEventType::kDisconnected);
  EXPECT_EQ(at_client.events[1].error, erpc::SmErrType::kSrvDisconnected);
  EXPECT_FALSE(client->is_connected(session));
  EXPECT_EQ(client->num_active_sessions(), 0u);
  // The successor is another process at the same port.
  kill(waiting, SIGCONT);
  const int next = open();
  ask(next, kEcho, requests[0], responses[0]);
  EXPECT_EQ(text_of(responses[0]), "x");
  kill_process(waiting);
}

// A process may have no CPU for that long on a busy machine, and eRPC's sessions have no timeout.
TEST_F(Erpc, sessions_outlive_a_server_process_that_stops_for_a_while) {
  setenv("TERN_ERPC_FAILURE_MS", "60000", 1);
  const pid_t process = start_process([&] {
    start_server();
    while (true) server->run_event_loop(1000);
  });
  ASSERT_NO_FATAL_FAILURE(start_client());
  const int session = open();
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  ask(session, kEcho, request, response);
  kill(process, SIGSTOP);
  client->enqueue_request(session, kEcho, &request, &response, on_done, nullptr);
  client->run_event_loop(2500);
  EXPECT_EQ(at_client.continuations, 1u);
  kill(process, SIGCONT);
  ASSERT_TRUE(run_until([&] { return at_client.continuations == 2; }));
  EXPECT_EQ(text_of(response), "x");
  EXPECT_TRUE(client->is_connected(session));
  kill_process(process);
}

TEST_F(Erpc, a_killed_client_leaves_handles_that_may_be_answered) {
  const std::string uri = free_uri();
  const pid_t process = start_process([&] {
    erpc::Nexus nexus(uri);
    Context context;
    CRpc rpc(&nexus, &context, 7, nullptr);
    const int session = rpc.create_session(server_uri, 0);
    while (!rpc.is_connected(session)) rpc.run_event_loop_once();
    erpc::MsgBuffer request = rpc.alloc_msg_buffer_or_die(3000), response = rpc.alloc_msg_buffer_or_die(3000);
    erpc::MsgBuffer other = rpc.alloc_msg_buffer_or_die(10), other_response = rpc.alloc_msg_buffer_or_die(10);
    std::memset(request.buf_, 'r', 3000);
    rpc.enqueue_request(session, kLater, &request, &response, on_done, nullptr);
    rpc.enqueue_request(session, kLater, &other, &other_response, on_done, nullptr);
    while (true) rpc.run_event_loop(1000);
  });
  ASSERT_NO_FATAL_FAILURE(start_server());
  ASSERT_TRUE(run_until([&] { return at_server.kept.size() == 2; }));
  EXPECT_EQ(server->num_active_sessions(), 1u);
  kill_process(process);
  ASSERT_TRUE(run_until([&] { return server->num_active_sessions() == 0; }));
  EXPECT_TRUE(at_server.events.empty()) << "only clients hear of sessions";
  // The request is still valid, and both kinds of response may answer it.
  erpc::ReqHandle* const large =
      at_server.kept[0]->get_req_msgbuf()->get_data_size() == 3000 ? at_server.kept[0] : at_server.kept[1];
  erpc::ReqHandle* const small = large == at_server.kept[0] ? at_server.kept[1] : at_server.kept[0];
  EXPECT_EQ(large->get_req_msgbuf()->buf_[2999], 'r');
  large->dyn_resp_msgbuf_ = server->alloc_msg_buffer_or_die(5000);
  server->enqueue_response(large, &large->dyn_resp_msgbuf_);
  echo(small, &at_server);
  server->run_event_loop_once();
  EXPECT_EQ(server->get_stat_user_alloc_tot(), 0u) << "the library has the response's memory";
}

TEST_F(Erpc, a_server_rpc_ends_with_handles_of_all_kinds) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  std::vector<erpc::MsgBuffer> requests, responses;
  for (uint8_t type : {kLater, kBackgroundLater, kLater}) {
    requests.push_back(message(std::string(type == kLater ? 10 : 5000, 'x')));
    responses.push_back(client->alloc_msg_buffer_or_die(10'000));
  }
  client->enqueue_request(session, kLater, &requests[0], &responses[0], on_done, nullptr);
  client->enqueue_request(session, kBackgroundLater, &requests[1], &responses[1], on_done, nullptr);
  client->enqueue_request(session, kLater, &requests[2], &responses[2], on_done, nullptr);
  ASSERT_TRUE(run_until([&] { return at_server.kept.size() == 2 && at_server.kept_in_background != nullptr; }));
  at_server.kept[0]->dyn_resp_msgbuf_ = server->alloc_msg_buffer_or_die(100);  // allocated and not sent
  server.reset();
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == 2; }));
  EXPECT_EQ(at_client.continuations, 3u);
  for (const erpc::MsgBuffer& response : responses) EXPECT_EQ(response.get_data_size(), 0u);
}

TEST_F(Erpc, an_rpc_ends_while_background_handlers_send_requests) {
  ASSERT_NO_FATAL_FAILURE(start());
  // Background handlers of the server send requests to the client again and again. The client does not answer.
  at_server.session = server->create_session(client_uri, 7);
  ASSERT_TRUE(run_until([&] { return server->is_connected(at_server.session); }));
  const int session = open();
  erpc::MsgBuffer request = message("?"), response = client->alloc_msg_buffer_or_die(1);
  at_server.request_type = kLater;
  for (int i = 0; i < 20; i++) ask(session, kAsk, request, response);
  server.reset();
  EXPECT_EQ(at_server.continuations, 0u) << "the client has answered none";
  EXPECT_EQ(at_server.events.size(), 1u) << "an Rpc that ends hears nothing more";
}

TEST_F(Erpc, responses_that_have_come_do_not_run_in_the_destructor) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  std::vector<erpc::MsgBuffer> requests, responses;
  for (size_t i = 0; i < 30; i++) {
    requests.push_back(message("x"));
    responses.push_back(client->alloc_msg_buffer_or_die(8));
  }
  for (size_t i = 0; i < 30; i++) {
    client->enqueue_request(session, kEcho, &requests[i], &responses[i], on_done, nullptr);
  }
  client->run_event_loop_once();
  server->run_event_loop_once();  // the responses are in the network now
  const size_t before = at_client.continuations;
  client.reset();
  EXPECT_EQ(at_client.continuations, before);
}

TEST_F(Erpc, response_larger_than_its_buffer_is_empty_and_smaller_ones_fit) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = client->alloc_msg_buffer_or_die(sizeof(size_t));
  for (const size_t room : {size_t{1}, size_t{1000}, size_t{70'000}}) {
    erpc::MsgBuffer response = client->alloc_msg_buffer_or_die(room);
    // Only the allocated size of the buffer matters, not its present size.
    CRpc::resize_msg_buffer(&response, 1);
    std::memcpy(request.buf_, &room, sizeof(room));
    ask(session, kDynamic, request, response);
    EXPECT_EQ(text_of(response), std::string(room, 'd'));
    const size_t longer = room + 100'000;
    std::memcpy(request.buf_, &longer, sizeof(longer));
    ask(session, kDynamic, request, response);
    EXPECT_EQ(response.get_data_size(), 0u) << room;
    EXPECT_TRUE(client->is_connected(session));
    client->free_msg_buffer(response);
  }
  EXPECT_EQ(server->get_stat_user_alloc_tot(), 0u);
}

TEST_F(Erpc, a_request_type_that_has_no_handler_ends_with_an_empty_response) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  ask(session, 200, request, response);
  EXPECT_EQ(response.get_data_size(), 0u);
  EXPECT_TRUE(client->is_connected(session));
}

TEST_F(Erpc, requests_of_a_destroyed_session_end_with_empty_responses) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  EXPECT_EQ(client->destroy_session(session), 0);
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  ask(session, kEcho, request, response);
  EXPECT_EQ(response.get_data_size(), 0u);
  EXPECT_THROW(client->enqueue_request(99, kEcho, &request, &response, on_done, nullptr), std::runtime_error);
  EXPECT_THROW(client->enqueue_request(-1, kEcho, &request, &response, on_done, nullptr), std::runtime_error);
  const int next = client->create_session(server_uri, 0);
  EXPECT_THROW(client->enqueue_request(next, kEcho, &request, &response, on_done, nullptr), std::runtime_error)
      << "it is not connected yet";
}

}  // namespace
