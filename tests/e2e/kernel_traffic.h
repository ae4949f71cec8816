// Traffic of the kernel's UDP and TCP sockets between two network namespaces, like that of other programs on a host.
// Test code. It needs root and iproute2, as namespaces.h does.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "base/address.h"
#include "base/descriptor.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/traffic.h"

namespace e2e {

/// Runs in threads of its own until it is destroyed. Datagrams go to and fro, one at a time, and a stream of bytes goes
/// one way; the receiver checks the stream.
class KernelTraffic {
 public:
  /// `server` is an address in the namespace `server_namespace`. A datagram without an answer within `patience` counts
  /// as lost.
  KernelTraffic(const std::string& client_namespace, const std::string& server_namespace, const std::string& server,
                std::chrono::milliseconds patience)
      : patience_(patience) {
    const auto at_server = [&](int type) {
      const Inside inside(server_namespace);
      return bound_socket(type, server);
    };
    const auto at_client = [&](int type) {
      const Inside inside(client_namespace);
      return tern::base::Descriptor(socket(AF_INET, type | SOCK_CLOEXEC, 0));
    };
    echo_ = at_server(SOCK_DGRAM);
    ask_ = at_client(SOCK_DGRAM);
    connect_to(ask_, echo_);
    const tern::base::Descriptor listener = at_server(SOCK_STREAM);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    from_ = at_client(SOCK_STREAM);
    connect_to(from_, listener);
    to_ = tern::base::Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(to_) << strerror(errno);
    threads_ = {std::thread([this] { echo(); }), std::thread([this] { ask(); }), std::thread([this] { transmit(); }),
                std::thread([this] { receive(); })};
  }
  ~KernelTraffic() {
    is_ending_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  KernelTraffic(const KernelTraffic&) = delete;
  KernelTraffic& operator=(const KernelTraffic&) = delete;

  /// Waits until the datagrams and the stream have made progress after the call.
  bool goes_on() const {
    const uint64_t answers = answers_, bytes = bytes_;
    return wait_for([&] { return answers_ > answers + 5 && bytes_ > bytes + 300'000; });
  }
  /// The number of datagrams whose answer was lost or late.
  uint64_t lost() const { return lost_; }
  /// The number of wrong bytes in the stream.
  uint64_t damaged() const { return damaged_; }

 private:
  static constexpr int kLookMs = 50;  ///< interval at which threads check whether they must end

  static tern::base::Descriptor bound_socket(int type, const std::string& host) {
    tern::base::Descriptor fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
    const auto address = tern::base::SocketAddress::parse_ip(host).value();
    EXPECT_EQ(bind(fd.get(), address.sockaddr_data(), address.sockaddr_bytes()), 0) << strerror(errno);
    return fd;
  }
  static void connect_to(const tern::base::Descriptor& from, const tern::base::Descriptor& to) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(getsockname(to.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    EXPECT_EQ(connect(from.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0) << strerror(errno);
  }
  static bool is_ready(const tern::base::Descriptor& fd, short events, int ms = kLookMs) {
    pollfd ready{fd.get(), events, 0};
    return poll(&ready, 1, ms) == 1;
  }

  void echo() {
    std::array<std::byte, 2000> datagram;
    while (!is_ending_) {
      if (!is_ready(echo_, POLLIN)) continue;
      sockaddr_storage from{};
      socklen_t bytes = sizeof(from);
      auto* const address = reinterpret_cast<sockaddr*>(&from);
      const ssize_t got = recvfrom(echo_.get(), datagram.data(), datagram.size(), MSG_DONTWAIT, address, &bytes);
      if (got >= 0) (void)sendto(echo_.get(), datagram.data(), static_cast<size_t>(got), 0, address, bytes);
    }
  }
  void ask() {
    std::array<std::byte, 2000> datagram;
    for (uint64_t number = 0; !is_ending_; number++) {
      const size_t bytes = 8 + number % 1400;
      fill(std::span(datagram).first(bytes), number);
      (void)send(ask_.get(), datagram.data(), bytes, 0);
      const auto end = std::chrono::steady_clock::now() + patience_;
      bool is_answered = false;
      while (!is_answered && !is_ending_ && std::chrono::steady_clock::now() < end) {
        if (!is_ready(ask_, POLLIN)) continue;
        const ssize_t got = recv(ask_.get(), datagram.data(), datagram.size(), MSG_DONTWAIT);
        is_answered =
            got == static_cast<ssize_t>(bytes) && is_filled(std::span<const std::byte>(datagram).first(bytes), number);
      }
      if (is_answered) {
        answers_++;
      } else if (!is_ending_) {
        lost_++;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // leaves the few CPUs to others
    }
  }
  void transmit() {
    std::array<std::byte, kBlockBytes> block;
    for (uint64_t number = 0; !is_ending_; number++) {
      fill(block, number);
      for (size_t sent = 0; sent < block.size() && !is_ending_;) {
        if (!is_ready(from_, POLLOUT)) continue;
        const ssize_t taken = send(from_.get(), &block[sent], block.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken > 0) sent += static_cast<size_t>(taken);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void receive() {
    std::array<std::byte, kBlockBytes> block;
    for (uint64_t number = 0; !is_ending_; number++) {
      size_t received = 0;
      while (received < block.size() && !is_ending_) {
        if (!is_ready(to_, POLLIN)) continue;
        const ssize_t got = recv(to_.get(), &block[received], block.size() - received, MSG_DONTWAIT);
        if (got > 0) received += static_cast<size_t>(got);
      }
      if (is_ending_) break;
      if (!is_filled(block, number)) damaged_ += block.size();
      bytes_ += block.size();
    }
  }

  static constexpr size_t kBlockBytes = 1 << 16;
  const std::chrono::milliseconds patience_;
  tern::base::Descriptor echo_, ask_, from_, to_;
  std::atomic<bool> is_ending_{false};
  std::atomic<uint64_t> answers_{0}, lost_{0}, bytes_{0}, damaged_{0};
  std::array<std::thread, 4> threads_;
};

}  // namespace e2e
