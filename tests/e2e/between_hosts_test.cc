// Transports over raw Ethernet frames between two hosts: the caller at tern0, the peer in the namespace of tern1
// (tests/cable). A cable joins the two over mlx5. Over AF_XDP and DPDK's devices they are hosts at a switch.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "e2e/caller.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::AllOf;
using testing::HasSubstr;

namespace {

struct Kind {
  const char* name;
  const char* transport;
  const char* device;  ///< the device up to the digit of the interface; empty: the transport finds it
  /// No frame reaches the kernel. It needs static neighbours, and the management packets need another network.
  bool takes_every_frame;

  friend std::ostream& operator<<(std::ostream& to, const Kind& kind) { return to << kind.name; }
};
constexpr Kind kMlx5 = {"mlx5", "mlx5", "", false};
constexpr Kind kSockets = {"xdp", "xdp", "", false};
constexpr Kind kPacket = {"af_packet_dpdk", "dpdk", "net_af_packet0;iface=tern", false};
constexpr Kind kXdp = {"af_xdp_dpdk", "dpdk", "net_af_xdp0;iface=tern", true};

std::vector<Kind> built(std::vector<Kind> kinds) {
  std::erase_if(kinds, [](const Kind& kind) {
#ifdef TERN_IS_SANITIZED
    if (kind.takes_every_frame) return true;  // the driver of af_xdp leaks, which ends a program with a failure
#endif
    const auto names = transports();
    return std::find(names.begin(), names.end(), std::string_view(kind.transport)) == names.end();
  });
  return kinds;
}

class BetweenHosts : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const char* path = std::getenv("TERN_PEER_NETNS");
    if (path == nullptr) GTEST_SKIP() << "no network: run this by tests/on_cable --hosts of the build directory";
    peer_namespace_ = path;
    if (GetParam().takes_every_frame) {
      ASSERT_TRUE(run("ip link add manage0 type veth peer name manage1 netns " + peer_namespace_));
      ASSERT_TRUE(run("ip address add 10.76.0.1/24 dev manage0 && ip link set manage0 up"));
      ASSERT_TRUE(in_peer_namespace("ip address add 10.76.0.2/24 dev manage1"));
      ASSERT_TRUE(in_peer_namespace("ip link set manage1 up"));
    }
  }
  Settings caller_settings(const std::string& host = "10.77.0.1") const { return settings('0', host, "10.76.0.1"); }
  Settings peer_settings(const std::string& host = "10.77.0.2") const {
    return settings('1', host, "10.76.0.2").with("netns", peer_namespace_);
  }
  /// Runs a command in the peer's namespace. True: it succeeded.
  bool in_peer_namespace(const std::string& command) const {
    return run("nsenter --net=" + peer_namespace_ + " " + command);
  }
  /// Sets the peer's ends of all cables "down" or "up".
  void set_peers_interfaces(const std::string& state) const {
    ASSERT_TRUE(in_peer_namespace("ip link set tern1 " + state));
    if (GetParam().takes_every_frame) {
      ASSERT_TRUE(in_peer_namespace("ip link set manage1 " + state));
    }
  }
  static void expect_traffic_passes(Caller& caller, tern::Session session) {
    const size_t before = caller.calls().size();
    for (uint64_t id = 0; id < 100; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * id), 0}, sizeof(Order) + id * 150);
    }
    caller.send_order(session, kWork, {1000, 500'000, 0}, 500'000);
    ASSERT_TRUE(caller.finish());
    for (size_t i = before; i < caller.calls().size(); i++) {
      ASSERT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
    }
  }

 private:
  Settings settings(char digit, const std::string& host, const std::string& manager) const {
    const Kind& kind = GetParam();
    Settings settings = {{"transport", kind.transport}, {"listen", "tern://" + host + ":0"}};
    if (*kind.device != '\0') settings.set("device", std::string(kind.device) + digit);
    if (kind.takes_every_frame) {
      settings.set("listen", "tern://" + manager + ":0").set("bind", host);
      settings.set("eal", "--no-huge -m 256 --no-shconf --no-pci --no-telemetry");  // in small pages, which XDP notices
    }
    return settings;
  }

  std::string peer_namespace_;
};
std::string name_of(const testing::TestParamInfo<Kind>& with) { return with.param.name; }
INSTANTIATE_TEST_SUITE_P(Over, BetweenHosts, testing::ValuesIn(built({kMlx5, kSockets, kPacket, kXdp})), name_of);

/// The kinds whose devices the same process can open again. af_xdp is none of them, because its driver keeps its socket
/// and the queue until the process ends.
class Reopened : public BetweenHosts {};
INSTANTIATE_TEST_SUITE_P(Over, Reopened, testing::ValuesIn(built({kMlx5, kSockets, kPacket})), name_of);

/// The kinds whose frames a full queue of an interface drops. DPDK's af_packet waits for the queue, and AF_XDP bypasses
/// it.
class BetweenQueues : public BetweenHosts {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BetweenQueues);
INSTANTIATE_TEST_SUITE_P(Over, BetweenQueues, testing::ValuesIn(built({kMlx5})), name_of);

}  // namespace

TEST_P(BetweenHosts, traffic_passes_over_ipv4) {
  Peer server(peer_settings());
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(server.board().damaged, 0u);
  EXPECT_GT(server.board().packets_received, 0u);
}

TEST_P(BetweenHosts, traffic_passes_over_ipv6) {
  if (access("/proc/sys/net/ipv6", F_OK) != 0) GTEST_SKIP() << "no IPv6 here";
  Peer server(peer_settings("[fd77::2]"));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  Caller caller(caller_settings("[fd77::1]"));
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(BetweenQueues, each_request_runs_once_over_a_network_that_loses_packets) {
  // Random loss if the kernel has netem; otherwise a slow link with a queue of a dozen packets, which bursts overflow.
  const std::string qdisc = "tc qdisc add dev tern1 root ";
  if (!in_peer_namespace(qdisc + "netem loss 2%") &&
      !in_peer_namespace(qdisc + "tbf rate 100mbit burst 5kb limit 20kb")) {
    GTEST_SKIP() << "no tc, or neither netem nor tbf in this kernel";
  }
  Peer server(peer_settings());
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_GT(caller.counters().retransmissions, 0u) << "nothing was lost";
  for (uint64_t id = 0; id < 100; id++) EXPECT_EQ(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(BetweenHosts, side_killed_amid_messages_and_restarted_works_again) {
  auto server = std::make_unique<Peer>(peer_settings());
  const std::string listen = server->listen_uri(), uri = server->uri();
  const std::string own_namespace = "/proc/" + std::to_string(getpid()) + "/ns/net";
  for (int round = 0; round < 2; round++) {
    Peer client(caller_settings().with("netns", own_namespace).with("server", uri).with("request_bytes", 1'000'000));
    ASSERT_TRUE(client.is_ready()) << client.board().refused_text;
    ASSERT_TRUE(wait_for([&] { return client.board().completed >= 2; }));
    client.kill();
  }
  EXPECT_TRUE(wait_for([&] { return server->board().sessions_failed == 2; }));
  Caller caller(caller_settings());
  const tern::Session session = caller.open(uri);
  expect_traffic_passes(caller, session);
  EXPECT_EQ(server->board().damaged, 0u);
  const uint64_t before = server->board().packets_received;
  for (uint64_t id = 0; id < 20; id++) caller.send_order(session, kWork, {id, 1'000'000, 0}, 1'000'000);
  ASSERT_TRUE(caller.run_until([&] { return server->board().packets_received >= before + 100; }));
  server->kill();
  server = std::make_unique<Peer>(peer_settings().with("listen", listen));
  ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
  ASSERT_TRUE(caller.finish());
  EXPECT_FALSE(caller.calls().back()->status.ok());
  EXPECT_EQ(server->board().handled, 0u) << "a request of the old session has reached the new server";
  expect_traffic_passes(caller, caller.open(uri));
}

/// A device can be opened again while programs run that were started while it was open before.
TEST_P(Reopened, endpoint_opened_again_on_its_device_works) {
  std::unique_ptr<Peer> server;
  std::string uri;
  for (int round = 0; round < 4; round++) {
    Caller caller(caller_settings());
    if (server == nullptr) {
      server = std::make_unique<Peer>(peer_settings());
      uri = server->uri();
    }
    expect_traffic_passes(caller, caller.open(uri));
  }
}

TEST_P(BetweenHosts, calls_survive_a_short_cut_of_the_cable_and_fail_in_a_long_one) {
  // The short cut lasts for the time of two commands, some hundred milliseconds on a busy machine.
  constexpr const char* kLivenessMs = "3000";
  Peer server(peer_settings().with("liveness_ms", kLivenessMs));
  Caller caller(caller_settings().with("liveness_ms", kLivenessMs));
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 50; id++) caller.send_order(session, kWork, {id, 20000, 0}, 20000);
  set_peers_interfaces("down");
  caller.run_for(std::chrono::milliseconds(50));
  set_peers_interfaces("up");
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (uint64_t id = 100; id < 130; id++) caller.send_order(session, kWork, {id, 20000, 1'000'000}, 20000);
  caller.run_for(std::chrono::milliseconds(20));
  set_peers_interfaces("down");
  ASSERT_TRUE(caller.finish());
  for (size_t i = 50; i < caller.calls().size(); i++) EXPECT_EQ(caller.calls()[i]->code(), Code::kPeerUnreachable);
  set_peers_interfaces("up");
  expect_traffic_passes(caller, caller.open(server.uri()));
}

/// The peer is restarted at the same address with another MAC address.
TEST_P(BetweenHosts, a_peer_that_comes_back_with_another_mac_is_found) {
  Caller caller(caller_settings());
  {
    Peer server(peer_settings());
    expect_traffic_passes(caller, caller.open(server.uri()));
  }
  ASSERT_TRUE(in_peer_namespace("ip link set tern1 address 02:00:00:00:77:02"));
  // The flush does what a host's announcement at boot does, or the kernel's own check of its neighbours after a while.
  ASSERT_TRUE(run("ip neigh flush dev tern0"));
  Peer server(peer_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
}

/// The management packets reach the peer, but its data-path address is routed to a router that does not exist.
TEST_P(BetweenHosts, silent_next_hop_is_named_in_the_error) {
  ASSERT_TRUE(in_peer_namespace("ip address add 10.78.0.2/24 dev tern1"));
  ASSERT_TRUE(run("ip route add 10.78.0.0/24 via 10.77.0.9 dev tern0"));
  Peer server(peer_settings().with("bind", "10.78.0.2"));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  Caller caller(caller_settings());
  const tern::Session session = caller.connect(server.uri(), {.connect_timeout = std::chrono::seconds(20)});
  Call* call = caller.send_order(session, kWork, {1, 10, 0});
  EXPECT_EQ(caller.end_of(call), Code::kPeerUnreachable);
  EXPECT_THAT(std::string(call->status.message()),
              AllOf(HasSubstr("the peer's data-path address cannot be reached: "),
                    HasSubstr("the gateway 10.77.0.9 to 10.78.0.2 does not answer on the link of tern0")));
}
