// Lack of memory: an endpoint reports it, or works without a peer. It never aborts, and it works later.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "memory/arena.h"
#include "transport/shm/shm.h"
#include "transport/udp/udp.h"
#include "udp/udp_fixture.h"
#include "unit/failing_new.h"

namespace {

/// The allocations of this program. Number `fail_at` from now on fails, or all from it on.
struct Allocations {
  bool is_counting = false;
  bool fails_on = false;
  uint64_t count = 0;
  uint64_t fail_at = 0;

  bool fails() {
    if (!is_counting) return false;
    ++count;
    return fails_on ? count >= fail_at : count == fail_at;
  }
};
constinit Allocations allocations;

}  // namespace

bool tern::test::allocation_fails() noexcept { return allocations.fails(); }

namespace tern::transport {
namespace {

constexpr size_t kLarge = 40'000;

template <class Impl>
typename Impl::Options options();
template <>
Shm::Options options<ShmImpl>() {
  return {.ring_cells = 256};
}
template <>
Udp::Options options<UdpImpl>() {
  Udp::Options options;
  options.bind = "127.0.0.1";
  options.offload = false;
  return options;
}

/// An endpoint and its arena, if there was memory for both.
template <class Impl>
struct End {
  End(size_t chunk_bytes, Status& status) {
    memory::ArenaOptions arena_options;
    arena_options.shared = Impl::kTraits.has_shared_memory;
    arena_options.huge_pages = false;
    arena_options.chunk_bytes = chunk_bytes;
    auto made = memory::Arena::create(arena_options);
    status = made.status();
    if (!made.ok()) return;
    arena = *made;
    auto transport = Impl::create(options<Impl>(), *arena);
    status = transport.status();
    if (transport.ok()) impl = std::move(*transport);
  }
  End(const End&) = delete;
  ~End() {
    impl.reset();
    if (arena != nullptr) arena->orphan();
  }
  void turn() {
    impl->receive([&](const wire::Header&, const Payload&) { packets++; });
    impl->flush();
  }
  memory::Arena* arena = nullptr;
  std::unique_ptr<Impl> impl;
  size_t packets = 0;
};

/// Uses two endpoints as a program does, and skips failed steps. True: everything worked.
template <class Impl>
bool use(End<Impl>& a, End<Impl>& b) {
  const auto ab = a.impl->connect(b.impl->address(), "127.0.0.1");
  EXPECT_TRUE(ab.ok() || ab.status().code() == Code::kNoMemory) << ab.status().message();
  const auto ba = b.impl->connect(a.impl->address(), "127.0.0.1");
  EXPECT_TRUE(ba.ok() || ba.status().code() == Code::kNoMemory) << ba.status().message();
  bool works = ab.ok() && ba.ok();
  if (ab.ok()) {
    constexpr int kTurnsMax = 3000;
    for (int i = 0; i < kTurnsMax && a.impl->peer_state(*ab) == PeerState::kConnecting; i++) a.turn(), b.turn();
    const size_t before = b.packets;
    // The second message needs another chunk of the arena. The third one has its own chunk.
    const size_t most = std::min<size_t>(a.impl->payload_bytes_max(*ab), kLarge);
    std::array<detail::Buffer*, 4> buffers{};
    for (const size_t bytes : {size_t{100}, kLarge, size_t{3} << 20}) {
      detail::Buffer*& buffer = buffers[static_cast<size_t>(bytes > 100) + (bytes > kLarge)];
      buffer = a.arena->alloc(bytes);
      if (buffer == nullptr) {
        works = false;
        continue;
      }
      const size_t length = std::min(bytes, most);
      const auto header = wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, 0, 1, 0, 1, 32);
      for (int i = 0; i < kTurnsMax; i++) {
        const bool is_sent = a.impl->send(*ab, header, buffer->data(), length, buffer);
        a.turn(), b.turn();
        if (is_sent) break;
      }
    }
    for (int i = 0; i < kTurnsMax && b.packets < before + 3; i++) a.turn(), b.turn();
    works = works && b.packets == before + 3;
    for (detail::Buffer* buffer : buffers) {
      if (buffer != nullptr) memory::Arena::release(buffer);
    }
    a.impl->disconnect(*ab);
  }
  if (ba.ok()) b.impl->disconnect(*ba);
  for (int i = 0; i < 1500; i++) a.turn(), b.turn();
  return works;
}

/// Fails one allocation after the other, or all from one on, until no allocation fails. Then the same endpoints must
/// work.
template <class Impl>
void run_with_failures(bool fails_on) {
  bool has_met_all = false;
  for (uint64_t n = 1; !has_met_all && n < 10'000; n++) {
    SCOPED_TRACE(n);
    Status status;
    allocations = {true, fails_on, 0, n};
    {
      End<Impl> a(1u << 20, status);
      if (status.ok()) {
        End<Impl> b(1u << 20, status);
        if (status.ok()) {
          use(a, b);
          has_met_all = allocations.count < n;
          allocations = {};
          ASSERT_TRUE(use(a, b)) << "with memory again";
          a.arena->check_invariants();
        }
      }
      allocations = {};
    }
    ASSERT_TRUE(status.ok() || status.code() == Code::kNoMemory) << status.message();
  }
  EXPECT_TRUE(has_met_all);
}

TEST(NoMemory, shm_survives_each_failing_allocation) { run_with_failures<ShmImpl>(false); }
TEST(NoMemory, shm_survives_the_end_of_memory_at_each_allocation) { run_with_failures<ShmImpl>(true); }
TEST(NoMemory, udp_survives_each_failing_allocation) { run_with_failures<UdpImpl>(false); }
TEST(NoMemory, udp_survives_the_end_of_memory_at_each_allocation) { run_with_failures<UdpImpl>(true); }

/// Allocates and releases messages of all sizes. A failed allocation returns null, and a release needs no memory.
TEST(NoMemory, arena_survives_the_end_of_memory_at_each_allocation) {
  bool has_met_all = false;
  for (uint64_t n = 1; !has_met_all && n < 10'000; n++) {
    memory::ArenaOptions arena_options;
    arena_options.huge_pages = false;
    arena_options.chunk_bytes = 1u << 20;
    arena_options.limit_bytes = 8u << 20;
    allocations = {true, true, 0, n};
    auto made = memory::Arena::create(arena_options);
    if (made.ok()) {
      memory::Arena& arena = **made;
      std::array<detail::Buffer*, 64> held{};
      for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < held.size(); i++) held[i] = arena.alloc(size_t{100} << (i % 14));
        EXPECT_EQ(arena.alloc(7u << 20), nullptr);
        for (size_t i = 0; i < held.size(); i++) {
          if (detail::Buffer* buffer = held[(i * 29) % held.size()]; buffer != nullptr) memory::Arena::release(buffer);
        }
        EXPECT_FALSE(arena.chunks().empty());
      }
      has_met_all = allocations.count < n;
      allocations = {};
      arena.check_invariants();
      detail::Buffer* buffer = arena.alloc(1u << 20);
      EXPECT_NE(buffer, nullptr) << "with memory again";
      if (buffer != nullptr) memory::Arena::release(buffer);
      arena.orphan();
    } else {
      EXPECT_EQ(made.status().code(), Code::kNoMemory);
    }
    allocations = {};
  }
  EXPECT_TRUE(has_met_all);
}

#ifndef TERN_IS_SANITIZED  // the shadow memory of a sanitizer exceeds every limit

/// Runs `task` in a child with `limit_bytes` of address space. Returns its exit code, or 128 plus its signal.
int under_address_limit(size_t limit_bytes, const std::function<int()>& task) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit = {limit_bytes, limit_bytes};
    ::_exit(::setrlimit(RLIMIT_AS, &limit) == 0 ? task() : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// 0: everything worked; 1: a status reported a lack of memory; other values: a status reported another error.
template <class Impl>
int create_and_use(size_t chunk_bytes) {
  Status status;
  End<Impl> a(chunk_bytes, status);
  if (!status.ok()) return status.code() == Code::kNoMemory ? 1 : 2;
  End<Impl> b(chunk_bytes, status);
  if (!status.ok()) return status.code() == Code::kNoMemory ? 1 : 2;
  return use(a, b) ? 0 : 1;
}

TEST(NoMemory, address_space_limits_end_in_a_status) {
  int worked = 0, refused = 0;
  for (size_t megabytes = 8; megabytes <= 1024; megabytes += megabytes < 128 ? 4 : 64) {
    for (const size_t chunk_bytes : {size_t{1} << 20, size_t{32} << 20}) {
      for (const int outcome :
           {under_address_limit(megabytes << 20, [&] { return create_and_use<ShmImpl>(chunk_bytes); }),
            under_address_limit(megabytes << 20, [&] { return create_and_use<UdpImpl>(chunk_bytes); })}) {
        EXPECT_LE(outcome, 1) << megabytes << " MB, chunks of " << chunk_bytes;
        worked += outcome == 0;
        refused += outcome == 1;
      }
    }
  }
  EXPECT_GT(worked, 0);
  EXPECT_GT(refused, 0);
}

#endif

}  // namespace
}  // namespace tern::transport
