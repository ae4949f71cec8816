// Two network namespaces without names, connected by a veth pair. The process is in the namespace of eth0, and the peer
// is in that of eth1. They end with the process. Needs root and iproute2.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/address.h"
#include "base/descriptor.h"
#include "patience.h"
#include "shell.h"

namespace tern::neighbours {

inline base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }

using test::run;  // in the namespace of the process

class Network {
 public:
  static constexpr const char* kOwnMac = "02:00:00:00:00:01";
  static constexpr const char* kPeerMac = "02:00:00:00:00:02";

  /// A text about what this machine lacks, or an empty one.
  static std::string missing() {
    if (geteuid() != 0) return "network namespaces need root";
    if (!run("ip -V")) return "no ip command: install iproute2";
    if (access("/proc/sys/net/ipv6", F_OK) != 0) return "this kernel has no IPv6";
    const base::Descriptor home(open(kPath, O_RDONLY | O_CLOEXEC));
    if (unshare(CLONE_NEWNET) != 0) return "this kernel makes no network namespaces";
    setns(home.get(), CLONE_NEWNET);
    return {};
  }

  /// eth0 has 10.0.0.1/24, fd00::1/64 and fe80::1, eth1 has 10.0.0.2/24, fd00::2/64 and fe80::2.
  Network() {
    peer_ = make();
    own_ = make();
    const std::string peer_path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(peer_.get());
    EXPECT_TRUE(run(std::string("ip link add eth0 address ") + kOwnMac + " type veth peer name eth1 address " +
                    kPeerMac + " netns " + peer_path));
    address("1", "eth0");
    at_peer([&] { address("2", "eth1"); });
    EXPECT_TRUE(becomes_running(true));
  }
  ~Network() { EXPECT_EQ(setns(home_.get(), CLONE_NEWNET), 0); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Waits for the flag IFF_RUNNING of eth0, which the kernel sets some time after a change of the link. False: the
  /// time limit has passed.
  static bool becomes_running(bool is_wanted) {
    const base::Descriptor any_socket(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20 * patience());
    while (std::chrono::steady_clock::now() < end) {
      ifreq request{};
      std::strcpy(request.ifr_name, "eth0");
      if (ioctl(any_socket.get(), SIOCGIFFLAGS, &request) != 0) return false;
      if (((request.ifr_flags & IFF_RUNNING) != 0) == is_wanted) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  template <class F>
  void at_peer(F&& f) {
    EXPECT_EQ(setns(peer_.get(), CLONE_NEWNET), 0);
    f();
    EXPECT_EQ(setns(own_.get(), CLONE_NEWNET), 0);
  }
  void run_at_peer(const std::string& command) {
    at_peer([&] { EXPECT_TRUE(run(command)) << command; });
  }
  /// Sets a parameter of the kernel by its name, such as "ipv4/neigh/eth0/retrans_time_ms".
  static void set(const std::string& name, int value) {
    std::ofstream file("/proc/sys/net/" + name);
    EXPECT_TRUE(file << value << std::flush) << name;
  }

 private:
  static constexpr const char* kPath = "/proc/thread-self/ns/net";

  static base::Descriptor make() {
    EXPECT_EQ(unshare(CLONE_NEWNET), 0);
    set("ipv6/conf/all/accept_dad", 0);
    set("ipv6/conf/default/accept_dad", 0);
    set("ipv6/conf/default/addr_gen_mode", 1);  // so that only our link-local address exists
    EXPECT_TRUE(run("ip link set lo up"));
    return base::Descriptor(open(kPath, O_RDONLY | O_CLOEXEC));
  }
  static void address(const std::string& host, const std::string& interface) {
    EXPECT_TRUE(run("ip link set " + interface + " up"));
    EXPECT_TRUE(run("ip address add 10.0.0." + host + "/24 dev " + interface));
    EXPECT_TRUE(run("ip address add fd00::" + host + "/64 dev " + interface));
    EXPECT_TRUE(run("ip address add fe80::" + host + "/64 dev " + interface));
  }

  base::Descriptor home_{open(kPath, O_RDONLY | O_CLOEXEC)};
  base::Descriptor own_, peer_;
};

/// A test in such a network.
class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = Network::missing(); !missing.empty()) GTEST_SKIP() << missing;
    network_.emplace();
  }

  std::optional<Network> network_;
};

}  // namespace tern::neighbours
