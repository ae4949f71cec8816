// The wire of an mlx5 device: AF_PACKET sockets on its interface, and the thread that reads them.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <system_error>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr int kSocketBytes = 8 << 20;
constexpr size_t kArrivalBytes = 1 << 16;
constexpr size_t kAddressBytes = 6;
/// Space before an arriving frame for a VLAN tag that the kernel has removed.
constexpr size_t kTagSpace = kVlanTagBytes;

std::atomic<Network*> current{nullptr};

/// The mark of frames that this process sends by a port. This process's receiving sockets at the port would otherwise
/// also get these frames, before those of other processes. No queue here takes them, because loop_back() has been tried
/// before.
uint32_t mark_of(const Port& port) { return static_cast<uint32_t>(getpid()) << 8 ^ port.index; }
void mark_frames(int socket, const Port& port) {
  const uint32_t mark = mark_of(port);
  setsockopt(socket, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}
void ignore_marked_frames(int socket, const Port& port) {
  sock_filter steps[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_MARK)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mark_of(port), 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
                         BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const sock_fprog filter{std::size(steps), steps};
  setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
}

int open_packet_socket(const Port& port, uint16_t protocol) {
  const int opened = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (opened == -1) return -1;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(protocol);
  address.sll_ifindex = static_cast<int>(port.index);
  const int one = 1;
  setsockopt(opened, SOL_PACKET, PACKET_AUXDATA, &one, sizeof(one));
  if (setsockopt(opened, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBytes, sizeof(kSocketBytes)) != 0)
    setsockopt(opened, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof(kSocketBytes));
  if (setsockopt(opened, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBytes, sizeof(kSocketBytes)) != 0)
    setsockopt(opened, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  if (protocol == 0)
    mark_frames(opened, port);
  else
    ignore_marked_frames(opened, port);
  if (bind(opened, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return opened;
  const int error = errno;
  close(opened);
  errno = error;
  return -1;
}

/// Closes the socket in a separate thread. Closing a packet socket takes the kernel some 10 ms, because it waits until
/// no CPU delivers to the socket any more.
void close_packet_socket(int socket) {
  sigset_t all, before;  // the program's threads must get the signals
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([socket] { close(socket); }).detach();
  } catch (const std::system_error&) {
    close(socket);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

size_t frame_bytes_max(const Port& port, FrameView frame) {
  const bool is_tagged = frame.size() >= kEthernetBytes && frame[12] == std::byte{kEtherTypeVlan >> 8} &&
                         frame[13] == std::byte{kEtherTypeVlan & 0xff};
  return port.mtu.load() + kEthernetBytes + (is_tagged ? kVlanTagBytes : 0);
}

bool is_own(const Port& port, FrameView frame) { return memcmp(frame.data(), port.address.data(), kAddressBytes) == 0; }

/// The kernel's additional data about an arriving frame.
tpacket_auxdata find_auxiliary(msghdr& message) {
  tpacket_auxdata found{};
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part))
    if (part->cmsg_level == SOL_PACKET && part->cmsg_type == PACKET_AUXDATA)
      memcpy(&found, CMSG_DATA(part), sizeof(found));
  return found;
}

/// Returns the frame as it would be on a wire: puts its VLAN tag back, and computes a checksum that the kernel has left
/// to the NIC.
Frame restore(Frame space, size_t bytes, const tpacket_auxdata& auxiliary) {
  Frame frame = space.subspan(kTagSpace, bytes);
  if ((auxiliary.tp_status & TP_STATUS_VLAN_VALID) != 0) {
    frame = space.first(kTagSpace + bytes);
    memmove(frame.data(), frame.data() + kTagSpace, 2 * kAddressBytes);
    const bool has_type = (auxiliary.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
    const uint16_t type = htobe16(has_type ? auxiliary.tp_vlan_tpid : kEtherTypeVlan);
    const uint16_t tag = htobe16(auxiliary.tp_vlan_tci);
    memcpy(frame.data() + 12, &type, sizeof(type));
    memcpy(frame.data() + 14, &tag, sizeof(tag));
  }
  if ((auxiliary.tp_status & TP_STATUS_CSUMNOTREADY) != 0) write_transport_checksum(frame, find_headers(frame));
  return frame;
}

void arrive(Port& port, FrameView frame) {
  if (frame.size() > frame_bytes_max(port, frame)) {
    count(totals.dropped_too_long);
    return;
  }
  if (port.context->is_port_taken_down()) {
    count(totals.dropped_other);
    return;
  }
  const std::lock_guard lock(network().mutex);
  if (!steer(port, frame)) count(totals.dropped_no_flow);
}

/// Returns false if there was no frame.
bool receive_frame(Port& port, Frame space) {
  sockaddr_ll from{};
  iovec part{space.data() + kTagSpace, space.size() - kTagSpace};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(tpacket_auxdata))> control{};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof(from);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t received = recvmsg(port.receiver, &message, MSG_DONTWAIT | MSG_TRUNC);
  if (received < 0) return false;
  const auto bytes = static_cast<size_t>(received);
  if (bytes > part.iov_len || bytes < kEthernetBytes) return true;
  if (from.sll_pkttype == PACKET_OUTGOING && !is_own(port, space.subspan(kTagSpace))) return true;
  arrive(port, restore(space, bytes, find_auxiliary(message)));
  return true;
}

void receive_until_stopped(Port* port) {
  std::vector<std::byte> space(kTagSpace + kArrivalBytes);
  std::array<pollfd, 2> waited{pollfd{port->receiver, POLLIN, 0}, pollfd{port->stop, POLLIN, 0}};
  while (true) {
    if (poll(waited.data(), waited.size(), -1) < 0) continue;
    if (waited[1].revents != 0) return;
    while (receive_frame(*port, space)) {
    }
  }
}

/// True if a queue of this process has taken a frame to the address of the sender's own interface.
bool loop_back(const Port& port, FrameView frame) {
  if (!is_own(port, frame)) return false;
  bool is_taken = false;
  const std::lock_guard lock(network().mutex);
  for (Port* other : network().ports)
    if (other->index == port.index && other->network_space == port.network_space) is_taken |= steer(*other, frame);
  if (is_taken) count(totals.frames_looped);
  return is_taken;
}

std::vector<std::byte>& gather(Port& port, const SendRequest& request) {
  std::vector<std::byte>& frame = port.outgoing;
  frame.assign(request.inline_bytes.begin(), request.inline_bytes.end());
  for (uint32_t i = 0; i < request.sge_count; i++) {
    const auto* from = reinterpret_cast<const std::byte*>(request.sges[i].addr);
    frame.insert(frame.end(), from, from + request.sges[i].length);
  }
  if (frame.size() < kFrameBytesMin) frame.resize(kFrameBytesMin);
  return frame;
}

}  // namespace

Network& network() {
  [[maybe_unused]] static const bool is_ready = [] {
    current.store(new Network);
    pthread_atfork(nullptr, nullptr, [] { current.store(new Network); });
    return true;
  }();
  return *current.load();
}

bool open_sender(Port& port) {
  read_mtu(port);
  if (port.senders == 0) port.sender = open_packet_socket(port, 0);  // this socket receives nothing
  if (port.sender == -1) return false;
  port.senders++;
  return true;
}

void close_sender(Port& port) {
  if (--port.senders > 0) return;
  close_packet_socket(port.sender);
  port.sender = -1;
}

bool open_receiver(Port& port) {
  if (port.receivers > 0) {
    port.receivers++;
    return true;
  }
  read_mtu(port);
  port.receiver = open_packet_socket(port, ETH_P_ALL);
  if (port.receiver == -1) return false;
  port.stop = eventfd(0, EFD_CLOEXEC);
  sigset_t all, before;  // the program's threads must get the signals
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = port.stop == -1 ? errno : 0;
  try {
    if (error == 0) port.thread = std::thread(receive_until_stopped, &port);
  } catch (const std::system_error& refusal) {
    error = refusal.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  port.receivers = 1;
  if (error == 0) return true;
  close_receiver(port);
  errno = error;
  return false;
}

void close_receiver(Port& port) {
  if (--port.receivers > 0) return;
  if (port.thread.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(port.stop, &one, sizeof(one));
    port.thread.join();
  }
  close_packet_socket(port.receiver);
  if (port.stop != -1) close(port.stop);
  port.receiver = port.stop = -1;
}

void transmit_frame(QueuePair& queue_pair, const SendRequest& request) {
  Context& context = context_of(&queue_pair);
  Port& port = *context.port;
  std::vector<std::byte>& frame = gather(port, request);
  if (frame.size() > frame_bytes_max(port, frame)) {
    count(totals.oversized_sends);
    return;
  }
  if (request.has_checksums) {
    const Headers headers = find_headers(frame);
    write_ip_checksum(frame, headers);
    write_transport_checksum(frame, headers);
  }
  if (context.is_port_taken_down() || is_packet_dropped()) {
    count(totals.dropped_other);
    return;
  }
  if (const size_t corrupted = corrupted_byte(); corrupted < frame.size()) frame[corrupted] ^= std::byte{0x10};
  if (loop_back(port, frame) || send(port.sender, frame.data(), frame.size(), MSG_DONTWAIT) >= 0)
    count(totals.packets_sent);
  else
    count(totals.dropped_other);
}

bool inject_frame(int index, const void* bytes, size_t size) {
  const FrameView frame(static_cast<const std::byte*>(bytes), size);
  const std::lock_guard lock(network().mutex);
  bool is_taken = false;
  for (Port* port : network().ports)
    if (port->context->device->index == index) is_taken |= steer(*port, frame);
  if (!is_taken) count(totals.dropped_no_flow);
  return is_taken;
}

}  // namespace software_verbs
