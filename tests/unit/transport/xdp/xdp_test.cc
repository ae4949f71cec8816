// Endpoints over AF_XDP on a cable: the sending and receiving of frames, their paths, and refusals.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ethernet/setup.h"
#include "frames/frame_template.h"
#include "neighbours/interface.h"
#include "patience.h"
#include "unit/transport/xdp/child.h"
#include "unit/transport/xdp/xdp_fixture.h"

namespace tern::transport::xdp_test {
namespace {

using frames::Drop;
using test::Child;

/// Takes away the capability with which root may lock any memory. Returns 0, or an error.
int drop_lock_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return 1;
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  return syscall(SYS_capset, &header, data) != 0;
}

/// Returns options of an endpoint at one end of the cable.
template <class Field, class Value>
Xdp::Options with(Field Xdp::Options::*field, const Value& value, const char* interface = "tern0") {
  Xdp::Options options = at(interface);
  options.*field = value;
  return options;
}

void expect_refused(const Xdp::Options& options, Code code, std::string_view text) {
  test::expect_refusal(End(options).status, "xdp", code, text);
}
/// Checks that `count` packets of several sizes arrive whole and in order.
void expect_passes(End& from, End& to, uint32_t count = 200) {
  const PeerId peer = connect(from, to);
  const size_t before = to.got.size();
  const uint32_t most = from->payload_bytes_max(peer);
  for (uint32_t i = 0; i < count; ++i) {
    const size_t bytes = i % 7 == 0 ? most : i % 400;
    detail::Buffer* const buffer = from.filled(bytes, std::byte(i));
    ASSERT_TRUE(run_until({&from, &to}, [&] { return from.send(peer, i, buffer, bytes); }));
  }
  ASSERT_TRUE(run_until({&from, &to}, [&] { return to.got.size() == before + count; })) << to.got.size() - before;
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(to.got[before + i].number, i);
    EXPECT_EQ(to.got[before + i].payload, std::vector<std::byte>(i % 7 == 0 ? most : i % 400, std::byte(i)));
  }
  from->disconnect(peer);
}

TEST_F(XdpTest, packets_cross_the_cable_by_the_queues) {
  for (const char* mode : {"", "native", "generic"}) {
    End a(with(&Xdp::Options::mode, mode)), b(with(&Xdp::Options::mode, mode, "tern1"));
    ASSERT_TRUE(a.status.ok()) << a.status.message();
    ASSERT_TRUE(b.status.ok()) << b.status.message();
    EXPECT_EQ(a->mode(), std::string_view(mode).empty() ? "native" : mode);
    expect_passes(a, b);
    expect_passes(b, a);
    EXPECT_EQ(a->counters().packets_by_kernel, 0u) << mode;
    EXPECT_EQ(b->counters().packets_by_kernel, 0u) << mode;
    for (const uint64_t dropped : b->counters().dropped_frames) EXPECT_EQ(dropped, 0u);
  }
}

TEST_F(XdpTest, packets_cross_over_ipv6) {
  End a(with(&Xdp::Options::bind, "fd77::1")), b(with(&Xdp::Options::bind, "fd77::2", "tern1"));
  ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
  expect_passes(a, b);
  EXPECT_EQ(b->counters().packets_by_kernel, 0u);
}

TEST_F(XdpTest, mtu__of_native_mode__and_above) {
  const auto set_mtu = [](const char* mtu) {
    ASSERT_TRUE(run(std::string("ip link set tern0 mtu ") + mtu));
    const Far far;
    ASSERT_TRUE(run(std::string("ip link set tern1 mtu ") + mtu));
  };
  set_mtu("3498");
  {
    End a(at("tern0")), b(at("tern1"));
    ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
    EXPECT_EQ(a->mode(), "native");
    EXPECT_EQ(a->payload_bytes_max(), 3470u - 24);
    expect_passes(a, b);
    EXPECT_EQ(b->counters().packets_by_kernel, 0u);
  }
  set_mtu("9000");
  expect_refused(with(&Xdp::Options::mode, "native"), Code::kUnavailable, "MTU");
  {
    End a(at("tern0")), b(at("tern1"));
    ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
    EXPECT_EQ(a->mode(), "generic");
    EXPECT_EQ(a->payload_bytes_max(), Xdp::Options::kDatagramBytesMax - 24);
    expect_passes(a, b);
  }
  set_mtu("1500");
}

TEST_F(XdpTest, mtu_that_grows__leaves_frames_as_long_as_the_queue_has_them) {
  End first;
  ASSERT_TRUE(run("ip link set tern0 mtu 3498"));
  End second, far(at("tern1"));
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  EXPECT_EQ(second->payload_bytes_max(), 1774u - 28 - 24);
  expect_passes(second, far);
  expect_passes(far, second);
  expect_refused(with(&Xdp::Options::datagram_bytes, 2000u), Code::kUnavailable, "datagrams of 2000 bytes do not fit");
  ASSERT_TRUE(run("ip link set tern0 mtu 1500"));
}

TEST_F(XdpTest, endpoints_of_one_host__reach_each_other_by_the_kernel) {
  End a(at("tern0")), b(at("tern0"));
  ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
  expect_passes(a, b);
  EXPECT_GT(b->counters().packets_by_kernel, 0u);
  expect_passes(a, a);
}

TEST_F(XdpTest, endpoints_that_share_a_queue__get_their_own_packets) {
  End server(at("tern1"));
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < 16; ++i) {
    ends.push_back(std::make_unique<End>(at("tern0")));
    ASSERT_TRUE(ends.back()->status.ok()) << i << ": " << ends.back()->status.message();
  }
  expect_refused(at("tern0"), Code::kUnavailable, "16 endpoints share each queue");
  EXPECT_EQ((*ends[0])->port().queue_count(), 1u);
  std::vector<test::AnyEnd*> all = {&server};
  for (const auto& end : ends) all.push_back(end.get());
  for (uint32_t i = 0; i < ends.size(); ++i) {
    const PeerId peer = connect(server, *ends[i]);
    for (uint32_t k = 0; k < 50; ++k) ASSERT_TRUE(run_until(all, [&] { return server.send(peer, 100 * i + k); }));
  }
  ASSERT_TRUE(run_until(all, [&] {
    return std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end->got.size() == 50; });
  }));
  for (uint32_t i = 0; i < ends.size(); ++i) {
    for (uint32_t k = 0; k < 50; ++k) EXPECT_EQ(ends[i]->got[k].number, 100 * i + k);
    EXPECT_EQ((*ends[i])->counters().packets_by_kernel, 0u);
  }
  // A free place is used again, and the other endpoints continue.
  ends.pop_back();
  End heir(at("tern0"));
  ASSERT_TRUE(heir.status.ok()) << heir.status.message();
  expect_passes(server, heir);
  expect_passes(server, *ends[0]);
}

TEST_F(XdpTest, frames_of_an_endpoint_that_ends__come_back_to_the_queue) {
  End server(at("tern1")), stays(with(&Xdp::Options::receive_buffers, 512u));
  for (int round = 0; round < 30; ++round) {
    End goes(with(&Xdp::Options::receive_buffers, 512u));
    ASSERT_TRUE(goes.status.ok()) << goes.status.message();
    const PeerId peer = connect(server, goes);
    for (uint32_t i = 0; i < 60; ++i) {
      detail::Buffer* const buffer = server.filled(1000, std::byte{1});
      ASSERT_TRUE(run_until({&server, &stays}, [&] { return server.send(peer, i, buffer, 1000); }));
    }
    for (int i = 0; i < 20; ++i) stays.turn();  // passes the packets on to the inbox
    server->disconnect(peer);
  }
  expect_passes(server, stays);
}

TEST_F(XdpTest, inboxes_of_endpoints_that_do_not_run__leave_frames_to_the_others) {
  End server(at("tern1")), runs(with(&Xdp::Options::receive_buffers, 512u));
  std::vector<std::unique_ptr<End>> others;
  for (int i = 0; i < 15; ++i) {
    others.push_back(std::make_unique<End>(with(&Xdp::Options::receive_buffers, 512u)));
    ASSERT_TRUE(others[i]->status.ok()) << others[i]->status.message();
    const PeerId peer = connect(server, *others[i]);
    for (uint32_t k = 0; k < 100; ++k) {
      detail::Buffer* const buffer = server.filled(1000, std::byte{1});
      ASSERT_TRUE(run_until({&server, &runs}, [&] { return server.send(peer, k, buffer, 1000); }));
      runs.turn();
    }
    server->disconnect(peer);
  }
  EXPECT_GT(runs->counters().dropped_no_space, 0u);
  EXPECT_EQ(runs.dropped(frames::Drop::kOtherPort), 0u);
  const PeerId peer = connect(server, runs);
  EXPECT_TRUE(run_until({&server, &runs}, [&] {
    (void)server.send(peer, 1);
    return !runs.got.empty();
  }));
}

TEST_F(XdpTest, queues_of_another_process__are_not_taken_and_told) {
  Child other([] {
    auto end = std::make_unique<End>(at("tern0"));
    const std::string text(end->status.message());
    return std::pair(std::move(end), text);
  });
  EXPECT_EQ(other.said(), "ok");
  expect_refused(at("tern0"), Code::kUnavailable,
                 "all pairs of a receive and a send queue of tern0 (1) are taken by other processes");
  other.kill();
  End a(at("tern0")), b(at("tern1"));
  ASSERT_TRUE(a.status.ok()) << a.status.message();
  expect_passes(b, a);
  EXPECT_EQ(a->counters().packets_by_kernel, 0u);
}

TEST_F(XdpTest, bad_options__are_named) {
  expect_refused(with(&Xdp::Options::receive_buffers, 1000u), Code::kMisuse, "receive_buffers");
  expect_refused(with(&Xdp::Options::receive_buffers, 256u), Code::kMisuse, "receive_buffers");
  expect_refused(with(&Xdp::Options::datagram_bytes, 535u), Code::kMisuse, "datagram_bytes");
  expect_refused(with(&Xdp::Options::mode, "fast"), Code::kMisuse, "mode");
  expect_refused(with(&Xdp::Options::bind, "host"), Code::kMisuse, "bind");
  expect_refused(with(&Xdp::Options::bind, "fe80::1"), Code::kMisuse, "link-local");
  expect_refused(with(&Xdp::Options::bind, "10.77.0.9"), Code::kUnavailable, "does not have the address 10.77.0.9");
  expect_refused(with(&Xdp::Options::interface, "tern7"), Code::kUnavailable, "tern7");
  expect_refused(with(&Xdp::Options::interface, "lo"), Code::kUnavailable, "no Ethernet address");
  expect_refused(with(&Xdp::Options::datagram_bytes, 1473u), Code::kUnavailable, "whose MTU is 1500");
  expect_refused(with(&Xdp::Options::mode, "zero_copy"), Code::kUnavailable, "no zero-copy mode");
  expect_refused(with(&Xdp::Options::queues, 2u), Code::kUnavailable,
                 "only 1 free pairs of a receive and a send queue");
  const End end(with(&Xdp::Options::bind, "10.77.0.1:4000"));
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  expect_refused(with(&Xdp::Options::bind, "10.77.0.1:4000"), Code::kUnavailable, "10.77.0.1:4000 is taken");
  expect_refused(with(&Xdp::Options::receive_buffers, 4096u), Code::kMisuse, "another mode, queues or receive_buffers");
  expect_refused(with(&Xdp::Options::mode, "generic"), Code::kMisuse, "another mode, queues or receive_buffers");
}

TEST_F(XdpTest, interface_that_is_down__is_reported) {
  ASSERT_TRUE(run("ip link set tern0 down"));
  expect_refused(at("tern0"), Code::kUnavailable, "is down: ip link set tern0 up");
  ASSERT_TRUE(run("ip link set tern0 up && ip addr replace fd77::1/64 dev tern0 nodad"));
}

/// Runs in a child process that has given up its rights.
TEST_F(XdpTest, too_few_rights__and_too_little_locked_memory__are_told) {
  const auto expect_refused_in_child = [](const std::function<int()>& give_up, std::string_view text) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (give_up() != 0) _exit(2);
      expect_refused(at("tern0"), Code::kUnavailable, text);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << text;
  };
  expect_refused_in_child([] { return setuid(65534); }, "no permission");
  const auto lock_little = [] {
    const rlimit little{64 << 10, 64 << 10};
    const int error = setrlimit(RLIMIT_MEMLOCK, &little);
    return error != 0 ? error : drop_lock_capability();
  };
  expect_refused_in_child(lock_little, "ulimit -l");
}

// ---- Hostile frames

TEST_F(XdpTest, hostile_frames__are_counted_by_reason_and_dropped) {
  End end;
  const RawSocket raw;
  const auto mac = neighbours::interface_by_name("tern0")->mac;
  constexpr size_t kIp = 14, kUdp = 34, kPayload = 42;
  const auto expect = [&](Drop why, size_t offset, uint8_t bits) {
    std::vector<std::byte> frame = frame_to(end, 1, mac);
    frame[offset] ^= std::byte{bits};
    const uint64_t before = end.dropped(why);
    raw.send(frame);
    EXPECT_TRUE(run_until({&end}, [&] { return end.dropped(why) == before + 1; })) << frames::name_of(why);
  };
  expect(Drop::kUdpChecksum, kPayload + 30, 1);
  expect(Drop::kUdpChecksum, kUdp + 6, 1);
  expect(Drop::kIpChecksum, kIp + 10, 1);
  expect(Drop::kUdpLength, kUdp + 4, 0x80);
  expect(Drop::kIpLength, kIp + 2, 0x80);
  EXPECT_TRUE(end.got.empty());

  raw.send(frame_to(end, 2, mac));
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
  expect_bad_datagrams_are_dropped(end);
}

// ---- The kernel beside it

TEST_F(XdpTest, kernel_sockets_of_the_host__get_their_datagrams) {
  End end;
  const KernelSocket near("10.77.0.1:5001");
  const FarSocket far("10.77.0.2:5002");
  near.send(*base::SocketAddress::parse("10.77.0.2:5002"), packet_of(1, 8, std::byte{1}));
  EXPECT_EQ(far.receive(), packet_of(1, 8, std::byte{1}));
  far.send(*base::SocketAddress::parse("10.77.0.1:5001"), packet_of(2, 8, std::byte{1}));
  EXPECT_EQ(near.receive(), packet_of(2, 8, std::byte{1}));
  end.turn();
  EXPECT_TRUE(end.got.empty());
}

/// Two endpoints have the same port.
TEST_F(XdpTest, forked_child__lets_go_of_queue_and_program_once) {
  std::array ends = {std::make_unique<End>(at("tern0")), std::make_unique<End>(at("tern0"))};
  Child child([&] {
    ends[0]->impl.reset();
    int opened[16];  // these get the numbers of the closed descriptors
    for (int& fd : opened) fd = dup(STDERR_FILENO);
    ends[1]->impl.reset();
    const bool are_open = std::ranges::all_of(opened, [](int fd) { return fcntl(fd, F_GETFD) >= 0; });
    return std::pair(0, std::string(are_open ? "ok" : "the child has closed what it had not opened"));
  });
  EXPECT_EQ(child.said(), "ok");
  const std::string where = "10.77.0.1:" + std::to_string(ends[0]->where().port());
  for (auto& end : ends) end.reset();
  const auto is_detached = [] { return !run("ip link show tern0 | grep prog/xdp"); };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20) * patience();
  while (!is_detached() && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_TRUE(is_detached()) << "the child has the program";
  EXPECT_TRUE(run_until({}, [&] { return End(with(&Xdp::Options::bind, where)).status.ok(); }))
      << "the child has the queue or the port: " << End(with(&Xdp::Options::bind, where)).status.message();
}

TEST_F(XdpTest, forked_child__leaves_the_parents_queues_alone) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  ASSERT_TRUE(end.send(peer, 1));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    end.impl.reset();
    const End own(at("tern0"));  // the queue belongs to the parent
    _exit(!own.status.ok() && says(own.status, "taken by other processes") ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(socket.is_readable());
  end->flush();
  EXPECT_EQ(socket.receive(), packet_of(1, 0, {}));
  socket.send(end.where(), packet_of(3, 8, std::byte{1}));
  EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty(); }));
  EXPECT_EQ(end->counters().packets_by_kernel, 0u);
}

// ---- Changes of the interface

/// Reads the kernel's reports, as a sleeping endpoint does.
void nap(End& end) {
  (void)end->prepare_wait();
  end->end_wait();
  end.turn();
}

TEST_F(XdpTest, interface_goes_down_and_up__frames_are_lost_and_then_pass_again) {
  End a(at("tern0")), b(at("tern1"));
  const PeerId peer = connect(a, b);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(run("ip link set tern0 down"));
    const uint64_t before = a->counters().send_errors;
    // More packets than slots, so that the endpoint does not wait for slots.
    for (uint32_t i = 0; i < 1000; ++i) {
      ASSERT_TRUE(run_until({&a}, [&] { return a.send(peer, i); }));
      if (i % 10 == 0) a->flush();
    }
    EXPECT_GT(a->counters().send_errors, before);
    EXPECT_TRUE(a->failure().ok());
    ASSERT_TRUE(run("ip link set tern0 up"));
    b.got.clear();
    EXPECT_TRUE(run_until({&a, &b}, [&] {
      nap(a);
      (void)a.send(peer, 5000);
      a->flush();
      return std::any_of(b.got.begin(), b.got.end(), [](const auto& packet) { return packet.number == 5000; });
    }));
    b.turn();
  }
  a->disconnect(peer);
  ASSERT_TRUE(run("ip addr replace fd77::1/64 dev tern0 nodad"));
}

TEST_F(XdpTest, other_mac_addresses__are_followed) {
  End end;
  const FarSocket socket("10.77.0.2:4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  {
    const Far far;
    ASSERT_TRUE(run("ip link set tern1 address 02:00:00:00:77:02"));
  }
  ASSERT_TRUE(run("ip neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev tern0 nud reachable"));
  ASSERT_TRUE(run_until({&end}, [&] {
    nap(end);
    EXPECT_TRUE(end.send(peer, 1));
    end->flush();
    return socket.is_readable();
  }));
  ASSERT_TRUE(run("ip link set tern0 address 02:00:00:00:77:01"));
  ASSERT_TRUE(run_until({&end}, [&] {
    nap(end);
    socket.send(end.where(), packet_of(5, 8, std::byte{1}));
    return !end.got.empty();
  }));
  EXPECT_TRUE(end->failure().ok()) << end->failure().message();
}

TEST_F(XdpTest, lost_address__is_the_end) {
  ASSERT_TRUE(run("ip addr add 10.77.0.50/24 dev tern0"));
  End end(with(&Xdp::Options::bind, "10.77.0.50"));
  ASSERT_TRUE(end.status.ok());
  ASSERT_TRUE(run("ip addr del 10.77.0.50/24 dev tern0"));
  EXPECT_TRUE(run_until({}, [&] {
    nap(end);
    return !end->failure().ok();
  }));
  EXPECT_TRUE(says(end->failure(), "has lost the address 10.77.0.50")) << end->failure().message();
}

TEST_F(XdpTest, interface_that_is_removed__is_the_end__and_another_one_of_its_name_works) {
  ASSERT_TRUE(run("ip link add gone0 type veth peer name gone1 && ip addr add 10.79.0.1/24 dev gone0"));
  ASSERT_TRUE(run("ip link set gone0 up && ip link set gone1 up"));
  {
    End end(at("gone0"));
    ASSERT_TRUE(end.status.ok()) << end.status.message();
    ASSERT_TRUE(run("ip link del gone0"));
    EXPECT_TRUE(run_until({}, [&] {
      nap(end);
      return !end->failure().ok();
    }));
    EXPECT_TRUE(says(end->failure(), "gone0")) << end->failure().message();
    // From now on the endpoint sleeps.
    EXPECT_TRUE(end->prepare_wait());
    const uint64_t until_ns = end->now() + 1'000'000;
    end->wait(until_ns);
    EXPECT_GE(end->now(), until_ns);
    end->end_wait();
    ASSERT_TRUE(run("ip link add gone0 type veth peer name gone1 && ip addr add 10.79.0.1/24 dev gone0"));
    ASSERT_TRUE(run("ip link set gone0 up && ip link set gone1 up"));
    const End heir(at("gone0"));
    EXPECT_TRUE(heir.status.ok()) << heir.status.message();
  }
  ASSERT_TRUE(run("ip link del gone0"));
}

}  // namespace
}  // namespace tern::transport::xdp_test
