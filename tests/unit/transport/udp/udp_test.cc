// The kernel UDP transport over real sockets: its own properties. tests/conformance has the tests for all transports.
#include "transport/udp/udp.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <random>
#include <string>
#include <vector>

#include "udp_fixture.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)

// --- sent packets arrive ---------------------------------------------------------------------------------------------

struct Setting {
  bool offload;
  const char* bind;
  size_t datagram_bytes;
};
class UdpRoundTrip : public testing::TestWithParam<Setting> {
 protected:
  Udp::Options options() const {
    Udp::Options made;
    made.bind = GetParam().bind;
    made.offload = GetParam().offload;
    made.datagram_bytes = GetParam().datagram_bytes;
    return made;
  }
};

TEST_P(UdpRoundTrip, mixed_sizes_arrive_whole_and_in_order) {
  auto client = make(options()), server = make(options());
  ASSERT_TRUE(client && server);
  const PeerId peer = must_connect(*client, *server);
  std::mt19937 random(GetParam().offload ? 1 : 2);
  uint32_t number = 0;
  for (int burst = 0; burst < 60; ++burst) {
    std::vector<size_t> lengths;
    std::vector<detail::Buffer*> buffers;
    const uint32_t first = number;
    size_t total = 0;
    while (total < 60'000 && lengths.size() < 80) {
      const size_t most = burst % 3 == 0 ? 64 : client->payload_bytes_max();
      const size_t len = burst % 3 == 1 && random() % 2 == 0 ? most : random() % (most + 1);
      detail::Buffer* buffer = filled(number, len);
      const bool outside = len <= 512 && random() % 2 == 0;
      ASSERT_TRUE(client->send(peer, numbered(number), buffer->data(), len, outside ? nullptr : buffer));
      if (outside) std::memset(buffer->data(), 0xee, len);  // the transport has copied the data already
      lengths.push_back(len);
      buffers.push_back(buffer);
      total += len + wire::kHeaderBytes;
      ++number;
      client->check_invariants();
    }
    const uint64_t ticket = client->ticket();
    EXPECT_LT(client->released(), ticket);
    client->flush();
    EXPECT_GE(client->released(), ticket);
    for (detail::Buffer* buffer : buffers) {  // the buffers are released, and no longer read
      std::memset(buffer->data(), 0xdd, buffer->length_bytes);
      memory::Arena::release(buffer);
    }
    const std::vector<Received> received = receive_some(*server, lengths.size());
    ASSERT_EQ(received.size(), lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i)
      expect_pattern(received[i], first + static_cast<uint32_t>(i), lengths[i]);
  }
  EXPECT_EQ(client->counters().packets_sent, number);
  EXPECT_EQ(client->counters().send_errors, 0u);
  EXPECT_EQ(server->counters().packets_received, number);
  EXPECT_EQ(server->counters().dropped_unparsable, 0u);
}

TEST_P(UdpRoundTrip, full_packets_of_a_message_fill_their_datagrams) {
  auto client = make(options()), server = make(options());
  ASSERT_TRUE(client && server);
  const PeerId peer = must_connect(*client, *server);
  const size_t full = client->payload_bytes_max();
  EXPECT_EQ(full, GetParam().datagram_bytes - wire::kHeaderBytes);
  const size_t packets = std::min<size_t>(40, 200'000 / full);
  detail::Buffer* buffer = filled(0, packets * full);
  for (size_t i = 0; i < packets; ++i) {
    ASSERT_TRUE(client->send(peer, numbered(static_cast<uint32_t>(i)), buffer->data() + i * full, full, buffer));
  }
  const uint64_t calls = client->counters().system_calls;
  client->flush();
  if (client->census().offloads.gso) {
    EXPECT_EQ(client->counters().system_calls, calls + 1);
  }
  const std::vector<Received> received = receive_some(*server, packets);
  ASSERT_EQ(received.size(), packets);
  for (size_t i = 0; i < packets; ++i) {
    EXPECT_EQ(received[i].header.number(), i);
    ASSERT_EQ(received[i].payload.size(), full);
    EXPECT_EQ(std::memcmp(received[i].payload.data(), buffer->data() + i * full, full), 0);
  }
  memory::Arena::release(buffer);
}

INSTANTIATE_TEST_SUITE_P(Settings, UdpRoundTrip,
                         testing::Values(Setting{true, "127.0.0.1", 1400}, Setting{false, "127.0.0.1", 1400},
                                         Setting{true, "[::1]", 1400}, Setting{false, "[::1]", 1400},
                                         Setting{true, "127.0.0.1", 576}, Setting{true, "127.0.0.1", 8900},
                                         Setting{true, "127.0.0.1", 65000}, Setting{false, "[::1]", 65000},
                                         Setting{true, "0.0.0.0", 1400}, Setting{true, "[::]", 1400}),
                         [](const auto& setting) {
                           std::string name = (setting.param.offload ? "offload_" : "plain_") +
                                              std::string(setting.param.bind) + "_" +
                                              std::to_string(setting.param.datagram_bytes);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// Packets that are longer than those with which sessions begin have datagrams of their own among the others.
TEST(UdpLarge, packets_arrive_whole_and_in_order) {
  for (const bool offload : {true, false}) {
    for (const size_t probed : {4000, 8900, 65'000}) {
      Udp::Options options;
      options.offload = offload;
      options.probed_datagram_bytes = probed;
      auto client = make(options), server = make(options);
      const PeerId peer = must_connect(*client, *server);
      const size_t large = client->large_payload_bytes();
      EXPECT_EQ(large, probed - wire::kHeaderBytes);
      EXPECT_EQ(client->large_payload_bytes(peer), large);  // loopback carries more
      const size_t full = client->payload_bytes_max();
      const size_t lengths[] = {10, large, large, 20, full, full + 1, 30, large - 1, 1500, 0, large};
      std::vector<detail::Buffer*> buffers;
      for (uint32_t i = 0; i < std::size(lengths); ++i) {
        buffers.push_back(filled(i, lengths[i]));
        ASSERT_TRUE(client->send(peer, numbered(i), buffers[i]->data(), lengths[i], buffers[i]));
        client->check_invariants();
        if (i % 4 == 3) client->flush();
      }
      client->flush();
      EXPECT_EQ(client->counters().send_errors, 0u);
      const auto received = receive_some(*server, std::size(lengths));
      ASSERT_EQ(received.size(), std::size(lengths));
      for (uint32_t i = 0; i < std::size(lengths); ++i) expect_pattern(received[i], i, lengths[i]);
      for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
    }
  }
}

// A segment of small packets and a larger packet differ so little in length that they could be padded to one train,
// but the segment's slot has no space for the padding.
TEST(UdpLarge, a_packet_little_longer_than_a_segment_damages_no_other) {
  auto client = make(), server = make();
  const PeerId peer = must_connect(*client, *server);
  for (const size_t last : {120, 160, 180, 203}) {
    const size_t lengths[] = {500, 460, last, 1290, 1340, 20};
    std::vector<detail::Buffer*> buffers;
    for (uint32_t i = 0; i < std::size(lengths); ++i) {
      buffers.push_back(filled(i, lengths[i]));
      ASSERT_TRUE(client->send(peer, numbered(i), buffers[i]->data(), lengths[i], buffers[i]));
    }
    client->flush();
    const auto received = receive_some(*server, std::size(lengths));
    ASSERT_EQ(received.size(), std::size(lengths));
    for (uint32_t i = 0; i < std::size(lengths); ++i) expect_pattern(received[i], i, lengths[i]);
    for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
  }
}

// The last part of a message may be shorter than what is copied, and still longer than the peer's datagrams.
TEST(UdpLarge, a_short_part_longer_than_the_peers_datagrams_arrives) {
  Udp::Options options;
  options.datagram_bytes = 576;
  auto client = make(options), server = make(options);
  const PeerId peer = must_connect(*client, *server);
  detail::Buffer* buffer = filled(3, 700);
  ASSERT_TRUE(client->send(peer, numbered(3), buffer->data(), 700, buffer));
  client->flush();
  const auto received = receive_some(*server, 1);
  ASSERT_EQ(received.size(), 1u);
  expect_pattern(received[0], 3, 700);
  memory::Arena::release(buffer);
}

TEST(UdpLarge, a_burst_has_a_megabyte_of_larger_packets) {
  auto client = make(), server = make();
  const PeerId peer = must_connect(*client, *server);
  detail::Buffer* buffer = filled(0, 64'512);
  uint32_t taken = 0;
  while (client->send(peer, numbered(0), buffer->data(), 64'512, buffer)) ++taken;
  EXPECT_EQ(taken, 17u);
  EXPECT_FALSE(client->prepare_wait());  // another attempt may succeed at once
  client->end_wait();
  client->flush();
  EXPECT_TRUE(client->send(peer, numbered(0), buffer->data(), 64'512, buffer));
  client->flush();
  memory::Arena::release(buffer);
}

TEST(UdpLarge, packets_above_the_option_are_lost_and_counted) {
  Udp::Options options;
  options.probed_datagram_bytes = 3000;
  auto client = make(options), server = make();
  const PeerId peer = must_connect(*client, *server);
  detail::Buffer* buffer = filled(0, 4000);
  ASSERT_TRUE(client->send(peer, numbered(0), buffer->data(), 3000 - wire::kHeaderBytes + 1, buffer));
  ASSERT_TRUE(client->send(peer, numbered(0), buffer->data(), 3000 - wire::kHeaderBytes, buffer));
  client->flush();
  EXPECT_EQ(client->counters().send_errors, 1u);
  EXPECT_EQ(receive_some(*server, 1).size(), 1u);
  memory::Arena::release(buffer);
}

TEST(UdpLarge, no_probes_are_sent_if_the_option_forbids_them) {
  Udp::Options options;
  options.probed_datagram_bytes = 576;
  auto client = make(options), server = make();
  EXPECT_EQ(client->large_payload_bytes(), 0u);
  EXPECT_EQ(client->large_payload_bytes(must_connect(*client, *server)), 0u);
}

TEST(UdpLarge, the_route_is_asked_for_peers_without_a_socket_of_their_own) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    Udp::Options options;
    options.bind = host;
    auto client = make(options), server = make(options);
    auto paired = client->connect_paired(server->address(), host);
    ASSERT_TRUE(paired.ok()) << paired.status().message();
    EXPECT_FALSE(has_own_socket(*client, *paired));
    EXPECT_EQ(client->large_payload_bytes(*paired), client->large_payload_bytes());
  }
}

TEST(UdpSend, small_packets_of_a_burst_share_datagrams_and_one_call) {
  for (const bool offload : {true, false}) {
    Udp::Options options;
    options.offload = offload;
    auto client = make(options), server = make();
    const PeerId peer = must_connect(*client, *server);
    const std::vector<std::byte> data(32, std::byte{1});
    for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(client->send(peer, numbered(i), data.data(), data.size(), nullptr));
    const uint64_t calls = client->counters().system_calls;
    client->flush();
    EXPECT_EQ(client->counters().system_calls, calls + 1);
    EXPECT_EQ(receive_some(*server, 60).size(), 60u);
  }
}

using Sizes = std::vector<size_t>;

/// An endpoint that sends to a bare socket, with one buffer for all payloads.
class ToBareSocket {
 public:
  ToBareSocket(const std::string& bind, uint32_t datagram_bytes)
      : client(make(options(bind, datagram_bytes))),
        receiver_(open_receive_socket(SocketAddress::loopback(AF_INET), 1u << 20, false, &where)),
        buffer_(filled(0, datagram_bytes)) {
    EXPECT_TRUE(receiver_.ok());
  }
  ~ToBareSocket() { memory::Arena::release(buffer_); }
  /// Connects to the socket, as a pair or not.
  PeerId peer(bool is_paired = false) {
    const auto address = endpoint_address(where, static_cast<uint32_t>(buffer_->length_bytes));
    const auto made = is_paired ? client->connect_paired(address, "") : client->connect(address, "");
    EXPECT_TRUE(made.ok());
    return made.ok() ? *made : 0;
  }
  /// Sends a burst of packets of these lengths. Returns the lengths of the datagrams that come.
  Sizes sizes_of(PeerId peer, const Sizes& packets) {
    for (const size_t bytes : packets) {
      EXPECT_TRUE(client->send(peer, numbered(0), buffer_->data(), bytes - wire::kHeaderBytes, buffer_));
    }
    client->flush();
    client->check_invariants();
    Sizes sizes;
    std::array<std::byte, 4000> datagram;
    for (ssize_t got; (got = recv(receiver_->get(), datagram.data(), datagram.size(), 0)) > 0;) {
      sizes.push_back(static_cast<size_t>(got));
    }
    return sizes;
  }

  std::unique_ptr<UdpImpl> client;
  SocketAddress where;

 private:
  static Udp::Options options(const std::string& bind, uint32_t datagram_bytes) {
    Udp::Options options = bound_to(bind);
    options.datagram_bytes = datagram_bytes;
    return options;
  }
  Result<Descriptor> receiver_;
  detail::Buffer* buffer_;
};

TEST(UdpSend, segments_that_differ_little_are_padded_and_others_are_not) {
  ToBareSocket world("0.0.0.0", 1400);
  const PeerId peer = world.peer();
  const auto sizes_of = [&](const Sizes& packets) { return world.sizes_of(peer, packets); };
  const bool gso = world.client->census().offloads.gso;
  const size_t padded = gso ? 1400 : 1380;
  EXPECT_EQ(sizes_of({1380, 1400, 1390}), (Sizes{padded, 1400, 1390}));
  EXPECT_EQ(sizes_of({1400, 56, 1400}), (Sizes{1400, 56, 1400}));
  EXPECT_EQ(sizes_of({56, 1400, 1400, 700, 400, 400}), (Sizes{56, 1400, 1400, 1100, 400}));
  EXPECT_EQ(sizes_of(Sizes(26, 56)), (Sizes{1400, 56}));
  EXPECT_EQ(sizes_of({700, 701, 700}), (gso ? Sizes{701, 701, 700} : Sizes{700, 701, 700}));
  EXPECT_EQ(sizes_of(Sizes(100, 1400)), Sizes(100, 1400));
}

TEST(UdpSend, packets_between_loopback_addresses_share_longer_datagrams) {
  ToBareSocket world("127.0.0.1", 1232);
  const PeerId peer = world.peer(), pair = world.peer(true);
  EXPECT_EQ(world.sizes_of(peer, Sizes(64, 56)), Sizes{3584});
  EXPECT_EQ(world.sizes_of(peer, Sizes(100, 56)), (Sizes{3584, 2016}));
  EXPECT_EQ(world.sizes_of(peer, Sizes(4, 1000)), (Sizes{3000, 1000}));
  EXPECT_EQ(world.sizes_of(peer, {56, 1232, 56}), (Sizes{1288, 56}));
  EXPECT_EQ(world.sizes_of(peer, Sizes(5, 1232)), Sizes(5, 1232));
  EXPECT_EQ(world.sizes_of(pair, Sizes(22, 56)), Sizes{1232});
  EXPECT_EQ(world.sizes_of(pair, Sizes(23, 56)), (Sizes{1232, 56}));
}

TEST(UdpSend, datagrams_are_not_longer_than_asked_for_if_packets_may_leave_the_host) {
  ToBareSocket from_any("0.0.0.0", 1232);
  EXPECT_EQ(from_any.sizes_of(from_any.peer(), Sizes(23, 56)), (Sizes{1232, 56}));
  ToBareSocket short_ones("127.0.0.1", 1000);
  EXPECT_EQ(short_ones.sizes_of(short_ones.peer(), Sizes(20, 100)), Sizes(2, 1000));
}

TEST(UdpSend, full_burst_refuses_packets_until_a_flush) {
  auto client = make(), server = make();
  const PeerId peer = must_connect(*client, *server);
  const size_t full = client->payload_bytes_max();
  detail::Buffer* buffer = filled(0, full);
  uint32_t sent = 0;
  while (client->send(peer, numbered(sent), buffer->data(), full, buffer)) ASSERT_LE(++sent, UdpImpl::kSegmentsMax);
  EXPECT_EQ(sent, UdpImpl::kSegmentsMax);
  EXPECT_FALSE(client->send(peer, numbered(sent), buffer->data(), 1, nullptr));
  client->flush();
  EXPECT_TRUE(client->send(peer, numbered(sent), buffer->data(), 1, nullptr));
  client->flush();
  EXPECT_EQ(client->counters().packets_sent + client->counters().send_errors, sent + 1);
  memory::Arena::release(buffer);
}

TEST(UdpSend, full_burst_ends_with_the_disconnect_of_its_only_peer) {
  auto client = make(), server = make(), other_server = make();
  const PeerId peer = must_connect(*client, *server), other = must_connect(*client, *other_server);
  const size_t full = client->payload_bytes_max();
  detail::Buffer* buffer = filled(0, full);
  uint32_t sent = 0;
  while (client->send(peer, numbered(sent), buffer->data(), full, buffer)) ASSERT_LE(++sent, UdpImpl::kSegmentsMax);
  client->disconnect(peer);
  client->check_invariants();
  EXPECT_TRUE(client->send(other, numbered(sent), nullptr, 0, nullptr));
  client->flush();
  const auto received = receive_some(*other_server, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].header.number(), sent);
  memory::Arena::release(buffer);
}

TEST(UdpSend, the_last_packet_before_disconnect_leaves) {
  auto client = make(), server = make();
  const PeerId peer = must_connect(*client, *server), other = must_connect(*client, *make());
  EXPECT_TRUE(client->send(other, numbered(1), nullptr, 0, nullptr));
  EXPECT_TRUE(client->send(peer, numbered(2), nullptr, 0, nullptr));
  client->disconnect(peer);
  client->check_invariants();
  EXPECT_FALSE(client->send(peer, numbered(3), nullptr, 0, nullptr));
  client->flush();
  const auto received = receive_some(*server, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].header.number(), 2u);
}

TEST(UdpSend, a_dead_peer_is_a_counted_loss_and_its_successor_is_reached) {
  auto client = make(), server = make();
  const UdpAddressBytes where = [&] {
    SocketAddress address;
    EXPECT_TRUE(decode_address(server->address().first(server->address().size() - 2), &address));
    return encode_address(address);
  }();
  SocketAddress address;
  ASSERT_TRUE(decode_address(where.span(), &address));
  const PeerId peer = must_connect(*client, *server);
  server.reset();
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(client->send(peer, numbered(i), nullptr, 0, nullptr));
    client->flush();
    EXPECT_EQ(client->released() + 1, client->ticket());
  }
  EXPECT_EQ(client->counters().send_errors, 3u);  // each call reports the error of the previous packet
  Udp::Options again;
  again.bind = "127.0.0.1:" + std::to_string(address.port());
  server = make(again);
  ASSERT_TRUE(server);
  ASSERT_TRUE(client->send(peer, numbered(9), nullptr, 0, nullptr));
  client->flush();
  const auto received = receive_some(*server, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].header.number(), 9u);
}

// --- peers ----------------------------------------------------------------------------------------------------------

/// The same link-local address belongs to different hosts on different links. The peers are paired, because no route is
/// looked up for them, so that the links need not exist.
TEST(UdpPeers, link_local_address_is_another_peer_on_each_link) {
  auto udp = make({.bind = "::"});
  auto address = *base::SocketAddress::parse_ip("fe80::1%1");
  address.set_port(31850);
  const auto encoded = encode_address(address);
  std::vector<std::byte> bytes(encoded.span().begin(), encoded.span().end());
  bytes.push_back(std::byte{1400 & 0xff});
  bytes.push_back(std::byte{1400 >> 8});
  const auto one = udp->connect_paired(bytes, "fe80::1%1"), same = udp->connect_paired(bytes, "fe80::1%1"),
             other = udp->connect_paired(bytes, "fe80::1%2");
  ASSERT_TRUE(one.ok() && same.ok() && other.ok()) << one.status().message() << other.status().message();
  EXPECT_EQ(*one, *same);
  EXPECT_NE(*one, *other);
}

/// Makes an endpoint while the process may have `count` descriptors, which determine its number of sockets.
std::unique_ptr<UdpImpl> make_with_descriptors(rlim_t count) {
  rlimit files{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few{std::min<rlim_t>(count, files.rlim_max), files.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto made = make();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  return made;
}
std::unique_ptr<UdpImpl> make_anywhere() {
  Udp::Options anywhere;
  anywhere.bind = "0.0.0.0";
  return make(anywhere);
}

TEST(UdpPeers, beyond_the_sockets_all_are_reached_and_the_busy_ones_take_over) {
  auto client = make_with_descriptors(128);
  auto server = make_anywhere();
  ASSERT_TRUE(client && server);

  constexpr uint32_t kPeers = 50, kSockets = 16;
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < kPeers; ++i) {  // all of 127/8 is this host, so one server has many addresses
    peers.push_back(must_connect(*client, *server, "127.0.1." + std::to_string(i + 1)));
  }
  EXPECT_EQ(client->census().connected.size(), kSockets);
  uint32_t number = 0;
  for (int round = 0; round < 3; ++round) {
    for (const PeerId peer : peers) ASSERT_TRUE(client->send(peer, numbered(number++), nullptr, 0, nullptr));
    client->flush();
  }
  EXPECT_EQ(receive_some(*server, number).size(), number);

  // Peers that take turns do not take each other's sockets. A single active peer soon gets a socket.
  const uint64_t calls = client->counters().system_calls;
  client->check_invariants();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(client->send(peers.back(), numbered(number), nullptr, 0, nullptr));
    client->flush();
    ASSERT_EQ(receive_some(*server, 1).size(), 1u);
  }
  EXPECT_EQ(client->counters().system_calls, calls + 200);
  EXPECT_EQ(client->census().connected.size(), kSockets);
  EXPECT_TRUE(has_own_socket(*client, peers.back()));
  EXPECT_FALSE(has_own_socket(*client, peers.front()));
  client->check_invariants();
  for (const PeerId peer : peers) ASSERT_TRUE(client->send(peer, numbered(0), nullptr, 0, nullptr));
  client->flush();
  EXPECT_EQ(receive_some(*server, kPeers).size(), kPeers);
  for (const PeerId peer : peers) client->disconnect(peer);
  EXPECT_EQ(client->census().connected.size(), 0u);
  EXPECT_EQ(client->counters().send_errors, 0u);
}

TEST(UdpPeers, peers_that_take_turns_keep_their_sockets) {
  auto client = make_with_descriptors(64);
  auto server = make_anywhere();
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < 10; ++i) peers.push_back(must_connect(*client, *server, "127.0.1." + std::to_string(i + 1)));
  ASSERT_EQ(client->census().connected.size(), 8u);
  for (int round = 0; round < 300; ++round) {
    for (const PeerId peer : peers) ASSERT_TRUE(client->send(peer, numbered(0), nullptr, 0, nullptr));
    client->flush();
    ASSERT_EQ(receive_some(*server, peers.size()).size(), peers.size());
    for (size_t i = 0; i < peers.size(); ++i) ASSERT_EQ(has_own_socket(*client, peers[i]), i < 8) << round;
  }
}

TEST(UdpPeers, all_endpoints_of_a_process_share_its_descriptors) {
  auto server = make_anywhere();
  std::vector<std::unique_ptr<UdpImpl>> clients;
  std::vector<PeerId> peers;
  size_t sockets = 0;
  for (int client = 0; client < 3; ++client) {
    clients.push_back(make_with_descriptors(64));
    for (uint32_t i = 0; i < 10; ++i) {
      peers.push_back(must_connect(*clients.back(), *server, "127.0.1." + std::to_string(i + 1)));
      ASSERT_TRUE(clients.back()->send(peers.back(), numbered(i), nullptr, 0, nullptr));
    }
    clients.back()->flush();
    EXPECT_EQ(receive_some(*server, 10).size(), 10u);
    sockets += clients.back()->census().connected.size();
  }
  EXPECT_EQ(sockets, 16u);
  for (size_t i = 0; i < 10; ++i) clients[0]->disconnect(peers[i]);
  clients.erase(clients.begin() + 1);
  EXPECT_EQ(clients[1]->census().connected.size(), 0u);
  for (size_t i = 0; i < 8; ++i) must_connect(*clients[0], *server, "127.0.1." + std::to_string(i + 1));
  EXPECT_EQ(clients[0]->census().connected.size(), 8u);
}

/// Both directions between the two receive sockets, in all combinations of families and burst sizes.
TEST(UdpPairs, both_directions_use_one_address_and_port_pair) {
  for (const auto& [own, other] : {std::pair("127.0.0.1", "127.0.0.1"), std::pair("[::1]", "[::]"),
                                   std::pair("127.0.0.1", "[::]"), std::pair("[::]", "127.0.0.1")}) {
    Udp::Options options;
    options.bind = own;
    auto client = make(options);
    options.bind = other;
    auto server = make(options);
    const char* host = std::string_view(own) == "[::1]" ? "::1" : "127.0.0.1";
    const PeerId handshake = must_connect(*server, *client, host);  // the client's address in the handshake
    auto paired = client->connect_paired(server->address(), host);
    ASSERT_TRUE(paired.ok()) << paired.status().message();
    EXPECT_NE(*paired, must_connect(*client, *server, host));  // another peer, for sessions that are not paired
    ASSERT_TRUE(client->send(*paired, numbered(1), nullptr, 0, nullptr));
    client->flush();
    Result<PeerId> back = Status(Code::kUnavailable, "nothing has come");
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!back.ok() && std::chrono::steady_clock::now() < until) {
      server->receive([&](const wire::Header&, const Payload&) { back = server->connect_back(handshake); });
    }
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(server->payload_bytes_max(*back), server->payload_bytes_max(handshake));
    const auto port = client->address().subspan(1, 2);
    EXPECT_EQ(server->port_of(*back), std::to_integer<int>(port[0]) | std::to_integer<int>(port[1]) << 8);
    std::vector<detail::Buffer*> buffers;
    for (uint32_t number = 0; number < 100; ++number) {
      const size_t len = number % 2 == 0 ? 50 : 1200;
      buffers.push_back(filled(number, len));
      ASSERT_TRUE(server->send(*back, numbered(number, static_cast<uint32_t>(len)), buffers.back()->data(), len,
                               buffers.back()));
    }
    server->flush();
    const auto received = receive_some(*client, 100);
    ASSERT_EQ(received.size(), 100u);
    for (uint32_t number = 0; number < 100; ++number)
      expect_pattern(received[number], number, number % 2 == 0 ? 50 : 1200);
    for (detail::Buffer* buffer : buffers) detail::release_buffer(buffer);
    server->disconnect(*back);
    server->check_invariants();
    client->check_invariants();
  }
}

TEST(UdpPairs, another_family_is_refused) {
  Udp::Options options;
  options.bind = "[::1]";
  auto client = make(options);
  auto server = make();
  EXPECT_EQ(client->connect_paired(server->address(), "127.0.0.1").status().code(), Code::kUnavailable);
  client->check_invariants();
}

TEST(UdpPairs, path_error_is_reported_once) {
  auto client = make();
  PeerId peer = 0;
  {
    auto server = make();
    peer = must_connect(*client, *server);
    EXPECT_EQ(client->take_path_error(peer), PathError::kNone);
  }
  ASSERT_TRUE(client->send(peer, numbered(1), nullptr, 0, nullptr));
  client->flush();
  EXPECT_EQ(client->take_path_error(peer), PathError::kRefused);
  EXPECT_EQ(client->take_path_error(peer), PathError::kNone);
}

TEST(UdpPeers, malformed_address_is_refused) {
  auto client = make();
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> made;
    for (const int value : values) made.push_back(static_cast<std::byte>(value));
    if (!made.empty()) made.insert(made.end(), {std::byte{0xd0}, std::byte{0x04}});  // datagrams of 1232 bytes
    return made;
  };
  const std::vector<std::byte> port_zero = bytes({4, 0, 0, 127, 0, 0, 1}), short_one = bytes({4, 1, 1, 127, 0, 0}),
                               long_one = bytes({4, 1, 1, 127, 0, 0, 1, 0}), family = bytes({5, 1, 1, 127, 0, 0, 1}),
                               multicast = bytes({4, 1, 1, 224, 0, 0, 1}),
                               broadcast = bytes({4, 1, 1, 255, 255, 255, 255}),
                               wildcard = bytes({4, 1, 1, 0, 0, 0, 0});
  for (const auto& address : {bytes({}), port_zero, short_one, long_one, family, multicast, broadcast}) {
    const auto refused = client->connect(address, "127.0.0.1");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kMisuse);
  }
  for (const char* host : {"", "0.0.0.0", "nonsense", "224.0.0.1"})
    EXPECT_FALSE(client->connect(wildcard, host).ok()) << host;
  EXPECT_EQ(client->connect(wildcard, "::1").status().code(), Code::kUnavailable);
  EXPECT_TRUE(client->connect(wildcard, "127.0.0.1").ok());
  EXPECT_EQ(client->counters().peers_refused, 12u);
  const std::vector<std::byte> elsewhere = bytes({4, 1, 1, 192, 0, 2, 1});  // 127.0.0.1 has no route to this address
  EXPECT_EQ(client->connect(elsewhere, "").status().code(), Code::kUnavailable);
  client->check_invariants();
}

TEST(UdpPeers, a_dual_stack_wildcard_is_reached_by_either_family) {
  Udp::Options both;
  both.bind = "[::]";
  auto server = make(both);
  ASSERT_TRUE(server);
  auto client = make(both);
  for (const char* host : {"127.0.0.1", "::1", "::ffff:127.0.0.1"}) {
    const PeerId peer = must_connect(*client, *server, host);
    ASSERT_TRUE(client->send(peer, numbered(4), nullptr, 0, nullptr));
    client->flush();
    EXPECT_EQ(receive_some(*server, 1).size(), 1u) << host;
  }
}

// --- creation --------------------------------------------------------------------------------------------------------

TEST(UdpCreate, options_out_of_range_name_the_rule) {
  const auto create = [](const char* bind, size_t datagram_bytes) {
    Udp::Options options;
    options.bind = bind;
    options.datagram_bytes = datagram_bytes;
    auto made = UdpImpl::create(options, test_arena());
    return made.ok() ? Status() : made.status();
  };
  for (const size_t bytes : {0, 575, 65001, 1 << 20}) {
    EXPECT_EQ(create("127.0.0.1", bytes).code(), Code::kMisuse);
    EXPECT_NE(create("127.0.0.1", bytes).message().find("576 to 65000"), std::string_view::npos);
  }
  for (const char* bind :
       {":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "[::1", "[::1]x", "[::1]:", "[]", "127.0.0.1:-1"}) {
    EXPECT_EQ(create(bind, 1400).code(), Code::kMisuse) << bind;
  }
  EXPECT_EQ(create("192.0.2.1", 1400).code(), Code::kUnavailable);  // TEST-NET-1: an address of no host
  EXPECT_NE(create("192.0.2.1", 1400).message().find("not one of this machine's"), std::string_view::npos);
  EXPECT_TRUE(create("127.0.0.1", 576).ok());
  EXPECT_TRUE(create("::1", 65000).ok());
  EXPECT_TRUE(create("", 1400).ok());
}

TEST(UdpCreate, a_taken_port_is_an_error_with_a_remedy) {
  auto first = make();
  SocketAddress address;
  ASSERT_TRUE(decode_address(first->address().first(first->address().size() - 2), &address));
  Udp::Options same;
  same.bind = "127.0.0.1:" + std::to_string(address.port());
  const auto second = UdpImpl::create(same, test_arena());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find("taken"), std::string_view::npos);
}

TEST(UdpCreate, receive_queue_holds_the_promised_packets) {
  for (const size_t datagram_bytes : {576, 1400, 8900}) {
    Udp::Options options;
    options.datagram_bytes = datagram_bytes;
    options.socket_buffer_bytes = 200'000;
    options.offload = false;  // single datagrams need the most room
    auto client = make(options), server = make(options);
    const uint32_t promised = server->receive_queue_packets();
    ASSERT_GE(promised, 1u);
    ASSERT_LE(promised, UdpImpl::kSegmentsMax * 8);
    const PeerId peer = must_connect(*client, *server);
    const size_t full = client->payload_bytes_max();
    detail::Buffer* buffer = filled(0, full);
    for (uint32_t i = 0; i < promised; ++i) {
      ASSERT_TRUE(client->send(peer, numbered(i), buffer->data(), full, buffer));
      client->flush();
    }
    EXPECT_EQ(receive_some(*server, promised).size(), promised) << datagram_bytes;
    memory::Arena::release(buffer);
  }
}

// --- receiving ------------------------------------------------------------------------------------------------------

TEST(UdpReceive, an_empty_poll_is_one_call_and_so_is_a_single_packet) {
  auto client = make(), server = make();
  const PeerId peer = must_connect(*client, *server);
  const auto calls_of_receive = [&] {
    const uint64_t before = server->counters().system_calls;
    server->receive([](const wire::Header&, const Payload&) {});
    return server->counters().system_calls - before;
  };
  EXPECT_EQ(calls_of_receive(), 1u);
  for (int i = 0; i < 3; ++i) {  // ping-pong: single packets, with empty polls between them
    ASSERT_TRUE(client->send(peer, numbered(0), nullptr, 0, nullptr));
    client->flush();
    EXPECT_EQ(calls_of_receive(), 1u);
    EXPECT_EQ(calls_of_receive(), 1u);
  }
  EXPECT_EQ(server->counters().packets_received, 3u);
}

/// Two endpoints, of which one sends bursts and the other one counts the receive calls that bring data.
class GroWorld {
 public:
  explicit GroWorld(Udp::Options of_server = {}) : server(make(std::move(of_server))) {
    has_gro = server->census().offloads.gro;
  }
  /// Sends a burst of packets of these lengths. Returns the number of receive calls that bring them.
  uint32_t calls_for(const std::vector<size_t>& lengths) {
    server->receive([](const wire::Header&, const Payload&) {});  // the queue is empty
    std::vector<detail::Buffer*> buffers;
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      buffers.push_back(filled(i, lengths[i]));
      EXPECT_TRUE(client->send(peer, numbered(i), buffers[i]->data(), lengths[i], buffers[i]));
    }
    client->flush();
    Visitor visitor;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (visitor.all.size() < lengths.size() && std::chrono::steady_clock::now() < until) server->receive(visitor);
    EXPECT_EQ(visitor.all.size(), lengths.size());
    for (uint32_t i = 0; i < visitor.all.size(); ++i) expect_pattern(visitor.all[i], i, lengths[i]);
    for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
    return visitor.calls;
  }
  bool is_wanted() const { return server->census().is_gro_wanted; }
  /// Sends bursts of one datagram until GRO is off.
  void switch_off() {
    uint32_t bursts = 0;
    for (; is_wanted() && bursts < 64; ++bursts) (void)calls_for(std::vector<size_t>(1 + bursts % 9, 100));
    EXPECT_FALSE(is_wanted());
    EXPECT_EQ(bursts, 64u);
  }
  /// Sends trains until GRO is on. The first is enough, unless the server polls in vain between its pieces.
  void switch_on(const std::vector<size_t>& train) {
    for (int i = 0; i < 10 && !is_wanted(); ++i) EXPECT_GE(calls_for(train), 2u) << "the kernel has joined the pieces";
    EXPECT_TRUE(is_wanted());
  }

  /// Its datagrams are not longer than its options say, because it is not bound to loopback.
  std::unique_ptr<UdpImpl> client = make(bound_to("0.0.0.0"));
  std::unique_ptr<UdpImpl> server;
  PeerId peer = must_connect(*client, *server);
  bool has_gro;

 private:
  /// A transport::BurstVisitor.
  struct Visitor {
    std::vector<Received> all;
    uint32_t calls = 0;
    void operator()(const wire::Header& header, const Payload& payload) {
      all.push_back({header, {payload.data, payload.data + payload.bytes}});
    }
    void begin_burst() { ++calls; }
    void in_burst(const wire::Header& header, const Payload& payload, std::byte*) { (*this)(header, payload); }
    static bool try_in_burst(const wire::Header&, const Payload&, std::byte*) { return false; }
  };
};

TEST(UdpReceive, gro_is_off_while_no_trains_come) {
  const std::vector<size_t> train(60, 100);  // five datagrams and more
  GroWorld world;
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(world.is_wanted());
    EXPECT_EQ(world.calls_for(train) == 1, world.has_gro);
    world.switch_off();
    for (const std::vector<size_t>& lone : {std::vector<size_t>{1208}, std::vector<size_t>(9, 100), {700}, {0}}) {
      EXPECT_EQ(world.calls_for(lone), 1u);
      EXPECT_FALSE(world.is_wanted());
    }
    world.switch_on(train);
  }
}

TEST(UdpReceive, a_train_of_two_switches_gro_on) {
  for (const std::vector<size_t>& train :
       {std::vector<size_t>{1208, 300}, {1208, 1208}, std::vector<size_t>(13, 100)}) {
    GroWorld world;
    world.switch_off();
    world.switch_on(train);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(world.calls_for(train) == 1, world.has_gro);
    EXPECT_TRUE(world.is_wanted());
  }
}

TEST(UdpReceive, trains_of_a_peer_with_shorter_datagrams_keep_gro_on) {
  Udp::Options longer;
  longer.datagram_bytes = 8900;
  GroWorld world(longer);
  (void)must_connect(*world.server, *world.client);
  const std::vector<size_t> train(3, 1208);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(world.calls_for(train) == 1, world.has_gro);
  EXPECT_TRUE(world.is_wanted());
  world.switch_off();
  world.switch_on(train);
}

TEST(UdpReceive, a_large_packet_alone_is_no_train) {
  GroWorld world;
  for (int i = 0; i < 64; ++i) EXPECT_EQ(world.calls_for({4000}), 1u);
  EXPECT_FALSE(world.is_wanted());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(world.calls_for({4000}), 1u);
  EXPECT_FALSE(world.is_wanted());
}

TEST(UdpReceive, short_datagrams_of_many_peers_are_no_train) {
  auto server = make();
  std::vector<std::unique_ptr<UdpImpl>> clients;
  std::vector<PeerId> peers;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(make());
    peers.push_back(must_connect(*clients.back(), *server));
  }
  const std::vector<std::byte> data(500, std::byte{1});
  for (int round = 0; round < 200; ++round) {
    const size_t senders = 1 + static_cast<size_t>(round) % clients.size();
    for (size_t i = 0; i < senders; ++i) {
      ASSERT_TRUE(clients[i]->send(peers[i], numbered(0), data.data(), data.size(), nullptr));
      clients[i]->flush();
    }
    ASSERT_EQ(receive_some(*server, senders).size(), senders);
    EXPECT_TRUE(round < 64 || !server->census().is_gro_wanted);
  }
}

TEST(UdpReceive, nothing_stays_behind_when_work_is_found_again_and_again) {
  Udp::Options options;
  options.offload = false;
  auto client = make(options), server = make(options);
  const PeerId peer = must_connect(*client, *server);
  detail::Buffer* buffer = filled(0, client->payload_bytes_max());
  for (uint32_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(client->send(peer, numbered(i), buffer->data(), buffer->length_bytes, buffer));
    client->flush();
  }
  const uint64_t before = server->counters().system_calls;
  size_t receives = 0;
  for (size_t packets = 0; packets < 60; ++receives)
    packets += server->receive([](const wire::Header&, const Payload&) {});
  EXPECT_LE(receives, 8u);                                   // 1 + 2 + 4 + 8 + 16 + 16 + 13 datagrams
  EXPECT_LE(server->counters().system_calls - before, 61u);  // one call found the queue empty
  memory::Arena::release(buffer);
}

}  // namespace
}  // namespace tern::transport
