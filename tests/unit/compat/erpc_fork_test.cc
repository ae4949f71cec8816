// A program written for eRPC whose server is killed.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "erpc_face.h"

namespace {

TEST_F(Erpc, a_killed_server_and_its_successor) {
  const auto start_process = [&] {
    const pid_t process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      start_server();
      while (true) server->run_event_loop(1000);
    }
    EXPECT_GT(process, 0);
    return process;
  };
  const pid_t first = start_process(), waiting = fork();
  if (waiting == 0) {  // without threads, for the successor
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raise(SIGSTOP);
    start_server();
    while (true) server->run_event_loop(1000);
  }
  ASSERT_NO_FATAL_FAILURE(start_client());
  const int session = open();
  erpc::MsgBuffer request = message("x"), response = client->alloc_msg_buffer_or_die(8);
  ask(session, kEcho, request, response);
  EXPECT_EQ(text_of(response), "x");
  client->enqueue_request(session, kLater, &request, &response, on_done, nullptr);
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  ASSERT_TRUE(run_until([&] { return at_client.events.size() == 2; }));
  EXPECT_EQ(at_client.continuations, 2u);
  EXPECT_EQ(response.get_data_size(), 0u);
  EXPECT_EQ(at_client.events[1].type, erpc::SmEventType::kDisconnected);
  EXPECT_EQ(at_client.events[1].error, erpc::SmErrType::kSrvDisconnected);
  EXPECT_FALSE(client->is_connected(session));
  // The same port, another process.
  kill(waiting, SIGCONT);
  const int next = open();
  ask(next, kEcho, request, response);
  EXPECT_EQ(text_of(response), "x");
  kill(waiting, SIGKILL);
  waitpid(waiting, nullptr, 0);
}

}  // namespace
