// Every datagram from a stranger to the UDP transport's port is counted and dropped, and harms no packet around it.
#include <poll.h>

#include <random>
#include <vector>

#include "udp_fixture.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)

/// Sends one datagram from a stranger and then one valid packet, and returns all received packets.
std::vector<Received> after_datagram(UdpImpl& server, const std::vector<std::byte>& datagram) {
  RawSender stranger(server);
  stranger.send(datagram);
  std::vector<std::byte> good;
  append_packet(good, 4242, 5);
  stranger.send(good);
  std::vector<Received> all;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < until && (all.empty() || all.back().header.number() != 4242)) {
    for (Received& packet : receive_some(server, 1)) all.push_back(std::move(packet));
  }
  return all;
}

/// Makes an endpoint without GRO. Each datagram has its own buffer, so that the effect of an invalid one is known.
std::unique_ptr<UdpImpl> make_plain() {
  Udp::Options options;
  options.offload = false;
  return make(options);
}

TEST(UdpHostile, zeros_between_packets_are_padding) {
  auto server = make_plain();
  std::vector<std::byte> datagram(13);
  append_packet(datagram, 1, 3);
  datagram.resize(datagram.size() + 100);
  append_packet(datagram, 2, 0);
  append_packet(datagram, 3, 40);
  datagram.resize(datagram.size() + 7);
  const auto received = after_datagram(*server, datagram);
  ASSERT_EQ(received.size(), 4u);
  expect_pattern(received[0], 1, 3);
  expect_pattern(received[1], 2, 0);
  expect_pattern(received[2], 3, 40);
  EXPECT_EQ(server->counters().dropped_unparsable, 0u);
}

TEST(UdpHostile, datagram_of_zeros_is_dropped) {
  auto server = make_plain();
  for (const size_t bytes : {0, 1, 7, 8, 23, 24, 25, 1400, 65507}) {
    const uint64_t before = server->counters().dropped_unparsable;
    const auto received = after_datagram(*server, std::vector<std::byte>(bytes));
    EXPECT_EQ(received.size(), 1u) << bytes;
    EXPECT_EQ(server->counters().dropped_unparsable, before + 1) << bytes;
  }
}

TEST(UdpHostile, an_unparsable_header_drops_the_rest_only) {
  for (const int way : {0, 1, 2, 3, 4}) {
    auto server = make_plain();
    std::vector<std::byte> datagram;
    append_packet(datagram, 1, 10);
    const size_t bad = datagram.size();
    append_packet(datagram, 2, 10);
    append_packet(datagram, 3, 10);
    wire::Header header = wire::load_header(&datagram[bad]);
    switch (way) {
      case 0:
        header.set_length_and_flags(23, 0);
        break;
      case 1:
        header.set_length_and_flags(wire::kHeaderBytes * 2 + 21, 0);
        break;  // one byte beyond the datagram
      case 2:
        header.set_length_and_flags(65535, 0);
        break;
      case 3:
        header.w0 ^= 0x30;
        break;  // another version
      case 4:
        header.w0 = (header.w0 & ~uint64_t{15}) | 15;
        break;  // an unknown kind
    }
    wire::store_header(&datagram[bad], header);
    const auto received = after_datagram(*server, datagram);
    ASSERT_EQ(received.size(), 2u) << way;
    expect_pattern(received[0], 1, 10);
    EXPECT_EQ(server->counters().dropped_unparsable, 1u) << way;
  }
}

TEST(UdpHostile, truncated_headers_are_counted) {
  auto server = make_plain();
  uint64_t expected = 0;
  for (size_t bytes = 1; bytes < wire::kHeaderBytes; ++bytes) {
    std::vector<std::byte> datagram;
    append_packet(datagram, 1, 0);
    datagram.resize(bytes);
    EXPECT_EQ(after_datagram(*server, datagram).size(), 1u);
    EXPECT_EQ(server->counters().dropped_unparsable, ++expected);
  }
}

TEST(UdpHostile, oversize_and_by_reference_packets_are_skipped_alone) {
  Udp::Options options;
  options.offload = false;
  options.probed_datagram_bytes = options.datagram_bytes;
  auto server = make(options);
  std::vector<std::byte> datagram;
  append_packet(datagram, 1, server->payload_bytes_max() + 1);
  append_packet(datagram, 2, server->payload_bytes_max());
  const size_t bad = datagram.size();
  append_packet(datagram, 3, 16);
  wire::Header header = wire::load_header(&datagram[bad]);
  header.set_length_and_flags(header.length(), wire::kByReference);
  wire::store_header(&datagram[bad], header);
  append_packet(datagram, 4, 0);
  const auto received = after_datagram(*server, datagram);
  ASSERT_EQ(received.size(), 3u);
  expect_pattern(received[0], 2, server->payload_bytes_max());
  expect_pattern(received[1], 4, 0);
  EXPECT_EQ(server->counters().dropped_oversize, 1u);
  EXPECT_EQ(server->counters().dropped_bad_reference, 1u);
}

TEST(UdpHostile, garbage_of_any_length_never_hurts) {
  for (const bool offload : {true, false}) {
    Udp::Options options;
    options.offload = offload;
    auto server = make(options);
    RawSender stranger(*server);
    std::mt19937 random(offload ? 11 : 12);
    for (int round = 0; round < 2000; ++round) {
      std::vector<std::byte> datagram;
      if (random() % 2 == 0) append_packet(datagram, 1, random() % 100);
      const size_t noise = random() % (random() % 8 == 0 ? 60'000 : 200);
      const uint32_t alphabet = random() % 4 == 0 ? 3 : 256;  // mostly zeros and small numbers, or anything
      for (size_t i = 0; i < noise; ++i) datagram.push_back(static_cast<std::byte>(random() % alphabet));
      if (!datagram.empty() && random() % 3 == 0) datagram[random() % datagram.size()] ^= std::byte{1};
      stranger.send(datagram);
      server->receive([&](const wire::Header& header, const Payload& payload) {
        EXPECT_EQ(header.length(), payload.bytes + wire::kHeaderBytes);
        EXPECT_LE(payload.bytes, server->large_payload_bytes());
        volatile std::byte sum{};  // every byte is readable
        for (size_t i = 0; i < payload.bytes; ++i) sum = sum ^ payload.data[i];
      });
    }
    std::vector<std::byte> good;
    append_packet(good, 4242, 0);
    bool has_come = false;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!has_come && std::chrono::steady_clock::now() < until) {
      stranger.send(good);
      server->receive([&](const wire::Header& header, const Payload&) { has_come |= header.number() == 4242; });
    }
    EXPECT_TRUE(has_come);
  }
}

TEST(UdpHostile, one_receive_is_bounded) {
  auto server = make_plain();
  RawSender stranger(*server);
  // The previous receive() calls have found packets, so this one reads as much as it can.
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 64; ++i) stranger.send(std::vector<std::byte>(1400));
    const uint64_t calls = server->counters().system_calls;
    server->receive([](const wire::Header&, const Payload&) {});
    EXPECT_LE(server->counters().system_calls - calls, 16u);
  }
}

TEST(UdpHostile, packet_longer_than_the_peers_datagrams_is_a_counted_send_error) {
  auto server = make_plain();
  Udp::Options options;
  options.offload = false;
  options.probed_datagram_bytes = Udp::Options::kDatagramBytesMin;
  auto client = make(options);
  SocketAddress where;
  ASSERT_TRUE(decode_address(server->address().first(server->address().size() - 2), &where));
  auto peer = client->connect(endpoint_address(where, Udp::Options::kDatagramBytesMin), "127.0.0.1");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const size_t most = client->payload_bytes_max(*peer);
  EXPECT_EQ(most, Udp::Options::kDatagramBytesMin - wire::kHeaderBytes);
  EXPECT_EQ(client->payload_bytes_max(must_connect(*client, *server)), client->payload_bytes_max());
  for (const size_t bytes : {most + 1, size_t{client->payload_bytes_max()}}) {
    detail::Buffer* buffer = filled(7, bytes);
    const uint64_t errors = client->counters().send_errors;
    EXPECT_TRUE(client->send(*peer, numbered(7), buffer->data(), bytes, buffer));
    EXPECT_EQ(client->counters().send_errors, errors + 1);
    memory::Arena::release(buffer);
  }
  detail::Buffer* buffer = filled(8, most);
  EXPECT_TRUE(client->send(*peer, numbered(8), buffer->data(), most, buffer));
  client->flush();
  client->check_invariants();
  const auto received = receive_some(*server, 1);
  ASSERT_EQ(received.size(), 1u);
  expect_pattern(received[0], 8, most);
  memory::Arena::release(buffer);
}

/// Sends valid packets after the stranger's, until one of them arrives.
void expect_still_receives(UdpImpl& server, RawSender& stranger) {
  std::vector<std::byte> good;
  append_packet(good, 4242, 0);
  bool has_come = false;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!has_come && std::chrono::steady_clock::now() < until) {
    stranger.send(good);
    server.receive([&](const wire::Header& header, const Payload&) { has_come |= header.number() == 4242; });
  }
  EXPECT_TRUE(has_come);
}

TEST(UdpHostile, empty_datagrams_are_counted_and_do_not_stall_receive) {
  for (const bool offload : {true, false}) {
    Udp::Options options;
    options.offload = offload;
    auto server = make(options);
    RawSender stranger(*server);
    std::vector<std::byte> good;
    append_packet(good, 1, 8);
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < 100; ++i) stranger.send({});
      const uint64_t calls = server->counters().system_calls;
      EXPECT_EQ(server->receive([](const wire::Header&, const Payload&) { ADD_FAILURE(); }), 0u);
      EXPECT_LE(server->counters().system_calls - calls, 16u);
      while (server->receive([](const wire::Header&, const Payload&) {}), server->prepare_wait()) {
        pollfd ready = {server->descriptor(), POLLIN, 0};
        if (::poll(&ready, 1, 0) == 0) break;  // the socket is empty, and an endpoint could sleep
      }
      server->end_wait();
    }
    // Empty datagrams do not harm the datagrams between them.
    stranger.send({});
    stranger.send(good);
    stranger.send({});
    const auto received = receive_some(*server, 1);
    ASSERT_EQ(received.size(), 1u);
    expect_pattern(received[0], 1, 8);
    constexpr uint64_t kEmpty = 50 * 100 + 2;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (server->counters().dropped_unparsable < kEmpty && std::chrono::steady_clock::now() < until) {
      server->receive([](const wire::Header&, const Payload&) {});
    }
    EXPECT_EQ(server->counters().dropped_unparsable, kEmpty);
  }
}

TEST(UdpHostile, trains_of_garbage_cost_their_own_packets_only) {
  auto server = make();  // uses GRO if the kernel has it
  if (!server->census().offloads.gro) GTEST_SKIP() << "no GRO here";
  SocketAddress address;
  ASSERT_TRUE(decode_address(server->address().first(server->address().size() - 2), &address));
  Descriptor fd = open_send_socket(address.family(), SocketAddress::loopback(address.family()), 1u << 20);
  ASSERT_EQ(::connect(fd.get(), address.sockaddr_data(), address.sockaddr_bytes()), 0);
  RawSender good(*server);
  std::mt19937 random(13);
  for (int round = 0; round < 500; ++round) {
    // Segments of any size with a shorter last one, half of whose bytes are zeros, and some valid headers.
    const auto segment_bytes = static_cast<uint16_t>(1 + random() % (round % 2 == 0 ? 1400 : 40));
    std::vector<std::byte> train(std::min<size_t>(segment_bytes * (1 + random() % 60), 60'000));
    for (std::byte& byte : train) byte = random() % 2 == 0 ? std::byte{0} : static_cast<std::byte>(random());
    if (train.size() >= wire::kHeaderBytes && random() % 2 == 0) {
      wire::Header header = numbered(1);
      header.set_length_and_flags(random() % 70'000, static_cast<uint8_t>(random() % 16));
      wire::store_header(train.data(), header);
    }
    iovec range = {train.data(), train.size()};
    msghdr message{};
    message.msg_iov = &range;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::byte control[kSegmentControlBytes] = {};
    set_segment_bytes(&message, control, segment_bytes);
    ASSERT_EQ(::sendmsg(fd.get(), &message, 0), static_cast<ssize_t>(train.size()));
    server->receive([&](const wire::Header& header, const Payload& payload) {
      EXPECT_EQ(header.length(), payload.bytes + wire::kHeaderBytes);
      EXPECT_LE(payload.bytes, server->large_payload_bytes());
    });
  }
  expect_still_receives(*server, good);
}

TEST(UdpHostile, datagrams_of_any_size_full_of_garbage_are_bounded_work) {
  auto server = make_plain();
  RawSender stranger(*server);
  std::vector<std::byte> shortest;  // as many packets without payload as a datagram can hold
  while (shortest.size() + wire::kHeaderBytes <= 65'507) append_packet(shortest, 1, 0);
  std::vector<std::byte> noise(65'507);
  std::mt19937 random(14);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 100; ++round) {
    for (const auto& datagram : {shortest, noise, std::vector<std::byte>(65'507)}) stranger.send(datagram);
    const size_t packets = server->receive([](const wire::Header&, const Payload&) {});
    EXPECT_LE(packets, 2 * shortest.size() / wire::kHeaderBytes);
  }
  expect_still_receives(*server, stranger);
}

/// A packet may have a forged source address, so connect_back() alone sends nothing.
TEST(UdpHostile, answers_go_back_to_where_a_packet_came_from_and_nothing_leaves_unasked) {
  auto server = make();
  auto like = must_connect(*server, *make());
  RawSender stranger(*server), other(*server);
  std::vector<std::byte> packet;
  append_packet(packet, 1, 0);
  stranger.send(packet);
  other.send(packet);
  std::vector<PeerId> peers;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (peers.size() < 2 && std::chrono::steady_clock::now() < until) {
    server->receive([&](const wire::Header&, const Payload&) {
      const auto peer = server->connect_back(like);
      ASSERT_TRUE(peer.ok()) << peer.status().message();
      peers.push_back(*peer);
    });
  }
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_NE(peers[0], peers[1]);
  server->flush();
  EXPECT_FALSE(stranger.has_input());
  // A packet to one of the peers leaves for that peer.
  EXPECT_TRUE(server->send(peers[0], numbered(7), nullptr, 0, nullptr));
  server->flush();
  EXPECT_TRUE(stranger.has_input());
  EXPECT_FALSE(other.has_input());
  for (const PeerId peer : peers) server->disconnect(peer);
  server->disconnect(like);
  server->check_invariants();
}

TEST(UdpHostile, icmp_errors_are_losses_on_their_own_path) {
  auto gone = make_plain();
  auto server = make_plain();
  auto client = make_plain();
  const PeerId to_nobody = must_connect(*client, *gone);
  const PeerId to_server = must_connect(*client, *server);
  gone.reset();  // from now on its port answers with "port unreachable"
  RawSender stranger(*client);
  for (uint32_t number = 0; number < 300; ++number) {
    ASSERT_TRUE(client->send(to_nobody, numbered(number), nullptr, 0, nullptr));
    ASSERT_TRUE(client->send(to_server, numbered(number), nullptr, 0, nullptr));
    client->flush();
    const auto received = receive_some(*server, 1);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].header.number(), number);
    EXPECT_EQ(client->receive([](const wire::Header&, const Payload&) {}), 0u);
  }
  EXPECT_GT(client->counters().send_errors, 0u);
  expect_still_receives(*client, stranger);
}

}  // namespace
}  // namespace tern::transport
