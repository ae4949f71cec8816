// A forked child that destroys the endpoints that it has inherited.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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

}  // namespace
}  // namespace tern::rpc_test
