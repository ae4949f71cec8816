// Captures the frames of an interface into a file. Test code; needs root. Each object belongs to one thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace e2e {

/// An Ethernet frame, or its first bytes.
struct Frame {
  uint64_t time_ns = 0;
  std::vector<std::byte> bytes;
  size_t length = 0;  ///< length of the whole frame
};

/// The parts of a UDP datagram's frame.
struct UdpPlace {
  size_t ip_at = 0, udp_at = 0;
  size_t payload_at() const { return udp_at + 8; }
};

/// False: the frame is no UDP datagram, or its headers are cut off.
inline bool find_udp(const Frame& frame, UdpPlace* place) {
  constexpr size_t kIpAt = sizeof(ether_header), kIp4Bytes = 20, kIp6Bytes = 40;
  const auto byte = [&](size_t at) { return std::to_integer<unsigned>(frame.bytes[at]); };
  if (frame.bytes.size() < kIpAt + kIp4Bytes) return false;
  const bool is_v4 = byte(kIpAt) == 0x45;  // without options, as all frames here
  place->ip_at = kIpAt;
  place->udp_at = kIpAt + (is_v4 ? kIp4Bytes : kIp6Bytes);
  return frame.bytes.size() >= place->payload_at() && byte(kIpAt + (is_v4 ? 9 : 6)) == IPPROTO_UDP;
}

/// The payload of a UDP datagram. Empty: it has none, or the frame is of another kind.
inline std::span<const std::byte> payload_of(const Frame& frame) {
  UdpPlace place;
  if (!find_udp(frame, &place)) return {};
  return std::span(frame.bytes).subspan(place.payload_at());
}

/// Writes frames in the pcap format with nanoseconds.
inline void write_pcap(const std::string& path, std::span<const Frame> frames) {
  std::ofstream file(path, std::ios::binary);
  const auto put = [&file](uint32_t word) { file.write(reinterpret_cast<const char*>(&word), sizeof(word)); };
  put(0xa1b23c4d);
  put(2 | 4 << 16);  // version
  put(0);
  put(0);
  put(1 << 18);  // the longest frame
  put(1);        // Ethernet
  for (const Frame& frame : frames) {
    put(static_cast<uint32_t>(frame.time_ns / 1'000'000'000));
    put(static_cast<uint32_t>(frame.time_ns % 1'000'000'000));
    put(static_cast<uint32_t>(frame.bytes.size()));
    put(static_cast<uint32_t>(frame.length));
    file.write(reinterpret_cast<const char*>(frame.bytes.data()), static_cast<std::streamsize>(frame.bytes.size()));
  }
  EXPECT_TRUE(file.flush().good()) << path;
}

/// Captures every frame that arrives at an interface, from its creation until stop(). The interface is one of the
/// network namespace of the creating thread.
class Capture {
 public:
  explicit Capture(const char* interface) {
    fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    const int space_bytes = 256 << 20, on = 1;
    sockaddr_ll address = {};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    const bool is_made = fd_ >= 0 &&
                         setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &space_bytes, sizeof(space_bytes)) == 0 &&
                         setsockopt(fd_, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) == 0 &&
                         bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    EXPECT_TRUE(is_made) << "no capture of " << interface << ": " << std::strerror(errno);
    reader_ = std::thread([this] { read_all(); });
  }
  ~Capture() {
    if (reader_.joinable()) stop();
    close(fd_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Returns all frames captured so far. It fails the test if some are missing.
  std::vector<Frame> stop() {
    must_stop_ = true;
    reader_.join();
    tpacket_stats counts = {};
    socklen_t size = sizeof(counts);
    EXPECT_EQ(getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &counts, &size), 0);
    EXPECT_EQ(counts.tp_drops, 0u) << "the capture is not complete";
    return std::move(frames_);
  }

 private:
  void read_all() {
    for (;;) {
      const bool is_last_look = must_stop_;
      while (read_one()) {
      }
      if (is_last_look) return;
      pollfd wait = {.fd = fd_, .events = POLLIN, .revents = 0};
      poll(&wait, 1, 10);
    }
  }
  bool read_one() {
    iovec part = {.iov_base = space_.data(), .iov_len = space_.size()};
    alignas(cmsghdr) char control[128];
    sockaddr_ll from = {};
    msghdr message = {};
    message.msg_name = &from;
    message.msg_namelen = sizeof(from);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (got < 0) return errno == EINTR;
    if (from.sll_pkttype == PACKET_OUTGOING) return true;  // on lo the frame also arrives
    Frame frame;
    frame.length = static_cast<size_t>(got);
    frame.bytes.assign(space_.begin(), space_.begin() + got);
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SO_TIMESTAMPNS) continue;
      timespec time;
      std::memcpy(&time, CMSG_DATA(at), sizeof(time));
      frame.time_ns = static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
    }
    frames_.push_back(std::move(frame));
    return true;
  }

  int fd_ = -1;
  std::vector<std::byte> space_ = std::vector<std::byte>(1 << 18);
  std::vector<Frame> frames_;  ///< belongs to the reader thread until that has ended
  std::atomic<bool> must_stop_{false};
  std::thread reader_;
};

}  // namespace e2e
