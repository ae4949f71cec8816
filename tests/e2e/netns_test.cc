// UDP between two network namespaces with a veth pair: real interfaces, MTUs, losses and cut cables. Needs root.

#include <gmock/gmock.h>

#include <optional>

#include "e2e/caller.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::HasSubstr;

namespace {

/// Two namespaces of this process, joined. Addresses 10.77.0.1, fd77::1 and 10.77.0.2, fd77::2.
class Cable {
 public:
  /// Returns null if this machine cannot do it; `why` then says what it lacks.
  static std::unique_ptr<Cable> create(std::string* why, unsigned mtu = 1500) {
    *why = Namespace::missing();
    if (!why->empty()) return nullptr;
    auto cable = std::unique_ptr<Cable>(new Cable());
    const std::string wire = "t" + std::to_string(getpid() % 1000000);
    const bool has_both = cable->sides_[0].is_made() && cable->sides_[1].is_made();
    bool is_made =
        has_both && run("ip link add " + wire + "a netns " + cable->name(1) + " mtu " + std::to_string(mtu) +
                        " type veth peer name " + wire + "b netns " + cable->name(2) + " mtu " + std::to_string(mtu));
    for (int side : {1, 2}) {
      const std::string digit = std::to_string(side);
      const std::string interface = wire + (side == 1 ? "a" : "b");
      is_made = is_made && cable->in(side, "ip address add 10.77.0." + digit + "/24 dev " + interface) &&
                cable->in(side, "ip link set " + interface + " up");
      cable->interface_[side - 1] = interface;
      cable->has_ipv6_ =
          cable->has_ipv6_ && cable->in(side, "ip address add fd77::" + digit + "/64 dev " + interface + " nodad");
    }
    if (is_made) return cable;
    *why = "this machine allows no network namespaces or no veth";
    return nullptr;
  }
  const std::string& name(int side) const { return sides_[side - 1].name(); }
  bool in(int side, const std::string& command) const { return sides_[side - 1].in(command); }
  const std::string& interface(int side) const { return interface_[side - 1]; }
  bool has_ipv6() const { return has_ipv6_; }

 private:
  Cable() = default;
  Namespace sides_[2] = {Namespace("1"), Namespace("2")};
  std::string interface_[2];
  bool has_ipv6_ = true;
};

class Namespaces : public testing::Test {
 protected:
  void lay_cable(unsigned mtu = 1500) {
    std::string why;
    cable_ = Cable::create(&why, mtu);
    if (cable_ == nullptr) GTEST_SKIP() << why;
    inside_.emplace(cable_->name(1));
  }
  void TearDown() override {
    inside_.reset();
    cable_.reset();
  }
  Settings caller_settings(const std::string& host = "10.77.0.1") const {
    return {{"transport", "udp"}, {"listen", "tern://" + host + ":0"}};
  }
  Settings peer_settings(const std::string& host = "10.77.0.2") const {
    return Settings{{"transport", "udp"}, {"listen", "tern://" + host + ":0"}}.set("netns", cable_->name(2));
  }
  static void expect_traffic_passes(Caller& caller, tern::Session session) {
    const size_t before = caller.calls().size();
    for (uint64_t id = 0; id < 200; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * id), 0}, sizeof(Order) + id * 150);
    }
    caller.send_order(session, kWork, {1000, 4 << 20, 0}, 4 << 20);
    ASSERT_TRUE(caller.finish());
    for (size_t i = before; i < caller.calls().size(); i++) {
      ASSERT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
    }
  }

  std::unique_ptr<Cable> cable_;
  std::optional<Inside> inside_;
};

}  // namespace

#define LAY_CABLE(...)    \
  lay_cable(__VA_ARGS__); \
  if (IsSkipped()) return

TEST_F(Namespaces, traffic_passes_over_ipv4) {
  LAY_CABLE();
  Peer server(peer_settings());
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_F(Namespaces, traffic_passes_over_ipv6) {
  LAY_CABLE();
  if (!cable_->has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  Peer server(peer_settings("[fd77::2]"));
  Caller caller(caller_settings("[fd77::1]"));
  expect_traffic_passes(caller, caller.open(server.uri()));
}

TEST_F(Namespaces, traffic_passes_through_wildcard_addresses) {
  LAY_CABLE();
  for (const auto& [any, host] : {std::pair("0.0.0.0", "10.77.0.2"), std::pair("[::]", "[fd77::2]")}) {
    if (any[0] == '[' && !cable_->has_ipv6()) continue;
    Peer server(peer_settings(any));
    ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
    Caller caller(caller_settings(any));
    const std::string listen = server.listen_uri();
    expect_traffic_passes(caller, caller.open("tern://" + std::string(host) + listen.substr(listen.rfind(':')) + "/0"));
  }
}

TEST_F(Namespaces, traffic_passes_without_offload) {
  LAY_CABLE();
  Peer server(peer_settings().with("offload", "false"));
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
}

TEST_F(Namespaces, a_narrow_path_refuses_the_session_and_names_the_mtu) {
  LAY_CABLE();
  Peer server(peer_settings().with("datagram_bytes", 1400));
  Caller caller(caller_settings().with("datagram_bytes", 1400));
  Caller narrow(caller_settings().with("datagram_bytes", 1200));
  ASSERT_TRUE(cable_->in(2, "ip link set " + cable_->interface(2) + " mtu 1280"));
  const tern::Session session = caller.connect(server.uri(), {.connect_timeout = std::chrono::milliseconds(500)});
  Call* call = caller.send_order(session, kWork, {1, 10, 0});
  const Code code = caller.end_of(call);
  EXPECT_TRUE(code == Code::kRefused || code == Code::kPeerUnreachable) << call->status.message();
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("MTU"));
  EXPECT_EQ(server.board().handled, 0u);

  // Either side alone may have the smaller limit.
  expect_traffic_passes(narrow, narrow.open(server.uri()));
  Peer narrow_server(peer_settings().with("datagram_bytes", 1200));
  expect_traffic_passes(caller, caller.open(narrow_server.uri()));
}

/// Packets of the default size pass the narrowest path that IPv6 allows.
TEST_F(Namespaces, the_default_fits_the_narrowest_path) {
  LAY_CABLE(1280);
  for (const auto& [own, other] : {std::pair("10.77.0.1", "10.77.0.2"), std::pair("[fd77::1]", "[fd77::2]")}) {
    if (own[0] == '[' && !cable_->has_ipv6()) continue;
    Peer server(peer_settings(other));
    Caller caller(caller_settings(own));
    expect_traffic_passes(caller, caller.open(server.uri()));
  }
}

TEST_F(Namespaces, jumbo_datagrams_pass_a_wide_path) {
  LAY_CABLE(9000);
  Peer server(peer_settings().with("datagram_bytes", 8900));
  Caller caller(caller_settings().with("datagram_bytes", 8900));
  expect_traffic_passes(caller, caller.open(server.uri()));
}

TEST_F(Namespaces, lossy_link_fails_no_call) {
  LAY_CABLE();
  // Random loss if the kernel has netem; otherwise a slow link with a queue of a dozen packets, which bursts overflow.
  for (int side : {1, 2}) {
    const std::string qdisc = "tc qdisc add dev " + cable_->interface(side) + " root ";
    if (!cable_->in(side, qdisc + "netem loss 2% delay 1ms 1ms") &&
        !cable_->in(side, qdisc + "tbf rate 100mbit burst 5kb limit 20kb")) {
      GTEST_SKIP() << "no tc, or neither netem nor tbf in this kernel";
    }
  }
  Peer server(peer_settings());
  Caller caller(caller_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_GT(caller.counters().retransmissions, 0u) << "nothing was lost";
  for (uint64_t id = 0; id < 200; id++) EXPECT_EQ(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_F(Namespaces, short_cut_of_the_cable_fails_no_call_and_a_long_one_all) {
  LAY_CABLE();
  // The commands that cut and repair take some hundred milliseconds on a busy machine.
  Peer server(peer_settings().with("liveness_ms", 3000));
  Caller caller(caller_settings().with("liveness_ms", 3000));
  const tern::Session session = caller.open(server.uri());
  // The cut is shorter than the liveness timeout: all calls complete.
  for (uint64_t id = 0; id < 50; id++) caller.send_order(session, kWork, {id, 20000, 0}, 20000);
  ASSERT_TRUE(cable_->in(2, "ip link set " + cable_->interface(2) + " down"));
  caller.run_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(cable_->in(2, "ip link set " + cable_->interface(2) + " up"));
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (uint64_t id = 0; id < 50; id++) EXPECT_EQ(server.board().handled_by_id[id], 1);
  // The cut is longer: every call ends. The cable is repaired after that.
  for (uint64_t id = 100; id < 130; id++) caller.send_order(session, kWork, {id, 20000, 1'000'000}, 20000);
  caller.run_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(cable_->in(2, "ip link set " + cable_->interface(2) + " down"));
  ASSERT_TRUE(caller.finish());
  for (size_t i = 50; i < caller.calls().size(); i++) EXPECT_EQ(caller.calls()[i]->code(), Code::kPeerUnreachable);
  ASSERT_TRUE(cable_->in(2, "ip link set " + cable_->interface(2) + " up"));
  expect_traffic_passes(caller, caller.open(server.uri()));
}

/// The error text of a call whose session cannot open.
class Unreachable : public Namespaces {
 protected:
  static std::string heard(Caller& caller, const std::string& uri,
                           std::chrono::milliseconds timeout = std::chrono::milliseconds(400)) {
    auto session = caller.endpoint().create_session(uri, {.connect_timeout = timeout});
    if (!session.ok()) return std::string(session.status().message());
    Call* call = caller.send_order(*session, kWork, {1, 10, 0});
    (void)caller.end_of(call);
    return std::string(call->status.message());
  }
};

TEST_F(Unreachable, each_reason_has_its_own_message) {
  LAY_CABLE();
  Caller caller(caller_settings("0.0.0.0"));
  EXPECT_THAT(heard(caller, "tern://10.77.0.2:31850/0"), HasSubstr("nothing listens at 10.77.0.2:31850"));
  EXPECT_THAT(heard(caller, "tern://192.0.2.1:31850/0"), HasSubstr("no route to 192.0.2.1:31850"));
  // The kernel tries to find a host for three seconds.
  EXPECT_THAT(heard(caller, "tern://10.77.0.9:31850/0", std::chrono::seconds(6)),
              HasSubstr("no host answers at 10.77.0.9:31850"));
  ASSERT_TRUE(cable_->in(1, "ip route add unreachable 198.51.100.0/24"));
  EXPECT_THAT(heard(caller, "tern://198.51.100.1:31850/0"), HasSubstr("no host answers at 198.51.100.1:31850"));
  ASSERT_TRUE(cable_->in(1, "ip route add prohibit 203.0.113.0/24"));
  EXPECT_THAT(heard(caller, "tern://203.0.113.1:31850/0"), HasSubstr("a firewall refuses what is sent to 203.0.113.1"));
  EXPECT_THAT(heard(caller, "tern://[fd77::2]:31850/0"), HasSubstr("the server's address [fd77::2]:31850 is IPv6"));
  if (!cable_->has_ipv6()) return;
  Caller any(caller_settings("[::]"));
  ASSERT_TRUE(cable_->in(1, "ip -6 route add unreachable 2001:db8::/32"));
  EXPECT_THAT(heard(any, "tern://[2001:db8::1]:31850/0"), HasSubstr("[2001:db8::1]:31850"));
  EXPECT_THAT(heard(any, "tern://[2001:db8::1]:31850/0"), Not(HasSubstr("no answer from")));
}

TEST_F(Unreachable, a_host_that_drops_everything_is_silent) {
  LAY_CABLE();
  Caller caller(caller_settings("0.0.0.0"));
  const std::string neighbour = "ip neighbour replace 10.77.0.8 lladdr 02:00:00:00:00:88 dev " + cable_->interface(1);
  ASSERT_TRUE(cable_->in(1, neighbour));
  EXPECT_THAT(heard(caller, "tern://10.77.0.8:31850/0"), HasSubstr("no answer from 10.77.0.8:31850 within"));
}

/// Containers have namespaces of their own, too.
TEST_F(Unreachable, shared_memory_across_network_namespaces_names_the_namespace) {
  LAY_CABLE();
  Peer server(peer_settings().with("transport", "shm"));
  Caller caller(caller_settings().with("transport", "shm"));
  EXPECT_THAT(heard(caller, server.uri(), std::chrono::seconds(5)), HasSubstr("network namespace"));
}
