// An endpoint whose Nexus is destroyed first, and both in a forked child: errors that name the rule, and no crash.
#include <sys/wait.h>
#include <unistd.h>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

template <class T>
class NexusGoneTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(world_.make()); }
  World<T> world_;
};
TYPED_TEST_SUITE(NexusGoneTest, Transports, TransportNames);

void expect_misuse(const Status& status) {
  EXPECT_EQ(status.code(), Code::kMisuse);
  EXPECT_NE(status.message().find("Nexus was destroyed before its endpoint"), std::string_view::npos)
      << status.message();
}

TYPED_TEST(NexusGoneTest, every_call_is_misuse_and_pending_calls_end_with_the_endpoint) {
  auto& world = this->world_;
  const Session session = world.open();
  Outcome pending;
  ASSERT_TRUE(world.call(session, kEcho, "x", pending).ok());
  MsgBuf request = message(*world.client, "y"), response = world.client->alloc_msgbuf(8);
  world.client_nexus.reset();

  auto& client = *world.client;
  expect_misuse(client.run_event_loop(milliseconds(1)));
  expect_misuse(client.run_event_loop_once().status());
  expect_misuse(client.descriptor().status());
  expect_misuse(client.close(milliseconds(1)));
  expect_misuse(client.create_session(world.server_nexus->uri()).status());
  expect_misuse(client.destroy_session(session));
  expect_misuse(client.cancel({1}));
  expect_misuse(client.on_request(7, echo));
  expect_misuse(client.after(milliseconds(1), [] {}).status());
  expect_misuse(client.cancel_timer({1}));
  expect_misuse(client.post([] {}));
  Outcome refused;
  auto id = client.enqueue_request(session, kEcho, std::move(request), std::move(response), refused.then());
  expect_misuse(id.status());
  EXPECT_TRUE(request && response) << "a refused call leaves the buffers with the caller";
  EXPECT_FALSE(client.alloc_msgbuf(8));
  EXPECT_FALSE(client.is_open(session));
  EXPECT_EQ(pending.runs, 0);
  request = MsgBuf();
  response = MsgBuf();
  world.client.reset();
  EXPECT_EQ(pending.runs, 1);
  EXPECT_EQ(pending.code(), Code::kCancelled);
}

TYPED_TEST(NexusGoneTest, a_server_may_be_left_behind) {
  auto& world = this->world_;
  const Session session = world.open();
  EXPECT_TRUE(world.ask(session, kEcho, "x").status.ok());
  world.server_nexus.reset();
  expect_misuse(world.server->run_event_loop_once().status());
  world.server.reset();
}

/// Destroys inherited objects in a child while the parent runs on. True: the child exited by itself.
template <class F>
bool in_child(F&& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    work();
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TYPED_TEST(NexusGoneTest, forked_child_destroys_inherited_objects_and_the_parent_goes_on) {
  auto& world = this->world_;
  const Session session = world.open();
  ASSERT_TRUE(world.ask(session, kEcho, "x").status.ok());
  Outcome pending;
  ASSERT_TRUE(world.call(session, kEcho, "y", pending).ok());
  EXPECT_TRUE(in_child([&] {
    world.client.reset();
    world.server.reset();
    world.client_nexus.reset();
    world.server_nexus.reset();
  }));
  EXPECT_TRUE(in_child([&] {  // the wrong order
    world.server_nexus.reset();
    world.client_nexus.reset();
    world.server.reset();
    world.client.reset();
  }));
  world.run_until([&] { return pending.runs == 1; });
  EXPECT_TRUE(pending.status.ok()) << pending.status.message();
  pending.request = MsgBuf();
  pending.room = MsgBuf();
  EXPECT_TRUE(world.ask(session, kEcho, "z").status.ok());
  const Session another = world.open();
  EXPECT_TRUE(world.ask(another, kEcho, "z").status.ok());
}

}  // namespace
}  // namespace tern::rpc_test
