// The mlx5 transport over the software provider: frames, datagrams of the kernel, tickets, strides, and sleep.
#include <unistd.h>

#include "unit/transport/mlx5/mlx5_fixture.h"

namespace tern::transport::mlx5_test {
namespace {

std::vector<uint32_t> vlans_of_kernel() {
  if (access("/proc/net/vlan", F_OK) != 0) return {};
  return {5};
}

constexpr auto kA = std::byte{0xa5}, kB = std::byte{0x5a};

TEST_F(Mlx5Test, kernel_socket__understands_frames__and_is_understood) {
  for (const auto& [near, far] : {std::pair(kNear4, kFar4), std::pair(kNear6, kFar6)}) {
    End end(with(&Mlx5::Options::bind, near));
    ASSERT_TRUE(end.status.ok()) << end.status.message();
    const bool is_v6 = near == kNear6;
    const std::string at = is_v6 ? "[" + std::string(far) + "]:4001" : std::string(far) + ":4001";
    const FarSocket socket(at);
    const PeerId peer = connect(end, *base::SocketAddress::parse(at));
    ASSERT_TRUE(end.send(peer, 7));
    end->flush();
    EXPECT_EQ(socket.receive(), packet_of(7, 0, kA));
    socket.send(end.where(), packet_of(8, 100, kB));
    ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
    EXPECT_EQ(end.got[0].number, 8u);
    EXPECT_EQ(end.got[0].payload, std::vector<std::byte>(100, kB));
  }
}

TEST_F(Mlx5Test, small_packets_to_one_peer__share_a_frame__in_order) {
  End end;
  const FarSocket socket("10.77.0.2:4001"), other("10.77.0.2:4002");
  const PeerId a = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  const PeerId b = connect(end, *base::SocketAddress::parse("10.77.0.2:4002"));
  detail::Buffer* buffer = end.filled(1440, kA);
  std::vector<std::byte> expected, expected_other;
  const auto add = [](std::vector<std::byte>& to, const std::vector<std::byte>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (uint32_t i = 0; i < 10; i++) {
    ASSERT_TRUE(end.send(i % 3 == 2 ? b : a, i, buffer, 32));
    add(i % 3 == 2 ? expected_other : expected, packet_of(i, 32, kA));
  }
  const auto before = counters();
  end->flush();
  EXPECT_EQ(counters().sends - before.sends, 2u);
  EXPECT_EQ(counters().send_calls - before.send_calls, 1u);
  EXPECT_EQ(socket.receive(), expected);
  EXPECT_EQ(other.receive(), expected_other);

  // A packet that does not fit closes the frame before it.
  ASSERT_TRUE(end.send(a, 20, buffer, 10));
  ASSERT_TRUE(end.send(a, 21, buffer, 1440));
  ASSERT_TRUE(end.send(a, 22, buffer, 10));
  end->flush();
  EXPECT_EQ(socket.receive(), packet_of(20, 10, kA));
  EXPECT_EQ(socket.receive(), packet_of(21, 1440, kA));
  EXPECT_EQ(socket.receive(), packet_of(22, 10, kA));
  EXPECT_EQ(end->counters().packets_sent, 13u);
}

TEST_F(Mlx5Test, copied_packets__are_released_at_once__gathered_ones_by_completions) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  detail::Buffer* buffer = end.filled(1400, kA);
  provider().hold(software_verbs::Hold::kSends);
  ASSERT_TRUE(end.send(peer, 1, buffer, 512));
  end->flush();
  EXPECT_GE(end->released(), end->ticket());
  ASSERT_TRUE(end.send(peer, 2, buffer, 1400));
  const uint64_t ticket = end->ticket();
  end->flush();
  for (int i = 0; i < 100; i++) end.turn();
  EXPECT_LT(end->released(), ticket);
  EXPECT_FALSE(socket.is_readable());
  provider().hold(software_verbs::Hold::kNothing);
  EXPECT_TRUE(run_until({&end}, [&] { return end->released() >= ticket; }));
  EXPECT_EQ(socket.receive(), packet_of(1, 512, kA));
  EXPECT_EQ(socket.receive(), packet_of(2, 1400, kA));
  EXPECT_EQ(counters().modified_sends, 0u);
}

TEST_F(Mlx5Test, full_queue__refuses__and_takes_more_after_completions) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  detail::Buffer* buffer = end.filled(1400, kA);
  provider().hold(software_verbs::Hold::kCompletions);
  uint32_t sent = 0;
  while (sent < 1000 && end.send(peer, sent, buffer, 1400)) {
    ++sent;
    end->flush();
  }
  EXPECT_EQ(sent, 128u);
  EXPECT_TRUE(end->prepare_wait()) << "nothing can be sent";
  provider().hold(software_verbs::Hold::kNothing);
  end->wait(end->now() + 30'000'000'000);
  end->end_wait();
  EXPECT_TRUE(run_until({&end}, [&] { return end.send(peer, sent, buffer, 1400); }));
  end->flush();
}

TEST_F(Mlx5Test, strides_wrap__and_every_packet_comes_once_in_order) {
  End end(with(&Mlx5::Options::receive_buffers, 1024));
  End other(with(&Mlx5::Options::bind, "10.77.0.1"));
  const PeerId peer = connect(other, end);
  detail::Buffer* buffer = other.filled(600, kB);
  constexpr uint32_t kPackets = 5000;  // each packet has its own frame
  uint32_t sent = 0;
  ASSERT_TRUE(run_until({&end, &other}, [&] {
    while (sent < kPackets && sent - end.got.size() < 400 && other.send(peer, sent, buffer, 600)) ++sent;
    return end.got.size() == kPackets;
  })) << end.got.size();
  for (uint32_t i = 0; i < kPackets; i++) ASSERT_EQ(end.got[i].number, i);
}

TEST_F(Mlx5Test, lost_completions__are_counted__and_packets_checked_in_software) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  provider().hold_receives(true);
  for (uint32_t i = 0; i < 100; i++) socket.send(end.where(), packet_of(i, i, kA));
  ASSERT_TRUE(run_until({}, [] { return provider().held_receives() == 100; }));
  provider().hold_receives(false);
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 100; }));
  for (uint32_t i = 0; i < 100; i++) {
    ASSERT_EQ(end.got[i].number, i);
    ASSERT_EQ(end.got[i].payload, std::vector<std::byte>(i, kA));
  }
  EXPECT_GE(end->overwritten_completions(), 92u);
  EXPECT_EQ(end->counters().device_resets, 0u);
}

TEST_F(Mlx5Test, no_descriptors__loses_packets_and_goes_on) {
  End end(with(&Mlx5::Options::receive_buffers, 1024));
  const FarSocket socket("10.77.0.2:4001");
  EXPECT_EQ(end->receive_queue_packets(), 512u);
  constexpr uint32_t kPackets = 1500;
  for (uint32_t i = 0; i < kPackets; i++) socket.send(end.where(), packet_of(i, 0, kA));
  const auto arrived = [] { return counters().packets_delivered + counters().dropped_no_receive; };
  ASSERT_TRUE(run_until({}, [&] { return arrived() == kPackets; })) << arrived();
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1024; })) << end.got.size();
  socket.send(end.where(), packet_of(9999, 0, kA));
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1025; }));
  EXPECT_EQ(end.got.back().number, 9999u);
}

TEST_F(Mlx5Test, sleep__ends_with_a_frame__and_with_wake) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  for (uint32_t round = 0; round < 20; round++) {
    while (!end->prepare_wait()) {
      end->end_wait();
      end.turn();
    }
    socket.send(end.where(), packet_of(round, 0, kA));
    end->wait(end->now() + 30'000'000'000);
    end->end_wait();
    ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == round + 1; }));
  }
  while (!end->prepare_wait()) {
    end->end_wait();
    end.turn();
  }
  end->wake();
  end->wait(UINT64_MAX);
  end->end_wait();
}

TEST_F(Mlx5Test, packet_above_the_peers_datagrams__is_a_counted_loss) {
  End end(with(&Mlx5::Options::datagram_bytes, 1000));
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"), 600);
  EXPECT_EQ(end->payload_bytes_max(), 976u);
  EXPECT_EQ(end->payload_bytes_max(peer), 576u);
  detail::Buffer* buffer = end.filled(1000, kA);
  EXPECT_TRUE(end.send(peer, 1, buffer, 577));
  EXPECT_EQ(end->counters().send_errors, 1u);
  EXPECT_TRUE(end.send(peer, 1, buffer, 576));
  EXPECT_EQ(end->counters().send_errors, 1u);
}

/// Tests of the kernel's VLAN devices. No test is instantiated if the kernel has none (module 8021q).
class Mlx5Vlan : public Mlx5Test, public testing::WithParamInterface<uint32_t> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Mlx5Vlan);
INSTANTIATE_TEST_SUITE_P(Kernel, Mlx5Vlan, testing::ValuesIn(vlans_of_kernel()));

TEST_P(Mlx5Vlan, frames_have_the_tag__and_others_are_dropped) {
  ASSERT_EQ(GetParam(), 5u);
  ASSERT_TRUE(
      run("ip link add link tern0 name tern0.5 type vlan id 5 && ip addr add 10.78.0.1/24 dev tern0.5 && "
          "ip link set tern0.5 up"));
  {
    const Far far;
    ASSERT_TRUE(
        run("ip link add link tern1 name tern1.5 type vlan id 5 && ip addr add 10.78.0.2/24 dev tern1.5 && "
            "ip link set tern1.5 up"));
  }
  {
    End end(with(&Mlx5::Options::vlan, 5));
    ASSERT_TRUE(end.status.ok()) << end.status.message();
    EXPECT_EQ(end.where().to_text().substr(0, 10), "10.78.0.1:");
    const FarSocket socket("10.78.0.2:4001");
    const PeerId peer = connect(end, *base::SocketAddress::parse("10.78.0.2:4001"));
    ASSERT_TRUE(end.send(peer, 3, end.filled(10, kA), 10));
    end->flush();
    EXPECT_EQ(socket.receive(), packet_of(3, 10, kA));
    socket.send(end.where(), packet_of(4, 20, kB));
    ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
  }
  EXPECT_TRUE(run("ip link del tern0.5"));
  const Far far;
  EXPECT_TRUE(run("ip link del tern1.5"));
}

TEST_F(Mlx5Test, endpoint_talks_to_itself__and_to_another_on_the_same_device) {
  End one, two;
  const PeerId self = connect(one, one), other = connect(one, two);
  EXPECT_NE(self, other);
  EXPECT_EQ(*one->connect(two->address(), ""), other);
  one->disconnect(other);
  ASSERT_TRUE(one.send(self, 1));
  ASSERT_TRUE(one.send(other, 2));
  ASSERT_TRUE(run_until({&one, &two}, [&] { return one.got.size() == 1 && two.got.size() == 1; }));
  one->disconnect(self);
  EXPECT_EQ(one->peer_state(self), PeerState::kDead);
}

}  // namespace
}  // namespace tern::transport::mlx5_test
