// Traffic between the two devices of the VM (tests/vm/run) over a cable with losses and cuts, and peers that die. The
// environment puts the tests' own endpoints at one end and the peers at the other.

#include <fstream>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;

namespace {

constexpr uint32_t kLarge = 8 << 20;

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

/// The bytes sent through an interface.
uint64_t sent_bytes(const std::string& interface) {
  uint64_t bytes = 0;
  std::ifstream("/sys/class/net/" + interface + "/statistics/tx_bytes") >> bytes;
  return bytes;
}

/// Applies netem to every packet of the cable during its lifetime.
class Impaired {
 public:
  explicit Impaired(const std::string& netem) {
    for (const char* end : kEnds) {
      EXPECT_TRUE(run(std::string("tc qdisc add dev ") + end + " root netem limit 100000 " + netem));
    }
  }
  ~Impaired() {
    for (const char* end : kEnds) EXPECT_TRUE(run(std::string("tc qdisc del dev ") + end + " root"));
  }
  Impaired(const Impaired&) = delete;
  Impaired& operator=(const Impaired&) = delete;

 private:
  static constexpr const char* kEnds[] = {"veth0", "veth1"};
};

bool is_peers_death(Code code) { return code == Code::kPeerUnreachable || code == Code::kSessionReset; }

class Wire : public OverTransports {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::getenv("TERN_E2E_CALLER") != nullptr) << "these tests run in the VM: tests/vm/run";
  }
  /// Makes calls of many sizes, and of 8 MB in each direction.
  static void expect_traffic_passes(Caller& caller, Peer& server, tern::Session session) {
    const size_t before = caller.calls().size();
    for (uint64_t id = 0; id < 200; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * id), 0}, sizeof(Order) + id * 150);
    }
    caller.send_order(session, kWork, {200, kLarge, 0});
    caller.send_order(session, kWork, {201, 8, 0}, kLarge);
    ASSERT_TRUE(caller.finish()) << caller.ended() << " of " << caller.calls().size() << " have ended";
    for (size_t i = before; i < caller.calls().size(); i++) {
      EXPECT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
      caller.calls()[i]->forget();
    }
    for (uint64_t id = 0; id <= 201; id++) EXPECT_EQ(server.board().handled_by_id[id], 1) << id;
    EXPECT_EQ(server.board().damaged, 0u);
  }
};
E2E_OVER_TRANSPORTS(Wire);

}  // namespace

TEST_P(Wire, messages_cross_the_cable_and_endpoints_may_block) {
  const Settings blocking = settings().with("wait", "block");
  Peer server(blocking);
  Caller caller(blocking);
  const uint64_t up = sent_bytes("veth0"), down = sent_bytes("veth1");
  expect_traffic_passes(caller, server, caller.open(server.uri()));
  EXPECT_GE(sent_bytes("veth0"), up + kLarge);
  EXPECT_GE(sent_bytes("veth1"), down + kLarge);
}

TEST_P(Wire, one_percent_of_all_packets_lost) {
  const Impaired lossy("loss 1%");
  Peer server(settings());
  Caller caller(settings());
  expect_traffic_passes(caller, server, caller.open(server.uri()));
  EXPECT_GT(caller.counters().retransmissions + server.board().retransmissions, 0u) << "no packet was lost";
}

TEST_P(Wire, packets_out_of_order) {
  const Impaired disordered("delay 2ms reorder 90%");
  Peer server(settings());
  Caller caller(settings());
  expect_traffic_passes(caller, server, caller.open(server.uri()));
}

TEST_P(Wire, server_killed_amid_large_messages_and_restarted) {
  auto server = std::make_unique<Peer>(settings());
  const std::string listen = server->listen_uri(), uri = server->uri();
  Caller caller(settings());
  int died = 0;
  for (uint64_t round = 0; round < 4; round++) {
    const tern::Session session = caller.open(uri);
    std::vector<Call*> calls;
    for (uint64_t id = 0; id < 6; id++) {
      calls.push_back(id % 2 == 0 ? caller.send_order(session, kWork, {id, 8, 0}, kLarge)
                                  : caller.send_order(session, kWork, {id, kLarge, 0}));
    }
    // The rounds differ in the number of bytes sent before the kill.
    ASSERT_TRUE(caller.run_until([&] { return server->board().packets_received >= 10 + 100 * round; }));
    server->kill();
    server = std::make_unique<Peer>(settings().with("listen", listen));
    ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
    ASSERT_TRUE(caller.finish());
    for (Call* call : calls) {
      EXPECT_TRUE(Caller::is_right(*call) || is_peers_death(call->code())) << call->status.message();
      EXPECT_TRUE(is_filled(call->request.bytes().subspan(sizeof(Order)), call->order_id));
      if (!call->status.ok()) died++;
      call->forget();
    }
    EXPECT_EQ(server->board().handled, 0u) << "a request of the old session has reached the new server";
  }
  EXPECT_GT(died, 0) << "no message was under way when its server died";
  expect_traffic_passes(caller, *server, caller.open(uri));
}

TEST_P(Wire, client_killed_amid_large_messages_and_restarted) {
  Peer server(settings());
  const Settings busy = settings().with("server", server.uri()).with("outstanding", 4);
  const Settings loads[] = {busy.with("request_bytes", kLarge), busy.with("reply_bytes", kLarge)};
  for (const Settings& load : loads) {
    Peer client(load);
    ASSERT_TRUE(wait_for([&] { return client.board().completed >= 2; }));
    EXPECT_EQ(client.board().damaged, 0u);
    client.kill();
  }
  EXPECT_TRUE(wait_for([&] { return server.board().sessions_failed == std::size(loads); }));
  EXPECT_EQ(server.board().damaged, 0u);
  Caller caller(settings());
  EXPECT_EQ(caller.end_of(caller.send_order(caller.open(server.uri()), kWork, {1, kLarge, 0})), Code::kOk);
}

/// Both endpoints belong to this process. Each has a device and a thread, and each is the other's client.
TEST_P(Wire, two_endpoints_of_one_process) {
  auto nexus = create_nexus();
  std::atomic<int> ready{0}, finished{0};
  auto run = [&](uint16_t own_id) {
    Caller caller(*nexus, settings().with("device", own_id == 0 ? "rxe0" : "rxe1"), own_id);
    auto echo = [](tern::Request request) {
      auto space = request.response(request.bytes().size());
      ASSERT_TRUE(space.ok());
      std::memcpy(space->data(), request.bytes().data(), space->size());
      request.respond();
    };
    ASSERT_TRUE(caller.endpoint().on_request(kEcho, echo, {.max_request_bytes = kLarge}).ok());
    ready++;
    ASSERT_TRUE(caller.run_until([&] { return ready == 2; }));
    const tern::Session session = caller.open(nexus->uri() + "/" + std::to_string(1 - own_id));
    for (uint64_t id = 0; id < 100; id++) caller.send_pattern(session, kEcho, id * id, id);
    caller.send_pattern(session, kEcho, kLarge, 100);
    EXPECT_TRUE(caller.finish());
    for (uint64_t id = 0; id <= 100; id++) {
      EXPECT_TRUE(caller.calls()[id]->is_ok() && is_filled(caller.calls()[id]->response.bytes(), id)) << id;
    }
    finished++;
    EXPECT_TRUE(caller.run_until([&] { return finished == 2; }));
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST_P(Wire, cut_shorter_than_the_liveness_timeout_and_longer) {
  const Settings patient = settings().with("liveness_ms", 2000);
  Peer server(patient);
  Caller caller(patient);
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 300; id < 350; id++) caller.send_order(session, kWork, {id, 20000, 0}, 20000);
  {
    const Impaired cut("loss 100%");
    caller.run_for(std::chrono::milliseconds(200));
    EXPECT_LT(caller.ended(), 50u);
  }
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
  {
    const Impaired cut("loss 100%");
    Call* lost = caller.send_order(session, kWork, {400, 20000, 0}, 20000);
    EXPECT_EQ(caller.end_of(lost), Code::kPeerUnreachable) << lost->status.message();
  }
  expect_traffic_passes(caller, server, caller.open(server.uri()));
}
