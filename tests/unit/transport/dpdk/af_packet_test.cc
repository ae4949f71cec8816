// DPDK's af_packet over an interface of the kernel: the device's settings reach the interface. Needs root and iproute2.
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "neighbours/interface.h"
#include "shell.h"
#include "unit/transport/dpdk/port_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

/// The process has its own network namespace, with the cable tern0 to tern1.
class DpdkAfPacket : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (geteuid() != 0) {
      missing_ = "network namespaces need root";
    } else if (!test::run("ip -V")) {
      missing_ = "no ip command: install iproute2";
    } else if (unshare(CLONE_NEWNET) != 0) {
      missing_ = "this kernel makes no network namespaces";
    }
  }
  void SetUp() override {
    if (missing_ != nullptr) GTEST_SKIP() << missing_;
    ASSERT_TRUE(test::run("ip link add tern0 mtu 1000 type veth peer name tern1 mtu 1000"));
    ASSERT_TRUE(test::run("ip address add 10.77.0.1/24 dev tern0 && ip link set tern0 up && ip link set tern1 up"));
  }
  void TearDown() override {
    if (missing_ == nullptr) (void)test::run("ip link del tern0");
  }

  static DpdkChoice choice(const char* more = "") {
    DpdkChoice choice;
    choice.device = std::string("net_af_packet0;iface=tern0") + more;
    return choice;
  }
  static uint32_t mtu() {
    const auto interface = neighbours::interface_by_name("tern0");
    EXPECT_TRUE(interface.ok()) << interface.status().message();
    return interface.ok() ? interface->mtu_bytes : 0;
  }

 private:
  static inline const char* missing_ = nullptr;
};

TEST_F(DpdkAfPacket, wished_mtu__becomes_the_interface_s) {
  {
    const auto port = open_port(choice());
    ASSERT_NE(port, nullptr);
    EXPECT_EQ(mtu(), 1000u);
  }
  DpdkChoice wish = choice();
  wish.mtu_bytes = 1400;
  const auto port = open_port(wish);
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->facts().mtu_bytes, 1400u);
  EXPECT_EQ(mtu(), 1400u);
}

TEST_F(DpdkAfPacket, queue__is_as_long_as_the_driver_s_ring) {
  const auto frames_of = [](const char* more) {
    const auto port = open_port(choice(more));
    return port == nullptr ? 0 : port->facts().receive_descriptors;
  };
  EXPECT_EQ(frames_of(""), 512);
  EXPECT_EQ(frames_of(";framecnt=1024"), 1024);
}

}  // namespace
}  // namespace tern::transport::dpdk_test
