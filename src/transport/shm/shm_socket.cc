#include "transport/shm/shm_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/random.h"

namespace tern::transport::shm {

namespace {

constexpr int kSocketPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5; older C libraries do not name it
constexpr uint8_t kHelloHolds = 1;
constexpr size_t kMessageBytesMax = 64;
constexpr size_t kDescriptorsMax = 4;  // more than any message has, so that a surplus is seen and closed

/// Appends and takes fixed-size fields; the caller has checked the length.
struct Fields {
  std::byte bytes[kMessageBytesMax];
  size_t size = 0;

  template <class T>
  void put(const T& value) {
    std::memcpy(bytes + size, &value, sizeof value);
    size += sizeof value;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, bytes + size, sizeof value);
    size += sizeof value;
    return value;
  }
};
constexpr size_t kPlainBytes = 2;
constexpr size_t kHelloBytes = kPlainBytes + 1 + sizeof(Identity) + 8 + 4;
constexpr size_t kChunkBytes = kPlainBytes + 4 + 8;

Fields start_message(MessageType type) {
  Fields fields;
  fields.put(type);
  fields.put(kProtocolVersion);
  return fields;
}

SendResult send_fields(int socket, Fields& fields, std::span<const int> descriptors) {
  iovec part = {fields.bytes, fields.size};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int) * 2)] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendResult::kSent;
    if (errno == EINTR) continue;
    const bool is_gone = errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED;
    if (is_gone) return SendResult::kGone;
    return errno == EAGAIN || errno == EWOULDBLOCK ? SendResult::kFull : SendResult::kShort;
  }
}

/// Takes the descriptors out of a received message. Returns their number.
size_t take_descriptors(msghdr& raw, std::array<Descriptor, kDescriptorsMax>& taken) {
  size_t count = 0;
  for (cmsghdr* head = CMSG_FIRSTHDR(&raw); head != nullptr; head = CMSG_NXTHDR(&raw, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here && count < kDescriptorsMax; i++) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      taken[count++] = Descriptor(fd);
    }
  }
  return count;
}

/// Parses a datagram of `size` bytes that came with `descriptors`.
bool parse(Fields& fields, size_t size, size_t descriptors, Message& message) {
  if (size < kPlainBytes) return false;
  fields.size = 0;
  message.type = fields.take<MessageType>();
  if (fields.take<uint8_t>() != kProtocolVersion) return false;
  switch (message.type) {
    case MessageType::kHello: {
      if (size != kHelloBytes || descriptors != 2) return false;
      const auto flags = fields.take<uint8_t>();
      message.hello.holds = (flags & kHelloHolds) != 0;
      message.hello.identity = fields.take<Identity>();
      message.hello.ring_start = fields.take<uint64_t>();
      message.hello.ring_cells = fields.take<uint32_t>();
      return true;
    }
    case MessageType::kChunk:
      if (size != kChunkBytes || descriptors != 1) return false;
      message.chunk_id = fields.take<uint32_t>();
      message.chunk_bytes = fields.take<uint64_t>();
      return true;
    case MessageType::kWake:
    case MessageType::kHold:
    case MessageType::kRelease:
    case MessageType::kBye:
      return size == kPlainBytes && descriptors == 0;
  }
  return false;
}

struct Name {
  sockaddr_un address = {};
  socklen_t size = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Name name_of(const Identity& identity) {
  static constexpr char kPrefix[] = "tern-shm-";
  static constexpr char kDigits[] = "0123456789abcdef";
  Name name;
  name.address.sun_family = AF_UNIX;
  // The leading zero makes the name abstract, so that it ends with its last descriptor.
  char* to = name.address.sun_path + 1;
  for (const char* from = kPrefix; *from != 0; from++) *to++ = *from;
  for (const std::byte byte : identity) {
    *to++ = kDigits[std::to_integer<unsigned>(byte) >> 4];
    *to++ = kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  name.size = static_cast<socklen_t>(to - reinterpret_cast<char*>(&name.address));
  return name;
}

Result<Descriptor> make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return shortage_or(errno, {Code::kUnavailable, "shm: Unix sockets are refused here; use udp"});
  return socket;
}

}  // namespace

SendResult send_hello(int socket, const Hello& hello, int ring_fd, int doorbell_fd) {
  Fields fields = start_message(MessageType::kHello);
  fields.put(hello.holds ? kHelloHolds : uint8_t{0});
  fields.put(hello.identity);
  fields.put(hello.ring_start);
  fields.put(hello.ring_cells);
  const int descriptors[] = {ring_fd, doorbell_fd};
  return send_fields(socket, fields, descriptors);
}

SendResult send_chunk(int socket, uint32_t chunk_id, uint64_t chunk_bytes, int chunk_fd) {
  Fields fields = start_message(MessageType::kChunk);
  fields.put(chunk_id);
  fields.put(chunk_bytes);
  const int descriptors[] = {chunk_fd};
  return send_fields(socket, fields, descriptors);
}

SendResult send_plain(int socket, MessageType type) {
  Fields fields = start_message(type);
  return send_fields(socket, fields, {});
}

ReceiveResult receive_message(int socket, Message& message) {
  Fields fields;
  iovec part = {fields.bytes, sizeof fields.bytes};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)];
  msghdr raw = {};
  raw.msg_iov = &part;
  raw.msg_iovlen = 1;
  raw.msg_control = control;
  raw.msg_controllen = sizeof control;
  ssize_t size;
  do {
    size = ::recvmsg(socket, &raw, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A peer that closes before it has read everything resets the connection. The kernel reports that once, and its
    // messages are readable afterwards.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? ReceiveResult::kNothing : ReceiveResult::kHangUp;
  std::array<Descriptor, kDescriptorsMax> taken;
  const size_t descriptors = take_descriptors(raw, taken);
  if (size == 0) return ReceiveResult::kHangUp;  // no message of the protocol is empty
  if ((raw.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return ReceiveResult::kMalformed;
  if (!parse(fields, static_cast<size_t>(size), descriptors, message)) return ReceiveResult::kMalformed;
  message.descriptors[0] = std::move(taken[0]);
  message.descriptors[1] = std::move(taken[1]);
  return ReceiveResult::kMessage;
}

Result<Identity> make_identity() {
  Identity identity;
  if (!base::fill_random(identity.data(), identity.size())) {
    return Status(Code::kUnavailable,
                  "shm: the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox");
  }
  identity[0] = std::byte{kProtocolVersion};
  return identity;
}

bool is_of_this_version(const Identity& identity) { return identity[0] == std::byte{kProtocolVersion}; }

Result<Descriptor> listen_as(const Identity& identity) {
  auto socket = make_socket();
  if (!socket.ok()) return socket;
  const Name name = name_of(identity);
  if (::bind(socket->get(), name.raw(), name.size) != 0 || ::listen(socket->get(), kListenBacklog) != 0) {
    return shortage_or(errno, {Code::kUnavailable, "shm: an abstract Unix socket cannot be bound here; use udp"});
  }
  return socket;
}

Result<Descriptor> connect_to(const Identity& identity) {
  auto socket = make_socket();
  if (!socket.ok()) return socket;
  const Name name = name_of(identity);
  if (::connect(socket->get(), name.raw(), name.size) != 0) {
    if (errno == EAGAIN || errno == EINTR)
      return Status(Code::kQueueFull, "shm: the peer accepts too slowly; try again");
    if (errno == EACCES || errno == EPERM) {
      return Status(Code::kUnavailable,
                    "shm: the system forbids connections to the peer's abstract Unix socket; use udp");
    }
    return shortage_or(
        errno,
        {Code::kPeerUnreachable,
         "shm: no such endpoint in this process's network namespace: it has ended, or runs on another host or in "
         "another container; let containers share the network namespace, or use udp"});
  }
  return socket;
}

bool peer_process(int socket, PeerProcess& process) {
  ucred credentials;
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  process = {credentials.pid, credentials.uid};
  return true;
}

bool is_own_user(const PeerProcess& process) { return process.uid == ::geteuid(); }

Descriptor watch_process(int socket, const PeerProcess& process, bool& is_dead) {
  is_dead = false;
  if (process.pid == 0 || process.pid == ::getpid()) return {};
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kSocketPeerPidfd, &fd, &size) == 0 && fd >= 0) return Descriptor(fd);
  fd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  is_dead = fd < 0 && errno == ESRCH;
  return Descriptor(fd);
}

}  // namespace tern::transport::shm
