// Sockets as the UDP transport wants them, and the question what offloads this kernel has.
// Transport room: knows addresses and options of sockets, no peers or packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tern/status.h>

#include "transport/udp_address.h"

namespace tern::transport {

/// Owner of one file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Bound, non-blocking, unconnected; never fragments what leaves from it. `bound` receives the address with the real
/// port.
Result<Fd> open_receive_socket(const UdpAddress& bind_to, size_t buffer_bytes, bool gro, UdpAddress* bound);

/// Non-blocking, never fragments. Leaves from the IP of `local` if that is no wildcard and of the family, and from a
/// port of its own. Empty: errno says why.
Fd open_send_socket(sa_family_t family, const UdpAddress& local, size_t buffer_bytes);

/// What works on this kernel, found by sending a train over loopback.
struct UdpOffloads {
  bool gso = false;  ///< one call sends a train of datagrams (UDP_SEGMENT)
  bool gro = false;  ///< one call receives it (UDP_GRO)
};
UdpOffloads test_offloads(sa_family_t family);

/// Adds the control message that makes `message` a train of `segment_bytes`; `control` has kSegmentControlBytes.
inline constexpr size_t kSegmentControlBytes = CMSG_SPACE(sizeof(uint16_t));
void set_segment_bytes(msghdr* message, void* control, uint16_t segment_bytes);

}  // namespace tern::transport
