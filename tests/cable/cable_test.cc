// The networks that on_cable makes: sockets of the kernel reach each other over them, and the frames look like those on
// a real cable. The name of a case chooses its network.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint16_t kPort = 5000;

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() { close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd; }
  const int fd;
};

class Cable : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* path = std::getenv("TERN_PEER_NETNS");
    if (path == nullptr) GTEST_SKIP() << "run this by tests/on_cable of the build directory";
    peer_path_ = path;
  }
  /// A socket in the namespace of tern1, or of tern0, that waits for at most 10 s.
  int open_socket(bool is_peer, int family, int type, int protocol = 0) const {
    const Descriptor own(open("/proc/self/ns/net", O_RDONLY));
    if (is_peer) {
      const Descriptor peer(open(peer_path_.c_str(), O_RDONLY));
      EXPECT_EQ(setns(peer, CLONE_NEWNET), 0);
    }
    const int fd = socket(family, type | SOCK_CLOEXEC, protocol);
    EXPECT_EQ(setns(own, CLONE_NEWNET), 0);
    const timeval patience{10, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return fd;
  }
  static sockaddr_in ipv4(const char* host) {
    sockaddr_in address{AF_INET, htons(kPort), {}, {}};
    inet_pton(AF_INET, host, &address.sin_addr);
    return address;
  }

  std::string peer_path_;
};

INSTANTIATE_TEST_SUITE_P(Of, Cable, ::testing::Values("mlx5", "xdp", "dpdk"),
                         [](const auto& with) { return std::string(with.param); });

template <class Address>
void exchange(int from, int to, const Address& from_address, const Address& to_address) {
  ASSERT_EQ(bind(from, reinterpret_cast<const sockaddr*>(&from_address), sizeof(Address)), 0) << strerror(errno);
  ASSERT_EQ(bind(to, reinterpret_cast<const sockaddr*>(&to_address), sizeof(Address)), 0) << strerror(errno);
  ASSERT_EQ(sendto(from, "hello", 5, 0, reinterpret_cast<const sockaddr*>(&to_address), sizeof(Address)), 5);
  char got[8] = {};
  ASSERT_EQ(recv(to, got, sizeof(got), 0), 5);
  EXPECT_STREQ(got, "hello");
}

TEST_P(Cable, joins_two_namespaces_over_ipv4) {
  const Descriptor own(open_socket(false, AF_INET, SOCK_DGRAM)), peer(open_socket(true, AF_INET, SOCK_DGRAM));
  exchange(own, peer, ipv4("10.77.0.1"), ipv4("10.77.0.2"));
}

TEST_P(Cable, joins_two_namespaces_over_ipv6) {
  if (access("/proc/sys/net/ipv6", F_OK) != 0) GTEST_SKIP() << "no IPv6 here";
  const Descriptor own(open_socket(false, AF_INET6, SOCK_DGRAM)), peer(open_socket(true, AF_INET6, SOCK_DGRAM));
  sockaddr_in6 first{AF_INET6, htons(kPort), 0, {}, 0}, second = first;
  inet_pton(AF_INET6, "fd77::1", &first.sin6_addr);
  inet_pton(AF_INET6, "fd77::2", &second.sin6_addr);
  exchange(own, peer, first, second);
}

/// By default the kernel does not compute the checksum of a UDP datagram for a veth pair.
TEST_P(Cable, frames_of_the_kernel_have_checksums) {
  const Descriptor raw(open_socket(true, AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP)));
  const Descriptor own(open_socket(false, AF_INET, SOCK_DGRAM)), peer(open_socket(true, AF_INET, SOCK_DGRAM));
  exchange(own, peer, ipv4("10.77.0.1"), ipv4("10.77.0.2"));
  std::array<uint8_t, 64> packet{};
  ASSERT_EQ(recv(raw, packet.data(), packet.size(), 0), 20 + 8 + 5);
  // The pseudo header consists of the addresses, the protocol and the length. A right checksum makes the sum all ones.
  uint32_t sum = IPPROTO_UDP + 8 + 5;
  for (size_t at = 12; at < 20 + 8 + 5 + 1; at += 2) sum += static_cast<uint32_t>(packet[at] << 8 | packet[at + 1]);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  EXPECT_EQ(sum, 0xffffu);
}

}  // namespace
