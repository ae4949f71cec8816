// The UDP transport when the kernel accepts no packets: unsent packets are kept and not lost, and no loop spins.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "shell.h"
#include "udp_fixture.h"
#include "unit/transport/failing_sends.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)
using failing_sends::Scope;

class UdpBlocked : public testing::TestWithParam<int> {
 protected:
  bool send(uint32_t number, size_t len) {
    detail::Buffer* buffer = filled(number, len);
    const bool is_sent = client->send(peer, numbered(number), buffer->data(), len, buffer);
    sent_.push_back(buffer);
    return is_sent;
  }
  /// Flushes, checks that the transport has released all buffers, and overwrites and releases them.
  void flush_and_release() {
    client->flush();
    EXPECT_EQ(client->released() + 1, client->ticket());
    for (detail::Buffer* buffer : sent_) {
      std::memset(buffer->data(), 0xee, buffer->length_bytes);
      memory::Arena::release(buffer);
    }
    sent_.clear();
    client->check_invariants();
  }
  /// Packets of these sizes arrive whole and in order, and another one after them.
  void expect_and_one_more(const std::vector<size_t>& sizes) {
    const auto received = receive_some(*server, sizes.size() + 1);
    ASSERT_EQ(received.size(), sizes.size() + 1);
    for (uint32_t i = 0; i < sizes.size(); ++i) expect_pattern(received[i], i, sizes[i]);
  }
  void receive_nothing() {
    EXPECT_EQ(client->receive([](const wire::Header&, const Payload&) {}), 0u);
    client->check_invariants();
  }

  std::unique_ptr<UdpImpl> client = make(), server = make();
  PeerId peer = must_connect(*client, *server);

 private:
  std::vector<detail::Buffer*> sent_;
};

TEST_P(UdpBlocked, packets_are_kept_in_order_and_more_are_refused) {
  const std::vector<size_t> sizes = {0, 10, client->payload_bytes_max(), 1100, 300, client->payload_bytes_max(), 5};
  {
    const Scope fail(GetParam());
    for (uint32_t i = 0; i < sizes.size(); ++i) ASSERT_TRUE(send(i, sizes[i]));
    flush_and_release();
    EXPECT_EQ(client->census().blocked_peers, 1u);
    EXPECT_FALSE(client->send(peer, numbered(99), nullptr, 0, nullptr));
    for (int i = 0; i < 3; ++i) receive_nothing();
    EXPECT_FALSE(client->send(peer, numbered(99), nullptr, 0, nullptr));
  }
  receive_nothing();
  EXPECT_EQ(client->census().blocked_peers, 0u);
  ASSERT_TRUE(send(static_cast<uint32_t>(sizes.size()), 40));
  flush_and_release();
  expect_and_one_more(sizes);
  EXPECT_EQ(client->counters().send_errors, 0u);
  EXPECT_EQ(client->counters().packets_sent, sizes.size() + 1);
}

// Packets that are longer than those with which a session begins are longer than the slots of the staging memory.
TEST_P(UdpBlocked, larger_packets_are_kept_whole_among_others) {
  const size_t full = client->payload_bytes_max();
  const std::vector<size_t> sizes = {10, 8832, full, 64'512, 5, 64'512, full, 1300, 64'512, 7};
  {
    const Scope fail(GetParam());
    for (uint32_t i = 0; i < sizes.size(); ++i) ASSERT_TRUE(send(i, sizes[i]));
    flush_and_release();
    for (int i = 0; i < 3; ++i) receive_nothing();
  }
  receive_nothing();
  ASSERT_TRUE(send(static_cast<uint32_t>(sizes.size()), 8832));
  flush_and_release();
  expect_and_one_more(sizes);
  EXPECT_EQ(client->counters().send_errors, 0u);
}

TEST_P(UdpBlocked, half_of_a_burst_may_have_left) {
  const size_t full = client->payload_bytes_max();
  constexpr uint32_t kPackets = 200;  // several trains of packets
  {
    const Scope fail(GetParam(), 1);
    for (uint32_t i = 0; i < kPackets; ++i) ASSERT_TRUE(send(i, i % 3 == 0 ? full : 700));
    flush_and_release();
  }
  receive_nothing();
  flush_and_release();
  const auto received = receive_some(*server, kPackets);
  ASSERT_EQ(received.size(), kPackets);
  for (uint32_t i = 0; i < kPackets; ++i) expect_pattern(received[i], i, i % 3 == 0 ? full : 700);
  EXPECT_EQ(client->counters().send_errors, 0u);
}

TEST_P(UdpBlocked, other_peers_go_on_with_a_whole_burst) {
  auto third = make();
  const PeerId other = must_connect(*client, *third);
  const size_t full = client->payload_bytes_max();
  {
    const Scope fail(GetParam());
    for (uint32_t i = 0; i < UdpImpl::kSegmentsMax; ++i) ASSERT_TRUE(send(i, full));
    EXPECT_FALSE(send(0, full)) << "the burst is full";
    flush_and_release();
  }
  detail::Buffer* buffer = filled(7, full);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < UdpImpl::kSegmentsMax; ++i) {
      ASSERT_TRUE(client->send(other, numbered(7), buffer->data(), full, buffer));
    }
    client->flush();
    client->check_invariants();
    EXPECT_EQ(client->counters().packets_sent, uint64_t{UdpImpl::kSegmentsMax} * static_cast<uint64_t>(round + 1));
    EXPECT_GT(receive_some(*third, 1).size(), 0u);
  }
  memory::Arena::release(buffer);
  EXPECT_EQ(client->census().blocked_peers, 1u);
  receive_nothing();
  EXPECT_EQ(client->census().blocked_peers, 0u);
  EXPECT_EQ(client->counters().packets_sent, 4u * UdpImpl::kSegmentsMax);
}

TEST_P(UdpBlocked, kept_packets_are_bounded_and_the_rest_is_a_counted_loss) {
  auto third = make();
  const PeerId other = must_connect(*client, *third);
  const size_t full = client->payload_bytes_max();
  const Scope fail(GetParam());
  for (uint32_t i = 0; i < UdpImpl::kSegmentsMax; ++i) ASSERT_TRUE(send(i, full));
  flush_and_release();
  detail::Buffer* buffer = filled(7, full);
  ASSERT_TRUE(client->send(other, numbered(7), buffer->data(), full, buffer));
  client->flush();
  client->check_invariants();
  EXPECT_EQ(client->counters().send_errors, 1u);
  EXPECT_EQ(client->census().blocked_peers, 1u);
  EXPECT_TRUE(client->send(other, numbered(8), buffer->data(), full, buffer)) << "nothing of it is kept";
  memory::Arena::release(buffer);
}

TEST_P(UdpBlocked, last_disconnect_drops_kept_packets) {
  auto third = make();
  const PeerId other = must_connect(*client, *third);
  {
    const Scope fail(GetParam());
    for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(send(i, client->payload_bytes_max()));
    flush_and_release();
    ASSERT_TRUE(client->send(other, numbered(1), nullptr, 0, nullptr));
    client->disconnect(peer);
    client->check_invariants();
    EXPECT_EQ(client->counters().send_errors, 20u);
    client->disconnect(other);  // tries to send the packet, and fails
    client->check_invariants();
    EXPECT_EQ(client->counters().send_errors, 21u);
  }
  EXPECT_EQ(client->census().blocked_peers, 0u);
  peer = must_connect(*client, *server);
  ASSERT_TRUE(send(3, 10));
  flush_and_release();
  EXPECT_EQ(receive_some(*server, 1).size(), 1u);
}

TEST_P(UdpBlocked, a_sleeper_tries_again) {
  {
    const Scope fail(GetParam());
    ASSERT_TRUE(send(5, 100));
    flush_and_release();
    ASSERT_TRUE(client->prepare_wait());
    client->wait(UINT64_MAX);  // until the socket is writable or the next retry
    client->end_wait();
  }
  receive_nothing();
  EXPECT_EQ(receive_some(*server, 1).size(), 1u);
  // The event that ended the wait does not end the next one.
  ASSERT_TRUE(client->prepare_wait());
  pollfd ready = {client->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 3), 0);
  client->end_wait();
}

TEST_P(UdpBlocked, packets_of_peers_without_an_own_socket_are_kept_too) {
  const rlim_t files = 64;  // enough for 8 peers with their own sockets
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{files, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  client = make();
  std::vector<std::unique_ptr<UdpImpl>> servers;
  std::vector<PeerId> peers;
  for (int i = 0; i < 10; ++i) {
    servers.push_back(nullptr);
    peers.push_back(must_connect(*client, *server));
  }
  SocketAddress where;
  ASSERT_TRUE(decode_address(server->address().first(server->address().size() - 2), &where));
  for (uint32_t datagram_bytes = 600; datagram_bytes < 612; ++datagram_bytes) {
    auto made = client->connect(endpoint_address(where, datagram_bytes), "127.0.0.1");
    ASSERT_TRUE(made.ok());
    peers.push_back(*made);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(has_own_socket(*client, peers.back()));
  {
    const Scope fail(GetParam());
    for (size_t i = 9; i < peers.size(); ++i) {
      ASSERT_TRUE(client->send(peers[i], numbered(static_cast<uint32_t>(i)), nullptr, 0, nullptr));
    }
    client->flush();
    client->check_invariants();
    EXPECT_EQ(client->census().blocked_peers, peers.size() - 9);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(client->prepare_wait());
      client->wait(client->now());
      client->end_wait();
      receive_nothing();
    }
  }
  receive_nothing();
  EXPECT_EQ(receive_some(*server, peers.size() - 9).size(), peers.size() - 9);
  EXPECT_EQ(client->counters().send_errors, 0u);
}

INSTANTIATE_TEST_SUITE_P(Errors, UdpBlocked, testing::Values(EAGAIN, ENOBUFS, ENOMEM),
                         [](const auto& each) { return std::string(strerrorname_np(each.param)); });

/// A link of 20 Mbit/s behind an unlimited queue, so that the socket's buffer fills.
TEST(UdpSlowLink, nothing_is_lost_and_a_sleeper_is_woken_by_the_socket) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  std::thread([] {
    if (unshare(CLONE_NEWNET) != 0 || !test::run("ip link set lo up") ||
        !test::run("tc qdisc add dev lo root tbf rate 20mbit burst 20k limit 10m")) {
      GTEST_SKIP() << "no network namespace, or no tc with tbf, can be had here";
    }
    Udp::Options small;
    small.socket_buffer_bytes = 32 * 1024;
    small.offload = false;
    auto client = make(small), server = make();
    ASSERT_TRUE(client && server);
    const PeerId peer = must_connect(*client, *server);
    constexpr uint32_t kPackets = 400;
    const size_t full = client->payload_bytes_max();
    detail::Buffer* buffer = filled(0, full);
    uint32_t sent = 0, sleeps = 0;
    while (sent < kPackets || client->census().blocked_peers != 0) {
      while (sent < kPackets && client->send(peer, numbered(sent), buffer->data(), full, buffer)) ++sent;
      client->flush();
      if (client->prepare_wait() && client->census().blocked_peers != 0) {
        ++sleeps;
        client->wait(UINT64_MAX);
      }
      client->end_wait();
      client->receive([](const wire::Header&, const Payload&) {});
      client->check_invariants();
      ASSERT_LT(sleeps, kPackets) << "it was woken when the socket still took nothing";
    }
    EXPECT_GT(sleeps, 0u) << "the socket was never full";
    memory::Arena::release(buffer);
    const auto received = receive_some(*server, kPackets);
    ASSERT_EQ(received.size(), kPackets);
    for (uint32_t i = 0; i < kPackets; ++i) EXPECT_EQ(received[i].header.number(), i);
    EXPECT_EQ(client->counters().send_errors, 0u);
  }).join();
}

}  // namespace
}  // namespace tern::transport
