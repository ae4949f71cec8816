// A client and a server with as many sessions as a test wants.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {

template <class T>
class ManySessions : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(world_.make()); }

  /// Begins all sessions at once, and makes one call in each of them.
  std::vector<Session> open_and_use(size_t count) {
    std::vector<Session> sessions;
    size_t answered = 0;
    for (size_t i = 0; i < count; i++) {
      auto session = world_.client->create_session(world_.server_nexus->uri(), {.connect_timeout = kPatience});
      EXPECT_TRUE(session.ok()) << session.status().message();
      if (!session.ok()) return {};
      sessions.push_back(*session);
      auto call = world_.client->enqueue_request(*session, kEcho, message(*world_.client, "x"),
                                                 world_.client->alloc_msgbuf(1), [&answered](Completion& done) {
                                                   EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                   answered++;
                                                 });
      EXPECT_TRUE(call.ok()) << call.status().message();
    }
    EXPECT_TRUE(world_.run_until([&] { return answered == count; }));
    EXPECT_EQ(world_.client->counters().sessions_failed, 0u);
    return sessions;
  }
  void rest() {
    // The reports after 100 ms of silence leave, and the server then frees the responses that it kept. A busy machine
    // needs more time.
    const auto until = std::chrono::steady_clock::now() + milliseconds(400);
    world_.run_until([&] { return std::chrono::steady_clock::now() > until; });
    const auto is_at_rest = [&] {
      size_t awake = 0;
      const auto& client = rpc::EndpointCore::of(*world_.client);
      client.for_each_client_session([&](const session::ClientSession& session) { awake += session.is_awake(); });
      return awake == 0 && rpc::EndpointCore::of(*world_.server).census().response_bytes == 0;
    };
    EXPECT_TRUE(world_.run_until(is_at_rest));
  }
  World<T> world_;
};

}  // namespace tern::rpc_test
