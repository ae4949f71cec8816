// The two sides of a program: interruptions, and the end of a server process. The server is this program, in which each
// value of --ends is a way to end.

#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "../apps/common/flags.h"
#include "../apps/common/sides.h"

DEFINE_string(ends, "well", "how the server process ends");

using programs::ServerProcess;
using testing::EndsWith;

namespace {

int serve() {
  programs::catch_interrupts();
  if (FLAGS_ends == "early_by_signal") raise(SIGKILL);
  if (FLAGS_ends == "early_without_a_word") return 3;
  if (FLAGS_ends == "early_with_a_reason") return programs::fail("the reason");
  programs::announce_server("tern://somewhere");
  if (FLAGS_ends == "by_itself") return 3;
  while (!programs::interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (FLAGS_ends == "by_signal") raise(SIGKILL);
  if (FLAGS_ends == "interrupted") return programs::kInterruptedExit;
  return FLAGS_ends == "with_code" ? 3 : 0;
}

bool start(ServerProcess& server, const std::string& ends) {
  return server.start({"sides_test", "--role=server", "--ends=" + ends});
}

/// What stop() says about a server that ends in this way when it is asked to.
std::string problem_of(const std::string& ends) {
  ServerProcess server;
  EXPECT_TRUE(start(server, ends));
  EXPECT_EQ(server.uri(), "tern://somewhere");
  return server.stop();
}

/// What both processes print if the server ends in this way before it is ready.
std::string output_of_early(const std::string& ends) {
  testing::internal::CaptureStderr();
  ServerProcess server;
  EXPECT_FALSE(start(server, ends));
  return testing::internal::GetCapturedStderr();
}

/// Ends the process.
void be_interrupted_twice(std::chrono::milliseconds apart) {
  programs::catch_interrupts();
  raise(SIGTERM);
  std::this_thread::sleep_for(apart);
  raise(SIGTERM);
  _exit(programs::interrupted ? 7 : 0);
}

}  // namespace

TEST(ServerProcess, well_ended_server_is_no_problem) { EXPECT_EQ(problem_of("well"), ""); }

TEST(ServerProcess, failed_server_is_a_problem) {
  EXPECT_EQ(problem_of("by_signal"), "the server process ended by signal 9");
  EXPECT_EQ(problem_of("with_code"), "the server process ended with exit code 3");
}

TEST(ServerProcess, server_that_ended_by_itself_is_a_problem) {
  ServerProcess server;
  ASSERT_TRUE(start(server, "by_itself"));
  while (server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server.stop(), "the server process ended with exit code 3");
}

TEST(ServerProcess, killed_server_is_no_problem) {
  ServerProcess server;
  ASSERT_TRUE(start(server, "well"));
  server.kill();
  EXPECT_EQ(server.stop(), "");
}

TEST(ServerProcess, interrupted_server_is_a_problem_only_without_an_interruption_of_both) {
  EXPECT_EQ(problem_of("interrupted"), "the server process ended with exit code 130");
  ServerProcess server;
  ASSERT_TRUE(start(server, "interrupted"));
  programs::interrupted = true;
  EXPECT_EQ(server.stop(), "");
  programs::interrupted = false;
}

TEST(ServerProcess, early_end_is_explained_once) {
  EXPECT_THAT(output_of_early("early_by_signal"),
              EndsWith(": the server process ended by signal 9 before it was ready\n"));
  EXPECT_THAT(output_of_early("early_without_a_word"),
              EndsWith(": the server process ended with exit code 3 before it was ready\n"));
  EXPECT_EQ(output_of_early("early_with_a_reason"), "sides_test: the reason\n");
}

TEST(InterruptDeathTest, two_signals_at_once_are_one_interruption) {
  EXPECT_EXIT(be_interrupted_twice({}), testing::ExitedWithCode(7), "");
}

TEST(InterruptDeathTest, later_signal_ends_the_process) {
  EXPECT_EXIT(be_interrupted_twice(std::chrono::milliseconds(1100)), testing::KilledBySignal(SIGTERM), "");
}

/// The parent process ends a server process, and may ask it to end long after both were interrupted.
TEST(InterruptDeathTest, server_process_survives_later_signals) {
  FLAGS_ready_fd = 0;
  EXPECT_EXIT(be_interrupted_twice(std::chrono::milliseconds(1100)), testing::ExitedWithCode(7), "");
  FLAGS_ready_fd = -1;
}

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string("--role=server")) {
    return programs::parse_flags(argc, argv, "") ? serve() : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
