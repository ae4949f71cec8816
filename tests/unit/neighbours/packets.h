// The frames of an interface in a test's network namespace, through an AF_PACKET socket, as a driver outside of the
// kernel receives and sends them.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/descriptor.h"

namespace tern::neighbours {

class Packets {
 public:
  /// Opens the interface in the calling thread's network namespace. It receives the frames to every address.
  explicit Packets(const char* interface)
      : socket_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL))) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    packet_mreq all{};
    all.mr_ifindex = address.sll_ifindex;
    all.mr_type = PACKET_MR_PROMISC;
    EXPECT_EQ(setsockopt(socket_.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)), 0);
  }

  void send(std::span<const std::byte> frame) { (void)::send(socket_.get(), frame.data(), frame.size(), 0); }
  /// Returns the next received frame, or an empty one.
  std::vector<std::byte> receive() {
    while (true) {
      std::array<std::byte, 2048> bytes;
      sockaddr_ll from{};
      socklen_t from_bytes = sizeof(from);
      const ssize_t received =
          recvfrom(socket_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
      if (received < 0) return {};
      if (from.sll_pkttype != PACKET_OUTGOING) return {bytes.begin(), bytes.begin() + received};
    }
  }
  /// Waits until a frame has arrived, for at most this time.
  void wait(int milliseconds) {
    pollfd one{socket_.get(), POLLIN, 0};
    poll(&one, 1, milliseconds);
  }

 private:
  base::Descriptor socket_;
};

}  // namespace tern::neighbours
