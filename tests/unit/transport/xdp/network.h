// A veth pair with several queues in a network namespace without a name, and AF_XDP sockets without a reader. Needs
// root and iproute2. Test code.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_xdp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "neighbours/interface.h"
#include "shell.h"

namespace tern::test {

/// A namespace for this thread, which ends with the thread and its children. xdp0 and xdp1 are the ends of a cable.
/// xdp0 has 10.0.0.1/24.
class XdpNetwork {
 public:
  static constexpr uint32_t kQueues = 4;

  /// A text about what this machine lacks, or an empty one.
  static std::string missing() {
    if (geteuid() != 0) return "network namespaces need root";
    if (!run("ip -V")) return "no ip command: install iproute2";
    const base::Descriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
    if (!socket && errno == EAFNOSUPPORT) return "this kernel has no AF_XDP";
    return {};
  }

  XdpNetwork() {
    EXPECT_EQ(unshare(CLONE_NEWNET), 0) << std::strerror(errno);
    const std::string queues = " numrxqueues " + std::to_string(kQueues) + " numtxqueues " + std::to_string(kQueues);
    EXPECT_TRUE(run("ip link add xdp0 index 10" + queues + " type veth peer name xdp1 index 11" + queues));
    EXPECT_TRUE(run("ip address add 10.0.0.1/24 dev xdp0 && ip link set xdp0 up && ip link set xdp1 up"));
  }
  ~XdpNetwork() { EXPECT_EQ(setns(home_.get(), CLONE_NEWNET), 0); }
  XdpNetwork(const XdpNetwork&) = delete;
  XdpNetwork& operator=(const XdpNetwork&) = delete;

  static neighbours::Interface interface(const char* name = "xdp0") {
    auto found = neighbours::interface_by_name(name);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : neighbours::Interface{};
  }

 private:
  base::Descriptor home_{open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)};
};

/// A test in such a network.
class XdpNetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = XdpNetwork::missing(); !missing.empty()) GTEST_SKIP() << missing;
    network_.emplace();
  }

  std::optional<XdpNetwork> network_;
};

/// Opens a socket that is bound to nothing. It has a receive ring, which maps require.
inline base::Descriptor open_xdp_socket() {
  base::Descriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  const int entries = 64;
  EXPECT_EQ(setsockopt(socket.get(), SOL_XDP, XDP_RX_RING, &entries, sizeof(entries)), 0) << std::strerror(errno);
  return socket;
}

}  // namespace tern::test
