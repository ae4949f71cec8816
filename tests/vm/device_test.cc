// The verbs transport's errors about unusable devices, and the faults that it survives, on the devices of the VM
// (tests/vm/run).

#include <gmock/gmock.h>

#include <initializer_list>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;
using testing::HasSubstr;

namespace {

constexpr uint32_t kLarge = 8 << 20;
const Settings kVerbs = {{"transport", "verbs"}};

void must_run(const std::string& command) { EXPECT_EQ(std::system(command.c_str()), 0) << command; }

/// Sets veth1 down during its lifetime, which takes the carrier from both ports.
class NoCarrier {
 public:
  NoCarrier() { must_run("ip link set veth1 down"); }
  ~NoCarrier() {
    must_run("ip link set veth1 up");
    must_run("ip neighbour replace 10.77.0.1 lladdr $(cat /sys/class/net/veth0/address) dev veth1 nud permanent");
    must_run("ip route replace 10.77.0.1 dev veth1 src 10.77.0.2 table 102");
  }
  NoCarrier(const NoCarrier&) = delete;
  NoCarrier& operator=(const NoCarrier&) = delete;
};

void expect_refused(const Settings& settings, std::initializer_list<const char*> words) {
  Peer peer(settings);
  ASSERT_EQ(peer.board().state, Board::kRefused);
  EXPECT_EQ(peer.board().refused_code, static_cast<uint32_t>(Code::kUnavailable));
  for (const char* word : words) EXPECT_THAT(peer.board().refused_text, HasSubstr(word));
}

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::getenv("TERN_E2E_CALLER") != nullptr) << "these tests run in the VM: tests/vm/run";
  }
};

}  // namespace

TEST_F(Devices, missing_device_is_named) {
  expect_refused(kVerbs.with("device", "rxe7"), {"rxe7", "ibv_devices"});
  expect_refused(kVerbs.with("device", "rxe1").with("port", 2), {"rxe1", "port 2"});
  expect_refused(kVerbs.with("device", "rxe1").with("gid_index", 200), {"rxe1", "GID 200"});
  expect_refused(kVerbs.with("device", "rxe1").with("partition_index", 200), {"rxe1", "P_Key", "200"});
}

/// Without a name the endpoint takes the device whose address the Nexus listens at.
TEST_F(Devices, listening_address_chooses_the_device) {
  for (const auto& [own, other] : {std::pair("10.77.0.1", "10.77.0.2"), std::pair("10.77.0.2", "10.77.0.1")}) {
    const Settings any = kVerbs.with("device", "");
    Peer server(any.with("listen", std::string("tern://") + other + ":0"));
    Caller caller(any.with("listen", std::string("tern://") + own + ":0"));
    const char* interface = own[8] == '1' ? "veth0" : "veth1";
    const auto sent_bytes = [&] {
      uint64_t bytes = 0;
      std::ifstream(std::string("/sys/class/net/") + interface + "/statistics/tx_bytes") >> bytes;
      return bytes;
    };
    const uint64_t before = sent_bytes();
    EXPECT_EQ(caller.end_of(caller.send_order(caller.open(server.uri()), kWork, {1, 8, 0}, kLarge)), Code::kOk);
    EXPECT_GE(sent_bytes(), before + kLarge);
  }
}

TEST_F(Devices, peers_use_the_smaller_of_two_mtus) {
  must_run("ip link set veth1 mtu 1500");
  {
    Peer server(kVerbs);
    Caller caller(kVerbs);
    const tern::Session session = caller.open(server.uri());
    for (uint64_t id = 0; id < 4; id++) caller.send_order(session, kWork, {id, kLarge / 4, 0}, kLarge / 4);
    EXPECT_TRUE(caller.finish());
    for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
    EXPECT_GE(server.board().packets_received, 4u * (kLarge / 4) / 1024);
  }
  must_run("ip link set veth1 mtu 4200");
}

TEST_F(Devices, port_that_is_down_refuses_endpoints_and_is_survived) {
  const Settings patient = kVerbs.with("liveness_ms", 20'000);
  Peer server(patient);
  Caller caller(patient);
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 50; id++) caller.send_order(session, kWork, {id, 20000, 0}, 20000);
  {
    const NoCarrier down;
    caller.run_for(std::chrono::milliseconds(200));
    expect_refused(kVerbs.with("device", "rxe1"), {"rxe1", "not active"});
    EXPECT_LT(caller.ended(), 50u);
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (uint64_t id = 0; id < 50; id++) EXPECT_EQ(server.board().handled_by_id[id], 1) << id;
}
