// Errors of a program that uses mlx5 wrongly or on an unsuitable machine: one sentence that names the cause and the
// remedy. Over the software provider, on the network of tests/cable.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>

#include <tern/transport/mlx5.h>

#include "software_verbs/control.h"
#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

/// Takes away this thread's right to send raw packets during its lifetime.
class WithoutRawPackets {
 public:
  WithoutRawPackets() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct fewer[2] = {before_[0], before_[1]};
    fewer[0].effective &= ~(1u << CAP_NET_RAW);
    EXPECT_EQ(syscall(SYS_capset, &header_, fewer), 0);
  }
  ~WithoutRawPackets() { EXPECT_EQ(syscall(SYS_capset, &header_, before_), 0); }
  WithoutRawPackets(const WithoutRawPackets&) = delete;
  WithoutRawPackets& operator=(const WithoutRawPackets&) = delete;

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

class Mlx5BadUse : public ::testing::Test {
 protected:
  void SetUp() override {
    if (software_verbs::control() == nullptr || std::getenv("TERN_PEER_NETNS") == nullptr) {
      GTEST_SKIP() << "run this by tests/on_cable of the build directory";
    }
    software_verbs::control()->reset();
    before_ = std::getenv("SOFTWARE_VERBS");
    auto made = Nexus::create("tern://127.0.0.1:0");
    ASSERT_TRUE(made.ok()) << made.status().message();
    nexus = std::move(*made);
  }
  void TearDown() override {
    if (!before_.empty()) setenv("SOFTWARE_VERBS", before_.c_str(), 1);
  }
  /// Adds settings to those of the provider.
  void set(const std::string& settings) const { setenv("SOFTWARE_VERBS", (before_ + "," + settings).c_str(), 1); }
  static void ip(const std::string& arguments) { ASSERT_EQ(std::system(("ip " + arguments).c_str()), 0) << arguments; }
  static Mlx5::Options bound_to(const char* bind) {
    Mlx5::Options options;
    options.bind = bind;
    return options;
  }

  /// Checks that creation is refused with one sentence that has all of these parts, and that no context is left.
  void expect_refused(std::initializer_list<const char*> parts, const Mlx5::Options& options = {},
                      Code code = Code::kUnavailable) {
    const uint64_t before = contexts();
    const auto made = Rpc<Mlx5>::create(*nexus, options, small_memory());
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), code);
    const std::string text(made.status().message());
    EXPECT_EQ(text.find("mlx5: "), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    EXPECT_EQ(contexts(), before);
  }
  static uint64_t contexts() {
    software_verbs::Counters counters;
    software_verbs::control()->read_counters(&counters);
    return counters.contexts;
  }

  std::unique_ptr<Nexus> nexus;

 private:
  std::string before_;
};

TEST_F(Mlx5BadUse, no_device) {
  setenv("SOFTWARE_VERBS", "devices=0", 1);
  expect_refused({"this machine has no RDMA device", "Mellanox NIC", "modprobe mlx5_ib"});
}

TEST_F(Mlx5BadUse, devices_of_other_makers_only) {
  setenv("SOFTWARE_VERBS", "devices=2", 1);
  expect_refused({"soft0 is not an mlx5 device", "use such a device, or another transport"});
}

TEST_F(Mlx5BadUse, device_of_another_maker) {
  Mlx5::Options options;
  options.device = "soft1";
  expect_refused({"soft1 is not an mlx5 device", "use such a device, or another transport"}, options);
}

TEST_F(Mlx5BadUse, device_of_another_name) {
  Mlx5::Options options;
  options.device = "mlx5_7";
  expect_refused({"no RDMA device mlx5_7", "ibv_devices"}, options);
}

TEST_F(Mlx5BadUse, no_permission_for_raw_packets) {
  const WithoutRawPackets restricted;
  expect_refused({"may not send raw packets", "CAP_NET_RAW", "setcap cap_net_raw+ep"});
}

TEST_F(Mlx5BadUse, no_permission_for_the_device) {
  set("open_error=13");
  expect_refused({"mlx5_0 cannot be opened (Permission denied)", "/dev/infiniband/uverbs"});
}

TEST_F(Mlx5BadUse, device_without_steering) {
  set("flows=0");
  expect_refused({"mlx5_0 refused to steer frames of UDP port ", "flow steering"});
}

TEST_F(Mlx5BadUse, device_without_strided_queues) {
  set("striding=0");
  expect_refused({"mlx5_0 has no strided receive queues", "use a ConnectX"});
}

TEST_F(Mlx5BadUse, two_endpoints_on_one_port) {
  const auto first = Rpc<Mlx5>::create(*nexus, bound_to("10.77.0.1:4000"), small_memory());
  ASSERT_TRUE(first.ok()) << first.status().message();
  auto other = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(other.ok());
  nexus = std::move(*other);
  expect_refused({"10.77.0.1:4000 is taken", "Mlx5::Options::bind"}, bound_to("10.77.0.1:4000"));
}

TEST_F(Mlx5BadUse, port_of_a_socket_of_the_kernel) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in taken{AF_INET, htons(4001), {htonl(INADDR_ANY)}, {}};
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&taken), sizeof(taken)), 0);
  expect_refused({"10.77.0.1:4001 is taken", "Mlx5::Options::bind"}, bound_to("10.77.0.1:4001"));
  close(fd);
}

TEST_F(Mlx5BadUse, address_that_the_interface_does_not_have) {
  expect_refused(
      {"tern0 of mlx5_0 does not have the address 10.77.0.5", "Mlx5::Options::bind", "ip addr show dev tern0"},
      bound_to("10.77.0.5"));
  expect_refused({"does not have the address 127.0.0.1"}, bound_to("127.0.0.1:0"));
}

TEST_F(Mlx5BadUse, interface_with_a_link_local_address_only) {
  ip("address flush dev tern0");
  ip("address add fe80::1/64 dev tern0 nodad");
  expect_refused({"tern0 of mlx5_0 has no global address", "ip addr add"});
  ip("address add 10.77.0.1/24 dev tern0");
  ip("address add fd77::1/64 dev tern0 nodad");
}

TEST_F(Mlx5BadUse, mtu_that_no_stride_holds) {
  ip("link set tern0 mtu 9000");
  expect_refused({"MTU of tern0 is 9000", "at most 8170", "ip link set tern0 mtu 8170"});
  ip("link set tern0 mtu 1500");
}

TEST_F(Mlx5BadUse, datagrams_that_the_interface_does_not_take) {
  Mlx5::Options options;
  options.datagram_bytes = 2000;
  expect_refused({"2000 bytes do not fit tern0", "MTU is 1500", "536 to 1472", "datagram_bytes"}, options);
}

TEST_F(Mlx5BadUse, vlan_that_does_not_exist) {
  Mlx5::Options options;
  options.vlan = 7;
  expect_refused({"tern0 has no VLAN 7", "type vlan id 7"}, options);
}

TEST_F(Mlx5BadUse, options_out_of_range) {
  Mlx5::Options options;
  options.receive_buffers = 1000;
  expect_refused({"receive_buffers must be a power of two, 1024 to 65536"}, options, Code::kMisuse);
  options = {};
  options.datagram_bytes = 500;
  expect_refused({"datagram_bytes must be 536 to 8142"}, options, Code::kMisuse);
  expect_refused({"Mlx5::Options::bind is not HOST or HOST:PORT"}, bound_to("nowhere"), Code::kMisuse);
}

// ---- Two ends ----

class Mlx5Pair : public Mlx5BadUse {};
class Mlx5Down : public Mlx5BadUse {};

TEST_F(Mlx5Pair, datagram_sizes_that_differ_meet_at_the_smaller_one) {
  Mlx5::Options small;
  small.datagram_bytes = 600;
  World<Mlx5> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, {}, small));
  const Session session = world.open();
  const std::string text(100'000, 'x');  // many packets in each direction
  EXPECT_EQ(world.ask(session, kEcho, text, text.size()).response, text);
}

TEST_F(Mlx5Pair, addresses_of_two_families_are_named) {
  World<Mlx5> world;
  ASSERT_NO_FATAL_FAILURE(world.make({}, {}, {}, bound_to("[fd77::1]"), bound_to("10.77.0.1")));
  auto session = world.client->create_session(world.server_nexus->uri());
  ASSERT_TRUE(session.ok());
  Outcome outcome;
  EXPECT_TRUE(world.call(*session, kEcho, "hello", outcome).ok());
  world.run_until([&] { return outcome.runs != 0; });
  const std::string text(outcome.status.message());
  EXPECT_NE(text.find("data-path address"), std::string::npos) << text;
}

// Must be the last case, because the interface gets its carrier back with a delay.
TEST_F(Mlx5Down, interface_that_is_down) {
  ip("link set tern0 down");
  expect_refused({"tern0 of mlx5_0 is down", "ip link set tern0 up"});
}

}  // namespace
}  // namespace tern::rpc_test
