// A forked child that destroys the endpoints that it has inherited, or gets a signal that would stop them in its
// parent.
#include <tern/signals.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include "transport/shm/shm_closer.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

/// Waits for descriptors of the test before, which threads close.
ptrdiff_t descriptors() {
  while (transport::shm::connections_to_close() != 0) std::this_thread::yield();
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

template <class T>
class Fork : public testing::Test {};
using Between = testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(Fork, Between);

/// Otherwise the memory of a parent that has ended would last as long as the child.
TYPED_TEST(Fork, child_keeps_no_descriptors_of_endpoints_that_it_has_destroyed) {
  const ptrdiff_t before = descriptors();
  World<TypeParam> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  ASSERT_TRUE(world.client->descriptor().ok());
  EXPECT_EQ(world.ask(world.open(), kEcho, std::string(100'000, 'x'), 100'000).response.size(), 100'000u);
  const pid_t child = fork();
  if (child == 0) {
    world.client.reset();
    world.server.reset();
    world.client_nexus.reset();
    world.server_nexus.reset();
    _exit(static_cast<int>(descriptors() - before));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "descriptors";
}

TEST(ForkedChild, is_ended_by_a_signal_that_does_not_reach_the_parent) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const SignalStop stop = stop_on_signals(*world.client).value();
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  ASSERT_EQ(kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  // The parent's loop has times at which it need not run.
  pollfd descriptor = {world.client->descriptor().value(), POLLIN, 0};
  EXPECT_TRUE(world.run_until([&] { return poll(&descriptor, 1, 0) == 0; }));
}

/// A second signal ends a process. The parent's signals do not count.
TEST(ForkedChild, with_an_endpoint_of_its_own_is_stopped_by_its_first_signal) {
  World<Shm> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  const SignalStop stop = stop_on_signals(*world.client).value();
  ASSERT_EQ(raise(SIGTERM), 0);
  std::this_thread::sleep_for(milliseconds(1100));
  const pid_t child = fork();
  if (child == 0) {
    World<Shm> own;
    own.make();
    {
      const SignalStop own_stop = stop_on_signals(*own.client).value();
      raise(SIGTERM);
    }
    struct sigaction action = {};
    sigaction(SIGTERM, nullptr, &action);
    _exit(action.sa_handler == SIG_DFL ? 0 : 1);  // as before the parent's endpoints
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tern::rpc_test
