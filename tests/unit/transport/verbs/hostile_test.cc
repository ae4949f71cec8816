// The verbs transport with hostile peers: packets and addresses of random bytes, neighbours that never answer. Over the
// software verbs provider.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "unit/transport/verbs/verbs_fixture.h"

namespace tern::transport {
namespace {

using verbs_test::connect;
using verbs_test::counters;
using verbs_test::End;
using verbs_test::provider;
using verbs_test::run_until;

class VerbsHostile : public verbs_test::VerbsTest {
 protected:
  static VerbsAddress address_of(const End& end) {
    VerbsAddress address;
    EXPECT_TRUE(decode_address(end.impl->address(), &address));
    return address;
  }
  static std::vector<std::byte> packet(const wire::Header& header, size_t payload_bytes, size_t said_bytes) {
    std::vector<std::byte> bytes(wire::kHeaderBytes + payload_bytes, std::byte{0x55});
    wire::Header sent = header;
    sent.set_length_and_flags(said_bytes, 0);
    wire::store_header(bytes.data(), sent);
    return bytes;
  }
  static wire::Header header(uint32_t number) {
    return wire::client_header(wire::Kind::kRequest, wire::kFirst, verbs_test::kTestKey, number, 64, wire::kNoDeadline,
                               5, 0);
  }
  static uint64_t dropped(const End& end) {
    const TransportCounters& all = end.impl->counters();
    return all.dropped_unparsable + all.dropped_bad_reference + all.dropped_oversize;
  }
};

TEST_F(VerbsHostile, garbage_of_any_length__is_dropped_and_counted__and_good_packets_arrive) {
  End a, b;
  const PeerId peer = connect(a, b);
  const VerbsAddress to = address_of(b);
  std::mt19937 random(1);
  uint64_t sent = 0, above_mtu = 0;
  for (uint32_t round = 0; round < 300; round++) {
    for (int i = 0; i < 8; i++) {
      const size_t bytes = round < 64 ? round : random() % 4 == 0 ? 4090 + random() % 100 : random() % 4097;
      std::vector<std::byte> garbage(bytes);
      for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
      if (!provider().inject(0, to.queue_pair, 0x1234, to.key, garbage.data(), garbage.size())) continue;
      sent++;
      if (bytes > 4096) above_mtu++;
    }
    ASSERT_TRUE(a.send(peer, 77));
    ASSERT_TRUE(run_until({&a, &b}, [&] {
      return std::any_of(b.got.begin(), b.got.end(), [](const End::Received& one) { return one.number == 77; });
    }));
    b.got.clear();
  }
  EXPECT_TRUE(run_until({&b}, [&] { return b->counters().packets_received + dropped(b) == sent - above_mtu + 300; }));
  EXPECT_GT(b->counters().dropped_unparsable, 100u);
  EXPECT_EQ(counters().dropped_other, above_mtu);
  EXPECT_EQ(b->counters().device_resets, 0u);
  EXPECT_TRUE(b->failure().ok());
}

TEST_F(VerbsHostile, forged_headers__are_counted_by_reason) {
  Verbs::Options options;
  options.packet_bytes = 1024;
  End b(options);
  const VerbsAddress to = address_of(b);
  const auto inject = [&](const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(provider().inject(0, to.queue_pair, 0x1234, to.key, bytes.data(), bytes.size()));
    const uint64_t before = dropped(b) + b->counters().packets_received;
    ASSERT_TRUE(run_until({&b}, [&] { return dropped(b) + b->counters().packets_received > before; }));
  };
  inject(packet(header(1), 100, wire::kHeaderBytes + 100));
  EXPECT_EQ(b.got.size(), 1u);
  inject(packet(header(2), 100, wire::kHeaderBytes + 99));
  inject(packet(header(3), 100, wire::kHeaderBytes + 101));
  inject(packet(header(4), 100, 0));
  inject(packet(header(5), 0, 65535));
  EXPECT_EQ(b->counters().dropped_unparsable, 4u);
  // The port accepts this packet, but this endpoint does not.
  inject(packet(header(6), 1001, wire::kHeaderBytes + 1001));
  EXPECT_EQ(b->counters().dropped_oversize, 1u);
  auto by_reference = packet(header(7), 100, wire::kHeaderBytes + 100);
  wire::Header marked = wire::load_header(by_reference.data());
  marked.set_length_and_flags(wire::kHeaderBytes + 100, wire::kByReference);
  wire::store_header(by_reference.data(), marked);
  inject(by_reference);
  EXPECT_EQ(b->counters().dropped_bad_reference + b->counters().dropped_unparsable, 5u);
  EXPECT_EQ(b.got.size(), 1u);
}

TEST_F(VerbsHostile, every_flip_of_a_good_packet__is_dropped_or_whole) {
  End b;
  const VerbsAddress to = address_of(b);
  const auto good = packet(header(1), 40, wire::kHeaderBytes + 40);
  for (size_t bit = 0; bit < 8 * wire::kHeaderBytes; bit++) {
    auto flipped = good;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_TRUE(provider().inject(0, to.queue_pair, 0x1234, to.key, flipped.data(), flipped.size()));
    const uint64_t before = dropped(b) + b->counters().packets_received;
    ASSERT_TRUE(run_until({&b}, [&] { return dropped(b) + b->counters().packets_received > before; })) << bit;
  }
  for (const End::Received& one : b.got) EXPECT_EQ(one.payload, std::vector<std::byte>(40, std::byte{0x55}));
}

TEST_F(VerbsHostile, other_key__never_reaches_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  const VerbsAddress to = address_of(b);
  const auto good = packet(header(1), 100, wire::kHeaderBytes + 100);
  for (int bit = 0; bit < 32; bit++) {
    ASSERT_TRUE(provider().inject(0, to.queue_pair, 0x1234, to.key ^ (1u << bit), good.data(), good.size()));
  }
  ASSERT_TRUE(a.send(peer, 2));
  EXPECT_TRUE(run_until({&a, &b}, [&] { return !b.got.empty() && counters().dropped_bad_qkey == 32; }));
  ASSERT_EQ(b.got.size(), 1u);
  EXPECT_EQ(b.got[0].number, 2u);
  EXPECT_EQ(to.key & 0x80000000, 0u) << "a key with this bit is replaced by the sender's own";
}

TEST_F(VerbsHostile, flood__does_not_end_the_endpoint) {
  Verbs::Options options;
  options.receive_buffers = 64;
  End a, b(options);
  const PeerId peer = connect(a, b);
  const VerbsAddress to = address_of(b);
  const std::array<std::byte, 100> garbage{};
  for (int i = 0; i < 20'000; i++) {
    (void)provider().inject(0, to.queue_pair, 0x1234, to.key, garbage.data(), garbage.size());
    if (i % 500 == 0) b.turn();
  }
  ASSERT_TRUE(run_until({&b}, [&] { return b.turn() == 0 && counters().dropped_no_receive > 0; }));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.send(peer, 2) && !b.got.empty(); }));
  EXPECT_EQ(counters().completion_queue_overflows, 0u);
  EXPECT_EQ(b->counters().device_resets, 0u);
}

TEST_F(VerbsHostile, addresses_of_any_bytes__are_refused_or_make_a_peer) {
  End a, b;
  std::mt19937 random(3);
  const std::span<const std::byte> good = b->address();
  std::vector<PeerId> peers;
  uint64_t refused = 0;
  for (int i = 0; i < 3000; i++) {
    std::vector<std::byte> bytes(good.begin(), good.end());
    switch (random() % 4) {
      case 0:  // another length
        bytes.resize(random() % (kAddressBytesMax + 1));
        break;
      case 1:  // random bytes
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        break;
      default:
        for (uint32_t flips = 1 + random() % 3; flips > 0; flips--) {
          bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        }
    }
    const auto peer = a->connect(bytes, i % 2 == 0 ? "127.0.0.1" : "no host");
    if (!peer.ok()) {
      refused++;
      EXPECT_TRUE(peer.status().code() == Code::kMisuse || peer.status().code() == Code::kUnavailable);
      continue;
    }
    peers.push_back(*peer);
    EXPECT_GE(a->payload_bytes_max(*peer), wire::kPayloadBytesMin);
    EXPECT_LE(a->payload_bytes_max(*peer), a->payload_bytes_max());
    (void)a.send(*peer, 1);
    a.turn();
  }
  EXPECT_GT(peers.size(), 100u);
  EXPECT_GT(refused, 100u);
  EXPECT_EQ(a->counters().peers_refused, refused);
  for (const PeerId peer : peers) {  // each lookup ends with or without a result
    ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) != PeerState::kConnecting; }));
    (void)a.send(peer, 2);
  }
  const PeerId honest = connect(a, b);
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.send(honest, 3) && !b.got.empty() && b.got.back().number == 3; }));
  for (const PeerId peer : peers) a->disconnect(peer);
  EXPECT_TRUE(a->failure().ok());
}

TEST_F(VerbsHostile, lengths_in_addresses) {
  End a, b;
  for (const auto& [bytes, payload] :
       {std::pair{0u, 0u}, {24u, 0u}, {535u, 0u}, {536u, 512u}, {4096u, 4072u}, {4097u, 4072u}, {65535u, 4072u}}) {
    VerbsAddress address = address_of(b);
    address.packet_bytes = static_cast<uint16_t>(bytes);
    const auto peer = a->connect(encode_address(address), "");
    EXPECT_EQ(peer.ok(), payload != 0) << bytes;
    if (peer.ok()) {
      EXPECT_EQ(a->payload_bytes_max(*peer), payload);
      a->disconnect(*peer);
    }
  }
}

TEST_F(VerbsHostile, own_address__is_a_peer_like_others) {
  End a;
  const PeerId peer = connect(a, a);
  ASSERT_TRUE(a.send(peer, 9));
  ASSERT_TRUE(run_until({&a}, [&] { return a.got.size() == 1; }));
  a->disconnect(peer);
}

TEST_F(VerbsHostile, silent_neighbours_by_the_thousand__do_not_starve_an_honest_peer) {
  End a, b;
  const PeerId early = connect(a, b);
  provider().block_address_handles(true);
  std::vector<PeerId> silent;
  for (uint32_t i = 0; i < 2000; i++) {
    VerbsAddress address = address_of(b);
    address.queue_pair = 100 + i;
    const auto peer = a->connect(encode_address(address), "203.0.113.7");
    ASSERT_TRUE(peer.ok()) << peer.status().message();
    silent.push_back(*peer);
  }
  End c;
  const auto honest = a->connect(c->address(), "127.0.0.1");
  ASSERT_TRUE(honest.ok());
  ASSERT_TRUE(run_until({&a}, [&] { return provider().blocked_address_handles() > 0; }));
  ASSERT_TRUE(a.send(early, 1));
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; })) << "who is connected is not disturbed";
  for (const PeerId peer : silent) a->disconnect(peer);
  provider().block_address_handles(false);
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(*honest) == PeerState::kReady; }));
  EXPECT_TRUE(run_until({&a}, [&] { return counters().address_handles == 2; })) << "nobody wants the others any more";
}

TEST_F(VerbsHostile, hosts_take_turns__however_many_lookups_one_has) {
  auto opened = rdma::open_port("verbs", {});
  ASSERT_TRUE(opened.ok());
  constexpr size_t kThreads = VerbsResolver::kThreadsMax;
  std::vector<std::shared_ptr<VerbsResolver::Lookup>> silent, honest;
  std::mutex mutex;
  std::condition_variable changed;
  size_t ended = 0;
  bool is_over = false;
  // Two rounds of lookups for each thread, so that the scheduler cannot delay an honest lookup.
  const auto end_lookup = [&] {
    std::unique_lock lock(mutex);
    const bool is_first_round = ended++ < kThreads;
    changed.notify_all();
    changed.wait(lock, [&] { return is_over || (is_first_round && ended >= kThreads); });
  };
  provider().block_address_handles(true);
  {
    VerbsResolver resolver(opened->domain.get(), end_lookup);
    ibv_ah_attr route{};
    route.port_num = 1;
    route.is_global = 1;
    route.grh.sgid_index = 3;
    route.grh.dgid.raw[10] = route.grh.dgid.raw[11] = 0xff;
    route.grh.dgid.raw[12] = 127;
    route.grh.dgid.raw[15] = 1;
    for (size_t i = 0; i < 1000; i++) silent.push_back(resolver.start(route, "203.0.113.7"));
    // Hosts before and after the silent one in order.
    for (const char* host : {"198.51.100.1", "198.51.100.2", "203.0.113.8"}) {
      honest.push_back(resolver.start(route, host));
    }
    ASSERT_TRUE(run_until({}, [&] { return provider().blocked_address_handles() == kThreads; }));
    provider().block_address_handles(false);  // the running lookups end, and others begin
    {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, verbs_test::kPatience, [&] { return ended == 2 * kThreads; }));
      for (const auto& one : honest) EXPECT_EQ(one->state, VerbsResolver::Lookup::State::kMade);
      is_over = true;
    }
    changed.notify_all();
  }
  silent.clear();
  honest.clear();
}

}  // namespace
}  // namespace tern::transport
