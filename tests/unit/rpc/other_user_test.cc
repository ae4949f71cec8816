// Endpoints of another user over shared memory: refused by name unless both sides allow other users.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uid_t kNobody = 65534;

/// The child process: makes one call to the server whose URI it reads from `uri`, and writes the call's status, or
/// "ok", to `told`.
int call_as_another_user(int uri, int told, bool client_allows) {
  char server[256];
  const ssize_t bytes = ::read(uri, server, sizeof server);  // waits for the server's URI
  if (bytes <= 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) return 1;
  auto own = Nexus::create("tern://127.0.0.1:0", {});
  if (!own.ok()) return 2;
  auto made = Rpc<Shm>::create(**own, {.allow_other_users = client_allows}, small_memory());
  if (!made.ok()) return 3;
  Rpc<Shm>& client = **made;
  Outcome outcome;
  auto session = client.create_session({server, static_cast<size_t>(bytes)}, {});
  if (!session.ok()) return 4;
  auto call =
      client.enqueue_request(*session, kEcho, message(client, "hello"), client.alloc_msgbuf(256), outcome.then());
  if (!call.ok()) return 5;
  while (outcome.runs == 0) {
    if (!client.run_event_loop_once().ok()) return 6;
  }
  const std::string_view text = outcome.status.message();
  return ::write(told, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 7;
}

/// Returns the result of another user's call: its status's text, or "ok". The server runs meanwhile.
std::string heard_by_another_user(bool server_allows, bool client_allows) {
  int uri[2];
  int told[2];
  EXPECT_EQ(::pipe2(uri, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(told, O_CLOEXEC | O_NONBLOCK), 0);
  const pid_t child = ::fork();  // before any thread exists, which could hold the lock of a sanitizer's allocator
  if (child == 0) {
    ::close(uri[1]);
    ::_exit(call_as_another_user(uri[0], told[1], client_allows));
  }
  {
    auto nexus = Nexus::create("tern://127.0.0.1:0", {});
    EXPECT_TRUE(nexus.ok());
    auto server = Rpc<Shm>::create(**nexus, {.allow_other_users = server_allows}, small_memory());
    EXPECT_TRUE(server.ok()) << server.status().message();
    EXPECT_TRUE((*server)->on_request(kEcho, echo).ok());
    const std::string text = (*nexus)->uri();
    EXPECT_EQ(::write(uri[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    int status = 0;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (::waitpid(child, &status, WNOHANG) != child && std::chrono::steady_clock::now() < until) {
      EXPECT_TRUE((*server)->run_event_loop_once().ok());
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  char text[512] = {};
  const ssize_t bytes = ::read(told[0], text, sizeof text);
  for (const int descriptor : {uri[0], uri[1], told[0], told[1]}) ::close(descriptor);
  return {text, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

struct OtherUser : testing::Test {
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user in a forked child";
  }
};

TEST_F(OtherUser, refusal_names_the_option_whichever_side_lacks_it) {
  for (const auto& [server_allows, client_allows] : {std::pair(false, false), {false, true}, {true, false}}) {
    const std::string heard = heard_by_another_user(server_allows, client_allows);
    EXPECT_NE(heard.find("allow_other_users"), std::string::npos)
        << heard << " (server allows: " << server_allows << ", client: " << client_allows << ")";
  }
}

TEST_F(OtherUser, call_succeeds_where_both_allow_it) { EXPECT_EQ(heard_by_another_user(true, true), "ok"); }

}  // namespace
}  // namespace tern::rpc_test
