// UDP datagrams by AF_XDP sockets, past the kernel's network stack, over an interface that stays the kernel's.
// Transport layer; owned by the endpoint's thread, wake() excepted.
//
//   this file        the common path: send() into a frame, flush(), receive()
//   xdp.cc           creation, peers, the end
//   xdp_events.cc    frames that do not leave, failures, events of the interface, waiting
//   sends.*          frames on their way out
//   port.*, lane.cc  the interface that the endpoints of the process share, and each endpoint's way through it
//   queue.*          an AF_XDP socket with its memory and rings
//   kernel_socket.*  the kernel's UDP socket beside them
//   steering.*       the XDP program that brings the frames, and its maps
//   src/ethernet     peers, open frames, own address; src/frames: headers made and checked
//   src/neighbours   routes and MAC addresses, the kernel's
//
// A packet's way out: send() copies it behind others to the same peer into that peer's open frame, in memory that the
// kernel sends from. flush() writes the headers of the open frames, prebuilt but for lengths, and checksums, and puts
// all frames into the queue's ring with one system call for 32 of them.
//
// A packet's way in: the XDP program redirects the frame to the socket of the queue where it has arrived, and the
// kernel puts it into the queue's memory. A frame is checked to be a datagram for this endpoint, and its packets are
// visited where they lie. A frame for another endpoint of the process goes to its inbox.
//
// Beside that, the kernel's socket gets what arrives at a queue that is not this process's. It is asked after each
// so many looks at the queue, and always again while it has something.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/xdp.h>

#include "base/clock.h"
#include "base/threads.h"
#include "base/wait.h"
#include "ethernet/endpoint_address.h"
#include "ethernet/open_frames.h"
#include "ethernet/peers.h"
#include "frames/drop.h"
#include "frames/parse.h"
#include "memory/arena.h"
#include "transport/datagram.h"
#include "transport/transport.h"
#include "transport/xdp/kernel_socket.h"
#include "transport/xdp/names.h"
#include "transport/xdp/port.h"
#include "transport/xdp/sends.h"
#include "wire/header.h"

namespace tern::transport {

class TERN_API XdpImpl : public DefaultMembers {
 public:
  using Options = Xdp::Options;
  /// Keeps the open frame's position in registers.
  class Sender : public ethernet::OpenFrames<xdp::Sends>::Sender {
   public:
    Sender(XdpImpl& transport, PeerId id) : ethernet::OpenFrames<xdp::Sends>::Sender(transport.open_frames_, id) {}
  };
  /// rto_ns_min: as of kernel UDP, as the kernel runs the driver and the program.
  static constexpr Traits kTraits{
      .reports_space = true,
      .can_fail = true,
      .rto_ns_min = 1'000'000,
      .congestion_control = CongestionControl::kSwift,
      .remedies = {.packet_bytes = " (Xdp::Options::datagram_bytes on either side)",
                   .address = " (the server's Xdp::Options::bind has its address and port)",
                   .no_way_back = ": both need addresses of one family and a route between "
                                  "them over the interface, which Xdp::Options::interface chooses"}};

  /// kMisuse: an option is out of range or malformed, or another than that of the endpoints that have the interface.
  /// kUnavailable: see xdp::Port::open() and attach(); also a UDP port that is taken, an MTU that is too small.
  /// kNoMemory.
  static Result<std::unique_ptr<XdpImpl>> create(Options options, const Context& context);
  ~XdpImpl();
  XdpImpl(const XdpImpl&) = delete;
  XdpImpl& operator=(const XdpImpl&) = delete;

  std::span<const std::byte> address() const { return address_bytes_; }
  /// kMisuse: the bytes are no address of this transport. kUnavailable: the other family, no route, or a next hop that
  /// does not answer. kNoMemory.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id);
  void disconnect(PeerId id);
  Status failure() const { return failure_; }
  Status peer_failure(PeerId id) const { return objects_->peers.failure(id); }
  uint32_t payload_bytes_max() const { return objects_->peers.own().datagram_bytes - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return objects_->peers.route(id).datagram_bytes - kHeaderBytes; }
  /// Of a queue that endpoints share, each has all, because their clients rarely all send at once. Whoever of them
  /// polls moves frames of the others to their inboxes, of which each takes at most a sixteenth of the queue. A frame
  /// that finds the queue or the inbox full is an ordinary loss.
  uint32_t receive_queue_packets() const { return options_.receive_buffers - kBorrowed; }
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  /// A round trip that is longer without a queue is that of a long path.
  DelayTarget delay_target() const { return {delay_target_ns_, delay_target_ns_, true}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return Sender(*this, id).send(header, data, len, buffer);
  }
  /// All packets are copied at once.
  uint64_t ticket() const { return 0; }
  uint64_t released() const { return UINT64_MAX; }
  void flush() {
    if (objects_->sends.has_queued()) transmit();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (has_trouble_) [[unlikely]] {
      if (!recover()) return 0;
    }
    if (kept_ != 0) give_back();
    const uint32_t count = objects_->lane->receive(objects_->burst);
    if (--until_kernel_ == 0) [[unlikely]]
      return receive_by_kernel(visit) + receive_burst(visit, count);
    return count == 0 ? 0 : receive_burst(visit, count);
  }

  uint64_t now() const { return base::monotonic_ns(); }
  bool prepare_wait();
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

  /// "zero_copy", "native" or "generic".
  std::string_view mode() const { return objects_->port->mode(); }
  xdp::Port& port() { return *objects_->port; }           ///< for tests
  xdp::Queue& queue() { return objects_->lane->home(); }  ///< for tests

 private:
  using OpenFrames = ethernet::OpenFrames<xdp::Sends>;
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static_assert(Options::kDatagramBytesMin == ethernet::kDatagramBytesMin);
  /// Of descriptors in waits_.
  enum class Waiting : uint64_t { kWake, kTimer, kNeighbours, kLane, kKernel };
  /// Looks at the queue before one at the kernel's socket, which is a system call: 1 after it had something, then twice
  /// as many after each time that it had nothing.
  static constexpr uint32_t kKernelLooksMax = 2048;
  /// Events of the interface and of neighbours are looked for with so many looks at the kernel's socket, and after a
  /// sleep.
  static constexpr uint32_t kEventLooks = 32;
  static constexpr uint32_t kKernelBurst = 32;
  /// Frames of a queue that are not in its rings: the burst that is visited, and the kernel's next ones.
  static constexpr uint32_t kBorrowed = 2 * xdp::Lane::kBurstMax;

  /// What a forked child must leave alone, as it is the parent's. The last goes first.
  struct Objects {
    std::shared_ptr<xdp::Port> port;
    xdp::KernelSocket kernel;
    std::unique_ptr<xdp::Lane> lane;
    ethernet::Peers peers{xdp::kNames};
    xdp::Sends sends;
    std::array<xdp::Frame, xdp::Lane::kBurstMax> burst;
  };

  XdpImpl(Options options, const Context& context);
  Status open(std::string_view listen_host);
  Result<neighbours::Interface> find_interface(const base::SocketAddress& bind, std::string_view listen_host) const;
  Status start(const neighbours::Interface& interface, base::SocketAddress own);
  Status open_waits();
  void set_own_mac(const frames::MacAddress& mac);

  template <class Visit>
  size_t receive_burst(Visit& visit, uint32_t count);
  template <class Visit>
  [[gnu::noinline]] size_t receive_by_kernel(Visit& visit);
  bool pass_on(const xdp::Frame& frame, frames::Drop drop);
  /// Of the last burst; in the next receive(), so that responses have left before.
  void give_back() {
    objects_->lane->give_back(std::span(objects_->burst).first(kept_));
    kept_ = 0;
  }

  void transmit();
  void kick();
  bool recover();
  void update_neighbours();
  void fail(Status why);

  // Read by every send and receive.
  base::OfThisProcess<Objects> objects_;
  OpenFrames open_frames_;
  frames::FrameParser parser_;
  uint32_t kept_ = 0;  ///< frames at the front of the burst that are still this endpoint's
  uint32_t until_kernel_ = 1;
  bool has_trouble_ = false;  ///< the kernel does not take frames, or the transport has failed
  TransportCounters counters_;

  uint32_t kernel_looks_ = 1;
  uint32_t until_events_ = kEventLooks;
  bool is_down_ = false;  ///< the interface was, when frames were last sent
  bool is_armed_ = false;
  Options options_;
  uint32_t delay_target_ns_;
  uint64_t link_bytes_per_sec_ = 1;
  Status failure_;
  Status interface_failure_;  ///< which the next recover() makes failure_
  ethernet::EndpointAddress::Bytes address_bytes_{};
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer timer_;
};

/// The packets of received frames.
template <class Visit>
size_t XdpImpl::receive_burst(Visit& visit, uint32_t count) {
  std::array<xdp::Frame, xdp::Lane::kBurstMax>& burst = objects_->burst;
  if (count == 0) return 0;
  if constexpr (BurstVisitor<Visit>) visit.begin_burst();
  size_t packets = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const xdp::Frame frame = burst[i];
    const frames::FrameParser::Datagram datagram = parser_.parse(frame.span(), {});
    if (datagram.payload == nullptr) [[unlikely]] {
      if (pass_on(frame, datagram.drop)) continue;
    } else if (datagram.payload_bytes > objects_->peers.own().datagram_bytes) [[unlikely]] {
      ++counters_.dropped_oversize;
    } else {
      packets += visit_packets(datagram.payload, datagram.payload_bytes, visit, counters_);
    }
    burst[kept_++] = frame;
  }
  counters_.packets_received += packets;
  return packets;
}

/// The packets of datagrams that the kernel has.
template <class Visit>
size_t XdpImpl::receive_by_kernel(Visit& visit) {
  if (--until_events_ == 0) {
    until_events_ = kEventLooks;
    update_neighbours();
  }
  size_t packets = 0;
  uint32_t datagrams = 0;
  for (; datagrams < kKernelBurst; ++datagrams) {
    const std::span<const std::byte> datagram = objects_->kernel.receive();
    ++counters_.system_calls;
    if (datagram.data() == nullptr) break;
    if constexpr (BurstVisitor<Visit>) {
      if (datagrams == 0) visit.begin_burst();
    }
    if (datagram.size() > objects_->peers.own().datagram_bytes) {
      ++counters_.dropped_oversize;
    } else {
      packets += visit_packets(datagram.data(), datagram.size(), visit, counters_);
    }
  }
  kernel_looks_ = datagrams != 0 ? 1 : std::min(2 * kernel_looks_, kKernelLooksMax);
  until_kernel_ = kernel_looks_;
  counters_.packets_received += packets;
  counters_.packets_by_kernel += packets;
  return packets;
}

}  // namespace tern::transport
