// Whole programs with a small address space. A process either works or gets an error that names the lack of memory. It
// must not abort.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

/// The outcome of a process under a limit.
enum Ending { kWorked = 10, kToldSo = 11, kSaidSomethingElse = 12, kHung = 13 };

/// Returns the outcome that the status means. Prints the failed step if the status is unexpected.
Ending ending_of(const char* step, const Status& status) {
  if (status.code() == Code::kNoMemory || status.code() == Code::kUnavailable) return kToldSo;
  std::fprintf(stderr, "%s: code %d, %.*s\n", step, static_cast<int>(status.code()),
               static_cast<int>(status.message().size()), status.message().data());
  return kSaidSomethingElse;
}

/// Runs a server and a client in this process, with sessions and calls of 32 B and of 1 MB.
template <class T>
Ending live() {
  constexpr size_t kLongBytes = 1u << 20;
  auto server_nexus = Nexus::create("tern://127.0.0.1:0");
  if (!server_nexus.ok()) return ending_of("Nexus::create", server_nexus.status());
  auto client_nexus = Nexus::create("tern://127.0.0.1:0");
  if (!client_nexus.ok()) return ending_of("Nexus::create", client_nexus.status());
  auto server = Rpc<T>::create(**server_nexus, at_end<typename T::Options>(0), small_memory());
  if (!server.ok()) return ending_of("Rpc::create", server.status());
  auto client = Rpc<T>::create(**client_nexus, at_end<typename T::Options>(1), small_memory());
  if (!client.ok()) return ending_of("Rpc::create", client.status());
  const Status handler = (*server)->on_request(kEcho, [](Request request) {
    auto response = request.response(request.bytes().size());
    if (!response.ok()) return request.fail(1);
    std::memcpy(response->data(), request.bytes().data(), response->size());
    request.respond();
  });
  if (!handler.ok()) return ending_of("on_request", handler);
  const Status worker = (*server)->on_request(
      kEcho + 1, [](Request request) { request.respond(); }, HandlerOptions{.worker = true});
  if (!worker.ok()) return ending_of("on_request", worker);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool has_failed = false;
  for (int i = 0; i < 4; i++) {
    auto session = (*client)->create_session((*server_nexus)->uri());
    if (!session.ok()) return ending_of("create_session", session.status());
    for (const size_t bytes : {size_t{32}, kLongBytes, size_t{33}}) {
      MsgBuf request = (*client)->alloc_msgbuf(bytes), response = (*client)->alloc_msgbuf(bytes);
      if (!request || !response) return kToldSo;
      std::memset(request.bytes().data(), 7, bytes);
      Status ended;
      uint16_t app_code = 0;
      bool is_over = false;
      auto call = (*client)->enqueue_request(*session, static_cast<uint16_t>(kEcho + bytes % 2), std::move(request),
                                             std::move(response), [&](Completion& done) {
                                               is_over = true;
                                               ended = done.status;
                                               app_code = done.app_code;
                                             });
      // The client has already received the reason.
      if (!call.ok() && call.status().code() == Code::kSessionReset && has_failed) break;
      if (!call.ok()) return ending_of("enqueue_request", call.status());
      while (!is_over) {
        (void)(*server)->run_event_loop_once();
        (void)(*client)->run_event_loop_once();
        if (std::chrono::steady_clock::now() > until) return kHung;
      }
      if (ended.ok()) continue;
      has_failed = true;
      // A worker thread that cannot be started means a full queue. The handler reports a lack of memory by app_code 1.
      // A Nexus without memory for a session does not answer.
      const bool is_told = app_code == 1 || ended.code() == Code::kQueueFull || ended.code() == Code::kPeerUnreachable;
      if (!is_told && ending_of("call", ended) == kSaidSomethingElse) return kSaidSomethingElse;
    }
  }
  (void)(*client)->close(milliseconds(10));
  return has_failed ? kToldSo : kWorked;
}

template <class F>
int under_limit(size_t limit_bytes, F&& task) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    const rlimit limit = {limit_bytes, limit_bytes};
    ::_exit(::setrlimit(RLIMIT_AS, &limit) == 0 ? static_cast<int>(task()) : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

template <class T>
class AddressSpaceTest : public ::testing::Test {};
TYPED_TEST_SUITE(AddressSpaceTest, Transports, TransportNames);

TYPED_TEST(AddressSpaceTest, every_limit_ends_in_work_or_in_a_status) {
  int worked = 0, refused = 0;
  for (const size_t megabytes : {24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024}) {
    SCOPED_TRACE(std::to_string(megabytes) + " MB");
    const int ending = under_limit(megabytes << 20, live<TypeParam>);
    EXPECT_TRUE(ending == kWorked || ending == kToldSo) << ending;
    worked += ending == kWorked;
    refused += ending == kToldSo;
  }
  EXPECT_GT(worked, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace tern::rpc_test
