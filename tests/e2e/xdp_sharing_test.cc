// Processes that share an interface over AF_XDP with each other and with the kernel's own traffic: two network
// namespaces that a veth pair with several queues joins. Needs root.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <gmock/gmock.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "e2e/caller.h"
#include "e2e/kernel_traffic.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"
#include "transport/xdp/program.h"

using namespace e2e;

namespace {

constexpr int kQueues = 4;

/// The case's parameter is the MTU.
class XdpSharing : public testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    if (const std::string missing = Namespace::missing(); !missing.empty()) GTEST_SKIP() << missing;
    const std::string wire = "x" + std::to_string(getpid() % 1000000);
    const std::string mtu = " mtu " + std::to_string(GetParam()), queues = std::to_string(kQueues);
    const std::string end = mtu + " numrxqueues " + queues + " numtxqueues " + queues;
    for (int side : {0, 1}) interfaces_[side] = wire + (side == 0 ? "a" : "b");
    ASSERT_TRUE(sides_[0].is_made() && sides_[1].is_made()) << "this machine allows no network namespaces";
    ASSERT_TRUE(run("ip link add " + interfaces_[0] + end + " netns " + sides_[0].name() + " type veth peer name " +
                    interfaces_[1] + end + " netns " + sides_[1].name()));
    for (int side : {0, 1}) {
      const std::string digit = std::to_string(side + 1);
      ASSERT_TRUE(sides_[side].in("ip link set " + interfaces_[side] + " up"));
      ASSERT_TRUE(sides_[side].in("ip address add 10.77.0." + digit + "/24 dev " + interfaces_[side]));
    }
    inside_.emplace(sides_[0].name());
  }
  void TearDown() override { inside_.reset(); }

  static Settings caller_settings() { return {{"transport", "xdp"}, {"listen", "tern://10.77.0.1:0"}}; }
  /// Of a process with one queue.
  Settings peer_settings(const std::string& listen = "tern://10.77.0.2:0") const {
    return Settings{{"transport", "xdp"}, {"listen", listen}, {"queues", "1"}}.set("netns",
                                                                                   "/run/netns/" + sides_[1].name());
  }
  bool in_peers_namespace(const std::string& command) const { return sides_[1].in(command); }
  std::unique_ptr<KernelTraffic> start_kernel_traffic(std::chrono::milliseconds patience) const {
    return std::make_unique<KernelTraffic>(sides_[0].name(), sides_[1].name(), "10.77.0.2", patience);
  }

  /// The XDP program of the peers' interface; 0: none.
  uint32_t attached(int side = 1) const {
    const Inside there(sides_[side].name());
    LIBBPF_OPTS(bpf_xdp_query_opts, query);
    EXPECT_EQ(bpf_xdp_query(static_cast<int>(if_nametoindex(interfaces_[side].c_str())), 0, &query), 0);
    return query.prog_id != 0 ? query.prog_id : query.drv_prog_id;
  }
  /// Datagrams to processes over XDP that the kernel got, because they arrived at a queue of another process.
  uint64_t passed_to_kernel() const {
    tern::transport::xdp::Program program;
    EXPECT_EQ(program.open(attached()), 0);
    return program.counts().foreign_queue;
  }
  /// Of the kernel's UDP in the peers' namespace: "RcvbufErrors" and others of /proc/net/snmp.
  uint64_t udp_counter(const std::string& name) const {
    const Inside there(sides_[1].name());
    std::ifstream file("/proc/thread-self/net/snmp");
    std::string names;
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("Udp:")) continue;
      if (names.empty()) {
        names = line;
        continue;
      }
      std::istringstream all_names(names), values(line);
      for (std::string one, value; all_names >> one && values >> value;) {
        if (one == name) return std::stoull(value);
      }
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  static void expect_traffic_passes(Caller& caller, tern::Session session, uint64_t first_id = 0) {
    const size_t before = caller.calls().size();
    for (uint64_t id = first_id; id < first_id + 100; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>((id - first_id) * 100), 0},
                        sizeof(Order) + (id - first_id) * 150);
    }
    caller.send_order(session, kWork, {first_id + 100, 500'000, 0}, 500'000);
    ASSERT_TRUE(caller.finish());
    for (size_t i = before; i < caller.calls().size(); i++) {
      ASSERT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
    }
  }

  Namespace sides_[2] = {Namespace("1"), Namespace("2")};
  std::string interfaces_[2];
  std::optional<Inside> inside_;
};

INSTANTIATE_TEST_SUITE_P(Mtu, XdpSharing, testing::Values(1500u, 3498u),
                         [](const auto& with) { return std::to_string(with.param); });

/// What does not depend on the MTU.
class XdpQueues : public XdpSharing {};
INSTANTIATE_TEST_SUITE_P(Mtu, XdpQueues, testing::Values(1500u),
                         [](const auto& with) { return std::to_string(with.param); });

/// The caller sends by one queue, so that its frames arrive at one queue of the peers' interface: they go to the kernel
/// for two of three processes.
TEST_P(XdpSharing, three_processes_get_all_datagrams_whichever_queue_these_arrive_at) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 3; i++) {
    peers.push_back(std::make_unique<Peer>(peer_settings()));
    ASSERT_TRUE(peers.back()->is_ready()) << peers.back()->board().refused_text;
  }
  {
    Caller caller(caller_settings().set("queues", 1));
    for (const auto& peer : peers) {
      expect_traffic_passes(caller, caller.open(peer->uri()));
      for (uint64_t id = 0; id <= 100; id++) EXPECT_EQ(peer->board().handled_by_id[id], 1) << id;
      EXPECT_EQ(peer->board().damaged, 0u);
    }
    EXPECT_GT(passed_to_kernel(), 0u);
    EXPECT_EQ(udp_counter("RcvbufErrors"), 0u);
    EXPECT_EQ(udp_counter("NoPorts"), 0u);
  }
  peers.clear();
  EXPECT_TRUE(wait_for([&] { return attached() == 0; }));
  EXPECT_TRUE(wait_for([&] { return attached(0) == 0; }));
}

TEST_P(XdpSharing, process_that_attached_the_program_is_killed_and_others_go_on) {
  const auto traffic = start_kernel_traffic(std::chrono::seconds(10) * tern::patience());
  EXPECT_TRUE(traffic->goes_on());
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 3; i++) {
    peers.push_back(std::make_unique<Peer>(peer_settings()));
    ASSERT_TRUE(peers.back()->is_ready()) << peers.back()->board().refused_text;
  }
  const std::string first_listen = peers[0]->listen_uri();
  const uint32_t program = attached();
  EXPECT_NE(program, 0u);
  Caller caller(caller_settings().set("liveness_ms", 3000));
  std::array<tern::Session, 3> sessions;
  for (size_t i = 0; i < 3; i++) sessions[i] = caller.open(peers[i]->uri());
  for (const tern::Session session : sessions) expect_traffic_passes(caller, session);
  EXPECT_TRUE(traffic->goes_on());

  // Calls are under way to all three.
  std::map<Call*, size_t> calls;
  for (uint64_t id = 200; id < 260; id++) {
    const size_t to = id % 3;
    calls[caller.send_order(sessions[to], kWork, {id, 50'000, 1000}, 50'000)] = to;
  }
  ASSERT_TRUE(caller.run_until([&] { return peers[0]->board().handled > 102; }));
  peers[0]->kill();
  EXPECT_EQ(attached(), program);
  ASSERT_TRUE(caller.finish());
  for (const auto& [call, to] : calls) {
    if (to != 0) {
      EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
    }
  }
  for (const size_t i : {1, 2}) expect_traffic_passes(caller, sessions[i], 1000);
  EXPECT_TRUE(traffic->goes_on());

  // It is started again at the same address, and takes a queue again.
  peers[0] = std::make_unique<Peer>(peer_settings(first_listen));
  ASSERT_TRUE(peers[0]->is_ready()) << peers[0]->board().refused_text;
  EXPECT_EQ(attached(), program);
  expect_traffic_passes(caller, caller.open(peers[0]->uri()), 2000);
  for (const size_t i : {1, 2}) expect_traffic_passes(caller, sessions[i], 2000);
  for (const auto& peer : peers) EXPECT_EQ(peer->board().damaged, 0u);

  // The others end, one by a signal; the program goes with the last.
  peers[1]->kill();
  peers[2].reset();
  EXPECT_EQ(attached(), program);
  EXPECT_TRUE(traffic->goes_on());
  EXPECT_EQ(traffic->lost(), 0u);
  peers[0]->kill();
  EXPECT_TRUE(wait_for([&] { return attached() == 0; }));
  // veth drops the frames that its queues have when it leaves native mode: so only that it goes on.
  EXPECT_TRUE(traffic->goes_on());
  EXPECT_EQ(traffic->damaged(), 0u);
}

TEST_P(XdpSharing, calls_and_kernel_traffic_survive_an_interface_that_goes_down_and_up) {
  const auto traffic = start_kernel_traffic(std::chrono::milliseconds(500));
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 2; i++) {
    peers.push_back(std::make_unique<Peer>(peer_settings().set("liveness_ms", 10'000)));
    ASSERT_TRUE(peers.back()->is_ready()) << peers.back()->board().refused_text;
  }
  Caller caller(caller_settings().set("liveness_ms", 10'000));
  std::array<tern::Session, 2> sessions;
  for (size_t i = 0; i < 2; i++) sessions[i] = caller.open(peers[i]->uri());
  const uint32_t program = attached();
  for (int round = 0; round < 2; round++) {
    for (uint64_t id = 0; id < 40; id++) caller.send_order(sessions[id % 2], kWork, {id, 20'000, 500}, 20'000);
    caller.run_for(std::chrono::milliseconds(3));
    ASSERT_TRUE(in_peers_namespace("ip link set " + interfaces_[1] + " down"));
    caller.run_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(in_peers_namespace("ip link set " + interfaces_[1] + " up"));
    ASSERT_TRUE(caller.finish());
    for (const auto& call : caller.calls()) ASSERT_TRUE(Caller::is_right(*call)) << call->status.message();
    EXPECT_TRUE(traffic->goes_on());
  }
  EXPECT_EQ(attached(), program);
  EXPECT_EQ(traffic->damaged(), 0u);
}

/// There are as many processes as queues: the next one is refused, and takes the place of the first that ends.
TEST_P(XdpQueues, process_without_a_free_queue_is_refused_and_served_later) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kQueues; i++) {
    peers.push_back(std::make_unique<Peer>(peer_settings()));
    ASSERT_TRUE(peers.back()->is_ready()) << peers.back()->board().refused_text;
  }
  {
    Peer refused(peer_settings());
    EXPECT_FALSE(refused.is_ready());
    EXPECT_EQ(refused.board().refused_code, static_cast<uint32_t>(tern::Code::kUnavailable));
    EXPECT_THAT(std::string(refused.board().refused_text), testing::HasSubstr("queue"));
  }
  peers[1]->kill();
  Peer next(peer_settings());
  ASSERT_TRUE(next.is_ready()) << next.board().refused_text;
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(next.uri()));
  expect_traffic_passes(caller, caller.open(peers[3]->uri()));
}

}  // namespace
