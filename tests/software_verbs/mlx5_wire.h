// The network of mlx5_test.cc and mlx5_faults_test.cc: two network namespaces with a veth pair between them, and
// frames.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "shell.h"
#include "software_verbs/carrier.h"

namespace software_verbs {

using tern::test::run;

/// The test's own namespaces: `near` has nv0 (mlx5_0), 10.77.0.1, fd77::1; `far` has nv1, 10.77.0.2, fd77::2. The
/// calling thread is in `near`. The namespaces end with the process.
class Wire {
 public:
  static constexpr const char* kNear = "10.77.0.1";
  static constexpr const char* kFar = "10.77.0.2";
  static constexpr std::array<uint8_t, 6> kNearAddress = {2, 0, 0, 0x77, 0, 1};
  static constexpr std::array<uint8_t, 6> kFarAddress = {2, 0, 0, 0x77, 0, 2};

  /// Returns an empty string if the network exists, otherwise the reason why it could not be made.
  static const std::string& make() {
    static const std::string refusal = [] { return wire().create(); }();
    return refusal;
  }
  /// Calls do(...) in the far namespace.
  template <class Do>
  static auto far(Do work) {
    wire().enter(wire().far_);
    auto result = work();
    wire().enter(wire().near_);
    return result;
  }

 private:
  static Wire& wire() {
    static Wire only;
    return only;
  }
  std::string create() {
    if (geteuid() != 0) return "network namespaces need root";
    if (!run("ip -V")) return "there is no ip command";
    if (unshare(CLONE_NEWNET) != 0) return "no right to make network namespaces";
    near_ = open("/proc/self/ns/net", O_RDONLY);
    if (unshare(CLONE_NEWNET) != 0) return "no second network namespace";
    far_ = open("/proc/self/ns/net", O_RDONLY);
    const std::string process = std::to_string(getpid());
    const std::string from_far =
        "ip link set lo up && ip addr add 10.77.0.2/24 dev nv1 && "
        "ip addr add fd77::2/64 dev nv1 nodad && ip link set nv1 up";
    const std::string from_near =
        "ip link set lo up && ip addr add 10.77.0.1/24 dev nv0 && "
        "ip addr add fd77::1/64 dev nv0 nodad && ip link set nv0 up";
    enter(near_);
    const std::string pair = "ip link add nv0 address 02:00:00:77:00:01 type veth peer name nv1";
    if (!run(pair)) return "no veth interfaces in this kernel";
    // While the child waits, its namespace is the far one.
    enter(far_);
    const std::string move =
        "nsenter --net=/proc/" + process + "/fd/" + std::to_string(near_) + " ip link set nv1 netns " + process;
    if (!run(move)) return "the interface cannot be moved";
    if (!run("ip link set nv1 address 02:00:00:77:00:02 && " + from_far)) return "the far interface cannot be set up";
    enter(near_);
    if (!run(from_near)) return "the near interface cannot be set up";
    enter(far_);
    const bool is_far_ready = wait_for_carrier("nv1");
    enter(near_);
    if (!is_far_ready || !wait_for_carrier("nv0")) return "the veth pair gets no carrier";
    setenv("SOFTWARE_VERBS", "devices=0,mlx5=nv0", 1);
    return "";
  }
  void enter(int space) { EXPECT_EQ(setns(space, CLONE_NEWNET), 0); }

  int near_ = -1;
  int far_ = -1;
};

struct FrameSpec {
  std::array<uint8_t, 6> to = Wire::kNearAddress;
  std::array<uint8_t, 6> from = Wire::kFarAddress;
  std::string source = Wire::kFar;
  std::string destination = Wire::kNear;
  uint16_t source_port = 4000;
  uint16_t port = 4000;
  std::string payload = "hello";
  std::optional<uint16_t> vlan;
};

inline uint16_t internet_checksum(const std::byte* bytes, size_t size, uint32_t sum = 0) {
  for (size_t i = 0; i + 1 < size; i += 2)
    sum += std::to_integer<uint32_t>(bytes[i]) << 8 | std::to_integer<uint32_t>(bytes[i + 1]);
  if (size % 2 != 0) sum += std::to_integer<uint32_t>(bytes[size - 1]) << 8;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

/// A UDP datagram over IPv4 with all checksums.
inline std::vector<std::byte> make_frame(const FrameSpec& spec) {
  std::vector<std::byte> frame;
  const auto add = [&frame](const void* bytes, size_t size) {
    const auto* from = static_cast<const std::byte*>(bytes);
    frame.insert(frame.end(), from, from + size);
  };
  const auto add_word = [&add](uint16_t word) {
    word = htons(word);
    add(&word, sizeof(word));
  };
  add(spec.to.data(), 6);
  add(spec.from.data(), 6);
  if (spec.vlan) {
    add_word(0x8100);
    add_word(*spec.vlan);
  }
  add_word(0x0800);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.tot_len = htons(static_cast<uint16_t>(sizeof(iphdr) + sizeof(udphdr) + spec.payload.size()));
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  inet_pton(AF_INET, spec.source.c_str(), &ip.saddr);
  inet_pton(AF_INET, spec.destination.c_str(), &ip.daddr);
  ip.check = htons(internet_checksum(reinterpret_cast<const std::byte*>(&ip), sizeof(ip)));
  add(&ip, sizeof(ip));
  const size_t start = frame.size();
  const auto bytes = static_cast<uint16_t>(sizeof(udphdr) + spec.payload.size());
  add_word(spec.source_port);
  add_word(spec.port);
  add_word(bytes);
  add_word(0);
  add(spec.payload.data(), spec.payload.size());
  uint32_t pseudo = IPPROTO_UDP + uint32_t{bytes};
  for (const uint32_t address : {ntohl(ip.saddr), ntohl(ip.daddr)}) pseudo += (address >> 16) + (address & 0xffff);
  const uint16_t checksum = htons(internet_checksum(frame.data() + start, frame.size() - start, pseudo));
  std::memcpy(frame.data() + start + 6, &checksum, sizeof(checksum));
  return frame;
}

/// A kernel UDP socket on the far side, with a time limit for receiving.
inline int open_far_socket(uint16_t port) {
  return Wire::far([port] {
    const int opened = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{AF_INET, htons(port), {}, {}};
    inet_pton(AF_INET, Wire::kFar, &address.sin_addr);
    EXPECT_EQ(bind(opened, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const timeval limit{20, 0};
    setsockopt(opened, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return opened;
  });
}
inline void send_from_far(int socket, uint16_t port, const std::string& payload) {
  sockaddr_in to{AF_INET, htons(port), {}, {}};
  inet_pton(AF_INET, Wire::kNear, &to.sin_addr);
  EXPECT_EQ(sendto(socket, payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
            static_cast<ssize_t>(payload.size()));
}

/// Sends any frame, as another host would send it.
inline void send_frame_from_far(const std::vector<std::byte>& frame) {
  Wire::far([&frame] {
    const int opened = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_ifindex = static_cast<int>(if_nametoindex("nv1"));
    EXPECT_EQ(sendto(opened, frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
              static_cast<ssize_t>(frame.size()));
    return close(opened);
  });
}

}  // namespace software_verbs
