// A non-blocking UDP socket on 127.0.0.1 for the limits. System headers only; it contains no code of the library.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstddef>

namespace limits {

/// The maximum of bytes that one call can send or receive: the largest UDP payload is 65 507 bytes.
inline constexpr size_t kCallBytesMax = 65507;
/// The maximum of segments that one call can send: UDP_MAX_SEGMENTS of the kernel, which newer kernels have raised to
/// 128.
inline constexpr size_t kSegmentsMax = 64;
inline constexpr size_t kReceiveBytes = 1u << 16;

/// One socket for each side; it exists until the program ends. After an error errno has the reason.
struct UdpSocket {
  int fd = -1;
  sockaddr_in address{};

  bool open() {
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    return fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
           getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  }
  bool connect_to(const UdpSocket& other) const {
    return connect(fd, reinterpret_cast<const sockaddr*>(&other.address), sizeof(other.address)) == 0;
  }
  /// After this call a send is a train of datagrams of this size, and a receive takes a whole train.
  bool use_trains(int datagram_bytes) const {
    const int on = 1;
    return setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &datagram_bytes, sizeof(datagram_bytes)) == 0 &&
           setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) == 0;
  }
};

}  // namespace limits
