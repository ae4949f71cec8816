#include "transport/xdp/kernel_socket.h"

#include <sys/socket.h>

#include <new>

#include "ethernet/setup.h"
#include "frames/layout.h"
#include "transport/xdp/names.h"

namespace tern::transport::xdp {

namespace {

/// Receive buffer for the datagrams that arrive while this endpoint's thread is busy for some milliseconds. Without
/// privilege the kernel gives less.
constexpr int kReceiveBufferBytes = 4 << 20;

}  // namespace

Status KernelSocket::open(base::SocketAddress* own) {
  buffer_.reset(new (std::nothrow) std::byte[kBytesMax + 1]);
  if (buffer_ == nullptr) return kNoMemory;
  auto bound = ethernet::bind_port(kNames, own);
  if (!bound.ok()) return bound.status();
  socket_ = std::move(*bound);
  family_ = own->family();
  for (const int option : {SO_RCVBUFFORCE, SO_RCVBUF}) {
    if (setsockopt(socket_.get(), SOL_SOCKET, option, &kReceiveBufferBytes, sizeof(kReceiveBufferBytes)) == 0) break;
  }
  return {};
}

std::span<const std::byte> KernelSocket::receive() {
  const ssize_t got = recv(socket_.get(), buffer_.get(), kBytesMax + 1, MSG_DONTWAIT);
  if (got < 0) return {};
  return {buffer_.get(), static_cast<size_t>(got)};
}

bool KernelSocket::send(std::span<const std::byte> frame, size_t header_bytes) {
  const std::byte* const udp = frame.data() + header_bytes - frames::kUdpBytes;
  const size_t ip_bytes = family_ == AF_INET6 ? 16 : 4;  // the destination is the IP header's last field
  base::SocketAddress to = base::SocketAddress::from_ip({udp - ip_bytes, ip_bytes});
  to.set_port(frames::load16(udp + frames::udp::kDestinationPort));
  const std::span<const std::byte> payload = frame.subspan(header_bytes);
  return sendto(socket_.get(), payload.data(), payload.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.sockaddr_data(),
                to.sockaddr_bytes()) == static_cast<ssize_t>(payload.size());
}

}  // namespace tern::transport::xdp
