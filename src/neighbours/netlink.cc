#include "neighbours/netlink.h"

#include <linux/netlink.h>
#include <sys/socket.h>

#include <new>

namespace tern::neighbours {

namespace {

constexpr size_t kBufferBytes = 32768;  ///< the longest part of an answer that Linux sends at once

}  // namespace

int Netlink::open(std::initializer_list<int> groups) {
  // Memory of new[] is aligned for every type.
  buffer_.reset(new (std::nothrow) std::byte[kBufferBytes]);
  if (buffer_ == nullptr) return ENOMEM;
  socket_ = base::Descriptor(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket_) return errno;
  sockaddr_nl own{};
  own.nl_family = AF_NETLINK;
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0) return errno;
  for (const int group : groups) {
    if (setsockopt(socket_.get(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) != 0) return errno;
  }
  return 0;
}

int Netlink::send(std::span<const std::byte> bytes) {
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  const ssize_t sent = sendto(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT,
                              reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel));
  return sent < 0 ? errno : 0;
}

Netlink::Received Netlink::receive() {
  sockaddr_nl sender{};
  iovec range{buffer_.get(), kBufferBytes};
  msghdr message{};
  message.msg_name = &sender;
  message.msg_namelen = sizeof(sender);
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  const ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (received < 0) return {{}, errno == EINTR ? EAGAIN : errno};
  if ((message.msg_flags & MSG_TRUNC) != 0) return {{}, ENOBUFS};
  if (message.msg_namelen != sizeof(sender) || sender.nl_pid != 0) return {{}, EBADMSG};
  return {{buffer_.get(), static_cast<size_t>(received)}, 0};
}

}  // namespace tern::neighbours
