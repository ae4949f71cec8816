#include "transport/udp/udp_socket.h"

#include <fcntl.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace tern::transport {

namespace {

Status bind_error(int error) {
  switch (error) {
    case EADDRINUSE:
      return {
          Code::kUnavailable,
          "udp: the port in Udp::Options::bind is taken (or no port is free): choose another, or leave the port out "
          "for any free one"};
    case EADDRNOTAVAIL:
    case ENODEV:
    case EINVAL:
      return {Code::kUnavailable,
              "udp: the address in Udp::Options::bind is not one of this machine's: use one that `ip addr` lists, or a "
              "wildcard"};
    case EACCES:
      return {Code::kUnavailable, "udp: ports below 1024 need root: choose a higher port in Udp::Options::bind"};
    default:
      return {Code::kUnavailable,
              "udp: the kernel refused to bind the socket: check the address in Udp::Options::bind"};
  }
}

Status socket_error(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return kNoDescriptors;
    case EAFNOSUPPORT:
      return {Code::kUnavailable, "udp: this kernel has no IPv6 (or no IPv4): bind an address of the other family"};
    default:
      return {Code::kUnavailable, "udp: the kernel refused to create a socket: check memory and permissions"};
  }
}

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

/// The kernel limits `bytes` silently to net.core.[rw]mem_max.
void set_buffer(int fd, int name, size_t bytes) {
  set_option(fd, SOL_SOCKET, name, static_cast<int>(std::min<size_t>(bytes, INT_MAX / 2)));
}

/// Uses PROBE and not DO. Both set "don't fragment", but DO also obeys the path MTU from ICMP, which anybody can forge.
/// A session finds out by probes which sizes the path takes.
bool forbid_fragments(int fd, sa_family_t family) {
  return family == AF_INET6 ? set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE)
                            : set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
}

Descriptor open_socket(sa_family_t family) {
  return Descriptor(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// Loopback delivers within the send call, or not at all.
bool is_readable(int fd) {
  constexpr int kTimeoutMs = 200;
  pollfd readable{fd, POLLIN, 0};
  return poll(&readable, 1, kTimeoutMs) > 0;
}

/// True if a datagram passes between two sockets.
bool carries(int from, int to, std::span<char> datagram) {
  const auto bytes = static_cast<ssize_t>(datagram.size());
  return send(from, datagram.data(), datagram.size(), 0) == bytes && is_readable(to) &&
         recv(to, datagram.data(), datagram.size(), 0) == bytes;
}

/// A socket that sends to another one at the same address. Both are empty if they cannot be had.
struct Connected {
  Descriptor sender, receiver;
};
Connected open_connected(const SocketAddress& address, bool gro) {
  SocketAddress to;
  Result<Descriptor> receiver = open_receive_socket(address, 1u << 16, gro, &to);
  Descriptor sender = open_send_socket(address.family(), address, 1u << 16);
  if (!receiver.ok() || !sender || connect(sender.get(), to.sockaddr_data(), to.sockaddr_bytes()) != 0) return {};
  return {std::move(sender), std::move(*receiver)};
}

/// Returns the offloads whose options the kernel has. A path that refuses trains gets single datagrams.
UdpOffloads untested_offloads(sa_family_t family) {
  const Descriptor fd = open_socket(family);
  UdpOffloads known;
  known.gso = set_option(fd.get(), IPPROTO_UDP, UDP_SEGMENT, 0);
  known.gro = set_option(fd.get(), IPPROTO_UDP, UDP_GRO, 1);
  return known;
}

}  // namespace

Result<Descriptor> open_receive_socket(const SocketAddress& bind_to, size_t buffer_bytes, bool gro,
                                       SocketAddress* bound) {
  Descriptor fd = open_socket(bind_to.family());
  if (!fd) return socket_error(errno);
  // A wildcard [::] also receives IPv4, because peers use the address at which they found the Nexus.
  if (bind_to.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, bind_to.is_wildcard() ? 0 : 1);
  set_buffer(fd.get(), SO_RCVBUF, buffer_bytes);
  if (gro) set_gro(fd.get(), true);
  // Packets to paired peers leave from this socket. A wildcard [::] also sends to IPv4.
  set_buffer(fd.get(), SO_SNDBUF, buffer_bytes);
  const bool takes_ipv4 = bind_to.family() == AF_INET6 && bind_to.is_wildcard();
  if (!forbid_fragments(fd.get(), bind_to.family()) || (takes_ipv4 && !forbid_fragments(fd.get(), AF_INET))) {
    return socket_error(errno);
  }
  if (bind(fd.get(), bind_to.sockaddr_data(), bind_to.sockaddr_bytes()) != 0) return bind_error(errno);
  sockaddr_storage storage{};
  socklen_t storage_bytes = sizeof(storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &storage_bytes) != 0) return socket_error(errno);
  *bound = SocketAddress::from_sockaddr(storage);
  return fd;
}

void set_gro(int fd, bool is_on) { set_option(fd, IPPROTO_UDP, UDP_GRO, is_on ? 1 : 0); }

Descriptor open_send_socket(sa_family_t family, const SocketAddress& local, size_t buffer_bytes) {
  Descriptor fd = open_socket(family);
  if (!fd) return fd;
  set_buffer(fd.get(), SO_SNDBUF, buffer_bytes);
  set_buffer(fd.get(), SO_RCVBUF, 0);  // the kernel's minimum, because this socket is never read
  if (!forbid_fragments(fd.get(), family)) return Descriptor();
  if (!local.is_wildcard() && local.family() == family) {
    SocketAddress from = local;
    from.set_port(0);
    if (bind(fd.get(), from.sockaddr_data(), from.sockaddr_bytes()) != 0) return Descriptor();
  }
  return fd;
}

uint32_t route_datagram_bytes(int fd, sa_family_t family) {
  const bool is_ipv6 = family == AF_INET6;
  constexpr int kIpv4Headers = 20 + 8, kIpv6Headers = 40 + 8;
  const int headers = is_ipv6 ? kIpv6Headers : kIpv4Headers;
  int mtu = 0;
  socklen_t mtu_bytes = sizeof(mtu);
  const int level = is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
  if (getsockopt(fd, level, is_ipv6 ? IPV6_MTU : IP_MTU, &mtu, &mtu_bytes) != 0 || mtu <= headers) return 0;
  return static_cast<uint32_t>(mtu - headers);
}

void set_segment_bytes(msghdr* message, void* control, uint16_t segment_bytes) {
  message->msg_control = control;
  message->msg_controllen = kSegmentControlBytes;
  cmsghdr* header = CMSG_FIRSTHDR(message);
  header->cmsg_level = IPPROTO_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(segment_bytes));
  std::memcpy(CMSG_DATA(header), &segment_bytes, sizeof(segment_bytes));
}

bool carries_within_host(SocketAddress address, size_t bytes) {
  address.set_port(0);
  const auto [sender, receiver] = open_connected(address, false);
  const std::unique_ptr<char[]> datagram(new (std::nothrow) char[bytes]());
  return receiver && datagram != nullptr && carries(sender.get(), receiver.get(), {datagram.get(), bytes});
}

UdpOffloads test_offloads(sa_family_t family) {
  constexpr uint16_t kSegmentBytes = 100;
  constexpr size_t kTrainBytes = 2 * kSegmentBytes + 60;  // a shorter last segment, as in real trains
  const auto [sender, receiver] = open_connected(SocketAddress::loopback(family), true);
  std::array<char, 1> byte{};
  if (!receiver || !carries(sender.get(), receiver.get(), byte)) return untested_offloads(family);

  std::array<char, kTrainBytes> train;
  for (size_t i = 0; i < train.size(); ++i) train[i] = static_cast<char>(i);
  iovec range{train.data(), train.size()};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kSegmentControlBytes] = {};
  set_segment_bytes(&message, control, kSegmentBytes);
  if (sendmsg(sender.get(), &message, 0) != static_cast<ssize_t>(kTrainBytes)) return {};

  UdpOffloads works;
  std::array<char, kTrainBytes + 1> received;
  size_t total = 0;
  while (total < kTrainBytes) {
    if (!is_readable(receiver.get())) return {};
    const ssize_t got = recv(receiver.get(), received.data() + total, received.size() - total, 0);
    if (got <= 0) return {};
    works.gro = static_cast<size_t>(got) == kTrainBytes;
    total += static_cast<size_t>(got);
  }
  works.gso = total == kTrainBytes && std::memcmp(train.data(), received.data(), kTrainBytes) == 0;
  works.gro = works.gro && works.gso;
  return works;
}

}  // namespace tern::transport
