// Faults of an mlx5 device, of the network, and in its use: clear statuses, and no leaks.
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/wait.h>

#include <cerrno>

#include "unit/transport/mlx5/mlx5_fixture.h"

namespace tern::transport::mlx5_test {
namespace {

using frames::Drop;

void expect_refused(const Mlx5::Options& options, Code code, std::string_view text) {
  test::expect_refusal(End(options).status, "mlx5", code, text);
}

TEST_F(Mlx5Test, bad_options__are_named) {
  expect_refused(with(&Mlx5::Options::receive_buffers, 1000u), Code::kMisuse, "receive_buffers");
  expect_refused(with(&Mlx5::Options::receive_buffers, 512u), Code::kMisuse, "receive_buffers");
  expect_refused(with(&Mlx5::Options::datagram_bytes, 535u), Code::kMisuse, "datagram_bytes");
  expect_refused(with(&Mlx5::Options::vlan, 4095u), Code::kMisuse, "vlan");
  expect_refused(with(&Mlx5::Options::bind, "host"), Code::kMisuse, "bind");
  expect_refused(with(&Mlx5::Options::bind, "10.77.0.1:x"), Code::kMisuse, "bind");
  expect_refused(with(&Mlx5::Options::bind, "fe80::1"), Code::kMisuse, "link-local");
  expect_refused(with(&Mlx5::Options::bind, "10.77.0.9"), Code::kUnavailable, "does not have the address 10.77.0.9");
  expect_refused(with(&Mlx5::Options::device, "mlx5_7"), Code::kUnavailable, "no RDMA device mlx5_7");
  expect_refused(with(&Mlx5::Options::device, "soft0"), Code::kUnavailable, "soft0 is not an mlx5 device");
  expect_refused(with(&Mlx5::Options::vlan, 7u), Code::kUnavailable, "no VLAN 7");
  expect_refused(with(&Mlx5::Options::datagram_bytes, 1473u), Code::kUnavailable, "whose MTU is 1500");
}

TEST_F(Mlx5Test, two_endpoints_on_one_port__are_refused) {
  const End end(with(&Mlx5::Options::bind, "10.77.0.1:4000"));
  ASSERT_TRUE(end.status.ok());
  expect_refused(with(&Mlx5::Options::bind, "10.77.0.1:4000"), Code::kUnavailable, "10.77.0.1:4000 is taken");
}

TEST_F(Mlx5Test, interface__down_or_with_a_large_mtu) {
  ASSERT_TRUE(run("ip link set tern0 mtu 8171"));
  expect_refused({}, Code::kUnavailable, "at most 8170");
  ASSERT_TRUE(run("ip link set tern0 mtu 8170"));
  {
    const End end;
    ASSERT_TRUE(end.status.ok()) << end.status.message();
    EXPECT_EQ(end->payload_bytes_max(), 8142u - 24);
  }
  ASSERT_TRUE(run("ip link set tern0 mtu 1500 && ip link set tern0 down"));
  expect_refused({}, Code::kUnavailable, "is down");
  ASSERT_TRUE(run("ip link set tern0 up && ip addr replace fd77::1/64 dev tern0 nodad"));
  EXPECT_TRUE(run_until({}, [] { return run("ip link show tern0 | grep -q LOWER_UP"); }));
}

TEST_F(Mlx5Test, no_right_to_raw_packets__says_what_to_do) {
  ASSERT_TRUE(provider().fail_calls("ibv_create_qp", 0, 1, EPERM));
  expect_refused({}, Code::kUnavailable, "setcap cap_net_raw+ep PROGRAM");
  ASSERT_TRUE(provider().fail_calls("ibv_create_flow", 0, 1, EPERM));
  expect_refused({}, Code::kUnavailable, "setcap cap_net_raw+ep PROGRAM");
  ASSERT_TRUE(provider().fail_calls("ibv_create_flow", 0, 1, EOPNOTSUPP));
  expect_refused({}, Code::kUnavailable, "flow steering");
}

TEST_F(Mlx5Test, each_call_that_fails_at_creation__gives_a_status__and_nothing_leaks) {
  for (const char* verb : {"ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_create_comp_channel", "ibv_create_cq",
                           "ibv_create_cq_ex", "ibv_create_qp", "ibv_create_qp_ex", "ibv_modify_qp", "ibv_query_port",
                           "ibv_query_device_ex", "mlx5dv_create_wq", "mlx5dv_init_obj", "mlx5dv_query_device",
                           "ibv_modify_wq", "ibv_create_rwq_ind_table", "ibv_create_flow"}) {
    for (uint64_t skipped = 0; skipped < 8; skipped++) {
      const bool has_fault = provider().fail_calls(verb, skipped, 100, ENOMEM);
      EXPECT_TRUE(has_fault) << verb;
      if (!has_fault) break;
      {
        const End end;
        if (end.status.ok()) break;
        EXPECT_TRUE(says(end.status, "mlx5: ")) << verb << ": " << end.status.message();
        EXPECT_TRUE(end.status.code() == Code::kUnavailable || end.status.code() == Code::kNoMemory) << verb;
      }
      const auto left = counters();
      EXPECT_EQ(left.contexts + left.protection_domains + left.memory_regions + left.completion_channels +
                    left.completion_queues + left.queue_pairs + left.receive_queues + left.indirection_tables +
                    left.steering_rules,
                0u)
          << verb << " " << skipped;
    }
    provider().fail_calls(verb, 0, 0, 0);
  }
}

// ---- Hostile frames

TEST_F(Mlx5Test, hostile_frames__are_counted_by_reason_and_dropped) {
  End end;
  const auto mac = neighbours::interface_by_name("tern0")->mac;
  constexpr size_t kIp = 14, kUdp = 34, kPayload = 42;
  uint64_t dropped = 0;
  const auto expect = [&](Drop why, size_t offset, uint8_t bits) {
    std::vector<std::byte> frame = frame_to(end, 1, mac);
    frame[offset] ^= std::byte{bits};
    if (offset >= kIp && offset < kUdp && why != Drop::kIpChecksum) {
      frames::store_raw16(frame.data() + kIp + 10, 0);
      frames::ChecksumSum sum;
      sum.add(std::span(frame).subspan(kIp, kUdp - kIp));
      frames::store_raw16(frame.data() + kIp + 10, static_cast<uint16_t>(~sum.value()));
    }
    const uint64_t before = end.dropped(why);
    if (!provider().inject_frame(kDevice, frame.data(), frame.size())) return false;
    ++dropped;
    EXPECT_TRUE(run_until({&end}, [&] { return end.dropped(why) == before + 1; })) << frames::name_of(why);
    return true;
  };
  EXPECT_TRUE(expect(Drop::kUdpChecksum, kPayload + 30, 1));
  EXPECT_TRUE(expect(Drop::kUdpChecksum, kUdp + 6, 1));
  EXPECT_TRUE(expect(Drop::kIpChecksum, kIp + 10, 1));
  (void)expect(Drop::kIpLength, kIp + 2, 0x80);
  (void)expect(Drop::kFragment, kIp + 6, 0x20);
  (void)expect(Drop::kIpOptions, kIp, 0x03);
  (void)expect(Drop::kUdpLength, kUdp + 4, 0x80);
  EXPECT_GE(dropped, 3u);
  EXPECT_TRUE(end.got.empty());

  const RawSocket raw;
  raw.send(frame_to(end, 2, mac));
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
  expect_bad_datagrams_are_dropped(end);
}

TEST_F(Mlx5Test, frames_longer_than_a_stride__are_dropped__however_many) {
  End end;
  const auto mac = neighbours::interface_by_name("tern0")->mac;
  ASSERT_TRUE(run("ip link set tern0 mtu 3000"));  // the provider drops frames above the MTU
  const End other;                                 // the provider now knows the MTU
  std::vector<std::byte> frame = frame_to(end, 1, mac);
  const std::vector<std::byte> good = frame_to(end, 2, mac);
  frame.resize(2500);
  for (uint64_t sent = 1; sent <= 10; sent++) {
    for (uint64_t i = 0; i < (sent % 2 == 0 ? 1 : 20); i++) {  // later frames overwrite the completion
      ASSERT_TRUE(provider().inject_frame(kDevice, frame.data(), frame.size()));
    }
    EXPECT_TRUE(run_until({&end}, [&] { return end->counters().dropped_oversize == sent || !end->failure().ok(); }));
    end.turn();  // makes the queue anew
    end.got.clear();
    ASSERT_TRUE(provider().inject_frame(kDevice, good.data(), good.size()));
    EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty() || !end->failure().ok(); }));
    ASSERT_TRUE(end->failure().ok()) << sent << ": " << end->failure().message();
  }
  EXPECT_EQ(end->counters().device_resets, 0u);
  ASSERT_TRUE(run("ip link set tern0 mtu 1500"));
}

TEST(Mlx5Device, strides_hold_the_longest_frame_of_the_port__also_on_a_vlan_with_a_smaller_mtu) {
  Mlx5Device device;
  device.stride_bytes_min = 64;
  device.stride_bytes_max = 8192;
  const auto stride_bytes = [&](uint32_t mtu_bytes, uint32_t port_mtu_bytes) {
    device.interface.mtu_bytes = mtu_bytes;
    device.port_mtu_bytes = port_mtu_bytes;
    return device.stride_bytes();
  };
  EXPECT_EQ(stride_bytes(1280, 1500), 2048u);
  EXPECT_EQ(stride_bytes(1500, 1500), 2048u);
  EXPECT_EQ(stride_bytes(1500, 4000), 4096u);
  EXPECT_EQ(stride_bytes(1500, 8170), 8192u);
  EXPECT_EQ(stride_bytes(1500, 9000), 8192u);
  device.stride_bytes_min = 4096;
  EXPECT_EQ(stride_bytes(1500, 1500), 4096u);
}

TEST_F(Mlx5Test, wrong_checksum_of_a_frame_whose_completion_is_lost__is_found_in_software) {
  End end;
  const auto mac = neighbours::interface_by_name("tern0")->mac;
  provider().hold_receives(true);
  for (uint32_t i = 0; i < 32; i++) {
    std::vector<std::byte> frame = frame_to(end, i, mac);
    if (i % 2 == 0) frame.back() ^= std::byte{1};
    ASSERT_TRUE(provider().inject_frame(kDevice, frame.data(), frame.size()));
  }
  ASSERT_TRUE(run_until({}, [] { return provider().held_receives() == 32; }));
  provider().hold_receives(false);
  const auto& dropped = end->counters().dropped_frames[static_cast<size_t>(Drop::kUdpChecksum)];
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() == 16 && dropped == 16; }));
  for (size_t i = 0; i < end.got.size(); i++) EXPECT_EQ(end.got[i].number, 2 * i + 1);
}

// ---- Failures of the device and the interface

TEST_F(Mlx5Test, failed_send_queue__releases_tickets_and_goes_on) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  provider().hold(software_verbs::Hold::kSends);
  detail::Buffer* buffer = end.filled(1400, std::byte{1});
  ASSERT_TRUE(end.send(peer, 1, buffer, 1400));
  const uint64_t ticket = end->ticket();
  end->flush();
  ASSERT_LT(end->released(), ticket);
  provider().fail_queue_pair(0, true);
  EXPECT_TRUE(run_until({&end}, [&] { return end->released() >= ticket; }));
  provider().hold(software_verbs::Hold::kNothing);
  EXPECT_TRUE(end->failure().ok()) << end->failure().message();
  EXPECT_GE(end->counters().device_resets, 1u);
  ASSERT_TRUE(run_until({&end}, [&] {
    EXPECT_TRUE(end.send(peer, 2));
    end->flush();
    return socket.is_readable();
  }));
  socket.send(end.where(), packet_of(3, 8, std::byte{1}));
  EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty(); })) << "the receive queue works, too";
}

TEST_F(Mlx5Test, failed_receive_queue__is_made_anew__and_the_fourth_failure_in_a_row_is_the_end) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  for (uint64_t failures = 1; failures <= 4; failures++) {
    EXPECT_TRUE(end->failure().ok()) << failures << ": " << end->failure().message();
    provider().fail_receive_queues(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    ASSERT_TRUE(run_until({&end}, [&] { return end->counters().device_resets == failures; }));
    if (failures != 1) continue;
    socket.send(end.where(), packet_of(3, 8, std::byte{1}));  // a single packet does not end the row
    EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty(); }));
  }
  EXPECT_TRUE(says(end->failure(), "fails again after each reset")) << end->failure().message();
}

TEST_F(Mlx5Test, queue_that_cannot_be_made_anew__is_the_end__with_the_reason) {
  End end;
  ASSERT_TRUE(provider().fail_calls("ibv_create_flow", 0, 1, EOPNOTSUPP));
  provider().fail_receive_queues(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
  ASSERT_TRUE(run_until({&end}, [&] { return !end->failure().ok(); }));
  EXPECT_TRUE(says(end->failure(), "refused to steer frames")) << end->failure().message();
}

TEST_F(Mlx5Test, failed_device__is_the_end__and_releases_all) {
  End end;
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  provider().hold(software_verbs::Hold::kSends);
  ASSERT_TRUE(end.send(peer, 1, end.filled(1400, std::byte{1}), 1400));
  end->flush();
  provider().raise_event(kDevice, IBV_EVENT_DEVICE_FATAL);
  while (!end->failure().ok() || end->prepare_wait()) {
    end->end_wait();
    end.turn();
    if (!end->failure().ok()) break;
  }
  EXPECT_TRUE(says(end->failure(), "removed")) << end->failure().message();
  EXPECT_EQ(end->peer_state(peer), PeerState::kDead);
  EXPECT_GE(end->released(), end->ticket());
  EXPECT_FALSE(end.send(peer, 2));
  EXPECT_FALSE(end->connect(end->address(), "").ok());
  end->disconnect(peer);
}

TEST_F(Mlx5Test, other_mac_addresses__are_followed) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  {
    const Far far;
    ASSERT_TRUE(run("ip link set tern1 address 02:00:00:00:77:02"));
  }
  ASSERT_TRUE(run("ip neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev tern0 nud reachable"));
  ASSERT_TRUE(run_until({&end}, [&] {
    (void)end->prepare_wait();  // so that end_wait() reads the kernel's reports
    end->end_wait();
    EXPECT_TRUE(end.send(peer, 1));
    end->flush();
    return socket.is_readable();
  }));

  // More often than a queue may fail.
  for (const char* mac : {"01", "11", "21", "31", "41"}) {
    end.got.clear();
    ASSERT_TRUE(run("ip link set tern0 address 02:00:00:00:77:" + std::string(mac)));
    ASSERT_TRUE(run_until({&end}, [&] {
      (void)end->prepare_wait();
      end->end_wait();
      end.turn();
      socket.send(end.where(), packet_of(5, 8, std::byte{1}));
      return !end.got.empty() || !end->failure().ok();
    }));
    EXPECT_TRUE(end->failure().ok()) << mac << ": " << end->failure().message();
  }
  EXPECT_EQ(end->counters().device_resets, 0u);
}

TEST_F(Mlx5Test, lost_address__is_the_end) {
  ASSERT_TRUE(run("ip addr add 10.77.0.50/24 dev tern0"));
  End end(with(&Mlx5::Options::bind, "10.77.0.50"));
  ASSERT_TRUE(end.status.ok());
  ASSERT_TRUE(run("ip addr del 10.77.0.50/24 dev tern0"));
  EXPECT_TRUE(run_until({}, [&] {
    (void)end->prepare_wait();
    end->end_wait();
    end.turn();
    return !end->failure().ok();
  }));
  EXPECT_TRUE(says(end->failure(), "has lost the address 10.77.0.50")) << end->failure().message();
}

ethernet::EndpointAddress::Bytes address_of(const char* end) {
  return ethernet::encode_address({*base::SocketAddress::parse(end), 1000});
}

TEST_F(Mlx5Test, no_route__and_no_answer_of_the_next_hop__are_named) {
  End end;
  const auto no_route = end->connect(address_of("192.0.2.1:9"), "");
  ASSERT_FALSE(no_route.ok());
  EXPECT_TRUE(says(no_route.status(), "192.0.2.1")) << no_route.status().message();
  const auto other_family = end->connect(address_of("[fd77::2]:9"), "");
  EXPECT_EQ(other_family.status().code(), Code::kUnavailable);
  const auto silent = end->connect(address_of("10.77.0.99:9"), "");
  ASSERT_TRUE(silent.ok()) << silent.status().message();
  EXPECT_EQ(end->peer_state(*silent), PeerState::kConnecting);
  EXPECT_FALSE(end.send(*silent, 1));
  ASSERT_TRUE(run("ip neigh replace 10.77.0.99 lladdr 02:00:00:00:00:63 dev tern0 nud reachable"));
  EXPECT_TRUE(run_until({&end}, [&] { return end->peer_state(*silent) == PeerState::kReady; }));
  EXPECT_TRUE(end->peer_failure(*silent).ok());
  end->disconnect(*silent);
  ASSERT_TRUE(run("(echo 50 >/proc/sys/net/ipv4/neigh/tern0/retrans_time_ms)"));  // the kernel asks three times
  const auto dead = end->connect(ethernet::encode_address({*base::SocketAddress::parse("10.77.0.98:9"), 1000}), "");
  ASSERT_TRUE(dead.ok()) << dead.status().message();
  EXPECT_TRUE(run_until({&end}, [&] { return end->peer_state(*dead) == PeerState::kDead; }));
  EXPECT_TRUE(says(end->peer_failure(*dead), "10.77.0.98 does not answer on the link of tern0"))
      << end->peer_failure(*dead).message();
  end->disconnect(*dead);
  EXPECT_EQ(end->connect(std::array<std::byte, 5>{}, "").status().code(), Code::kMisuse);
}

TEST_F(Mlx5Test, forked_child__leaves_the_parents_queues_alone) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  ASSERT_TRUE(end.send(peer, 1));
  const pid_t child = fork();
  if (child == 0) {
    end.impl.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(socket.is_readable());
  end->flush();
  EXPECT_EQ(socket.receive(), packet_of(1, 0, {}));
  socket.send(end.where(), packet_of(3, 8, std::byte{1}));
  EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty(); }));
}

}  // namespace
}  // namespace tern::transport::mlx5_test
