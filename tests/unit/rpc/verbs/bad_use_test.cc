// Errors of a program that uses verbs wrongly or on an unsuitable machine: one sentence that names the cause and the
// remedy. Over the software verbs provider.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdlib>
#include <initializer_list>
#include <string>

#include <tern/transport/verbs.h>

#include "software_verbs/provider_fixture.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

class VerbsBadUse : public software_verbs::ProviderTest {
 protected:
  void SetUp() override {
    ProviderTest::SetUp();
    if (IsSkipped()) return;
    auto made = Nexus::create("tern://127.0.0.1:0");
    ASSERT_TRUE(made.ok()) << made.status().message();
    nexus = std::move(*made);
  }

  /// Checks that creation is refused with a text that has all of these parts, and that no context is left.
  void expect_refused(std::initializer_list<const char*> parts, const Verbs::Options& options = {},
                      Code code = Code::kUnavailable) {
    const auto made = Rpc<Verbs>::create(*nexus, options, small_memory());
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), code);
    const std::string text(made.status().message());
    EXPECT_EQ(text.find("verbs: "), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    EXPECT_EQ(counters().contexts, 0u);
  }

  std::unique_ptr<Nexus> nexus;
};

TEST_F(VerbsBadUse, no_device) {
  set("devices=0");
  expect_refused({"this machine has no RDMA device", "load the driver", "rdma link add rxe0"});
  set("devices=-1");
  expect_refused({"this machine has no RDMA device"});
}

TEST_F(VerbsBadUse, device_of_another_name) {
  Verbs::Options options;
  options.device = "mlx5_7";
  expect_refused({"no RDMA device mlx5_7", "ibv_devices"}, options);
}

TEST_F(VerbsBadUse, no_active_port) {
  set("port=down");
  expect_refused({"port 1 of soft", "is not active (", "check the cable"});
}

TEST_F(VerbsBadUse, port_that_does_not_exist) {
  Verbs::Options options;
  options.port = 3;
  expect_refused({"no port 3", "1 to 1"}, options);
}

TEST_F(VerbsBadUse, device_without_unreliable_datagrams) {
  set("ud=0");
  expect_refused({"soft0 has no unreliable datagrams", "use another device"});
}

TEST_F(VerbsBadUse, no_permission) {
  set("open_error=13");
  expect_refused({"cannot be opened (Permission denied)", "/dev/infiniband/uverbs"});
}

TEST_F(VerbsBadUse, limit_of_locked_memory) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small{8u << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  set("memlock=8388608");
  expect_refused({"cannot be registered", "may lock 8192 KB (RLIMIT_MEMLOCK)", "ulimit -l unlimited"});
  set("memlock=10485760");  // enough for the queues, but not for message memory
  expect_refused({"cannot be registered", "RLIMIT_MEMLOCK"});
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

TEST_F(VerbsBadUse, gid_index_that_does_not_exist) {
  Verbs::Options options;
  options.device = "soft0";
  options.gid_index = 6;
  expect_refused({"port 1 of soft0 has no GID 6", "ibv_devinfo -v"}, options);
}

TEST_F(VerbsBadUse, partition_index_that_does_not_exist) {
  set("link=infiniband");
  Verbs::Options options;
  options.device = "soft0";
  options.partition_index = 9;
  expect_refused({"port 1 of soft0 has no P_Key at index 9", "/sys/class/infiniband/soft0/ports/1/pkeys"}, options);
}

TEST_F(VerbsBadUse, packets_that_the_port_does_not_take) {
  set("mtu=1024");
  Verbs::Options options;
  options.packet_bytes = 2048;
  expect_refused({"packets of 2048 bytes", "MTU is 1024", "packet_bytes"}, options);
  set("mtu=512");
  expect_refused({"MTU is 512", "takes 536 bytes"});
}

TEST_F(VerbsBadUse, device_with_short_queues) {
  set("max_qp_wr=1024");
  expect_refused({"soft0 did not create a queue pair", "receive_buffers"});
  set("max_cqe=1024");
  expect_refused({"soft0 did not create a completion queue", "receive_buffers"});
  set("max_qp_wr=1024,max_cqe=1024");
  Verbs::Options options;
  options.receive_buffers = 512;
  EXPECT_TRUE(Rpc<Verbs>::create(*nexus, options, small_memory()).ok()) << "as the text says";
}

TEST_F(VerbsBadUse, options_out_of_range) {
  Verbs::Options options;
  options.receive_buffers = 1000;
  expect_refused({"receive_buffers must be a power of two, 64 to 16384"}, options, Code::kMisuse);
}

// ---- Two ends ----

/// Returns the status that refuses a session.
Status refusal(World<Verbs>& world) {
  auto session = world.client->create_session(world.server_nexus->uri());
  EXPECT_TRUE(session.ok());
  Outcome outcome;
  EXPECT_TRUE(world.call(*session, kEcho, "hello", outcome).ok());
  world.run_until([&] { return outcome.runs != 0; });
  return outcome.status;
}

class VerbsPair : public VerbsBadUse {};

TEST_F(VerbsPair, mtus_that_differ__meet_at_the_smaller_one) {
  for (const char* settings : {"soft0.mtu=1024", "soft1.mtu=2048"}) {
    set(settings);
    Verbs::Options first, second;
    first.device = "soft0";
    second.device = "soft1";
    World<Verbs> world;
    ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, first, second));
    const Session session = world.open();
    const std::string text(100'000, 'x');  // many packets in each direction
    EXPECT_EQ(world.ask(session, kEcho, text, text.size()).response, text);
    EXPECT_EQ(counters().oversized_sends, 0u);
  }
}

TEST_F(VerbsPair, path_with_a_smaller_mtu_than_both_ports__is_named) {
  set("path_mtu=2048");
  {
    World<Verbs> world;
    ASSERT_NO_FATAL_FAILURE(world.make());
    const std::string text(refusal(world).message());
    for (const char* part : {"short packets pass", "4096 bytes do not", "MTU", "Verbs::Options::packet_bytes"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
  Verbs::Options options;  // the remedy of the text, on either side
  options.packet_bytes = 2048;
  World<Verbs> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, {}, options));
  const std::string text(20'000, 'x');
  EXPECT_EQ(world.ask(world.open(), kEcho, text, text.size()).response, text);
}

TEST_F(VerbsPair, peer_on_another_partition) {
  set("link=infiniband,pkeys=ffff:8001");
  Verbs::Options first, second;
  first.partition_index = 0;
  second.partition_index = 1;
  World<Verbs> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, first, second));
  EXPECT_EQ(refusal(world).message(),
            "the server's endpoint is in another partition, or neither side is a full member of the partition: choose "
            "Verbs::Options::partition_index so that both are in one partition, and one of them a full member");
}

TEST_F(VerbsPair, peer_on_another_fabric) {
  Verbs::Options first, second;
  first.gid_index = 3;
  second.gid_index = 2;
  World<Verbs> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, first, second));
  EXPECT_EQ(refusal(world).message(),
            "the server's endpoint is on another fabric (InfiniBand, RoCE v1 and RoCE v2 are three): choose "
            "Verbs::Options::device and gid_index so that both have the same");
}

TEST_F(VerbsPair, peer_in_another_subnet) {
  set("link=infiniband,soft1.subnet=0xfec0000000000007");
  Verbs::Options first, second;
  first.device = "soft0";
  second.device = "soft1";
  World<Verbs> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, first, second));
  EXPECT_EQ(refusal(world).message(),
            "the server's endpoint is in another InfiniBand subnet, which verbs cannot reach");
}

TEST_F(VerbsPair, peer_without_a_neighbour) {
  World<Verbs> world;
  ASSERT_NO_FATAL_FAILURE(world.make());
  ASSERT_TRUE(software_verbs::provider().fail_calls("ibv_create_ah", 0, UINT64_MAX, ETIMEDOUT));
  const Status status = refusal(world);
  EXPECT_EQ(status.code(), Code::kPeerUnreachable);
  EXPECT_NE(std::string(status.message()).find("the peer's data-path address cannot be reached"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace tern::rpc_test
