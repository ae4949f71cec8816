// UDP through stateful firewalls and a NAT, in network namespaces: a client, a router and a server. Needs root and nft.

#include <gmock/gmock.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "e2e/caller.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::HasSubstr;

namespace {

constexpr const char* kServerNexus = "tern://10.78.2.2:31850";
constexpr const char* kServerData = "10.78.2.2:31851";
/// Long, so that a busy machine does not count as silent.
constexpr uint64_t kLivenessMs = 8000;

/// client 10.78.1.2 -- 10.78.1.1 router 10.78.2.1 -- 10.78.2.2 server. This thread lives at the client.
class Nat : public testing::Test {
 protected:
  void SetUp() override {
    std::string why = Namespace::missing();
    if (why.empty() && !run("nft --version")) why = "no nft command: install nftables";
    if (!why.empty()) GTEST_SKIP() << why;
    client_.emplace("c");
    router_.emplace("r");
    server_.emplace("s");
    const std::string name = "n" + std::to_string(getpid() % 1000000);
    bool is_made = client_->is_made() && router_->is_made() && server_->is_made();
    for (const auto& [host, net] : {std::pair(&*client_, "1"), std::pair(&*server_, "2")}) {
      const std::string inner = name + "h" + net, outer = name + "r" + net, subnet = std::string("10.78.") + net;
      is_made = is_made &&
                run("ip link add " + inner + " netns " + host->name() + " type veth peer name " + outer + " netns " +
                    router_->name()) &&
                host->in("ip address add " + subnet + ".2/24 dev " + inner) &&
                host->in("ip link set " + inner + " up") &&
                router_->in("ip address add " + subnet + ".1/24 dev " + outer) &&
                router_->in("ip link set " + outer + " up") && host->in("ip route add default via " + subnet + ".1");
    }
    is_made = is_made && router_->in("sysctl -w net.ipv4.ip_forward=1");
    if (!is_made) GTEST_SKIP() << "this machine allows no network namespaces or no veth";
    if (!filter(*client_, "table inet try { chain c { ct state established accept; }; }; delete table inet try")) {
      GTEST_SKIP() << "this kernel has no nftables with connection tracking";
    }
    towards_server_ = name + "r2";
    inside_.emplace(client_->name());
  }
  void TearDown() override { inside_.reset(); }

  /// Loads nft rules in a namespace. False: the kernel does not accept them.
  static bool filter(const Namespace& where, const std::string& rules) {
    const std::string file = testing::TempDir() + "nat_test." + std::to_string(getpid()) + ".nft";
    std::ofstream(file) << rules << '\n';
    const bool is_taken = where.in("nft -f " + file);
    std::filesystem::remove(file);
    return is_taken;
  }
  /// The router hides the client behind its own address, and passes only answers to the client.
  void hide_client() {
    ASSERT_TRUE(filter(*router_,
                       "table ip hide {\n"
                       "  chain out { type nat hook postrouting priority srcnat;\n"
                       "    oifname " +
                           towards_server_ +
                           " meta l4proto udp masquerade to :20000-60000 fully-random\n"
                           "  }\n"
                           "  chain through { type filter hook forward priority filter;\n"
                           "    iifname " +
                           towards_server_ +
                           " ct state new drop\n"
                           "  }\n"
                           "}"));
  }
  /// True: the router knows a flow to the server's data port. Only `conntrack` can list flows.
  bool knows_data_flows() const {
    return router_->in("sh -c 'conntrack -L -p udp --orig-port-dst 31851 | grep -q udp'");
  }

  static Settings server_settings(const Namespace& where) {
    return Settings{{"transport", "udp"}, {"listen", kServerNexus}, {"bind", kServerData}}
        .set("netns", where.name())
        .set("liveness_ms", kLivenessMs);
  }
  static Settings client_settings() {
    return Settings{{"transport", "udp"}, {"listen", "tern://10.78.1.2:0"}}.set("liveness_ms", kLivenessMs);
  }
  static void expect_traffic_passes(Caller& caller, tern::Session session) {
    const size_t before = caller.calls().size();
    for (uint64_t id = 0; id < 100; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * id), 0}, sizeof(Order) + id * 150);
    }
    caller.send_order(session, kWork, {1000, 1 << 20, 0}, 1 << 20);
    ASSERT_TRUE(caller.finish());
    for (size_t i = before; i < caller.calls().size(); i++) {
      ASSERT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
    }
  }
  /// The error text of a session that does not open.
  static std::string why_not(Caller& caller, const std::string& uri) {
    const tern::Session session = caller.connect(uri, {.connect_timeout = std::chrono::milliseconds(400)});
    Call* call = caller.send_order(session, kWork, {1, 10, 0});
    EXPECT_EQ(caller.end_of(call), Code::kPeerUnreachable);
    return std::string(call->status.message());
  }
  /// Returns the nft block for this host in docs/network.md.
  static std::string rules_of(const std::string& host) {
    std::ifstream file(TERN_SOURCE_DIR "/docs/network.md");
    std::stringstream all;
    all << file.rdbuf();
    const std::string text = all.str(), begin = "```nft " + host + "\n";
    const size_t at = text.find(begin) + begin.size();
    return text.find(begin) == std::string::npos ? "" : text.substr(at, text.find("```", at) - at);
  }

  std::optional<Namespace> client_, router_, server_;
  std::string towards_server_;
  std::optional<Inside> inside_;
};

}  // namespace

TEST_F(Nat, an_open_path_uses_two_ports) {
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(caller.counters().sessions_paired, 0u);
}

TEST_F(Nat, filter_that_passes_only_answers_lets_calls_through) {
  ASSERT_TRUE(filter(*client_,
                     "table inet t { chain in { type filter hook input priority filter; policy drop;\n"
                     "  iifname lo accept\n ct state established,related accept\n }; }"));
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(caller.counters().sessions_paired, 1u);
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_F(Nat, calls_pass_a_nat) {
  hide_client();
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  expect_traffic_passes(caller, caller.open(server.uri()));
  EXPECT_EQ(caller.counters().sessions_paired, 1u);
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_F(Nat, calls_through_wildcard_addresses_pass_a_nat) {
  hide_client();
  Peer server(server_settings(*server_).with("listen", "tern://[::]:31850").with("bind", "[::]:31851"));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  Caller caller(client_settings().with("listen", "tern://[::]:0"));
  expect_traffic_passes(caller, caller.open(std::string(kServerNexus) + "/0"));
  EXPECT_EQ(caller.counters().sessions_paired, 1u);
}

TEST_F(Nat, two_clients_behind_one_address_are_served) {
  hide_client();
  Peer server(server_settings(*server_));
  Peer other(client_settings()
                 .with("netns", client_->name())
                 .with("server", server.uri())
                 .with("outstanding", 4)
                 .with("request_bytes", 5000)
                 .with("reply_bytes", 5000));
  Caller caller(client_settings());
  const tern::Session session = caller.open(server.uri());
  EXPECT_TRUE(wait_for([&] { return other.board().completed.load() > 0; }));
  expect_traffic_passes(caller, session);
  const uint64_t before = other.board().completed;
  EXPECT_TRUE(wait_for([&] { return other.board().completed.load() > before + 10; }));
  EXPECT_EQ(other.board().failed, 0u);
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_F(Nat, flow_forgotten_by_the_nat_ends_no_session) {
  if (!run("conntrack --version")) GTEST_SKIP() << "no conntrack command: install conntrack";
  hide_client();
  const std::string timeout = "net.netfilter.nf_conntrack_udp_timeout";
  ASSERT_TRUE(router_->in("sysctl -w " + timeout + "=1 " + timeout + "_stream=1"));
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  const tern::Session session = caller.open(server.uri());
  expect_traffic_passes(caller, session);
  ASSERT_TRUE(caller.run_until([&] { return !knows_data_flows(); }));
  expect_traffic_passes(caller, session);
  EXPECT_TRUE(wait_for([&] { return server.board().paths_followed.load() > 0; }));
  EXPECT_EQ(caller.counters().sessions_failed, 0u);
}

TEST_F(Nat, mapping_changed_under_load_fails_no_call) {
  if (!run("conntrack --version")) GTEST_SKIP() << "no conntrack command: install conntrack";
  hide_client();
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  const tern::Session session = caller.open(server.uri());
  uint64_t id = 0;
  for (int change = 1; change <= 4; change++) {
    for (int i = 0; i < 50; i++, id++) caller.send_order(session, kWork, {id, 20000, 0}, 20000);
    ASSERT_TRUE(caller.run_until([&] { return caller.ended() > id - 25; }));
    ASSERT_TRUE(router_->in("conntrack -D -p udp --orig-port-dst 31851"));
    ASSERT_TRUE(caller.finish());
    EXPECT_TRUE(wait_for([&] { return server.board().paths_followed.load() >= static_cast<uint64_t>(change); }));
  }
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (uint64_t i = 0; i < id; i++) EXPECT_EQ(server.board().handled_by_id[i], 1) << i;
}

TEST_F(Nat, mapping_changed_while_a_handler_runs_fails_no_call) {
  if (!run("conntrack --version")) GTEST_SKIP() << "no conntrack command: install conntrack";
  hide_client();
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  const tern::Session session = caller.open(server.uri());
  Call* call = caller.send_order(session, kHold, {1, 1000, 0});
  ASSERT_TRUE(caller.run_until([&] { return server.board().held.load() == 1; }));
  ASSERT_TRUE(router_->in("conntrack -D -p udp --orig-port-dst 31851"));
  server.board().release++;
  EXPECT_EQ(caller.end_of(call), Code::kOk) << call->status.message();
  EXPECT_EQ(server.board().handled, 2u);  // once when it arrived and once when it was answered
}

TEST_F(Nat, rules_of_the_document_let_calls_pass) {
  ASSERT_TRUE(filter(*server_, rules_of("server")));
  ASSERT_TRUE(filter(*client_, rules_of("client")));
  {
    Peer server(server_settings(*server_));
    Caller caller(client_settings());
    expect_traffic_passes(caller, caller.open(server.uri()));
    EXPECT_EQ(caller.counters().sessions_paired, 1u);
  }
  // The rules do filter: another data port is closed.
  Peer other(server_settings(*server_).with("bind", "10.78.2.2:31852"));
  Caller caller(client_settings());
  EXPECT_THAT(why_not(caller, other.uri()), HasSubstr("31852"));
}

TEST_F(Nat, a_filtered_data_port_is_named) {
  ASSERT_TRUE(filter(*server_,
                     "table inet t { chain in { type filter hook input priority filter;\n"
                     "  udp dport 31851 drop\n }; }"));
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  const std::string why = why_not(caller, server.uri());
  EXPECT_THAT(why, HasSubstr("packets to UDP port 31851 of the server, or its answers from there, are filtered"));
}

TEST_F(Nat, a_rejected_data_port_is_named) {
  ASSERT_TRUE(filter(*server_,
                     "table inet t { chain in { type filter hook input priority filter;\n"
                     "  udp dport 31851 reject\n }; }"));
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  EXPECT_THAT(why_not(caller, server.uri()), HasSubstr("must allow packets to UDP port 31851"));
}

TEST_F(Nat, an_output_filter_is_named) {
  ASSERT_TRUE(filter(*client_,
                     "table inet t { chain out { type filter hook output priority filter;\n"
                     "  udp dport 31851 drop\n }; }"));
  Peer server(server_settings(*server_));
  Caller caller(client_settings());
  EXPECT_THAT(why_not(caller, server.uri()), HasSubstr("a firewall of this host blocks packets"));
}

TEST_F(Nat, a_narrow_link_on_the_way_is_named) {
  Peer server(server_settings(*server_).with("datagram_bytes", 1400));
  Caller caller(client_settings().with("datagram_bytes", 1400));
  ASSERT_TRUE(router_->in("ip link set " + towards_server_ + " mtu 1300"));
  EXPECT_THAT(why_not(caller, server.uri()), HasSubstr("packets of 1400 bytes do not"));
}
