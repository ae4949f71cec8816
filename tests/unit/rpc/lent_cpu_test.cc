// An endpoint that polls lends its CPU while sessions open, and to other endpoints that poll there, and gives it to
// other programs that share it.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
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

/// Pins the calling thread to the CPU that it is on. Threads that it starts inherit that.
class OnOneCpu {
 public:
  OnOneCpu() {
    cpu_set_t one;
    EXPECT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OnOneCpu() { EXPECT_EQ(sched_setaffinity(0, sizeof(before_), &before_), 0); }

 private:
  cpu_set_t before_;
};

template <class T>
class LentCpu : public ::testing::Test {
 protected:
  void make(Wait client_wait, Wait server_wait) {
    RpcOptions client, server;
    client.wait = client_wait;
    server.wait = server_wait;
    ASSERT_NO_FATAL_FAILURE(world_.make({}, server, client));
  }
  void make(Wait wait) { make(wait, wait); }
  int times_lent_by_a_run_of(Rpc<T>& endpoint) {
    times_lent = 0;
    EXPECT_TRUE(endpoint.run_event_loop(milliseconds(1)).ok());
    return times_lent;
  }
  /// While the server's thread runs. The session is not new any more on return.
  Session open_from_client() {
    const Session session =
        world_.client->create_session(world_.server_nexus->uri(), {.connect_timeout = kPatience}).value();
    run_client_until([&] { return world_.client->is_open(session); });
    EXPECT_TRUE(world_.client->run_event_loop(milliseconds(20)).ok());
    return session;
  }
  template <class F>
  void run_client_until(F is_true) {
    while (!is_true() && !is_too_late()) EXPECT_TRUE(world_.client->run_event_loop(milliseconds(1)).ok());
    EXPECT_TRUE(is_true());
  }
  bool is_too_late() const { return std::chrono::steady_clock::now() >= until_; }

  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + kPatience;
  Outcome outcome_;  ///< outlives the calls
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

/// Without this, each call would take two time slices.
TYPED_TEST(LentCpu, to_an_endpoint_that_polls_on_the_same_one) {
  ASSERT_NO_FATAL_FAILURE(this->make(Wait::kPoll));
  auto& server = *this->world_.server;
  const OnOneCpu pinned;
  std::atomic<int> server_lent = 0;
  std::thread server_thread([&server] { EXPECT_TRUE(server.run_event_loop().ok()); });
  const Session session = this->open_from_client();
  times_lent = 0;
  EXPECT_TRUE(server.post([] { times_lent = 0; }).ok());
  // No CPU is lent for up to half a second after a foreign process has used it.
  do {
    this->outcome_ = Outcome();
    EXPECT_TRUE(this->world_.call(session, kEcho, "x", this->outcome_).ok());
    this->run_client_until([&] { return this->outcome_.runs == 1; });
    EXPECT_EQ(this->outcome_.response, "x");
    EXPECT_TRUE(server.post([&server_lent] { server_lent = times_lent; }).ok());
  } while ((times_lent == 0 || server_lent == 0) && !this->is_too_late() && !this->HasFailure());
  server.stop();
  server_thread.join();
  EXPECT_GT(times_lent, 0);
  EXPECT_GT(server_lent, 0);
}

/// An answer comes soon, and then nothing for 100 ms.
TYPED_TEST(LentCpu, to_a_thread_that_takes_half_of_it) {
  ASSERT_NO_FATAL_FAILURE(this->make(Wait::kPoll, Wait::kBlock));
  auto& client = *this->world_.client;
  std::thread server_thread([this] { EXPECT_TRUE(this->world_.server->run_event_loop().ok()); });
  const OnOneCpu pinned;
  std::atomic<bool> is_over = false;
  std::thread other([&is_over] {
    while (!is_over) {
    }
  });
  const Session session = this->open_from_client();
  times_lent = 0;
  while (times_lent == 0 && !this->is_too_late() && !this->HasFailure()) {
    this->outcome_ = Outcome();
    EXPECT_TRUE(this->world_.call(session, kEcho, "x", this->outcome_).ok());
    EXPECT_TRUE(client.run_event_loop(milliseconds(100)).ok());
    this->run_client_until([&] { return this->outcome_.runs == 1; });
  }
  is_over = true;
  other.join();
  this->world_.server->stop();
  server_thread.join();
  EXPECT_GT(times_lent, 0);
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
