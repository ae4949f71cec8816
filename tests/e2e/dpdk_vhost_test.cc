// Two processes over DPDK's net_vhost and net_virtio_user, a wire of shared memory without an interface in the kernel.
// Each end has an address of its own and answers ARP itself. Each end connects again after the other one was killed.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"
#include "huge_pages.h"
#include "own_folder.h"
#include "own_loopback.h"

using namespace e2e;
using tern::Code;

namespace {

constexpr uint32_t kLarge = 8 << 20;

class DpdkVhost : public testing::TestWithParam<const char*> {
 protected:
  static constexpr size_t kPagesOfAProcess = 32;

  void SetUp() override {
    constexpr size_t kWanted = 2 * kPagesOfAProcess;
    if (!has_hugepages()) return;
    // Another test may have them for a while.
    if (tern::test::read_huge_pages("nr_hugepages") < kWanted ||
        !wait_for([] { return tern::test::unused_huge_pages() >= kWanted; })) {
      GTEST_SKIP() << "less than " << kWanted << " free hugepages: echo 128 > /proc/sys/vm/nr_hugepages";
    }
  }
  static bool has_hugepages() { return std::string_view(GetParam()) == "hugepages"; }
  Settings vhost() const { return settings("net_vhost0;client=1;iface=", "10.78.0.1"); }
  /// The end that makes the socket and starts when the other end has connected. It first removes the socket file of a
  /// killed predecessor, because it could not make the socket beside that.
  Settings virtio() const {
    std::filesystem::remove(socket());
    return settings("net_virtio_user0;server=1;path=", "10.78.0.2");
  }
  static void expect_traffic_passes(Caller& caller, tern::Session session) {
    const size_t before = caller.calls().size();
    for (uint64_t id = 0; id < 200; id++) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * id), 0}, sizeof(Order) + id * 150);
    }
    caller.send_order(session, kWork, {200, kLarge, 0});
    caller.send_order(session, kWork, {201, 8, 0}, kLarge);
    ASSERT_TRUE(caller.finish()) << caller.ended() << " of " << caller.calls().size() << " have ended";
    for (size_t i = before; i < caller.calls().size(); i++) {
      ASSERT_TRUE(Caller::is_right(*caller.calls()[i])) << caller.calls()[i]->status.message();
      caller.calls()[i]->forget();
    }
  }

  /// The server at the other end is killed twice while the caller stays.
  static void expect_replaceable(Caller& caller, std::unique_ptr<Peer> server, const std::function<Settings()>& again) {
    ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
    const std::string listen = server->listen_uri();
    for (int round = 0; round < 2; round++) {
      const tern::Session session = caller.open(server->uri());
      expect_traffic_passes(caller, session);
      for (uint64_t id = 0; id < 20; id++) caller.send_order(session, kWork, {id, kLarge, 0}, 100'000);
      ASSERT_TRUE(caller.run_until([&] { return server->board().handled_by_id[0] >= 2; }));
      server->kill();
      ASSERT_TRUE(caller.finish());
      EXPECT_EQ(caller.calls().back()->code(), Code::kPeerUnreachable);
      server = std::make_unique<Peer>(again().with("listen", listen));
      ASSERT_TRUE(server->is_ready()) << server->board().refused_text;
    }
    expect_traffic_passes(caller, caller.open(server->uri()));
    EXPECT_EQ(server->board().damaged, 0u);
  }

 private:
  std::string socket() const { return folder_.file("socket"); }
  Settings settings(const std::string& device, const std::string& address) const {
    // One file for all hugepages: vhost's side maps eight files at most.
    const char* eal = has_hugepages() ? "--in-memory --single-file-segments --no-pci --no-telemetry"
                                      : "--no-huge -m 256 --no-shconf --no-pci --no-telemetry";
    // A starting EAL and other tests may keep an end from the CPU for longer than the 500 ms of other tests.
    return {{"transport", "dpdk"},
            {"listen", "tern://" + tern::test::own_loopback() + ":0"},
            {"liveness_ms", "2000"},
            {"netns", "/proc/" + std::to_string(getpid()) + "/ns/net"},
            {"device", device + socket()},
            {"address", address + "/24"},
            {"eal", eal}};
  }

  const tern::test::OwnFolder folder_{"/tmp/tern-vhost"};
};
INSTANTIATE_TEST_SUITE_P(With, DpdkVhost, testing::Values("hugepages", "no_huge"),
                         [](const auto& with) { return std::string(with.param); });

}  // namespace

TEST_P(DpdkVhost, many_requests_pass) {
  Peer one(vhost());
  ASSERT_TRUE(one.is_ready()) << one.board().refused_text;
  Peer other(virtio().with("server", one.uri()).with("outstanding", 8));
  ASSERT_TRUE(other.is_ready()) << other.board().refused_text;
  EXPECT_TRUE(wait_for([&] { return other.board().completed >= 10'000; }));
  EXPECT_EQ(other.board().failed, 0u);
  EXPECT_EQ(one.board().damaged + other.board().damaged, 0u);
  other.kill();
}

TEST_P(DpdkVhost, virtio_end_killed_and_restarted_is_reached_again) {
  Caller caller(vhost());
  expect_replaceable(caller, std::make_unique<Peer>(virtio()), [this] { return virtio(); });
}

TEST_P(DpdkVhost, vhost_end_killed_and_restarted_is_reached_again) {
  auto server = std::make_unique<Peer>(vhost());
  Caller caller(virtio());
  expect_replaceable(caller, std::move(server), [this] { return vhost(); });
}

class DpdkVhostWaiting : public DpdkVhost {};
INSTANTIATE_TEST_SUITE_P(With, DpdkVhostWaiting, testing::Values("hugepages", "no_huge"),
                         [](const auto& with) { return std::string(with.param); });

/// One call at a time, with pauses long enough for both ends to fall asleep in between.
TEST_P(DpdkVhostWaiting, ends_that_sleep_are_woken_by_frames) {
  Caller caller(vhost().with("wait", "adaptive"));
  Peer server(virtio().with("wait", "block"));
  ASSERT_TRUE(server.is_ready()) << server.board().refused_text;
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 100; id++) {
    Call* call = caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * 100), id % 3 == 0 ? 300u : 0u},
                                   sizeof(Order) + id * 77);
    ASSERT_EQ(caller.end_of(call), Code::kOk) << call->status.message();
    ASSERT_TRUE(Caller::is_right(*call));
    if (id % 10 == 0) caller.run_for(std::chrono::milliseconds(2));
  }
}
