// The contract of transports (src/transport/transport.h), part 3: time, sleeping, waking.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

#include "conformance/ends.h"

namespace tern::conformance {
namespace {

template <class T>
class ConformanceSleep : public Conformance<T> {
 protected:
  /// Calls prepare_wait(), wait() and end_wait(). False: no event ended the wait before the patience was over.
  static bool sleep(End<T>& end) {
    const uint64_t until_ns = end->now() + kPatienceNs;
    if (end->prepare_wait()) end->wait(until_ns);
    end->end_wait();
    return end->now() < until_ns;
  }
  static bool is_readable(End<T>& end, int timeout_ms = 0) {
    pollfd ready{end->descriptor(), POLLIN, 0};
    return ::poll(&ready, 1, timeout_ms) == 1;
  }
  /// Runs the end until prepare_wait() is true, no packet is under way, and the kernel has no more news of the network.
  static void settle(End<T>& end, End<T>& other) {
    for (int round = 0; round < 100; round++) {
      run_some({&end, &other});
      const bool is_quiet = end->prepare_wait() && !is_readable(end, 10);
      end->end_wait();
      if (is_quiet) return;
    }
    FAIL() << "something is always under way";
  }
};
TYPED_TEST_SUITE(ConformanceSleep, Transports, Names);

TYPED_TEST(ConformanceSleep, clock_never_falls) {
  End<TypeParam> a(this->world_);
  uint64_t last_ns = a->now();
  for (int i = 0; i < 1000; i++) {
    a.receive();
    const uint64_t now_ns = a->now();
    ASSERT_GE(now_ns, last_ns);
    last_ns = now_ns;
  }
}

TYPED_TEST(ConformanceSleep, pending_input_prevents_or_ends_a_wait) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  this->settle(b, a);
  for (uint32_t i = 0; i < 20; i++) {
    ASSERT_TRUE(a.send(peer, i));
    a->flush();
    ASSERT_TRUE(this->sleep(b));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == i + 1; }));
  }
}

TYPED_TEST(ConformanceSleep, packet_after_prepare_wait_ends_the_wait) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  this->settle(b, a);
  for (uint32_t i = 0; i < 20; i++) {
    ASSERT_TRUE(b->prepare_wait());
    const uint64_t until_ns = b->now() + kPatienceNs;
    ASSERT_TRUE(a.send(peer, i));
    a->flush();
    b->wait(until_ns);
    b->end_wait();
    ASSERT_LT(b->now(), until_ns);
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == i + 1; }));
  }
}

TYPED_TEST(ConformanceSleep, wait_ends_at_its_time) {
  End<TypeParam> a(this->world_);
  run_some({&a});
  for (const uint64_t ns : {uint64_t{0}, uint64_t{1}, uint64_t{50'000}, uint64_t{3'000'000}}) {
    const uint64_t until_ns = a->now() + ns;
    int rounds = 0;
    do {  // it may return early, but not for ever
      ASSERT_LT(rounds++, 1000);
      if (a->prepare_wait()) a->wait(until_ns);
      a->end_wait();
    } while (a->now() < until_ns);
  }
  ASSERT_TRUE(a->prepare_wait());
  a->wait(1);  // a time in the past
  a->end_wait();
}

TYPED_TEST(ConformanceSleep, wake_ends_the_next_wait_and_no_more) {
  End<TypeParam> a(this->world_);
  run_some({&a});
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i <= round % 3; i++) a->wake();
    const uint64_t until_ns = a->now() + kPatienceNs;
    if (a->prepare_wait()) a->wait(until_ns);
    a->end_wait();
    ASSERT_LT(a->now(), until_ns);
    ASSERT_TRUE(a->prepare_wait()) << "the wake was seen";
    if (!this->kTraits.is_virtual) {
      ASSERT_FALSE(this->is_readable(a));
    }
    a->end_wait();
  }
}

TYPED_TEST(ConformanceSleep, descriptor_is_readable_when_wait_would_return) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  this->settle(b, a);
  if (this->kTraits.is_virtual) {
    EXPECT_EQ(b->descriptor(), -1);
    return;
  }
  for (uint32_t i = 0; i < 10; i++) {
    ASSERT_TRUE(b->prepare_wait());
    ASSERT_FALSE(this->is_readable(b));
    ASSERT_TRUE(a.send(peer, i));
    a->flush();
    ASSERT_TRUE(this->is_readable(b, 20'000));
    b->end_wait();
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == i + 1; }));
    ASSERT_TRUE(b->prepare_wait());
    ASSERT_FALSE(this->is_readable(b));
    b->wake();
    ASSERT_TRUE(this->is_readable(b, 20'000));
    b->end_wait();
    ASSERT_TRUE(b->prepare_wait());
    ASSERT_FALSE(this->is_readable(b));
    b->end_wait();
  }
}

TYPED_TEST(ConformanceSleep, wake_from_another_thread_ends_a_wait) {
  if (this->kTraits.is_virtual) return;  // virtual transports have one thread
  End<TypeParam> a(this->world_);
  run_some({&a});
  for (int round = 0; round < 200; round++) {
    std::thread other([&] { a->wake(); });
    EXPECT_TRUE(this->sleep(a));
    other.join();
  }
}

TYPED_TEST(ConformanceSleep, no_wake_is_lost_between_threads) {
  if (this->kTraits.is_virtual) return;
  End<TypeParam> a(this->world_);
  run_some({&a});
  constexpr uint64_t kPosts = 20'000, kPosters = 2;
  std::atomic<uint64_t> posted{0};  // like a mailbox, written before wake() and read after prepare_wait()
  std::vector<std::thread> posters;
  for (uint64_t i = 0; i < kPosters; i++) {
    posters.emplace_back([&] {
      for (uint64_t k = 0; k < kPosts; k++) {
        posted.fetch_add(1, std::memory_order_relaxed);
        a->wake();
      }
    });
  }
  bool is_lost = false;
  while (!is_lost && posted.load(std::memory_order_relaxed) < kPosters * kPosts) {
    const bool may_wait = a->prepare_wait();
    const uint64_t until_ns = a->now() + kPatienceNs;
    if (may_wait && posted.load(std::memory_order_relaxed) < kPosters * kPosts) a->wait(until_ns);
    a->end_wait();
    is_lost = a->now() >= until_ns;
  }
  EXPECT_FALSE(is_lost);
  for (std::thread& poster : posters) poster.join();
}

TYPED_TEST(ConformanceSleep, packet_of_another_thread_always_ends_a_sleep) {
  if (this->kTraits.is_virtual) return;
  constexpr uint32_t kRounds = 1500;
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId ab = connect(a, b), ba = connect(b, a);
  run_some({&a, &b});
  const auto play = [this](End<TypeParam>& self, PeerId peer, bool begins) {
    for (uint32_t round = 0; round < kRounds; round++) {
      if (begins || round != 0) {
        EXPECT_TRUE(self.send(peer, round, "ball"));
        self->flush();
      }
      const size_t before = self.got.size();
      while (self.receive() == 0) {
        if (!this->sleep(self)) {
          ADD_FAILURE() << "a packet was slept through in round " << round;
          return;
        }
      }
      EXPECT_EQ(self.got.size(), before + 1);
    }
    EXPECT_TRUE(self.send(peer, kRounds, "ball"));
    self->flush();
  };
  std::thread other([&] { play(b, ba, false); });
  play(a, ab, true);
  other.join();
}

TYPED_TEST(ConformanceSleep, space_for_a_refused_packet_ends_a_wait) {
  if (this->kTraits.is_virtual || !this->kTraits.reports_space) return;  // endpoints over such transports poll instead
  constexpr uint32_t kPackets = 20'000;
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  run_some({&a, &b});
  std::atomic<bool> is_sent{false};
  std::thread reader([&] {  // it sends no packet
    while (!is_sent.load()) b.receive();
  });
  for (uint32_t i = 0; i < kPackets;) {
    if (a.send(peer, i, pattern(i, i % 500))) {
      i++;
      continue;
    }
    a->flush();
    a.receive();
    if (a.send(peer, i, pattern(i, i % 500))) {
      i++;
      continue;
    }
    if (!this->sleep(a)) {
      ADD_FAILURE() << "the wait was not ended";
      break;
    }
  }
  a->flush();
  is_sent.store(true);
  reader.join();
  b.receive();  // a reader that began late has read nothing
  EXPECT_GT(b.got.size(), 0u);
}

}  // namespace
}  // namespace tern::conformance
