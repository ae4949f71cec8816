// A network namespace with a cable for DPDK's af_packet, in tests. Needs root and iproute2.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "neighbours/interface.h"
#include "shell.h"

namespace tern::transport::dpdk_test {

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

  static neighbours::Interface interface() {
    const auto tern0 = neighbours::interface_by_name("tern0");
    EXPECT_TRUE(tern0.ok()) << tern0.status().message();
    return tern0.ok() ? *tern0 : neighbours::Interface{};
  }

 private:
  static inline const char* missing_ = nullptr;
};

}  // namespace tern::transport::dpdk_test
