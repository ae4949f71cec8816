// The UDP transport on a machine whose addresses and routes change, or whose loopback is of no use. Each test has a
// network namespace of its own.
#include <sched.h>
#include <unistd.h>

#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <thread>

#include "shell.h"
#include "udp_fixture.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)

using test::run;

/// Runs `body` in a new network namespace, whose loopback is down.
void run_in_namespace(const std::function<void()>& body) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "no network namespace can be had here";
    body();
  }).join();
}

constexpr std::string_view kServerAddress = "10.9.0.2";

/// Makes packets to kServerAddress, which is this host's, leave from `source`.
bool route_from(const std::string& source) {
  return run("ip route replace local " + std::string(kServerAddress) + " dev lo table local src " + source);
}

/// Sends one packet. True: the kernel has taken it.
bool sends(UdpImpl& client, PeerId peer, uint32_t number) {
  const uint64_t sent = client.counters().packets_sent;
  EXPECT_TRUE(client.send(peer, numbered(number), nullptr, 0, nullptr));
  client.flush();
  client.check_invariants();
  return client.counters().packets_sent == sent + 1;
}

/// Gives loopback, which is up then, these addresses and kServerAddress.
bool add_addresses(std::initializer_list<std::string> addresses) {
  bool is_done = run("ip link set lo up && ip addr add " + std::string(kServerAddress) + "/32 dev lo");
  for (const std::string& address : addresses) is_done = is_done && run("ip addr add " + address + " dev lo");
  return is_done;
}

/// A client that sends to a server at kServerAddress on a socket of its own.
struct Ends {
  explicit Ends(const std::string& bind = "0.0.0.0") : client(make(bound_to(bind))) {}
  /// Sends packet 0. Call it within ASSERT_NO_FATAL_FAILURE.
  void connect() {
    ASSERT_TRUE(client && server);
    peer = must_connect(*client, *server, kServerAddress);
    ASSERT_TRUE(has_own_socket(*client, peer));
    ASSERT_TRUE(sends(*client, peer, 0));
  }

  decltype(make({})) client, server = make(bound_to("0.0.0.0"));
  PeerId peer = 0;
};

TEST(UdpNetwork, a_peer_is_reached_after_the_source_address_has_gone) {
  run_in_namespace([] {
    if (!add_addresses({"10.1.0.1/24", "10.2.0.1/24"}) || !route_from("10.1.0.1")) {
      GTEST_SKIP() << "addresses and routes cannot be set here (ip)";
    }
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(ends.connect());
    const auto& [client, server, peer] = ends;
    ASSERT_EQ(receive_some(*server, 1).size(), 1u);

    ASSERT_TRUE(run("ip addr del 10.1.0.1/24 dev lo") && route_from("10.2.0.1"));
    constexpr uint32_t kTrain = 8;
    const size_t full = client->payload_bytes_max();
    detail::Buffer* buffer = filled(1, full);
    for (uint32_t i = 0; i < kTrain; ++i) {
      ASSERT_TRUE(client->send(peer, numbered(1 + i), buffer->data(), full, buffer));
    }
    client->flush();
    memory::Arena::release(buffer);
    EXPECT_EQ(receive_some(*server, kTrain).size(), kTrain);
    EXPECT_EQ(client->take_path_error(peer), PathError::kNone);
    for (uint32_t number = 0; number < 100; ++number) {
      ASSERT_TRUE(sends(*client, peer, number));
      ASSERT_EQ(receive_some(*server, 1).size(), 1u);
    }
    EXPECT_TRUE(has_own_socket(*client, peer)) << "connected again, from the new address";
    EXPECT_EQ(client->counters().send_errors, 0u);
  });
}

TEST(UdpNetwork, an_unreachable_peer_costs_one_call_a_flush_and_is_reached_when_its_route_is_back) {
  run_in_namespace([] {
    if (!add_addresses({"10.1.0.1/24"})) {
      GTEST_SKIP() << "addresses cannot be set here (ip)";
    }
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(ends.connect());
    const auto& [client, server, peer] = ends;
    ASSERT_TRUE(run("ip addr del " + std::string(kServerAddress) + "/32 dev lo"));
    EXPECT_FALSE(sends(*client, peer, 1));
    EXPECT_EQ(client->take_path_error(peer), PathError::kUnreachable);
    constexpr uint32_t kFlushes = 200;
    const uint64_t calls = client->counters().system_calls;
    for (uint32_t number = 0; number < kFlushes; ++number) EXPECT_FALSE(sends(*client, peer, number));
    EXPECT_EQ(client->counters().system_calls, calls + kFlushes);
    EXPECT_EQ(client->counters().send_errors, 1 + kFlushes);
    ASSERT_TRUE(run("ip addr add " + std::string(kServerAddress) + "/32 dev lo"));
    for (uint32_t number = 0; number < 100; ++number) EXPECT_TRUE(sends(*client, peer, number));
    EXPECT_TRUE(has_own_socket(*client, peer));
    EXPECT_EQ(receive_some(*server, 101).size(), 101u);
    client->disconnect(peer);
    client->check_invariants();
  });
}

/// The kernel does not choose the source of a bound socket, so that another socket would not help.
TEST(UdpNetwork, a_bound_endpoint_keeps_its_sockets_while_its_address_is_away) {
  run_in_namespace([] {
    if (!add_addresses({"10.1.0.1/32"})) {
      GTEST_SKIP() << "addresses cannot be set here (ip)";
    }
    Ends ends("10.1.0.1");
    ASSERT_NO_FATAL_FAILURE(ends.connect());
    const auto& [client, server, peer] = ends;
    ASSERT_TRUE(run("ip addr del 10.1.0.1/32 dev lo"));
    for (uint32_t number = 0; number < 100; ++number) EXPECT_FALSE(sends(*client, peer, number));
    EXPECT_TRUE(has_own_socket(*client, peer));
    ASSERT_TRUE(run("ip addr add 10.1.0.1/32 dev lo"));
    EXPECT_TRUE(sends(*client, peer, 0));
    EXPECT_EQ(receive_some(*server, 2).size(), 2u);
  });
}

/// Loopback is up, and loses datagrams that match, at this hook.
std::string drop_at(const std::string& hook, const std::string& match = "") {
  return "ip link set lo up && nft add table inet t && "
         "nft 'add chain inet t c { type filter hook " +
         hook +
         " priority 0; }' && "
         "nft add rule inet t c meta l4proto udp " +
         match + " drop";
}

struct LoopbackFault {
  const char* name;
  std::string command;
  const char* bind;
  friend void PrintTo(const LoopbackFault& fault, std::ostream* to) { *to << fault.name; }
};
class UdpWithoutLoopback : public testing::TestWithParam<LoopbackFault> {};

TEST_P(UdpWithoutLoopback, the_kernels_offloads_are_used) {
  const bool is_ipv6 = GetParam().bind[0] == '[';
  const UdpOffloads working = test_offloads(is_ipv6 ? AF_INET6 : AF_INET);
  if (!working.gso) GTEST_SKIP() << "no offloads here";
  run_in_namespace([&] {
    if (!run(GetParam().command)) GTEST_SKIP() << "this fault cannot be made here: " << GetParam().command;
    Udp::Options options;
    options.bind = GetParam().bind;
    const auto endpoint = make(options);
    ASSERT_TRUE(endpoint);
    EXPECT_EQ(endpoint->census().offloads.gso, working.gso);
    EXPECT_EQ(endpoint->census().offloads.gro, working.gro);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Faults, UdpWithoutLoopback,
    testing::Values(LoopbackFault{"down", "true", "0.0.0.0"}, LoopbackFault{"down_ipv6", "true", "[::]"},
                    LoopbackFault{"without_ipv6",
                                  "ip link set lo up && echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6", "[::]"},
                    LoopbackFault{"forbids_sends", drop_at("output"), "0.0.0.0"},
                    LoopbackFault{"loses_datagrams", drop_at("input"), "0.0.0.0"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(UdpNetwork, no_trains_are_sent_if_loopback_loses_only_trains) {
  run_in_namespace([] {
    if (!run(drop_at("input", "'meta length > 200'"))) GTEST_SKIP() << "no packet filter can be set here (nft)";
    const auto endpoint = make();
    ASSERT_TRUE(endpoint);
    EXPECT_FALSE(endpoint->census().offloads.gso);
    EXPECT_FALSE(endpoint->census().offloads.gro);
  });
}

/// Two endpoints on loopback. The client sends bursts of 60 packets of 100 B, and no trains, which a filter can take
/// for long datagrams.
struct Bursts {
  void send() {
    const std::vector<std::byte> data(100);
    for (uint32_t i = 0; i < 60; ++i) {
      EXPECT_TRUE(client->send(peer, numbered(i), data.data(), data.size(), nullptr));
    }
    client->flush();
  }
  static Udp::Options without_trains() {
    Udp::Options options;
    options.offload = false;
    return options;
  }
  std::unique_ptr<UdpImpl> client = make(without_trains()), server = make();
  PeerId peer = must_connect(*client, *server);
};

TEST(UdpNetwork, small_packets_arrive_if_loopback_carries_no_long_datagrams) {
  for (const std::string& fault :
       {std::string("ip link set lo mtu 1500 up"), drop_at("input", "'meta length > 2000'")}) {
    run_in_namespace([&] {
      if (!run(fault)) GTEST_SKIP() << "this fault cannot be made here: " << fault;
      Bursts bursts;
      bursts.send();
      EXPECT_EQ(bursts.client->counters().packets_sent, 60u);
      EXPECT_EQ(receive_some(*bursts.server, 60).size(), 60u);
    });
  }
}

TEST(UdpNetwork, a_smaller_mtu_of_loopback_costs_one_burst) {
  run_in_namespace([] {
    ASSERT_TRUE(run("ip link set lo up"));
    Bursts bursts;
    ASSERT_TRUE(run("ip link set lo mtu 1500"));
    bursts.send();
    const uint64_t lost = bursts.client->counters().send_errors;
    EXPECT_GT(lost, 0u);
    EXPECT_EQ(bursts.client->counters().packets_sent + lost, 60u);
    for (int i = 0; i < 3; ++i) bursts.send();
    EXPECT_EQ(bursts.client->counters().send_errors, lost);
    EXPECT_EQ(receive_some(*bursts.server, 240 - lost).size(), 240 - lost);
  });
}

}  // namespace
}  // namespace tern::transport
