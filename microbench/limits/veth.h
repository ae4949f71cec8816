// Two AF_XDP sockets of this process, at the two ends of a veth pair, for the limits. libxdp and libbpf only; it
// contains no code of the library.
//
// The pair is in a network namespace that the program creates and that ends with it, so that the pair carries no other
// frames. Each end has one queue, and an XDP program that gives all frames to the socket. The kernel carries a frame in
// the sender's system call: it makes a packet, runs the other end's program and copies the frame into the other end's
// memory. A receiver makes no system calls. Needs root and iproute2.
#pragma once

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/xsk.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "common.h"

DEFINE_bool(generic, false, "XDP in the kernel's general receive path instead of the driver");

namespace limits {

/// The Ethernet, IPv4 and UDP headers before a datagram.
constexpr uint32_t kHeaderBytes = 14 + 20 + 8;
/// Maximum number of frames in one call.
constexpr uint32_t kBurst = 64;
/// The maximum MTU of a pair in native mode, in round numbers.
constexpr uint32_t kMtuMax = 3498;

/// One end. It belongs to one thread. A frame is an offset into `memory`.
class VethPort {
 public:
  static constexpr uint32_t kFrames = 2048, kFrameBytes = 4096;
  /// Descriptors of each ring. The kernel gives a frame to the receiver before it takes the frame out of the fill ring.
  static constexpr uint32_t kDescriptors = 2 * kFrames;

  /// Returns false on an error; errno has the reason.
  bool open(const char* interface) {
    constexpr size_t kBytes = size_t{kFrames} * kFrameBytes;
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory_ == MAP_FAILED) return false;
    const xsk_umem_config memory = {kDescriptors, kDescriptors, kFrameBytes, 0, 0};
    const xsk_socket_config socket = {
        kDescriptors, kDescriptors, {XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD}, 0, XDP_COPY | XDP_USE_NEED_WAKEUP};
    if (!succeeds(xsk_umem__create(&umem_, memory_, kBytes, &fill_, &done_, &memory))) return false;
    if (!succeeds(xsk_socket__create(&socket_, interface, 0, umem_, &receive_, &transmit_, &socket))) return false;
    fd_ = xsk_socket__fd(socket_);
    return attach(if_nametoindex(interface));
  }
  /// Gives these frames to the kernel, which receives into them.
  void fill(uint32_t first, uint32_t count) {
    uint32_t at = 0;
    if (xsk_ring_prod__reserve(&fill_, count, &at) != count) std::abort();  // the ring has space for all frames
    for (uint32_t i = 0; i < count; i++) {
      *xsk_ring_prod__fill_addr(&fill_, at + i) = uint64_t{first + i} * kFrameBytes;
    }
    xsk_ring_prod__submit(&fill_, count);
  }
  /// Sends arrived frames back unchanged, and gives sent frames to the kernel. Returns the number of arrived frames.
  uint32_t send_again() {
    uint32_t from = 0, to = 0;
    const uint32_t count = xsk_ring_cons__peek(&receive_, kBurst, &from);
    if (count == 0) return 0;
    if (xsk_ring_prod__reserve(&transmit_, count, &to) != count)
      std::abort();  // there are as many descriptors as
                     // frames
    for (uint32_t i = 0; i < count; i++) {
      *xsk_ring_prod__tx_desc(&transmit_, to + i) = *xsk_ring_cons__rx_desc(&receive_, from + i);
    }
    xsk_ring_cons__release(&receive_, count);
    push(count);
    return count;
  }
  /// Queues a frame of zeros, which the next sending call sends.
  void queue_new(uint32_t frame, uint32_t bytes) {
    uint32_t to = 0;
    if (xsk_ring_prod__reserve(&transmit_, 1, &to) != 1) std::abort();
    *xsk_ring_prod__tx_desc(&transmit_, to) = {uint64_t{frame} * kFrameBytes, bytes, 0};
    xsk_ring_prod__submit(&transmit_, 1);
  }
  /// Sends a frame of zeros.
  void send_new(uint32_t frame, uint32_t bytes) {
    queue_new(frame, bytes);
    push(0);
  }
  /// Gives arrived frames back to the kernel. Returns their number.
  uint32_t drop_arrived() {
    uint32_t from = 0, to = 0;
    const uint32_t count = xsk_ring_cons__peek(&receive_, kBurst, &from);
    if (count == 0) return 0;
    if (xsk_ring_prod__reserve(&fill_, count, &to) != count) std::abort();
    for (uint32_t i = 0; i < count; i++) {
      *xsk_ring_prod__fill_addr(&fill_, to + i) = xsk_ring_cons__rx_desc(&receive_, from + i)->addr;
    }
    xsk_ring_prod__submit(&fill_, count);
    xsk_ring_cons__release(&receive_, count);
    return count;
  }
  /// Sends the completed frames again. Returns their number.
  uint32_t send_done_again(uint32_t bytes) {
    uint32_t from = 0, to = 0;
    const uint32_t count = xsk_ring_cons__peek(&done_, kBurst, &from);
    if (count != 0 && xsk_ring_prod__reserve(&transmit_, count, &to) != count) std::abort();
    for (uint32_t i = 0; i < count; i++) {
      *xsk_ring_prod__tx_desc(&transmit_, to + i) = {*xsk_ring_cons__comp_addr(&done_, from + i), bytes, 0};
    }
    if (count != 0) {
      xsk_ring_cons__release(&done_, count);
      xsk_ring_prod__submit(&transmit_, count);
    }
    call();
    return count;
  }

 private:
  static bool succeeds(int result) {
    if (result < 0) errno = -result;
    return result >= 0;
  }
  /// Redirects all frames of the interface to the socket.
  bool attach(unsigned interface) {
    const int sockets = bpf_map_create(BPF_MAP_TYPE_XSKMAP, "limits", sizeof(uint32_t), sizeof(int), 1, nullptr);
    const uint32_t queue = 0;
    const bpf_insn code[] = {{BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, sockets},  // r1 = the map
                             {0, 0, 0, 0, 0},                                                // its second half
                             {BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, 0},                      // r2 = queue 0
                             {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_DROP},               // r3 = without a socket
                             {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},           // r0 = to the socket
                             {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    const int program = bpf_prog_load(BPF_PROG_TYPE_XDP, "limits", "GPL", code, std::size(code), nullptr);
    LIBBPF_OPTS(bpf_link_create_opts, options, .flags = FLAGS_generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE);
    return sockets >= 0 && program >= 0 && bpf_map_update_elem(sockets, &queue, &fd_, 0) == 0 &&
           bpf_link_create(program, static_cast<int>(interface), BPF_XDP, &options) >= 0;
  }
  /// Lets the kernel carry the frames in the ring: at most 32 frames a call.
  void call() { (void)sendto(fd_, nullptr, 0, MSG_DONTWAIT, nullptr, 0); }
  void push(uint32_t count) {
    constexpr uint32_t kOfCall = 32;
    xsk_ring_prod__submit(&transmit_, count);
    do {
      call();
    } while (count > kOfCall && (count -= kOfCall) > 0);
    uint32_t from = 0, to = 0;
    const uint32_t done = xsk_ring_cons__peek(&done_, kBurst, &from);
    if (done == 0) return;
    if (xsk_ring_prod__reserve(&fill_, done, &to) != done) std::abort();
    for (uint32_t i = 0; i < done; i++) {
      *xsk_ring_prod__fill_addr(&fill_, to + i) = *xsk_ring_cons__comp_addr(&done_, from + i);
    }
    xsk_ring_prod__submit(&fill_, done);
    xsk_ring_cons__release(&done_, done);
  }

  // libxdp's objects. The rings must be zero before libxdp initializes them.
  xsk_ring_prod fill_{}, transmit_{};
  xsk_ring_cons done_{}, receive_{};
  xsk_umem* umem_ = nullptr;
  xsk_socket* socket_ = nullptr;
  void* memory_ = nullptr;
  int fd_ = -1;
};

struct VethPair {
  VethPort server, client;
};

/// Must be called once, after parse_flags(), in the thread that starts the others. On error it prints a sentence and
/// returns false.
inline bool open_veth_pair(VethPair& pair, uint32_t mtu) {
  if (unshare(CLONE_NEWNET) != 0) {
    fail("no network namespace can be made (%s): run as root", std::strerror(errno));
    return false;
  }
  // Without IPv6 addresses the kernel itself sends nothing. There is one queue so that it gets every frame.
  const std::string end = " mtu " + std::to_string(mtu) + " numrxqueues 1 numtxqueues 1 ";
  const std::string commands = "ip link add limits0" + end + "type veth peer name limits1" + end +
                               " && ip link set limits0 addrgenmode none up && ip link set limits1 addrgenmode none up";
  if (std::system(commands.c_str()) != 0) {
    fail("no veth pair can be made: install iproute2, and use a kernel with CONFIG_VETH");
    return false;
  }
  if (!pair.server.open("limits0") || !pair.client.open("limits1")) {
    fail("no AF_XDP sockets on a veth pair (%s): use a kernel with CONFIG_XDP_SOCKETS, and ulimit -l unlimited",
         std::strerror(errno));
    return false;
  }
  return true;
}

}  // namespace limits
