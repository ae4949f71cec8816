// An endpoint that polls lends its CPU while sessions open: the management thread may need it.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "unit/rpc/rpc_world.h"

namespace {
thread_local int times_lent = 0;
}  // namespace

/// Takes the place of the C library's function.
extern "C" int sched_yield() noexcept {
  times_lent++;
  return static_cast<int>(syscall(SYS_sched_yield));
}

namespace tern::rpc_test {
namespace {

template <class T>
class LentCpu : public ::testing::Test {
 protected:
  void make(Wait wait) {
    RpcOptions options;
    options.wait = wait;
    ASSERT_NO_FATAL_FAILURE(world_.make({}, options, options));
  }
  int times_lent_by_a_run_of(Rpc<T>& endpoint) {
    times_lent = 0;
    EXPECT_TRUE(endpoint.run_event_loop(milliseconds(1)).ok());
    return times_lent;
  }
  World<T> world_;
};
TYPED_TEST_SUITE(LentCpu, Transports, TransportNames);

TYPED_TEST(LentCpu, by_polling_while_a_session_opens) {
  ASSERT_NO_FATAL_FAILURE(this->make(Wait::kPoll));
  // On a busy machine a thread may not run for so long that the time is over.
  int client = 0, server = 0;
  EXPECT_TRUE(this->world_.run_until([&] {
    auto session = this->world_.client->create_session(this->world_.server_nexus->uri());
    EXPECT_TRUE(session.ok()) << session.status().message();
    client = this->times_lent_by_a_run_of(*this->world_.client);
    server = this->times_lent_by_a_run_of(*this->world_.server);
    return client > 0 && server > 0;
  }));
}

TYPED_TEST(LentCpu, no_longer) {
  ASSERT_NO_FATAL_FAILURE(this->make(Wait::kPoll));
  this->world_.open();
  std::this_thread::sleep_for(milliseconds(5));
  this->world_.turn();
  EXPECT_EQ(this->times_lent_by_a_run_of(*this->world_.client), 0);
  EXPECT_EQ(this->times_lent_by_a_run_of(*this->world_.server), 0);
}

TYPED_TEST(LentCpu, not_by_endpoints_that_sleep) {
  ASSERT_NO_FATAL_FAILURE(this->make(Wait::kBlock));
  auto session = this->world_.client->create_session(this->world_.server_nexus->uri());
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ(this->times_lent_by_a_run_of(*this->world_.client), 0);
}

}  // namespace
}  // namespace tern::rpc_test
