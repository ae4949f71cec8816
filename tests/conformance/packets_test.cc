// The contract of transports (src/transport/transport.h), part 2: packets, memory, back-pressure, hostile peers.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "conformance/ends.h"

namespace tern::conformance {
namespace {

template <class T>
class ConformancePackets : public Conformance<T> {};
TYPED_TEST_SUITE(ConformancePackets, Transports, Names);

TYPED_TEST(ConformancePackets, any_length_arrives_whole_and_in_order) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  const size_t most = a->payload_bytes_max(peer);
  std::vector<size_t> lengths = {0, 1, 31, 32, 33, 511, 512, 513, most - 1, most};
  std::mt19937 random(1);
  while (lengths.size() < 300) lengths.push_back(random() % (most + 1));
  for (uint32_t i = 0; i < lengths.size(); i++) {
    detail::Buffer* buffer = a.filled(i, lengths[i]);
    ASSERT_TRUE(run_until({&a, &b}, [&] { return a.send(peer, i, buffer, lengths[i]); }));
    const uint64_t ticket = a->ticket();
    // Each packet arrives and its memory is released before the next one is sent: a transport must not wait for more
    // traffic.
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == i + 1 && a->released() >= ticket; })) << lengths[i];
    ASSERT_EQ(b.got[i].number, i);
    ASSERT_TRUE(b.got[i].is_whole);
    ASSERT_TRUE(b.got[i].bytes == pattern(i, lengths[i])) << lengths[i];
    memory::Arena::release(buffer);
  }
  EXPECT_EQ(a->counters().packets_sent, lengths.size());
  EXPECT_EQ(b->counters().packets_received, lengths.size());
}

TYPED_TEST(ConformancePackets, burst_arrives_in_order) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  for (uint32_t round = 0; round < 50; round++) {
    const uint32_t count = std::min(a->receive_queue_packets(), 1 + round % 40);
    const size_t before = b.got.size();
    for (uint32_t i = 0; i < count; i++) must_send(a, b, peer, round * 100 + i, pattern(i, i % 200));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == before + count; }));
    for (uint32_t i = 0; i < count; i++) {
      ASSERT_EQ(b.got[before + i].number, round * 100 + i);
      ASSERT_EQ(b.got[before + i].bytes, pattern(i, i % 200));
    }
  }
}

TYPED_TEST(ConformancePackets, sender_object_sends_like_send) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  detail::Buffer* large = a.filled(3, a->payload_bytes_max(peer));
  const std::string small = pattern(2, 32);
  {
    typename TypeParam::Impl::Sender sender(*a, peer);
    EXPECT_TRUE(sender.send(numbered(1), nullptr, 0, nullptr));
    EXPECT_TRUE(sender.send(numbered(2), reinterpret_cast<const std::byte*>(small.data()), small.size(), nullptr));
    EXPECT_TRUE(sender.send(numbered(3), large->data(), large->length_bytes, large));
  }
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 3; }));
  EXPECT_EQ(b.got[1].bytes, small);
  EXPECT_TRUE(b.got[2].bytes == pattern(3, large->length_bytes));
  EXPECT_EQ(a->counters().packets_sent, 3u);
  memory::Arena::release(large);
}

TYPED_TEST(ConformancePackets, payload_without_a_buffer_is_copied_at_once) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  std::string bytes = pattern(1, transport::kCopiedBytesMax);
  ASSERT_TRUE(a.send(peer, 1, bytes));
  bytes.assign(bytes.size(), 'x');
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
  EXPECT_EQ(b.got[0].bytes, pattern(1, transport::kCopiedBytesMax));
}

TYPED_TEST(ConformancePackets, released_memory_may_change) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  const size_t len = a->payload_bytes_max(peer);
  for (uint32_t round = 0; round < 30; round++) {
    std::vector<detail::Buffer*> buffers;
    for (uint32_t i = 0; i < 6; i++) {
      buffers.push_back(a.filled(round + i, len));
      ASSERT_TRUE(run_until({&a, &b}, [&] { return a.send(peer, round + i, buffers.back(), len); }));
    }
    const uint64_t ticket = a->ticket();
    a->flush();
    ASSERT_TRUE(run_until({&a}, [&] { return a->released() >= ticket; })) << "without the peer's help";
    for (detail::Buffer* buffer : buffers) {
      buffer->revoke_lease();
      std::memset(buffer->data(), 'x', len);
      memory::Arena::release(buffer);
    }
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 6; }));
    for (uint32_t i = 0; i < 6; i++) {
      ASSERT_EQ(b.got[i].number, round + i);
      ASSERT_TRUE(!b.got[i].is_whole || b.got[i].bytes == pattern(round + i, len)) << "neither whole nor a known loss";
      ASSERT_TRUE(b.got[i].is_whole || this->kTraits.has_shared_memory)
          << "only packets by reference can be taken back";
    }
    b.got.clear();
  }
}

TYPED_TEST(ConformancePackets, tickets_and_releases_never_fall) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  uint64_t ticket = a->ticket(), released = a->released();
  for (uint32_t i = 0; i < 2000; i++) {
    if (i % 3 != 0) (void)a.send(peer, i, "packet");
    ASSERT_GE(a->ticket(), ticket);
    ticket = a->ticket();
    if (i % 5 == 0) a->flush();
    if (i % 7 == 0) b.receive();
    a.receive();
    ASSERT_GE(a->released(), released);
    released = a->released();
  }
  ticket = a->ticket();
  EXPECT_TRUE(run_until({&a, &b}, [&] { return a->released() >= ticket; }));
}

TYPED_TEST(ConformancePackets, packet_beyond_the_payload_limit_is_a_counted_loss) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  const size_t len = std::max(a->payload_bytes_max(peer), a->large_payload_bytes()) + 1;
  detail::Buffer* buffer = a.filled(1, len);
  EXPECT_TRUE(a.send(peer, 1, buffer, len)) << "taken, because it would not fit later either";
  EXPECT_EQ(a->counters().send_errors, 1u);
  const uint64_t ticket = a->ticket();
  EXPECT_TRUE(run_until({&a, &b}, [&] { return a->released() >= ticket; }));
  memory::Arena::release(buffer);
  must_send(a, b, peer, 2);
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !b.got.empty(); }));
  EXPECT_EQ(b.got[0].number, 2u);
  EXPECT_EQ(b.got.size(), 1u);
}

TYPED_TEST(ConformancePackets, full_queue_refuses_and_takes_more_later) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  const size_t len = std::min<size_t>(a->payload_bytes_max(peer), 900);
  detail::Buffer* buffer = a.filled(0, len);
  uint32_t taken = 0;
  while (taken < 1'000'000 && a.send(peer, taken, buffer, len)) taken++;
  ASSERT_LT(taken, 1'000'000u) << "memory for queued packets is bounded";
  EXPECT_GE(taken, 16u);
  EXPECT_FALSE(a.send(peer, taken, buffer, len));
  // No part of the refused packet is queued, and the other packets arrive in order.
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.send(peer, 1'000'000, buffer, len); }));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !b.got.empty() && b.got.back().number == 1'000'000; }));
  for (size_t i = 0; i + 1 < b.got.size(); i++) {
    ASSERT_LT(b.got[i].number, b.got[i + 1].number);
    ASSERT_TRUE(b.got[i + 1].number < taken || i + 2 == b.got.size());
  }
  const uint64_t ticket = a->ticket();
  EXPECT_TRUE(run_until({&a, &b}, [&] { return a->released() >= ticket; }));
  memory::Arena::release(buffer);
}

TYPED_TEST(ConformancePackets, silent_peer_holds_no_memory_for_ever) {
  End<TypeParam> a(this->world_), b(this->world_), c(this->world_);
  const PeerId silent = connect(a, b), other = connect(a, c);
  detail::Buffer* buffer = a.filled(0, a->payload_bytes_max(silent));
  for (uint32_t i = 0; i < 2000; i++) (void)a.send(silent, i, buffer, buffer->length_bytes);
  const uint64_t ticket = a->ticket();
  ASSERT_TRUE(run_until({&a, &c}, [&] { return a->released() >= ticket; })) << "b receives nothing";
  memory::Arena::release(buffer);
  must_send(a, c, other, 1);
  EXPECT_TRUE(run_until({&a, &c}, [&] { return c.got.size() == 1; })) << "others go on";
}

TYPED_TEST(ConformancePackets, visitor_may_connect_disconnect_and_send) {
  End<TypeParam> a(this->world_), b(this->world_), c(this->world_);
  const PeerId ab = connect(a, b), ba = connect(b, a);
  must_send(a, b, ab, 1, "first");
  must_send(a, b, ab, 2, "second");
  PeerId bc = 0;
  std::vector<std::string> seen;
  const auto look = [&] {
    b->receive([&](const wire::Header&, const Payload& payload) {
      if (seen.empty()) {
        bc = *b->connect(c->address(), "127.0.0.1");
        b->disconnect(bc);
        bc = *b->connect(c->address(), "127.0.0.1");
        for (uint32_t i = 0; i < 5; i++) (void)b.send(ba, i, "reply");
        b->disconnect(ba);
      }
      seen.emplace_back(reinterpret_cast<const char*>(payload.data), payload.bytes);
    });
    b->flush();
    return seen.size() >= 2;
  };
  for (const auto limit = std::chrono::steady_clock::now() + kPatience; !look();) {
    a->flush();
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"first", "second"})) << "views last as long as the visitor's call";
  ASSERT_TRUE(run_until({&a, &b, &c}, [&] { return b->peer_state(bc) == PeerState::kReady; }));
  must_send(b, c, bc, 3);
  EXPECT_TRUE(run_until({&b, &c}, [&] { return c.got.size() == 1; }));
}

/// Sends headers that no endpoint sends through a transport that otherwise obeys the rules.
TYPED_TEST(ConformancePackets, hostile_headers_are_dropped_and_others_are_served) {
  End<TypeParam> hostile(this->world_), good(this->world_), b(this->world_);
  const PeerId from_hostile = connect(hostile, b), from_good = connect(good, b);
  std::mt19937_64 random(1);
  size_t visited = 0;
  const auto look = [&] {
    b->receive([&](const wire::Header& header, const Payload& payload) {
      visited++;
      EXPECT_EQ(header.version(), wire::kVersion);
      EXPECT_LE(payload.bytes, b->payload_bytes_max());
      volatile std::byte sum{};  // every byte is readable
      for (uint32_t i = 0; i < payload.bytes; i++) sum = sum ^ payload.data[i];
    });
  };
  for (uint32_t round = 0; round < 3000; round++) {
    wire::Header header = {random(), random(), random()};
    if (round % 2 == 0) header.w0 = numbered(0).w0 ^ (uint64_t{1} << random() % 64);
    const std::string bytes = pattern(round, random() % 512);
    (void)hostile->send(from_hostile, header, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr);
    hostile->flush();
    hostile.receive();
    look();
  }
  const auto& counters = b->counters();
  uint64_t dropped = counters.dropped_unparsable + counters.dropped_bad_reference + counters.dropped_oversize;
  for (const uint64_t frames : counters.dropped_frames) dropped += frames;
  EXPECT_GT(dropped, 0u);
  // Packets with a plausible header are delivered, and the layers above drop them. A good packet always arrives.
  for (int round = 0; round < 3000; round++) look();
  must_send(good, b, from_good, 4242, "honest");
  EXPECT_TRUE(run_until({&good, &b}, [&] { return !b.got.empty() && b.got.back().bytes == "honest"; }));
}

TYPED_TEST(ConformancePackets, one_receive_is_bounded) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  if (this->kTraits.is_virtual) {  // one thread: the queue is as long as it can be
    for (uint32_t i = 0; i < 20'000; i++) {
      (void)a.send(peer, i);
      if (i % 100 == 0) a->flush(), a.receive();
    }
    a->flush();
    for (int i = 0; i < 100; i++) EXPECT_LE(b.receive(), 4096u);
    return;
  }
  std::atomic<bool> is_over{false};
  std::thread flood([&] {
    for (uint32_t i = 0; !is_over.load(std::memory_order_relaxed); i++) {
      (void)a.send(peer, i);
      if (i % 64 == 0) {
        a->flush();
        a->receive([](const wire::Header&, const Payload&) {});
      }
    }
  });
  for (int i = 0; i < 2000; i++) {
    size_t visited = 0;
    b->receive([&](const wire::Header&, const Payload&) { visited++; });
    EXPECT_LE(visited, 65'536u);  // 16 reads of 64 KiB full of headers: what UDP takes at most
  }
  is_over.store(true);
  flood.join();
}

}  // namespace
}  // namespace tern::conformance
