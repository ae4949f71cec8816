// A forked child that destroys its inherited endpoints disturbs neither itself nor its parent.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "shm/shm_fixture.h"
#include "udp/udp_fixture.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace tern::transport {
namespace {

using Range = std::pair<std::byte*, size_t>;

/// Returns this process's mappings of memfds: rings, doorbells, chunks of arenas.
std::vector<Range> memfd_mappings() {
  std::vector<Range> ranges;
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  char line[512];
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
    uintptr_t begin, end;
    if (std::strstr(line, "/memfd:tern-") == nullptr || std::sscanf(line, "%zx-%zx", &begin, &end) != 2) continue;
    ranges.emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
  }
  if (file != nullptr) std::fclose(file);
  return ranges;
}

/// Maps the child's own memory at the addresses of its parent's endpoints. False: not all of them were free.
bool occupy(const std::vector<Range>& ranges) {
  for (const auto& [at, bytes] : ranges) {
    void* mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != at) return false;
    std::memset(at, 0x5a, bytes);
  }
  return true;
}
bool is_untouched(const std::vector<Range>& ranges) {
  for (const auto& [at, bytes] : ranges) {
    for (size_t i = 0; i < bytes; i += 512) {
      if (at[i] != std::byte{0x5a}) return false;
    }
  }
  return true;
}

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Fork, child_destroys_shm_endpoints_and_the_parent_goes_on) {
  ShmEnd a, b;
  const PeerId peer = connect(a, b);
  auto* buffer = a.arena->alloc(50'000);
  ASSERT_TRUE(a.send(peer, buffer, 0, 50'000));  // b has mapped a's chunk
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
  run_some({&a, &b});
  const std::vector<Range> ranges = memfd_mappings();
  ASSERT_GE(ranges.size(), 6u);

  const pid_t child = ::fork();
  if (child == 0) {
    if (!occupy(ranges)) ::_exit(2);
    a->disconnect(peer);
    for (ShmEnd* end : {&a, &b}) {
      end->shm.reset();
      std::exchange(end->arena, nullptr)->orphan();
    }
    ::_exit(is_untouched(ranges) ? 0 : 3);
  }
  EXPECT_EQ(exit_code_of(child), 0);

  run_some({&a, &b});
  EXPECT_EQ(a->peer_state(peer), PeerState::kReady);
  ASSERT_TRUE(a.send(peer, "still here"));
  ASSERT_TRUE(a.send(peer, buffer, 0, 50'000));
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 3; }));
  // The epoll set, of which the child had a copy, still works: a packet, a wake-up and a new peer each end a sleep.
  const auto expect_sleep_ends = [&b](const std::function<void()>& cause) {
    while (!b->prepare_wait()) {
      b->end_wait();
      b.receive();
    }
    cause();
    b->wait(UINT64_MAX);
    b->end_wait();
  };
  expect_sleep_ends([&] {
    ASSERT_TRUE(a.send(peer, "wake up"));
    a->flush();
  });
  b.receive();
  expect_sleep_ends([&] { b->wake(); });
  ShmEnd newcomer;
  Result<PeerId> attempt = Status(Code::kMisuse, "not yet");
  expect_sleep_ends([&] { attempt = newcomer->connect(b->address(), ""); });
  ASSERT_TRUE(attempt.ok());
  EXPECT_TRUE(run_until({&newcomer, &b}, [&] { return newcomer->peer_state(*attempt) == PeerState::kReady; }));
  memory::Arena::release(buffer);
}

TEST(Fork, child_destroys_udp_endpoints_and_the_parent_goes_on) {
  using namespace udp_test;  // NOLINT(google-build-using-namespace)
  auto server = make();
  auto client = make();
  const PeerId peer = must_connect(*client, *server);
  ASSERT_TRUE(client->send(peer, numbered(1), nullptr, 0, nullptr));  // queued at the time of the fork
  const pid_t child = ::fork();
  if (child == 0) {
    client->disconnect(peer);
    client.reset();
    server.reset();
    test_arena().orphan();
    ::_exit(0);
  }
  EXPECT_EQ(exit_code_of(child), 0);
  ASSERT_TRUE(client->send(peer, numbered(2), nullptr, 0, nullptr));
  client->flush();
  const auto received = receive_some(*server, 2);
  ASSERT_EQ(received.size(), 2u) << "and the child has sent nothing in its parent's name";
  EXPECT_EQ(received[0].header.number(), 1u);
  EXPECT_EQ(received[1].header.number(), 2u);
  ASSERT_TRUE(server->prepare_wait());
  ASSERT_TRUE(client->send(peer, numbered(3), nullptr, 0, nullptr));
  client->flush();
  server->wait(UINT64_MAX);
  server->end_wait();
  EXPECT_EQ(receive_some(*server, 1).size(), 1u);
  server->wake();
  ASSERT_TRUE(server->prepare_wait());
  server->wait(UINT64_MAX);
  server->end_wait();
}

}  // namespace
}  // namespace tern::transport
