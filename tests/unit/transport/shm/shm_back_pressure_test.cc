// Shared memory under a shortage: a kernel without memory for a message.
#include <poll.h>

#include <cerrno>
#include <string>

#include "shm_fixture.h"
#include "unit/transport/failing_sends.h"

namespace tern::transport {
namespace {

using failing_sends::Scope;

bool is_readable(ShmEnd& end, int timeout_ms = 0) {
  pollfd ready = {end->descriptor(), POLLIN, 0};
  return ::poll(&ready, 1, timeout_ms) == 1;
}

constexpr size_t kLongRecord = 1980;  // 32 cells

TEST(ShmBackPressure, a_burst_has_32_records_of_any_length) {
  ShmImpl::Options options;
  options.ring_cells = 4096;
  ShmEnd a(options), b(options);
  const PeerId peer = connect(a, b);
  for (const size_t len : {size_t{20}, kLongRecord}) {
    size_t longest = 0;
    for (int round = 0; round < 4; round++) {  // a burst ends at the ring's end, too
      for (int i = 0; i < 40; i++) ASSERT_TRUE(a.send(peer, pattern(len, 1)));
      a->flush();
      for (size_t before = 0; b.got.size() < 40; before = b.got.size()) {
        b.receive();
        longest = std::max(longest, b.got.size() - before);
      }
      b.got.clear();
    }
    EXPECT_EQ(longest, 32u) << len;
  }
}

/// A sender that waits for space need not wait until a burst of slow handlers has ended.
TEST(ShmBackPressure, space_is_told_within_a_burst_of_long_records) {
  ShmEnd a, b;
  const PeerId peer = connect(a, b);
  const auto send = [&] { return a.send(peer, pattern(kLongRecord, 1)); };
  size_t long_bursts = 0;
  for (int round = 0; round < 6; round++) {  // a burst ends at the ring's end, too
    while (send()) continue;
    a->flush();
    size_t seen = 0, seen_at_space = 0;
    b->receive([&](const wire::Header&, const Payload&) {
      seen++;
      if (seen_at_space == 0 && send()) seen_at_space = seen;
    });
    if (seen < 16) continue;
    long_bursts++;
    EXPECT_GT(seen_at_space, 0u);
    EXPECT_LE(seen_at_space, 8u) << "two eighths of a ring of 32 records";
  }
  EXPECT_GT(long_bursts, 1u);
}

/// A peer closes connections whose hello it waits for if one process has many of them. The peer has not ended then.
TEST(ShmBackPressure, a_connection_that_is_closed_before_its_hello_is_made_again) {
  ShmEnd a, b;
  PeerId peer;
  {
    const Scope fail(EPIPE);
    auto made = a->connect(b->address(), "");
    ASSERT_TRUE(made.ok()) << made.status().message();
    peer = *made;
    EXPECT_EQ(failing_sends::failed, 1u);
  }
  EXPECT_EQ(a->peer_state(peer), PeerState::kConnecting);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return a->peer_state(peer) == PeerState::kReady; }));
}

TEST(ShmBackPressure, a_peer_that_ends_before_the_hello_is_dead) {
  ShmEnd a;
  PeerId peer;
  const auto start = std::chrono::steady_clock::now();
  {
    ShmEnd b;
    const Scope fail(EPIPE);
    auto made = a->connect(b->address(), "");
    ASSERT_TRUE(made.ok()) << made.status().message();
    peer = *made;
  }
  EXPECT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kDead; }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9)) << "not by the limit of all attempts";
}

TEST(ShmBackPressure, a_wake_up_that_fails_is_tried_again_by_one_that_polls) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  ASSERT_TRUE(b->prepare_wait());
  {
    const Scope fail(ENOBUFS);
    ASSERT_TRUE(a.send(ab, "x"));
    a->flush();
    EXPECT_EQ(failing_sends::failed, 1u);
    EXPECT_FALSE(is_readable(b));
    for (int i = 0; i < 300; i++) a.receive();
    EXPECT_GT(failing_sends::failed, 1u);
    EXPECT_LT(failing_sends::failed, 20u) << "not at every call";
  }
  EXPECT_FALSE(is_readable(b));
  for (int i = 0; i < 300 && !is_readable(b); i++) a.receive();
  EXPECT_TRUE(is_readable(b));
  b->end_wait();
  b.receive();
  EXPECT_EQ(b.got.size(), 1u);
}

TEST(ShmBackPressure, a_wake_up_that_fails_is_tried_again_by_one_that_sleeps) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  ASSERT_TRUE(b->prepare_wait());
  {
    const Scope fail(ENOMEM);
    ASSERT_TRUE(a.send(ab, "x"));
    a->flush();
    EXPECT_EQ(failing_sends::failed, 1u);
  }
  for (int i = 0; i < 100 && !is_readable(b); i++) {
    if (a->prepare_wait()) a->wait(UINT64_MAX);  // until the next retry
    a->end_wait();
    a.receive();
  }
  EXPECT_TRUE(is_readable(b));
  // Afterwards no retry is pending.
  ASSERT_TRUE(a->prepare_wait());
  EXPECT_FALSE(is_readable(a, 3));
  a->end_wait();
  b->end_wait();
}

TEST(ShmBackPressure, a_sleeper_that_woke_by_itself_meanwhile_is_left_alone) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  ASSERT_TRUE(b->prepare_wait());
  {
    const Scope fail(ENOBUFS);
    ASSERT_TRUE(a.send(ab, "x"));
    a->flush();
  }
  b->end_wait();
  const Scope count(ENOBUFS);
  for (int i = 0; i < 300; i++) a.receive();
  EXPECT_EQ(failing_sends::failed, 0u);
}

TEST(ShmBackPressure, chunk_that_cannot_be_announced_keeps_no_loop_awake) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  constexpr size_t kBytes = 20'000;  // sent by reference
  detail::Buffer* buffer = a.arena->alloc(kBytes);
  {
    const Scope fail(ENOMEM);
    for (int i = 0; i < 10; i++) EXPECT_FALSE(a.send(ab, buffer, 0, kBytes));
    EXPECT_EQ(failing_sends::failed, 1u) << "it is not asked again at once";
    ASSERT_TRUE(a->prepare_wait()) << "there is nothing to do until a time has come";
    a->wait(UINT64_MAX);
    a->end_wait();
    a.receive();
    EXPECT_FALSE(a.send(ab, buffer, 0, kBytes));
    EXPECT_EQ(failing_sends::failed, 2u);
  }
  bool is_sent = false;
  for (int i = 0; i < 100 && !is_sent; i++) {
    if (a->prepare_wait()) a->wait(UINT64_MAX);
    a->end_wait();
    a.receive();
    is_sent = a.send(ab, buffer, 0, kBytes);
  }
  EXPECT_TRUE(is_sent);
  a->flush();
  b.receive();
  ASSERT_EQ(b.got.size(), 1u);
  EXPECT_TRUE(b.was_reference && b.intact);
  EXPECT_EQ(a->counters().send_errors, 0u);
  memory::Arena::release(buffer);
}

}  // namespace
}  // namespace tern::transport
