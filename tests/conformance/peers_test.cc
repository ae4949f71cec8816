// The contract of transports (src/transport/transport.h), part 1: creation, properties, peers.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "conformance/ends.h"

namespace tern::conformance {
namespace {

template <class T>
class ConformancePeers : public Conformance<T> {};
TYPED_TEST_SUITE(ConformancePeers, Transports, Names);

TYPED_TEST(ConformancePeers, options_out_of_range_are_refused_with_a_reason) {
  using Options = typename TypeParam::Options;
  for (const auto& breaker : breakers(static_cast<const Options*>(nullptr))) {
    Options options = End<TypeParam>::made_options(this->world_);
    breaker(options);
    const End<TypeParam> end(std::move(options));
    EXPECT_EQ(end.status.code(), Code::kMisuse) << end.status.message();
    EXPECT_GT(end.status.message().size(), 10u);
  }
}

TYPED_TEST(ConformancePeers, figures_are_in_range_and_constant) {
  End<TypeParam> end(this->world_);
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  const auto address = end->address();
  EXPECT_GE(address.size(), 1u);
  EXPECT_LE(address.size(), transport::kAddressBytesMax);
  const std::vector<std::byte> before(address.begin(), address.end());
  const uint32_t payload_bytes_max = end->payload_bytes_max();
  EXPECT_GE(payload_bytes_max, wire::kPayloadBytesMin);
  EXPECT_LE(payload_bytes_max, wire::kPayloadBytesMax);
  EXPECT_GE(end->receive_queue_packets(), 1u);
  EXPECT_GE(end->link_bytes_per_sec(), 1u);
  EXPECT_GE(end->delay_target().far_ns, end->delay_target().target_ns);
  EXPECT_GE(this->kTraits.rto_ns_min, 1u);
  run_some({&end});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), end->address().begin(), end->address().end()));
  EXPECT_EQ(end->payload_bytes_max(), payload_bytes_max);
}

TYPED_TEST(ConformancePeers, payload_limit_of_a_peer_is_at_most_the_transports) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  EXPECT_GE(a->payload_bytes_max(peer), wire::kPayloadBytesMin);
  EXPECT_LE(a->payload_bytes_max(peer), a->payload_bytes_max());
  EXPECT_TRUE(a->peer_failure(peer).ok()) << "it is ready";
}

TYPED_TEST(ConformancePeers, connections_are_counted) {
  End<TypeParam> a(this->world_), b(this->world_), c(this->world_);
  const PeerId peer = connect(a, b);
  EXPECT_EQ(connect(a, b), peer) << "the same address is the same peer";
  EXPECT_NE(connect(a, c), peer);
  a->disconnect(peer);
  run_some({&a, &b});
  EXPECT_EQ(a->peer_state(peer), PeerState::kReady) << "one connect() is left";
  must_send(a, b, peer, 1);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
  a->disconnect(peer);
  run_some({&a, &b});
  const PeerId again = connect(a, b);
  must_send(a, b, again, 2);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 2; }));
}

TYPED_TEST(ConformancePeers, peer_ids_are_reused) {
  End<TypeParam> a(this->world_), b(this->world_);
  PeerId largest = 0;
  for (int i = 0; i < 50; i++) {
    const PeerId peer = connect(a, b);
    largest = std::max(largest, peer);
    a->disconnect(peer);
    for (int round = 0; round < 100; round++) {
      a.receive();
      b.receive();
    }
  }
  EXPECT_LT(largest, 25u);
}

TYPED_TEST(ConformancePeers, endpoint_may_be_its_own_peer) {
  End<TypeParam> a(this->world_);
  const PeerId self = connect(a, a);
  must_send(a, a, self, 1, "me");
  ASSERT_TRUE(run_until({&a}, [&] { return a.got.size() == 1; }));
  EXPECT_EQ(a.got[0].bytes, "me");
}

TYPED_TEST(ConformancePeers, malformed_addresses_are_refused) {
  End<TypeParam> a(this->world_), b(this->world_);
  const std::vector<std::byte> good(b->address().begin(), b->address().end());
  const auto expect_refused = [&](const std::vector<std::byte>& bytes) {
    const auto peer = a->connect(bytes, "127.0.0.1");
    ASSERT_FALSE(peer.ok()) << bytes.size();
    EXPECT_TRUE(peer.status().code() == Code::kMisuse || peer.status().code() == Code::kRefused) << bytes.size();
  };
  expect_refused({});
  expect_refused({good.begin(), good.begin() + 1});
  std::vector<std::byte> longer = good;
  longer.resize(transport::kAddressBytesMax + 1);
  expect_refused(longer);
  // Bytes of any length are refused, or make a peer that does not exist.
  std::mt19937 random(1);
  for (int round = 0; round < 500; round++) {
    std::vector<std::byte> bytes = good;
    if (round % 2 == 0) bytes.resize(random() % (transport::kAddressBytesMax + 1));
    for (std::byte& byte : bytes) {
      if (round % 2 == 0 || random() % 4 == 0) byte = static_cast<std::byte>(random());
    }
    const auto peer = a->connect(bytes, "127.0.0.1");
    if (!peer.ok()) continue;
    (void)a.send(*peer, 1, "anybody?");
    a->flush();
    a->disconnect(*peer);
  }
  const PeerId peer = connect(a, b);
  must_send(a, b, peer, 42);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return !b.got.empty() && b.got.back().number == 42; }));
}

TYPED_TEST(ConformancePeers, packets_queued_before_the_last_disconnect_leave) {
  End<TypeParam> a(this->world_), b(this->world_);
  const PeerId peer = connect(a, b);
  ASSERT_TRUE(a.send(peer, 1, "farewell"));
  a->disconnect(peer);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
}

TYPED_TEST(ConformancePeers, pairs_work_or_are_refused_as_the_trait_says) {
  End<TypeParam> a(this->world_), b(this->world_);
  const auto paired = a->connect_paired(b->address(), "127.0.0.1");
  EXPECT_EQ(paired.ok(), this->kTraits.has_pairs);
  if (!this->kTraits.has_pairs) {
    EXPECT_EQ(paired.status().code(), Code::kUnavailable);
    const PeerId peer = connect(a, b);
    EXPECT_EQ(a->port_of(peer), 0u);
    EXPECT_EQ(a->take_path_error(peer), transport::PathError::kNone);
    return;
  }
  const PeerId like = connect(b, a);
  must_send(a, b, *paired, 1);
  Result<PeerId> back = Status(Code::kUnavailable, "nothing has come");
  const auto look = [&] {
    b->receive([&](const wire::Header&, const Payload&) { back = b->connect_back(like); });
    a.receive();
    a->flush();
    return back.ok();
  };
  ASSERT_TRUE(run_until({&a}, look)) << back.status().message();
  EXPECT_EQ(b->payload_bytes_max(*back), b->payload_bytes_max(like));
  EXPECT_EQ(b->take_path_error(*back), transport::PathError::kNone);
  must_send(b, a, *back, 2);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return a.got.size() == 1; }));
  b->disconnect(*back);
  b->disconnect(like);
  a->disconnect(*paired);
}

TYPED_TEST(ConformancePeers, death_of_a_peer_frees_its_memory) {
  End<TypeParam> a(this->world_), other(this->world_);
  auto b = std::make_unique<End<TypeParam>>(this->world_);
  const PeerId peer = connect(a, *b), alive = connect(a, other);
  detail::Buffer* buffer = a.filled(1, a->payload_bytes_max());
  for (uint32_t i = 0; i < 8; i++) (void)a.send(peer, i, buffer, buffer->length_bytes);
  a->flush();
  b.reset();
  for (uint32_t i = 0; i < 8; i++) (void)a.send(peer, i, buffer, buffer->length_bytes);
  const uint64_t ticket = a->ticket();
  EXPECT_TRUE(run_until({&a, &other}, [&] { return a->released() >= ticket; })) << "released in bounded time";
  memory::Arena::release(buffer);  // AddressSanitizer sees a late reader
  run_some({&a, &other});
  a->disconnect(peer);
  must_send(a, other, alive, 7);
  EXPECT_TRUE(run_until({&a, &other}, [&] { return other.got.size() == 1; })) << "others are not disturbed";
}

TYPED_TEST(ConformancePeers, destructor_ends_all_reading_of_message_memory) {
  auto a = std::make_unique<End<TypeParam>>(this->world_);
  End<TypeParam> b(this->world_);
  const PeerId peer = connect(*a, b);
  detail::Buffer* buffer = a->filled(1, (*a)->payload_bytes_max());
  ASSERT_TRUE(a->send(peer, 1, buffer, buffer->length_bytes));
  (*a)->flush();
  (void)a->send(peer, 2, buffer, buffer->length_bytes);
  a->die();
  memory::Arena::release(buffer);
  run_some({&b});
  for (const auto& packet : b.got) {
    EXPECT_TRUE(!packet.is_whole || packet.bytes == pattern(1, packet.bytes.size()));
  }
}

}  // namespace
}  // namespace tern::conformance
