// The other end of the networks of tests/cable, for tests of a transport without the layers above: its namespace, and
// sockets there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/descriptor.h"

namespace tern::test {

/// This thread is in the namespace of tern1 as long as the object lives.
class Far {
 public:
  Far() : own_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)), far_(open(path(), O_RDONLY | O_CLOEXEC)) {
    if (setns(far_.get(), CLONE_NEWNET) != 0) std::abort();
  }
  ~Far() {
    if (setns(own_.get(), CLONE_NEWNET) != 0) std::abort();
  }
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;
  static const char* path() { return std::getenv("TERN_PEER_NETNS"); }

 private:
  base::Descriptor own_, far_;
};

/// A kernel UDP socket.
class KernelSocket {
 public:
  explicit KernelSocket(const std::string& address) {
    const auto own = *base::SocketAddress::parse(address);
    socket_ = base::Descriptor(socket(own.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(socket_.get(), own.sockaddr_data(), own.sockaddr_bytes()), 0) << std::strerror(errno);
  }
  void send(const base::SocketAddress& to, std::span<const std::byte> bytes) const {
    EXPECT_EQ(sendto(socket_.get(), bytes.data(), bytes.size(), 0, to.sockaddr_data(), to.sockaddr_bytes()),
              static_cast<ssize_t>(bytes.size()));
  }
  /// Waits for the next datagram and returns it.
  std::vector<std::byte> receive() const {
    pollfd readable{socket_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, 30'000), 1);
    std::vector<std::byte> bytes(10'000);
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    EXPECT_GE(got, 0);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  bool is_readable() const {
    pollfd readable{socket_.get(), POLLIN, 0};
    return poll(&readable, 1, 0) == 1;
  }

 private:
  base::Descriptor socket_;
};

/// One in the namespace of tern1.
class FarSocket : public KernelSocket {
 public:
  explicit FarSocket(const std::string& address, const Far& = Far()) : KernelSocket(address) {}
};

/// A raw socket at the other end of the cable.
class RawSocket {
 public:
  explicit RawSocket(const Far& = Far()) {
    socket_ = base::Descriptor(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    to_.sll_family = AF_PACKET;
    to_.sll_ifindex = static_cast<int>(if_nametoindex("tern1"));
    to_.sll_halen = ETH_ALEN;
  }
  void send(std::span<const std::byte> frame) const {
    EXPECT_EQ(
        sendto(socket_.get(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&to_), sizeof(to_)),
        static_cast<ssize_t>(frame.size()));
  }

 private:
  base::Descriptor socket_;
  sockaddr_ll to_{};
};

}  // namespace tern::test
